package fleet_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// newBaseFixture returns a real fixture with the template base, which has Python.
func newBaseFixture(t testing.TB, dir string) *fixture {
	t.Helper()
	fx := newRealFixture(t, dir)
	cache := os.Getenv("ENGI_CACHE_DIR")
	if cache == "" {
		cache = "/var/cache/engi"
	}
	templates, err := disk.Open(t.Context(), disk.Options{Dir: filepath.Join(cache, "templates")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := templates.Get(t.Context(), "base"); err != nil {
		missing(t, "no template base: "+err.Error())
	}
	fx.templates = templates
	return fx
}

// onBase returns an edit that uses the template base, then calls edit.
func onBase(edit func(*fleet.Options)) func(*fleet.Options) {
	return func(o *fleet.Options) {
		o.Template = "base"
		if edit != nil {
			edit(o)
		}
	}
}

// counter is a program whose memory, open file and count must survive
// hibernation. It answers each line with its state.
const counter = `
import hashlib, os, socket, sys, threading, time
block = bytearray(os.urandom(1 << 20)) * 64
kept = open("/tmp/kept", "w+")
kept.write("written before ")
count = 0
def tick():
    global count
    while True:
        count += 1
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
for line in sys.stdin:
    kept.write(line.strip() + " ")
    kept.flush()
    kept.seek(0)
    text = kept.read()
    print(count, hashlib.sha256(block).hexdigest(), text.strip().replace(" ", "_"), socket.gethostname(), int(time.time() * 1000), os.urandom(16).hex(), os.getpid(), flush=True)
`

// An answer is an answer of counter.
type answer struct {
	count            int
	hash, text, host string
	millis           int64
	random           string
	pid              int

	asked, told time.Time // times at which the line was sent and the answer received
}

// tell sends a line to the tagged counter and returns its answer.
func (n *node) tell(id engi.SandboxID, line string) answer {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	g, release, err := n.Sandboxes().Enter(ctx, "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	defer release()
	p, err := g.Attach(ctx, "counter")
	if err != nil {
		n.t.Fatal(err)
	}
	before := n.said(ctx, p)
	a := answer{asked: time.Now()}
	if err := p.Input(ctx, []byte(line+"\n")); err != nil {
		n.t.Fatal(err)
	}
	var text string
	for text == before || !strings.HasSuffix(text, "\n") {
		text = n.said(ctx, p)
		if ctx.Err() != nil {
			n.t.Fatal("no answer")
		}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	a.told = time.Now()
	if _, err := fmt.Sscan(lines[len(lines)-1], &a.count, &a.hash, &a.text, &a.host, &a.millis, &a.random, &a.pid); err != nil {
		n.t.Fatalf("%q: %v", lines[len(lines)-1], err)
	}
	return a
}

// said returns the output of a process so far.
func (n *node) said(ctx context.Context, p engi.Process) string {
	short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	var b strings.Builder
	for c, err := range p.Output(short, 0) {
		if err != nil {
			break
		}
		b.Write(c.Data)
	}
	return b.String()
}

// startCounter starts counter in a sandbox, and a terminal with a scrollback.
func (n *node) startCounter(id engi.SandboxID) {
	n.t.Helper()
	g, release, err := n.Sandboxes().Enter(n.t.Context(), "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	defer release()
	_, err = g.Start(n.t.Context(), engi.Command{Args: []string{"python3", "-c", counter}, Tag: "counter", Stdin: engi.StdinPipe})
	if err != nil {
		n.t.Fatal(err)
	}
	p, err := g.Start(n.t.Context(), engi.Command{
		Args: []string{"bash", "--norc"}, Env: map[string]string{"PS1": "$ "}, Tag: "terminal", Stdin: engi.StdinPipe,
		Terminal: &engi.TerminalSize{Cols: 80, Rows: 24},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if err := p.Input(n.t.Context(), []byte("secret=4711; echo scroll$((1+1))back\n")); err != nil {
		n.t.Fatal(err)
	}
	n.terminalShows(id, "", "scroll2back")
}

// terminalShows types a line and waits until the terminal's scrollback
// contains want.
func (n *node) terminalShows(id engi.SandboxID, line string, want ...string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	g, release, err := n.Sandboxes().Enter(ctx, "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	defer release()
	p, err := g.Attach(ctx, "terminal")
	if err != nil {
		n.t.Fatal(err)
	}
	if line != "" {
		if err := p.Input(ctx, []byte(line+"\n")); err != nil {
			n.t.Fatal(err)
		}
	}
	for {
		text := n.said(ctx, p)
		missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return strings.Contains(text, s) })
		if len(missing) == 0 {
			return
		}
		if ctx.Err() != nil {
			n.t.Fatalf("the terminal shows %q, want %q in it", text, missing)
		}
	}
}

// nearNow checks the clock of a sandbox, which was read between the question and the
// answer. It may be 2 s off.
func nearNow(t *testing.T, what string, a answer) {
	t.Helper()
	if at := time.UnixMilli(a.millis); at.Before(a.asked.Add(-2*time.Second)) || at.After(a.told.Add(2*time.Second)) {
		t.Errorf("%s: the clock in the sandbox said %v between %v and %v", what, at, a.asked, a.told)
	}
}

func TestRealHibernation(t *testing.T) {
	fx := newBaseFixture(t, t.TempDir())
	n := fx.start(onBase(pools(fleet.PoolConfig{Target: 1}))).warm()
	spec := engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: time.Hour, AutoResume: true}, Env: map[string]string{"MINE": "1"}}
	s := n.create(spec)
	n.startCounter(s.ID)
	first := n.tell(s.ID, "one")
	nearNow(t, "before", first)

	t.Run("pause", func(t *testing.T) {
		if err := n.Lifecycle().Pause(t.Context(), "alice", s.ID); err != nil {
			t.Fatal(err)
		}
		n.resume(s.ID, false)
		if got := n.tell(s.ID, "paused"); got.hash != first.hash || got.pid != first.pid || got.count <= first.count {
			t.Errorf("before %+v\nafter %+v", first, got)
		}
	})
	t.Run("hibernate", func(t *testing.T) {
		before := n.tell(s.ID, "two")
		began := time.Now()
		n.hibernate(s.ID, false)
		t.Log("hibernated in", time.Since(began))
		if slices.Contains(fx.machines(), s.ID) {
			t.Error("its machine is there still")
		}
		asleep := time.Now()
		time.Sleep(3 * time.Second)
		began = time.Now()
		slept := began.Sub(asleep)
		n.resume(s.ID, false)
		t.Log("resumed in", time.Since(began))
		after := n.tell(s.ID, "three")
		if after.hash != before.hash || after.pid != before.pid || after.count <= before.count ||
			after.text != "written_before_one_paused_two_three" || after.random == before.random {
			t.Errorf("before %+v\nafter %+v", before, after)
		}
		// counter counts at most once per 10 ms.
		if awake := after.told.Sub(before.asked) - slept; after.count > before.count+50+int(awake/(10*time.Millisecond)) {
			t.Errorf("it counted on from %d to %d while it slept: it was awake for %v", before.count, after.count, awake)
		}
		nearNow(t, "after a sleep", after)
		n.terminalShows(s.ID, "echo it is $secret", "scroll2back", "it is 4711")
		if out := n.mustRun(s.ID, "echo $ENGI_SANDBOX_ID $MINE; hostname"); out != string(s.ID)+" 1\n"+after.host+"\n" {
			t.Errorf("output %q, the program says it is on %s", out, after.host)
		}
	})
	t.Run("disk only", func(t *testing.T) {
		d := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: time.Hour}})
		n.mustRun(d.ID, "mkdir -p /workspace/deep; seq 100000 > /workspace/deep/file; rm ~/.bashrc; chmod 640 ~/.profile; ln -s /etc /workspace/link")
		want := n.mustRun(d.ID, "sha256sum /workspace/deep/file")
		n.hibernate(d.ID, true)
		n.resume(d.ID, false)
		out := n.mustRun(d.ID, "sha256sum /workspace/deep/file; test -e ~/.bashrc || echo gone; stat -c %a ~/.profile; readlink /workspace/link")
		if out != want+"gone\n640\n/etc\n" {
			t.Errorf("output %q", out)
		}
		n.hibernate(d.ID, false)
		n.resume(d.ID, true)
		if out := n.mustRun(d.ID, "sha256sum /workspace/deep/file"); out != want {
			t.Errorf("after a cold resume: %q", out)
		}
		if err := n.Sandboxes().Stop(t.Context(), "alice", d.ID); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("fork", func(t *testing.T) {
		before := n.tell(s.ID, "fork")
		began := time.Now()
		all, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 3, Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("forked 3 in", time.Since(began))
		random := map[string]bool{n.tell(s.ID, "original").random: true}
		for i, f := range all {
			if f.Err != nil {
				t.Fatal(f.Err)
			}
			mine := "copy" + strconv.Itoa(i)
			got := n.tell(f.Sandbox.ID, mine)
			if got.hash != before.hash || got.pid != before.pid || !strings.HasSuffix(got.text, "fork_"+mine) {
				t.Errorf("before %+v\ncopy %+v", before, got)
			}
			nearNow(t, "in a copy", got)
			if random[got.random] {
				t.Error("two copies drew the same random bytes")
			}
			random[got.random] = true
			if out := n.mustRun(f.Sandbox.ID, "echo $ENGI_SANDBOX_ID; hostname"); out != string(f.Sandbox.ID)+"\n"+got.host+"\n" {
				t.Errorf("output in copy %s: %q", f.Sandbox.ID, out)
			}
			n.terminalShows(f.Sandbox.ID, "echo it is $secret", "scroll2back", "it is 4711")
			n.mustRun(f.Sandbox.ID, "echo "+mine+" > /tmp/own")
		}
		for i, f := range all {
			if out := n.mustRun(f.Sandbox.ID, "cat /tmp/own"); out != fmt.Sprintf("copy%d\n", i) {
				t.Errorf("copy %d has %q", i, out)
			}
			if err := n.Sandboxes().Stop(t.Context(), "alice", f.Sandbox.ID); err != nil {
				t.Error(err)
			}
		}
		if out := n.mustRun(s.ID, "test -e /tmp/own || echo none"); out != "none\n" {
			t.Errorf("the original has %q", out)
		}
	})
	t.Run("paused", func(t *testing.T) {
		before := n.tell(s.ID, "freeze")
		if err := n.Lifecycle().Pause(t.Context(), "alice", s.ID); err != nil {
			t.Fatal(err)
		}
		all, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 1})
		if err != nil || all[0].Err != nil {
			t.Fatal(err, all)
		}
		if got := n.tell(all[0].Sandbox.ID, "unpaused"); got.hash != before.hash {
			t.Errorf("before %+v\ncopy %+v", before, got)
		}
		if err := n.Sandboxes().Stop(t.Context(), "alice", all[0].Sandbox.ID); err != nil {
			t.Error(err)
		}
		n.wantState(s.ID, engi.Paused)
		n.hibernate(s.ID, false)
		// Use resumes the sandbox.
		if got := n.tell(s.ID, "resumed"); got.hash != before.hash || got.pid != before.pid {
			t.Errorf("before %+v\nafter %+v", before, got)
		}
	})
	t.Run("samples", func(t *testing.T) {
		all, err := n.Sandboxes().Samples(t.Context(), "alice", s.ID, time.Time{}, time.Time{})
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		last := all[len(all)-1]
		t.Logf("%+v", last)
		if last.Memory < 64<<20 || last.MemoryLimit != 512<<20 || last.Processes == 0 || last.DiskCapacity == 0 {
			t.Errorf("%+v", last)
		}
	})
}

// TestRealHibernationChild is the node that TestRealHibernatedSurviveTheNode kills.
func TestRealHibernationChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs in a process of its own, for TestRealHibernatedSurviveTheNode")
	}
	n := newBaseFixture(t, dir).start(onBase(nil))
	keep := engi.Lifetime{Timeout: time.Hour, AutoResume: true}
	var ids []string
	for i := range 4 {
		s := n.create(engi.SandboxSpec{Lifetime: keep})
		n.mustRun(s.ID, "head -c 30000000 /dev/urandom > /tmp/data; sync")
		sum := n.mustRun(s.ID, "sha256sum < /tmp/data")
		ids = append(ids, string(s.ID)+" "+sum[:64])
		switch i {
		case 1:
			n.hibernate(s.ID, false)
		case 2:
			if err := n.Lifecycle().Pause(t.Context(), "alice", s.ID); err != nil {
				t.Fatal(err)
			}
		case 3:
			go n.Lifecycle().Hibernate(context.Background(), "alice", s.ID, false)
			time.Sleep(100 * time.Millisecond)
		}
	}
	fmt.Println("sandboxes", strings.Join(ids, " "))
	select {} // until kill -9
}

