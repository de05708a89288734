package terminal

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"

	"github.com/engi-dev/engi/internal/engi"
)

// A Screen is the visible content of a terminal.
type Screen struct {
	Size          engi.TerminalSize
	Lines         []string // lines from the top, without trailing spaces
	CursorX       int      // column, from 0
	CursorY       int      // line, from 0
	CursorVisible bool
	Alternate     bool   // the alternate screen is shown
	Title         string // title that a program has set
	Offset        int64  // offset of the output to which this screen corresponds
}

const (
	// maxEmulated is the maximum number of bytes that are emulated for a screen, from the end of the output.
	maxEmulated = 2 << 20
	// emulationTime is the maximum time for one screen, because a few bytes can cause much work.
	emulationTime = 15 * time.Second
	// emulationStep is the number of bytes that are emulated between checks of the
	// time: about a dozen sequences, each of which may write every cell.
	emulationStep = 64
	maxCell       = 64  // maximum bytes of one character with its combining characters
	maxTitle      = 256 // maximum bytes of a title
)

// An emulator is an emulated terminal in memory.
type emulator struct {
	vt     *vt.Emulator
	filter numbers
	modes  map[int]bool // private modes
	hidden bool         // the cursor is hidden
	title  string
	offset int64
	done   chan struct{}
}

func newEmulator(size engi.TerminalSize) *emulator {
	e := &emulator{modes: map[int]bool{}, done: make(chan struct{})}
	e.vt = vt.NewEmulator(clamp(size))
	e.vt.SetScrollbackSize(1)
	e.vt.SetCallbacks(vt.Callbacks{
		Title:            func(s string) { e.title = s },
		CursorVisibility: func(visible bool) { e.hidden = !visible },
		EnableMode:       func(m ansi.Mode) { e.mode(m, true) },
		DisableMode:      func(m ansi.Mode) { e.mode(m, false) },
	})
	// The emulator writes answers to queries to a pipe; they are discarded.
	go func() {
		defer close(e.done)
		_, _ = io.Copy(io.Discard, e.vt) // neither side can fail
	}()
	return e
}

func clamp(s engi.TerminalSize) (cols, rows int) {
	return min(MaxCols, max(1, int(s.Cols))), min(MaxRows, max(1, int(s.Rows)))
}

func (e *emulator) mode(m ansi.Mode, on bool) {
	if d, ok := m.(ansi.DECMode); ok {
		e.modes[d.Mode()] = on
	}
}

func (e *emulator) close() {
	// The emulator's own Close races with the read that closing the pipe ends.
	if pipe, ok := e.vt.InputPipe().(io.Closer); ok {
		_ = pipe.Close() // it cannot fail
	}
	<-e.done
}

// write emulates output. It reports Exhausted if that takes too long.
func (e *emulator) write(data []byte, until time.Time) (err error) {
	defer func() {
		if p := recover(); p != nil { // the emulator is third-party code with hostile input
			err = engi.Errorf(engi.Exhausted, "what the terminal shows cannot be found out: %v", p)
		}
	}()
	data = e.filter.clean(data)
	for step := range slices.Chunk(data, emulationStep) {
		if time.Now().After(until) {
			return engi.Errorf(engi.Exhausted, "drawing the terminal's screen takes too long").
				WithRemedy("clear the screen with 'reset'; the output itself is complete")
		}
		_, _ = e.vt.Write(step) // it only fails when it is closed
	}
	return nil
}

// A numbers filter shortens numbers in control sequences to four digits. Larger numbers have
// no use, and the emulator would obey them for however long it takes.
type numbers struct {
	sequence bool // after ESC [
	escape   bool // after ESC
	digits   int
	rest     int // number of bytes of the character still to come
}

func (f *numbers) clean(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, c := range data {
		rest := f.rest
		f.rest = 0
		switch {
		case rest > 0 && 0x80 <= c && c < 0xc0:
			f.rest = rest - 1
		case c >= 0xc2 && c < 0xf5:
			f.rest, f.sequence = utf8Length(c)-1, false
		case c == 0x1b:
			f.escape, f.sequence = true, false
		case f.escape:
			f.escape, f.sequence, f.digits = false, c == '[', 0
		case c == 0x9b: // ESC [ in one byte
			f.sequence, f.digits = true, 0
		case f.sequence && '0' <= c && c <= '9':
			if f.digits++; f.digits > 4 {
				continue
			}
		case f.sequence && 0x20 <= c && c < 0x40:
			f.digits = 0
		case f.sequence && c >= 0x40:
			f.sequence = false
		}
		out = append(out, c)
	}
	return out
}

// utf8Length returns the number of bytes of a character that begins with c.
func utf8Length(c byte) int {
	switch {
	case c < 0xe0:
		return 2
	case c < 0xf0:
		return 3
	}
	return 4
}

