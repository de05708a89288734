package guest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// runsc returns the runtime to boot sandboxes with, or skips the test.
func runsc(t testing.TB) string {
	t.Helper()
	missing := func(what string) {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if os.Getuid() != 0 {
		missing("booting a sandbox needs root")
	}
	for _, p := range []string{os.Getenv("ENGI_RUNSC"), "../../../bin/runsc"} {
		if p == "" {
			continue
		}
		if abs, err := filepath.Abs(p); err == nil {
			if _, err := os.Stat(abs); err == nil {
				return abs
			}
		}
	}
	missing("no runsc in $ENGI_RUNSC or bin/")
	return ""
}

// built is the directory of the guest program, if this process has built it.
var built string

// guestBinary returns the path of the guest program: the one in $ENGI_GUEST, or a fresh build.
var guestBinary = sync.OnceValues(func() (string, error) {
	if prebuilt := os.Getenv("ENGI_GUEST"); prebuilt != "" {
		return prebuilt, nil
	}
	dir, err := os.MkdirTemp("", "engi-guest")
	if err != nil {
		return "", err
	}
	built = dir
	bin := filepath.Join(dir, wire.BinaryName)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "github.com/engi-dev/engi/cmd/engi-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build engi-guest: %v\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built != "" {
			os.RemoveAll(built)
		}
		os.Exit(code)
	}))
}

// sandbox is a machine with the host's /usr, booted without package provider.
type sandbox struct {
	t     testing.TB
	dir   string
	id    string
	bin   string
	token string
	once  sync.Once
	l     *net.UnixListener
	proc  *exec.Cmd
}

func boot(t testing.TB) *sandbox {
	t.Helper()
	sb := &sandbox{t: t, bin: runsc(t), token: "secret", id: "t" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())}
	var err error
	if sb.dir, err = os.MkdirTemp("", "guest"); err != nil {
		t.Fatal(err)
	}
	channel := filepath.Join(sb.dir, "chan")
	for _, d := range []string{"chan", "root", "rr", "overlay", "root/tmp", "root/etc", "root/run", "root/proc", "root/dev", "root/sys", "root/usr", "root/root", "root/home/user", "root/.engi", "root/var/tmp"} {
		must(t, os.MkdirAll(filepath.Join(sb.dir, d), 0o755))
	}
	must(t, os.Chown(filepath.Join(sb.dir, "root/home/user"), 1000, 1000))
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		must(t, os.Symlink("usr/"+l, filepath.Join(sb.dir, "root", l)))
	}
	must(t, os.WriteFile(filepath.Join(sb.dir, "root/etc/passwd"), []byte("root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(sb.dir, "root/etc/group"), []byte("root:x:0:\nuser:x:1000:\nextra:x:1234:user\n"), 0o644))
	bin, err := guestBinary()
	must(t, err)
	must(t, os.Link(bin, filepath.Join(channel, wire.BinaryName)))
	cfg, err := json.Marshal(wire.Config{Token: "secret", Hostname: "inside"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(channel, wire.ConfigName), cfg, 0o600))
	if sb.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(channel, wire.SocketName), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	caps := strings.Fields("CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT")
	mount := func(kind, source, target string, options ...string) map[string]any {
		return map[string]any{"destination": target, "type": kind, "source": source, "options": options}
	}
	mounts := []any{
		mount("proc", "proc", "/proc"), mount("sysfs", "sysfs", "/sys", "ro"), mount("tmpfs", "tmpfs", "/dev"),
		mount("cgroup", "cgroup", "/sys/fs/cgroup"),
		mount("bind", "/usr", "/usr", "ro", "rbind"), mount("bind", channel, wire.Dir, "ro", "rbind"),
	}
	if deno := os.Getenv("ENGI_TEST_DENO"); deno != "" {
		mounts = append(mounts, mount("bind", filepath.Dir(deno), "/opt", "ro", "rbind"))
		must(t, os.MkdirAll(filepath.Join(sb.dir, "root/opt"), 0o755))
	}
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0",
		"process": map[string]any{
			"args": []string{wire.Dir + "/" + wire.BinaryName}, "env": []string{"PATH=/usr/bin:/bin"}, "cwd": "/",
			"user":         map[string]any{"uid": 0, "gid": 0},
			"capabilities": map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
			"rlimits":      []any{map[string]any{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 4096}},
		},
		"root": map[string]any{"path": filepath.Join(sb.dir, "root")}, "hostname": "inside", "mounts": mounts,
		"linux": map[string]any{"namespaces": []any{map[string]any{"type": "pid"}, map[string]any{"type": "ipc"},
			map[string]any{"type": "uts"}, map[string]any{"type": "mount"}, map[string]any{"type": "network"}}},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(sb.dir, "config.json"), config, 0o644))
	t.Cleanup(sb.close)
	sb.proc = exec.Command(sb.bin, sb.flags("run", "--bundle", sb.dir, sb.id)...)
	log, err := os.Create(filepath.Join(sb.dir, "console"))
	must(t, err)
	defer log.Close()
	sb.proc.Stdout, sb.proc.Stderr = log, log
	must(t, sb.proc.Start())
	return sb
}

func (sb *sandbox) flags(args ...string) []string {
	return append([]string{"--root", filepath.Join(sb.dir, "rr"), "--platform", "systrap", "--network=none", "--host-uds=open",
		"--overlay2=root:dir=" + filepath.Join(sb.dir, "overlay") + ",size=64m", "--allow-suid"}, args...)
}

func (sb *sandbox) close() { sb.once.Do(sb.destroy) }

func (sb *sandbox) destroy() {
	exec.Command(sb.bin, sb.flags("kill", sb.id, "KILL")...).Run()
	if sb.proc != nil && sb.proc.Process != nil {
		done := make(chan struct{})
		go func() { sb.proc.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			sb.proc.Process.Kill()
			<-done
		}
	}
	exec.Command(sb.bin, sb.flags("delete", "--force", sb.id)...).Run()
	sb.l.Close()
	exec.Command("umount", filepath.Join(sb.dir, "rr", "null-netns")).Run()
	if sb.t.Failed() {
		console, _ := os.ReadFile(filepath.Join(sb.dir, "console"))
		sb.t.Logf("console:\n%s", console)
	}
	os.RemoveAll(sb.dir)
}

func (sb *sandbox) dial(ctx context.Context) (net.Conn, error) {
	if d, ok := ctx.Deadline(); ok {
		sb.l.SetDeadline(d)
	} else {
		sb.l.SetDeadline(time.Now().Add(time.Minute))
	}
	return sb.l.Accept()
}

func (sb *sandbox) open() *guest.Client {
	sb.t.Helper()
	c, err := guest.Open(sb.t.Context(), sb.dial, sb.token)
	if err != nil {
		console, _ := os.ReadFile(filepath.Join(sb.dir, "console"))
		sb.t.Fatalf("open: %v\nconsole: %s", err, console)
	}
	sb.t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var inside = wire.Setup{User: "user", UID: 1000, GID: 1000, Home: "/home/user", WorkDir: "/workspace", Shell: "/bin/bash", Processes: 64, OpenFiles: 1024}
