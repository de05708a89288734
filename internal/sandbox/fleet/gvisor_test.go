package fleet_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
)

// lookup finds a program that these tests need, or skips the test and names the missing program.
func lookup(t testing.TB, variable, name string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		path, _ = filepath.Abs(filepath.Join("..", "..", "..", "bin", name))
	}
	if _, err := os.Stat(path); err != nil {
		missing(t, fmt.Sprintf("no %s: run 'make build' or set %s", name, variable))
	}
	return path
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// newRealFixture returns a fixture with gVisor machines, which use this host's programs,
// and with records in SQLite, all below dir. It is removed after the test.
func newRealFixture(t testing.TB, dir string) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "gVisor machines need root")
	}
	o := gvisor.Options{
		Runsc: lookup(t, "ENGI_RUNSC", "runsc"),
		Guest: lookup(t, "ENGI_GUEST", "engi-guest"),
		Dir:   filepath.Join(dir, "gvisor"),
		Log:   slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	templates, err := disk.Open(t.Context(), disk.Options{Dir: filepath.Join(dir, "disk")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := templates.Build(t.Context(), "host", nil, func(engi.Progress) {}); err != nil {
		missing(t, "no host template: "+err.Error())
	}
	fx := &fixture{t: t, store: openStore(t, dir), templates: templates, dir: filepath.Join(dir, "fleet")}
	fx.provider = func() provider.Provider {
		p, err := gvisor.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if os.Getenv(childDir) != "" {
		return fx
	}
	t.Cleanup(func() {
		p := fx.provider()
		ids, err := p.Found(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		leaks, err := p.(provider.Tracer).Leaks(context.Background(), nil)
		if err != nil || len(leaks) != 0 {
			t.Errorf("leaks: %v, %v", leaks, err)
		}
	})
	return fx
}

// onHost returns an edit that uses the host template, then calls edit.
func onHost(edit func(*fleet.Options)) func(*fleet.Options) {
	return func(o *fleet.Options) {
		o.Template = "host"
		o.Log = nil
		if edit != nil {
			edit(o)
		}
	}
}

func TestRealSandboxes(t *testing.T) {
	fx := newRealFixture(t, t.TempDir())
	n := fx.start(onHost(pools(fleet.PoolConfig{Language: engi.Bash, Target: 2}))).warm()

	t.Run("answer", func(t *testing.T) {
		spec := script("id -u; pwd; ls; echo bad >&2; echo art > file; exit 3")
		x := n.execute(spec)
		if x.Result.Exit.Code != 3 || x.Result.Exit.Cause != engi.CauseExited || !x.Result.Warm || x.Result.Tier != engi.TierGVisor ||
			len(x.Result.Artifacts) != 1 || string(x.Result.Stderr) != "bad\n" {
			t.Errorf("%+v\nstdout %s\nstderr %s", x.Result, x.Result.Stdout, x.Result.Stderr)
		}
	})
	t.Run("memory", func(t *testing.T) {
		spec := script(`x=a; while :; do x="$x$x$x$x"; done`)
		spec.Limits.Size.Memory = 128 << 20
		x := n.execute(spec)
		if slices.Contains(x.Result.NotEnforced, "memory") {
			t.Skip("no memory limit on this host")
		}
		if x.Result.Exit.Cause != engi.CauseMemory && x.Result.Exit.Code == 0 {
			t.Errorf("%+v stderr %s", x.Result, x.Result.Stderr)
		}
		t.Log(x.Result.Exit, x.Result.Error)
	})
	t.Run("timeout", func(t *testing.T) {
		spec := script("echo begun; while :; do :; done")
		spec.Limits.Timeout = time.Second
		x := n.execute(spec)
		wantAnswer(t, x, -1, engi.CauseTimeout, "begun\n")
		t.Log(x.Ended.Sub(x.Started))
	})
	t.Run("cancel", func(t *testing.T) {
		x := n.start(script("echo begun; sleep 60"))
		n.printed(x.ID, 6)
		if err := n.x.Cancel(t.Context(), "alice", x.ID); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, n.wait(x.ID), -1, engi.CauseCancelled, "begun\n")
	})
	t.Run("another disk", func(t *testing.T) {
		spec := script("echo sized")
		spec.Limits.Size.Disk = 32 << 20
		wantAnswer(t, n.execute(spec), 0, engi.CauseExited, "sized\n")
	})
	fx.onlyPools(n, 0)
}

// childDir names the directory in which TestRealNodeChild runs a node.
const childDir = "ENGI_TEST_NODE_DIR"

// TestRealNodeChild is the node that TestRealSandboxesSurviveTheNode kills.
func TestRealNodeChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs in a process of its own, for TestRealSandboxesSurviveTheNode")
	}
	n := newRealFixture(t, dir).start(twoBash).warm()
	x := n.start(script("seq 1000; sleep 2; seq 1000; exit 5"))
	n.printed(x.ID, 3893)
	n.warm()
	fmt.Printf("running %s %s\n", x.ID, x.Sandbox)
	select {} // until kill -9
}

var twoBash = onHost(pools(fleet.PoolConfig{Language: engi.Bash, Target: 2}))

func TestRealSandboxesSurviveTheNode(t *testing.T) {
	dir := t.TempDir()
	fx := newRealFixture(t, dir)
	child := exec.Command(os.Args[0], "-test.run=^TestRealNodeChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var x engi.Execution
	for lines := bufio.NewScanner(out); x.ID == "" && lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "running %s %s", &x.ID, &x.Sandbox); err != nil {
			t.Log(lines.Text())
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait() // the error is the kill
	if x.ID == "" {
		t.Fatal("the child did not get so far")
	}
	warm := slices.DeleteFunc(fx.machines(), func(id engi.SandboxID) bool { return id == x.Sandbox })

	began := time.Now()
	n := fx.start(twoBash)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("recovered in %v, want 30s at most", took)
	} else {
		t.Log("recovered in", took)
	}
	if got := n.Pools(t.Context()); got[0].Ready != 2 {
		t.Errorf("after the restart: %+v", got)
	}
	var want strings.Builder
	for range 2 {
		for i := range 1000 {
			fmt.Fprintln(&want, i+1)
		}
	}
	text, _, err := n.watch(x.ID, 100)
	if err != nil || text != want.String()[100:] {
		t.Errorf("%d bytes, %v; want %d", len(text), err, want.Len()-100)
	}
	wantAnswer(t, n.wait(x.ID), 5, engi.CauseExited, want.String())
	y := n.execute(script("echo kept"))
	wantAnswer(t, y, 0, engi.CauseExited, "kept\n")
	if !slices.Contains(warm, y.Sandbox) {
		t.Error("a warm sandbox of before was not used")
	}
	fx.onlyPools(n, 0)
}

// BenchmarkRealExecution runs a small program warm in gVisor, one at a time.
func BenchmarkRealExecution(b *testing.B) {
	for _, l := range []struct {
		language engi.Language
		code     string
	}{{engi.Bash, "echo 1"}, {engi.Python, "print(1)"}, {engi.JavaScript, "console.log(1)"}} {
		b.Run(string(l.language), func(b *testing.B) {
			fx := newRealFixture(b, b.TempDir())
			const instances = 10
			n := fx.start(onHost(pools(fleet.PoolConfig{Language: l.language, Target: instances})))
			spec := script(l.code)
			spec.Program.Language = l.language
			spec.Program.Files[0].Path = wire.Entry(l.language)
			var whole, claims, rests []time.Duration
			for i := 0; b.Loop(); i++ {
				if i%instances == 0 {
					b.StopTimer()
					n.warm()
					n.eventually("teardowns are over", func() bool { return len(fx.machines()) == instances })
					time.Sleep(200 * time.Millisecond)
					b.StartTimer()
				}
				began := time.Now()
				x := n.execute(spec)
				if x.Result.Exit.Code != 0 || !x.Result.Warm {
					b.Fatalf("%+v %s", x.Result, x.Result.Stderr)
				}
				whole = append(whole, time.Since(began))
				claims = append(claims, x.Result.Claim)
				rests = append(rests, time.Since(began)-x.Result.Duration)
			}
			report(b, map[string][]time.Duration{"whole": whole, "claim": claims, "rest": rests})
		})
	}
}

// BenchmarkRealBurst runs as many programs at once as the pool has ready
// instances.
func BenchmarkRealBurst(b *testing.B) {
	fx := newRealFixture(b, b.TempDir())
	const instances = 50
	n := fx.start(onHost(pools(fleet.PoolConfig{Language: engi.Bash, Target: instances}))).warm()
	var mu sync.Mutex
	var whole []time.Duration
	for b.Loop() {
		b.StopTimer()
		began := time.Now()
		for n.Pools(b.Context())[0].Ready < instances || len(fx.machines()) != instances {
			time.Sleep(10 * time.Millisecond)
		}
		b.Log("full after", time.Since(began))
		time.Sleep(300 * time.Millisecond)
		b.StartTimer()
		var wg sync.WaitGroup
		began = time.Now()
		for range instances {
			wg.Go(func() {
				x, err := n.x.Start(b.Context(), script("echo 1"))
				if err == nil {
					x, err = n.x.Wait(b.Context(), "alice", x.ID)
				}
				if err != nil || string(x.Result.Stdout) != "1\n" || !x.Result.Warm {
					b.Errorf("%+v, %v", x.Result, err)
				}
				mu.Lock()
				whole = append(whole, time.Since(began))
				mu.Unlock()
			})
		}
		wg.Wait()
	}
	report(b, map[string][]time.Duration{"whole": whole})
}

func report(b *testing.B, all map[string][]time.Duration) {
	for name, d := range all {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(d[len(d)*99/100].Microseconds()), name+"-p99-µs")
	}
}
