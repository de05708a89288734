package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

const volumes = "/v1/volumes"

// CreateVolume creates an empty volume. A broken connection creates no second volume.
func (c *Client) CreateVolume(ctx context.Context, q v1.VolumeRequest) (v1.Volume, error) {
	return create[v1.Volume](ctx, c, volumes, q)
}

// Volumes returns all volumes by name.
func (c *Client) Volumes(ctx context.Context) ([]v1.Volume, error) {
	return all[v1.Volume](ctx, c, volumes, nil)
}

// Volume returns one volume by ID or name.
func (c *Client) Volume(ctx context.Context, name string) (v1.Volume, error) {
	return get[v1.Volume](ctx, c, volumes+segment(name), nil)
}

// RemoveVolume deletes a volume and its contents.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return c.remove(ctx, volumes+segment(name))
}
