package main

import (
	"context"
	"fmt"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type volumeCommand struct {
	Create volumeCreate  `cmd:"" help:"Create a volume."`
	List   listCommand   `cmd:"" aliases:"ls" help:"List volumes."`
	Get    showCommand   `cmd:"" help:"Show a volume."`
	Remove removeCommand `cmd:"" aliases:"rm" help:"Delete volumes and their files."`
	Cp     volumeCopy    `cmd:"" name:"cp" help:"Copy files and directories into a volume or out of it."`
}

var volumeCommands = volumeCommand{
	List:   lists(example("engi volume list"), volumes, (*client.Client).Volumes),
	Get:    shows(example("engi volume get data --json"), volumes.show, (*client.Client).Volume),
	Remove: removes(example("engi volume remove data"), "removed", (*client.Client).RemoveVolume),
}

var volumes = table[v1.Volume]{"NAME\tID\tUSED\tMOUNTED IN\tCREATED", func(x v1.Volume) []any {
	return []any{x.Name, x.ID, fmt.Sprintf("%d of %d MiB", x.Used>>20, x.Capacity>>20), x.SandboxID, ago(x.CreatedAt)}
}, nil}

type volumeCreate struct {
	Name     string `arg:"" help:"Name." placeholder:"NAME"`
	Capacity string `help:"Capacity, like 10GiB (default: the node's default)." placeholder:"SIZE"`
	TTL      string `name:"ttl" help:"Time without use after which the volume is deleted, like 30d (default: never)." placeholder:"D"`
}

func (volumeCreate) Help() string {
	return example("engi volume create data --capacity 10GiB", "engi sandbox create --volume data:/data")
}

func (v *volumeCreate) Run(ctx context.Context, g *globals) error {
	capacity, err := size("--capacity", v.Capacity)
	if err != nil {
		return err
	}
	ttl, err := duration("--ttl", v.TTL)
	if err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.Volume, error) {
		return d.CreateVolume(ctx, v1.VolumeRequest{Name: v.Name, Capacity: capacity, TTL: ttl})
	}, func(x v1.Volume) string { return x.ID })
}

type volumeCopy struct {
	From string `arg:"" help:"Source: a local path, or NAME:PATH in a volume; - is standard input." placeholder:"FROM"`
	To   string `arg:"" help:"Destination: NAME:PATH in a volume, or a local path; - is standard output." placeholder:"TO"`
}

func (volumeCopy) Help() string {
	return `Works whether or not a sandbox has mounted the volume. Symbolic links are skipped.

Examples:
  engi volume cp models data:/models
  engi volume cp data:/result.json -`
}

func (v *volumeCopy) Run(ctx context.Context, g *globals) error {
	return g.copy(ctx, v.From, v.To, func(d *connection, name string) remoteFile { return remoteFile{Files: d.VolumeFiles(name)} })
}