func TestRealHibernatedSurviveTheNode(t *testing.T) {
	dir := t.TempDir()
	fx := newBaseFixture(t, dir)
	child := exec.Command(os.Args[0], "-test.run=^TestRealHibernationChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); said == nil && lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "sandboxes "); ok {
			said = strings.Fields(rest)
		} else {
			t.Log(lines.Text())
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait() // it was killed
	if len(said) != 8 {
		t.Fatal("the child did not get so far")
	}
	began := time.Now()
	n := fx.start(onBase(nil))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("recovered in %v, want 30s at most", took)
	} else {
		t.Log("recovered in", took)
	}
	for i, want := range []string{"running", "hibernated", "paused", ""} {
		id := engi.SandboxID(said[2*i])
		s := n.sandbox(id)
		t.Log(id, s.State)
		if want != "" && string(s.State) != want {
			t.Errorf("sandbox %d is %s, want %s", i, s.State, want)
		}
		if s.State == engi.Stopped {
			continue
		}
		if got := n.mustRun(id, "sha256sum < /tmp/data")[:64]; got != said[2*i+1] {
			t.Errorf("sandbox %d has %s, want %s", i, got, said[2*i+1])
		}
	}
}

// BenchmarkRealLifecycle measures the state changes of a sandbox with an idle Python.
func BenchmarkRealLifecycle(b *testing.B) {
	fx := newBaseFixture(b, b.TempDir())
	n := fx.start(func(o *fleet.Options) {
		onBase(pools(fleet.PoolConfig{Target: 2}))(o)
		o.Log = nil
		o.Snapshots = openSnapshots(b)
	}).warm()
	ctx, life := b.Context(), n.Lifecycle()
	took := map[string][]time.Duration{}
	measure := func(what string, act func() error) {
		b.Helper()
		began := time.Now()
		if err := act(); err != nil {
			b.Fatal(what, ": ", err)
		}
		took[what] = append(took[what], time.Since(began))
	}
	for b.Loop() {
		n.warm()
		time.Sleep(300 * time.Millisecond)
		var s, cold engi.Sandbox
		var err error
		measure("create-warm", func() error { s, err = n.Sandboxes().Create(ctx, engi.SandboxSpec{Owner: "alice"}); return err })
		measure("create-cold", func() error {
			cold, err = n.Sandboxes().Create(ctx, engi.SandboxSpec{Owner: "alice", Size: engi.Size{Disk: 1 << 30}})
			return err
		})
		measure("stop", func() error { return n.Sandboxes().Stop(ctx, "alice", cold.ID) })
		n.mustRun(s.ID, "setsid python3 -c 'import time; time.sleep(1000)' >/dev/null 2>&1 & sleep 0.3")
		measure("pause", func() error { return life.Pause(ctx, "alice", s.ID) })
		measure("unpause", func() error { _, err := life.Resume(ctx, "alice", s.ID, 0, false); return err })
		measure("hibernate", func() error { return life.Hibernate(ctx, "alice", s.ID, false) })
		measure("resume", func() error { _, err := life.Resume(ctx, "alice", s.ID, 0, false); return err })
		measure("hibernate-disk", func() error { return life.Hibernate(ctx, "alice", s.ID, true) })
		measure("resume-disk", func() error { _, err := life.Resume(ctx, "alice", s.ID, 0, false); return err })
		measure("snapshot", func() error {
			_, err := life.Snapshot(ctx, "alice", s.ID, engi.SnapshotSpec{TTL: time.Minute})
			return err
		})
		measure("fork-1", func() error {
			all, err := life.Fork(ctx, "alice", s.ID, engi.ForkSpec{Count: 1})
			if err == nil && all[0].Err != nil {
				err = all[0].Err
			}
			if err == nil {
				err = n.Sandboxes().Stop(ctx, "alice", all[0].Sandbox.ID)
			}
			return err
		})
		if err := n.Sandboxes().Stop(ctx, "alice", s.ID); err != nil {
			b.Fatal(err)
		}
	}
	report(b, took)
}
