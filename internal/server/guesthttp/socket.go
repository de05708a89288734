package guesthttp

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const lastWrite = time.Second // maximum time for the last message of a connection

// A socket is the WebSocket of one client of a terminal.
type socket struct {
	h   *Handler
	ws  *websocket.Conn
	ctx context.Context // ends when the client has left or must leave; its cause is the reason
}

// A client holds the functions that serve a terminal to one client.
type client struct {
	take func(kind websocket.MessageType, data []byte) error // handles a message of the client
	show func() error                                        // sends output until the program has ended
}

// serve serves a terminal over a WebSocket until its program ends, the client leaves or
// ctx ends, and sends the client the reason. It reads messages once greet has returned.
// most is the maximum number of bytes in a message of the client.
func (h *Handler) serve(ctx context.Context, o websocket.AcceptOptions, most int64, greet func(*socket) (client, error)) {
	o.CompressionMode = websocket.CompressionDisabled
	ws, err := websocket.Accept(h.W, h.R, &o)
	if err != nil {
		return // Accept has sent the response
	}
	defer ws.CloseNow()
	ws.SetReadLimit(most)
	// The context of a hijacked connection does not end when the client
	// disconnects; only a read notices.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &socket{h, ws, ctx}
	c, err := greet(s)
	if err != nil {
		s.over(err)
		return
	}
	// Cancelling a read closes the connection, which still has to carry the reason to the client.
	reads, stop := context.WithCancel(context.WithoutCancel(h.Ctx))
	var reading sync.WaitGroup
	reading.Go(func() { cancel(s.listen(reads, c)) })
	defer reading.Wait()
	defer stop()
	s.over(c.show())
}

// errClient means that the client has left, or does not read.
var errClient = engi.Errorf(engi.Expired, "the client has left")

// listen handles messages until the client leaves, and returns the reason of the end.
func (s *socket) listen(reads context.Context, c client) error {
	for {
		kind, data, err := s.ws.Read(reads)
		if err != nil {
			return errClient
		}
		err = c.take(kind, data)
		// A program that has ended accepts no input, but the client may not have
		// received all its output yet.
		if k := engi.KindOf(err); err != nil && k != engi.Conflict && k != engi.NotFound {
			return err
		}
	}
}

// follow calls each with the output of a program from an offset on until the program has
// ended, and returns its exit. changed, if not nil, is called first, and again whenever the
// channel that it returned is closed.
func (s *socket) follow(p engi.Process, from int64, changed func() (<-chan struct{}, error), each func(engi.Chunk) error) (engi.Exit, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	source := httpio.Pull(p.Output(ctx, from))
	defer source.Stop()
	defer cancel()
	beat := time.NewTicker(s.h.Heartbeat)
	defer beat.Stop()
	var next <-chan struct{}
	for {
		if next == nil && changed != nil {
			var err error
			if next, err = changed(); err != nil {
				return engi.Exit{}, err
			}
		}
		select {
		case <-ctx.Done():
			return engi.Exit{}, context.Cause(ctx)
		case <-next:
			next = nil
		case <-beat.C:
			alive, done := context.WithTimeout(ctx, httpio.EventTimeout)
			err := s.ws.Ping(alive)
			done()
			if err != nil {
				return engi.Exit{}, errClient
			}
		case e, ok := <-source.Events:
			if !ok {
				return p.Wait(ctx)
			}
			err := e.Err
			if err == nil {
				err = each(e.Event)
			}
			source.Release()
			if err != nil {
				return engi.Exit{}, err
			}
		}
	}
}

func (s *socket) send(m any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return engi.Errorf(engi.Internal, "write a message of a terminal: %v", err) // unreachable: all types of package v1 can be encoded
	}
	return s.write(websocket.MessageText, text)
}

// write sends a message. Cancelling a write ends the connection, which still has to carry the
// reason to the client; so the write has some more time when the context ends.
func (s *socket) write(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), httpio.EventTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, func() {
		select {
		case <-time.After(lastWrite):
			cancel()
		case <-ctx.Done():
		}
	})()
	if s.ws.Write(ctx, kind, data) != nil {
		return errClient
	}
	return nil
}

// end sends the last message.
func (s *socket) end(m any) error {
	if err := s.send(m); err != nil {
		return err
	}
	_ = s.ws.Close(websocket.StatusNormalClosure, "") // the client may have left
	return nil
}

// over sends the client the reason of the end, if the client is still connected.
func (s *socket) over(err error) {
	if cause := context.Cause(s.ctx); cause != nil && cause != context.Canceled { // the link or the client has ended
		err = cause
	}
	if err == nil || err == errClient || s.h.Ctx.Err() == nil && s.h.gone() {
		return
	}
	problem := s.h.Describe(err)
	code := websocket.StatusNormalClosure
	if problem.Kind == v1.Unavailable {
		code = websocket.StatusTryAgainLater
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 5*time.Second)
	defer cancel()
	last := &socket{s.h, s.ws, ctx} // the reader still uses s with its ended context
	if last.send(v1.TerminalMessage{Type: v1.EventError, Error: &problem}) == nil {
		_ = s.ws.Close(code, "") // the client may have left
	}
}
