package app_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

// rows sets the content of an app's database, which is not part of revisions.
func (w *fixture) rows(id engi.SandboxID, text string) {
	w.change(id, func(b *fakeSandbox) { b.put("data.db", text) })
}

// database returns the content of an app's database.
func (w *fixture) database(id engi.SandboxID) (text string) {
	w.change(id, func(b *fakeSandbox) { text = b.files[appDir+"/data.db"].data })
	return text
}

// settled waits until everything obsolete is removed, and checks that the rest consists of
// one sandbox of each app, and its snapshots.
func settled(t testing.TB, w *fixture) {
	t.Helper()
	var all []app.Record
	wait(t, func() bool {
		var err error
		if all, err = store.Apps(w.db).List(t.Context(), engi.Everyone, engi.Paging{}); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(all, func(r app.Record) bool { return len(r.Stray.Sandboxes)+len(r.Stray.Snapshots) > 0 })
	})
	boxes, copies := map[engi.SandboxID]bool{}, map[engi.SnapshotID]bool{}
	for _, r := range all {
		if r.Sandbox != "" {
			boxes[r.Sandbox] = true
		}
		for _, k := range r.Snapshots {
			copies[k.ID] = true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.boxes {
		if !boxes[id] {
			t.Errorf("the sandbox %s is left", id)
		}
	}
	for id := range w.copies {
		if !copies[id] {
			t.Errorf("the snapshot %s is left", id)
		}
	}
	if len(copies) != len(w.copies) {
		t.Errorf("of %d snapshots %d are there", len(copies), len(w.copies))
	}
}

// snapshotsOf returns the numbers of an app's revisions with a snapshot, newest first.
func snapshotsOf(t testing.TB, s *app.Service, app string) (numbers []int64) {
	t.Helper()
	revs, err := s.Revisions(t.Context(), "ann", app, engi.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range revs {
		if r.Snapshot.ID != "" {
			numbers = append(numbers, r.Number)
		}
	}
	return numbers
}

func TestSnapshots(t *testing.T) {
	w := newFixture(t)
	s, stop := w.begin(t)
	a := create(t, s, "shop")
	if _, err := s.Restore(t.Context(), "ann", "shop", 0); !engi.Is(err, engi.NotFound) || engi.RemedyOf(err) == "" {
		t.Errorf("without a snapshot: %v", err)
	}
	w.rows(a.Sandbox, "one")
	all, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "one\n"), Snapshot: true})
	if last.Kind != engi.AppApplied || last.Revision != 2 || !slices.ContainsFunc(all, func(u engi.AppUpdate) bool { return u.Step == "snapshot" }) {
		t.Fatalf("it ended with %+v", last)
	}
	then := recorded(t, s, "shop", 2)
	w.rows(a.Sandbox, "two")
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "two\n")}); last.Revision != 3 {
		t.Fatalf("it ended with %+v", last)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put("src/hand.ts", "mine\n") })
	rev, err := s.Restore(t.Context(), "ann", "shop", 0)
	if err != nil || rev.Number != 5 || rev.Of != 2 || rev.Snapshot.ID != "" {
		t.Fatalf("it is %+v (%v)", rev, err)
	}
	now, err := s.Get(t.Context(), "ann", "shop")
	if err != nil || now.Sandbox == a.Sandbox || now.State != engi.AppReady || now.Revision != 5 || w.database(now.Sandbox) != "one" {
		t.Errorf("the app is %+v (%v)", now, err)
	}
	w.change(now.Sandbox, func(b *fakeSandbox) {
		if b.starts != 0 || !b.server {
			t.Errorf("its server has not gone on: %v, started %d times", b.server, b.starts)
		}
	})
	if d := cmp.Diff(then, w.tracked(now.Sandbox)); d != "" {
		t.Error(d)
	}
	if got := recorded(t, s, "shop", 4)["src/hand.ts"]; got != "mine\n" {
		t.Errorf("what was changed by hand is %q", got)
	}
	wantSame(t, w, s, "shop")
	projected(t, w, s, now)
	settled(t, w)

	// Repeating it is no error, and creates no revision. It needs neither the old sandbox nor this
	// node.
	w.rows(now.Sandbox, "three")
	if rev, err = s.Restore(t.Context(), "ann", "shop", 2); err != nil || rev.Number != 5 {
		t.Errorf("it is %+v (%v)", rev, err)
	}
	if err := s.Stop(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = w.begin(t)
	if rev, err = s.Restore(t.Context(), "ann", "shop", 2); err != nil || rev.Number != 5 {
		t.Errorf("it is %+v (%v)", rev, err)
	}
	if now, err = s.Get(t.Context(), "ann", "shop"); err != nil || now.State != engi.AppReady || w.database(now.Sandbox) != "one" {
		t.Errorf("the app is %+v (%v)", now, err)
	}
	w.mu.Lock()
	w.lose(w.boxes[now.Sandbox])
	w.mu.Unlock()
	if _, err = s.Restore(t.Context(), "ann", "shop", 2); err != nil {
		t.Error(err)
	}
	settled(t, w)

	// A branch has the database of the snapshot, or without a snapshot none.
	for name, want := range map[string]string{"blue": "one", "red": ""} {
		b, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: "shop", Revision: 2, Name: name, Snapshot: name == "blue"})
		if err != nil || b.State != engi.AppReady || w.database(b.Sandbox) != want {
			t.Errorf("%s is %+v (%v)", name, b, err)
		}
		if d := cmp.Diff(then, w.tracked(b.Sandbox)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		projected(t, w, s, b)
	}
	if _, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: "shop", Revision: 3, Snapshot: true}); !engi.Is(err, engi.NotFound) {
		t.Errorf("a branch without its snapshot: %v", err)
	}
	settled(t, w)

	// Other owners see no snapshot.
	id := string(a.ID)
	for what, err := range map[string]error{
		"snapshot": second(s.Snapshot(t.Context(), "bob", id)),
		"restore":  second(s.Restore(t.Context(), "bob", id, 2)),
		"branch":   second(s.Branch(t.Context(), engi.BranchSpec{Viewer: "bob", App: id, Snapshot: true})),
	} {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("%s by another owner: %v", what, err)
		}
	}
	for _, name := range []string{"shop", "blue", "red"} {
		if err := s.Remove(t.Context(), "ann", name); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, w)
	if len(w.copies) != 0 {
		t.Errorf("%d snapshots outlive the apps", len(w.copies))
	}
}

