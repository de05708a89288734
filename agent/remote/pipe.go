package remote

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi"
)

const (
	maxBytes         = 32 << 20 // bytes between two calls
	maxNotifications = 4096     // notifications between two calls that are passed on
	maxRequests      = 1000     // of a server to us, which all are refused
	maxStderr        = 2 << 10  // bytes of what a program complains about that are kept

	// endAfter is how long a program has to leave when its input ends.
	exitTimeout = 2 * time.Second
)

// A pipe is the connection to a program in a sandbox: a message a line. It is
// its own transport.
type pipe struct {
	process    engi.Process
	onProgress func(*sdk.ProgressNotificationParams)
	messages   chan jsonrpc.Message
	ctx        context.Context // of the reader; its cause says why it ended
	cancel     context.CancelCauseFunc
	reader     sync.WaitGroup

	mu            sync.Mutex
	stderr        []byte // the last of what it complained about
	bytes         int    // since the last call
	notifications int    // since the last call
	requests      int
}

// start begins a server's program in g; heard is told what it says about calls
// that go on. The caller ends the pipe.
func startPipe(ctx context.Context, g engi.Guest, s Server, heard func(*sdk.ProgressNotificationParams)) (*pipe, error) {
	process, err := g.Start(ctx, engi.Command{Args: s.Command, Env: s.Env, Stdin: engi.StdinPipe, Tag: "mcp-" + s.Name})
	if err != nil {
		return nil, err
	}
	p := &pipe{process: process, onProgress: heard, messages: make(chan jsonrpc.Message)}
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.reader.Go(p.read)
	return p, nil
}

// Connect implements sdk.Transport.
func (p *pipe) Connect(context.Context) (sdk.Connection, error) { return p, nil }

// SessionID implements sdk.Connection.
func (p *pipe) SessionID() string { return "" }

// read takes messages out of what the program prints, until it ends or says
// too much.
func (p *pipe) read() {
	var f lineDecoder
	for c, err := range p.process.Output(p.ctx, 0) {
		if err != nil {
			p.cancel(engi.Errorf(engi.Unavailable, "%v", err))
			return
		}
		if c.Stream != engi.Stdout {
			p.addStderr(c.Data)
			continue
		}
		for m, err := range f.next(c.Data) {
			pass := false
			if err == nil {
				pass, err = p.accept(m)
			}
			if err != nil {
				p.cancel(err)
				return
			}
			if !pass {
				continue
			}
			select {
			case p.messages <- m:
			case <-p.ctx.Done():
				return
			}
		}
		if err := p.countBytes(len(c.Data)); err != nil {
			p.cancel(err)
			return
		}
	}
	p.cancel(io.EOF)
}

func (p *pipe) addStderr(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stderr = append(p.stderr, data...)
	if n := len(p.stderr) - maxStderr; n > 0 {
		p.stderr = append(p.stderr[:0], p.stderr[n:]...)
	}
}

// complaints returns the last of what the program complained about.
func (p *pipe) stderrTail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return singleLine(string(p.stderr), maxStderr)
}

func (p *pipe) countBytes(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes += n; p.bytes > maxBytes {
		return engi.Errorf(engi.Exhausted, "it sent more than %d bytes at once", maxBytes)
	}
	return nil
}

// admit reports whether a message is passed on.
func (p *pipe) accept(m jsonrpc.Message) (bool, error) {
	r, ok := m.(*jsonrpc.Request)
	if !ok {
		return true, nil
	}
	p.mu.Lock()
	if r.ID.IsValid() {
		p.requests++
	} else {
		p.notifications++
	}
	requests, news := p.requests, p.notifications
	p.mu.Unlock()
	switch {
	case r.ID.IsValid() && requests > maxRequests:
		return false, engi.Errorf(engi.Exhausted, "it asked for more than %d things", maxRequests)
	case r.ID.IsValid():
		return true, nil
	case r.Method == "notifications/progress" && news <= maxNotifications:
		// Not through the SDK, which may be done with the answer first.
		var n sdk.ProgressNotificationParams
		if json.Unmarshal(r.Params, &n) == nil {
			p.onProgress(&n)
		}
	}
	// Of all else that changes meanwhile a run takes no notice.
	return false, nil
}

// Read implements sdk.Connection.
func (p *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-p.messages:
		return m, nil
	case <-p.ctx.Done():
		return nil, context.Cause(p.ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements sdk.Connection.
func (p *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.ID.IsValid() {
		p.mu.Lock()
		p.bytes, p.notifications = 0, 0
		p.mu.Unlock()
	}
	// A program that reads nothing must not hold us after the pipe has ended.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	return p.process.Input(ctx, append(line, '\n'))
}

// Close implements sdk.Connection.
func (p *pipe) Close() error {
	p.cancel(io.EOF)
	return nil
}

// end ends the program and waits for what reads from it. One that is alone in
// a sandbox, which ends with it, is not waited for.
func (p *pipe) stop(alone bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), exitTimeout)
	defer cancel()
	p.cancel(io.EOF)
	p.reader.Wait()
	if alone {
		return
	}
	// A program that is gone, or whose sandbox is, needs no ending.
	if p.process.CloseInput(ctx) == nil {
		if _, err := p.process.Wait(ctx); err == nil {
			return
		}
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(p.ctx), exitTimeout)
	defer cancel()
	_ = p.process.Signal(ctx, "KILL")
}
