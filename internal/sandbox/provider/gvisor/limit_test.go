package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A sandbox is a booted machine and its guest.
type sandbox struct {
	t testing.TB
	m provider.Machine
	c *guest.Client
}

// boot starts a machine; change may modify its spec.
func boot(t testing.TB, change func(*provider.Spec)) *sandbox {
	t.Helper()
	need(t)
	root, mounts := newRoot(t)
	spec := provider.Spec{
		ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t",
		Size: engi.Size{VCPUs: 2, Memory: 96 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 60, OpenFiles: 300},
	}
	if change != nil {
		change(&spec)
	}
	m, err := newProvider(t, t.TempDir()).Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := guest.Open(t.Context(), m.Guest, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Setup(t.Context(), wire.Setup{Processes: spec.Size.Processes, OpenFiles: spec.Size.OpenFiles}); err != nil {
		t.Fatal(err)
	}
	return &sandbox{t, m, c}
}

// sh runs a shell command in the sandbox as root.
func (sb *sandbox) sh(script string) (string, engi.Exit) {
	sb.t.Helper()
	ctx, cancel := context.WithTimeout(sb.t.Context(), 2*time.Minute)
	defer cancel()
	proc, err := sb.c.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", script}, Dir: "/", User: "root"})
	if err != nil {
		sb.t.Fatal(err)
	}
	var out bytes.Buffer
	for chunk, err := range proc.Output(ctx, 0) {
		if err != nil {
			sb.t.Fatalf("%s: %v\n%s", script, err, sb.m.(provider.Diagnoser).Diagnose(ctx))
		}
		out.Write(chunk.Data)
	}
	exit, err := proc.Wait(ctx)
	if err != nil {
		sb.t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), exit
}

// want runs a shell command and compares its output.
func (sb *sandbox) want(script, want string) {
	sb.t.Helper()
	if got, exit := sb.sh(script); got != want {
		sb.t.Errorf("%s: got %q (%+v), want %q", script, got, exit, want)
	}
}

func TestDiskLimit(t *testing.T) {
	b := boot(t, nil)
	out, exit := b.sh("dd if=/dev/zero of=/workspace/big bs=1M count=100 2>&1; rm /workspace/big")
	if !strings.Contains(out, "No space left") {
		t.Errorf("100 MiB fit on 64: %+v %s", exit, out)
	}
	b.want("dd if=/dev/zero of=/tmp/some bs=1M count=20 2>/dev/null; stat -c %s /tmp/some", "20971520")
}

// TestDiskIsNotMemory writes more than the memory limit: files on disk do not count
// as memory, however fast they are written.
func TestDiskIsNotMemory(t *testing.T) {
	b := boot(t, func(s *provider.Spec) { s.Size.Disk = 500 << 20 })
	b.want("for i in 1 2 3; do dd if=/dev/zero of=/workspace/$i bs=1M count=150 2>/dev/null || echo failed; done; ls /workspace | wc -l", "3")
}

// TestMemoryEndsOneProgram lets programs use more memory than there is, in small
// pieces, at once, together and for a shell. No other program may end.
func TestMemoryEndsOneProgram(t *testing.T) {
	b := boot(t, func(s *provider.Spec) { s.Size.Memory = 128 << 20 })
	b.want("sleep 1000 > /dev/null 2>&1 & echo $! > /workspace/pid", "")
	const bit = "exec tail /dev/zero" // tail keeps the last lines, and the first line never ends
	for range 3 {
		for _, script := range []string{bit, "exec dd if=/dev/zero of=/dev/null bs=300M count=1", "sh -c '" + bit + "'; exit $?"} {
			if out, exit := b.sh(script); exit.Cause != engi.CauseMemory {
				t.Errorf("%s: %+v %s", script, exit, out)
			}
		}
	}
	if out, exit := b.sh("for i in 1 2 3; do (" + bit + ") & done; wait; echo over"); !strings.HasSuffix(out, "over") || exit.Cause != engi.CauseExited {
		t.Errorf("three at once: %+v %s", exit, out)
	}
	b.want("kill -0 $(cat /workspace/pid) && echo lives", "lives")
	if _, exit := b.sh("kill -9 $$"); exit.Cause != engi.CauseExited || exit.Signal != "KILL" {
		t.Errorf("a program that was killed by a program: %+v", exit)
	}
}

// TestResizeIsSeen changes the memory of a running machine, as for a warm
// one.
func TestResizeIsSeen(t *testing.T) {
	b := boot(t, nil)
	for _, mib := range []int64{256, 128} {
		if err := provider.Resize(t.Context(), b.m, engi.Size{Memory: mib << 20}); err != nil {
			t.Fatal(err)
		}
		b.want("grep -o 'MemTotal:.*[0-9]' /proc/meminfo | tr -d ' '", fmt.Sprintf("MemTotal:%d", mib<<10))
		b.want("cat /sys/fs/cgroup/memory/memory.limit_in_bytes", fmt.Sprint(mib<<20))
	}
	if out, exit := b.sh("dd if=/dev/zero of=/dev/null bs=200M count=1; exit $?"); exit.Cause != engi.CauseMemory {
		t.Errorf("more than it has now: %+v %s", exit, out)
	}
}

func TestInodeLimit(t *testing.T) {
	b := boot(t, nil)
	if out, _ := b.sh("i=0; while test $i -lt 3000; do echo > /workspace/$i || break; i=$((i+1)); done 2>/dev/null; echo $i"); out >= "3000" && len(out) >= 4 {
		t.Errorf("%s files fit into 2000 inodes", out)
	}
	b.want("rm -r /workspace/*; echo ok > /workspace/x && cat /workspace/x", "ok")
}

func TestProcessLimit(t *testing.T) {
	b := boot(t, nil)
	b.sh("i=0; while test $i -lt 500; do sleep 1000 & i=$((i+1)); done 2>/dev/null; true")
	b.sh("b() { b | b & }; b 2>/dev/null; sleep 1")
	// The machine works, even if it cannot start another process.
	if _, err := b.c.Stat(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	procs, err := b.c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(len(procs), "processes are known")
}

func TestProcessorLimit(t *testing.T) {
	b := boot(t, func(s *provider.Spec) { s.Size.VCPUs = 0.5 })
	meter := b.m.(provider.Meter)
	if _, err := b.c.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", "while :; do :; done"}, Dir: "/", User: "root"}); err != nil {
		t.Fatal(err)
	}
	// used waits until the machine has used at least the given processor time.
	used := func(least time.Duration) time.Duration {
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			u, err := meter.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if u.CPU >= least {
				return u.CPU
			}
			if time.Now().After(end) {
				t.Fatalf("it has used %v, want %v", u.CPU, least)
			}
		}
	}
	used(100 * time.Millisecond) // the program runs
	begin := time.Now()
	before := used(0)
	after := used(before + 750*time.Millisecond)
	if share := float64(after-before) / float64(time.Since(begin)); share > 0.7 {
		t.Errorf("half a processor gave %.2f", share)
	}
}

