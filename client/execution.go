package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const executions = "/v1/executions"

// cancelTime is the maximum time to cancel a run whose caller has given up.
const cancelTime = 5 * time.Second

// Run runs code and returns the execution with its result. If ctx ends
// first, the run is cancelled. A program that fails is a result, not an
// error. A broken connection neither ends nor repeats the run.
func (c *Client) Run(ctx context.Context, q v1.ExecutionRequest) (v1.Execution, error) {
	var last v1.Execution
	for e, err := range c.Stream(ctx, q) {
		if err != nil {
			return last, err
		}
		if e.Execution != nil {
			last = *e.Execution
		}
	}
	return last, nil
}

// Stream runs code and yields the events of the run while it runs; the last one is
// its result. If ctx ends, or the caller leaves the loop, before that, the run is
// cancelled. A broken connection neither ends nor repeats anything.
func (c *Client) Stream(ctx context.Context, q v1.ExecutionRequest) iter.Seq2[v1.ExecutionUpdate, error] {
	return func(yield func(v1.ExecutionUpdate, error) bool) {
		x, err := c.Start(ctx, q)
		if err != nil {
			yield(v1.ExecutionUpdate{}, err)
			return
		}
		done := false
		defer func() {
			if done {
				return
			}
			soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
			defer cancel()
			_ = c.Cancel(soon, x.ID) // the caller needs its own error, not this one
		}()
		for e, err := range c.Watch(ctx, x.ID, 0) {
			done = e.Type == v1.EventResult || err != nil && ctx.Err() == nil && !IsKind(err, v1.Unavailable)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Start starts a run and returns its record at once, without waiting. The end of the caller
// does not end the run.
func (c *Client) Start(ctx context.Context, q v1.ExecutionRequest) (v1.Execution, error) {
	q.Async = true
	return create[v1.Execution](ctx, c, executions, q)
}

// Execution returns the current record of a run.
func (c *Client) Execution(ctx context.Context, id string) (v1.Execution, error) {
	return get[v1.Execution](ctx, c, executions+segment(id), nil)
}

// Wait returns the record of a run when it has ended, or was refused.
func (c *Client) Wait(ctx context.Context, id string) (v1.Execution, error) {
	for {
		x, err := get[v1.Execution](ctx, c, executions+segment(id), set("wait", longPoll.String()))
		if err != nil || x.State == v1.Done || x.State == v1.Refused {
			return x, err
		}
	}
}

// Executions yields the runs in a state (v1.Running …), or in all states if it
// is empty, newest first.
func (c *Client) Executions(ctx context.Context, state string) iter.Seq2[v1.ExecutionSummary, error] {
	return pages[v1.ExecutionSummary](ctx, c, executions, set("state", state))
}

// Cancel cancels a run. Cancelling it twice is no error.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.remove(ctx, executions+segment(id))
}

// Artifact opens an artifact of a run, by its path. The
// caller closes it, and may compare its hash.
func (c *Client) Artifact(ctx context.Context, id, path string) (io.ReadCloser, error) {
	var escaped strings.Builder
	for part := range strings.SplitSeq(path, "/") {
		escaped.WriteString(segment(part))
	}
	resp, err := c.do(ctx, &call{
		method: http.MethodGet, path: executions + segment(id) + "/artifacts" + escaped.String(),
		header: http.Header{"Accept": {"application/octet-stream, */*;q=0.1"}},
	})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Watch yields the events of a run from an offset on: started if from is 0,
// then output as it is written, and the result as the last one. It resumes
// a broken stream where it left off. For a refused run it yields the refusal as an
// error. The end of the loop or of ctx does not affect the run.
func (c *Client) Watch(ctx context.Context, id string, from int64) iter.Seq2[v1.ExecutionUpdate, error] {
	w := watcher{at: from, seen: from}
	next := func() *call {
		w.comeBack()
		return &call{method: http.MethodGet, path: executions + segment(id) + "/events", query: set("offset", offset(w.at)), header: ndjson()}
	}
	read := func(e v1.ExecutionUpdate) (string, *v1.Problem) { return e.Type, e.Error }
	return resumed(ctx, c, next, w.progress, stream[v1.ExecutionUpdate]{read: read, remedy: "try again"}, func(e *v1.ExecutionUpdate) (wanted, last bool) {
		return w.counts(e), e.Type == v1.EventResult
	})
}

// A watcher holds the position of a reader in a stream.
type watcher struct {
	at      int64  // offset from which to resume
	seen    int64  // number of yielded bytes, counted from the beginning of the log
	started bool   // the started event was yielded
	stream  string // stream of the last output
	repeat  int64  // number of bytes of that stream that will be sent again
}

// comeBack prepares for a new connection. All bytes after w.at that were
// already yielded belong to one stream: the other one stops in the middle of a
// character there.
func (w *watcher) comeBack() { w.repeat = w.seen - w.at }

// progress returns a number that grows with the yielded events.
func (w *watcher) progress() int64 {
	if w.started {
		return w.seen + 1
	}
	return w.seen
}

// counts counts an event and removes the bytes that were yielded before; it returns false if
// nothing in it is new.
func (w *watcher) counts(e *v1.ExecutionUpdate) bool {
	switch e.Type {
	case v1.EventStarted:
		was := w.started
		w.started = true
		return !was
	case v1.EventStdout, v1.EventStderr:
		data := w.take(e.Type, e.Offset, bytesOf(e.Data, e.DataBase64))
		e.Data, e.DataBase64 = text(data)
		return len(data) > 0
	}
	return e.Type == v1.EventResult // other types are newer than this client
}

func bytesOf(text string, data []byte) []byte {
	if data != nil {
		return data
	}
	return []byte(text)
}

// take counts output of a stream and returns the new part.
func (w *watcher) take(stream string, offset int64, data []byte) []byte {
	if w.repeat > 0 && stream == w.stream {
		n := min(w.repeat, int64(len(data)))
		w.repeat -= n
		data = data[n:]
	}
	w.at = offset
	w.seen += int64(len(data))
	if w.repeat == 0 {
		w.stream = stream
	}
	return data
}
