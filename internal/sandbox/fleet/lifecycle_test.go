package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
)

func (n *node) hibernate(id engi.SandboxID, diskOnly bool) {
	n.t.Helper()
	if err := n.Lifecycle().Hibernate(n.t.Context(), "alice", id, diskOnly); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) resume(id engi.SandboxID, cold bool) engi.Sandbox {
	n.t.Helper()
	s, err := n.Lifecycle().Resume(n.t.Context(), "alice", id, 0, cold)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func TestHibernateAndResume(t *testing.T) {
	for name, how := range map[string]struct{ diskOnly, paused, cold bool }{
		"memory":    {},
		"disk only": {diskOnly: true},
		"paused":    {paused: true},
		"cold":      {cold: true},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(pools(bare)).warm()
			s := n.create(engi.SandboxSpec{Env: map[string]string{"A": "1"}, Metadata: map[string]string{"k": "v"}})
			n.mustRun(s.ID, "echo kept > file")
			if how.paused {
				if err := n.Lifecycle().Pause(t.Context(), "alice", s.ID); err != nil {
					t.Fatal(err)
				}
			}
			n.hibernate(s.ID, how.diskOnly)
			got := n.wantState(s.ID, engi.Hibernated)
			if !got.Deadline.IsZero() || got.Disk != how.diskOnly {
				t.Errorf("%+v", got)
			}
			if slices.Contains(fx.machines(), s.ID) {
				t.Error("its machine is there still")
			}
			if pins := fx.fakes.Pins(); pins["d1"] == 0 {
				t.Error("its template may go")
			}
			wantKind(t, "hibernate again", n.Lifecycle().Hibernate(t.Context(), "alice", s.ID, false), engi.Conflict)
			wantKind(t, "pause a hibernated one", n.Lifecycle().Pause(t.Context(), "alice", s.ID), engi.Conflict)
			_, _, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
			wantKind(t, "enter a hibernated one", err, engi.Conflict)
			got = n.resume(s.ID, how.cold)
			if got.State != engi.Running || got.Deadline.IsZero() || got.Metadata["k"] != "v" || !got.Created.Equal(s.Created) {
				t.Errorf("%+v", got)
			}
			if out := n.mustRun(s.ID, "cat file; echo $A $ENGI_SANDBOX_ID"); out != "kept\n1 "+string(s.ID)+"\n" {
				t.Errorf("output %q", out)
			}
			n.eventually("no files are left", func() bool { return len(fx.files()) == 0 })
			if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestHibernatedSandboxCanBeStopped(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{})
	n.hibernate(s.ID, false)
	if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
		t.Fatal(err)
	}
	n.wantState(s.ID, engi.Stopped)
	if left := fx.files(); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
	if pins := fx.fakes.Pins(); len(pins) != 0 {
		t.Errorf("templates in use: %v", pins)
	}
}

func TestManyEnterAHibernatedSandbox(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{AutoResume: true, Idle: 200 * time.Millisecond, OnTimeout: engi.EndHibernate}})
	n.mustRun(s.ID, "echo kept > file")
	n.eventually("it hibernates when nobody uses it", func() bool { return n.sandbox(s.ID).State == engi.Hibernated })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if out, err := n.run(s.ID, "cat file"); err != nil || out != "kept\n" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	wg.Wait()
	n.eventually("it hibernates again", func() bool { return n.sandbox(s.ID).State == engi.Hibernated })
}

func TestFullNodeDoesNotResume(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) { o.MaxSandboxes = 1 })
	s := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{AutoResume: true}})
	n.mustRun(s.ID, "echo kept > file")
	n.hibernate(s.ID, false)
	other := n.create(engi.SandboxSpec{})
	_, _, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
	wantKind(t, "wake on a full node", err, engi.Exhausted)
	n.wantState(s.ID, engi.Hibernated)
	if err := n.Sandboxes().Stop(t.Context(), "alice", other.ID); err != nil {
		t.Fatal(err)
	}
	if out := n.mustRun(s.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
}

func TestFork(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
		o.Quota = func(engi.Owner) engi.Quota { return engi.Quota{Sandboxes: 4} }
	})
	s := n.create(engi.SandboxSpec{Env: map[string]string{"A": "1"}, Metadata: map[string]string{"k": "v"}})
	n.mustRun(s.ID, "echo shared > file")
	all, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 4, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i, f := range all {
		if f.Err != nil {
			wantKind(t, "a copy beyond the quota", f.Err, engi.Exhausted)
			refused++
			continue
		}
		if f.Sandbox.State != engi.Running || f.Sandbox.Metadata["k"] != "v" || time.Until(f.Sandbox.Deadline) < 59*time.Minute {
			t.Errorf("%+v", f.Sandbox)
		}
		if out := n.mustRun(f.Sandbox.ID, fmt.Sprintf("cat file; echo $A $ENGI_SANDBOX_ID; echo own %d > file", i)); out != "shared\n1 "+string(f.Sandbox.ID)+"\n" {
			t.Errorf("output %q", out)
		}
	}
	if refused != 1 {
		t.Errorf("%d copies were refused, want 1", refused)
	}
	for i, f := range all {
		if f.Err == nil {
			if out := n.mustRun(f.Sandbox.ID, "cat file"); out != fmt.Sprintf("own %d\n", i) {
				t.Errorf("output %q", out)
			}
		}
	}
	if out := n.mustRun(s.ID, "cat file"); out != "shared\n" {
		t.Errorf("output in the original: %q", out)
	}
	if left := fx.files(); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
	for _, count := range []int{0, engi.MaxForks + 1} {
		_, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: count})
		wantKind(t, "a bad count", err, engi.Invalid)
	}
}

