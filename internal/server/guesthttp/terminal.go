package guesthttp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// TerminalOptions says how a client attaches to a terminal.
type TerminalOptions struct {
	From     int64 // offset of the first byte to send; engi.OldestOutput sends all that is kept
	ReadOnly bool  // ignore input and resizing
}

const maxMessage = 256 << 10 // bytes of one message of a client

// Terminal serves a process's terminal over a WebSocket until the process ends
// or the client disconnects, which does not affect the process. Several clients
// may attach to one terminal: all get its output, and the last resize wins.
func (h *Handler) Terminal(p engi.Process, v TerminalOptions) error {
	ws, err := websocket.Accept(h.W, h.R, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // Accept has responded
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxMessage)
	// The context of a hijacked connection does not end when the client
	// disconnects; reading does.
	ctx, cancel := context.WithCancel(h.Ctx)
	// Ending a read closes the connection, over which the client is told why.
	reads, stop := context.WithCancel(context.WithoutCancel(h.Ctx))
	var reading sync.WaitGroup
	reading.Go(func() {
		defer cancel()
		h.listen(ctx, reads, ws, p, v.ReadOnly)
	})
	defer reading.Wait()
	defer stop()
	defer cancel()

	source := httpio.Pull(p.Output(ctx, v.From))
	defer source.Stop()
	defer cancel()
	beat := time.NewTicker(h.Heartbeat)
	defer beat.Stop()
	started := false
	for {
		select {
		case <-ctx.Done():
			if h.Ctx.Err() != nil && h.R.Context().Err() == nil { // the server shuts down, or the key has ended
				problem := h.Describe(context.Cause(h.Ctx))
				h.bye(ws, v1.TerminalControl{Type: v1.EventError, Error: &problem})
			}
			return nil
		case <-beat.C:
			alive, done := context.WithTimeout(ctx, httpio.EventTimeout)
			err := ws.Ping(alive)
			done()
			if err != nil {
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				exit, err := p.Wait(ctx)
				if err != nil {
					h.broke(ws, err)
					return nil
				}
				h.bye(ws, v1.TerminalControl{Type: v1.EventExit, Exit: ExitOf(exit)})
				return nil
			}
			if e.Err != nil {
				source.Release()
				if ctx.Err() == nil {
					h.broke(ws, e.Err)
				}
				return nil
			}
			var err error
			if !started {
				started = true
				err = control(ctx, ws, v1.TerminalControl{Type: v1.EventStarted, Offset: e.Event.Offset})
			}
			if err == nil {
				err = write(ctx, ws, websocket.MessageBinary, e.Event.Data)
			}
			source.Release()
			if err != nil {
				return nil // the client has disconnected, or does not read
			}
		}
	}
}

// listen passes input and resizing to the process until the client disconnects.
func (h *Handler) listen(ctx, reads context.Context, ws *websocket.Conn, p engi.Process, readOnly bool) {
	for {
		kind, data, err := ws.Read(reads)
		if err != nil {
			return
		}
		if readOnly {
			continue
		}
		if kind == websocket.MessageBinary {
			err = p.Input(ctx, data)
		} else {
			err = h.resize(ctx, p, data)
		}
		// A process that has ended refuses input, but the client may not have
		// received all its output yet.
		if err != nil && !engi.Is(err, engi.Conflict, engi.NotFound) {
			if ctx.Err() == nil {
				h.broke(ws, err)
			}
			return
		}
	}
}

func (h *Handler) resize(ctx context.Context, p engi.Process, data []byte) error {
	var c v1.TerminalControl
	if err := json.Unmarshal(data, &c); err != nil || c.Type != "resize" {
		return engi.Errorf(engi.Invalid, "%.80q is not a control message of a terminal", data).
			WithRemedy(`send {"type":"resize","cols":80,"rows":24}, and input as binary messages`)
	}
	size, err := SizeOf(v1.TerminalSize{Cols: c.Cols, Rows: c.Rows})
	if err != nil {
		return err
	}
	return p.Resize(ctx, size)
}

// SizeOf converts the size of a terminal. It reports Invalid.
func SizeOf(s v1.TerminalSize) (engi.TerminalSize, error) {
	if s.Cols < 1 || s.Rows < 1 || s.Cols > 0xffff || s.Rows > 0xffff {
		return engi.TerminalSize{}, engi.Errorf(engi.Invalid, "a terminal cannot have %d columns and %d rows", s.Cols, s.Rows).
			WithRemedy("use numbers from 1 to 65535")
	}
	return engi.TerminalSize{Cols: uint16(s.Cols), Rows: uint16(s.Rows)}, nil
}

func control(ctx context.Context, ws *websocket.Conn, c v1.TerminalControl) error {
	text, err := json.Marshal(c)
	if err != nil {
		return engi.Errorf(engi.Internal, "write control message: %v", err) // unreachable: all types of package v1 can be marshalled
	}
	return write(ctx, ws, websocket.MessageText, text)
}

func write(ctx context.Context, ws *websocket.Conn, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, httpio.EventTimeout)
	defer cancel()
	return ws.Write(ctx, kind, data)
}

func (h *Handler) broke(ws *websocket.Conn, err error) {
	problem := h.Describe(err)
	h.bye(ws, v1.TerminalControl{Type: v1.EventError, Error: &problem})
}

// bye sends the last message and closes the connection.
func (h *Handler) bye(ws *websocket.Conn, c v1.TerminalControl) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Ctx), 5*time.Second)
	defer cancel()
	if err := control(ctx, ws, c); err != nil {
		return
	}
	code := websocket.StatusNormalClosure
	if c.Error != nil && c.Error.Kind == v1.Unavailable {
		code = websocket.StatusTryAgainLater
	}
	if err := ws.Close(code, ""); err != nil && !errors.Is(err, context.Canceled) {
		return // the client has disconnected
	}
}
