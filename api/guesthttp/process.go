package guesthttp

import (
	"context"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/v1"
)

// names are what streams are called on the wire.
var names = map[engi.Stream]string{engi.Stdout: v1.EventStdout, engi.Stderr: v1.EventStderr, engi.Terminal: v1.EventTerminal}

// Follow answers with the events of a process from an offset on. A caller that
// leaves changes nothing for the process.
func (d *Handler) Follow(form httpio.Format, p engi.Process, about v1.Process, from int64) error {
	ctx, cancel := context.WithCancel(d.Ctx)
	source := httpio.Pull(p.Output(ctx, from))
	defer source.Stop()
	defer cancel()

	first := (*httpio.Pulled[engi.Chunk])(nil)
	if from > 0 {
		// Bytes that are no longer kept are told before the stream begins.
		select {
		case e, ok := <-source.Events:
			if ok && e.Err != nil {
				source.Release()
				return e.Err
			}
			if ok {
				first = &e
			}
		case <-time.After(settled):
		}
	}
	out := httpio.NewEventWriter(d.W, form)
	if out.Begin() != nil {
		return nil // the caller has left
	}
	send := func(e v1.ProcessEvent) error { return out.Send(e.Type, strconv.FormatInt(e.Offset, 10), e) }
	seam := httpio.NewJoiner(max(0, from))
	if send(v1.ProcessEvent{Type: v1.EventStarted, Offset: max(0, from), Process: &about}) != nil {
		return nil
	}
	pass := func(c engi.Chunk) error {
		// Pieces bound the memory of one event, whatever Output yields.
		for offset, data := c.Offset, c.Data; len(data) > 0; {
			n := min(len(data), httpio.ChunkSize)
			if piece, ok := seam.Add(names[c.Stream], offset, data[:n]); ok {
				if err := send(eventOf(piece)); err != nil {
					return err
				}
			}
			offset, data = offset+int64(n), data[n:]
		}
		source.Release()
		return nil
	}
	if first != nil && pass(first.Event) != nil {
		return nil
	}
	beat := time.NewTicker(d.Beat)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if out.Beat(v1.ProcessEvent{Type: v1.EventHeartbeat, Offset: seam.Resume()}, d.Beat) != nil {
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return d.last(seam, send, p)
			}
			if e.Err != nil {
				source.Release()
				d.tell(seam, send, e.Err)
				return nil
			}
			if pass(e.Event) != nil {
				return nil
			}
		}
	}
}

// last tells what was held back, and how the process ended.
func (d *Handler) last(seam *httpio.Joiner, send func(v1.ProcessEvent) error, p engi.Process) error {
	for _, piece := range seam.Flush() {
		if send(eventOf(piece)) != nil {
			return nil
		}
	}
	exit, err := p.Wait(d.Ctx)
	if err != nil {
		d.tell(seam, send, err)
		return nil
	}
	_ = send(v1.ProcessEvent{Type: v1.EventExit, Offset: seam.Resume(), Exit: ExitOf(exit)}) // the caller may have left
	return nil
}

func (d *Handler) tell(seam *httpio.Joiner, send func(v1.ProcessEvent) error, err error) {
	if d.gone() {
		return
	}
	problem := d.Describe(err)
	_ = send(v1.ProcessEvent{Type: v1.EventError, Offset: seam.Resume(), Error: &problem}) // the caller may have left
}

func eventOf(p httpio.Chunk) v1.ProcessEvent {
	return v1.ProcessEvent{Type: p.Stream, Offset: p.Offset, Data: p.Text, DataBase64: p.Bytes}
}

// ExitOf translates how a process ended.
func ExitOf(x engi.Exit) *v1.Exit {
	return &v1.Exit{ExitCode: x.Code, Signal: x.Signal, Cause: string(x.Cause), Remedy: x.Cause.Remedy()}
}

// maxCollected is how much of each stream a result holds.
const maxCollected = 1 << 20

// Collect waits for a process and returns what it said.
func Collect(ctx context.Context, p engi.Process, about v1.Process) (v1.ProcessResult, error) {
	res := v1.ProcessResult{Process: about}
	var out, err stored
	for c, cerr := range p.Output(ctx, 0) {
		if cerr != nil {
			return res, cerr
		}
		if c.Stream == engi.Stderr {
			err.add(c.Data)
		} else {
			out.add(c.Data)
		}
	}
	exit, werr := p.Wait(ctx)
	if werr != nil {
		return res, werr
	}
	res.Process.Running = false
	res.Exit = *ExitOf(exit)
	res.Stdout, res.StdoutBase64, res.StdoutTruncated = out.text()
	res.Stderr, res.StderrBase64, res.StderrTruncated = err.text()
	return res, nil
}

// kept is the beginning of a stream.
type stored struct {
	data []byte
	more bool
}

func (k *stored) add(b []byte) {
	n := min(len(b), maxCollected-len(k.data))
	k.data = append(k.data, b[:n]...)
	k.more = k.more || n < len(b)
}

func (k *stored) text() (string, []byte, bool) {
	b := k.data
	if k.more { // a character that was cut in two is no fault of the program
		for i := 1; i <= min(3, len(b)); i++ {
			if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
				if !utf8.FullRune(tail) {
					b = b[:len(b)-i]
				}
				break
			}
		}
	}
	if utf8.Valid(b) {
		return string(b), nil, k.more
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b, k.more
}

// Input passes a body of any size to a process, in pieces as they come.
func (d *Handler) Input(p engi.Process) error {
	body := httpio.NewBody(d.W, d.R)
	defer body.Stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if err := p.Input(d.Ctx, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return slow(d, err)
		}
	}
}
