// Package memory is a fake provider for tests. Its machines are guest servers in
// this process, reached through pipes, with a directory as their root and the
// programs of the host. It keeps the promises of package provider but neither
// isolates nor limits programs, so it must never be offered to users.
//
// A saved machine keeps only its files: a restored one has no processes, since
// its processes are processes of the host. Mounts are links, and all of them are
// writable. Spec.Netns is ignored: programs use the host's network.
package memory

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A Host runs machines. It outlives providers, as a kernel outlives
// daemons: another provider on the same Host finds the machines of the first. It
// is safe for concurrent use.
type Host struct {
	dir string

	mu         sync.Mutex
	containers map[engi.SandboxID]*container
	starting   map[engi.SandboxID]bool
}

// NewHost returns a host whose machines keep their files below dir.
func NewHost(dir string) *Host {
	return &Host{dir: dir, containers: map[engi.SandboxID]*container{}, starting: map[engi.SandboxID]bool{}}
}

// Kill ends a machine, as if its processes were killed: Done is closed, and its traces
// remain. Unknown IDs are ignored.
func (h *Host) Kill(id engi.SandboxID) { h.end(id, engi.CauseSandboxLost) }

// FillMemory ends a machine as if its memory limit were reached.
func (h *Host) FillMemory(id engi.SandboxID) { h.end(id, engi.CauseMemory) }

// Close destroys every machine.
func (h *Host) Close() error {
	h.mu.Lock()
	ids := slices.Collect(maps.Keys(h.containers))
	h.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, h.remove(id, engi.CauseSandboxLost))
	}
	return errors.Join(errs...)
}

func (h *Host) container(id engi.SandboxID) *container {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.containers[id]
}

func (h *Host) end(id engi.SandboxID, cause engi.Cause) {
	if c := h.container(id); c != nil {
		c.stop(cause)
	}
}

// remove ends a machine and removes its traces.
func (h *Host) remove(id engi.SandboxID, cause engi.Cause) error {
	c := h.container(id)
	if c == nil {
		return nil
	}
	c.stop(cause)
	if c.dir != "" {
		if err := removeAll(c.dir); err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.containers, id)
	return nil
}

// removeAll removes a directory to which killed programs may still be writing.
func removeAll(dir string) (err error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = os.RemoveAll(dir); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// A container is the part of a machine that belongs to the host.
type container struct {
	id     engi.SandboxID
	root   string
	dir    string // directory to remove at the end; empty if the root belongs to the caller
	server *guestd.Server
	gate   pauseGate
	ctx    context.Context // ends with the machine
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines of streams
	done   chan struct{}

	mu    sync.Mutex
	cause engi.Cause // cause of the end; empty while the machine runs
}

// stop ends the machine, and returns when no part of it is running. Only the first cause
// is kept.
func (c *container) stop(cause engi.Cause) {
	c.mu.Lock()
	first := c.cause == ""
	if first {
		c.cause = cause
	}
	c.mu.Unlock()
	if !first {
		<-c.done
		return
	}
	c.gate.open()
	c.server.Close()
	c.cancel()
	c.work.Wait()
	close(c.done)
}

// stream opens a stream to the guest.
func (c *container) stream() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != "" {
		return nil, engi.Errorf(engi.Unavailable, "the machine has ended")
	}
	ours, theirs := net.Pipe()
	c.work.Go(func() { c.server.Serve(c.ctx, theirs) })
	return &pausableConn{Conn: ours, gate: &c.gate, closed: make(chan struct{})}, nil
}

// A Provider starts machines on a Host. It is safe for concurrent use.
type Provider struct{ host *Host }

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Restorer = (*Provider)(nil)
	_ provider.Enforcer = (*Provider)(nil)
	_ provider.Tracer   = (*Provider)(nil)
	_ provider.Prober   = (*Provider)(nil)
)

// New returns a provider on host.
func New(host *Host) *Provider { return &Provider{host: host} }

// Tier returns TierMemory.
func (p *Provider) Tier() engi.Tier { return engi.TierMemory }

// NotEnforced returns the names of all limits.
func (p *Provider) NotEnforced() []string {
	return []string{"vcpus", "memory", "disk", "inodes", "processes", "openfiles"}
}

// Start boots a machine. Its root is a copy of spec.Root or of the files saved in
// spec.Disk, or spec.Root itself if spec.Writable is set.
func (p *Provider) Start(ctx context.Context, spec provider.Spec) (_ provider.Machine, err error) {
	defer engi.Annotate(&err, "start %s", spec.ID)
	return p.start(ctx, spec, spec.Disk)
}

