package guesthttp

import (
	"encoding/json"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// TerminalOptions holds the options of a client that attaches to a terminal.
type TerminalOptions struct {
	From     int64 // offset of the first byte to send; engi.OldestOutput means the oldest output
	ReadOnly bool  // ignore input and resizing
}

const maxMessage = 256 << 10 // maximum bytes of one message of a client

// Terminal serves a process's terminal over a WebSocket until the process ends
// or the client disconnects, which does not affect the process. Several clients
// may attach to one terminal: each gets all output, and the last resize wins.
func (h *Handler) Terminal(p engi.Process, v TerminalOptions) error {
	h.serve(h.Ctx, websocket.AcceptOptions{}, maxMessage, func(s *socket) (client, error) {
		return client{
			take: func(kind websocket.MessageType, data []byte) error {
				switch {
				case v.ReadOnly:
					return nil
				case kind == websocket.MessageBinary:
					return p.Input(s.ctx, data)
				}
				size, err := resize(data)
				if err != nil {
					return err
				}
				return p.Resize(s.ctx, size)
			},
			show: func() error {
				started := false
				exit, err := s.follow(p, v.From, nil, func(c engi.Chunk) error {
					if !started {
						started = true
						if err := s.send(v1.TerminalControl{Type: v1.EventStarted, Offset: c.Offset}); err != nil {
							return err
						}
					}
					return s.write(websocket.MessageBinary, c.Data)
				})
				if err != nil {
					return err
				}
				return s.end(v1.TerminalControl{Type: v1.EventExit, Exit: ExitOf(exit)})
			},
		}, nil
	})
	return nil
}

// resize parses the message with which clients set the size of a terminal.
func resize(data []byte) (engi.TerminalSize, error) {
	var c v1.TerminalControl
	if err := json.Unmarshal(data, &c); err != nil || c.Type != v1.TerminalResize {
		return engi.TerminalSize{}, engi.Errorf(engi.Invalid, "%.80q is not a message for a terminal", data).
			WithRemedy(`send {"type":"resize","cols":80,"rows":24}, and input as binary messages`)
	}
	return SizeOf(v1.TerminalSize{Cols: c.Cols, Rows: c.Rows})
}

// SizeOf converts the size of a terminal. It reports Invalid for an impossible size.
func SizeOf(s v1.TerminalSize) (engi.TerminalSize, error) {
	if s.Cols < 1 || s.Rows < 1 || s.Cols > 0xffff || s.Rows > 0xffff {
		return engi.TerminalSize{}, engi.Errorf(engi.Invalid, "a terminal cannot have %d columns and %d rows", s.Cols, s.Rows).
			WithRemedy("use numbers from 1 to 65535")
	}
	return engi.TerminalSize{Cols: uint16(s.Cols), Rows: uint16(s.Rows)}, nil
}
