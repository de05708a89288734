package gvisor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// These tests need neither root nor runsc.

func newTestProvider(t *testing.T, dir string) *Provider {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "engi-guest")
	if err := os.WriteFile(guest, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Runsc: "/missing/runsc", Guest: guest, Dir: dir, Cgroups: CgroupsNone})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newTestSpec(t *testing.T) provider.Spec {
	t.Helper()
	return provider.Spec{
		ID: engi.NewSandboxID(), Root: t.TempDir(), Hostname: "host", Token: "secret",
		Size: engi.Size{VCPUs: 1.5, Memory: 128 << 20, Disk: 64 << 20, Inodes: 100, Processes: 10, OpenFiles: 50},
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	dir := t.TempDir()
	good := Options{Runsc: "/x/runsc", Guest: "/x/guest", Dir: dir, Cgroups: CgroupsNone}
	for name, spoil := range map[string]func(*Options){
		"relative runsc":  func(o *Options) { o.Runsc = "runsc" },
		"no guest":        func(o *Options) { o.Guest = "" },
		"relative dir":    func(o *Options) { o.Dir = "data" },
		"unknown cgroups": func(o *Options) { o.Cgroups = "v3" },
		"no such cgroups": func(o *Options) { o.Cgroups, o.CgroupRoot = CgroupsV2, t.TempDir() },
	} {
		o := good
		spoil(&o)
		if _, err := New(o); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want kind invalid", name, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

// TestFakeGroups opens a provider on a fake tree of version 2.
func TestFakeGroups(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu memory pids"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Runsc: "/x", Guest: "/x", Dir: t.TempDir(), CgroupRoot: root})
	if err != nil {
		t.Fatal(err)
	}
	// A tree without control files is not used.
	if p.groups != nil || len(p.NotEnforced()) == 0 {
		t.Errorf("groups %v, not enforced %v", p.groups, p.NotEnforced())
	}
	if _, err := New(Options{Runsc: "/x", Guest: "/x", Dir: t.TempDir(), CgroupRoot: root, Cgroups: CgroupsV2}); !engi.Is(err, engi.Invalid) {
		t.Errorf("demanded groups that cannot be used: %v", err)
	}
}

func TestStartWithoutRunsc(t *testing.T) {
	p := newTestProvider(t, t.TempDir())
	spec := newTestSpec(t)
	_, err := p.Start(t.Context(), spec)
	if !engi.Is(err, engi.Internal) {
		t.Errorf("got %v, want kind internal", err)
	}
	if ids, err := p.Found(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("left behind: %v, %v", ids, err)
	}
	if leaks, err := p.Leaks(t.Context(), nil); err != nil || len(leaks) > 0 {
		t.Errorf("left behind: %v, %v", leaks, err)
	}
	if _, err := p.Start(t.Context(), spec); !engi.Is(err, engi.Internal) {
		t.Errorf("again: %v, want kind internal", err)
	}
	if p.features() != "" || len(p.NotEnforced()) != 2 {
		t.Errorf("not enforced: %v", p.NotEnforced())
	}
}

func TestBundle(t *testing.T) {
	p := newTestProvider(t, t.TempDir())
	spec := newTestSpec(t)
	shared := t.TempDir()
	spec.Mounts = []provider.Mount{{Source: "/usr", Target: "/usr"}, {Source: shared, Target: "/data", Writable: true}}
	if err := os.Mkdir(filepath.Join(spec.Root, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	guest, err := p.guestBinary()
	if err != nil {
		t.Fatal(err)
	}
	d := p.dir(spec.ID)
	if err := p.create(d, spec, guest); err != nil {
		t.Fatal(err)
	}
	if err := p.create(d, spec, guest); !engi.Is(err, engi.Conflict) {
		t.Errorf("made twice: %v, want kind conflict", err)
	}
	raw, err := os.ReadFile(d.path("bundle", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cfg specs.Spec
	if err := json.Unmarshal(raw, &cfg); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), spec.Token) {
		t.Error("the token is in the bundle")
	}
	for _, c := range cfg.Process.Capabilities.Bounding {
		if c == "CAP_NET_RAW" || c == "CAP_SYS_ADMIN" {
			t.Errorf("root inside has %s", c)
		}
	}
	mounts := map[string]specs.Mount{}
	for _, m := range cfg.Mounts {
		mounts[m.Destination] = m
		if m.Type == "bind" && (m.Options[0] == "rw") != (m.Source == shared) {
			t.Errorf("%s is mounted %s", m.Destination, m.Options[0])
		}
	}
	if mounts["/usr"].Source != "/usr" || mounts[wire.Dir].Source != d.path("chan") || mounts["/tmp"].Type != "tmpfs" {
		t.Errorf("mounts: %v", mounts)
	}
	// The root has no mount point, which runsc would create there.
	place := wire.Dir + "/mnt/1"
	if mounts[place].Source != shared || cfg.Annotations[annotMount+place] != "/data" {
		t.Errorf("mounts: %v, annotations: %v", mounts, cfg.Annotations)
	}
	if fi, err := os.Stat(d.path("chan", "mnt", "1")); err != nil || !fi.IsDir() {
		t.Errorf("no place for a mount: %v", err)
	}
	if cfg.Annotations[annotInodes] != "100" || cfg.Annotations[annotCPUs] != "2" {
		t.Errorf("annotations: %v", cfg.Annotations)
	}
	flags := strings.Join(p.flags(d, record{Size: spec.Size}), " ")
	for _, want := range []string{"--network=none", "size=67108864", "--ignore-cgroups", rootFlag + d.path("root")} {
		if !strings.Contains(flags, want) {
			t.Errorf("flags %s lack %s", flags, want)
		}
	}
	if flags := strings.Join(p.flags(d, record{Writable: true, Network: provider.Host}), " "); !strings.Contains(flags, "--overlay2=none") || !strings.Contains(flags, "--network=host") {
		t.Errorf("flags of a build: %s", flags)
	}
}

func TestCheckSpec(t *testing.T) {
	for name, spoil := range map[string]func(*provider.Spec){
		"ID":              func(s *provider.Spec) { s.ID = "x" },
		"no root":         func(s *provider.Spec) { s.Root = "" },
		"little memory":   func(s *provider.Spec) { s.Size.Memory = 1 << 20 },
		"no processors":   func(s *provider.Spec) { s.Size.VCPUs = 0 },
		"relative target": func(s *provider.Spec) { s.Mounts = []provider.Mount{{Source: "/usr", Target: "usr"}} },
		"dirty target":    func(s *provider.Spec) { s.Mounts = []provider.Mount{{Source: "/usr", Target: "/a/../proc"}} },
		"channel":         func(s *provider.Spec) { s.Mounts = []provider.Mount{{Source: "/usr", Target: wire.Dir + "/x"}} },
		"proc":            func(s *provider.Spec) { s.Mounts = []provider.Mount{{Source: "/usr", Target: "/proc"}} },
	} {
		spec := newTestSpec(t)
		spoil(&spec)
		if err := checkSpec(spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want kind invalid", name, err)
		}
	}
	if err := checkSpec(newTestSpec(t)); err != nil {
		t.Error(err)
	}
}

// TestListen binds twice to a path that is too long for a socket.
func TestListen(t *testing.T) {
	d := machineDir(filepath.Join(t.TempDir(), strings.Repeat("long", 30)))
	if err := os.MkdirAll(d.path("chan"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := d.listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		t.Chdir(d.path("chan"))
		client, err := net.Dial("unix", wire.SocketName)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if !alive(conn) {
			t.Error("an open connection is called dead")
		}
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		client.Close()
		buf := make([]byte, 5)
		if !alive(conn) {
			t.Error("a connection with something to read is called dead")
		}
		if n, err := conn.Read(buf); n != 5 || err != nil {
			t.Errorf("looking took from the stream: %d, %v", n, err)
		}
		if alive(conn) {
			t.Error("a closed connection is called alive")
		}
		conn.Close()
	}
	if fi, err := os.Stat(d.path("chan", wire.SocketName)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", fi.Mode(), err)
	}
}

func TestConfigureAndResume(t *testing.T) {
	d := machineDir(t.TempDir())
	if err := os.Mkdir(d.path("chan"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, restored := range []bool{false, true} {
		os.Remove(d.path("chan", wire.ConfigName))
		if err := d.configure(provider.Spec{Token: "secret", Hostname: "name"}, restored); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(d.path("chan", wire.ConfigName))
		if err != nil {
			t.Fatal(err)
		}
		var c wire.Config
		if err := json.Unmarshal(raw, &c); err != nil || c.Token != "secret" || c.Hostname != "name" {
			t.Errorf("configuration: %+v, %v", c, err)
		}
		if (c.Time != 0) != restored || (len(c.Entropy) > 0) != restored {
			t.Errorf("restored %v: time %d, %d bytes of entropy", restored, c.Time, len(c.Entropy))
		}
		if fi, err := os.Stat(d.path("chan", wire.ConfigName)); err != nil || fi.Mode().Perm() != 0o400 {
			t.Errorf("everybody may read the token: %v, %v", fi.Mode(), err)
		}
	}
	if err := d.writeResume(); err != nil {
		t.Fatal(err)
	}
}

func TestConsole(t *testing.T) {
	c, err := newConsole()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if c.String() != "" {
		t.Errorf("a new console says %q", c.String())
	}
	if _, err := c.file.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if c.String() != "hello" {
		t.Errorf("got %q", c.String())
	}
	var failed error
	for range 100 {
		if _, err := c.file.Write(make([]byte, 1024)); err != nil {
			failed = err
		}
	}
	if failed == nil {
		t.Error("a console takes everything")
	}
	var none *console
	none.close()
	if none.String() != "" {
		t.Error("no console says something")
	}
}

func TestProcess(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil || start == 0 {
		t.Fatalf("start time %d, %v", start, err)
	}
	if _, err := openProcess(procRef{PID: cmd.Process.Pid, Start: start + 1}); !errors.Is(err, errGone) {
		t.Errorf("another process with the number: %v", err)
	}
	p, err := openProcess(procRef{PID: cmd.Process.Pid, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	waited := make(chan bool)
	go func() { p.wait(); close(waited) }()
	select {
	case <-waited:
		t.Fatal("a running process is called ended")
	default:
	}
	p.kill()
	<-waited
	p.kill() // killing an ended process is no error
	cmd.Wait()
	if _, err := openProcess(procRef{PID: cmd.Process.Pid, Start: start}); !errors.Is(err, errGone) {
		t.Errorf("an ended process: %v", err)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if _, err := openProcess(procRef{PID: pid}); !errors.Is(err, errGone) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

// TestExecuting is about processes that a search by command lines cannot attribute yet.
func TestExecuting(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	young, err := statOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if young.parent != os.Getpid() || young.threads != 1 {
		t.Errorf("stat of a child: %+v", young)
	}
	with := func(change func(*stat)) stat { s := young; change(&s); return s }
	for name, c := range map[string]struct {
		stat    stat
		cmdline string
		want    bool
	}{
		"the kernel replaces its memory":     {young, "", true},
		"a program":                          {young, "sleep\x001000\x00", false},
		"exiting":                            {with(func(s *stat) { s.flags |= 0x4 }), "", false},
		"a thread of the kernel":             {with(func(s *stat) { s.flags |= 0x200000 }), "", false},
		"without a command line for minutes": {with(func(s *stat) { s.start -= 60 * 100 }), "", false},
	} {
		if got := c.stat.executing(pid, []byte(c.cmdline)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A child of another daemon, as it is between fork and exec: the daemon's program with one thread.
	daemon := exec.Command("/proc/self/exe", "-test.run=^$", "-test.fuzz=")
	daemon.SysProcAttr = &syscall.SysProcAttr{Ptrace: true} // stopped right after the execution, with one thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer daemon.Wait()
	defer daemon.Process.Kill()
	one, err := statOf(daemon.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !one.executing(daemon.Process.Pid, []byte("engi\x00serve\x00")) {
		t.Errorf("the child of a daemon: %+v", one)
	}
	one.threads = 5
	if one.executing(daemon.Process.Pid, []byte("engi\x00serve\x00")) {
		t.Error("a daemon is taken for a child that has executed nothing yet")
	}
}

func TestOwner(t *testing.T) {
	p := newTestProvider(t, t.TempDir())
	id := engi.NewSandboxID()
	flag := rootFlag + p.dir(id).path("root")
	for cmdline, want := range map[string]engi.SandboxID{
		"runsc-sandbox\x00" + flag + "\x00boot\x00" + string(id):        id,
		"runsc\x00" + flag + "\x00run\x00":                              id,
		"vi\x00" + p.dir(id).path("machine.json"):                       "",
		"runsc\x00" + rootFlag + p.opt.Dir + "/m/../x/root":             "",
		"runsc\x00" + rootFlag + "/elsewhere/m/" + string(id) + "/root": "",
		"": "",
	} {
		if got, _ := p.owner([]byte(cmdline)); got != want {
			t.Errorf("%q belongs to %q, want %q", cmdline, got, want)
		}
	}
	cmd := exec.Command("/bin/sh")
	cmd.Args = []string{"runsc-sandbox", "-c", "read forever", flag}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	leaks, err := p.Leaks(t.Context(), nil)
	if err != nil || len(leaks) != 1 || leaks[0].Kind != "process" {
		t.Errorf("leaks %v, %v, want one process", leaks, err)
	}
	if leaks, err := p.Leaks(t.Context(), []engi.SandboxID{id}); err != nil || len(leaks) > 0 {
		t.Errorf("leaks of a living machine: %v, %v", leaks, err)
	}
	if err := p.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestFoundAfterHalfAStart adopts and removes what a crash during a start leaves.
func TestFoundAfterHalfAStart(t *testing.T) {
	p := newTestProvider(t, t.TempDir())
	id := engi.NewSandboxID()
	for _, files := range [][]string{
		nil,
		{"machine.json"},
		{"machine.json", "run.json"},
	} {
		if err := os.MkdirAll(p.dir(id).path("chan"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(p.dir(id).path(f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ids, err := p.Found(t.Context())
		if err != nil || len(ids) != 1 || ids[0] != id {
			t.Fatalf("%v: found %v, %v", files, ids, err)
		}
		if _, err := p.Adopt(t.Context(), id); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v: adopt: %v, want kind not_found", files, err)
		}
		if err := p.Remove(t.Context(), id); err != nil {
			t.Errorf("%v: %v", files, err)
		}
		if _, err := os.Stat(string(p.dir(id))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the directory is there: %v", files, err)
		}
	}
}

func TestLimitsOf(t *testing.T) {
	l := limitsOf(engi.Size{VCPUs: 0.5, Memory: 100, Processes: 10})
	if l.VCPUs != 0.5 || l.Memory != 100 || l.Tasks < 1000 {
		t.Errorf("limits %+v", l)
	}
	if l == (cgroup.Limits{}) {
		t.Error("no limits")
	}
}

func TestReadTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if got := readTail(file, 10); got != "" {
		t.Errorf("the end of nothing is %q", got)
	}
	if err := os.WriteFile(file, []byte("0123456789abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]string{3: "abc", 100: "0123456789abc"} {
		if got := readTail(file, n); got != want {
			t.Errorf("the last %d bytes: %q, want %q", n, got, want)
		}
	}
}

func TestSave(t *testing.T) {
	d := machineDir(t.TempDir())
	var got record
	if err := d.load("machine.json", &got); err == nil {
		t.Error("a record that nobody wrote was read")
	}
	for _, n := range []int64{1 << 60, 1} {
		want := record{Size: engi.Size{Memory: n}}
		if err := d.save("machine.json", want); err != nil {
			t.Fatal(err)
		}
		if err := d.load("machine.json", &got); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if err := d.save("machine.json", strings.Repeat("x", recordSize)); err == nil {
		t.Error("a record that is too large was written")
	}
}

func TestCPUTotal(t *testing.T) {
	a, b := procRef{PID: 1, Start: 1}, procRef{PID: 2, Start: 2}
	reborn := procRef{PID: 2, Start: 9}
	var l cpuTotal
	for i, step := range []struct {
		used map[procRef]time.Duration
		want time.Duration
	}{
		{map[procRef]time.Duration{a: 1}, 1},
		{map[procRef]time.Duration{a: 2, b: 10}, 12},
		{map[procRef]time.Duration{a: 1, b: 10}, 12}, // seen by a slower concurrent update
		{map[procRef]time.Duration{a: 3}, 13},
		{map[procRef]time.Duration{a: 3, reborn: 5}, 18},
		{nil, 18},
	} {
		if got := l.update(step.used); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}
