package e2b_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/store"
)

// oneKey is a ring on which each secret is the key of the owner it names.
type oneKey struct{ engi.Keys }

func (oneKey) Authenticate(_ context.Context, secret string) (engi.Key, error) {
	return engi.Key{Owner: engi.Owner(secret)}, nil
}

// eventServer serves the events of a log; nothing else of it works.
func eventServer(t testing.TB, log engi.Events) *e2b.Server {
	return e2b.New(e2b.Options{
		Sandboxes: struct{ engi.Sandboxes }{}, Templates: struct{ engi.Templates }{}, Keys: oneKey{}, Store: struct{ registry.Store }{},
		Secret: make([]byte, 32), Dir: t.TempDir(), Events: log,
		Hosts: []string{"example.com"}, // httptest's
	})
}

func get(t testing.TB, s *e2b.Server, owner, path string) (list []map[string]any) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("X-API-Key", owner)
	w := httptest.NewRecorder()
	s.Control().ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s (%v)", path, w.Code, w.Body, err)
	}
	return list
}

// TestStoredEvents has the store write a sandbox's life.
func TestStoredEvents(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	at := time.Now().UTC().Add(-time.Minute)
	rec := fleet.SandboxRecord{Made: true, Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), Owner: "ann", Template: "base", Created: at, Started: at,
		Metadata: map[string]string{"app": "x"}, Size: engi.Size{VCPUs: 2, Memory: 1 << 30}}}
	put := func(states ...engi.State) {
		t.Helper()
		for _, rec.State = range states {
			if err := store.Fleet(db).PutSandbox(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(engi.Running)
	rec.Deadline = at.Add(time.Hour)
	put(engi.Running)
	if err := store.Snapshots(db).Put(t.Context(), engi.Snapshot{ID: engi.NewSnapshotID(), Owner: "ann", Sandbox: rec.ID, Created: at}); err != nil {
		t.Fatal(err)
	}
	put(engi.Hibernating, engi.Hibernated, engi.Resuming)
	rec.Started = at.Add(time.Second)
	put(engi.Running, engi.Stopping, engi.Stopped)
	if err := store.Fleet(db).ForgetSandbox(t.Context(), rec.ID); err != nil {
		t.Fatal(err)
	}

	s := eventServer(t, store.Events(db))
	path := "/events/sandboxes/" + rec.ID.Label() + "?orderAsc=true"
	var told, executions []string
	for _, e := range get(t, s, "ann", path) {
		data := e["eventData"].(map[string]any)
		if e["sandboxId"] != rec.ID.Label() || e["sandboxTeamId"] != "ann" || fmt.Sprint(data["sandbox_metadata"]) != "map[app:x]" {
			t.Errorf("%v", e)
		}
		told = append(told, strings.TrimPrefix(e["type"].(string), "sandbox.lifecycle."))
		if x, ok := data["execution"].(map[string]any); ok {
			executions = append(executions, e["sandboxExecutionId"].(string))
			if ms := x["execution_time"].(float64); x["vcpu_count"] != 2.0 || x["memory_mb"] != 1024.0 || ms < 58_000 || ms > 120_000 {
				t.Errorf("%v", x)
			}
		}
	}
	if got := strings.Join(told, " "); got != "created updated checkpointed paused resumed killed" {
		t.Errorf("told of %s", got)
	}
	if len(executions) != 2 || executions[0] == executions[1] {
		t.Errorf("executions %v", executions)
	}
	if list := get(t, s, "ben", path); len(list) != 0 {
		t.Errorf("ben sees %v", list)
	}
}

// BenchmarkEvents reads pages of a log in which each of 1000 owners' sandboxes
// has 100 events, and one 100,000.
func BenchmarkEvents(b *testing.B) {
	db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "engi.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	log := store.Events(db)
	big := engi.NewSandboxID()
	data := json.RawMessage(`{"from":"running","template":"base","started":"2026-01-02T03:04:05Z","metadata":{"app":"x"},"vcpus":1,"memory":1073741824}`)
	add := func(n int, owner string, id engi.SandboxID, data json.RawMessage) {
		for range n / 100 {
			var specs []engi.EventSpec
			for range 100 {
				specs = append(specs, engi.EventSpec{Owner: engi.Owner(owner), Subject: string(id), Type: "sandbox.paused", Data: data})
			}
			if _, err := log.Append(b.Context(), specs...); err != nil {
				b.Fatal(err)
			}
		}
	}
	add(100, "ann", engi.NewSandboxID(), data)
	small := engi.NewSandboxID()
	add(100, "ann", small, data)
	add(100_000, "ann", big, data)
	add(100, "ben", engi.NewSandboxID(), data)
	add(100_000, "ben", engi.NewSandboxID(), json.RawMessage(`{"from":"ready","template":"base","execution_id":"exe_u2dmwmlezjgprkqrgppgcz2mgu"}`))
	s := eventServer(b, log)
	for _, c := range []struct{ name, owner, path string }{
		{"owner", "ann", "/events/sandboxes"},
		{"owner/asc", "ann", "/events/sandboxes?orderAsc=true"},
		{"sandbox", "ann", "/events/sandboxes/" + big.Label()},
		{"small", "ann", "/events/sandboxes/" + small.Label() + "?limit=100"},
		{"offset=1000", "ann", "/events/sandboxes/" + big.Label() + "?offset=1000"},
		{"offset=90000", "ann", "/events/sandboxes/" + big.Label() + "?offset=90000"},
		{"offset=90000/asc", "ann", "/events/sandboxes/" + big.Label() + "?offset=90000&orderAsc=true"},
		{"among executions", "ben", "/events/sandboxes"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if len(get(b, s, c.owner, c.path)) < 10 {
					b.Fatal("too few events")
				}
			}
		})
	}
}
