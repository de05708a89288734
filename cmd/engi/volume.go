package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type volumeCommand struct {
	Create volumeCreate `cmd:"" help:"Make a volume."`
	List   volumeList   `cmd:"" aliases:"ls" help:"List volumes."`
	Get    volumeGet    `cmd:"" help:"Show a volume."`
	Remove volumeRemove `cmd:"" aliases:"rm" help:"Delete volumes with all that is in them."`
	Cp     volumeCopy   `cmd:"" name:"cp" help:"Copy files and directories into a volume or out of it."`
}

func sorted(all []string) []string {
	slices.Sort(all)
	return all
}

type volumeCreate struct {
	Name     string `arg:"" help:"Its name." placeholder:"NAME"`
	Capacity string `help:"How much it holds, like 10GiB; else the node's default." placeholder:"SIZE"`
	TTL      string `name:"ttl" help:"How long it is kept without being used, like 30d; else for ever." placeholder:"D"`
}

func (volumeCreate) Help() string {
	return `Examples:
  engi volume create data --capacity 10GiB
  engi sandbox create --volume data:/data`
}

// Run implements the command.
func (v *volumeCreate) Run(ctx context.Context, g *globals) error {
	capacity, err := size("--capacity", v.Capacity)
	if err != nil {
		return err
	}
	ttl, err := duration("--ttl", v.TTL)
	if err != nil {
		return err
	}
	return g.atServer(ctx, func(d *localNode) error {
		x, err := d.CreateVolume(ctx, v1.VolumeRequest{Name: v.Name, Capacity: capacity, TTL: ttl})
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(x)
		}
		fmt.Fprintln(g.out, x.ID)
		return nil
	})
}

type volumeList struct{}

func (volumeList) Help() string {
	return `Examples:
  engi volume list`
}

// Run implements the command.
func (volumeList) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *localNode) error {
		all, err := d.Volumes(ctx)
		if err != nil {
			return err
		}
		return g.showVolumes(all)
	})
}

func (g *globals) showVolumes(all []v1.Volume) error {
	if g.JSON {
		return g.printJSON(all)
	}
	var rows [][]string
	for _, x := range all {
		rows = append(rows, []string{x.Name, x.ID, fmt.Sprintf("%d of %d MiB", x.Used>>20, x.Capacity>>20), orDash(x.SandboxID), ago(x.CreatedAt)})
	}
	g.table("NAME\tID\tUSED\tMOUNTED IN\tCREATED", rows)
	return nil
}

type volumeGet struct {
	Name string `arg:"" help:"Volume." placeholder:"NAME"`
}

func (volumeGet) Help() string {
	return `Examples:
  engi volume get data --json`
}

// Run implements the command.
func (v *volumeGet) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *localNode) error {
		x, err := d.Volume(ctx, v.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(x)
		}
		return g.showVolumes([]v1.Volume{x})
	})
}

type volumeRemove struct {
	Names []string `arg:"" name:"name" help:"Volumes." placeholder:"NAME"`
}

func (volumeRemove) Help() string {
	return `Examples:
  engi volume remove data`
}

// Run implements the command.
func (v *volumeRemove) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "removed", v.Names, func(d *localNode, name string) error { return d.RemoveVolume(ctx, name) })
}

// removeAll removes objects by name, and says under done which are gone.
func (g *globals) removeAll(ctx context.Context, done string, names []string, remove func(*localNode, string) error) error {
	return g.atServer(ctx, func(d *localNode) error {
		var errs []error
		removed := []string{}
		for _, name := range names {
			if err := remove(d, name); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, name)
		}
		if g.JSON {
			if err := g.printJSON(map[string]any{done: removed}); err != nil {
				return err
			}
		}
		return g.several(errs)
	})
}

type volumeCopy struct {
	From string `arg:"" help:"What to copy: a path here, or NAME:PATH in a volume; - is standard input." placeholder:"FROM"`
	To   string `arg:"" help:"Where to: NAME:PATH in a volume, or a path here; - is standard output." placeholder:"TO"`
}

func (volumeCopy) Help() string {
	return `Works whether or not a sandbox has the volume. Links are left out.

Examples:
  engi volume cp models data:/models
  engi volume cp data:/result.json -`
}

// Run implements the command.
func (v *volumeCopy) Run(ctx context.Context, g *globals) error {
	return g.copy(ctx, v.From, v.To, func(d *localNode, name string) remoteFile { return remoteFile{Files: d.VolumeFiles(name)} })
}

type snapshotCommand struct {
	List   snapshotList   `cmd:"" aliases:"ls" help:"List snapshots."`
	Get    snapshotGet    `cmd:"" help:"Show a snapshot."`
	Remove snapshotRemove `cmd:"" aliases:"rm" help:"Let snapshots go."`
}

type snapshotList struct {
	Sandbox string `help:"Only those of this sandbox." placeholder:"ID"`
}

func (snapshotList) Help() string {
	return `Examples:
  engi snapshot list`
}

// Run implements the command.
func (s *snapshotList) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *localNode) error {
		all, err := d.Snapshots(ctx, s.Sandbox)
		if err != nil {
			return err
		}
		return g.showSnapshots(all)
	})
}

func (g *globals) showSnapshots(all []v1.Snapshot) error {
	if g.JSON {
		return g.printJSON(all)
	}
	var rows [][]string
	for _, x := range all {
		what := "memory and disk"
		if x.DiskOnly {
			what = "disk"
		}
		expires := "never"
		if x.ExpiresAt != nil {
			expires = x.ExpiresAt.Format(time.DateTime)
		}
		rows = append(rows, []string{x.ID, orDash(x.Name), what, x.Template, fmt.Sprintf("%d MiB", x.Bytes>>20), expires, ago(x.CreatedAt)})
	}
	g.table("ID\tNAME\tHOLDS\tTEMPLATE\tSIZE\tEXPIRES\tCREATED", rows)
	return nil
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
	return g.atServer(ctx, func(d *localNode) error {
		x, err := d.Snapshot(ctx, s.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(x)
		}
		return g.showSnapshots([]v1.Snapshot{x})
	})
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
	return g.removeAll(ctx, "removed", s.Names, func(d *localNode, name string) error { return d.RemoveSnapshot(ctx, name) })
}
