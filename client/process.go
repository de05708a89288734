package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
)

// Exec runs a program in a sandbox and returns what it said and how it ended.
// When ctx ends first, the program is killed. A program that fails is a
// result, not an error.
func (c *Client) Exec(ctx context.Context, sandbox string, q v1.ProcessRequest) (v1.ProcessResult, error) {
	q.Detach = false
	return get[v1.ProcessResult](ctx, c, &call{
		method: http.MethodPost, path: sandboxes + segment(sandbox) + "/processes", body: encode(q), once: true,
	})
}

// A Process is a program in a sandbox. It goes on when nobody watches. It is
// safe for concurrent use.
type Process struct {
	v1.Process
	Sandbox string

	c    *Client
	path string
}

// StartProcess starts a program in a sandbox. It goes on after ctx ends.
func (c *Client) StartProcess(ctx context.Context, sandbox string, q v1.ProcessRequest) (*Process, error) {
	q.Detach = true
	p, err := get[v1.Process](ctx, c, &call{
		method: http.MethodPost, path: sandboxes + segment(sandbox) + "/processes", body: encode(q), once: true,
	})
	if err != nil {
		return nil, err
	}
	return c.process(sandbox, p), nil
}

func (c *Client) process(sandbox string, p v1.Process) *Process {
	return &Process{Process: p, Sandbox: sandbox, c: c, path: sandboxes + segment(sandbox) + "/processes" + segment(p.ID)}
}

// Process finds a process by ID or tag.
func (c *Client) Process(ctx context.Context, sandbox, idOrTag string) (*Process, error) {
	p, err := get[v1.Process](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(sandbox) + "/processes" + segment(idOrTag)})
	if err != nil {
		return nil, err
	}
	return c.process(sandbox, p), nil
}

// Processes returns the processes of a sandbox, newest first.
func (c *Client) Processes(ctx context.Context, sandbox string) ([]v1.Process, error) {
	list, err := get[v1.List[v1.Process]](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(sandbox) + "/processes"})
	return list.Items, err
}

// Output yields the output from an offset on, and exit, which is the last. It
// comes back to a broken stream where it left off. Leaving the loop, or the
// end of ctx, changes nothing for the process.
func (p *Process) Output(ctx context.Context, from int64) iter.Seq2[v1.ProcessEvent, error] {
	return func(yield func(v1.ProcessEvent, error) bool) {
		w := watcher{at: from, seen: from}
		for attempt := 0; ; attempt++ {
			before := w.seen
			q := &call{
				method: http.MethodGet, path: p.path + "/events", query: url.Values{"offset": {strconv.FormatInt(w.at, 10)}},
				header: http.Header{"Accept": {"application/x-ndjson"}},
			}
			w.comeBack()
			more, err := p.follow(ctx, &w, q, yield)
			if !more {
				return
			}
			if w.seen > before {
				attempt = 0
			}
			if attempt >= p.c.retries || !p.c.pause(ctx, q, attempt, err) {
				if ctx.Err() != nil {
					err = p.c.unreachable(ctx, err)
				}
				yield(v1.ProcessEvent{}, err)
				return
			}
		}
	}
}

// follow reads one connection. It returns false when the caller has had
// everything, and else why it ended.
func (p *Process) follow(ctx context.Context, w *watcher, q *call, yield func(v1.ProcessEvent, error) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := p.c.send(ctx, q)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	for e, err := range lines[v1.ProcessEvent](resp.Body, cancel) {
		if err != nil {
			return true, failure(v1.Unavailable, "try again", "the stream of %s broke: %v", p.c.url, err)
		}
		switch e.Type {
		case v1.EventError:
			if e.Error == nil {
				e.Error = &v1.Problem{Kind: v1.Internal, Detail: "the stream ended with an error that says nothing"}
			}
			return true, &Error{*e.Error}
		case v1.EventStdout, v1.EventStderr, v1.EventTerminal:
			data := w.take(e.Type, e.Offset, bytesOf(e.Data, e.DataBase64))
			if len(data) == 0 {
				continue
			}
			e.Data, e.DataBase64 = text(data)
			if !yield(e, nil) {
				return false, nil
			}
		case v1.EventExit:
			yield(e, nil)
			return false, nil
		}
	}
	return true, failure(v1.Unavailable, "try again", "the stream of %s ended without an exit", p.c.url)
}

// Wait returns how the process ended, once it has.
func (p *Process) Wait(ctx context.Context) (v1.Exit, error) {
	// Everything that is still kept is read on the way: nothing says where
	// the end is.
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

// Input sends all of r to what the process reads, as it comes.
func (p *Process) Input(ctx context.Context, r io.Reader) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/input", stream: r, length: -1, once: true})
}

// CloseInput ends what the process reads.
func (p *Process) CloseInput(ctx context.Context) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/close-input"})
}

// Signal sends a signal, named without SIG.
func (p *Process) Signal(ctx context.Context, name string) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/signal", body: encode(v1.SignalRequest{Signal: name}), once: true})
}

// Resize tells the terminal its size.
func (p *Process) Resize(ctx context.Context, cols, rows int) error {
	return p.c.act(ctx, &call{method: http.MethodPost, path: p.path + "/resize", body: encode(v1.TerminalSize{Cols: cols, Rows: rows})})
}