// TestCapabilities checks each thread of a machine's processes on the host: the thread can
// neither use the rights of root, nor gain them by executing a program.
func TestCapabilities(t *testing.T) {
	need(t)
	p := newProvider(t, t.TempDir())
	root, mounts := newRoot(t)
	m, err := p.Start(t.Context(), provider.Spec{ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t",
		Size: engi.Size{VCPUs: 2, Memory: 96 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 60, OpenFiles: 300}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := guest.Open(t.Context(), m.Guest, "t")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The capabilities that both need for files of any owner, and the kernel for its programs
	// (SYS_PTRACE), in a user namespace where there is one.
	const allowed = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE
	for what, pid := range p.Processes(m) {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil || len(threads) < 2 {
			t.Fatalf("the %s has %d threads, %v", what, len(threads), err)
		}
		for _, thread := range threads {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			status := map[string]string{}
			for line := range strings.Lines(string(raw)) {
				key, value, _ := strings.Cut(line, ":")
				status[key] = strings.TrimSpace(value)
			}
			for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
				caps, err := strconv.ParseUint(status[set], 16, 64)
				if err != nil || caps&^allowed != 0 {
					t.Errorf("a thread of the %s has %s %s (%v)", what, set, status[set], err)
				}
			}
			if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
				t.Errorf("a thread of the %s has NoNewPrivs %q, Seccomp %q", what, status["NoNewPrivs"], status["Seccomp"])
			}
		}
	}
}

