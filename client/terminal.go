package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
)

// A Terminal is a view of a process's terminal. The caller must read Output; Write and
// Resize are safe to call at the same time. The caller closes it.
type Terminal struct {
	view
	p        *Process
	readOnly bool
}

// Terminal opens a view of the process's terminal, which starts with the earlier
// output. A readOnly view cannot send input or sizes.
func (p *Process) Terminal(ctx context.Context, readOnly bool) (*Terminal, error) {
	t := &Terminal{view: view{c: p.c, at: -1}, p: p, readOnly: readOnly}
	if err := t.dial(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Terminal) dial(ctx context.Context) error {
	query := url.Values{"offset": {strconv.FormatInt(t.Offset(), 10)}, "read_only": {strconv.FormatBool(t.readOnly)}}
	ws, err := t.c.dial(ctx, t.p.path+"/terminal", query, "")
	if err == nil {
		t.look(ws, 1<<20)
	}
	return err
}

// Output yields the output of the terminal until the process ends. It resumes
// a broken connection where it left off. Data is valid until the next
// iteration.
func (t *Terminal) Output(ctx context.Context) iter.Seq2[[]byte, error] {
	return t.output(ctx, t.dial, t.read)
}

func (t *Terminal) read(ctx context.Context, yield func([]byte, error) bool) (more, progress bool, err error) {
	for {
		kind, data, err := t.conn().Read(ctx)
		if err != nil {
			return true, progress, failure(v1.Unavailable, "try again", "the terminal's connection broke: %v", err)
		}
		if kind == websocket.MessageBinary {
			progress = true
			t.seek(t.Offset() + int64(len(data)))
			if !yield(data, nil) {
				return false, progress, nil
			}
			continue
		}
		var m v1.TerminalControl
		if err := json.Unmarshal(data, &m); err != nil {
			return true, progress, failure(v1.Internal, "check that the address is that of an engi server", "read a message of the terminal: %v", err)
		}
		switch {
		case m.Type == v1.EventStarted:
			t.seek(m.Offset)
		case m.Type == v1.EventExit && m.Exit != nil:
			t.ended(m.Exit)
			return false, progress, nil
		case m.Type == v1.EventError && m.Error != nil:
			return true, progress, &Error{*m.Error}
		}
	}
}

// Write sends input.
func (t *Terminal) Write(ctx context.Context, typed []byte) error {
	return t.send(ctx, websocket.MessageBinary, typed)
}

// Resize sets the size of the terminal.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	text, err := json.Marshal(v1.TerminalControl{Type: "resize", Cols: cols, Rows: rows})
	if err != nil {
		panic(err) // unreachable: all types of package v1 can be encoded
	}
	return t.send(ctx, websocket.MessageText, text)
}

func (t *Terminal) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	if err := t.conn().Write(ctx, kind, data); err != nil {
		return t.c.unreachable(ctx, err)
	}
	return nil
}
