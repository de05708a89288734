package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

const keys = "/v1/keys"

// Keys returns the caller's keys, or all keys for an admin, newest first.
func (c *Client) Keys(ctx context.Context) ([]v1.Key, error) {
	return all[v1.Key](ctx, c, keys, nil)
}

// CreateKey creates a key. Only this answer has its secret,
// so a request that may have arrived is not repeated. It needs an admin
// key.
func (c *Client) CreateKey(ctx context.Context, q v1.KeyRequest) (v1.Key, error) {
	return once[v1.Key](ctx, c, keys, q)
}

// RevokeKey revokes a key permanently. Revoking it twice is no error.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.remove(ctx, keys+segment(id))
}
