package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
	"github.com/engi-dev/engi/provider/gvisor/cgroup"
)

// A machine is a running gVisor sandbox.
type machine struct {
	p        *Provider
	id       engi.SandboxID
	d        machineDir
	group    *cgroup.Group // nil without control groups
	sandbox  *process
	gofer    *process
	listener *net.UnixListener
	console  *console // nil for an adopted machine
	done     chan struct{}
	end      engi.Cause    // valid after done
	accepts  chan struct{} // holds a token while somebody accepts
	resizes  chan struct{} // holds a token while somebody resizes
	watched  sync.WaitGroup
	ledger   ledger // of a machine without a control group
	shares   bool   // it can write to files of the host

	spare net.Conn // the connection Start waited for; taken by the holder of the token

	waking sync.Mutex // held while the guest's configuration is replaced

	mu      sync.Mutex // guards what follows; never held during I/O or while waiting
	closing bool       // Close has been called: the end is cancelled
	full    bool       // we killed it for its memory
	size    engi.Size
	saving  bool // somebody saves it
	paused  bool

	erase sync.Mutex // held while traces are removed
	clean bool       // guarded by erase
}

var (
	_ provider.Machine      = (*machine)(nil)
	_ provider.Pauser       = (*machine)(nil)
	_ provider.Checkpointer = (*machine)(nil)
	_ provider.Snapshotter  = (*machine)(nil)
	_ provider.DiskSaver    = (*machine)(nil)
	_ provider.Resizer      = (*machine)(nil)
	_ provider.Meter        = (*machine)(nil)
	_ provider.Diagnoser    = (*machine)(nil)
)

// attach takes hold of the processes of a machine and starts to watch them.
func (p *Provider) attach(id engi.SandboxID, d machineDir, run running, group *cgroup.Group, rec record) (*machine, error) {
	sandbox, err := openProcess(run.Sandbox)
	if err != nil {
		return nil, err
	}
	gofer, err := openProcess(run.Gofer)
	if err != nil && !errors.Is(err, errGone) {
		sandbox.close()
		return nil, err
	}
	m := &machine{
		p: p, id: id, d: d, group: group, sandbox: sandbox, gofer: gofer, size: rec.Size, shares: rec.Shares,
		done: make(chan struct{}), accepts: make(chan struct{}, 1), resizes: make(chan struct{}, 1),
	}
	m.watchMemory()
	go m.watch()
	if gofer == nil {
		m.sandbox.kill() // it cannot reach a file any more
	}
	return m, nil
}

// Adopt takes over a machine that another process started.
func (p *Provider) Adopt(ctx context.Context, id engi.SandboxID) (_ provider.Machine, err error) {
	defer engi.Annotate(&err, "adopt %s", id)
	if _, err := engi.ParseSandboxID(string(id)); err != nil {
		return nil, engi.Errorf(engi.NotFound, "no such machine")
	}
	if err := p.reserve(id); err != nil {
		return nil, err
	}
	m, err := p.adopt(id)
	if err != nil {
		p.forget(id)
		return nil, err
	}
	p.own(m)
	return m, nil
}

func (p *Provider) adopt(id engi.SandboxID) (*machine, error) {
	d := p.dir(id)
	var rec record
	var run running
	if err := errors.Join(d.load("machine.json", &rec), d.load("run.json", &run)); err != nil {
		return nil, engi.Errorf(engi.NotFound, "it has not booted: %v", err)
	}
	if run.HostBoot != hostBoot() {
		return nil, engi.Errorf(engi.NotFound, "it ran before the host was started")
	}
	var group *cgroup.Group
	if p.groups != nil {
		group = p.groups.Group(string(id))
	}
	// Its first owner may have died before the processor limit was set.
	if group != nil {
		if err := group.Limit(cgroup.Limits{VCPUs: rec.Size.VCPUs}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, engi.Errorf(engi.Internal, "limit: %v", err)
		}
	}
	listener, err := d.listen()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "listen: %v", err)
	}
	m, err := p.attach(id, d, run, group, rec)
	if err != nil {
		listener.Close()
		if errors.Is(err, errGone) {
			return nil, engi.Errorf(engi.NotFound, "it does not run any more")
		}
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	m.listener = listener
	if err := m.rouse(); err != nil {
		m.p.log.Warn("a machine that was being saved may sleep on", "sandbox", id, "error", err)
	}
	return m, nil
}

