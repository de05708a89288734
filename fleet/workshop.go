package fleet

import (
	"context"
	"crypto/rand"
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

// NewWorkshop returns a workshop whose sandboxes p starts. Zero fields of
// size get what a build usually needs.
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

// Open boots a sandbox on dir: its root file system is written in place, and the
// node's network is its own. The function destroys the sandbox and waits
// until it is gone; call it once.
func (w *BuildRunner) Open(ctx context.Context, dir string) (_ engi.Guest, _ func() error, err error) {
	id := engi.NewSandboxID()
	defer engi.Annotate(&err, "open workshop %s", id)
	var u undo
	defer u.run()
	w.mu.Lock()
	w.open[id] = true
	w.mu.Unlock()
	u.add(func() { w.forget(id) })

	token := rand.Text() + rand.Text()
	machine, err := w.provider.Start(ctx, provider.Spec{
		ID:       id,
		Root:     dir,
		Writable: true,
		Size:     w.size,
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
		Processes: w.size.Processes,
		OpenFiles: w.size.OpenFiles,
	})
	if err != nil {
		return nil, nil, err
	}
	u.keep()
	return g, func() error {
		defer w.forget(id)
		g.Close()
		return machine.Close()
	}, nil
}

func (w *BuildRunner) forget(id engi.SandboxID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, id)
}

// owns reports whether id is one of the workshop's sandboxes. A nil workshop
// has none.
func (w *BuildRunner) owns(id engi.SandboxID) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open[id]
}
