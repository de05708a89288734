package fleet_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
)

var warmBash = fleet.PoolConfig{Language: engi.Bash, Target: 2}

func TestExecution(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script(`read line; echo "$line-$1-$FOO"; echo bad >&2; exit 3`)
	spec.Program.Args = []string{"arg"}
	spec.Program.Env = map[string]string{"FOO": "foo"}
	spec.Program.Stdin = []byte("in\n")
	started := n.start(spec)
	if started.State != engi.ExecutionRunning || started.Sandbox == "" || started.Started.IsZero() {
		t.Errorf("started %+v, want it running in a sandbox", started)
	}
	x := n.wait(started.ID)
	wantAnswer(t, x, 3, engi.CauseExited, "in-arg-foo\n")
	r := x.Result
	if string(r.Stderr) != "bad\n" || !r.Warm || r.Tier != engi.TierMemory || r.Duration <= 0 || r.Claim <= 0 || r.Queued != 0 {
		t.Errorf("result %+v", r)
	}
	n.eventually("the sandbox is gone", func() bool { return !slices.Contains(fx.machines(), x.Sandbox) })
	var sandbox engi.Sandbox
	n.eventually("the sandbox is stopped", func() bool {
		var err error
		if sandbox, err = n.Sandboxes().Get(t.Context(), "alice", x.Sandbox); err != nil {
			t.Fatal(err)
		}
		return sandbox.State == engi.Stopped
	})
	if sandbox.End != engi.CauseExited || sandbox.Execution != x.ID || sandbox.Stopped.IsZero() {
		t.Errorf("record of the sandbox: %+v", sandbox)
	}
	again, err := n.x.Get(t.Context(), "alice", x.ID)
	if err != nil || string(again.Result.Stdout) != string(r.Stdout) {
		t.Errorf("Get: %+v, %v", again, err)
	}
	n.warm()
}

func TestSandboxServesOneExecution(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 3})).warm()
	var wg sync.WaitGroup
	var mu sync.Mutex
	used := map[engi.SandboxID]int{}
	for i := range 15 {
		wg.Go(func() {
			x, err := n.x.Start(t.Context(), script(fmt.Sprintf("ls; echo %d > left-behind; echo %d", i, i)))
			if err != nil {
				t.Error(err)
				return
			}
			x, err = n.x.Wait(t.Context(), "alice", x.ID)
			if err != nil {
				t.Error(err)
				return
			}
			wantAnswer(t, x, 0, engi.CauseExited, fmt.Sprintf("main.sh\n%d\n", i))
			mu.Lock()
			used[x.Sandbox]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(used) != 15 {
		t.Errorf("15 executions used %d sandboxes", len(used))
	}
	fx.onlyPools(n, 0)
}

func TestClaimsOfAnEmptyPool(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
		o.MaxSandboxes = 1
		o.MaxQueue = 1
		o.Pools = []fleet.PoolConfig{{Language: engi.Bash, Target: 1, OnEmpty: engi.PoolReject}}
	}).warm()
	busy := n.start(script("sleep 60"))

	_, err := n.x.Start(t.Context(), script("true"))
	wantKind(t, "reject", err, engi.Exhausted)
	if r := engi.RetryOf(err); r.AfterMillis == 0 || r.Position == 0 || engi.RemedyOf(err) == "" {
		t.Errorf("reject without a hint: %+v", r)
	}

	wait := script("true")
	wait.OnEmpty, wait.ClaimTimeout = engi.PoolWait, 50*time.Millisecond
	x := n.start(wait)
	if x.State != engi.ExecutionQueued {
		t.Errorf("state %s, want queued", x.State)
	}
	got, err := n.x.Wait(t.Context(), "alice", x.ID)
	wantKind(t, "claim timeout", err, engi.Exhausted)
	if got.State != engi.ExecutionRefused || engi.RetryOf(err).Position != 1 {
		t.Errorf("after the claim timeout: %+v, retry %+v", got, engi.RetryOf(err))
	}
	_, _, err = n.watch(x.ID, 0)
	wantKind(t, "watch a refused one", err, engi.Exhausted)

	wait.OnEmpty, wait.ClaimTimeout = engi.PoolBootSync, time.Minute
	queued := n.start(wait)
	_, err = n.x.Start(t.Context(), wait)
	wantKind(t, "full queue", err, engi.Exhausted)
	if engi.RetryOf(err).Position != 2 {
		t.Errorf("full queue: %+v, want position 2", engi.RetryOf(err))
	}

	if err := n.x.Cancel(t.Context(), "alice", busy.ID); err != nil {
		t.Fatal(err)
	}
	y := n.wait(queued.ID)
	wantAnswer(t, y, 0, engi.CauseExited, "")
	if y.Result.Queued <= 0 || y.Result.Warm {
		t.Errorf("result %+v, want queue time and no warmth", y.Result)
	}
	if left := fx.files(); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
}

