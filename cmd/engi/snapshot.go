package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type snapshotCommand struct {
	List   snapshotList  `cmd:"" aliases:"ls" help:"List snapshots."`
	Get    showCommand   `cmd:"" help:"Show a snapshot."`
	Remove removeCommand `cmd:"" aliases:"rm" help:"Remove snapshots."`
}

var snapshotCommands = snapshotCommand{
	Get:    shows(example("engi snapshot get ready --json"), snapshots.show, (*client.Client).Snapshot),
	Remove: removes(example("engi snapshot remove ready"), "removed", (*client.Client).RemoveSnapshot),
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
	Sandbox string `help:"Only snapshots of this sandbox." placeholder:"ID"`
}

func (snapshotList) Help() string { return example("engi snapshot list") }

func (s *snapshotList) Run(ctx context.Context, g *globals) error {
	return snapshots.list(ctx, g, false, func(d *connection) ([]v1.Snapshot, error) { return d.Snapshots(ctx, s.Sandbox) })
}
