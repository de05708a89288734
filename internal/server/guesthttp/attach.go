package guesthttp

import (
	"context"
	"encoding/binary"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/terminal"
)

const (
	maxInput  = 64 << 10 // maximum bytes of input in one message
	maxOutput = 32 << 10 // maximum bytes of output in one message
	positions = 8        // bytes of the position before input in a message
)

// An attached is one client of a terminal; see docs/terminals.md.
type attached struct {
	*socket
	to  *terminal.Attachment
	at  int64 // offset of the next byte to send
	old int64 // offset of the end of the output when the client attached; -1 once the client has been told
	set bool  // the client has been told at
}

// Attach serves a terminal over a WebSocket until its program ends, the client
// leaves or ctx ends. origins are the origins of pages that may connect, in addition to the
// server's own.
func (h *Handler) Attach(ctx context.Context, to *terminal.Attachment, offset int64, origins []string) error {
	o := websocket.AcceptOptions{Subprotocols: []string{v1.TerminalProtocol}, OriginPatterns: origins}
	h.serve(ctx, o, positions+maxInput, func(s *socket) (client, error) {
		a := &attached{socket: s, to: to}
		return client{a.take, func() error { return a.show(offset) }}, a.greet()
	})
	return nil
}

func (a *attached) greet() error {
	h, err := a.to.History(a.ctx)
	if err != nil {
		return err
	}
	next, err := a.to.Type(a.ctx, 0, nil)
	if err != nil {
		return err
	}
	size := h.Sizes[len(h.Sizes)-1].Size
	return a.send(v1.TerminalMessage{
		Type: v1.TerminalAttached, Viewer: a.to.ID, ReadOnly: &a.to.ReadOnly, Cols: int(size.Cols), Rows: int(size.Rows),
		Input: &next, Start: &h.Start, End: &h.End,
	})
}

// take handles a message with input or a size.
func (a *attached) take(kind websocket.MessageType, data []byte) (err error) {
	if kind == websocket.MessageBinary {
		err = a.input(data)
	} else {
		err = a.control(data)
	}
	if k := engi.KindOf(err); err != nil && (k == engi.Denied || k == engi.Invalid) {
		problem := a.h.Describe(err)
		return a.send(v1.TerminalMessage{Type: v1.EventError, Error: &problem})
	}
	return err
}

func (a *attached) input(data []byte) error {
	if len(data) < positions {
		return engi.Errorf(engi.Invalid, "a message of %d bytes has no number", len(data)).WithRemedy("begin input with the number of its first byte, 8 bytes, big-endian")
	}
	at := int64(binary.BigEndian.Uint64(data))
	next, err := a.to.Type(a.ctx, at, data[positions:])
	if err != nil {
		return err
	}
	return a.send(v1.TerminalMessage{Type: v1.TerminalAck, Input: &next})
}

func (a *attached) control(data []byte) error {
	size, err := resize(data)
	if err != nil {
		return err
	}
	return a.to.Resize(a.ctx, size)
}

// show sends output, and the list of viewers, until the program ends.
func (a *attached) show(offset int64) error {
	for {
		start, err := a.to.Start(a.ctx, offset)
		if err != nil {
			return err
		}
		if err := a.begin(start); err != nil {
			return err
		}
		exit, err := a.follow(a.to.Process(), a.at, a.presence(), func(c engi.Chunk) error { return a.output(c.Data) })
		if engi.Is(err, engi.Conflict) { // the client was too slow and its output is no longer kept
			offset = a.at
			continue
		}
		if err != nil {
			return err
		}
		return a.end(v1.TerminalMessage{Type: v1.EventExit, Exit: ExitOf(exit)})
	}
}

// begin sends the offset at which output starts, with the screen if output does not start at the
// requested offset.
func (a *attached) begin(s terminal.Start) error {
	a.at, a.old, a.set = s.From, s.End, false
	if s.Missed >= 0 {
		if err := a.send(v1.TerminalMessage{Type: v1.TerminalMissing, Offset: &s.Missed, End: &s.From}); err != nil {
			return err
		}
	}
	if s.Screen != nil {
		if err := a.send(v1.TerminalMessage{Type: v1.TerminalScreenAt, Offset: &s.From}); err != nil {
			return err
		}
		if err := a.write(websocket.MessageBinary, s.Screen); err != nil {
			return err
		}
	}
	return a.replayed()
}

// replayed tells the client when it has received all old output.
func (a *attached) replayed() error {
	if a.old < 0 || a.at < a.old {
		return nil
	}
	at := a.old
	a.old = -1
	return a.send(v1.TerminalMessage{Type: v1.TerminalReplayed, Offset: &at})
}

// presence returns a function that sends the list of viewers, and the size if it has changed.
// The channel that this function returns is closed when the list or the size changes.
func (a *attached) presence() func() (<-chan struct{}, error) {
	var size engi.TerminalSize
	return func() (<-chan struct{}, error) {
		viewers, now, changed := a.to.Viewers()
		if now != size {
			size = now
			if err := a.send(v1.TerminalMessage{Type: v1.TerminalResized, Cols: int(size.Cols), Rows: int(size.Rows)}); err != nil {
				return nil, err
			}
		}
		return changed, a.send(v1.TerminalMessage{Type: v1.TerminalPresence, Viewers: ViewersOf(viewers)})
	}
}

func (a *attached) output(data []byte) error {
	if !a.set {
		a.set = true
		if err := a.send(v1.TerminalMessage{Type: v1.TerminalOutput, Offset: &a.at}); err != nil {
			return err
		}
	}
	for len(data) > 0 {
		n := min(len(data), maxOutput)
		if a.old > a.at {
			n = int(min(int64(n), a.old-a.at))
		}
		if err := a.write(websocket.MessageBinary, data[:n]); err != nil {
			return err
		}
		a.at += int64(n)
		data = data[n:]
		if err := a.replayed(); err != nil {
			return err
		}
	}
	return nil
}

// ViewersOf converts the list of a terminal's viewers.
func ViewersOf(all []engi.TerminalViewer) []v1.TerminalViewer {
	out := make([]v1.TerminalViewer, len(all))
	for i, x := range all {
		out[i] = v1.TerminalViewer{ID: x.ID, Name: x.Name, ReadOnly: x.ReadOnly, LinkID: string(x.Link), Since: x.Since}
	}
	return out
}