func TestDemandWithoutAPool(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) { o.Demand = 1 })
	wantAnswer(t, n.execute(script("echo cold")), 0, engi.CauseExited, "cold\n")
	n.warm()
	x := n.execute(script("echo warm"))
	wantAnswer(t, x, 0, engi.CauseExited, "warm\n")
	if !x.Result.Warm {
		t.Error("the second run was not warm")
	}
}

func TestBarePoolServesALanguage(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Target: 1})).warm()
	x := n.start(script("echo bare"))
	if x.State != engi.ExecutionRunning {
		t.Errorf("state %s, want running at once", x.State)
	}
	wantAnswer(t, n.wait(x.ID), 0, engi.CauseExited, "bare\n")
}

func TestOwnersSeeOnlyTheirs(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script("sleep 30"))
	for what, f := range map[string]func(engi.Viewer) error{
		"get":      func(o engi.Viewer) error { _, err := n.x.Get(t.Context(), o, x.ID); return err },
		"wait":     func(o engi.Viewer) error { _, err := n.x.Wait(t.Context(), o, x.ID); return err },
		"cancel":   func(o engi.Viewer) error { return n.x.Cancel(t.Context(), o, x.ID) },
		"artifact": func(o engi.Viewer) error { _, err := n.x.Artifact(t.Context(), o, x.ID, "a"); return err },
		"watch": func(o engi.Viewer) error {
			for _, err := range n.x.Watch(t.Context(), o, x.ID, 0) {
				return err
			}
			return nil
		},
		"sandbox": func(o engi.Viewer) error { _, err := n.Sandboxes().Get(t.Context(), o, x.Sandbox); return err },
		"stop":    func(o engi.Viewer) error { return n.Sandboxes().Stop(t.Context(), o, x.Sandbox) },
	} {
		wantKind(t, what, f("bob"), engi.NotFound)
	}
	if list, err := n.x.List(t.Context(), "bob", engi.ExecutionFilter{}); err != nil || len(list) != 0 {
		t.Errorf("bob lists %v, %v", list, err)
	}
	if list, err := n.Sandboxes().List(t.Context(), "bob", engi.SandboxFilter{}); err != nil || len(list) != 0 {
		t.Errorf("bob lists %v, %v", list, err)
	}
	if list, err := n.Sandboxes().List(t.Context(), engi.Everyone, engi.SandboxFilter{}); err != nil || len(list) < 2 {
		t.Errorf("the node lists %v, %v", list, err)
	}
	if err := n.x.Cancel(t.Context(), engi.Everyone, x.ID); err != nil {
		t.Error(err)
	}
}

func TestWatchersLoseNothing(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script(`for i in $(seq 2000); do echo "line $i of the output"; done; read; echo end`))
	// stdin is empty: read ends at once, so the run may end before or after
	// a watcher comes; both must give the same.
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d of the output\n", i+1)
	}
	want.WriteString("end\n")
	var wg sync.WaitGroup
	check := func(from int64) {
		out, kinds, err := n.watch(x.ID, from)
		if err != nil || out != want.String()[from:] {
			t.Errorf("from %d: %d bytes, %v; want %d", from, len(out), err, want.Len()-int(from))
			return
		}
		if kinds[len(kinds)-1] != engi.EventResult || (kinds[0] == engi.EventStarted) != (from == 0) {
			t.Errorf("from %d: events %v", from, kinds)
		}
	}
	for _, from := range []int64{0, 0, 1, 4096, int64(want.Len())} {
		wg.Go(func() { check(from) })
	}
	wg.Wait()
	n.wait(x.ID)
	for _, from := range []int64{0, 77, 40_000, int64(want.Len())} {
		check(from)
	}
	for _, from := range []int64{-1, int64(want.Len()) + 1} {
		_, _, err := n.watch(x.ID, from)
		wantKind(t, fmt.Sprint("watch from ", from), err, engi.Invalid)
	}
}

