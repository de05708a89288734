package node

import (
	"context"
	"crypto/rand"
	"errors"
	"net"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk"
	"github.com/engi-dev/engi/fleet"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/provider"
)

// A workshop opens sandboxes for build commands of templates. Its machines
// are in a directory of their own: they are nobody's sandboxes, and whoever
// holds the data directory next removes those that a crash left.
type workshop struct{ p provider.Provider }

var _ disk.Workshop = workshop{}

// buildSize is what a build step may use: package managers are hungry.
var buildSize = engi.Size{VCPUs: 8, Memory: 4 << 30, Disk: 32 << 30, Inodes: 4_000_000, Processes: 4096, OpenFiles: 65536}

// Open implements [disk.Workshop].
func (w workshop) Open(ctx context.Context, dir string) (_ engi.Guest, _ func() error, err error) {
	spec := provider.Spec{
		ID: engi.NewSandboxID(), Root: dir, Writable: true, Size: buildSize, Hostname: "build", Token: rand.Text(), Network: provider.Host,
	}
	defer engi.Annotate(&err, "open a workshop %s", spec.ID)
	m, err := w.p.Start(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	g, err := guest.Open(ctx, func(ctx context.Context) (net.Conn, error) { return m.Guest(ctx) }, spec.Token)
	if err == nil {
		err = g.Setup(ctx, wire.Setup{WorkDir: "/root", Home: "/root", Processes: buildSize.Processes, OpenFiles: buildSize.OpenFiles})
		if err != nil {
			g.Close()
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return g, func() error { return errors.Join(g.Close(), m.Close()) }, nil
}

// forFleet is disk's templates as fleet wants them.
type forFleet struct{ *disk.Templates }

var _ fleet.Templates = forFleet{}

// Use implements [fleet.Templates].
func (t forFleet) Use(ctx context.Context, name string) (engi.Template, []provider.Mount, func(), error) {
	tmpl, release, err := t.Templates.Use(ctx, name)
	return tmpl, nil, release, err
}
