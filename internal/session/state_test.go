package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestStates visits all states of a session, and checks the events about it.
// TestSessionsAcrossPowerCuts does so in random order.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "s"})
		must := func(want engi.SessionState) func(engi.Session, error) {
			return func(x engi.Session, err error) {
				t.Helper()
				if err != nil || x.State != want {
					t.Fatalf("%s, %v, want %s", x.State, err, want)
				}
			}
		}
		if _, err := m.Suspend(t.Context(), "ann", "s"); !engi.Is(err, engi.Conflict) || engi.RemedyOf(err) == "" {
			t.Errorf("without a sandbox: %v", err)
		}
		must(engi.SessionRunning)(m.Attach(t.Context(), "ann", "s", "laptop"))
		must(engi.SessionRunning)(m.Attach(t.Context(), "ann", "s", "phone"))
		must(engi.SessionRunning)(m.Attach(t.Context(), "ann", "s", "phone"))
		_, release, err := m.Enter(t.Context(), "ann", "s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Suspend(t.Context(), "ann", "s"); !engi.Is(err, engi.Conflict) || engi.RemedyOf(err) == "" {
			t.Errorf("while it is in use: %v", err)
		}
		release()
		x, err := m.Detach(t.Context(), "ann", "s", "phone")
		if err != nil || len(x.Attached) != 1 || x.Attached[0].Name != "laptop" {
			t.Fatalf("%+v, %v", x, err)
		}
		must(engi.SessionSuspended)(m.Suspend(t.Context(), "ann", "s"))
		must(engi.SessionSuspended)(m.Suspend(t.Context(), "ann", "s"))
		runCode(t, m, s.ID, "set k v") // resumes it
		must(engi.SessionSuspended)(m.Suspend(t.Context(), "ann", "s"))
		must(engi.SessionHibernated)(m.Hibernate(t.Context(), "ann", "s"))
		if _, err := m.Suspend(t.Context(), "ann", "s"); !engi.Is(err, engi.Conflict) {
			t.Errorf("suspend what hibernates: %v", err)
		}
		must(engi.SessionRunning)(m.Resume(t.Context(), "ann", "s"))
		time.Sleep(6 * time.Minute) // dormancy
		must(engi.SessionRunning)(m.Resume(t.Context(), "ann", "s"))
		if err := m.Terminate(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		var got []string
		for _, x := range w.steps {
			got = append(got, fmt.Sprintf("%s by %s", strings.TrimPrefix(x.From.Event(x.To), "session."), x.Cause))
		}
		want := []string{
			"booting by use", "started by use", "suspended by request", "resumed by use", "suspended by request", "hibernated by request",
			"resumed by use", "released by dormancy", "booting by use", "started by use", "terminated by request",
		}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		for i, want := range []string{engi.EventSessionAttached, engi.EventSessionAttached, engi.EventSessionDetached} {
			if w.notes[i].Type != want {
				t.Errorf("%+v", w.notes)
			}
		}
		if len(w.faults) > 0 {
			t.Error(w.faults)
		}
	})
}

// TestLastClientLeaves checks the effect in each persistence.
func TestLastClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		for p, want := range map[engi.Persistence]engi.SessionState{
			engi.PersistNone: engi.SessionIdle, engi.PersistSession: engi.SessionRunning, engi.PersistSnapshot: engi.SessionHibernated, engi.PersistWorkspace: engi.SessionRunning,
		} {
			s := create(t, m, engi.SessionSpec{Name: string(p), Persistence: p})
			for _, client := range []string{"a", "b"} {
				if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), client); err != nil {
					t.Fatal(err)
				}
			}
			for client, state := range map[string]engi.SessionState{"nobody": engi.SessionRunning, "a": engi.SessionRunning} {
				if x, err := m.Detach(t.Context(), engi.Everyone, string(s.ID), client); err != nil || x.State != state {
					t.Errorf("%s: %s left: %s, %v", p, client, x.State, err)
				}
			}
			x, err := m.Detach(t.Context(), engi.Everyone, string(s.ID), "b")
			if err != nil || x.State != want {
				t.Errorf("%s: %s, %v, want %s", p, x.State, err, want)
			}
			if p == engi.PersistWorkspace && x.Saved.IsZero() {
				t.Error("the workspace is not saved")
			}
		}
		s := create(t, m, engi.SessionSpec{})
		for i := range maxClients {
			if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), fmt.Sprint("c", i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), "more"); !engi.Is(err, engi.Exhausted) || engi.RemedyOf(err) == "" {
			t.Errorf("%v", err)
		}
		if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), "two words"); !engi.Is(err, engi.Invalid) {
			t.Errorf("%v", err)
		}
	})
}
