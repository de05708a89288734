package remote

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxBytes         = 32 << 20 // maximum bytes of output between two calls
	maxNotifications = 4096     // maximum number of notifications between two calls
	maxRequests      = 1000     // maximum number of requests from the server; all are refused
	maxStderr        = 2 << 10  // bytes kept of the end of standard error

	// exitTimeout is the time for a program to exit after its input has ended.
	exitTimeout = 2 * time.Second
)

// A pipe is a connection to a program in a sandbox: one message per line of its
// standard input and output. It is its own transport.
type pipe struct {
	process    engi.Process
	onProgress func(*sdk.ProgressNotificationParams)
	messages   chan jsonrpc.Message
	ctx        context.Context // context of the reader; its cause is the reason of the end
	cancel     context.CancelCauseFunc
	reader     sync.WaitGroup

	mu            sync.Mutex
	stderr        []byte // last bytes of standard error
	bytes         int    // counted since the last call
	notifications int    // counted since the last call
	requests      int
}

// startPipe starts a server's program in g; heard receives its progress
// messages. The caller calls stop.
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

// read decodes the program's output until it ends or exceeds a limit.
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

// stderrTail returns the end of the program's standard error.
func (p *pipe) stderrTail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return clip.Line(string(p.stderr), maxStderr)
}

func (p *pipe) countBytes(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes += n; p.bytes > maxBytes {
		return engi.Errorf(engi.Exhausted, "the program sent more than %d bytes at once", maxBytes)
	}
	return nil
}

// accept reports whether a message is passed on to the SDK.
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
		return false, engi.Errorf(engi.Exhausted, "the program sent more than %d requests", maxRequests)
	case r.ID.IsValid():
		return true, nil
	case r.Method == "notifications/progress" && news <= maxNotifications:
		// Handle it here, because the SDK may deliver the answer first.
		var n sdk.ProgressNotificationParams
		if json.Unmarshal(r.Params, &n) == nil {
			p.onProgress(&n)
		}
	}
	// Other notifications announce changes, which do not matter to a run.
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
	// A program that reads nothing must not block Write after the pipe was closed.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	if err = p.process.Input(ctx, append(line, '\n')); err != nil {
		// A program that has ended gives the reason on its standard error, which the
		// caller reads.
		select {
		case <-p.ctx.Done():
		case <-ctx.Done():
		case <-time.After(lastWords):
		}
	}
	return err
}

// lastWords is the maximum wait for the output of a program that accepts no more
// input.
const lastWords = time.Second

// Close implements sdk.Connection.
func (p *pipe) Close() error {
	p.cancel(io.EOF)
	return nil
}

// stop stops the program and waits for the reader. It does not wait for a
// program that is alone in its sandbox, because the sandbox is stopped next.
func (p *pipe) stop(alone bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), exitTimeout)
	defer cancel()
	p.cancel(io.EOF)
	p.reader.Wait()
	if alone {
		return
	}
	// Errors mean that the program or its sandbox has ended.
	if p.process.CloseInput(ctx) == nil {
		if _, err := p.process.Wait(ctx); err == nil {
			return
		}
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(p.ctx), exitTimeout)
	defer cancel()
	_ = p.process.Signal(ctx, "KILL")
}
