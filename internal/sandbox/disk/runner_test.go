package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// need skips a test if the machine lacks something, or fails if skipping is not
// allowed.
func need(t *testing.T, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("ENGI_TEST_REQUIRE") != "":
		t.Fatalf("needs %s", what)
	default:
		t.Skipf("needs %s", what)
	}
}

// findRunsc returns the path of the runsc to test with.
func findRunsc() string {
	for _, at := range []string{os.Getenv("ENGI_RUNSC"), "../../../bin/runsc"} {
		if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
			at, _ = filepath.Abs(at)
			return at
		}
	}
	return ""
}

// A runscRunner is a minimal BuildRunner with isolation: plain runsc, with commands
// started by runsc exec. Users get the runner of package fleet.
type runscRunner struct{ runsc, dir string }

func newRunscRunner(t *testing.T) *runscRunner {
	t.Helper()
	need(t, os.Geteuid() == 0, "root")
	runsc := findRunsc()
	need(t, runsc != "", "runsc in bin/ or ENGI_RUNSC")
	w := &runscRunner{runsc: runsc, dir: t.TempDir()}
	t.Cleanup(func() {
		for _, at := range []string{"root/null-netns"} {
			exec.Command("umount", filepath.Join(w.dir, at)).Run()
		}
	})
	return w
}

func (w *runscRunner) cmd(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, w.runsc, append([]string{
		"--root", filepath.Join(w.dir, "root"), "--platform=systrap", "--network=host", "--overlay2=none", "--allow-suid", "--ignore-cgroups",
	}, args...)...)
}

func (w *runscRunner) Open(ctx context.Context, dir string, _ engi.Owner) (engi.Guest, func() error, error) {
	bundle, err := os.MkdirTemp(w.dir, "bundle-")
	if err != nil {
		return nil, nil, err
	}
	caps := strings.Fields("CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_MKNOD CAP_AUDIT_WRITE CAP_SETFCAP")
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0", "hostname": "build",
		"root": map[string]any{"path": dir},
		"process": map[string]any{
			"args": []string{"/bin/sh", "-c", "while :; do sleep 1000; done"}, "cwd": "/", "user": map[string]any{"uid": 0, "gid": 0},
			"env":          []string{"PATH=" + defaultPath},
			"capabilities": map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"mounts": []any{
			map[string]any{"destination": "/proc", "type": "proc", "source": "proc"},
			map[string]any{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			map[string]any{"destination": "/sys", "type": "sysfs", "source": "sysfs"},
		},
		"linux": map[string]any{"namespaces": []any{map[string]any{"type": "pid"}, map[string]any{"type": "mount"}}},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return nil, nil, err
	}
	id := "ws-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	run := w.cmd(ctx, "run", "--detach", "--bundle", bundle, id)
	log, err := os.CreateTemp(w.dir, "log-")
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	run.Stdout, run.Stderr = log, log
	if err := run.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, nil, engi.Errorf(engi.Internal, "runsc run: %v: %s", err, text)
	}
	end := func() error {
		out, err := w.cmd(context.Background(), "delete", "--force", id).CombinedOutput()
		if err != nil {
			return engi.Errorf(engi.Internal, "runsc delete: %v: %s", err, out)
		}
		return os.RemoveAll(bundle)
	}
	return &runscGuest{w: w, id: id, dir: dir}, end, nil
}

// A runscGuest starts commands. Builds need no other operations.
type runscGuest struct {
	engi.Guest
	w   *runscRunner
	id  string
	dir string
}

func (g *runscGuest) Start(ctx context.Context, c engi.Command) (engi.Process, error) {
	root, err := tree.Open(g.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	all, err := accounts(root)
	if err != nil {
		return nil, err
	}
	who := account{name: "root", home: "/root"}
	for _, a := range all {
		if a.name == c.User {
			who = a
		}
	}
	args := []string{"exec", "--cwd", c.Dir, "--user", strconv.Itoa(who.uid) + ":" + strconv.Itoa(who.gid), "--env", "HOME=" + who.home, "--env", "USER=" + who.name}
	for k, v := range c.Env {
		args = append(args, "--env", k+"="+v)
	}
	cmd := g.w.cmd(ctx, append(append(args, g.id), c.Args...)...)
	r, wr := io.Pipe()
	cmd.Stdout, cmd.Stderr = wr, wr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &runscProcess{out: r, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		wr.Close()
		close(p.done)
	}()
	return p, nil
}

type runscProcess struct {
	engi.Process
	out  io.Reader
	done chan struct{}
	err  error
}

func (p *runscProcess) Output(ctx context.Context, from int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		buf := make([]byte, 32<<10)
		for {
			n, err := p.out.Read(buf)
			if n > 0 && !yield(engi.Chunk{Stream: engi.Stdout, Data: buf[:n]}, nil) {
				return
			}
			if err != nil {
				return
			}
		}
	}
}

