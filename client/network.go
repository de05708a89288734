package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// Network returns what a sandbox may reach, as it was asked for.
func (c *Client) Network(ctx context.Context, sandbox string) (v1.NetworkPolicy, error) {
	return get[v1.NetworkPolicy](ctx, c, networkOf(sandbox), nil)
}

// SetNetwork replaces what a sandbox may reach, at once. The password of a
// proxy that stays may be left out.
func (c *Client) SetNetwork(ctx context.Context, sandbox string, p v1.NetworkPolicy) (v1.NetworkPolicy, error) {
	return send[v1.NetworkPolicy](ctx, c, http.MethodPut, networkOf(sandbox), p)
}

func networkOf(sandbox string) string { return sandboxes + segment(sandbox) + "/network" }

// NetworkLog yields what was allowed and refused to a sandbox after the
// event numbered after, oldest first; 0 begins with the oldest that is kept.
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

// WatchNetwork yields what is allowed and refused to a sandbox, from the event
// after the one numbered after on, until the sandbox stops. It comes back to a
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
