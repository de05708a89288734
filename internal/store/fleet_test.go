package store

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
)

func openFleet(t testing.TB) fleet.Store {
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return Fleet(db)
}

func TestFleetKeepsPromises(t *testing.T) {
	fleetPromises(t, func(t *testing.T) fleet.Store { return openFleet(t) })
}

// TestFleetOutlivesItsProcess opens the database again without having closed
// it, as after a kill -9.
func TestFleetOutlivesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	first, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	r := fleettest.Record("alice", engi.ExecutionDone)
	if err := Fleet(first).Create(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	second, err := Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := Fleet(second).Get(t.Context(), "alice", r.ID); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for target, want := range map[string]engi.Kind{
		"relative.db":           engi.Invalid,
		"":                      engi.Invalid,
		"postgres://host/db":    engi.Unsupported,
		"/nonexistent/dir/x.db": engi.Internal,
	} {
		db, err := Open(t.Context(), target)
		if err == nil {
			db.Close()
		}
		if !engi.Is(err, want) {
			t.Errorf("Open(%q): %v, want kind %s", target, err, want)
		}
	}
}

func TestOpenRefusesANewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(t.Context(), path); !engi.Is(err, engi.Conflict) {
		t.Errorf("Open: %v, want kind conflict", err)
	}
}

func TestRunEnds(t *testing.T) {
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := false
	if err := db.Run(ctx, func() { ready = true; cancel() }); err != nil || !ready {
		t.Errorf("Run: %v, ready %v", err, ready)
	}
}

// BenchmarkExecution is what the store costs one warm execution.
func BenchmarkExecution(b *testing.B) {
	s := openFleet(b)
	ctx, cancel := context.WithCancel(context.Background()) // like those of requests
	defer cancel()
	for b.Loop() {
		r, sandbox := fleettest.Record("alice", engi.ExecutionRunning), fleettest.Sandbox("alice", engi.Running)
		if err := s.Create(ctx, r, &sandbox); err != nil {
			b.Fatal(err)
		}
		done := fleettest.Record("alice", engi.ExecutionDone)
		done.ID, sandbox.State = r.ID, engi.Stopping
		if err := s.Update(ctx, engi.ExecutionRunning, done, &sandbox); err != nil {
			b.Fatal(err)
		}
	}
}
