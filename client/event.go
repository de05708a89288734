package client

import (
	"context"
	"crypto/rand"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
)

const (
	eventPath    = "/v1/events"
	functionRuns = "/v1/functions/runs"
)

// An EventFilter selects events. Zero fields select all events.
type EventFilter struct {
	Types   []string // any of these types; sandbox.* stands for all types with that prefix
	Subject string   // ID of the events' subject
	Owner   string   // owner of the events; only for admins
	Limit   int      // 0 means 100; at most 1000
}

func (f EventFilter) query() url.Values {
	return set("type", strings.Join(f.Types, ","), "subject", f.Subject, "owner", f.Owner, "limit", number(f.Limit))
}

// A FunctionFilter selects runs of functions. Zero fields select all runs.
type FunctionFilter struct {
	Type     string // type of the events that started the runs
	Function string
	Event    string // ID of the event that started the runs
	State    string // v1.FunctionFailed …
	Limit    int    // 0 means 100; at most 1000
}

// SendEvent sends an event and returns at once; the functions bound
// to its type run. With the key of an earlier event, it returns that event and
// starts nothing. Without a key, a broken connection still sends no second
// event.
func (c *Client) SendEvent(ctx context.Context, q v1.EventRequest, key string) (v1.Event, error) {
	if key == "" {
		key = rand.Text()
	}
	return ask[v1.Event](ctx, c, &call{method: http.MethodPost, path: eventPath, body: q, header: http.Header{keyHeader: {key}}})
}

// Events returns events, newest first.
func (c *Client) Events(ctx context.Context, f EventFilter) ([]v1.Event, error) {
	return list[v1.Event](ctx, c, eventPath, f.query())
}

// FollowEvents yields events after a seq, oldest first, and continues with new
// events, also after the connection broke or the server was restarted. A
// negative seq means new events only. It ends with ctx or an error.
func (c *Client) FollowEvents(ctx context.Context, after int64, f EventFilter) iter.Seq2[v1.Event, error] {
	return c.followEvents(ctx, eventPath, after, f)
}

func (c *Client) followEvents(ctx context.Context, path string, after int64, f EventFilter) iter.Seq2[v1.Event, error] {
	return func(yield func(v1.Event, error) bool) {
		if after < 0 { // the seq from which to resume if the first connection breaks
			newest, err := list[v1.Event](ctx, c, path, set("limit", "1"))
			if err != nil {
				yield(v1.Event{}, err)
				return
			}
			after = 0
			if len(newest) > 0 {
				after = newest[0].Seq
			}
		}
		query := f.query()
		next := func() *call {
			query.Set("after", strconv.FormatInt(after, 10))
			return &call{method: http.MethodGet, path: path, query: query, header: ndjson()}
		}
		read := func(e v1.Event) (string, *v1.Problem) {
			if e.ID != "" {
				return "", nil // the type does not belong to the stream
			}
			return e.Type, e.Error
		}
		resumed(ctx, c, next, func() int64 { return after }, stream[v1.Event]{read: read}, func(e *v1.Event) (wanted, last bool) {
			after = e.Seq
			return true, false
		})(yield)
	}
}

// Event returns one event.
func (c *Client) Event(ctx context.Context, id string) (v1.Event, error) {
	return get[v1.Event](ctx, c, eventPath+segment(id), nil)
}

// ReplayEvent sends the same event again, for all functions bound to
// it or for one. A broken connection starts nothing twice.
func (c *Client) ReplayEvent(ctx context.Context, id, function string) (v1.Event, error) {
	return create[v1.Event](ctx, c, eventPath+segment(id)+"/replay", v1.ReplayRequest{Function: function})
}

// Functions returns the functions that events can start.
func (c *Client) Functions(ctx context.Context) ([]v1.Function, error) {
	return list[v1.Function](ctx, c, "/v1/functions", nil)
}

// FunctionRuns returns runs of functions without their steps, newest
// first.
func (c *Client) FunctionRuns(ctx context.Context, f FunctionFilter) ([]v1.FunctionRun, error) {
	return list[v1.FunctionRun](ctx, c, functionRuns, set("name", f.Type, "function", f.Function, "event", f.Event, "state", f.State, "limit", number(f.Limit)))
}

// FunctionRun returns the current state of a run of a function, with its steps.
func (c *Client) FunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	return get[v1.FunctionRun](ctx, c, functionRuns+segment(id), nil)
}

// WaitFunctionRun returns a run of a function when it has ended.
func (c *Client) WaitFunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	for {
		x, err := get[v1.FunctionRun](ctx, c, functionRuns+segment(id), set("wait", longPoll.String()))
		if err != nil || x.Over() {
			return x, err
		}
	}
}

// CancelFunctionRun cancels a run after its current step.
func (c *Client) CancelFunctionRun(ctx context.Context, id string) error {
	return c.remove(ctx, functionRuns+segment(id))
}
