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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// A machine is a running gVisor sandbox.
type machine struct {
	p          *Provider
	id         engi.SandboxID
	d          machineDir
	group      *cgroup.Group // nil without control groups
	sandbox    *process
	gofer      *process
	listener   *net.UnixListener
	console    *console // output of the machine; nil for an adopted machine
	done       chan struct{}
	end        engi.Cause    // cause of the end; valid once done is closed
	accepts    chan struct{} // holds a token while Guest accepts
	resizes    chan struct{} // holds a token while Resize runs
	watched    sync.WaitGroup
	cpuTotal   cpuTotal // processor time of a machine without a control group
	writesHost bool     // the machine can write to files of the host

	firstConn net.Conn // the connection that Start waited for; owned by the holder of the accepts token

	waking sync.Mutex // held while the guest's configuration is replaced

	mu          sync.Mutex // guards the fields up to paused; never held during I/O or while waiting
	closing     bool       // Close has been called: the cause of the end is cancelled
	outOfMemory bool       // the machine was killed because its memory was full
	size        engi.Size
	saving      bool // the machine is being saved
	paused      bool

	eraseMu sync.Mutex // held while traces are removed
	erased  bool       // the traces have been removed; guarded by eraseMu
}

var (
	_ provider.Machine      = (*machine)(nil)
	_ provider.Pauser       = (*machine)(nil)
	_ provider.Checkpointer = (*machine)(nil)
	_ provider.Snapshotter  = (*machine)(nil)
	_ provider.DiskSaver    = (*machine)(nil)
	_ provider.Resizer      = (*machine)(nil)
	_ provider.Weigher      = (*machine)(nil)
	_ provider.Meter        = (*machine)(nil)
	_ provider.Diagnoser    = (*machine)(nil)
)

// attach opens the processes of a machine and starts watching them.
func (p *Provider) attach(id engi.SandboxID, d machineDir, run processRecord, group *cgroup.Group, rec record) (*machine, error) {
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
		p: p, id: id, d: d, group: group, sandbox: sandbox, gofer: gofer, size: rec.Size, writesHost: rec.WritesHost,
		done: make(chan struct{}), accepts: make(chan struct{}, 1), resizes: make(chan struct{}, 1),
	}
	m.watchMemory()
	go m.watch()
	if gofer == nil {
		m.sandbox.kill() // the sandbox can no longer access files
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
	var run processRecord
	if err := errors.Join(d.load("machine.json", &rec), d.load("run.json", &run)); err != nil {
		return nil, engi.Errorf(engi.NotFound, "it has not booted: %v", err)
	}
	if run.HostBoot != hostBoot() {
		return nil, engi.Errorf(engi.NotFound, "it ran before the host was rebooted")
	}
	var group *cgroup.Group
	if p.groups != nil {
		group = p.groups.Group(string(id))
	}
	// The previous owner may have died before it set the processor limit.
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
	if err := m.resumeAfterCrash(); err != nil {
		m.p.log.Warn("a machine that was being saved may not continue", "sandbox", id, "error", err)
	}
	return m, nil
}

// resumeAfterCrash makes a machine continue if its owner died while saving it.
func (m *machine) resumeAfterCrash() error {
	if err := m.wake(); err != nil {
		return err
	}
	if _, err := os.Stat(m.d.path(stoppedName)); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := m.call(ctx, methodResume, struct{}{}); err != nil {
		return err
	}
	return os.Remove(m.d.path(stoppedName))
}

// watch waits for the end of the machine. When one of its processes ends, it
// kills the other, which is useless alone.
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
		m.gofer.kill() // the file server would end by itself, but later
	}
	<-served
	if m.gofer != nil {
		m.gofer.close()
	}
	m.end = m.cause()
	if m.end == engi.CauseSandboxLost {
		m.p.log.Warn("a machine ended unexpectedly", "sandbox", m.id, "console", m.console.String(), "panic", readTail(m.d.path("panic.log"), 4<<10))
	}
	m.sandbox.close()
	close(m.done)
	m.watched.Wait()
}

