package store_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/test/seed"
)

// victim names the database of a process that is there to be killed.
const victim = "ENGI_TEST_VICTIM"

func TestMain(m *testing.M) {
	if file := os.Getenv(victim); file != "" {
		if err := change(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// turn makes every second record end differently.
var turn atomic.Int64

// change changes records of every kind for ever, several at once. It prints a line
// once the database is open.
func change(file string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, file)
	if err != nil {
		return err
	}
	fmt.Println("open")
	failed := make(chan error)
	for _, f := range []func(context.Context, *store.DB) error{changeExecution, changeSandbox, changeVolume, changeSession, changeKey, changeSecret, changeApproval, changeSnapshot, changeRun, changeFunction, changeApp, changeWorkspace} {
		go func() {
			for {
				if err := f(ctx, db); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// each does several things, as long as there is no error.
func each(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func changeExecution(ctx context.Context, db *store.DB) error {
	s := store.Fleet(db)
	now := time.Now().UTC()
	r := fleet.Record{Execution: engi.Execution{ID: engi.NewExecutionID(), Owner: "anna", State: engi.ExecutionQueued, Language: engi.Python, Created: now}}
	sandbox := fleet.SandboxRecord{Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), State: engi.Ready, Created: now}}
	return each(
		func() error { return s.PutSandbox(ctx, sandbox) },
		func() error { return s.Create(ctx, r, nil) },
		func() error {
			r.State, r.Sandbox, r.Started = engi.ExecutionRunning, sandbox.ID, now
			sandbox.State, sandbox.Owner, sandbox.Execution = engi.Running, r.Owner, r.ID
			return s.Update(ctx, engi.ExecutionQueued, r, &sandbox)
		},
		func() error {
			r.State, r.Ended, r.Result = engi.ExecutionDone, now, &engi.Result{Exit: engi.Exit{Cause: engi.CauseExited}}
			sandbox.State = engi.Stopping
			return s.Update(ctx, engi.ExecutionRunning, r, &sandbox)
		},
		func() error { sandbox.State, sandbox.Stopped = engi.Stopped, now; return s.PutSandbox(ctx, sandbox) },
	)
}

func changeSandbox(ctx context.Context, db *store.DB) error {
	s := store.Fleet(db)
	now := time.Now().UTC()
	sandbox := fleet.SandboxRecord{Made: true, Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), Owner: "bert", State: engi.Running, Created: now}}
	for _, next := range []engi.State{engi.Running, engi.Paused, engi.Running, engi.Hibernating, engi.Hibernated, engi.Resuming, engi.Running, engi.Running, engi.Stopping, engi.Stopped} {
		sandbox.State = next
		sandbox.Metadata = map[string]string{"n": fmt.Sprint(turn.Add(1) % 2)}
		if err := s.PutSandbox(ctx, sandbox); err != nil {
			return err
		}
	}
	return nil
}

func changeVolume(ctx context.Context, db *store.DB) error {
	s := store.Volumes(db)
	id, sandbox, now := engi.NewVolumeID(), engi.NewSandboxID(), time.Now().UTC()
	return each(
		func() error {
			return s.Put(ctx, volume.Record{Volume: engi.Volume{ID: id, Owner: "anna", Name: string(id), Created: now, Accessed: now}})
		},
		func() error { return s.Pass(ctx, id, "", sandbox, now) },
		func() error { return s.Pass(ctx, id, sandbox, "", now) },
		func() error { return s.Remove(ctx, id, time.Time{}) },
	)
}

func changeSession(ctx context.Context, db *store.DB) error {
	s := store.Sessions(db)
	r := session.Record{Session: engi.Session{ID: engi.NewSessionID(), Owner: "bert", State: engi.SessionIdle, Created: time.Now().UTC()}}
	become := func(states ...engi.SessionState) error {
		r.Steps = nil
		for _, to := range states {
			r.Steps = append(r.Steps, session.Step{From: r.State, To: to, Cause: "request"})
			r.State = to
		}
		return s.Save(ctx, r)
	}
	return each(
		func() error { return s.Put(ctx, r) },
		func() error { return become(engi.SessionBooting) },
		func() error { r.Sandbox = engi.NewSandboxID(); return become(engi.SessionRunning) },
		func() error { return become(engi.SessionSuspended) },
		func() error { return become(engi.SessionRunning, engi.SessionHibernated) },
		func() error { r.Sandbox = ""; return become(engi.SessionIdle) },
		func() error { r.Ended = time.Now().UTC(); return become(engi.SessionTerminated) },
	)
}

func changeKey(ctx context.Context, db *store.DB) error {
	s := store.Keys(db)
	id := "key_" + string(engi.NewSandboxID())
	var h key.Hash
	copy(h[:], id)
	return each(
		func() error { return s.Put(ctx, engi.Key{ID: id, Owner: "anna", Created: time.Now().UTC()}, h) },
		func() error { return s.Revoke(ctx, "anna", id, time.Now().UTC()) },
	)
}

func changeSecret(ctx context.Context, db *store.DB) error {
	s := store.Secrets(db)
	id, now := engi.NewSecretID(), time.Now().UTC()
	sec := engi.Secret{ID: id, Owner: "bert", Name: string(id), Version: 1, Created: now, Updated: now}
	return each(
		func() error { return s.Put(ctx, sec, secret.Sealed{Key: "k"}) },
		func() error {
			sec.Version = 2
			return s.Replace(ctx, sec, secret.Sealed{Key: "k", Data: []byte("x")}, 1)
		},
		func() error { return s.Remove(ctx, id) },
	)
}

func changeApproval(ctx context.Context, db *store.DB) error {
	s := store.Approvals(db)
	a, b := anApproval("carl"), anApproval("carl")
	return each(
		func() error { _, err := s.Put(ctx, a); return err },
		func() error { _, err := s.Put(ctx, b); return err },
		func() error {
			a.State, a.Ended = engi.ApprovalAllowed, time.Now().UTC()
			return s.End(ctx, a)
		},
		func() error { _, err := s.Abandon(ctx, time.Now().UTC()); return err },
	)
}

func changeSnapshot(ctx context.Context, db *store.DB) error {
	s := store.Snapshots(db)
	id := engi.NewSnapshotID()
	return each(
		func() error { return s.Put(ctx, engi.Snapshot{ID: id, Owner: "anna", Created: time.Now().UTC()}) },
		func() error { return s.Remove(ctx, id) },
	)
}

func changeRun(ctx context.Context, db *store.DB) error {
	s := store.Agents(db)
	r := agent.Record{Run: engi.Run{ID: engi.NewRunID(), Owner: "anna", State: engi.RunRunning, Created: time.Now().UTC()}}
	call := engi.ToolCall{ID: "c", Name: "t"}
	said := []engi.Message{{Role: engi.RoleUser, Text: "x"}, {Role: engi.RoleAssistant, Calls: []engi.ToolCall{call}}, {Role: engi.RoleTool}, {Role: engi.RoleAssistant, Text: "done"}}
	return each(
		func() error { return s.Put(ctx, r, said[:1]) },
		func() error { r.Steps = 1; return s.Update(ctx, r, 1, said[1:2]) },
		func() error { return s.Update(ctx, r, 2, said[2:3]) },
		func() error {
			said[2].Results = []engi.ToolResult{{Call: "c", Name: "t", Text: "x"}}
			return s.Update(ctx, r, 2, said[2:3])
		},
		func() error {
			r.Steps, r.State, r.Ended = 2, engi.RunDone, time.Now().UTC()
			return s.Update(ctx, r, 3, said[3:])
		},
	)
}

func changeFunction(ctx context.Context, db *store.DB) error {
	s := store.Functions(db)
	r := function.Record{FunctionRun: engi.FunctionRun{ID: engi.NewFunctionRunID(), Owner: "bert", Function: "f", State: engi.FunctionQueued, Created: time.Now().UTC()}}
	to := func(state engi.FunctionState) func() error {
		return func() error {
			_, err := s.Update(ctx, engi.Everyone, r.ID, func(r *function.Record) error {
				if r.State = state; state == engi.FunctionDone {
					r.Ended = time.Now().UTC()
				}
				return nil
			})
			return err
		}
	}
	step := engi.FunctionStep{Name: "s", Attempts: 1, Started: time.Now().UTC()}
	return each(
		func() error {
			_, err := s.Send(ctx, engi.EventSpec{Owner: "bert", Type: "x"}, []function.Record{r})
			return err
		},
		to(engi.FunctionRunning),
		func() error { return s.Step(ctx, r, step) },
		func() error { step.Ended = time.Now().UTC(); return s.Step(ctx, r, step) },
		to(engi.FunctionWaiting), to(engi.FunctionRunning), to(engi.FunctionDone),
	)
}

func changeApp(ctx context.Context, db *store.DB) error {
	s := store.Apps(db)
	r := app.Record{App: engi.App{ID: engi.NewAppID(), Owner: "anna", State: engi.AppStarting, Created: time.Now().UTC()}}
	r.Name = string(r.ID)
	publish := func() error {
		_, err := s.Change(ctx, r.ID, func(r *app.Record, tx app.Tx) error {
			r.Published = engi.Publication{Revision: r.Revision, Files: 1}
			if err := tx.Publish([]app.Published{{Path: "index.html", Size: 1, Digest: "d"}}, map[string][]byte{"d": {1}}, app.Bounds{Owner: 1000}); err != nil {
				return err
			}
			_, err := tx.Emit(engi.EventAppPublished, map[string]any{"revision": r.Revision})
			return err
		})
		return err
	}
	revise := func(n int64, state engi.AppState) func() error {
		return func() error {
			_, err := s.Change(ctx, r.ID, func(r *app.Record, tx app.Tx) error {
				r.Revision, r.State = n, state
				f := app.File{AppFile: engi.AppFile{Path: "a", Digest: fmt.Sprint(n)}}
				if err := tx.Revise(engi.Revision{App: r.ID, Number: n, Created: time.Now()}, []app.File{f}, nil, map[string][]byte{f.Digest: {1}}, app.Bounds{Revisions: 2, Bytes: 100, Owner: 1000}); err != nil {
					return err
				}
				if _, err := tx.Emit(engi.EventAppState, map[string]any{"state": state}); err != nil {
					return err
				}
				_, err := tx.Emit(engi.EventAppApplied, map[string]any{"revision": n})
				return err
			})
			return err
		}
	}
	return each(
		func() error { return s.Put(ctx, r) },
		revise(1, engi.AppReady), revise(2, engi.AppFailed), publish, revise(3, engi.AppReady), publish,
		func() error {
			if turn.Add(1)%2 == 0 {
				return nil
			}
			return s.Remove(ctx, r.ID)
		},
	)
}

func changeWorkspace(ctx context.Context, db *store.DB) error {
	s := store.Workspaces(db)
	r := workspace.Record{Workspace: engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "anna", State: engi.WorkspaceStopped, Created: time.Now().UTC()}}
	r.Name, r.Idempotency = string(r.ID), string(r.ID)
	files, version := repo.Files{}, repo.Version{}
	revise := func() error {
		r.Revision++
		o, err := repo.New(repo.Blob, []byte(fmt.Sprint(r.Revision)))
		if err != nil {
			return err
		}
		next := repo.Files{"a": {Path: "a", Mode: repo.FileMode, Hash: o.Hash}}
		rev := engi.WorkspaceRevision{Number: r.Revision, Parent: r.Revision - 1, Message: "m", Created: time.Now().UTC(), Changed: files.Changes(next)}
		v, made, err := version.Next(next, repo.Note{Message: "m", Time: rev.Created})
		if err != nil {
			return err
		}
		rev.Commit, files, version = v.Commit, next, v
		_, err = s.Change(ctx, r.ID, func(now *workspace.Record, tx workspace.Tx) error {
			now.Revision = r.Revision
			if err := tx.Revise(rev, append(made, o), 1<<20); err != nil {
				return err
			}
			return tx.Emit(engi.EventWorkspaceRevised, map[string]any{"revision": r.Revision})
		})
		return err
	}
	return each(
		func() error { return s.Put(ctx, r, nil) },
		revise, revise, revise,
		func() error { return s.Remove(ctx, r.ID) },
	)
}

// TestKill kills a process at random moments, some of them while it opens its
// database: each time the events say what the records say.
func TestKill(t *testing.T) {
	kills := 60
	if s := os.Getenv("ENGI_TEST_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "engi.db")
	var after int64
	random := seed.New(t)
	for i := range kills {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), victim+"="+file)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if i%4 != 0 {
			out.Read(make([]byte, 1)) // a failure is seen below
		}
		time.Sleep(time.Duration(random.IntN(80)) * time.Millisecond)
		c.Process.Kill()
		if err := c.Wait(); c.ProcessState.ExitCode() != -1 {
			t.Fatalf("the process failed: %v", err)
		}
		after = agree(t, file, after)
	}
	if after == 0 {
		t.Fatal("nothing happened")
	}
	db, err := store.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	counted(t, db)
	t.Logf("%d events", after)
}

// agree compares the state that events since after say with the records, and
// has 20 follow them all. It returns the last event.
func agree(t *testing.T, file string, after int64) int64 {
	t.Helper()
	ctx := t.Context()
	db, err := store.Open(ctx, file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	log := store.Events(db)
	last, err := log.Last(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if last == after {
		return last
	}
	var all []engi.Event
	for e, err := range log.Follow(ctx, engi.Everyone, engi.EventFilter{After: after}) {
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, e); e.Seq == last {
			break
		}
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			at, n := after, 0
			for n < len(all) {
				for e, err := range log.Follow(ctx, engi.Everyone, engi.EventFilter{After: at}) {
					if err != nil || e.ID != all[n].ID {
						t.Errorf("follower %d sees %+v (%v) as number %d, which is %+v", i, e, err, n, all[n])
						return
					}
					at = e.Seq
					if n++; n == len(all) || n%(50+i) == 0 {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	states := map[string]string{} // what the last event about a subject says
	for _, e := range all {
		if e.Type != engi.EventSandboxUpdated && e.Type != engi.EventSandboxSnapshotted && e.Type != engi.EventFunctionStepDone {
			states[e.Subject] = e.Type
		}
	}
	for subject, says := range states {
		if is := stateOf(t, db, subject); is != says {
			t.Errorf("%s: the last event is %s, the record says %s", subject, says, is)
		}
	}
	return last
}

// stateOf is the event that a record's state should have led to.
func stateOf(t *testing.T, db *store.DB, subject string) string {
	t.Helper()
	ctx := t.Context()
	fail := func(err error) {
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
	}
	gone := func(err error) bool { return engi.Is(err, engi.NotFound) }
	switch subject[:4] {
	case "exe_":
		r, err := store.Fleet(db).Get(ctx, engi.Everyone, engi.ExecutionID(subject))
		fail(err)
		return "execution." + string(r.State)
	case "sbx_":
		r, err := store.Fleet(db).GetSandbox(ctx, engi.Everyone, engi.SandboxID(subject))
		fail(err)
		return "sandbox." + string(r.State)
	case "vol_":
		r, err := store.Volumes(db).Find(ctx, engi.Everyone, subject)
		switch {
		case gone(err):
			return engi.EventVolumeRemoved
		case r.Holder != "":
			return engi.EventVolumeAttached
		}
		events, err := store.Events(db).List(ctx, engi.Everyone, engi.EventFilter{Subject: subject})
		fail(err)
		if len(events) > 1 {
			return engi.EventVolumeDetached
		}
		return engi.EventVolumeCreated
	case "ses_":
		r, err := store.Sessions(db).Find(ctx, engi.Everyone, subject)
		fail(err)
		events, err := store.Events(db).List(ctx, engi.Everyone, engi.EventFilter{Subject: subject})
		fail(err)
		if len(events) == 1 {
			return engi.EventSessionCreated
		}
		return engi.SessionBooting.Event(r.State)
	case "app_":
		r, err := store.Apps(db).Find(ctx, engi.Everyone, subject)
		if gone(err) {
			return engi.EventAppRemoved
		}
		fail(err)
		if r.Revision == 0 {
			return engi.EventAppCreated
		}
		revs, err := store.Apps(db).Revisions(ctx, r.ID, engi.Paging{})
		fail(err)
		files, err := store.Apps(db).Files(ctx, r.ID, r.Revision)
		fail(err)
		if len(revs) != min(int(r.Revision), 2) || len(files) != 1 {
			t.Errorf("%s: it has %d revisions, the last is %d with %d files", subject, len(revs), r.Revision, len(files))
		}
		if _, err := store.Apps(db).Published(ctx, r.ID, "index.html"); (err == nil) != (r.Published.Revision > 0) {
			t.Errorf("%s: it has published %+v, its page: %v", subject, r.Published, err)
		}
		if r.Published.Revision == r.Revision {
			return engi.EventAppPublished
		}
		return engi.EventAppApplied
	case "wsp_":
		r, err := store.Workspaces(db).Find(ctx, engi.Everyone, subject)
		if gone(err) {
			return engi.EventWorkspaceRemoved
		}
		fail(err)
		if r.Revision == 0 {
			return engi.EventWorkspaceCreated
		}
		revs, err := store.Workspaces(db).Revisions(ctx, r.ID, engi.Paging{})
		fail(err)
		if len(revs) != int(r.Revision) {
			t.Fatalf("%s: it has %d revisions, the last is %d", subject, len(revs), r.Revision)
		}
		object := func(ctx context.Context, hash string) (repo.Object, error) {
			return store.Workspaces(db).Object(ctx, r.ID, hash)
		}
		file, err := repo.Find(ctx, object, revs[0].Commit, "a")
		fail(err)
		if _, err := object(ctx, file.Hash); err != nil {
			t.Errorf("%s: a file of revision %d is not there: %v", subject, r.Revision, err)
		}
		return engi.EventWorkspaceRevised
	case "key_":
		keys, err := store.Keys(db).List(ctx, engi.Everyone, engi.Paging{})
		fail(err)
		for _, k := range keys {
			if k.ID == subject && !k.Revoked.IsZero() {
				return engi.EventKeyRevoked
			}
		}
		return engi.EventKeyCreated
	case "sec_":
		s, _, err := store.Secrets(db).Find(ctx, engi.Everyone, subject)
		switch {
		case gone(err):
			return engi.EventSecretRemoved
		case s.Version == 2:
			return engi.EventSecretUpdated
		}
		return engi.EventSecretCreated
	case "apv_":
		a, err := store.Approvals(db).Get(ctx, engi.Everyone, engi.ApprovalID(subject))
		fail(err)
		return map[engi.ApprovalState]string{
			engi.ApprovalPending: engi.EventApprovalRequested, engi.ApprovalAllowed: engi.EventApprovalDecided, engi.ApprovalAbandoned: engi.EventApprovalAbandoned,
		}[a.State]
	case "snp_":
		if _, err := store.Snapshots(db).Find(ctx, engi.Everyone, subject, time.Now()); gone(err) {
			return engi.EventSnapshotRemoved
		}
		return engi.EventSnapshotCreated
	case "run_":
		r, err := store.Agents(db).Get(ctx, engi.Everyone, engi.RunID(subject))
		fail(err)
		m, err := store.Agents(db).Messages(ctx, r.ID)
		fail(err)
		switch {
		case r.State != engi.RunRunning:
			return engi.EventRunEnded
		case len(m) == 3 && len(m[2].Results) == 1:
			return engi.EventToolResult
		case len(m) == 3:
			return engi.EventToolCalled
		case len(m) == 2:
			return engi.EventRunStep
		}
		return engi.EventRunStarted
	case "fnr_":
		r, err := store.Functions(db).Run(ctx, engi.Everyone, engi.FunctionRunID(subject))
		fail(err)
		return "function." + string(r.State)
	}
	return "x" // what was sent
}

// counted looks for records without an event.
func counted(t *testing.T, db *store.DB) {
	t.Helper()
	ctx := t.Context()
	seen := map[string]bool{}
	var after int64
	for {
		events, err := store.Events(db).List(ctx, engi.Everyone, engi.EventFilter{After: after, Oldest: true, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			seen[e.Subject], after = true, e.Seq
		}
	}
	executions, err := store.Fleet(db).List(ctx, engi.Everyone, engi.ExecutionFilter{Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	runs, err := store.Functions(db).Runs(ctx, engi.Everyone, function.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range executions {
		if !seen[string(x.ID)] {
			t.Errorf("execution %s has no event", x.ID)
		}
	}
	for _, r := range runs {
		if !seen[string(r.ID)] {
			t.Errorf("run %s has no event", r.ID)
		}
	}
}
