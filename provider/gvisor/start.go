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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
	"github.com/engi-dev/engi/provider/gvisor/cgroup"
)

const (
	bootTime = time.Minute      // a machine that has not booted by then never will
	stopTime = 10 * time.Second // killed processes are gone by then
)

func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

// boot starts a machine anew, or from a checkpoint in image if that is not
// empty. Whatever it made is taken back if it fails.
func (p *Provider) boot(ctx context.Context, spec provider.Spec, image string) (_ *machine, err error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(spec.Mounts, func(m provider.Mount) bool { return !present(spec.Root, m) }) &&
		!strings.Contains(p.features(), "mounts") {
		return nil, engi.Errorf(engi.Unsupported, "this runsc mounts only where the root has a place").
			WithRemedy("use the runsc that comes with engi")
	}
	select {
	case p.boots <- struct{}{}:
		defer func() { <-p.boots }()
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "waited for other machines to boot: %v", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return nil, engi.Errorf(engi.Expired, "%v", err)
	}
	guest, err := p.linkable()
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
	if err := d.make(spec, guest); err != nil {
		if engi.KindOf(err) == engi.Conflict {
			return nil, err
		}
		os.RemoveAll(string(d))
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	b := &booting{p: p, d: d, spec: spec, image: image}
	m, err := b.run(ctx)
	if err != nil {
		b.undo()
		return nil, err
	}
	return m, nil
}

// booting is a machine that is not there yet. It belongs to one goroutine.
type booting struct {
	p        *Provider
	d        machineDir
	spec     provider.Spec
	image    string
	group    *cgroup.Group // nil without control groups
	listener *net.UnixListener
	console  *console
	exited   chan error // gets the end of runsc
	machine  *machine   // nil before its processes are known
	timeout  <-chan time.Time
}

func (b *booting) run(ctx context.Context) (*machine, error) {
	timeout := time.NewTimer(bootTime)
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
			return nil, engi.Errorf(engi.Internal, "make a control group: %v", err)
		}
		// The processor limit follows after the boot, which would otherwise
		// wait for its share.
		limits := limitsOf(b.spec.Size)
		limits.VCPUs = 0
		if err := b.group.Limit(limits); err != nil {
			return nil, engi.Errorf(engi.Internal, "limit: %v", err)
		}
	}
	if b.console, err = newConsole(); err != nil {
		return nil, engi.Errorf(engi.Internal, "make a console: %v", err)
	}
	if err := b.start(); err != nil {
		return nil, engi.Errorf(engi.Internal, "runsc: %v", err).
			WithRemedy("check that runsc is there and may be executed: engi doctor")
	}

	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := b.listener.Accept()
		if err != nil {
			conn = nil
		}
		accepted <- conn
	}()
	conn, err := b.await(ctx, accepted)
	if err != nil {
		b.listener.Close()
		if c := <-accepted; c != nil {
			c.Close()
		}
		return nil, err
	}
	m := b.machine
	m.spare = conn
	if b.group != nil {
		if err := b.group.Limit(cgroup.Limits{VCPUs: b.spec.Size.VCPUs}); err != nil {
			return nil, engi.Errorf(engi.Internal, "limit processors: %v", err)
		}
	}
	return m, nil
}

// start starts runsc, which ends when the sandbox's program runs.
func (b *booting) start() error {
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
	cmd.Stdout, cmd.Stderr = b.console.file, b.console.file
	var err error
	if b.group != nil {
		err = b.group.Start(cmd)
	} else {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	b.exited = make(chan error, 1)
	go func() { b.exited <- cmd.Wait() }()
	return nil
}

// runsc returns a command. Nothing that this process has open or in its
// environment gets through to sandboxes.
func (p *Provider) runsc(args ...string) *exec.Cmd {
	closeOnExec()
	cmd := exec.Command(p.opt.Runsc, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// closeOnExec keeps descriptors that we inherited to ourselves.
var closeOnExec = sync.OnceFunc(func() {
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
})

// await returns the guest's first connection.
func (b *booting) await(ctx context.Context, accepted chan net.Conn) (net.Conn, error) {
	select {
	case err := <-b.exited:
		b.exited = nil
		if err != nil {
			return nil, b.failed(fmt.Sprintf("runsc: %v", err))
		}
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "given up while it booted: %v", ctx.Err())
	case <-b.timeout:
		return nil, b.failed("it does not boot")
	}
	if err := b.adopt(); err != nil {
		return nil, err
	}
	select {
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
		return nil, engi.Errorf(engi.Invalid, "the machine ended while it booted; it said: %s", b.said()).
			WithRemedy("the template cannot boot: build it again")
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "given up while it booted: %v", ctx.Err())
	case <-b.timeout:
		return nil, b.failed("it does not boot")
	}
}

// adopt takes note of the processes that runsc has left.
func (b *booting) adopt() error {
	run, err := b.d.booted(b.spec.ID)
	if err == nil {
		err = b.d.save("run.json", run)
	}
	if err != nil {
		return b.failed(err.Error())
	}
	m, err := b.p.attach(b.spec.ID, b.d, run, b.group, recordOf(b.spec))
	if err != nil {
		return b.failed(fmt.Sprintf("the machine ended at once: %v", err))
	}
	m.listener, m.console = b.listener, b.console
	b.machine = m
	return nil
}

// failed is the error for a boot that runsc gave up.
func (b *booting) failed(what string) error {
	if b.group != nil && b.group.MemoryKills() > 0 {
		return engi.Errorf(engi.Invalid, "the machine needs more memory than its %d MiB to boot", b.spec.Size.Memory>>20).
			WithRemedy("give the sandbox more memory")
	}
	return engi.Errorf(engi.Internal, "%s; it said: %s", what, b.said()).
		WithRemedy("run engi doctor; if all is well there, report this")
}

// said is the end of what the machine printed.
func (b *booting) said() string {
	text := b.console.String() + tail(b.d.path("panic.log"), 2<<10)
	if text = strings.TrimSpace(text); text == "" {
		return "nothing"
	}
	return text
}

// undo takes back a boot that failed.
func (b *booting) undo() {
	if b.listener != nil {
		b.listener.Close()
	}
	if b.machine != nil {
		if err := b.machine.Close(); err == nil {
			return
		}
	}
	if b.group != nil {
		// Kills everything in it, runsc included.
		b.group.Remove(deadline(stopTime))
	} else if err := b.p.killAll(b.spec.ID, deadline(stopTime)); err != nil {
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

// booted reads from runsc's own records which processes it has left running.
func (d machineDir) booted(id engi.SandboxID) (running, error) {
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
		return running{}, fmt.Errorf("read runsc's record: %v", err)
	}
	run := running{HostBoot: hostBoot(), Sandbox: procRef{PID: state.Sandbox.PID}, Gofer: procRef{PID: state.Gofer}}
	for _, ref := range []*procRef{&run.Sandbox, &run.Gofer} {
		if ref.Start, err = startTime(ref.PID); err != nil {
			return running{}, fmt.Errorf("process %d: %v", ref.PID, err)
		}
	}
	return run, nil
}

// limitsOf translates a size to what the host enforces. The number of tasks
// is a wall far behind the limit inside: each process there may take several
// here, and a sandbox's kernel that gets none breaks.
func limitsOf(s engi.Size) cgroup.Limits {
	return cgroup.Limits{VCPUs: s.VCPUs, Memory: s.Memory, Tasks: 1024 + 16*s.Processes}
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}