// TestSnapshotsAreFew creates more snapshots than allowed, removes one, and has no
// space for another one.
func TestSnapshotsAreFew(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	for i := range 7 {
		if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("n.txt", fmt.Sprintf("%d\n", i)), Snapshot: true}); last.Kind != engi.AppApplied {
			t.Fatalf("it ended with %+v", last)
		}
	}
	settled(t, w)
	if d := cmp.Diff([]int64{8, 7, 6, 5, 4}, snapshotsOf(t, s, "shop")); d != "" {
		t.Error(d)
	}
	w.rows(a.Sandbox, "later")
	rev, err := s.Snapshot(t.Context(), "ann", "shop")
	if err != nil || rev.Number != 8 || rev.Snapshot.Bytes != 100 {
		t.Errorf("it is %+v (%v)", rev, err)
	}
	settled(t, w) // the earlier one is removed
	if d := cmp.Diff([]int64{8, 7, 6, 5, 4}, snapshotsOf(t, s, "shop")); d != "" {
		t.Error(d)
	}
	if _, err := s.Restore(t.Context(), "ann", "shop", 0); err != nil {
		t.Error(err)
	}
	if a, err = s.Get(t.Context(), "ann", "shop"); err != nil || w.database(a.Sandbox) != "later" {
		t.Errorf("the app is %+v (%v)", a, err)
	}

	w.mu.Lock()
	delete(w.copies, rev.Snapshot.ID)
	w.mu.Unlock()
	if _, err := s.Restore(t.Context(), "ann", "shop", 8); !engi.Is(err, engi.NotFound) || engi.RemedyOf(err) == "" {
		t.Errorf("one that somebody has removed: %v", err)
	}
	if d := cmp.Diff([]int64{7, 6, 5, 4}, snapshotsOf(t, s, "shop")); d != "" {
		t.Error(d)
	}

	w.mu.Lock()
	w.noRoom = true
	w.mu.Unlock()
	all, last := apply(t, s, "shop", engi.ApplySpec{Text: file("n.txt", "more\n"), Snapshot: true})
	if last.Kind != engi.AppApplied || !slices.ContainsFunc(all, func(u engi.AppUpdate) bool {
		return u.Kind == engi.AppWarning && strings.Contains(u.Text, "quota of snapshots") && strings.Contains(u.Text, "remove a snapshot")
	}) {
		t.Errorf("it ended with %+v and said %+v", last, all)
	}
	if _, err := s.Snapshot(t.Context(), "ann", "shop"); !engi.Is(err, engi.Exhausted) {
		t.Errorf("without room: %v", err)
	}
	settled(t, w)
	if d := cmp.Diff([]int64{7, 6, 5, 4}, snapshotsOf(t, s, "shop")); d != "" {
		t.Error(d)
	}
	wantSame(t, w, s, "shop")
}

