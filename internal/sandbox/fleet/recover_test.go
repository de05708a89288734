package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
)

// deaths maps names to the ways in which a node ends while programs are running.
var deaths = map[string]func(*node){
	"killed":  (*node).kill,
	"stopped": (*node).stop,
}

func TestRunsSurviveTheNode(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(pools(warmBash)).warm()
			flag := filepath.Join(t.TempDir(), "flag")
			x := n.start(script(fmt.Sprintf(`
				for i in 1 2 3; do echo "before $i"; done
				while ! test -e %s; do sleep 0.02; done
				for i in 1 2 3; do echo "after $i" >&2; done
				echo artifact > left; exit 7`, flag)))
			n.printed(x.ID, 27)
			ended := make(chan error, 1)
			go func() {
				_, _, err := n.watch(x.ID, 0)
				ended <- err
			}()
			die(n)
			if err := <-ended; !engi.Is(err, engi.Unavailable) {
				t.Errorf("a watcher of the old node got %v, want kind unavailable", err)
			}

			n = fx.start(pools(warmBash))
			if got, err := n.x.Get(t.Context(), "alice", x.ID); err != nil || got.State != engi.ExecutionRunning {
				t.Fatalf("after the restart: %+v, %v", got, err)
			}
			out := make(chan string, 2)
			for _, from := range []int64{0, 9} {
				go func() {
					text, _, err := n.watch(x.ID, from)
					if err != nil {
						t.Error(err)
					}
					out <- text
				}()
			}
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			all := "before 1\nbefore 2\nbefore 3\nafter 1\nafter 2\nafter 3\n"
			got := []string{<-out, <-out}
			slices.SortFunc(got, func(a, b string) int { return len(b) - len(a) })
			if got[0] != all || got[1] != all[9:] {
				t.Errorf("watchers got %q", got)
			}
			done := n.wait(x.ID)
			wantAnswer(t, done, 7, engi.CauseExited, "before 1\nbefore 2\nbefore 3\n")
			if len(done.Result.Artifacts) != 1 || string(done.Result.Stderr) != "after 1\nafter 2\nafter 3\n" {
				t.Errorf("%+v", done.Result)
			}
			fx.onlyPools(n, 0)
		})
	}
}

func TestRunThatEndsWhileTheNodeIsDown(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	down, ended := filepath.Join(t.TempDir(), "down"), filepath.Join(t.TempDir(), "ended")
	x := n.start(script(fmt.Sprintf("echo begun; while ! test -e %s; do sleep 0.01; done; echo done; touch %s", down, ended)))
	n.printed(x.ID, 6)
	n.kill()
	if err := os.WriteFile(down, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.eventually("it ends", func() bool { _, err := os.Stat(ended); return err == nil })
	n = fx.start(pools(warmBash))
	wantAnswer(t, n.wait(x.ID), 0, engi.CauseExited, "begun\ndone\n")
}

func TestTimeoutCountsAcrossARestart(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	spec := script("echo begun; sleep 60")
	spec.Limits.Timeout = 700 * time.Millisecond
	x := n.start(spec)
	n.printed(x.ID, 6)
	n.kill()
	n = fx.start(nil)
	done := n.wait(x.ID)
	wantAnswer(t, done, -1, engi.CauseTimeout, "begun\n")
}

func TestWarmInstancesAreKept(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 3})).warm()
			before := fx.machines()
			die(n)
			n = fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 3}))
			if p := n.Pools(t.Context()); p[0].Ready != 3 {
				t.Errorf("after the restart: %+v, want 3 ready at once", p)
			}
			after := fx.machines()
			slices.Sort(before)
			slices.Sort(after)
			if !slices.Equal(before, after) {
				t.Errorf("machines %v, before %v", after, before)
			}
			x := n.execute(script("echo kept"))
			wantAnswer(t, x, 0, engi.CauseExited, "kept\n")
			if !slices.Contains(before, x.Sandbox) {
				t.Error("it ran in a new sandbox")
			}
		})
	}
}

