package guesthttp

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/terminal"
)

const (
	maxInput  = 64 << 10    // bytes of input in one message
	maxOutput = 32 << 10    // bytes of output in one message
	positions = 8           // bytes before input in a message
	lastWrite = time.Second // for what a client is told when its attachment ends
)

// An attached is one client of a terminal, see docs/terminals.md.
type attached struct {
	h   *Handler
	ws  *websocket.Conn
	to  *terminal.Attachment
	ctx context.Context
	at  int64 // offset of the next byte to send
	end int64 // of what was old when it came; -1 once the client knows
	set bool  // the client knows at
}

// Attach serves a terminal over a WebSocket until its program ends, the client
// leaves or ctx ends. origins are those of pages that may connect beside the
// server's own.
func (h *Handler) Attach(ctx context.Context, to *terminal.Attachment, offset int64, origins []string) error {
	ws, err := websocket.Accept(h.W, h.R, &websocket.AcceptOptions{
		Subprotocols: []string{v1.TerminalProtocol}, OriginPatterns: origins, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil // Accept has responded
	}
	defer ws.CloseNow()
	ws.SetReadLimit(positions + maxInput)
	// The context of a hijacked connection does not end when the client
	// disconnects; reading does.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &attached{h: h, ws: ws, to: to, ctx: ctx}
	if err := a.greet(); err != nil {
		return a.over(err)
	}
	// Ending a read closes the connection, over which the client is told why.
	reads, stop := context.WithCancel(context.WithoutCancel(h.Ctx))
	var reading sync.WaitGroup
	reading.Go(func() { cancel(a.listen(reads)) })
	defer reading.Wait()
	defer stop()
	return a.over(a.show(offset))
}

// errClient says that the client has left, or does not read.
var errClient = engi.Errorf(engi.Expired, "the client has left")

func (a *attached) send(m v1.TerminalMessage) error {
	text, err := json.Marshal(m)
	if err != nil {
		return engi.Errorf(engi.Internal, "write a message of a terminal: %v", err) // unreachable: all types of package v1 can be marshalled
	}
	return a.write(websocket.MessageText, text)
}

// write sends a message. To cut it off is to end the connection, over which the
// client is told why; so it has a moment when the context ends.
func (a *attached) write(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	defer cancel()
	defer context.AfterFunc(a.ctx, func() {
		select {
		case <-time.After(lastWrite):
			cancel()
		case <-ctx.Done():
		}
	})()
	if write(ctx, a.ws, kind, data) != nil {
		return errClient
	}
	return nil
}

// over tells the client why it ends, if it is there.
func (a *attached) over(err error) error {
	if cause := context.Cause(a.ctx); cause != nil && cause != context.Canceled { // the link has ended, or the client has
		err = cause
	}
	if err == nil || err == errClient || a.h.Ctx.Err() == nil && a.h.gone() {
		return nil
	}
	problem := a.h.Describe(err)
	code := websocket.StatusNormalClosure
	if problem.Kind == v1.Unavailable {
		code = websocket.StatusTryAgainLater
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 5*time.Second)
	defer cancel()
	last := &attached{ws: a.ws, ctx: ctx} // what still listens has the context before
	if last.send(v1.TerminalMessage{Type: v1.EventError, Error: &problem}) == nil {
		_ = a.ws.Close(code, "") // the client may have left
	}
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

// listen passes input and sizes on until the client leaves, and returns why.
func (a *attached) listen(reads context.Context) error {
	for {
		kind, data, err := a.ws.Read(reads)
		if err != nil {
			return errClient
		}
		if kind == websocket.MessageBinary {
			err = a.input(data)
		} else {
			err = a.control(data)
		}
		switch k := engi.KindOf(err); {
		case err == nil, k == engi.Conflict, k == engi.NotFound:
			// A program that has ended takes nothing, but the client may not have
			// received all its output yet.
		case k == engi.Denied, k == engi.Invalid:
			problem := a.h.Describe(err)
			if err := a.send(v1.TerminalMessage{Type: v1.EventError, Error: &problem}); err != nil {
				return err
			}
		default:
			return err
		}
	}
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
	var m v1.TerminalMessage
	if err := json.Unmarshal(data, &m); err != nil || m.Type != v1.TerminalResize {
		return engi.Errorf(engi.Invalid, "%.80q is not a message for a terminal", data).
			WithRemedy(`send {"type":"resize","cols":80,"rows":24}, and input as binary messages`)
	}
	size, err := SizeOf(v1.TerminalSize{Cols: m.Cols, Rows: m.Rows})
	if err != nil {
		return err
	}
	return a.to.Resize(a.ctx, size)
}

// show sends output, and who is there, until the program ends.
func (a *attached) show(offset int64) error {
	ended := engi.Exit{}
	for {
		start, err := a.to.Start(a.ctx, offset)
		if err != nil {
			return err
		}
		if err := a.begin(start); err != nil {
			return err
		}
		err = a.follow(&ended)
		if engi.Is(err, engi.Conflict) { // it was overtaken
			offset = a.at
			continue
		}
		if err != nil {
			return err
		}
		if err := a.send(v1.TerminalMessage{Type: v1.EventExit, Exit: ExitOf(ended)}); err != nil {
			return err
		}
		_ = a.ws.Close(websocket.StatusNormalClosure, "") // the client may have left
		return nil
	}
}

// begin tells where output begins, with the screen if it is not where it was asked
// for.
func (a *attached) begin(s terminal.Start) error {
	a.at, a.end, a.set = s.From, s.End, false
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

// replayed says so once the client has what is old.
func (a *attached) replayed() error {
	if a.end < 0 || a.at < a.end {
		return nil
	}
	at := a.end
	a.end = -1
	return a.send(v1.TerminalMessage{Type: v1.TerminalReplayed, Offset: &at})
}

// follow sends output until the program has ended, and how.
func (a *attached) follow(ended *engi.Exit) error {
	ctx, cancel := context.WithCancel(a.ctx)
	source := httpio.Pull(a.to.Process().Output(ctx, a.at))
	defer source.Stop()
	defer cancel()
	beat := time.NewTicker(a.h.Heartbeat)
	defer beat.Stop()
	var changed <-chan struct{}
	var size engi.TerminalSize
	for {
		if changed == nil {
			viewers, now, next := a.to.Viewers()
			changed = next
			if now != size {
				size = now
				if err := a.send(v1.TerminalMessage{Type: v1.TerminalResized, Cols: int(size.Cols), Rows: int(size.Rows)}); err != nil {
					return err
				}
			}
			if err := a.send(v1.TerminalMessage{Type: v1.TerminalPresence, Viewers: ViewersOf(viewers)}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
			changed = nil
		case <-beat.C:
			alive, done := context.WithTimeout(ctx, httpio.EventTimeout)
			err := a.ws.Ping(alive)
			done()
			if err != nil {
				return errClient
			}
		case e, ok := <-source.Events:
			if !ok {
				var err error
				*ended, err = a.to.Process().Wait(ctx)
				return err
			}
			err := e.Err
			if err == nil {
				err = a.output(e.Event.Data)
			}
			source.Release()
			if err != nil {
				return err
			}
		}
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
		if a.end > a.at {
			n = int(min(int64(n), a.end-a.at))
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

// ViewersOf converts who looks at a terminal.
func ViewersOf(all []engi.TerminalViewer) []v1.TerminalViewer {
	out := make([]v1.TerminalViewer, len(all))
	for i, x := range all {
		out[i] = v1.TerminalViewer{ID: x.ID, Name: x.Name, ReadOnly: x.ReadOnly, LinkID: string(x.Link), Since: x.Since}
	}
	return out
}
