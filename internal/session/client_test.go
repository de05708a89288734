package session

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// noted returns the events about clients so far.
func (f *fixture) noted() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.notes {
		if n.Type == engi.EventSessionAttached || n.Type == engi.EventSessionDetached {
			all = append(all, fmt.Sprint(n.Type, " ", n.Data["client"], " ", n.Data["clients"]))
		}
	}
	return all
}

// connect enters a session as a connected client.
func connect(t *testing.T, m *Manager, id engi.SessionID, via, name string) (leave func()) {
	t.Helper()
	_, leave, err := m.Enter(engi.WithClient(t.Context(), via, name), engi.Everyone, string(id))
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

func attached(t *testing.T, m *Manager, id engi.SessionID) (all []string) {
	t.Helper()
	s, err := m.Get(t.Context(), engi.Everyone, string(id))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Attached {
		all = append(all, c.Via+" "+c.Name)
	}
	return all
}

// TestConnectionsAttach connects clients, which are attached while connected, beside a client
// that was attached by request. A crash detaches the connected ones.
func TestConnectionsAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		s := create(t, m, engi.SessionSpec{})
		is := func(m *Manager, want ...string) {
			t.Helper()
			if got := attached(t, m, s.ID); !slices.Equal(got, want) {
				t.Errorf("attached: %q, want %q", got, want)
			}
		}
		ssh := connect(t, m, s.ID, "ssh", "key")
		if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), "key"); err != nil {
			t.Fatal(err)
		}
		again := connect(t, m, s.ID, "ssh", "key")
		terminal := connect(t, m, s.ID, "terminal", "trm")
		is(m, " key", "ssh key", "terminal trm")
		ssh()
		ssh()
		time.Sleep(time.Minute)
		is(m, " key", "ssh key", "terminal trm") // the client has another connection
		if _, err := m.Detach(t.Context(), engi.Everyone, string(s.ID), "key"); err != nil {
			t.Fatal(err)
		}
		is(m, "ssh key", "terminal trm")
		again()
		is(m, "terminal trm")
		time.Sleep(time.Minute)
		want := []string{
			"session.attached key 1", "session.attached key 2", "session.attached trm 3", "session.detached key 2", "session.detached key 1",
		}
		if got := w.noted(); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		stop()
		next, stop := start(t, w)
		defer stop()
		is(next)
		terminal()
	})
}

// TestLastConnectionEnds checks that the end of the last connection saves a workspace, and stops nothing,
// in every persistence.
func TestLastConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		for _, p := range engi.Persistences() {
			s := create(t, m, engi.SessionSpec{Owner: "ann", Name: string(p), Persistence: p})
			runCode(t, m, s.ID, "set k 1")
			connect(t, m, s.ID, "ssh", "key")()
			time.Sleep(time.Minute)
			x, err := m.Get(t.Context(), engi.Everyone, string(s.ID))
			if err != nil || x.State != engi.SessionRunning || x.Saved.IsZero() == (p == engi.PersistWorkspace) {
				t.Errorf("%s: %s, saved %v, %v", p, x.State, x.Saved, err)
			}
			if p != engi.PersistWorkspace {
				continue
			}
			// While another client is attached, nothing is saved.
			if _, err := m.Attach(t.Context(), engi.Everyone, string(s.ID), "other"); err != nil {
				t.Fatal(err)
			}
			connect(t, m, s.ID, "ssh", "key")()
			time.Sleep(time.Minute)
			if y, err := m.Get(t.Context(), engi.Everyone, string(s.ID)); err != nil || !y.Saved.Equal(x.Saved) {
				t.Errorf("saved %v, then %v, %v", x.Saved, y.Saved, err)
			}
		}
		if c, _ := w.copyOf(string(engi.PersistWorkspace)); c["k"] != "1" {
			t.Errorf("the copy has %v", c)
		}
	})
}

// TestFlappingConnection interrupts a connection each second: this must count as one client, and cause
// no save until the client stays away.
func TestFlappingConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "nb", Persistence: engi.PersistWorkspace})
		for range 60 {
			connect(t, m, s.ID, "terminal", "trm")()
			time.Sleep(time.Second)
		}
		if _, ok := w.copyOf("nb"); ok {
			t.Error("it is saved meanwhile")
		}
		if got := w.noted(); len(got) != 1 {
			t.Errorf("events %q", got)
		}
		time.Sleep(lingering + 10*time.Second)
		if _, ok := w.copyOf("nb"); !ok {
			t.Error("it is not saved")
		}
		if got := w.noted(); len(got) != 2 {
			t.Errorf("events %q", got)
		}
	})
}

// noNotes is a store that cannot record events.
type noNotes struct{ *fixture }

func (s noNotes) Save(ctx context.Context, r Record) error {
	if r.Note != nil {
		return engi.Errorf(engi.Unavailable, "no notes")
	}
	return s.fixture.Save(ctx, r)
}

// TestConnectionIsNotRefused enters a session although attaching the client cannot be recorded.
func TestConnectionIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		o := options(w)
		o.Store = noNotes{w}
		m, stop := startWith(t, o)
		defer stop()
		s := create(t, m, engi.SessionSpec{})
		leave := connect(t, m, s.ID, "ssh", "key")
		if got := attached(t, m, s.ID); !slices.Equal(got, []string{"ssh key"}) {
			t.Errorf("attached: %q", got)
		}
		leave()
		time.Sleep(time.Minute)
		if got := attached(t, m, s.ID); len(got) > 0 {
			t.Errorf("attached: %q", got)
		}
	})
}
