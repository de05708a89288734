package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
)

const (
	events       = "/v1/events"
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
	q := url.Values{}
	for name, value := range map[string]string{"name": f.Name, "function": f.Function, "event": f.Event, "state": f.State} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// SendEvent sends an event and returns at once; the functions that are bound
// to its name run. An event with the key of an earlier one is that event and
// starts nothing. Without a key, a broken connection still makes no second
// event.
func (c *Client) SendEvent(ctx context.Context, q v1.EventRequest, key string) (v1.SentEvent, error) {
	if key == "" {
		key = rand.Text()
	}
	return get[v1.SentEvent](ctx, c, &call{method: http.MethodPost, path: events, body: encode(q), header: http.Header{"Idempotency-Key": {key}}})
}

// Events returns events, the newest first.
func (c *Client) Events(ctx context.Context, f EventFilter) ([]v1.SentEvent, error) {
	list, err := get[v1.List[v1.SentEvent]](ctx, c, &call{method: http.MethodGet, path: events, query: f.query()})
	return list.Items, err
}

// Event returns one event.
func (c *Client) Event(ctx context.Context, id string) (v1.SentEvent, error) {
	return get[v1.SentEvent](ctx, c, &call{method: http.MethodGet, path: events + segment(id)})
}

// ReplayEvent sends the same event again, for all functions that are bound to
// it or for one. What may have arrived is not sent again.
func (c *Client) ReplayEvent(ctx context.Context, id, function string) (v1.SentEvent, error) {
	return get[v1.SentEvent](ctx, c, &call{
		method: http.MethodPost, path: events + segment(id) + "/replay", body: encode(v1.ReplayRequest{Function: function}), once: true,
	})
}

// Functions returns what events can start.
func (c *Client) Functions(ctx context.Context) ([]v1.Function, error) {
	list, err := get[v1.List[v1.Function]](ctx, c, &call{method: http.MethodGet, path: "/v1/functions"})
	return list.Items, err
}

// FunctionRuns returns runs of functions without their steps, the newest
// first.
func (c *Client) FunctionRuns(ctx context.Context, f EventFilter) ([]v1.FunctionRun, error) {
	list, err := get[v1.List[v1.FunctionRun]](ctx, c, &call{method: http.MethodGet, path: functionRuns, query: f.query()})
	return list.Items, err
}

// FunctionRun returns a run of a function as it is now, with its steps.
func (c *Client) FunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	return get[v1.FunctionRun](ctx, c, &call{method: http.MethodGet, path: functionRuns + segment(id)})
}

// WaitFunctionRun returns a run of a function once it has ended.
func (c *Client) WaitFunctionRun(ctx context.Context, id string) (v1.FunctionRun, error) {
	for {
		x, err := get[v1.FunctionRun](ctx, c, &call{
			method: http.MethodGet, path: functionRuns + segment(id), query: url.Values{"wait": {longPoll.String()}},
		})
		if err != nil || x.Over() {
			return x, err
		}
	}
}

// CancelFunctionRun ends a run after the step it is in.
func (c *Client) CancelFunctionRun(ctx context.Context, id string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: functionRuns + segment(id)})
}