func TestSlowWatcherHoldsNothingUp(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script("sleep 0.05; head -c 600000 /dev/zero; echo"))
	for e, err := range n.x.Watch(t.Context(), "alice", x.ID, 0) { // held open while the run ends
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != engi.EventStarted {
			continue
		}
		got := n.wait(x.ID)
		if len(got.Result.Stdout) != 600001 {
			t.Errorf("%d bytes", len(got.Result.Stdout))
		}
	}
}

func TestEndsHaveCauses(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 4})).warm()
	t.Run("timeout", func(t *testing.T) {
		spec := script("echo begun; sleep 60")
		spec.Limits.Timeout = 300 * time.Millisecond
		x := n.execute(spec)
		wantAnswer(t, x, -1, engi.CauseTimeout, "begun\n")
		if x.Result.Error == "" || x.Result.Duration < 300*time.Millisecond {
			t.Errorf("%+v", x.Result)
		}
	})
	t.Run("output", func(t *testing.T) {
		spec := script("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done")
		spec.Limits.Output = 10_000
		x := n.execute(spec)
		if x.Result.Exit.Cause != engi.CauseOutput || len(x.Result.Stdout) != 10_000 || !x.Result.StdoutTruncated {
			t.Errorf("%+v with %d bytes", x.Result.Exit, len(x.Result.Stdout))
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		x := n.start(script("echo begun; sleep 60"))
		n.printed(x.ID, 6)
		for range 2 {
			if err := n.x.Cancel(t.Context(), "alice", x.ID); err != nil {
				t.Fatal(err)
			}
		}
		wantAnswer(t, n.wait(x.ID), -1, engi.CauseCancelled, "begun\n")
		if err := n.x.Cancel(t.Context(), "alice", x.ID); err != nil {
			t.Error("cancel after the end: ", err)
		}
	})
	t.Run("sandbox stopped", func(t *testing.T) {
		x := n.start(script("echo begun; sleep 60"))
		n.printed(x.ID, 6)
		x = n.now(x.ID)
		if err := n.Sandboxes().Stop(t.Context(), "alice", x.Sandbox); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, n.wait(x.ID), -1, engi.CauseCancelled, "begun\n")
		if slices.Contains(fx.machines(), x.Sandbox) {
			t.Error("Stop returned before the machine was gone")
		}
		if err := n.Sandboxes().Stop(t.Context(), "alice", x.Sandbox); err != nil {
			t.Error("Stop after the end: ", err)
		}
	})
	t.Run("sandbox lost", func(t *testing.T) {
		x := n.start(script("echo begun; sleep 60"))
		n.printed(x.ID, 6)
		fx.host.Kill(n.now(x.ID).Sandbox)
		got := n.wait(x.ID)
		wantAnswer(t, got, -1, engi.CauseSandboxLost, "begun\n")
		if got.Result.Error == "" {
			t.Errorf("%+v", got.Result)
		}
	})
	t.Run("memory", func(t *testing.T) {
		x := n.start(script("echo begun; sleep 60"))
		n.printed(x.ID, 6)
		fx.host.FillMemory(n.now(x.ID).Sandbox)
		wantAnswer(t, n.wait(x.ID), -1, engi.CauseMemory, "begun\n")
	})
	fx.onlyPools(n, 0)
}

func TestArtifacts(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script("mkdir -p a/b; printf one > a/b/one; head -c 100000 /dev/zero > zeros; chmod 600 zeros; ln -s /etc/passwd link")
	x := n.execute(spec)
	wantAnswer(t, x, 0, engi.CauseExited, "")
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	want := map[string]engi.Artifact{
		"a/b/one": {Path: "a/b/one", Size: 3, Mode: 0o644, SHA256: sum([]byte("one"))},
		"zeros":   {Path: "zeros", Size: 100000, Mode: 0o600, SHA256: sum(make([]byte, 100000))},
	}
	got := map[string]engi.Artifact{}
	for _, a := range x.Result.Artifacts {
		got[a.Path] = a
	}
	if !maps.Equal(got, want) {
		t.Errorf("artifacts %+v, want %+v", got, want)
	}
	f, err := n.x.Artifact(t.Context(), "alice", x.ID, "a/b/one")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	f.Close()
	if err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
	for _, path := range []string{"link", "../output", "a/b", ""} {
		_, err := n.x.Artifact(t.Context(), "alice", x.ID, path)
		wantKind(t, "artifact "+path, err, engi.NotFound)
	}

	before := fx.store.gets.Load()
	all, err := n.x.Artifacts(t.Context(), "alice", x.ID, 50_000)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d contents, %v", len(all), err)
	}
	for i, a := range x.Result.Artifacts {
		if want := map[string]string{"a/b/one": "one"}[a.Path]; string(all[i]) != want {
			t.Errorf("%s has %q, want %q", a.Path, all[i], want) // the artifact zeros does not fit
		}
	}
	if got := fx.store.gets.Load() - before; got != 1 {
		t.Errorf("the record was read %d times", got)
	}
	_, err = n.x.Artifacts(t.Context(), "bob", x.ID, 50_000)
	wantKind(t, "another's artifacts", err, engi.NotFound)

	spec = script("for i in 1 2 3 4 5; do echo $i > f$i; done")
	spec.Limits.ArtifactCount = 2
	x = n.execute(spec)
	if len(x.Result.Artifacts) != 2 || x.Result.ArtifactsLeft != 3 {
		t.Errorf("%d artifacts, %d left; want 2 and 3", len(x.Result.Artifacts), x.Result.ArtifactsLeft)
	}
}