// rouse makes a machine go on whose owner died while it saved it.
func (m *machine) rouse() error {
	if err := m.wake(); err != nil {
		return err
	}
	if _, err := os.Stat(m.d.path(stillName)); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := m.ask(ctx, methodResume, struct{}{}); err != nil {
		return err
	}
	return os.Remove(m.d.path(stillName))
}

// watch waits for the end of the machine: of either process, since neither is
// of use without the other.
func (m *machine) watch() {
	served := make(chan struct{})
	go func() {
		defer close(served)
		if m.gofer != nil {
			m.gofer.wait()
			m.sandbox.kill()
		}
	}()
	m.sandbox.wait()
	if m.gofer != nil {
		m.gofer.kill() // it would end by itself, later
	}
	<-served
	if m.gofer != nil {
		m.gofer.close()
	}
	m.end = m.cause()
	if m.end == engi.CauseSandboxLost {
		m.p.log.Warn("a machine ended by itself", "sandbox", m.id, "console", m.console.String(), "last words", tail(m.d.path("panic.log"), 4<<10))
	}
	m.sandbox.close()
	close(m.done)
	m.watched.Wait()
}

// cause tells why the machine has ended.
func (m *machine) cause() engi.Cause {
	killed := m.group != nil && m.group.MemoryKills() > 0
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.full || killed:
		return engi.CauseMemory
	case m.closing:
		return engi.CauseCancelled
	}
	return engi.CauseSandboxLost
}

func errEnded() error { return engi.Errorf(engi.Unavailable, "the machine has ended") }

func (m *machine) hasEnded() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *machine) ID() engi.SandboxID    { return m.id }
func (m *machine) Done() <-chan struct{} { return m.done }

func (m *machine) End() engi.Cause {
	if !m.hasEnded() {
		return ""
	}
	return m.end
}

// Guest returns a fresh stream to the guest program.
func (m *machine) Guest(ctx context.Context) (_ net.Conn, err error) {
	defer engi.Annotate(&err, "reach the guest of %s", m.id)
	if m.hasEnded() {
		return nil, errEnded()
	}
	select {
	case m.accepts <- struct{}{}:
		defer func() { <-m.accepts }()
	case <-m.done:
		return nil, errEnded()
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "the guest does not answer: %v", ctx.Err())
	}
	if conn := m.spare; conn != nil {
		m.spare = nil
		if alive(conn) {
			return conn, nil
		}
		conn.Close()
	}
	stop := make(chan struct{})
	stopped := make(chan struct{})
	m.listener.SetDeadline(time.Time{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
		case <-m.done:
		case <-stop:
			return
		}
		m.listener.SetDeadline(time.Unix(1, 0))
	}()
	defer func() { close(stop); <-stopped }()
	// A guest that was quiesced for a save that never came sleeps until it is
	// woken, and whoever wants to speak to it has given the save up.
	nudge := time.AfterFunc(dozeTime, func() {
		m.mu.Lock()
		saving := m.saving
		m.mu.Unlock()
		if saving {
			return
		}
		if err := m.wake(); err != nil {
			m.p.log.Warn("cannot wake a guest", "sandbox", m.id, "error", err)
		}
	})
	defer nudge.Stop()
	for {
		conn, err := m.listener.Accept()
		switch {
		case err == nil && !alive(conn):
			conn.Close() // opened and left, as by a guest that was quiesced
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, engi.Errorf(engi.Expired, "the guest does not answer: %v", ctx.Err())
		default:
			return nil, errEnded()
		}
	}
}

// dozeTime is longer than a guest that is awake takes to dial.
const dozeTime = 400 * time.Millisecond

// alive reports whether the other end of conn is open, without taking what it
// has said.
func alive(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	ok := true
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = n > 0 || err == unix.EAGAIN
	})
	return ok && err == nil
}

