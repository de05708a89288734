package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

const snapshots = "/v1/snapshots"

// SnapshotSandbox takes a snapshot of a sandbox, which keeps running. A broken connection
// takes no second snapshot.
func (c *Client) SnapshotSandbox(ctx context.Context, id string, q v1.SnapshotRequest) (v1.Snapshot, error) {
	return create[v1.Snapshot](ctx, c, sandboxes+segment(id)+"/snapshot", q)
}

// Snapshots returns snapshots, newest first; only those of one sandbox if sandbox is not empty.
func (c *Client) Snapshots(ctx context.Context, sandbox string) ([]v1.Snapshot, error) {
	return all[v1.Snapshot](ctx, c, snapshots, set("sandbox", sandbox))
}

// Snapshot returns one snapshot by ID or name.
func (c *Client) Snapshot(ctx context.Context, name string) (v1.Snapshot, error) {
	return get[v1.Snapshot](ctx, c, snapshots+segment(name), nil)
}

// RemoveSnapshot deletes a snapshot.
func (c *Client) RemoveSnapshot(ctx context.Context, name string) error {
	return c.remove(ctx, snapshots+segment(name))
}