func TestInstancesOfAnOldTemplateGo(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 2}, fleet.PoolConfig{Target: 1})).warm()
	before := fx.machines()
	n.kill()
	fx.fakes.Set(base(t, "d2"))
	n = fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 2}))
	n.eventually("two new instances are left", func() bool {
		after := fx.machines()
		if len(after) < 2 && n.Pools(t.Context())[0].Ready > 2 {
			t.Error("old ones went before new ones were ready")
		}
		return len(after) == 2 && !slices.ContainsFunc(after, func(id engi.SandboxID) bool { return slices.Contains(before, id) })
	})
	n.eventually("their records too", func() bool {
		recs, err := fx.store.ListSandboxes(t.Context(), engi.Everyone)
		return err == nil && len(recs) == 2
	})
}

func TestOrphansGo(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	n.kill()
	orphan, err := memory.New(fx.host).Start(t.Context(), provider.Spec{
		ID: engi.NewSandboxID(), Root: t.TempDir(), Size: fleet.DefaultLimits().Size, Token: "t",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"executions/exe_unknown/output", "queued/exe_unknown", "queued/exe_half.new"} {
		path := filepath.Join(fx.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fx.start(pools(warmBash))
	if slices.Contains(fx.machines(), orphan.ID()) {
		t.Error("the orphan is still there")
	}
	if left := fx.files(); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
}

func TestRunsWhoseSandboxIsGone(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.start(script("echo begun; sleep 60"))
	n.printed(x.ID, 6)
	n.kill()
	if err := memory.New(fx.host).Remove(t.Context(), x.Sandbox); err != nil {
		t.Fatal(err)
	}
	n = fx.start(pools(warmBash))
	got := n.wait(x.ID)
	if got.Result.Exit.Cause != engi.CauseSandboxLost || got.Result.Exit.Code != -1 || got.Result.Error == "" {
		t.Errorf("%+v", got.Result)
	}
	sandbox, err := n.Sandboxes().Get(t.Context(), "alice", x.Sandbox)
	if err != nil || sandbox.State != engi.Stopped {
		t.Errorf("its sandbox: %+v, %v", sandbox, err)
	}
}

// TestUsedInstancesNeverComeBack kills the node after the end of an execution is recorded and
// before any other write, so that the instance's machine survives: no pool may take
// it back, although claims do not write its record.
func TestUsedInstancesNeverComeBack(t *testing.T) {
	end := func(t *testing.T, fx *fixture, n *node, spec engi.ExecutionSpec) engi.ExecutionID {
		fx.store.Fail(func(act string) error {
			if n.dead.Load() {
				return errDead
			}
			n.dead.Store(act == "Update") // Update is the last write that succeeds
			return nil
		})
		x, err := n.x.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		// Check the stored record: the kill waits for a write that has begun.
		n.eventually("its end is recorded", func() bool {
			r, err := fx.store.Get(t.Context(), engi.Everyone, x.ID)
			return err == nil && r.State != engi.ExecutionRunning
		})
		n.kill()
		fx.store.Fail(nil)
		return x.ID
	}
	for want, spec := range map[engi.ExecutionState]func() engi.ExecutionSpec{
		engi.ExecutionDone: func() engi.ExecutionSpec { return script("echo used") },
		engi.ExecutionRefused: func() engi.ExecutionSpec {
			spec := script("echo used")
			spec.Program.Language = engi.Python
			return spec
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			fx := newFixture(t)
			tmpl := base(t, "d1")
			tmpl.Languages[engi.Python] = engi.Interpreter{Path: "/does/not/exist"}
			fx.fakes.Set(tmpl)
			both := pools(warmBash, fleet.PoolConfig{Language: engi.Python, Target: 1})
			n := fx.start(both).warm()
			id := end(t, fx, n, spec())
			n = fx.start(both).warm()
			x, err := n.x.Get(t.Context(), "alice", id)
			if err != nil || x.State != want || x.Sandbox == "" {
				t.Fatalf("%+v, %v, want it %s in a sandbox", x, err, want)
			}
			if slices.Contains(fx.machines(), x.Sandbox) {
				t.Error("its machine is back in a pool")
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		fx := newFixture(t)
		n := fx.start(pools(warmBash)).warm()
		recs, err := fx.store.ListSandboxes(t.Context(), engi.Everyone)
		if err != nil {
			t.Fatal(err)
		}
		n.kill()
		r := fleettest.Record("alice", engi.ExecutionRunning)
		r.Sandbox, r.Started = recs[0].ID, time.Now().UTC()
		if err := fx.store.Create(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
		written := make(chan struct{})
		fx.store.Fail(func(act string) error {
			select {
			case <-written:
				return errDead
			default:
			}
			if act == "Update" {
				close(written)
			}
			return nil
		})
		n = fx.start(pools(warmBash))
		n.kill()
		<-written
		fx.store.Fail(nil)
		s, err := fx.store.GetSandbox(t.Context(), engi.Everyone, r.Sandbox)
		if err != nil || s.State == engi.Ready || s.Execution != r.ID {
			t.Errorf("its sandbox: %+v, %v", s, err)
		}
	})
}

// TestRecordedRunThatNeverStarted kills the node between the record and the start of the program.
func TestRecordedRunThatNeverStarted(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	recs, err := fx.store.ListSandboxes(t.Context(), engi.Everyone)
	if err != nil {
		t.Fatal(err)
	}
	n.kill()
	r := fleet.Record{Execution: engi.Execution{
		ID: engi.NewExecutionID(), Owner: "alice", State: engi.ExecutionRunning, Language: engi.Bash, Template: "base",
		Sandbox: recs[0].ID, Created: time.Now().UTC(), Started: time.Now().UTC(),
	}, Limits: fleet.DefaultLimits()}
	sandbox := recs[0]
	sandbox.Owner, sandbox.State, sandbox.Execution = "alice", engi.Running, r.ID
	if err := fx.store.Create(t.Context(), r, &sandbox); err != nil {
		t.Fatal(err)
	}
	n = fx.start(pools(warmBash))
	got := n.wait(r.ID)
	if got.Result.Exit.Cause != engi.CauseSandboxLost || !strings.Contains(got.Result.Error, "before the program started") {
		t.Errorf("%+v", got.Result)
	}
	if slices.Contains(fx.machines(), sandbox.ID) {
		t.Error("its sandbox is still there")
	}
}

func TestQueuedExecutionsWaitAgain(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			one := func(o *fleet.Options) { o.MaxSandboxes = 1 }
			n := fx.start(one)
			proof := filepath.Join(t.TempDir(), "proof")
			busy := n.start(script("sleep 60"))
			var ids []engi.ExecutionID
			n.eventually("the first one runs", func() bool {
				x, err := n.x.Get(t.Context(), "alice", busy.ID)
				return err == nil && x.State == engi.ExecutionRunning
			})
			for i := range 3 {
				spec := script(fmt.Sprintf("echo %d >> %s; echo %d", i, proof, i))
				ids = append(ids, n.start(spec).ID)
			}
			die(n)
			n = fx.start(one)
			if err := n.x.Cancel(t.Context(), "alice", busy.ID); err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				wantAnswer(t, n.wait(id), 0, engi.CauseExited, fmt.Sprintln(i))
			}
			data, err := os.ReadFile(proof)
			if err != nil || string(data) != "0\n1\n2\n" {
				t.Errorf("they ran as %q, %v; want each once, in order", data, err)
			}
			if left := fx.files(); len(left) != 0 {
				t.Errorf("files left: %v", left)
			}
		})
	}
}

func TestQueuedExecutionWithoutProgramIsRefused(t *testing.T) {
	fx := newFixture(t)
	r := fleet.Record{Execution: engi.Execution{
		ID: engi.NewExecutionID(), Owner: "alice", State: engi.ExecutionQueued, Language: engi.Bash, Template: "base", Created: time.Now().UTC(),
	}, Limits: fleet.DefaultLimits()}
	if err := fx.store.Create(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	n := fx.start(nil)
	x, err := n.x.Wait(t.Context(), "alice", r.ID)
	wantKind(t, "Wait", err, engi.Unavailable)
	if x.State != engi.ExecutionRefused || !strings.Contains(engi.RemedyOf(err), "send the request again") {
		t.Errorf("%+v, remedy %q", x, engi.RemedyOf(err))
	}
}

// TestDeathAtEveryStoreWrite kills the node at its k-th write, for every k of
// an execution's life, and checks that the next node ends it with the right
// result or an honest one, and that nothing is left.
func TestDeathAtEveryStoreWrite(t *testing.T) {
	for k := 1; k <= 8; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 1}))
			writes := 0
			died := make(chan struct{})
			fx.store.Fail(func(act string) error {
				switch act {
				case "Create", "Update", "PutSandbox", "ForgetSandbox":
					if writes++; writes == k {
						close(died)
					}
				}
				if writes >= k {
					n.dead.Store(true)
					return errDead
				}
				return nil
			})
			var ids []engi.ExecutionID
			for range 3 {
				x, err := n.x.Start(t.Context(), script("echo hello; echo x > file"))
				if err != nil {
					break
				}
				ids = append(ids, x.ID)
			}
			select {
			case <-died:
			case <-time.After(time.Minute):
				t.Fatal("not so many writes")
			}
			n.kill()
			fx.store.Fail(nil)
			n = fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 1}))
			for _, id := range ids {
				x := n.wait(id)
				switch x.Result.Exit.Cause {
				case engi.CauseExited:
					wantAnswer(t, x, 0, engi.CauseExited, "hello\n")
				case engi.CauseSandboxLost:
				default:
					t.Errorf("execution %s: %+v", id, x.Result)
				}
			}
			fx.onlyPools(n, 0)
			for _, f := range fx.files() {
				if !strings.HasPrefix(f, "executions/") {
					t.Errorf("left: %s", f)
				}
			}
		})
	}
}