func (p *runscProcess) Wait(ctx context.Context) (engi.Exit, error) {
	<-p.done
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		return engi.Exit{}, p.err
	}
	e := engi.Exit{Cause: engi.CauseExited}
	if exit != nil {
		e.Code = exit.ExitCode()
	}
	return e, nil
}

// progressLog writes the progress of a build to the test's log.
func progressLog(t *testing.T) func(engi.Progress) {
	start := time.Now()
	last := ""
	return func(e engi.Progress) {
		if e.Name != last {
			last = e.Name
			t.Logf("%6.1fs step %d/%d: %s", time.Since(start).Seconds(), e.Step, e.Steps, e.Name)
		}
		if testing.Verbose() && os.Getenv("ENGI_TEST_BUILD_LOG") != "" && e.Log != "" {
			t.Logf("%6.1fs   %s", time.Since(start).Seconds(), e.Log)
		}
	}
}

// TestBaseBuilds builds the base template, which takes minutes and the network.
func TestBaseBuilds(t *testing.T) {
	dir := os.Getenv("ENGI_TEST_TEMPLATES")
	need(t, dir != "", "ENGI_TEST_TEMPLATES, a directory to build the base template in")
	d, err := Open(t.Context(), Options{Dir: dir, Runner: newRunscRunner(t)})
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := d.Build(t.Context(), "base", nil, progressLog(t))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", " ")
	enc.Encode(tmpl)
	t.Logf("%d MiB: %s", tmpl.Bytes>>20, text.String())
}

// TestStepsInSandboxes runs steps on a real system in real sandboxes, which takes
// minutes and the network.
func TestStepsInSandboxes(t *testing.T) {
	dir := os.Getenv("ENGI_TEST_TEMPLATES")
	need(t, dir != "", "ENGI_TEST_TEMPLATES, a directory to build templates in")
	d, err := Open(t.Context(), Options{Dir: dir, Runner: newRunscRunner(t)})
	if err != nil {
		t.Fatal(err)
	}
	spec := engi.BuildSpec{Name: "steps", FromImage: "debian:bookworm-slim", Steps: []engi.BuildStep{
		run("whoami > ~/who; pwd > ~/where; echo $A > ~/env"),
		{Type: engi.StepEnv, Args: []string{"A", "b"}},
		run("apt-get update -q && apt-get install -y -q --no-install-recommends jq && rm -rf /var/lib/apt/lists/*", "root"),
		{Type: engi.StepWorkdir, Args: []string{"/app"}},
		run("echo '{}' | jq . > out; echo $A >> out; ln -s out link; rm out; echo again > out"),
	}}
	started := time.Now()
	tmpl, err := d.BuildSteps(t.Context(), spec, progressLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("built in %v, %d MiB", time.Since(started).Round(time.Millisecond), tmpl.Bytes>>20)
	for name, want := range map[string]string{"home/user/who": "user\n", "home/user/where": "/home/user\n", "home/user/env": "\n", "app/link": "again\n"} {
		if data, err := os.ReadFile(filepath.Join(tmpl.Root, name)); err != nil || string(data) != want {
			t.Errorf("%s has %q, %v", name, data, err)
		}
	}
	spec.Steps[4] = run("jq --version")
	started = time.Now()
	if _, err := d.BuildSteps(t.Context(), spec, progressLog(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("with another last step in %v", time.Since(started).Round(time.Millisecond))
	spec.Steps[4] = run("whoami", "root123")
	_, err = d.BuildSteps(t.Context(), spec, nil)
	wantKind(t, err, engi.Invalid, "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'")
}