func TestIdempotency(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script("echo once")
	spec.Idempotency = "k"
	first := n.execute(spec)
	again := n.start(spec)
	if again.ID != first.ID || again.Result == nil || string(again.Result.Stdout) != "once\n" {
		t.Errorf("repeated: %+v, want execution %s with its answer", again, first.ID)
	}
	other := spec
	other.Program.Args = []string{"x"}
	_, err := n.x.Start(t.Context(), other)
	wantKind(t, "the same key for something else", err, engi.Conflict)

	spec.Idempotency = "race"
	var wg sync.WaitGroup
	ids := make(chan engi.ExecutionID, 8)
	for range 8 {
		wg.Go(func() {
			x, err := n.x.Start(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			ids <- x.ID
		})
	}
	wg.Wait()
	close(ids)
	seen := map[engi.ExecutionID]bool{}
	for id := range ids {
		seen[id] = true
	}
	if len(seen) != 1 {
		t.Errorf("8 repetitions made %d executions", len(seen))
	}
	n.warm()
}

func TestUnusualSizeBoots(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script("echo sized")
	spec.Limits.Size.Disk = 123 << 20
	x := n.start(spec)
	if x.State != engi.ExecutionQueued {
		t.Errorf("state %s, want queued for a boot", x.State)
	}
	x = n.wait(x.ID)
	wantAnswer(t, x, 0, engi.CauseExited, "sized\n")
	sandbox, err := n.Sandboxes().Get(t.Context(), "alice", x.Sandbox)
	if err != nil || sandbox.Size.Disk != 123<<20 {
		t.Errorf("sandbox %+v, %v", sandbox, err)
	}
	n.eventually("the pool of that size is gone", func() bool { return len(n.Pools(t.Context())) == 1 })
}

func TestUnenforcedSizeIsReported(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script("echo resized")
	spec.Limits.Size.Memory = 64 << 20
	x := n.execute(spec)
	wantAnswer(t, x, 0, engi.CauseExited, "resized\n")
	for _, limit := range []string{"memory", "vcpus"} {
		if !slices.Contains(x.Result.NotEnforced, limit) {
			t.Errorf("not enforced: %v, want %s among them", x.Result.NotEnforced, limit)
		}
	}
}

func TestNewTemplateReplacesOldInstances(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 3})).warm()
	fx.fakes.Set(base(t, "d2"))
	n.eventually("all instances are new", func() bool {
		ready := 0
		for _, p := range n.Pools(t.Context()) {
			ready += p.Ready
			if p.Digest != "d2" {
				return false
			}
		}
		if ready < 3 {
			t.Fatalf("only %d ready", ready)
		}
		list, err := n.Sandboxes().List(t.Context(), engi.Everyone, engi.SandboxFilter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 3 && !slices.ContainsFunc(list, func(s engi.Sandbox) bool { return s.Digest != "d2" })
	})
	if pins := fx.fakes.Pins(); !maps.Equal(pins, map[string]int{"d2": 3}) {
		t.Errorf("pins %v, want 3 of d2", pins)
	}
}

func TestWarmSaysWhyNot(t *testing.T) {
	fx := newFixture(t)
	fx.fakes.Remove("base")
	n := fx.start(pools(warmBash))
	n.eventually("a boot failed", func() bool {
		err := n.Warm(t.Context())
		return err != nil && strings.Contains(err.Error(), "no template base")
	})
	wantKind(t, "Warm", n.Warm(t.Context()), engi.Unavailable)
	_, err := n.x.Start(t.Context(), script("true"))
	wantKind(t, "Start", err, engi.NotFound)
	fx.fakes.Set(base(t, "d1"))
	n.warm()
}

