package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
)

// Network returns what a sandbox may reach, as it was asked for.
func (c *Client) Network(ctx context.Context, sandbox string) (v1.NetworkPolicy, error) {
	return get[v1.NetworkPolicy](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(sandbox) + "/network"})
}

// SetNetwork replaces what a sandbox may reach, at once. The password of a
// proxy that stays may be left out.
func (c *Client) SetNetwork(ctx context.Context, sandbox string, p v1.NetworkPolicy) (v1.NetworkPolicy, error) {
	return get[v1.NetworkPolicy](ctx, c, &call{method: http.MethodPut, path: sandboxes + segment(sandbox) + "/network", body: encode(p)})
}

// NetworkEvents yields what the wall decided on a sandbox after the event
// numbered after, oldest first; 0 begins with the oldest that is kept.
func (c *Client) NetworkEvents(ctx context.Context, sandbox string, after int64) iter.Seq2[v1.NetworkEvent, error] {
	return func(yield func(v1.NetworkEvent, error) bool) {
		for {
			list, err := get[v1.List[v1.NetworkEvent]](ctx, c, &call{
				method: http.MethodGet, path: sandboxes + segment(sandbox) + "/network/events",
				query: url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {page}},
			})
			if err != nil {
				yield(v1.NetworkEvent{}, err)
				return
			}
			for _, e := range list.Items {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if len(list.Items) == 0 {
				return
			}
		}
	}
}

// WatchNetwork yields what the wall decides on a sandbox, from the event after
// the one numbered after on, until the sandbox stops. It comes back to a
// broken stream where it left off.
func (c *Client) WatchNetwork(ctx context.Context, sandbox string, after int64) iter.Seq2[v1.NetworkEvent, error] {
	return func(yield func(v1.NetworkEvent, error) bool) {
		for attempt := 0; ; attempt++ {
			before := after
			q := &call{
				method: http.MethodGet, path: sandboxes + segment(sandbox) + "/network/events",
				query:  url.Values{"after": {strconv.FormatInt(after, 10)}, "follow": {"true"}},
				header: http.Header{"Accept": {"application/x-ndjson"}},
			}
			more, err := c.followNetwork(ctx, q, &after, yield)
			if !more {
				return
			}
			if after > before {
				attempt = 0
			}
			if attempt >= c.retries || !c.pause(ctx, q, attempt, err) {
				if ctx.Err() != nil {
					err = c.unreachable(ctx, err)
				}
				yield(v1.NetworkEvent{}, err)
				return
			}
		}
	}
}

// followNetwork reads one connection. It returns false when the caller has
// had everything, and else why it ended.
func (c *Client) followNetwork(ctx context.Context, q *call, after *int64, yield func(v1.NetworkEvent, error) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.send(ctx, q)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	for e, err := range lines[v1.NetworkEvent](resp.Body, cancel) {
		switch {
		case err != nil:
			return true, failure(v1.Unavailable, "try again", "the stream of %s broke: %v", c.url, err)
		case e.Type == v1.EventHeartbeat:
		case e.Type == v1.EventError:
			if e.Error == nil {
				e.Error = &v1.Problem{Kind: v1.Internal, Detail: "the stream ended with an error that says nothing"}
			}
			return true, &Error{*e.Error}
		default:
			if !yield(e, nil) {
				return false, nil
			}
			*after = e.Seq
		}
	}
	return false, nil
}
