package guestd

import (
	"context"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/envd"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/wire"
)

// dialect shows the server to package envd.
type dialect struct {
	*Server

	mu   sync.Mutex
	at   time.Time // of the last metrics
	used time.Duration
}

var _ envd.Sandbox = (*dialect)(nil)

func (d *dialect) Start(c wire.Command) (envd.Process, error) {
	p, err := d.spawn(c)
	if err != nil {
		return nil, err
	}
	return spoken{d.Server, p}, nil
}

func (d *dialect) Find(pid int, tag string) (envd.Process, error) {
	if tag != "" {
		p, err := d.find(tag)
		if err != nil {
			return nil, err
		}
		return spoken{d.Server, p}, nil
	}
	d.Server.mu.Lock()
	defer d.Server.mu.Unlock()
	var best *proc
	for _, p := range d.procs.byID {
		if p.child.PID == pid && (best == nil || better(p, best)) {
			best = p
		}
	}
	if best == nil {
		return nil, engi.Errorf(engi.NotFound, "process with pid %d not found", pid)
	}
	return spoken{d.Server, best}, nil
}

func (d *dialect) Processes() []envd.Config {
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

func (d *dialect) User(name string) (string, tree.Owner, error) {
	a := d.account()
	if name == "" || name == a.User || d.o.Twin {
		return a.Home, a.owner, nil
	}
	u, home, err := d.lookUp(name)
	if err != nil {
		return "", tree.Owner{}, err
	}
	return d.path(home), tree.Owner{UID: u.UID, GID: u.GID}, nil
}

func (d *dialect) Env() map[string]string {
	env := maps.Clone(d.account().Setup.Env)
	if env == nil {
		env = map[string]string{}
	}
	return env
}

func (d *dialect) Resolve(path, home string) string { return d.resolve(path, home) }
func (d *dialect) Inside(path string) string        { return d.inside(path) }

func (d *dialect) Describe(path string) (wire.FileInfo, error) {
	fi, err := tree.Stat(path)
	if err != nil {
		return fi, err
	}
	return d.described(fi), nil
}

func (d *dialect) Entries(path string, depth int) ([]wire.FileInfo, error) {
	return d.entries(path, depth)
}

// Metrics measures processor use since the last question.
func (d *dialect) Metrics() envd.Metrics {
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

// spoken is a process in the dialect.
type spoken struct {
	s *Server
	p *proc
}

func (p spoken) PID() int                    { return p.p.child.PID }
func (p spoken) Terminal() bool              { return p.p.tty }
func (p spoken) Log() *child.Log             { return p.p.log }
func (p spoken) Ended() <-chan struct{}      { return p.p.ended }
func (p spoken) Exit() engi.Exit             { return p.p.exit }
func (p spoken) CloseInput()                 { p.p.closeInput() }
func (p spoken) Resize(size wire.Size) error { return p.p.resize(size) }

func (p spoken) Write(ctx context.Context, data []byte) error { return p.p.write(ctx, data) }

func (p spoken) Signal(name string) error {
	sig, err := child.ParseSignal(name)
	if err != nil {
		return err
	}
	return p.s.table.Signal(p.p.child, sig)
}
