package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/priority"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

const (
	bootTimeout = time.Minute
	stopTimeout = 10 * time.Second // maximum time until killed processes are gone
)

func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

// boot starts a machine, from the checkpoint in image unless image is empty. After an
// error it cleans up.
func (p *Provider) boot(ctx context.Context, spec provider.Spec, image string) (_ *machine, err error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(spec.Mounts, func(m provider.Mount) bool { return !hasMountPoint(spec.Root, m) }) &&
		!strings.Contains(p.features(), "mounts") {
		return nil, engi.Errorf(engi.Unsupported, "this runsc needs a mount point in the root for each mount").
			WithRemedy("use the runsc that comes with engi")
	}
	select {
	case p.boots <- struct{}{}:
		defer func() { <-p.boots }()
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "wait for other machines to boot: %v", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return nil, engi.Errorf(engi.Expired, "%v", err)
	}
	guest, err := p.guestBinary()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}

	if err := p.reserve(spec.ID); err != nil {
		return nil, err
	}
	m, err := p.build(ctx, spec, image, guest)
	if err != nil {
		p.forget(spec.ID)
		return nil, err
	}
	p.own(m)
	return m, nil
}

func (p *Provider) build(ctx context.Context, spec provider.Spec, image, guest string) (*machine, error) {
	d := p.dir(spec.ID)
	if err := p.create(d, spec, guest); err != nil {
		if engi.Is(err, engi.Conflict) {
			return nil, err
		}
		os.RemoveAll(string(d))
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	b := &bootAttempt{p: p, d: d, spec: spec, image: image}
	m, err := b.run(ctx)
	if err != nil {
		b.undo()
		return nil, err
	}
	return m, nil
}

// bootAttempt is the boot of a machine. It is owned by one goroutine.
type bootAttempt struct {
	p        *Provider
	d        machineDir
	spec     provider.Spec
	image    string
	group    *cgroup.Group // nil without control groups
	listener *net.UnixListener
	console  *console
	exited   chan error // receives the result of runsc; nil once the result was received
	machine  *machine   // nil until its processes are known
	timeout  <-chan time.Time
	wanted   <-chan struct{} // closed when a caller waits for the machine; nil afterwards
}

func (b *bootAttempt) run(ctx context.Context) (*machine, error) {
	timeout := time.NewTimer(bootTimeout)
	defer timeout.Stop()
	b.timeout = timeout.C
	var err error
	if err = b.d.configure(b.spec, b.image != ""); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if b.listener, err = b.d.listen(); err != nil {
		return nil, engi.Errorf(engi.Internal, "listen: %v", err)
	}
	if b.p.groups != nil {
		b.group = b.p.groups.Group(string(b.spec.ID))
		if err := b.group.Create(); err != nil {
			return nil, engi.Errorf(engi.Internal, "create a control group: %v", err)
		}
		// The processor limit is set after the boot, because it would slow down the boot.
		limits := limitsOf(b.spec.Size)
		limits.VCPUs = 0
		limits.Weight = b.spec.Weight
		select {
		case <-b.spec.Wanted:
			limits.Weight = b.spec.WantedWeight
		default:
			b.wanted = b.spec.Wanted
		}
		if err := b.group.Limit(limits); err != nil {
			return nil, engi.Errorf(engi.Internal, "limit: %v", err)
		}
	}
	if b.console, err = newConsole(); err != nil {
		return nil, engi.Errorf(engi.Internal, "create a console: %v", err)
	}
	if err := b.start(); err != nil {
		return nil, engi.Errorf(engi.Internal, "runsc: %v", err).
			WithRemedy("run 'engi doctor' to check runsc")
	}

	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := b.listener.Accept()
		if err != nil {
			conn = nil
		}
		accepted <- conn
	}()
	conn, err := b.awaitGuest(ctx, accepted)
	if err != nil {
		b.listener.Close()
		if c := <-accepted; c != nil {
			c.Close()
		}
		return nil, err
	}
	m := b.machine
	m.firstConn = conn
	if b.group != nil {
		if err := b.group.Limit(cgroup.Limits{VCPUs: b.spec.Size.VCPUs}); err != nil {
			return nil, engi.Errorf(engi.Internal, "limit processors: %v", err)
		}
	}
	return m, nil
}

// start starts runsc, which exits when the guest program has been started.
func (b *bootAttempt) start() error {
	args := b.p.flags(b.d, recordOf(b.spec))
	switch {
	case b.image != "":
		args = append(args, "restore", "--detach", "--image-path", b.image)
	case b.spec.Disk != "":
		args = append(args, "run", "--detach", "--fs-restore-image-path", b.spec.Disk)
	default:
		args = append(args, "run", "--detach")
	}
	args = append(args, "--bundle", b.d.path("bundle"), string(b.spec.ID))
	cmd := b.p.runsc(args...)
	if _, err := os.Stat(b.d.path(mappedName)); err == nil {
		b.p.withIDs(cmd)
	}
	cmd.Stdout, cmd.Stderr = b.console.file, b.console.file
	var err error
	if b.group != nil {
		err = b.group.Start(cmd)
	} else {
		err = priority.Start(cmd)
	}
	if err != nil {
		return err
	}
	b.exited = make(chan error, 1)
	go func() { b.exited <- cmd.Wait() }()
	return nil
}