func TestTemplateBuiltByAnotherProcess(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 2})).warm()
	fx.fakes.SetQuietly(base(t, "d2"))
	n.execute(script(":")) // the next instance is of the new build
	n.eventually("all instances are new", func() bool {
		list, err := n.Sandboxes().List(t.Context(), engi.Everyone, engi.SandboxFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 6 {
			t.Fatalf("%d sandboxes for a pool of 2", len(list))
		}
		return len(list) == 2 && !slices.ContainsFunc(list, func(s engi.Sandbox) bool { return s.Digest != "d2" })
	})
}

func TestPoolOfAnUnsupportedLanguage(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash, fleet.PoolConfig{Language: engi.Go, Target: 1})).warm()
	if got := len(fx.machines()); got != 2 {
		t.Errorf("%d machines, want 2", got)
	}
	wantAnswer(t, n.execute(script("echo fine")), 0, engi.CauseExited, "fine\n")
}

func TestDeadInstancesAreReplaced(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	victim := fx.machines()[0]
	fx.host.Kill(victim)
	n.eventually("another took its place", func() bool {
		ids := fx.machines()
		return len(ids) == 2 && !slices.Contains(ids, victim)
	})
	n.warm()
	wantAnswer(t, n.execute(script("echo alive")), 0, engi.CauseExited, "alive\n")
}

func TestOldExecutionsGo(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	var ids []engi.ExecutionID
	for range 5 {
		ids = append(ids, n.execute(script("head -c 100000 /dev/zero; echo x > file")).ID)
	}
	n.stop()
	n = fx.start(func(o *fleet.Options) { o.KeepCount = 2 })
	n.eventually("old ones are gone", func() bool {
		list, err := n.x.List(t.Context(), "alice", engi.ExecutionFilter{})
		if err != nil {
			t.Fatal(err)
		}
		dirs, err := os.ReadDir(filepath.Join(fx.dir, "executions"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 2 && len(dirs) == 2
	})
	for i, id := range ids {
		_, err := n.x.Get(t.Context(), "alice", id)
		if i < 3 {
			wantKind(t, "an old one", err, engi.NotFound)
		} else if err != nil {
			t.Error(err)
		}
	}
}

func TestFailingStoreIsRetried(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script("sleep 0.1; echo kept"))
	fx.store.Fail(func(act string) error {
		if act == "Update" {
			return engi.Errorf(engi.Exhausted, "disk full")
		}
		return nil
	})
	_, err := n.x.Wait(t.Context(), "alice", x.ID)
	wantKind(t, "Wait", err, engi.Exhausted)
	if got, err := n.x.Get(t.Context(), "alice", x.ID); err != nil || got.State != engi.ExecutionRunning {
		t.Errorf("%+v, %v; want it running", got, err)
	}
	fx.store.Fail(nil)
	n.eventually("its end is stored", func() bool {
		got, err := n.x.Get(t.Context(), "alice", x.ID)
		return err == nil && got.State == engi.ExecutionDone
	})
	wantAnswer(t, n.wait(x.ID), 0, engi.CauseExited, "kept\n")

	fx.store.Fail(func(act string) error { return engi.Errorf(engi.Exhausted, "disk full") })
	_, err = n.x.Start(t.Context(), script("true"))
	wantKind(t, "Start", err, engi.Exhausted)
	fx.store.Fail(nil)
	wantAnswer(t, n.execute(script("echo better")), 0, engi.CauseExited, "better\n")
}

func TestEphemeralNodeLeavesNothing(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
		o.Ephemeral = true
		o.Pools = []fleet.PoolConfig{{Language: engi.Bash, Target: 3}}
	}).warm()
	n.start(script("sleep 60"))
	n.stop()
	if ids := fx.machines(); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
	if pins := fx.fakes.Pins(); len(pins) != 0 {
		t.Errorf("pins left: %v", pins)
	}
}