// TestWeight runs programs in two machines that want more than all processors. The first
// becomes wanted while it boots.
func TestWeight(t *testing.T) {
	need(t)
	p := newProvider(t, t.TempDir())
	var meters [2]provider.Meter
	for i := range meters {
		root, mounts := newRoot(t)
		wanted := make(chan struct{})
		time.AfterFunc(20*time.Millisecond, func() { close(wanted) })
		m, err := p.Start(t.Context(), provider.Spec{ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t",
			Size:   engi.Size{VCPUs: float64(runtime.NumCPU()), Memory: 96 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 60, OpenFiles: 300},
			Weight: 1, Wanted: wanted, WantedWeight: 100})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		if i == 1 {
			if err := m.(provider.Weigher).SetWeight(5); engi.Is(err, engi.Unsupported) && os.Getenv("ENGI_TEST_REQUIRE") == "" {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		c, err := guest.Open(t.Context(), m.Guest, "t")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for range runtime.NumCPU() {
			if _, err := c.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", "while :; do :; done"}, Dir: "/", User: "root"}); err != nil {
				t.Fatal(err)
			}
		}
		meters[i] = m.(provider.Meter)
	}
	used := func() (all [2]time.Duration) {
		for i, m := range meters {
			u, err := m.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all[i] = u.CPU
		}
		return all
	}
	// Both run, and have had the processors for a while.
	before := used()
	for end := time.Now().Add(time.Minute); before[0] == 0 || before[1] == 0; before = used() {
		if time.Sleep(20 * time.Millisecond); time.Now().After(end) {
			t.Fatalf("they have used %v", before)
		}
	}
	after := used()
	for end := time.Now().Add(2 * time.Minute); after[0]+after[1]-before[0]-before[1] < 4*time.Second; after = used() {
		if time.Sleep(20 * time.Millisecond); time.Now().After(end) {
			t.Fatalf("they have used %v, before %v", after, before)
		}
	}
	if heavy, light := after[0]-before[0], after[1]-before[1]; heavy < 2*light || light == 0 {
		t.Errorf("the machines of weights 100 and 5 had the processors for %v and %v", heavy, light)
	}
}

// TestGuestUsage writes to disk and to tmpfs, and compares the guest's usage.
func TestGuestUsage(t *testing.T) {
	b := boot(t, nil)
	usage := func() wire.Usage {
		u, err := b.c.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := usage()
	if before.DiskTotal != 64<<20 || before.MemoryCache <= 0 || before.MemoryCache > before.Memory {
		t.Errorf("after the boot: %+v", before)
	}
	const disk, memory = 20 << 20, 10 << 20
	b.sh("dd if=/dev/zero of=/workspace/file bs=1M count=20; dd if=/dev/zero of=/dev/shm/file bs=1M count=10")
	after := usage()
	if grown := after.DiskUsed - before.DiskUsed; grown < disk || grown > disk+1<<20 {
		t.Errorf("a file of %d bytes takes %d bytes of the disk", disk, grown)
	}
	if grown := after.MemoryCache - before.MemoryCache; grown < memory || grown > memory+1<<20 {
		t.Errorf("a file of %d bytes on tmpfs takes %d bytes of the cache", memory, grown)
	}
}

func TestConsoleIsBounded(t *testing.T) {
	b := boot(t, nil)
	before, err := b.m.(provider.Meter).Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.sh("head -c 50000000 /dev/zero > /proc/1/fd/1; head -c 50000000 /dev/zero > /proc/1/fd/2")
	after, err := b.m.(provider.Meter).Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.Memory - before.Memory; grown > 20<<20 {
		t.Errorf("printing took %d bytes of memory", grown)
	}
	b.want("echo alive", "alive")
}

func TestInside(t *testing.T) {
	b := boot(t, func(s *provider.Spec) { s.Hostname = "some-name" })
	b.want("hostname", "some-name")
	b.want("{ echo x > /.engi/x; echo x > /usr/x; } 2>/dev/null; ls /.engi", "engi-guest\nguest.json\nresume\nsock")
	b.want("grep CapEff /proc/self/status | grep -o '[0-9a-f]*$'", "00000000a80405fb")
	b.want("grep MemTotal /proc/meminfo | grep -o '[0-9]*'", "98304")
	b.want("ulimit -n", "300")
	b.want("mount -t tmpfs none /mnt 2>/dev/null; echo $?", "32")
	b.want("cat /sys/fs/cgroup/pids/pids.max | head -1", "max")
	b.want("ls /etc", "group\npasswd")
	if out, _ := b.sh("ls /proc | grep -c '^[0-9]'"); len(out) != 1 {
		t.Errorf("%s processes are seen inside", out)
	}
	b.want("df --output=itotal / | grep -o '[0-9]*'", "2000")
	b.want("ls -d /dev/kvm /dev/vda /dev/mem 2>/dev/null | wc -l", "0")
	b.want("cat /proc/net/dev | grep -c eth", "0")
}

// TestEmptyTmp boots from a root whose /tmp is empty, where the sandbox's kernel
// would mount a tmpfs by default.
func TestEmptyTmp(t *testing.T) {
	b := boot(t, func(s *provider.Spec) {
		if err := os.Remove(filepath.Join(s.Root, "tmp", ".keep")); err != nil {
			t.Fatal(err)
		}
	})
	b.want("df -k --output=size /tmp | tail -n 1 | grep -o '[0-9]*'", "49152") // half of the memory, in KiB
	b.want("stat -c %a /tmp", "1777")
}

func TestRootIsNeverWritten(t *testing.T) {
	var root string
	b := boot(t, func(s *provider.Spec) { root = s.Root })
	b.sh("echo x > /etc/passwd; echo x > /new; mkdir -p /a/b/c; rm -r /workspace")
	if raw, err := os.ReadFile(filepath.Join(root, "etc/passwd")); err != nil || len(raw) < 10 {
		t.Errorf("the root was written: %q, %v", raw, err)
	}
	for name, want := range map[string]bool{"new": false, "a": false, "workspace": true} {
		if _, err := os.Lstat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s in the root: %v", name, err)
		}
	}
}

func TestWritable(t *testing.T) {
	var root string
	b := boot(t, func(s *provider.Spec) { root, s.Writable = s.Root, true })
	b.want("echo x > /new; chown 1000:1000 /new; mkdir /a; ln -s x /a/link; echo x > /tmp/gone; stat -c %u /new", "1000")
	if err := b.m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "new")); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(filepath.Join(root, "a/link")); err != nil || to != "x" {
		t.Errorf("a link became %q, %v", to, err)
	}
	if names, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(names) != 1 {
		t.Errorf("/tmp went into the root: %v, %v", names, err)
	}
}

