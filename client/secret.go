package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const secrets = "/v1/secrets"

// CreateSecret stores a secret. A broken connection stores no second secret.
func (c *Client) CreateSecret(ctx context.Context, q v1.SecretRequest) (v1.Secret, error) {
	return create[v1.Secret](ctx, c, secrets, q)
}

// Secrets returns all secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]v1.Secret, error) {
	return all[v1.Secret](ctx, c, secrets, nil)
}

// Secret returns one secret by ID or name, without its value.
func (c *Client) Secret(ctx context.Context, name string) (v1.Secret, error) {
	return get[v1.Secret](ctx, c, secrets+segment(name), nil)
}

// UpdateSecret replaces a secret's value.
func (c *Client) UpdateSecret(ctx context.Context, name string, q v1.SecretUpdate) (v1.Secret, error) {
	return send[v1.Secret](ctx, c, http.MethodPut, secrets+segment(name), q)
}

// RemoveSecret deletes a secret.
func (c *Client) RemoveSecret(ctx context.Context, name string) error {
	return c.remove(ctx, secrets+segment(name))
}