func TestNotServing(t *testing.T) {
	fx := newFixture(t)
	m, err := fleet.Open(t.Context(), fleet.Options{
		Providers: []provider.Provider{memory.New(fx.host)}, Templates: fx.templates, Store: fx.store, Dir: fx.dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Executions().Start(t.Context(), script("true"))
	wantKind(t, "Start before Run", err, engi.Unavailable)
	wantKind(t, "Warm before Run", m.Warm(t.Context()), engi.Unavailable)
}

func TestOpenRefusesNonsense(t *testing.T) {
	fx := newFixture(t)
	good := func() fleet.Options {
		return fleet.Options{Providers: []provider.Provider{memory.New(fx.host)}, Templates: fx.templates, Store: fx.store, Dir: fx.dir}
	}
	for name, edit := range map[string]func(*fleet.Options){
		"no provider":     func(o *fleet.Options) { o.Providers = nil },
		"no store":        func(o *fleet.Options) { o.Store = nil },
		"no templates":    func(o *fleet.Options) { o.Templates = nil },
		"relative dir":    func(o *fleet.Options) { o.Dir = "x" },
		"targets too big": func(o *fleet.Options) { o.MaxSandboxes = 1; o.Pools = []fleet.PoolConfig{warmBash} },
		"target over max": func(o *fleet.Options) { o.Pools = []fleet.PoolConfig{{Target: 2, Max: 1}} },
		"twice":           func(o *fleet.Options) { o.Pools = []fleet.PoolConfig{warmBash, warmBash} },
		"language":        func(o *fleet.Options) { o.Pools = []fleet.PoolConfig{{Language: "cobol", Target: 1}} },
		"negative":        func(o *fleet.Options) { o.MaxQueue = -1 },
		"default > max":   func(o *fleet.Options) { o.Max.Timeout = time.Second },
		"output":          func(o *fleet.Options) { o.Max.Output = 1 << 40 },
	} {
		o := good()
		edit(&o)
		_, err := fleet.Open(t.Context(), o)
		wantKind(t, name, err, engi.Invalid)
	}
}

func TestMetrics(t *testing.T) {
	fx := newFixture(t)
	reg := prometheus.NewRegistry()
	n := fx.start(func(o *fleet.Options) {
		o.Metrics = reg
		o.Pools = []fleet.PoolConfig{warmBash}
	}).warm()
	n.execute(script("exit 1"))
	got := map[string]bool{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] = true
		}
	}
	for _, want := range []string{
		"engi_pool_sandboxes bash target base", "engi_pool_sandboxes bash ready base", "engi_pool_sandboxes bash used base",
		"engi_claim_seconds ready", "engi_boot_seconds", "engi_boot_failures_total", "engi_queue_length", "engi_sandboxes",
		"engi_executions_total exited bash", "engi_execution_seconds bash",
	} {
		found := false
		for name := range got {
			a, b := strings.Fields(name), strings.Fields(want)
			slices.Sort(a)
			slices.Sort(b)
			found = found || slices.Equal(a, b)
		}
		if !found {
			t.Errorf("no metric %q in %v", want, slices.Sorted(maps.Keys(got)))
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script("sleep 60"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.x.Wait(ctx, "alice", x.ID)
	wantKind(t, "Wait", err, engi.Expired)
	for _, err := range n.x.Watch(ctx, "alice", x.ID, 1) {
		wantKind(t, "Watch", err, engi.Expired)
	}
	if got, err := n.x.Get(t.Context(), "alice", x.ID); err != nil || got.State != engi.ExecutionRunning {
		t.Errorf("the run did not go on: %+v, %v", got, err)
	}
	if err := n.x.Cancel(t.Context(), "alice", x.ID); err != nil {
		t.Error(err)
	}
}

func TestBrokenConnectionLosesNothing(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	flag := filepath.Join(t.TempDir(), "flag")
	x := n.start(script(fmt.Sprintf("seq 1000; while ! test -e %s; do sleep 0.01; done; seq 1000", flag)))
	n.printed(x.ID, 3893)
	for range 2 {
		cut(x.Sandbox)
		time.Sleep(50 * time.Millisecond)
	}
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for range 2 {
		for i := range 1000 {
			fmt.Fprintln(&want, i+1)
		}
	}
	wantAnswer(t, n.wait(x.ID), 0, engi.CauseExited, want.String())
}

func TestConnectionThatBreaksBeforeTheStart(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 1})).warm()
	proof := filepath.Join(t.TempDir(), "proof")
	cut(fx.machines()[0])
	x := n.execute(script(fmt.Sprintf("echo ran >> %s; echo ok", proof)))
	wantAnswer(t, x, 0, engi.CauseExited, "ok\n")
	if data, err := os.ReadFile(proof); err != nil || string(data) != "ran\n" {
		t.Errorf("it ran %q, %v; want once", data, err)
	}
}