// cause returns the cause of the machine's end.
func (m *machine) cause() engi.Cause {
	killed := m.group != nil && m.group.MemoryKills() > 0
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.outOfMemory || killed:
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

// Guest returns a new stream to the guest program.
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
	if conn := m.firstConn; conn != nil {
		m.firstConn = nil
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
	// A guest that was quiesced but never saved waits until it is woken. A caller that
	// calls Guest has given up the save.
	nudge := time.AfterFunc(wakeDelay, func() {
		m.mu.Lock()
		saving := m.saving
		m.mu.Unlock()
		if saving {
			return
		}
		if err := m.wake(); err != nil {
			m.p.log.Warn("a guest cannot be woken", "sandbox", m.id, "error", err)
		}
	})
	defer nudge.Stop()
	for {
		conn, err := m.listener.Accept()
		switch {
		case err == nil && !alive(conn):
			conn.Close() // the guest has closed the connection, for example to quiesce
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, engi.Errorf(engi.Expired, "the guest does not answer: %v", ctx.Err())
		default:
			return nil, errEnded()
		}
	}
}

// wakeDelay is longer than the time that a guest takes to dial if it is not quiesced.
const wakeDelay = 400 * time.Millisecond

// alive reports whether the other end of conn is open. It leaves received data
// unread.
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

// wake makes a quiesced guest continue.
func (m *machine) wake() error {
	m.waking.Lock()
	defer m.waking.Unlock()
	if err := m.d.reconfigure(); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := m.d.writeResume(); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// kill kills the machine's processes.
func (m *machine) kill() {
	m.sandbox.kill()
	if m.gofer != nil {
		m.gofer.kill()
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
	case <-time.After(stopTimeout):
		return engi.Errorf(engi.Internal, "its processes do not exit")
	}
	m.eraseMu.Lock()
	defer m.eraseMu.Unlock()
	if m.erased {
		return nil
	}
	if m.listener != nil {
		m.listener.Close()
	}
	m.console.close()
	m.accepts <- struct{}{} // wait until Guest has returned
	if m.firstConn != nil {
		m.firstConn.Close()
		m.firstConn = nil
	}
	<-m.accepts
	if err := m.p.erase(m.id); err != nil {
		return err
	}
	m.erased = true
	m.p.forget(m.id)
	return nil
}

// Pause pauses the machine.
func (m *machine) Pause(ctx context.Context) (err error) {
	defer engi.Annotate(&err, "pause %s", m.id)
	return m.setPaused(ctx, true)
}

// Resume makes a paused machine continue.
func (m *machine) Resume(ctx context.Context) (err error) {
	defer engi.Annotate(&err, "resume %s", m.id)
	return m.setPaused(ctx, false)
}

// setPaused stops the sandbox's kernel from running programs, or lets it
// continue. Control groups could freeze the processes on the host instead, but
// the kernel sometimes mistakes system calls that are interrupted in this way for an
// attack and exits.
func (m *machine) setPaused(ctx context.Context, on bool) error {
	if m.hasEnded() {
		return errEnded()
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
		err = m.call(ctx, method, struct{}{})
	} else {
		err = m.setPausedByCommand(ctx, on)
	}
	if err == nil {
		m.mu.Lock()
		m.paused = on
		m.mu.Unlock()
	}
	return err
}

// setPausedByCommand is setPaused with commands of upstream's runsc, which fail
// if the machine is already in the wanted state.
func (m *machine) setPausedByCommand(ctx context.Context, on bool) error {
	verb, was := "resume", "running"
	if on {
		verb, was = "pause", "paused"
	}
	out, err := m.runscCommand(ctx, verb)
	if err != nil && !strings.Contains(out, "in state "+was) {
		return err
	}
	return nil
}

// runscCommand runs a command of runsc on the machine and returns its output.
func (m *machine) runscCommand(ctx context.Context, verb string, args ...string) (string, error) {
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

// SetWeight changes the machine's processor weight.
func (m *machine) SetWeight(weight int) (err error) {
	defer engi.Annotate(&err, "weigh %s", m.id)
	switch {
	case weight < 1 || weight > 100:
		return engi.Errorf(engi.Invalid, "a weight of %d; it can be 1 to 100", weight)
	case m.hasEnded():
		return errEnded()
	case m.group == nil:
		return engi.Errorf(engi.Unsupported, "this host gives engi no control groups")
	}
	err = m.group.Limit(cgroup.Limits{Weight: weight})
	if errors.Is(err, fs.ErrNotExist) {
		return errEnded()
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// Resize puts a new size in force. Concurrent calls take turns.
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
		return engi.Errorf(engi.Invalid, "%d bytes of memory are not enough", next.Memory).
			WithRemedy("leave at least %d MiB", minMemory>>20)
	}
	if m.group != nil {
		if err := m.limit(ctx, old, next); err != nil {
			return err
		}
	}
	if next.Memory != old.Memory && strings.Contains(m.p.features(), "resize") {
		// A machine started by an earlier version keeps the memory size that programs see.
		if err := engi.Ignore(m.call(ctx, methodMemory, next.Memory), engi.Unsupported); err != nil {
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
// that programs have just freed may not have reached the host yet, so limit
// retries a few times if the memory in use exceeds the new limit.
func (m *machine) limit(ctx context.Context, old, next engi.Size) error {
	// Each write costs time in the kernel: set only the limits that change.
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

// Usage returns the resource usage of the machine.
func (m *machine) Usage(ctx context.Context) (_ engi.Usage, err error) {
	defer engi.Annotate(&err, "usage of %s", m.id)
	if m.group == nil {
		t, err := m.hostUsage()
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

// Diagnose returns a description of the machine's state for people.
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
		u, _ := m.group.Usage()
		fmt.Fprintf(&b, "group: processor %v, memory %d bytes, peak %d, killed for memory %d\n", u.CPU, u.Memory, u.Peak, m.group.MemoryKills())
	}
	if text := m.console.String(); text != "" {
		fmt.Fprintf(&b, "console:\n%s\n", text)
	}
	if text := readTail(m.d.path("panic.log"), 8<<10); text != "" {
		fmt.Fprintf(&b, "panic of the kernel:\n%s\n", text)
	}
	return b.String()
}
