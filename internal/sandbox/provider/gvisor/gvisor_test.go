package gvisor_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
	"github.com/engi-dev/engi/internal/sandbox/provider/providertest"
)

// programs holds the paths of the programs that tests need, or the reason why tests must be skipped.
var programs struct{ runsc, guest, why string }

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if os.Getenv("ENGI_TEST_ROOTLESS") != "" {
		if err := gvisor.EnterNamespaces(); err != nil {
			return 0, err
		}
	}
	if mode := os.Getenv("ENGI_TEST_DAEMON"); mode != "" {
		return 0, daemon(mode)
	}
	bin, err := filepath.Abs("../../../../bin")
	if err != nil {
		return 0, err
	}
	programs.runsc = env("ENGI_RUNSC", filepath.Join(bin, "runsc"))
	programs.guest = env("ENGI_GUEST", filepath.Join(bin, "engi-guest"))
	switch _, err := os.Stat(programs.runsc); {
	case err != nil:
		programs.why = "no runsc: run 'make build' or set ENGI_RUNSC"
	case os.Geteuid() != 0:
		programs.why = "machines need root, or the namespaces that TestRootless makes"
	}
	if programs.why == "" || os.Getenv("ENGI_TEST_REQUIRE") != "" {
		if _, err := os.Stat(programs.guest); err != nil {
			dir, err := os.MkdirTemp("", "engi-guest")
			if err != nil {
				return 0, err
			}
			defer os.RemoveAll(dir)
			programs.guest = filepath.Join(dir, "engi-guest")
			cmd := exec.Command("go", "build", "-o", programs.guest, "../../../../cmd/engi-guest")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return 0, fmt.Errorf("build the guest program: %v: %s", err, out)
			}
		}
	}
	return m.Run(), nil
}

func env(key, def string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return def
}

// nobody creates a directory with all files for running the tests as user
// nobody, and returns a function that creates commands that run them.
func nobody(t *testing.T) (dir string, command func(env ...string) *exec.Cmd) {
	t.Helper()
	dir, err := os.MkdirTemp("", "engi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"test": self, "runsc": programs.runsc, "engi-guest": programs.guest} {
		raw, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), raw, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, func(env ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "test"), "-test.v")
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "ENGI_TEST_ROOTLESS=1", "TMPDIR="+dir,
			"ENGI_RUNSC="+filepath.Join(dir, "runsc"), "ENGI_GUEST="+filepath.Join(dir, "engi-guest")), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd
	}
}

// need skips a test if machines cannot be booted here.
func need(t testing.TB) {
	t.Helper()
	if programs.why != "" {
		lacks(t, programs.why)
	}
}

// lacks skips a test whose requirements are missing, or fails it if
// ENGI_TEST_REQUIRE is set.
func lacks(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// newRoot creates a root file system that has the programs of the host.
func newRoot(t testing.TB) (string, []provider.Mount) {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".engi", "dev", "etc", "proc", "root", "sys", "tmp/.keep", "usr", "workspace"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+link, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/workspace:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, []provider.Mount{{Source: "/usr", Target: "/usr"}}
}

func newProvider(t testing.TB, dir string) *gvisor.Provider {
	t.Helper()
	p, err := gvisor.New(gvisor.Options{
		Runsc: programs.runsc, Guest: programs.guest, Dir: dir,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPromises(t *testing.T) {
	need(t)
	root, mounts := newRoot(t)
	dir := t.TempDir()
	p := newProvider(t, dir)
	last := p
	providertest.Run(t, p, providertest.Env{
		Root:   root,
		Mounts: mounts,
		Restart: func(t *testing.T) provider.Provider {
			last.Crash()
			last = newProvider(t, dir)
			return last
		},
		Kill:      kill,
		Limited:   true,
		OwnKernel: true,
		Link:      links(t),
		EchoAddr:  egress.Gateway4.String(),
	})
}

// kill kills the sandbox process of a machine.
func kill(t *testing.T, id engi.SandboxID) {
	t.Helper()
	for _, pid := range processes(t, "runsc-sandbox", id) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// processes returns the processes called name of a machine.
func processes(t *testing.T, name string, id engi.SandboxID) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
		if args[0] == name && args[len(args)-1] == string(id) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestPromisesRootless tests the promises as a user other than root.
func TestPromisesRootless(t *testing.T) {
	need(t)
	_, command := nobody(t)
	cmd := command()
	cmd.Args = append(cmd.Args, "-test.run=^TestPromises$")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// TestFileServerIsKilled: a machine ends without its file server.
func TestFileServerIsKilled(t *testing.T) {
	b := boot(t, nil)
	pids := processes(t, "runsc-gofer", b.m.ID())
	if len(pids) != 1 {
		t.Fatalf("file servers %v, want one", pids)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.m.Done():
	case <-time.After(time.Minute):
		t.Fatal("the machine goes on without files")
	}
	if got := b.m.End(); got != engi.CauseSandboxLost {
		t.Errorf("the end is %q, want sandbox_lost", got)
	}
}
