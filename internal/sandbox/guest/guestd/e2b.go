package guestd

import (
	"context"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/envd"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// e2bSandbox adapts the server to package envd.
type e2bSandbox struct {
	*Server

	mu   sync.Mutex
	at   time.Time // time of the last call of Metrics
	used time.Duration
}

var _ envd.Sandbox = (*e2bSandbox)(nil)

func (d *e2bSandbox) Start(c wire.Command) (envd.Process, error) {
	p, err := d.spawn(c)
	if err != nil {
		return nil, err
	}
	return envdProcess{d.Server, p}, nil
}

func (d *e2bSandbox) Find(pid int, tag string) (envd.Process, error) {
	if tag != "" {
		p, err := d.find(tag)
		if err != nil {
			return nil, err
		}
		return envdProcess{d.Server, p}, nil
	}
	d.Server.mu.Lock()
	defer d.Server.mu.Unlock()
	var best *proc
	for _, p := range d.procs.byID {
		if p.child.PID == pid && (best == nil || preferred(p, best)) {
			best = p
		}
	}
	if best == nil {
		return nil, engi.Errorf(engi.NotFound, "process with pid %d not found", pid)
	}
	return envdProcess{d.Server, best}, nil
}

func (d *e2bSandbox) Processes() []envd.Config {
	d.Server.mu.Lock()
	defer d.Server.mu.Unlock()
	var all []envd.Config
	for _, p := range d.procs.byID {
		if p.live() {
			all = append(all, envd.Config{PID: p.child.PID, Tag: p.tag, Args: p.args, Envs: p.env, Dir: p.dir})
		}
	}
	return all
}

func (d *e2bSandbox) Env() map[string]string {
	env := maps.Clone(d.settings().Setup.Env)
	if env == nil {
		env = map[string]string{}
	}
	return env
}

func (d *e2bSandbox) User(name string) (string, tree.Owner, error) { return d.home(name) }

func (d *e2bSandbox) Resolve(path, home string) string { return d.resolve(path, home) }
func (d *e2bSandbox) Inside(path string) string        { return d.inside(path) }

func (d *e2bSandbox) Describe(path string) (wire.FileInfo, error) { return d.stat(path) }

func (d *e2bSandbox) Entries(path string, depth int) ([]wire.FileInfo, error) {
	return d.listEntries(path, depth)
}

// Metrics returns the current use of resources. Its CPU share covers the time since the last call.
func (d *e2bSandbox) Metrics() envd.Metrics {
	mem, now := readMemory(), time.Now()
	u := d.measure(mem)
	m := envd.Metrics{Usage: u, CPUs: runtime.NumCPU(), MemoryTotal: mem.total}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && now.After(d.at) && u.CPU > d.used {
		m.CPUPercent = 100 * float64(u.CPU-d.used) / float64(now.Sub(d.at))
	}
	d.at, d.used = now, u.CPU
	return m
}

// envdProcess adapts a process to package envd.
type envdProcess struct {
	s *Server
	p *proc
}

func (p envdProcess) PID() int                    { return p.p.child.PID }
func (p envdProcess) Terminal() bool              { return p.p.tty }
func (p envdProcess) Log() *child.Log             { return p.p.log }
func (p envdProcess) Ended() <-chan struct{}      { return p.p.ended }
func (p envdProcess) Exit() engi.Exit             { return p.p.exit }
func (p envdProcess) CloseInput()                 { p.p.closeInput() }
func (p envdProcess) Resize(size wire.Size) error { return p.p.resize(size) }

func (p envdProcess) Write(ctx context.Context, data []byte) error { return p.p.write(ctx, data) }

func (p envdProcess) Signal(name string) error {
	sig, err := child.ParseSignal(name)
	if err != nil {
		return err
	}
	return p.s.table.Signal(p.p.child, sig)
}
