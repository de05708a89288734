package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// Templates returns all, those that are not built yet included.
func (c *Client) Templates(ctx context.Context) ([]v1.Template, error) {
	list, err := get[v1.List[v1.Template]](ctx, c, &call{method: http.MethodGet, path: "/v1/templates"})
	return list.Items, err
}

// Template returns a built template by name or digest.
func (c *Client) Template(ctx context.Context, name string) (v1.Template, error) {
	return get[v1.Template](ctx, c, &call{method: http.MethodGet, path: "/v1/templates" + segment(name)})
}

// BuildTemplate builds a template and yields how far it is; the last event is
// of type result and has the template. Leaving the loop, or the end of ctx,
// cancels the build; finished steps stay cached. It needs an admin key.
func (c *Client) BuildTemplate(ctx context.Context, q v1.TemplateRequest) iter.Seq2[v1.BuildEvent, error] {
	return func(yield func(v1.BuildEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.do(ctx, &call{
			method: http.MethodPost, path: "/v1/templates", body: encode(q),
			header: http.Header{"Accept": {"application/x-ndjson"}},
		})
		if err != nil {
			yield(v1.BuildEvent{}, err)
			return
		}
		defer resp.Body.Close()
		for e, err := range lines[v1.BuildEvent](resp.Body, cancel) {
			switch {
			case err != nil:
				yield(e, failure(v1.Unavailable, "try again; finished steps are cached", "the stream of %s broke: %v", c.url, err))
				return
			case e.Type == v1.EventHeartbeat:
				continue
			case e.Type == v1.EventError && e.Error != nil:
				yield(v1.BuildEvent{}, &Error{*e.Error})
				return
			}
			if !yield(e, nil) || e.Type == v1.EventResult {
				return
			}
		}
		yield(v1.BuildEvent{}, failure(v1.Unavailable, "try again; finished steps are cached", "the stream of %s ended without a result", c.url))
	}
}

// RemoveTemplate deletes a template. It needs an admin key.
func (c *Client) RemoveTemplate(ctx context.Context, name string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/templates" + segment(name)})
}

// PruneTemplates deletes builds that no template refers to, and returns what
// that freed. It needs an admin key.
func (c *Client) PruneTemplates(ctx context.Context) (v1.Bytes, error) {
	p, err := get[v1.Pruned](ctx, c, &call{method: http.MethodPost, path: "/v1/templates/prune"})
	return p.Freed, err
}

// Pools returns the warm pools.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	list, err := get[v1.List[v1.Pool]](ctx, c, &call{method: http.MethodGet, path: "/v1/pools"})
	return list.Items, err
}

// Node describes the server.
func (c *Client) Node(ctx context.Context) (v1.Node, error) {
	return get[v1.Node](ctx, c, &call{method: http.MethodGet, path: "/v1/node"})
}

// Ready asks once whether every pool has had its first member. A server that
// is not ready is no error.
func (c *Client) Ready(ctx context.Context) (v1.Readiness, error) {
	var ready v1.Readiness
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/readyz", nil)
	if err != nil {
		return ready, failure(v1.Invalid, "check the server's address", "%v", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return ready, c.unreachable(ctx, err)
	}
	body, err := readAll(resp)
	if err != nil {
		return ready, c.unreachable(ctx, err)
	}
	if json.Unmarshal(body, &ready) != nil || resp.StatusCode != http.StatusOK && ready.Reason == "" {
		return ready, failure(v1.Internal, "check that the address is that of an engi server", "the server answered %s: %.200q", resp.Status, body)
	}
	return ready, nil
}

// Keys returns the caller's keys, or everybody's to an admin, newest first.
func (c *Client) Keys(ctx context.Context) ([]v1.Key, error) {
	list, err := get[v1.List[v1.Key]](ctx, c, &call{method: http.MethodGet, path: "/v1/keys"})
	return list.Items, err
}

// CreateKey makes a key. Its secret is in the answer and will never be seen
// again. It needs an admin key.
func (c *Client) CreateKey(ctx context.Context, q v1.KeyRequest) (v1.Key, error) {
	// A repetition would make a second key that nobody knows.
	return get[v1.Key](ctx, c, &call{method: http.MethodPost, path: "/v1/keys", body: encode(q), once: true})
}

// RevokeKey ends a key for ever. Ending it twice is no error.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/keys" + segment(id)})
}