// emulate returns an emulator with all the output of a terminal that is kept.
// The caller closes it. Each owner has one at a time, so that expensive output only delays
// its own owner.
func (m *Manager) emulate(ctx context.Context, owner engi.Owner, p engi.TerminalProcess) (*emulator, error) {
	leave, err := m.screens.Acquire(ctx, owner)
	if err != nil {
		return nil, err
	}
	defer leave()
	select {
	case m.emulators <- struct{}{}:
		defer func() { <-m.emulators }()
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	for range 3 { // the kept range may change in the meantime
		h, err := p.History(ctx)
		if err != nil {
			return nil, err
		}
		data, err := tail(ctx, p, h)
		if err == nil {
			return replay(h, data)
		}
		if !engi.Is(err, engi.Conflict) {
			return nil, err
		}
	}
	return nil, engi.Errorf(engi.Exhausted, "what the terminal shows changes faster than it can be read").WithRemedy("try again when the program prints less")
}

// tail returns the last output that is kept, at most maxEmulated bytes. It reads all of it
// before the emulation, which may take longer than the output is kept.
func tail(ctx context.Context, p engi.TerminalProcess, h engi.TerminalHistory) ([]byte, error) {
	want := min(h.End-h.Start, maxEmulated)
	data := make([]byte, 0, want)
	if want == 0 {
		return data, nil
	}
	for c, err := range p.Output(ctx, h.End-want) {
		if err != nil {
			return nil, err
		}
		data = append(data, c.Data[:min(len(c.Data), int(want)-len(data))]...)
		if len(data) == int(want) {
			return data, nil
		}
	}
	return nil, engi.Errorf(engi.Unavailable, "the output ended %d bytes before %d", int(want)-len(data), h.End)
}

// replay emulates the output up to the end of h.
func replay(h engi.TerminalHistory, data []byte) (_ *emulator, err error) {
	e := newEmulator(h.Sizes[0].Size)
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	until := time.Now().Add(emulationTime)
	for _, mode := range h.Modes {
		if err := e.write(fmt.Appendf(nil, "\x1b[?%dh", mode), until); err != nil {
			return nil, err
		}
	}
	e.offset = h.End - int64(len(data))
	for sizes := h.Sizes; ; {
		for len(sizes) > 0 && sizes[0].Offset <= e.offset {
			if c, r := clamp(sizes[0].Size); c != e.vt.Width() || r != e.vt.Height() {
				e.vt.Resize(c, r)
			}
			sizes = sizes[1:]
		}
		n := len(data)
		if n == 0 {
			return e, nil
		}
		if len(sizes) > 0 {
			n = int(min(int64(n), sizes[0].Offset-e.offset))
		}
		if err := e.write(data[:n], until); err != nil {
			return nil, err
		}
		e.offset += int64(n)
		data = data[n:]
	}
}

// cell returns the content of a cell, which is safe to show.
func (e *emulator) cell(x, y int) (text string, width int) {
	c := e.vt.CellAt(x, y)
	if c == nil || c.Content == "" {
		return " ", 1
	}
	text = c.Content
	for len(text) > maxCell {
		_, n := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-n]
	}
	return strings.ToValidUTF8(text, "\uFFFD"), max(1, c.Width)
}

// screen returns the current screen.
func (e *emulator) screen() Screen {
	at := e.vt.CursorPosition()
	s := Screen{
		Size:    engi.TerminalSize{Cols: uint16(e.vt.Width()), Rows: uint16(e.vt.Height())},
		CursorX: at.X, CursorY: at.Y, CursorVisible: !e.hidden, Alternate: e.vt.IsAltScreen(), Offset: e.offset,
	}
	s.Title = strings.ToValidUTF8(e.title[:min(len(e.title), maxTitle)], "\uFFFD")
	for y := range e.vt.Height() {
		var line strings.Builder
		for x := 0; x < e.vt.Width(); {
			text, width := e.cell(x, y)
			line.WriteString(text)
			x += width
		}
		s.Lines = append(s.Lines, strings.TrimRight(line.String(), " "))
	}
	return s
}

// restored are the private modes that paint restores: keys, mouse and pasting.
var restored = []int{1, 66, 1000, 1002, 1003, 1004, 1006, 2004}

// paint returns output that makes any terminal show the same screen.
func (e *emulator) paint() []byte {
	var b strings.Builder
	b.WriteString("\x1bc") // reset
	if e.vt.IsAltScreen() {
		b.WriteString("\x1b[?1049h")
	}
	for y := range e.vt.Height() {
		line := make(uv.Line, 0, e.vt.Width())
		for x := 0; x < e.vt.Width(); {
			text, width := e.cell(x, y)
			c := uv.EmptyCell
			if found := e.vt.CellAt(x, y); found != nil {
				c = *found
			}
			c.Content, c.Width, c.Link = text, width, uv.Link{}
			line = append(line, c)
			x += width
		}
		if text := line.Render(); text != "" {
			fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[m", y+1, text)
		}
	}
	at := e.vt.CursorPosition()
	fmt.Fprintf(&b, "\x1b[%d;%dH", at.Y+1, at.X+1)
	for _, mode := range restored {
		if e.modes[mode] {
			fmt.Fprintf(&b, "\x1b[?%dh", mode)
		}
	}
	if on, ok := e.modes[7]; ok && !on {
		b.WriteString("\x1b[?7l")
	}
	if e.hidden {
		b.WriteString("\x1b[?25l")
	}
	return []byte(b.String())
}
