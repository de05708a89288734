package session

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session/backup"
)

// copyOf returns a copy's content, and whether there is one.
func (f *fixture) copyOf(name string) (map[string]string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.copies[backup.Key{Owner: "ann", Name: name}]
	return maps.Clone(c), ok
}

func (f *fixture) breakStore(is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noStore = is
}

// loseVolumes removes the disk with all volumes.
func (f *fixture) loseVolumes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.volumes)
}

func TestWorkspaceIsSavedAndRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		spec := engi.SessionSpec{Owner: "ann", Name: "nb", Persistence: engi.PersistWorkspace}
		s := create(t, m, spec)
		runCode(t, m, s.ID, "set k 1")
		if _, ok := w.copyOf("nb"); ok {
			t.Error("it is saved before it is released")
		}
		if err := m.Release(t.Context(), "ann", "nb"); err != nil {
			t.Fatal(err)
		}
		if c, _ := w.copyOf("nb"); c["k"] != "1" {
			t.Errorf("after release: %v", c)
		}
		if x, err := m.Get(t.Context(), "ann", "nb"); err != nil || x.Saved.IsZero() {
			t.Errorf("%+v, %v", x, err)
		}
		// Saved by dormancy, after the sandbox stopped by itself.
		runCode(t, m, s.ID, "set k 2")
		time.Sleep(6 * time.Minute)
		if c, _ := w.copyOf("nb"); c["k"] != "2" {
			t.Errorf("after dormancy: %v", c)
		}
		// Saved on demand while the sandbox is running, with later changes.
		runCode(t, m, s.ID, "set k 3")
		if _, err := m.SaveWorkspace(t.Context(), "ann", "nb"); err != nil {
			t.Fatal(err)
		}
		if c, _ := w.copyOf("nb"); c["k"] != "3" {
			t.Errorf("on demand: %v", c)
		}
		runCode(t, m, s.ID, "set k 4")
		time.Sleep(6 * time.Minute)
		if c, _ := w.copyOf("nb"); c["k"] != "4" {
			t.Errorf("after a copy on demand: %v", c)
		}
		// The disk is lost.
		w.loseVolumes()
		if res := runCode(t, m, s.ID, "get k"); string(res.Value) != `"4"` {
			t.Errorf("after the disk was lost: %s", res.Value)
		}
		// The unused session ends, the copy is kept, and another session with the name gets it.
		time.Sleep(time.Hour)
		if x, err := m.Get(t.Context(), "ann", string(s.ID)); err != nil || x.State != engi.SessionTerminated {
			t.Fatalf("%+v, %v", x, err)
		}
		again := create(t, m, spec)
		if res := runCode(t, m, again.ID, "get k"); string(res.Value) != `"4"` {
			t.Errorf("in a new session: %s", res.Value)
		}
		// The removal of the old session leaves the new one's copy alone; the removal of the new one deletes it.
		if err := m.Terminate(t.Context(), "ann", string(s.ID)); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.copyOf("nb"); !ok {
			t.Error("the copy went with a session that had ended before")
		}
		if err := m.Terminate(t.Context(), "ann", "nb"); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.copyOf("nb"); ok {
			t.Error("the copy outlives its session")
		}
		if _, err := m.SaveWorkspace(t.Context(), "ann", string(create(t, m, engi.SessionSpec{Owner: "ann"}).ID)); !engi.Is(err, engi.Conflict) {
			t.Errorf("a session without copy: %v", err)
		}
	})
}

// TestUnsavedWorkspaceStays checks that a session does not end while its store is unavailable,
// and retries at intervals.
func TestUnsavedWorkspaceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer func() { stop() }()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "nb", Persistence: engi.PersistWorkspace, TTL: 10 * time.Minute})
		runCode(t, m, s.ID, "set k 1")
		w.breakStore(true)
		time.Sleep(3 * time.Hour)
		if x, err := m.Get(t.Context(), "ann", "nb"); err != nil || x.State != engi.SessionIdle {
			t.Fatalf("%+v, %v", x, err)
		}
		if w.refused < 3 || w.refused > 12 {
			t.Errorf("it tried %d times in three hours", w.refused)
		}
		stop()
		m, stop = start(t, w) // the next process also keeps it
		w.breakStore(false)
		time.Sleep(2 * time.Minute)
		if c, _ := w.copyOf("nb"); c["k"] != "1" {
			t.Errorf("it was not saved: %v", c)
		}
		if x, err := m.Get(t.Context(), "ann", string(s.ID)); err != nil || x.State != engi.SessionTerminated {
			t.Errorf("%+v, %v", x, err)
		}
	})
}

// TestWorkspaceSurvivesPowerCuts cuts the power after each step of a session's
// life: saved files must persist.
func TestWorkspaceSurvivesPowerCuts(t *testing.T) {
	for n := 1; ; n++ {
		over := false
		synctest.Test(t, func(t *testing.T) {
			w := newFixture()
			m, stop := start(t, w)
			s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "nb", Persistence: engi.PersistWorkspace})
			runCode(t, m, s.ID, "set k 1")
			if err := m.Release(t.Context(), "ann", "nb"); err != nil {
				t.Fatal(err)
			}
			w.loseVolumes()
			w.mu.Lock()
			w.left = n
			w.mu.Unlock()
			_, ranErr := m.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "set j 2"}, nil)
			err := m.Release(context.Background(), "ann", "nb")
			over = ranErr == nil && err == nil
			w.mu.Lock()
			w.off, w.left = false, -1
			w.mu.Unlock()
			stop()
			m, stop = start(t, w)
			defer stop()
			w.mu.Lock()
			saved := w.copies[backup.Key{Owner: "ann", Name: "nb"}]["k"]
			w.mu.Unlock()
			if res := runCode(t, m, s.ID, "get k"); string(res.Value) != `"1"` || saved != "1" {
				t.Errorf("cut after %d steps: %s, saved %q", n, res.Value, saved)
			}
		})
		if over {
			if n < 8 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}
