package memory

import (
	"context"
	"net"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A machine is an owner's handle of a container.
type machine struct {
	host      *Host
	container *container
}

var (
	_ provider.Machine      = (*machine)(nil)
	_ provider.Pauser       = (*machine)(nil)
	_ provider.Checkpointer = (*machine)(nil)
	_ provider.Snapshotter  = (*machine)(nil)
	_ provider.DiskSaver    = (*machine)(nil)
	_ provider.Diagnoser    = (*machine)(nil)
)

func (m *machine) ID() engi.SandboxID    { return m.container.id }
func (m *machine) Done() <-chan struct{} { return m.container.done }

func (m *machine) Guest(ctx context.Context) (_ net.Conn, err error) {
	defer engi.Annotate(&err, "reach the guest of %s", m.container.id)
	if err := ctx.Err(); err != nil {
		return nil, engi.Errorf(engi.Expired, "%v", err)
	}
	return m.container.stream()
}

func (m *machine) End() engi.Cause {
	select {
	case <-m.container.done:
		return m.container.cause
	default:
		return ""
	}
}

func (m *machine) Close() (err error) {
	defer engi.Annotate(&err, "destroy %s", m.container.id)
	if m.host.container(m.container.id) != m.container {
		m.container.stop(engi.CauseCancelled) // the machine's traces are already gone
		return nil
	}
	return m.host.remove(m.container.id, engi.CauseCancelled)
}

// Pause blocks the streams to the guest.
func (m *machine) Pause(ctx context.Context) error {
	select {
	case <-m.container.done:
		return engi.Errorf(engi.Unavailable, "pause %s: the machine has ended", m.container.id)
	default:
		m.container.gate.shut()
		return nil
	}
}

func (m *machine) Resume(ctx context.Context) error {
	select {
	case <-m.container.done:
		return engi.Errorf(engi.Unavailable, "resume %s: the machine has ended", m.container.id)
	default:
		m.container.gate.open()
		return nil
	}
}

// Checkpoint writes the files of the machine to dir and ends it.
func (m *machine) Checkpoint(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "checkpoint %s", m.container.id)
	if err := m.save(dir); err != nil {
		return err
	}
	return m.Close()
}

// Snapshot writes the files of the machine to dir.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "snapshot %s", m.container.id)
	return m.save(dir)
}

// SaveDisk writes the files of the machine to dir, like Snapshot, since there is no other state.
func (m *machine) SaveDisk(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "save the disk of %s", m.container.id)
	return m.save(dir)
}

func (m *machine) save(dir string) error {
	select {
	case <-m.container.done:
		return engi.Errorf(engi.Unavailable, "the machine has ended")
	default:
		return saveTree(m.container.root, dir)
	}
}

func (m *machine) Diagnose(ctx context.Context) string {
	if end := m.End(); end != "" {
		return "ended: " + string(end)
	}
	return "running inside this process"
}

// A pauseGate blocks traffic while it is shut. The zero value is open.
type pauseGate struct {
	mu   sync.Mutex
	wait chan struct{} // closed when the gate opens; nil while it is open
}

func (g *pauseGate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == nil {
		g.wait = make(chan struct{})
	}
}

func (g *pauseGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

func (g *pauseGate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wait != nil
}

// pass waits until the gate is open or stop is closed.
func (g *pauseGate) pass(stop <-chan struct{}) {
	for {
		g.mu.Lock()
		wait := g.wait
		g.mu.Unlock()
		if wait == nil {
			return
		}
		select {
		case <-wait:
		case <-stop:
			return
		}
	}
}

// socketBuffer is the number of bytes that the host can write while the guest does not read.
const socketBuffer = 64 << 10

// pausableConn is the host's end of a stream.
type pausableConn struct {
	net.Conn
	gate   *pauseGate
	once   sync.Once
	closed chan struct{}

	mu     sync.Mutex
	kept   []byte        // bytes written while the gate was shut; guarded by mu
	passed chan struct{} // closed when kept is empty again; nil while kept is empty; guarded by mu
}

func (c *pausableConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate.pass(c.closed)
	return n, err
}

func (c *pausableConn) Write(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if c.passed == nil && !c.gate.isShut() {
			c.mu.Unlock()
			return c.Conn.Write(b)
		}
		if len(c.kept)+len(b) <= socketBuffer {
			c.kept = append(c.kept, b...)
			if c.passed == nil {
				c.passed = make(chan struct{})
				go c.passKept()
			}
			c.mu.Unlock()
			return len(b), nil
		}
		wait := c.passed
		c.mu.Unlock()
		if wait == nil { // the data exceeds the buffer
			c.gate.pass(c.closed)
			return c.Conn.Write(b)
		}
		select {
		case <-wait:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
}

// passKept writes the kept bytes once the gate is open. It ends with the stream.
func (c *pausableConn) passKept() {
	c.gate.pass(c.closed)
	for {
		c.mu.Lock()
		b := c.kept
		c.kept = nil
		if len(b) == 0 {
			close(c.passed)
			c.passed = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if _, err := c.Conn.Write(b); err != nil {
			continue // the next write returns the error
		}
	}
}

func (c *pausableConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	err := c.Conn.Close()
	c.mu.Lock()
	wait := c.passed
	c.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return err
}