// runsc returns a command of runsc. It inherits neither open files nor the
// environment of this process.
func (p *Provider) runsc(args ...string) *exec.Cmd {
	closeOnExec()
	cmd := exec.Command(p.opt.Runsc, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// closeOnExec keeps inherited descriptors from being inherited further.
var closeOnExec = sync.OnceFunc(func() {
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
})

// awaitGuest waits for the boot and returns the guest's first connection.
func (b *bootAttempt) awaitGuest(ctx context.Context, accepted chan net.Conn) (net.Conn, error) {
	for b.exited != nil {
		select {
		case err := <-b.exited:
			b.exited = nil
			if err != nil {
				return nil, b.bootError(fmt.Sprintf("runsc: %v", err))
			}
		case <-b.wanted:
			if err := b.hurry(); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, engi.Errorf(engi.Expired, "cancelled during the boot: %v", ctx.Err())
		case <-b.timeout:
			return nil, b.bootError("the boot timed out")
		}
	}
	if err := b.attach(); err != nil {
		return nil, err
	}
	for {
		conn, err := b.awaitConnection(ctx, accepted)
		if conn != nil || err != nil {
			return conn, err
		}
	}
}

// hurry gives the machine the weight for boots with a waiting caller.
func (b *bootAttempt) hurry() error {
	b.wanted = nil
	if err := b.group.Limit(cgroup.Limits{Weight: b.spec.WantedWeight}); err != nil {
		return engi.Errorf(engi.Internal, "weigh: %v", err)
	}
	return nil
}

// awaitConnection waits for the guest's first connection. It returns nil without an error after
// an event that does not end the boot.
func (b *bootAttempt) awaitConnection(ctx context.Context, accepted chan net.Conn) (net.Conn, error) {
	select {
	case <-b.wanted:
		return nil, b.hurry()
	case conn := <-accepted:
		accepted <- nil
		if conn == nil {
			return nil, engi.Errorf(engi.Internal, "the channel is closed")
		}
		return conn, nil
	case <-b.machine.Done():
		if b.machine.End() == engi.CauseMemory {
			return nil, engi.Errorf(engi.Invalid, "the machine needs more memory than its %d MiB to boot", b.spec.Size.Memory>>20).
				WithRemedy("give the sandbox more memory")
		}
		return nil, engi.Errorf(engi.Invalid, "the machine ended during the boot; output: %s", b.output()).
			WithRemedy("the template cannot boot: build it again")
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "cancelled during the boot: %v", ctx.Err())
	case <-b.timeout:
		return nil, b.bootError("the boot timed out")
	}
}

// attach records the processes that runsc has started.
func (b *bootAttempt) attach() error {
	run, err := b.d.readProcesses(b.spec.ID)
	if err == nil {
		err = b.d.save("run.json", run)
	}
	if err != nil {
		return b.bootError(err.Error())
	}
	m, err := b.p.attach(b.spec.ID, b.d, run, b.group, recordOf(b.spec))
	if err != nil {
		return b.bootError(fmt.Sprintf("the machine ended at once: %v", err))
	}
	m.listener, m.console = b.listener, b.console
	b.machine = m
	return nil
}

// bootError returns the error for a failed boot.
func (b *bootAttempt) bootError(what string) error {
	if b.group != nil && b.group.MemoryKills() > 0 {
		return engi.Errorf(engi.Invalid, "the machine needs more memory than its %d MiB to boot", b.spec.Size.Memory>>20).
			WithRemedy("give the sandbox more memory")
	}
	return engi.Errorf(engi.Internal, "%s; output: %s", what, b.output()).
		WithRemedy("run 'engi doctor'; if that finds nothing, report this")
}

// output returns the end of the machine's console and panic log.
func (b *bootAttempt) output() string {
	text := b.console.String() + readTail(b.d.path("panic.log"), 2<<10)
	if text = strings.TrimSpace(text); text == "" {
		return "none"
	}
	return text
}

// undo cleans up after a failed boot.
func (b *bootAttempt) undo() {
	if b.listener != nil {
		b.listener.Close()
	}
	if b.machine != nil {
		if err := b.machine.Close(); err == nil {
			return
		}
	}
	if b.group != nil {
		// Remove kills all processes in the group, including runsc.
		b.group.Remove(deadline(stopTimeout))
	} else if err := b.p.killAll(b.spec.ID, deadline(stopTimeout)); err != nil {
		b.p.log.Error("processes of a failed start remain", "sandbox", b.spec.ID, "error", err)
	}
	if b.exited != nil {
		<-b.exited
	}
	if b.console != nil {
		b.console.close()
	}
	if err := b.p.erase(b.spec.ID); err != nil {
		b.p.log.Error("traces of a failed start remain", "sandbox", b.spec.ID, "error", err)
	}
}

// readProcesses reads the processes of a machine from runsc's state.
func (d machineDir) readProcesses(id engi.SandboxID) (processRecord, error) {
	var state struct {
		Gofer   int `json:"goferPid"`
		Sandbox struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	raw, err := os.ReadFile(d.path("root", fmt.Sprintf("%s_sandbox:%s.state", id, id)))
	if err == nil {
		err = json.Unmarshal(raw, &state)
	}
	if err != nil {
		return processRecord{}, fmt.Errorf("read runsc's state: %v", err)
	}
	run := processRecord{HostBoot: hostBoot(), Sandbox: procRef{PID: state.Sandbox.PID}, Gofer: procRef{PID: state.Gofer}}
	for _, ref := range []*procRef{&run.Sandbox, &run.Gofer} {
		if ref.Start, err = startTime(ref.PID); err != nil {
			return processRecord{}, fmt.Errorf("process %d: %v", ref.PID, err)
		}
	}
	return run, nil
}

// limitsOf converts a size to limits on the host. The limit of tasks is far
// above the one in the sandbox: each process there may need several tasks on the host, and a
// sandbox's kernel breaks if it gets none.
func limitsOf(s engi.Size) cgroup.Limits {
	return cgroup.Limits{VCPUs: s.VCPUs, Memory: s.Memory, Tasks: 1024 + 16*s.Processes}
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}
