package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type snapshotCommand struct {
	List   snapshotList   `cmd:"" aliases:"ls" help:"List snapshots."`
	Get    snapshotGet    `cmd:"" help:"Show a snapshot."`
	Remove snapshotRemove `cmd:"" aliases:"rm" help:"Remove snapshots."`
}

var snapshots = table[v1.Snapshot]{"ID\tNAME\tHOLDS\tTEMPLATE\tSIZE\tEXPIRES\tCREATED", func(x v1.Snapshot) []any {
	what, expires := "memory and disk", "never"
	if x.DiskOnly {
		what = "disk"
	}
	if x.ExpiresAt != nil {
		expires = x.ExpiresAt.Format(time.DateTime)
	}
	return []any{x.ID, x.Name, what, x.Template, fmt.Sprintf("%d MiB", x.Bytes>>20), expires, ago(x.CreatedAt)}
}, nil}

type snapshotList struct {
	Sandbox string `help:"Only those of this sandbox." placeholder:"ID"`
}

func (snapshotList) Help() string {
	return `Examples:
  engi snapshot list`
}

// Run implements the command.
func (s *snapshotList) Run(ctx context.Context, g *globals) error {
	return snapshots.list(ctx, g, false, func(d *connection) ([]v1.Snapshot, error) { return d.Snapshots(ctx, s.Sandbox) })
}

type snapshotGet struct {
	Name string `arg:"" help:"ID or name." placeholder:"NAME"`
}

func (snapshotGet) Help() string {
	return `Examples:
  engi snapshot get ready --json`
}

// Run implements the command.
func (s *snapshotGet) Run(ctx context.Context, g *globals) error {
	return snapshots.get(ctx, g, func(d *connection) (v1.Snapshot, error) { return d.Snapshot(ctx, s.Name) })
}

type snapshotRemove struct {
	Names []string `arg:"" name:"name" help:"IDs or names." placeholder:"NAME"`
}

func (snapshotRemove) Help() string {
	return `Examples:
  engi snapshot remove ready`
}

// Run implements the command.
func (s *snapshotRemove) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "removed", s.Names, func(d *connection, name string) error { return d.RemoveSnapshot(ctx, name) })
}
