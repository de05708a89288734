package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

const volumes = "/v1/volumes"

// CreateVolume makes an empty volume. A broken connection makes no second one.
func (c *Client) CreateVolume(ctx context.Context, q v1.VolumeRequest) (v1.Volume, error) {
	return create[v1.Volume](ctx, c, volumes, q)
}

// Volumes returns all by name.
func (c *Client) Volumes(ctx context.Context) ([]v1.Volume, error) {
	return all[v1.Volume](ctx, c, volumes, nil)
}

// Volume returns one by ID or name.
func (c *Client) Volume(ctx context.Context, name string) (v1.Volume, error) {
	return get[v1.Volume](ctx, c, volumes+segment(name), nil)
}

// RemoveVolume deletes a volume with all that is in it.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return c.remove(ctx, volumes+segment(name))
}
