package fleet

import (
	"context"
	"runtime"
	"sync"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/provider"
)

// A BuildRunner opens sandboxes for the build steps of templates: they write
// their root file system in place and see the host's network. It is what
// package disk calls a BuildRunner, and safe for concurrent use.
type BuildRunner struct {
	provider provider.Provider
	size     engi.Size

	mu   sync.Mutex
	open map[engi.SandboxID]bool
}

// NewBuildRunner returns a BuildRunner whose sandboxes p starts. Zero fields of
// size mean what a build usually needs.
func NewBuildRunner(p provider.Provider, size engi.Size) *BuildRunner {
	size = size.Or(engi.Size{
		VCPUs:     float64(runtime.NumCPU()),
		Memory:    4 << 30,
		Disk:      64 << 30,
		Inodes:    10_000_000,
		Processes: 4096,
		OpenFiles: 1 << 16,
	})
	return &BuildRunner{provider: p, size: size, open: map[engi.SandboxID]bool{}}
}

// Open boots a sandbox on dir, whose root file system it changes in place, with
// the network of the host. Call the returned function once to destroy the
// sandbox; it returns when the sandbox is gone.
func (b *BuildRunner) Open(ctx context.Context, dir string) (_ engi.Guest, _ func() error, err error) {
	id := engi.NewSandboxID()
	defer engi.Annotate(&err, "open build sandbox %s", id)
	var u undo
	defer u.run()
	b.mu.Lock()
	b.open[id] = true
	b.mu.Unlock()
	u.add(func() { b.forget(id) })

	token := newToken()
	machine, err := b.provider.Start(ctx, provider.Spec{
		ID:       id,
		Root:     dir,
		Writable: true,
		Size:     b.size,
		Hostname: hostname,
		Token:    token,
		Network:  provider.Host,
	})
	if err != nil {
		return nil, nil, err
	}
	u.add(func() { _ = machine.Close() }) // the error that led here says more
	g, err := guest.Open(ctx, machine.Guest, token)
	if err != nil {
		return nil, nil, err
	}
	u.add(func() { g.Close() })
	err = g.Setup(ctx, wire.Setup{
		Home:      "/root",
		WorkDir:   "/root",
		Processes: b.size.Processes,
		OpenFiles: b.size.OpenFiles,
	})
	if err != nil {
		return nil, nil, err
	}
	u.keep()
	return g, func() error {
		defer b.forget(id)
		g.Close()
		return machine.Close()
	}, nil
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