// TestTemporaryFilesOfWritableMachines: temporary files use the disk of the host only with a limit,
// unless the machine may use the host's network and is the node's own.
func TestTemporaryFilesOfWritableMachines(t *testing.T) {
	for network, want := range map[provider.HostNetwork]string{provider.Loopback: "tmpfs", provider.Host: "9p"} {
		b := boot(t, func(s *provider.Spec) { s.Writable, s.Network = true, network })
		b.want("while read -r d m type rest; do [ $m = /tmp ] && echo $type; done < /proc/mounts", want)
	}
}

func TestHostNetwork(t *testing.T) {
	b := boot(t, func(s *provider.Spec) { s.Network = provider.Host })
	for _, file := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		text, err := os.ReadFile(file)
		if err != nil {
			lacks(t, err.Error())
		}
		b.want("cat "+file, strings.TrimSpace(string(text)))
	}
}

func TestProbe(t *testing.T) {
	need(t)
	root, _ := newRoot(t)
	p := newProvider(t, t.TempDir())
	r, err := p.Probe(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		t.Logf("%-15s %v %s %s", c.Name, c.OK, c.Detail, c.Fix)
		if !c.OK && c.Fix == "" {
			t.Errorf("%s is not OK and nothing is said about it", c.Name)
		}
	}
	if !r.Works {
		t.Error("it does not work")
	}
	r, err = p.Probe(t.Context(), filepath.Join(root, "missing"))
	if err != nil || r.Works {
		t.Errorf("a probe without a root works: %v", err)
	}
}