// Restore boots a machine with the files that Checkpoint or Snapshot wrote.
func (p *Provider) Restore(ctx context.Context, spec provider.Spec, dir string) (_ provider.Machine, err error) {
	defer engi.Annotate(&err, "restore %s", spec.ID)
	return p.start(ctx, spec, dir)
}

func (p *Provider) start(ctx context.Context, spec provider.Spec, image string) (provider.Machine, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	from := spec.Root
	if image != "" {
		var err error
		if from, err = savedTree(image); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, engi.Errorf(engi.Expired, "%v", err)
	}
	h := p.host
	if err := h.reserve(spec.ID); err != nil {
		return nil, err
	}
	c, err := h.build(ctx, spec, from)
	h.mu.Lock()
	delete(h.starting, spec.ID)
	if err == nil {
		h.containers[spec.ID] = c
	}
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		if rmErr := h.remove(spec.ID, engi.CauseCancelled); rmErr != nil {
			return nil, rmErr
		}
		return nil, engi.Errorf(engi.Expired, "%v", err)
	}
	return &machine{host: h, container: c}, nil
}

// reserve makes sure that an ID is used only once.
func (h *Host) reserve(id engi.SandboxID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.containers[id] != nil || h.starting[id] {
		return engi.Errorf(engi.Conflict, "the machine exists already")
	}
	h.starting[id] = true
	return nil
}

func (h *Host) build(ctx context.Context, spec provider.Spec, from string) (*container, error) {
	c := &container{id: spec.ID, done: make(chan struct{})}
	root := spec.Root
	if !spec.Writable {
		root = filepath.Join(h.dir, string(spec.ID))
		c.dir = root
		if err := copyTree(from, root); err != nil {
			os.RemoveAll(root)
			return nil, engi.Errorf(engi.Internal, "copy the root: %v", err)
		}
		if err := mount(root, spec.Mounts); err != nil {
			os.RemoveAll(root)
			return nil, engi.Errorf(engi.Internal, "mount: %v", err)
		}
	}
	c.root = root
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.server = guestd.New(guestd.Options{Root: root, Token: spec.Token, InProcess: true})
	return c, nil
}

// Adopt takes over a machine that another provider on the same host started.
func (p *Provider) Adopt(ctx context.Context, id engi.SandboxID) (provider.Machine, error) {
	c := p.host.container(id)
	if c == nil {
		return nil, engi.Errorf(engi.NotFound, "adopt %s: no such machine", id)
	}
	select {
	case <-c.done:
		return nil, engi.Errorf(engi.NotFound, "adopt %s: it does not run any more", id)
	default:
		return &machine{host: p.host, container: c}, nil
	}
}

// Found lists machines by their traces.
func (p *Provider) Found(ctx context.Context) ([]engi.SandboxID, error) {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	return slices.Sorted(maps.Keys(p.host.containers)), nil
}

// Remove destroys a machine that was not adopted.
func (p *Provider) Remove(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "remove %s", id)
	return p.host.remove(id, engi.CauseSandboxLost)
}

// Leaks returns the machines and directories that are not in live.
func (p *Provider) Leaks(ctx context.Context, live []engi.SandboxID) ([]provider.Leak, error) {
	var leaks []provider.Leak
	ids, err := p.Found(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !slices.Contains(live, id) {
			leaks = append(leaks, provider.Leak{Kind: "process", Name: string(id)})
		}
	}
	entries, err := os.ReadDir(p.host.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, engi.Errorf(engi.Internal, "look for directories: %v", err)
	}
	for _, e := range entries {
		if !slices.Contains(live, engi.SandboxID(e.Name())) {
			leaks = append(leaks, provider.Leak{Kind: "directory", Name: filepath.Join(p.host.dir, e.Name())})
		}
	}
	return leaks, nil
}

// Probe boots a machine from root and returns a report.
func (p *Provider) Probe(ctx context.Context, root string) (provider.Report, error) {
	r := provider.Report{Tier: engi.TierMemory, NotEnforced: p.NotEnforced()}
	m, err := p.Start(ctx, provider.Spec{ID: engi.NewSandboxID(), Root: root, Token: "probe",
		Size: engi.Size{VCPUs: 1, Memory: 1, Disk: 1, Inodes: 1, Processes: 1, OpenFiles: 1}})
	check := engi.Check{Name: "boot", OK: err == nil, Detail: "inside this process"}
	if err == nil {
		err = m.Close()
	}
	if err != nil {
		check = engi.Check{Name: "boot", Detail: err.Error(), Fix: engi.RemedyOf(err)}
	}
	r.Works, r.Checks = check.OK, []engi.Check{check}
	return r, nil
}
