package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// Network returns the network policy of a sandbox, as its owner specified it.
func (c *Client) Network(ctx context.Context, sandbox string) (v1.NetworkPolicy, error) {
	return get[v1.NetworkPolicy](ctx, c, networkOf(sandbox), nil)
}

// SetNetwork replaces the network policy of a sandbox, at once. The password of an
// unchanged proxy may be omitted.
func (c *Client) SetNetwork(ctx context.Context, sandbox string, p v1.NetworkPolicy) (v1.NetworkPolicy, error) {
	return send[v1.NetworkPolicy](ctx, c, http.MethodPut, networkOf(sandbox), p)
}

func networkOf(sandbox string) string { return sandboxes + segment(sandbox) + "/network" }

// NetworkLog yields the allowed and refused connections of a sandbox after the
// event with the number after, oldest first; 0 starts with the oldest kept event.
func (c *Client) NetworkLog(ctx context.Context, sandbox string, after int64) iter.Seq2[v1.NetworkRecord, error] {
	return func(yield func(v1.NetworkRecord, error) bool) {
		for {
			all, err := list[v1.NetworkRecord](ctx, c, networkOf(sandbox)+"/events", set("after", offset(after), "limit", page))
			if err != nil {
				yield(v1.NetworkRecord{}, err)
				return
			}
			for _, e := range all {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if len(all) == 0 {
				return
			}
		}
	}
}

// WatchNetwork yields the allowed and refused connections of a sandbox after the event
// with the number after, until the sandbox stops. It resumes a
// broken stream where it left off.
func (c *Client) WatchNetwork(ctx context.Context, sandbox string, after int64) iter.Seq2[v1.NetworkRecord, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: networkOf(sandbox) + "/events", query: set("after", offset(after), "follow", "true"), header: ndjson()}
	}
	read := func(e v1.NetworkRecord) (string, *v1.Problem) { return e.Type, e.Error }
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.NetworkRecord]{read: read, remedy: "try again", open: true}, func(e *v1.NetworkRecord) (wanted, last bool) {
		after = e.Seq
		return true, false
	})
}