// TestRestoreThatFails makes the new sandbox unusable. Then the old one must be unchanged.
func TestRestoreThatFails(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	if _, err := s.Snapshot(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	w.rows(a.Sandbox, "two")
	w.mu.Lock()
	w.full = true
	w.mu.Unlock()
	if _, err := s.Restore(t.Context(), "ann", "shop", 0); !engi.Is(err, engi.Exhausted) {
		t.Errorf("on a full node: %v", err)
	}
	w.mu.Lock()
	w.full = false
	w.fault = func(op string, b *fakeSandbox) error {
		if op == "dial" && b.ID != a.Sandbox {
			return engi.Errorf(engi.Unavailable, "nothing listens there")
		}
		return nil
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := s.Restore(ctx, "ann", "shop", 0); err == nil {
		t.Error("a server that does not start is what the app was")
	}
	settled(t, w)
	now, err := s.Get(t.Context(), "ann", "shop")
	if err != nil || now.Sandbox != a.Sandbox || now.Revision != 1 || now.State != engi.AppReady || w.database(now.Sandbox) != "two" {
		t.Errorf("the app is %+v (%v)", now, err)
	}
	wantSame(t, w, s, "shop")
}

// TestPowerCutsOfSnapshots cuts the power at steps of operations on snapshots: at all of
// them with ENGI_TEST_CUTS, otherwise at each fourth. The next service must have the old or the new state, with
// its database, and nothing else must be left.
func TestPowerCutsOfSnapshots(t *testing.T) {
	random := seed.New(t)
	for name, act := range map[string]func(ctx context.Context, s *app.Service) error{
		"apply": func(ctx context.Context, s *app.Service) error {
			seq, err := s.Apply(ctx, engi.ApplySpec{Viewer: "ann", App: "shop", Text: file("src/App.tsx", "three\n"), Snapshot: true})
			for u, e := range s.Watch(ctx, "ann", "shop", seq) {
				if err != nil || e != nil || u.Apply == seq && (u.Kind == engi.AppApplied || u.Kind == engi.AppApplyFailed) {
					break
				}
			}
			return err
		},
		"snapshot": func(ctx context.Context, s *app.Service) error { return second(s.Snapshot(ctx, "ann", "shop")) },
		"restore":  func(ctx context.Context, s *app.Service) error { return second(s.Restore(ctx, "ann", "shop", 2)) },
		"branch": func(ctx context.Context, s *app.Service) error {
			return second(s.Branch(ctx, engi.BranchSpec{Viewer: "ann", App: "shop", Name: "blue", Snapshot: true}))
		},
		"remove": func(ctx context.Context, s *app.Service) error { return s.Remove(ctx, "ann", "shop") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			every := cutEvery()
			at := random.IntN(every)
			for cutSnapshotAt(t, name, act, at) {
				at += every
			}
			if at < 5 {
				t.Errorf("there were only %d steps", at)
			}
			t.Logf("cut up to step %d, each %d", at, every)
		})
	}
}

func cutSnapshotAt(t *testing.T, name string, act func(context.Context, *app.Service) error, steps int) bool {
	w := newFixture(t)
	defer w.db.Close()
	s, stop := w.begin(t)
	a := create(t, s, "shop")
	w.rows(a.Sandbox, "one")
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "one\n"), Snapshot: true}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	w.rows(a.Sandbox, "two")
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "two\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	projected(t, w, s, a)
	w.power(steps)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = act(ctx, s)
	}()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-time.After(time.Millisecond):
			over = w.isOff()
		}
	}
	stop()
	cancel()
	<-done
	cut := w.isOff()
	w.power(-1)
	s, stop = w.begin(t)
	defer stop()
	want := map[string]int64{"apply": 4, "restore": 4}[name]
	if name == "remove" {
		if err := engi.Ignore(s.Remove(t.Context(), "ann", "shop"), engi.NotFound); err != nil {
			t.Errorf("after %d steps: %v", steps, err)
		}
		settled(t, w)
		if len(w.boxes)+len(w.copies) != 0 {
			t.Errorf("after %d steps, %d sandboxes and %d snapshots are left", steps, len(w.boxes), len(w.copies))
		}
		return cut
	}
	got, err := s.Open(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatalf("after %d steps: %v", steps, err)
	}
	r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	isNew := r.Revision == want
	if r.Applying != 0 || r.Undo != nil || r.State != engi.AppReady || !isNew && r.Revision != 3 {
		t.Errorf("after %d steps the app is %+v", steps, r)
	}
	if restored := name == "restore" && isNew; restored != (got.Sandbox != a.Sandbox) || w.database(got.Sandbox) != map[bool]string{true: "one", false: "two"}[restored] {
		t.Errorf("after %d steps, revision %d has the database %q, and another sandbox: %v", steps, r.Revision, w.database(got.Sandbox), got.Sandbox != a.Sandbox)
	}
	wantSame(t, w, s, "shop")
	kept := snapshotsOf(t, s, "shop")
	if name == "apply" && isNew && !slices.Equal(kept, []int64{4, 2}) || !isNew && !slices.Equal(kept, []int64{2}) && !(name == "snapshot" && slices.Equal(kept, []int64{3, 2})) {
		t.Errorf("after %d steps, %v of %d revisions have snapshots", steps, kept, r.Revision)
	}
	if blue, err := s.Open(t.Context(), "ann", "blue"); err == nil {
		if name != "branch" || w.database(blue.Sandbox) != "one" || !maps.Equal(w.tracked(blue.Sandbox), recorded(t, s, "shop", 2)) {
			t.Errorf("after %d steps, the branch has the database %q", steps, w.database(blue.Sandbox))
		}
	} else if !engi.Is(err, engi.NotFound) {
		t.Errorf("after %d steps, the branch: %v", steps, err)
	}
	settled(t, w)
	return cut
}
