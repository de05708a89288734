package client

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"sync"

	"github.com/engi-dev/engi/api/v1"
)

// Exec runs a program in a sandbox and returns its output and its exit.
// If ctx ends first, the program is killed. A program that fails is a
// result, not an error.
func (c *Client) Exec(ctx context.Context, sandbox string, q v1.ProcessRequest) (v1.ProcessResult, error) {
	q.Detach = false
	// Send no key: the process is killed if its caller leaves.
	return once[v1.ProcessResult](ctx, c, processesOf(sandbox), q)
}

func processesOf(sandbox string) string { return sandboxes + segment(sandbox) + "/processes" }

// A Process is a program in a sandbox. It continues without a reader. It is
// safe for concurrent use.
type Process struct {
	v1.Process
	Sandbox string

	c    *Client
	path string

	mu    sync.Mutex
	first *opened // the answer to the start, until it is read
}

// An opened is a stream of events whose first event was read.
type opened struct {
	r      *bufio.Reader
	body   io.Closer
	cancel context.CancelFunc
}

func (o *opened) close() {
	o.cancel()
	o.body.Close()
}

// StartProcess starts a program in a sandbox. It continues after ctx ends.
// No output is lost before Output is called: as with a pipe without a reader,
// the program waits when it has printed more than is kept. Release lets
// it continue; q.Detach does so from the start.
func (c *Client) StartProcess(ctx context.Context, sandbox string, q v1.ProcessRequest) (*Process, error) {
	if q.Detach {
		p, err := create[v1.Process](ctx, c, processesOf(sandbox), q)
		if err != nil {
			return nil, err
		}
		return c.process(sandbox, p), nil
	}
	x := &call{method: http.MethodPost, path: processesOf(sandbox), body: q, header: ndjson()}
	x.header.Set(keyHeader, rand.Text())
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	p, o, err := c.startStream(long, cancel, x)
	if !stop() && err == nil {
		o.close()
		err = c.unreachable(ctx, ctx.Err())
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = c.unreachable(ctx, err)
		}
		return nil, err
	}
	started := c.process(sandbox, p)
	started.first = o
	return started, nil
}

func (c *Client) startStream(ctx context.Context, cancel context.CancelFunc, x *call) (v1.Process, *opened, error) {
	resp, err := c.do(ctx, x)
	if err != nil {
		return v1.Process{}, nil, err
	}
	o := &opened{bufio.NewReaderSize(resp.Body, 64<<10), resp.Body, cancel}
	line, err := readLine(o.r)
	var e v1.ProcessUpdate
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	switch {
	case err != nil:
		o.close()
		return v1.Process{}, nil, failure(v1.Unavailable, "look among the processes whether it runs", "the stream of %s broke: %v", c.url, err)
	case e.Process == nil:
		o.close()
		return v1.Process{}, nil, failure(v1.Internal, "check that the address is that of an engi server", "the answer begins with %q", e.Type)
	}
	return *e.Process, o, nil
}

// Release declares that this client will not read the output.
func (p *Process) Release() {
	if o := p.take(); o != nil {
		o.close()
	}
}

func (p *Process) take() *opened {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.first
	p.first = nil
	return o
}

func (c *Client) process(sandbox string, p v1.Process) *Process {
	return &Process{Process: p, Sandbox: sandbox, c: c, path: processesOf(sandbox) + segment(p.ID)}
}

// Process returns a process by ID or tag.
func (c *Client) Process(ctx context.Context, sandbox, idOrTag string) (*Process, error) {
	p, err := get[v1.Process](ctx, c, processesOf(sandbox)+segment(idOrTag), nil)
	if err != nil {
		return nil, err
	}
	return c.process(sandbox, p), nil
}

// Processes returns the processes of a sandbox, newest first.
func (c *Client) Processes(ctx context.Context, sandbox string) ([]v1.Process, error) {
	return list[v1.Process](ctx, c, processesOf(sandbox), nil)
}

// Output yields the output from an offset on, and exit as the last event. It
// resumes a broken stream where it left off. The end of the loop
// or of ctx does not affect the process.
func (p *Process) Output(ctx context.Context, from int64) iter.Seq2[v1.ProcessUpdate, error] {
	return func(yield func(v1.ProcessUpdate, error) bool) {
		w := watcher{at: from, seen: from}
		var o *opened
		err := p.c.resume(ctx, func() *call {
			if o = nil; w.at == 0 {
				o = p.take()
			}
			w.comeBack()
			return &call{method: http.MethodGet, path: p.path + "/events", query: set("offset", offset(w.at)), header: ndjson()}
		}, w.progress, func(q *call) (bool, error) { return p.follow(ctx, &w, q, o, yield) })
		if err != nil {
			yield(v1.ProcessUpdate{}, err)
		}
	}
}

// follow reads one connection: o, or a new one if o is nil. It returns
// false when the caller has received everything, and else the reason of the connection's end.
func (p *Process) follow(ctx context.Context, w *watcher, q *call, o *opened, yield func(v1.ProcessUpdate, error) bool) (more bool, err error) {
	s := stream[v1.ProcessUpdate]{
		remedy: "try again",
		read:   func(e v1.ProcessUpdate) (string, *v1.Problem) { return e.Type, e.Error },
		each: func(e v1.ProcessUpdate) (more bool) {
			switch e.Type {
			case v1.EventStdout, v1.EventStderr, v1.EventTerminal:
				data := w.take(e.Type, e.Offset, bytesOf(e.Data, e.DataBase64))
				e.Data, e.DataBase64 = text(data)
				return len(data) == 0 || yield(e, nil)
			case v1.EventExit:
				yield(e, nil)
				return false
			}
			return true
		},
	}
	if o == nil {
		return follow(ctx, p.c, p.c.send, q, s)
	}
	defer context.AfterFunc(ctx, o.cancel)()
	defer o.close()
	return s.follow(p.c, o.r, o.cancel)
}

// Wait returns the exit of the process when it has ended.
func (p *Process) Wait(ctx context.Context) (v1.Exit, error) {
	// Wait reads all kept output on the way, because the offset of the end
	// is not known.
	for e, err := range p.Output(ctx, 0) {
		if err != nil {
			return v1.Exit{}, err
		}
		if e.Exit != nil {
			return *e.Exit, nil
		}
	}
	return v1.Exit{}, failure(v1.Internal, "report it", "the output of %s ended without an exit", p.ID)
}

// Input sends all of r to the standard input of the process as it is read.
func (p *Process) Input(ctx context.Context, r io.Reader) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/input", stream: r, length: -1, once: true})
}

// CloseInput closes the standard input of the process.
func (p *Process) CloseInput(ctx context.Context) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/close-input"})
}

// Signal sends a signal; its name has no SIG.
func (p *Process) Signal(ctx context.Context, name string) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/signal", body: v1.SignalRequest{Signal: name}, once: true})
}

// Resize sets the size of the terminal.
func (p *Process) Resize(ctx context.Context, cols, rows int) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/resize", body: v1.TerminalSize{Cols: cols, Rows: rows}})
}