// wake lets a guest that was quiesced go on.
func (m *machine) wake() error {
	m.waking.Lock()
	defer m.waking.Unlock()
	if err := m.d.reconfigure(); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := m.d.resume(); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// kill ends the processes, frozen or not.
func (m *machine) kill() {
	m.sandbox.kill()
	if m.gofer != nil {
		m.gofer.kill()
	}
	if m.group != nil && m.group.CanFreeze() && m.p.groups.Version() == cgroup.V1 {
		// Frozen processes of version 1 do not even die.
		if frozen, _ := m.group.Frozen(); frozen {
			m.group.Thaw(deadline(stopTime))
		}
	}
}

// Close destroys the machine.
func (m *machine) Close() (err error) {
	defer engi.Annotate(&err, "destroy %s", m.id)
	m.mu.Lock()
	m.closing = true
	m.mu.Unlock()
	m.kill()
	select {
	case <-m.done:
	case <-time.After(stopTime):
		return engi.Errorf(engi.Internal, "its processes do not end")
	}
	m.erase.Lock()
	defer m.erase.Unlock()
	if m.clean {
		return nil
	}
	if m.listener != nil {
		m.listener.Close()
	}
	m.console.close()
	m.accepts <- struct{}{} // nobody accepts any more
	if m.spare != nil {
		m.spare.Close()
		m.spare = nil
	}
	<-m.accepts
	if err := m.p.erase(m.id); err != nil {
		return err
	}
	m.clean = true
	m.p.forget(m.id)
	return nil
}

// Pause freezes the machine.
func (m *machine) Pause(ctx context.Context) (err error) {
	defer engi.Annotate(&err, "pause %s", m.id)
	return m.freeze(ctx, true)
}

// Resume lets it go on.
func (m *machine) Resume(ctx context.Context) (err error) {
	defer engi.Annotate(&err, "resume %s", m.id)
	return m.freeze(ctx, false)
}

// freeze stops the sandbox's kernel from running programs, or lets it go on.
// Control groups could stop the processes of the host instead, but a kernel
// whose system calls are broken off that way now and then takes it for an
// attack and ends.
func (m *machine) freeze(ctx context.Context, on bool) error {
	if m.hasEnded() {
		return errEnded()
	}
	if !on && m.group != nil && m.group.CanFreeze() {
		if frozen, err := m.group.Frozen(); err == nil && frozen { // by an older version
			if err := m.group.Thaw(deadline(stopTime)); err != nil {
				return engi.Errorf(engi.Internal, "%v", err)
			}
			return nil
		}
	}
	m.mu.Lock()
	saving := m.saving
	m.mu.Unlock()
	if saving {
		return engi.Errorf(engi.Conflict, "it is being saved")
	}
	var err error
	if strings.Contains(m.p.features(), "pause") {
		method := methodResume
		if on {
			method = methodPause
		}
		err = m.ask(ctx, method, struct{}{})
	} else {
		err = m.stopKernel(ctx, on)
	}
	if err == nil {
		m.mu.Lock()
		m.paused = on
		m.mu.Unlock()
	}
	return err
}

// stopKernel does what freeze does with the commands of a runsc that takes
// being told twice amiss, and remembers for it.
func (m *machine) stopKernel(ctx context.Context, on bool) error {
	verb, was := "resume", "running"
	if on {
		verb, was = "pause", "paused"
	}
	out, err := m.command(ctx, verb)
	if err != nil && !strings.Contains(out, "in state "+was) {
		return err
	}
	return nil
}

// command runs a command of runsc on the machine and returns what it printed.
func (m *machine) command(ctx context.Context, verb string, args ...string) (string, error) {
	var rec record
	if err := m.d.load("machine.json", &rec); err != nil {
		return "", engi.Errorf(engi.Unavailable, "the machine has ended: %v", err)
	}
	all := append(m.p.flags(m.d, rec), verb)
	cmd := m.p.runsc(append(append(all, args...), string(m.id))...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", engi.Errorf(engi.Internal, "runsc: %v", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var err error
	select {
	case err = <-exited:
	case <-ctx.Done():
		cmd.Process.Kill()
		<-exited
		return "", engi.Errorf(engi.Expired, "%v", ctx.Err())
	}
	switch {
	case err == nil:
		return out.String(), nil
	case m.hasEnded():
		return out.String(), errEnded()
	}
	return out.String(), engi.Errorf(engi.Internal, "runsc %s: %v: %s", verb, err, strings.TrimSpace(out.String()))
}

// Resize puts a new size in force. Calls at the same time take turns.
func (m *machine) Resize(ctx context.Context, size engi.Size) (err error) {
	defer engi.Annotate(&err, "resize %s", m.id)
	select {
	case m.resizes <- struct{}{}:
		defer func() { <-m.resizes }()
	case <-m.done:
		return errEnded()
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for another resize: %v", ctx.Err())
	}
	if m.hasEnded() {
		return errEnded()
	}
	m.mu.Lock()
	old := m.size
	m.mu.Unlock()
	next := old
	next.VCPUs, next.Memory, next.Processes = size.VCPUs, size.Memory, size.Processes
	next = next.Or(old)
	if err := next.Validate(); err != nil {
		return err
	}
	if next.Memory < minMemory {
		return engi.Errorf(engi.Invalid, "%d bytes of memory are too few", next.Memory).
			WithRemedy("leave at least %d MiB", minMemory>>20)
	}
	if m.group != nil {
		if err := m.limit(ctx, old, next); err != nil {
			return err
		}
	}
	var rec record
	if err := m.d.load("machine.json", &rec); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	rec.Size = next
	if err := m.d.save("machine.json", rec); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	m.mu.Lock()
	m.size = next
	m.mu.Unlock()
	return nil
}

// limit changes the group's limits from those of old to those of next. Memory
// that programs freed a moment ago may not have reached the host yet, so it
// tries a few times to go below what is in use.
func (m *machine) limit(ctx context.Context, old, next engi.Size) error {
	// Each write costs the kernel something: set only what changes.
	limits := limitsOf(next)
	if next.VCPUs == old.VCPUs {
		limits.VCPUs = 0
	}
	if next.Memory == old.Memory {
		limits.Memory = 0
	}
	if next.Processes == old.Processes {
		limits.Tasks = 0
	}
	for attempt := 0; ; attempt++ {
		err := m.group.Limit(limits)
		switch {
		case err == nil:
			return nil
		case m.hasEnded():
			return errEnded()
		case !errors.Is(err, cgroup.ErrInUse):
			return engi.Errorf(engi.Internal, "%v", err)
		case attempt == 5 || ctx.Err() != nil:
			return engi.Errorf(engi.Conflict, "it uses more than %d MiB of memory", next.Memory>>20).
				WithRemedy("end programs inside first")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-m.done:
		case <-ctx.Done():
		}
	}
}

// Usage tells what the machine has used and uses.
func (m *machine) Usage(ctx context.Context) (_ engi.Usage, err error) {
	defer engi.Annotate(&err, "usage of %s", m.id)
	if m.group == nil {
		t, err := m.tally()
		if err != nil {
			return engi.Usage{}, errEnded()
		}
		return engi.Usage{CPU: t.cpu, Memory: t.memory}, nil
	}
	u, err := m.group.Usage()
	if errors.Is(err, fs.ErrNotExist) {
		return engi.Usage{}, errEnded()
	}
	if err != nil {
		return engi.Usage{}, engi.Errorf(engi.Internal, "%v", err)
	}
	return engi.Usage{CPU: u.CPU, Memory: u.Memory, MemoryPeak: u.Peak}, nil
}

// Diagnose describes the machine's state for people.
func (m *machine) Diagnose(ctx context.Context) string {
	var b strings.Builder
	if m.hasEnded() {
		fmt.Fprintf(&b, "ended: %s\n", m.end)
	} else {
		fmt.Fprintln(&b, "running")
	}
	for name, proc := range map[string]*process{"kernel": m.sandbox, "files": m.gofer} {
		if proc == nil {
			fmt.Fprintf(&b, "%s: gone\n", name)
			continue
		}
		status, err := readStatus(proc.ref.PID)
		if err != nil {
			fmt.Fprintf(&b, "%s: process %d is gone\n", name, proc.ref.PID)
			continue
		}
		fmt.Fprintf(&b, "%s: process %d, state %s, %s threads, memory %s\n", name, proc.ref.PID, status["State"], status["Threads"], status["VmRSS"])
	}
	if m.group != nil {
		frozen, _ := m.group.Frozen()
		u, _ := m.group.Usage()
		fmt.Fprintf(&b, "group: frozen %v, processor %v, memory %d bytes, peak %d, killed for memory %d\n", frozen, u.CPU, u.Memory, u.Peak, m.group.MemoryKills())
	}
	if text := m.console.String(); text != "" {
		fmt.Fprintf(&b, "console:\n%s\n", text)
	}
	if text := tail(m.d.path("panic.log"), 8<<10); text != "" {
		fmt.Fprintf(&b, "last words of the kernel:\n%s\n", text)
	}
	return b.String()
}