// TestReconcile disturbs a running node, and lets it compare
// records with machines.
func TestReconcile(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	kept := fx.machines()
	x := n.start(script("echo begun; sleep 60"))
	n.printed(x.ID, 6)

	orphan, err := memory.New(fx.host).Start(t.Context(), provider.Spec{
		ID: engi.NewSandboxID(), Root: t.TempDir(), Size: fleet.DefaultLimits().Size, Token: "t",
	})
	if err != nil {
		t.Fatal(err)
	}
	ghost := fleettest.Sandbox("", engi.Ready)
	if err := fx.store.PutSandbox(t.Context(), ghost); err != nil {
		t.Fatal(err)
	}
	old, young := fleettest.Record("alice", engi.ExecutionRunning), fleettest.Record("alice", engi.ExecutionRunning)
	young.Started = time.Now().UTC()
	for _, r := range []fleet.Record{old, young} {
		if err := fx.store.Create(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	stray := filepath.Join(fx.dir, "executions", "exe_stray", "output")
	if err := os.MkdirAll(filepath.Dir(stray), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	n.Reconcile(t.Context())
	if slices.Contains(fx.machines(), orphan.ID()) {
		t.Error("the orphan is still there")
	}
	if _, err := fx.store.GetSandbox(t.Context(), engi.Everyone, ghost.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("the ghost's record: %v, want kind not_found", err)
	}
	got, err := n.x.Get(t.Context(), "alice", old.ID)
	if err != nil || got.State != engi.ExecutionDone || got.Result.Exit.Cause != engi.CauseSandboxLost {
		t.Errorf("a run nobody follows: %+v, %v", got, err)
	}
	if got, err := n.x.Get(t.Context(), "alice", young.ID); err != nil || got.State != engi.ExecutionRunning {
		t.Errorf("a run that just began: %+v, %v", got, err)
	}
	if got, err := n.x.Get(t.Context(), "alice", x.ID); err != nil || got.State != engi.ExecutionRunning {
		t.Errorf("a run that goes on: %+v, %v", got, err)
	}
	for _, id := range kept {
		if !slices.Contains(fx.machines(), id) {
			t.Errorf("%s, which was warm or in use, is gone", id)
		}
	}
	first := n.SweepFiles(t.Context(), nil)
	if _, err := os.Stat(stray); err != nil {
		t.Error("a stray file went at first sight: ", err)
	}
	n.SweepFiles(t.Context(), first)
	if _, err := os.Stat(stray); err == nil {
		t.Error("a stray file is still there at second sight")
	}
}

func TestDirectoriesOfEarlierVersions(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	x := n.execute(script("head -c 100000 /dev/zero"))
	s := n.create(engi.SandboxSpec{})
	n.mustRun(s.ID, "echo kept > file")
	n.hibernate(s.ID, false)
	n.stop()
	for from, to := range map[string]string{"sandboxes": "boxes", "temp": "forks", "executions/" + string(x.ID) + "/output": "executions/" + string(x.ID) + "/tape"} {
		if err := os.Rename(filepath.Join(fx.dir, from), filepath.Join(fx.dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	n = fx.start(pools(warmBash))
	if got, err := n.x.Get(t.Context(), "alice", x.ID); err != nil || len(got.Result.Stdout) != 100000 {
		t.Errorf("%+v, %v", got.Result, err)
	}
	n.resume(s.ID, false)
	if out := n.mustRun(s.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
	for _, name := range []string{"boxes", "forks"} {
		if _, err := os.Stat(filepath.Join(fx.dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}
