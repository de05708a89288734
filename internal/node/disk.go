package node

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/store"
)

// openDisk opens templates, snapshots and volumes.
func (n *Node) openDisk(ctx context.Context) (err error) {
	c := n.config
	aliases := map[string]string{}
	for _, a := range c.Templates.Images {
		image, template, _ := strings.Cut(a, "=")
		aliases[strings.TrimSpace(image)] = strings.TrimSpace(template)
	}
	log := n.log.With("component", "disk")
	n.templates, err = disk.Open(ctx, disk.Options{
		Dir: templatesDir(c), Log: log, Runner: n.runner,
		Sources: c.Templates.Sources, CA: c.Templates.CA, Aliases: aliases, Grace: time.Duration(c.Templates.Grace), Mirror: c.Registries.Apt,
		Owners: disk.OwnerBuilds{
			Registry: c.Builds.Registry, Env: c.Builds.Env, Refused: n.refusals.Add,
			Room: func(ctx context.Context, owner engi.Owner) (int64, error) { return n.fleet.DiskLeft(ctx, owner) },
		},
	})
	if err != nil {
		return err
	}
	n.snapshots, err = snapshot.Open(ctx, snapshot.Options{
		Dir: filepath.Join(c.DataDir, "snapshots"), Store: store.Snapshots(n.db), Log: log, Hold: n.templates.Hold,
	})
	if err != nil {
		return err
	}
	n.volumes, err = volume.Open(ctx, volume.Options{
		Dir: volumesDir(c.DataDir), Store: store.Volumes(n.db), Log: log,
		Capacity: int64(c.Volumes.Capacity), Plain: c.Volumes.Plain, Quota: c.Quota.Of, Refused: n.refusals.Add,
		Book: func(ctx context.Context, owner engi.Owner, capacity int64) (func(func() error) error, func(), error) {
			return n.fleet.BookVolume(ctx, owner, capacity)
		},
	})
	return err
}

// diskParts returns the services of openDisk. They start after the fleet, which by
// then has claimed the templates, snapshots and volumes that earlier sandboxes use.
func (n *Node) diskParts() []part {
	return []part{
		{"templates", n.templates.Run, 10 * time.Second},
		{"template events", store.NewAnnouncer(n.db, n.templates).Run, 10 * time.Second},
		{"snapshots", n.snapshots.Run, 10 * time.Second},
		{"volumes", n.volumes.Run, 10 * time.Second},
	}
}