// TestDeathAtEveryStepOfHibernation kills the node at its k-th write of a pause, a
// hibernation and a resumption, for every k, and checks that the next node has the
// sandbox with its complete content.
func TestDeathAtEveryStepOfHibernation(t *testing.T) {
	for _, death := range []string{"before", "after"} { // before or after the write
		for k := 1; k <= 8; k++ {
			t.Run(fmt.Sprintf("%s/%d", death, k), func(t *testing.T) {
				fx := newFixture(t)
				n := fx.start(nil)
				s := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{AutoResume: true}, Env: map[string]string{"A": "1"}})
				n.mustRun(s.ID, "echo kept > file")
				writes := 0
				fx.store.Fail(func(act string) error {
					if act != "PutSandbox" || n.dead.Load() {
						return nil
					}
					if writes++; writes == k {
						n.dead.Store(true)
						if death == "before" {
							return errDead
						}
					}
					return nil
				})
				life := n.Lifecycle()
				for range 2 {
					_ = life.Pause(t.Context(), "alice", s.ID)
					_, _ = life.Resume(t.Context(), "alice", s.ID, 0, false)
					_ = life.Hibernate(t.Context(), "alice", s.ID, false)
					_, _ = life.Resume(t.Context(), "alice", s.ID, 0, false)
				}
				if !n.dead.Load() {
					t.Fatal("not so many writes")
				}
				n.kill()
				fx.store.Fail(nil)
				n = fx.start(nil)
				if got := n.sandbox(s.ID); !slices.Contains([]engi.State{engi.Running, engi.Paused, engi.Hibernated}, got.State) {
					t.Errorf("it is %s", got.State)
				}
				if out := n.mustRun(s.ID, "cat file; echo $A"); out != "kept\n1\n" {
					t.Errorf("output %q", out)
				}
				n.Reconcile(t.Context())
				n.wantState(s.ID, engi.Running)
				n.eventually("no files are left", func() bool { return len(fx.files()) == 0 })
				if got := fx.machines(); len(got) != 1 {
					t.Errorf("machines %v", got)
				}
			})
		}
	}
}

func TestHibernatedSandboxesSurviveAReboot(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	hibernated, running := n.create(engi.SandboxSpec{}), n.create(engi.SandboxSpec{})
	n.mustRun(hibernated.ID, "echo kept > file")
	n.hibernate(hibernated.ID, false)
	n.kill()
	if err := fx.host.Close(); err != nil { // the machine reboots
		t.Fatal(err)
	}
	stray := filepath.Join(fx.dir, "sandboxes", string(engi.NewSandboxID()), "image")
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	n = fx.start(nil)
	if _, err := os.Stat(stray); err == nil {
		t.Error("an image nobody owns is still there")
	}
	n.wantState(hibernated.ID, engi.Hibernated)
	if got := n.wantState(running.ID, engi.Stopped); got.End != engi.CauseSandboxLost {
		t.Errorf("the one that was running ended with %s", got.End)
	}
	n.resume(hibernated.ID, false)
	if out := n.mustRun(hibernated.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
}

func TestFailedHibernationGoesOn(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{})
	n.mustRun(s.ID, "echo kept > file")
	// A file is in the place of the image's directory.
	if err := os.WriteFile(filepath.Join(fx.dir, "sandboxes", string(s.ID)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Lifecycle().Hibernate(t.Context(), "alice", s.ID, false); err == nil {
		t.Fatal("it hibernated nowhere")
	}
	if got := n.wantState(s.ID, engi.Running); !got.Deadline.Equal(s.Deadline) {
		t.Errorf("deadline %v, was %v", got.Deadline, s.Deadline)
	}
	if out := n.mustRun(s.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
	if !strings.HasPrefix(string(s.ID), "sbx_") {
		t.Error(s.ID)
	}
}

func TestLeftoverMachinesGo(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{})
	n.mustRun(s.ID, "echo kept > file")
	n.hibernate(s.ID, false)
	_, err := memory.New(fx.host).Start(t.Context(), provider.Spec{
		ID: s.ID, Root: t.TempDir(), Size: fleet.DefaultLimits().Size, Token: "t",
	})
	if err != nil {
		t.Fatal(err)
	}
	n.eventually("the leftover goes", func() bool {
		n.Reconcile(t.Context()) // skips a sandbox whose lock is held
		return len(fx.machines()) == 0
	})
	n.resume(s.ID, false)
	if out := n.mustRun(s.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
}

// TestSandboxesSurviveTheirTemplate removes a template while the node is down.
func TestSandboxesSurviveTheirTemplate(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	running, hibernated := n.create(engi.SandboxSpec{}), n.create(engi.SandboxSpec{})
	n.mustRun(hibernated.ID, "echo kept > file")
	n.hibernate(hibernated.ID, false)
	n.stop()
	lost := base(t, "d1")
	fx.fakes.Remove("base")
	n = fx.start(nil)
	if out := n.mustRun(running.ID, "echo on"); out != "on\n" {
		t.Errorf("output %q", out)
	}
	_, err := n.Lifecycle().Resume(t.Context(), "alice", hibernated.ID, 0, false)
	wantKind(t, "resume without a template", err, engi.NotFound)
	n.wantState(hibernated.ID, engi.Hibernated)
	fx.fakes.Set(lost) // the template is back
	n.resume(hibernated.ID, false)
	if out := n.mustRun(hibernated.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
}
