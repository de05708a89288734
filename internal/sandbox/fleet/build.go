package fleet

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/undo"
)

// A BuildRunner opens sandboxes for the build steps of templates, which write
// their root file system in place. It implements the BuildRunner of package disk
// and is safe for concurrent use.
type BuildRunner struct {
	provider provider.Provider
	size     engi.Size
	egress   Egress // nil means that builds of owners have no network
	policy   engi.NetworkPolicy

	mu   sync.Mutex
	open map[engi.SandboxID]bool
}

// DefaultBuildHosts returns the hosts from which package managers usually download packages.
func DefaultBuildHosts() []string {
	return []string{
		"packages", // the registries that the node serves itself
		"nodejs.org", "jsr.io", "npm.jsr.io", "deno.land", "dl.deno.land", "conda.anaconda.org", "repo.anaconda.com",
		"go.dev", "dl.google.com", "static.rust-lang.org",
		"archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", "deb.nodesource.com",
		"dl-cdn.alpinelinux.org",
		"plugins.gradle.org", "services.gradle.org",
		"rubygems.org", "index.rubygems.org", "api.nuget.org", "packagist.org", "repo.packagist.org",
		"github.com", "api.github.com", "codeload.github.com", "*.githubusercontent.com",
	}
}

// NewBuildRunner returns a BuildRunner whose sandboxes are started by p. Zero fields of
// size get the defaults of builds. Sandboxes of owners reach the hosts that the rules allow,
// through w. They have no network if w is nil or widest is narrower than restricted. It
// returns an error for invalid rules.
func NewBuildRunner(p provider.Provider, size engi.Size, w Egress, widest engi.Network, allow []string) (*BuildRunner, error) {
	policy := engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: allow}
	if all := engi.Networks(); slices.Index(all, widest) < slices.Index(all, policy.Mode) {
		w = nil
	}
	if w != nil {
		if err := w.Check(policy); err != nil {
			return nil, fmt.Errorf("builds.allow: %w", err)
		}
	}
	size = size.Or(engi.Size{
		VCPUs:     float64(runtime.NumCPU()),
		Memory:    4 << 30,
		Disk:      64 << 30,
		Inodes:    10_000_000,
		Processes: 4096,
		OpenFiles: 1 << 16,
	})
	return &BuildRunner{provider: p, size: size, egress: w, policy: policy, open: map[engi.SandboxID]bool{}}, nil
}

// Open boots a sandbox on dir, whose root file system it changes in place. It has
// the network of the host; the sandbox of an owner has the network that the policy allows. Call
// the returned function once to destroy the sandbox. It returns when the sandbox
// is gone.
func (b *BuildRunner) Open(ctx context.Context, dir string, owner engi.Owner) (_ engi.Guest, _ func() error, err error) {
	id := engi.NewSandboxID()
	defer engi.Annotate(&err, "open build sandbox %s", id)
	var u undo.Stack
	defer u.Run()
	b.mu.Lock()
	b.open[id] = true
	b.mu.Unlock()
	u.Add(func() { b.forget(id) })

	network, netns := provider.Host, ""
	if owner != "" {
		network = provider.Loopback
	}
	filtered := owner != "" && b.egress != nil
	if filtered {
		if netns, err = b.egress.Attach(ctx, id); err != nil {
			return nil, nil, err
		}
		u.Add(func() { _ = b.detach(id) }) // the error that caused the cleanup says more
	}
	token := newToken()
	machine, err := b.provider.Start(ctx, provider.Spec{
		ID:       id,
		Root:     dir,
		Writable: true,
		Size:     b.size,
		Hostname: hostname,
		Token:    token,
		Weight:   ordinaryWeight,
		Network:  network,
		Netns:    netns,
	})
	if err != nil {
		return nil, nil, err
	}
	u.Add(func() { _ = machine.Close() }) // the error that caused the cleanup says more
	g, err := guest.Open(ctx, machine.Guest, token)
	if err != nil {
		return nil, nil, err
	}
	u.Add(func() { g.Close() })
	setup := wire.Setup{
		Home:      "/root",
		WorkDir:   "/root",
		Processes: b.size.Processes,
		OpenFiles: b.size.OpenFiles,
	}
	if filtered {
		w, err := b.egress.Open(ctx, id, owner, b.policy)
		if err != nil {
			return nil, nil, err
		}
		setup.Network = wireNetwork(w)
	}
	if err := g.Setup(ctx, setup); err != nil {
		return nil, nil, err
	}
	u.Keep()
	return g, func() error {
		defer b.forget(id)
		g.Close()
		err := machine.Close()
		if filtered {
			err = errors.Join(err, b.detach(id))
		}
		return err
	}, nil
}

// detach removes the network link of a destroyed sandbox.
func (b *BuildRunner) detach(id engi.SandboxID) error {
	ctx, cancel := context.WithTimeout(context.Background(), networkTime)
	defer cancel()
	return b.egress.Detach(ctx, id)
}

func (b *BuildRunner) forget(id engi.SandboxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, id)
}

// owns reports whether id is one of the runner's sandboxes. A nil runner has
// none.
func (b *BuildRunner) owns(id engi.SandboxID) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[id]
}
