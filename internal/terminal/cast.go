package terminal

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// A Format is a version of asciicast, the format of asciinema.
type Format int

const (
	AsciicastV2 Format = 2
	AsciicastV3 Format = 3
)

// Record writes the stored output of a terminal as a recording.
func (m *Manager) Record(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID, f Format, w func() io.Writer) (err error) {
	defer engi.Annotate(&err, "record terminal %.40s", id)
	t, l, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return err
	}
	proc, release, err := m.open(ctx, t, l)
	if err != nil {
		return err
	}
	defer release()
	h, err := proc.History(ctx)
	if err != nil {
		return err
	}
	return record(ctx, proc, h, f, strings.Join(t.Args, " "), w)
}

// A cast writes a recording.
type cast struct {
	w    io.Writer
	f    Format
	last time.Time // time of the last event, or of the beginning of the recording before the first event
	from time.Time
	rest []byte // bytes of an incomplete character
}

// record writes the recording of the output described by h. It calls w once only
// writing can still fail.
func record(ctx context.Context, p engi.TerminalProcess, h engi.TerminalHistory, f Format, command string, w func() io.Writer) error {
	size := h.Sizes[0]
	begin := size.Time
	if len(h.Marks) > 0 {
		begin = h.Marks[0].Time
	}
	c := &cast{f: f, from: begin, last: begin}
	at := h.Start
	timeOf := func(offset int64) time.Time {
		i := sort.Search(len(h.Marks), func(i int) bool { return h.Marks[i].Offset > offset }) - 1
		if i < 0 {
			return begin
		}
		return h.Marks[i].Time
	}
	next := func(offset int64) int64 { // returns the next offset at which the time or the size changes
		end := h.End
		if i := sort.Search(len(h.Marks), func(i int) bool { return h.Marks[i].Offset > offset }); i < len(h.Marks) {
			end = min(end, h.Marks[i].Offset)
		}
		if i := sort.Search(len(h.Sizes), func(i int) bool { return h.Sizes[i].Offset > offset }); i < len(h.Sizes) {
			end = min(end, h.Sizes[i].Offset)
		}
		return end
	}
	sizes := h.Sizes[1:]
	header := func() error {
		c.w = w()
		if err := c.header(size.Size, command); err != nil {
			return err
		}
		var modes strings.Builder
		for _, mode := range h.Modes {
			fmt.Fprintf(&modes, "\x1b[?%dh", mode)
		}
		if modes.Len() > 0 {
			return c.output(begin, []byte(modes.String()))
		}
		return nil
	}
	if at < h.End {
		for chunk, err := range p.Output(ctx, at) {
			if err != nil {
				return err
			}
			if c.w == nil {
				if err := header(); err != nil {
					return err
				}
			}
			data := chunk.Data[:min(int64(len(chunk.Data)), h.End-at)]
			for len(data) > 0 {
				for ; len(sizes) > 0 && sizes[0].Offset <= at; sizes = sizes[1:] {
					if err := c.event(sizes[0].Time, "r", fmt.Sprintf("%dx%d", sizes[0].Size.Cols, sizes[0].Size.Rows)); err != nil {
						return err
					}
				}
				n := int(min(int64(len(data)), next(at)-at))
				if err := c.output(timeOf(at), data[:n]); err != nil {
					return err
				}
				at += int64(n)
				data = data[n:]
			}
			if at >= h.End {
				break
			}
		}
	}
	if c.w == nil {
		if err := header(); err != nil {
			return err
		}
	}
	if len(c.rest) > 0 {
		if err := c.event(c.last, "o", "\uFFFD"); err != nil {
			return err
		}
	}
	if h.Exit != nil && f == AsciicastV3 {
		return c.event(c.last, "x", strconv.Itoa(h.Exit.Code))
	}
	return nil
}

func (c *cast) header(size engi.TerminalSize, command string) error {
	command = strings.ToValidUTF8(command, "\uFFFD")
	var head any
	if c.f == AsciicastV3 {
		type dimensions struct {
			Cols uint16 `json:"cols"`
			Rows uint16 `json:"rows"`
			Type string `json:"type"`
		}
		head = struct {
			Version   int        `json:"version"`
			Term      dimensions `json:"term"`
			Timestamp int64      `json:"timestamp"`
			Command   string     `json:"command,omitempty"`
		}{3, dimensions{size.Cols, size.Rows, "xterm-256color"}, c.from.Unix(), command}
	} else {
		head = struct {
			Version   int               `json:"version"`
			Width     uint16            `json:"width"`
			Height    uint16            `json:"height"`
			Timestamp int64             `json:"timestamp"`
			Command   string            `json:"command,omitempty"`
			Env       map[string]string `json:"env"`
		}{Version: 2, Width: size.Cols, Height: size.Rows, Timestamp: c.from.Unix(), Command: command, Env: map[string]string{"TERM": "xterm-256color"}}
	}
	return c.line(head)
}

func (c *cast) line(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = c.w.Write(append(b, '\n'))
	}
	return err
}

// output writes complete characters of the output.
func (c *cast) output(at time.Time, data []byte) error {
	data = append(c.rest, data...)
	n := clip.Whole(data)
	c.rest = append([]byte{}, data[n:]...)
	if n == 0 {
		return nil
	}
	return c.event(at, "o", strings.ToValidUTF8(string(data[:n]), "\uFFFD"))
}

// event writes one event. Its time is never before the last one, even if the clock has gone back.
func (c *cast) event(at time.Time, code, data string) error {
	if at.Before(c.last) {
		at = c.last
	}
	since := at.Sub(c.from)
	if c.f == AsciicastV3 {
		since = at.Sub(c.last)
	}
	c.last = at
	return c.line([]any{json.Number(strconv.FormatFloat(since.Seconds(), 'f', 3, 64)), code, data})
}
