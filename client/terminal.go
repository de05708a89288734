package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
)

// A Terminal is a view of a process's terminal. Output must be read; Write and
// Resize are safe to call at the same time. Close it.
type Terminal struct {
	p        *Process
	readOnly bool

	mu   sync.Mutex
	ws   *websocket.Conn
	exit *v1.Exit
	at   int64 // offset of the next byte; -1 as long as nothing was read
}

// Terminal opens a view of the process's terminal, which begins with what was
// printed before. A viewer that is readOnly changes nothing.
func (p *Process) Terminal(ctx context.Context, readOnly bool) (*Terminal, error) {
	t := &Terminal{p: p, readOnly: readOnly, at: -1}
	if err := t.dial(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Terminal) dial(ctx context.Context) error {
	c := t.p.c
	t.mu.Lock()
	query := url.Values{"offset": {strconv.FormatInt(t.at, 10)}, "read_only": {strconv.FormatBool(t.readOnly)}}
	t.mu.Unlock()
	header := http.Header{"User-Agent": {c.agent}}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, c.url+t.p.path+"/terminal?"+query.Encode(), &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode >= 400 {
			return refused(resp)
		}
		return c.unreachable(ctx, err)
	}
	ws.SetReadLimit(1 << 20)
	t.mu.Lock()
	t.ws = ws
	t.mu.Unlock()
	return nil
}

func (t *Terminal) conn() *websocket.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ws
}

// Output yields what the terminal shows until the process ends. It comes back
// to a broken connection where it left off. Data is valid until the next is
// asked for.
func (t *Terminal) Output(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for attempt := 0; ; {
			more, progress, err := t.read(ctx, yield)
			if !more {
				return
			}
			if progress {
				attempt = 0
			}
			for again := true; again; attempt++ {
				if attempt >= t.p.c.retries || !t.p.c.pause(ctx, &call{}, attempt, err) {
					if ctx.Err() != nil {
						err = t.p.c.unreachable(ctx, err)
					}
					yield(nil, err)
					return
				}
				err = t.dial(ctx)
				again = err != nil
			}
		}
	}
}

// read reads one connection. It returns false when the caller has had
// everything, and else why it ended, and whether it brought anything.
func (t *Terminal) read(ctx context.Context, yield func([]byte, error) bool) (more, progress bool, err error) {
	for {
		kind, data, err := t.conn().Read(ctx)
		if err != nil {
			return true, progress, failure(v1.Unavailable, "try again", "the terminal's connection broke: %v", err)
		}
		if kind == websocket.MessageBinary {
			progress = true
			t.mu.Lock()
			t.at += int64(len(data))
			t.mu.Unlock()
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
			t.mu.Lock()
			t.at = m.Offset
			t.mu.Unlock()
		case m.Type == v1.EventExit && m.Exit != nil:
			t.mu.Lock()
			t.exit = m.Exit
			t.mu.Unlock()
			return false, progress, nil
		case m.Type == v1.EventError && m.Error != nil:
			return true, progress, &Error{*m.Error}
		}
	}
}

// Exit returns how the process ended, once Output has; else nil.
func (t *Terminal) Exit() *v1.Exit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

// Write sends what was typed.
func (t *Terminal) Write(ctx context.Context, typed []byte) error {
	return t.send(ctx, websocket.MessageBinary, typed)
}

// Resize tells the terminal its size.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	text, err := json.Marshal(v1.TerminalControl{Type: "resize", Cols: cols, Rows: rows})
	if err != nil {
		panic(err) // unreachable: all types of package v1 can be written
	}
	return t.send(ctx, websocket.MessageText, text)
}

func (t *Terminal) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	if err := t.conn().Write(ctx, kind, data); err != nil {
		return t.p.c.unreachable(ctx, err)
	}
	return nil
}

// Close leaves the terminal; the process goes on.
func (t *Terminal) Close() error {
	_ = t.conn().Close(websocket.StatusNormalClosure, "") // the connection is gone either way
	return nil
}
