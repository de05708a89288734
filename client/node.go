package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// Node describes the server.
func (c *Client) Node(ctx context.Context) (v1.Node, error) {
	return get[v1.Node](ctx, c, "/v1/node", nil)
}

// Examine makes the server check its machine, without booting anything. It needs an
// admin key.
func (c *Client) Examine(ctx context.Context) ([]v1.Check, error) {
	return list[v1.Check](ctx, c, "/v1/doctor", nil)
}

// Pools returns the warm pools.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	return list[v1.Pool](ctx, c, "/v1/pools", nil)
}

// Usage returns the caller's usage and its quota.
func (c *Client) Usage(ctx context.Context) (v1.Usage, error) {
	return get[v1.Usage](ctx, c, "/v1/usage", nil)
}

// Ready asks once whether every pool has had its first sandbox. A server that
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
