package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"

	"github.com/engi-dev/engi/api/v1"
)

const (
	eventPath    = "/v1/events"
	functionRuns = "/v1/functions/runs"
)

// An EventFilter selects events and runs of functions. Zero fields select all.
type EventFilter struct {
	Name     string // of events, or of the events that started runs
	Function string // of runs only
	Event    string // ID of the event that started runs
	State    string // of runs only (v1.FunctionFailed …)
	Limit    int    // 0 means 100; 1000 at most
}

func (f EventFilter) query() url.Values {
	return set("name", f.Name, "function", f.Function, "event", f.Event, "state", f.State, "limit", number(f.Limit))
}

// SendEvent sends an event and returns at once; the functions that are bound
// to its name run. An event with the key of an earlier one is that event and
// starts nothing. Without a key, a broken connection still makes no second
// event.
func (c *Client) SendEvent(ctx context.Context, q v1.EventRequest, key string) (v1.SentEvent, error) {
	if key == "" {
		key = rand.Text()
	}
	return ask[v1.SentEvent](ctx, c, &call{method: http.MethodPost, path: eventPath, body: encode(q), header: http.Header{keyHeader: {key}}})
}

// Events returns events, the newest first.
func (c *Client) Events(ctx context.Context, f EventFilter) ([]v1.SentEvent, error) {
	return list[v1.SentEvent](ctx, c, eventPath, f.query())
}

// Event returns one event.
func (c *Client) Event(ctx context.Context, id string) (v1.SentEvent, error) {
	return get[v1.SentEvent](ctx, c, eventPath+segment(id), nil)
}

// ReplayEvent sends the same event again, for all functions that are bound to
// it or for one. A broken connection starts nothing twice.
func (c *Client) ReplayEvent(ctx context.Context, id, function string) (v1.SentEvent, error) {
	return create[v1.SentEvent](ctx, c, eventPath+segment(id)+"/replay", v1.ReplayRequest{Function: function})
}

// Functions returns what events can start.
func (c *Client) Functions(ctx context.Context) ([]v1.Function, error) {
	return list[v1.Function](ctx, c, "/v1/functions", nil)
}

// FunctionRuns returns runs of functions without their steps, the newest
// first.
func (c *Client) FunctionRuns(ctx context.Context, f EventFilter) ([]v1.FunctionRun, error) {
	return list[v1.FunctionRun](ctx, c, functionRuns, f.query())
}

// FunctionRun returns a run of a function as it is now, with its steps.
func (c *Client) FunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	return get[v1.FunctionRun](ctx, c, functionRuns+segment(id), nil)
}

// WaitFunctionRun returns a run of a function once it has ended.
func (c *Client) WaitFunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	for {
		x, err := get[v1.FunctionRun](ctx, c, functionRuns+segment(id), set("wait", longPoll.String()))
		if err != nil || x.Over() {
			return x, err
		}
	}
}

// CancelFunctionRun ends a run after the step it is in.
func (c *Client) CancelFunctionRun(ctx context.Context, id string) error {
	return c.remove(ctx, functionRuns+segment(id))
}
