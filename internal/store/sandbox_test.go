package store_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/store"
)

// TestSandboxEvents follows a sandbox through its life and looks at what its
// events say.
func TestSandboxEvents(t *testing.T) {
	db, log := open(t, filepath.Join(t.TempDir(), "engi.db"))
	t.Cleanup(func() { db.Close() })
	boxes, snapshots := store.Fleet(db), store.Snapshots(db)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := fleet.SandboxRecord{Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), Template: "base", State: engi.Ready, Created: at}}
	put := func(state engi.State, change func()) {
		t.Helper()
		s.State = state
		if change != nil {
			change()
		}
		if err := boxes.PutSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	put(engi.Ready, nil)
	put(engi.Running, func() {
		s.Owner, s.Made, s.Metadata, s.Size = "anna", true, map[string]string{"a": "b"}, engi.Size{VCPUs: 1.5, Memory: 1 << 30}
		s.Started, s.Deadline = at, at.Add(time.Minute)
		s.Notes = map[string]string{"e2b.template": "tpl", "e2b.from": "build", "e2b.mcp": `{"secret":1}`}
	})
	put(engi.Running, func() { s.Deadline = at.Add(time.Hour) })
	put(engi.Running, func() { s.Active = at.Add(time.Second) }) // nobody's doing
	snap := engi.Snapshot{ID: engi.NewSnapshotID(), Owner: "anna", Sandbox: s.ID, Created: at}
	if err := snapshots.Put(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	put(engi.Paused, func() { s.Deadline = time.Time{} })
	for range 2 {
		if err := boxes.ForgetSandbox(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := snapshots.Put(t.Context(), engi.Snapshot{ID: engi.NewSnapshotID(), Owner: "anna", Sandbox: s.ID, Created: at}); err != nil {
		t.Fatal(err) // of a sandbox that is gone
	}

	const made = `"template":"base","metadata":{"a":"b"},"started":"2026-01-02T03:04:05Z","vcpus":1.5,"memory":1073741824,` +
		`"notes":{"e2b.from":"build","e2b.template":"tpl"}`
	want := []string{
		`sandbox.running anna {"from":"ready","deadline":"2026-01-02T03:05:05Z",` + made + `}`,
		`sandbox.updated anna {"changed":["deadline"],"deadline":"2026-01-02T04:04:05Z",` + made + `}`,
		`sandbox.snapshotted anna {"snapshot_id":"` + string(snap.ID) + `","deadline":"2026-01-02T04:04:05Z",` + made + `}`,
		`sandbox.paused anna {"from":"running",` + made + `}`,
		`sandbox.stopped anna {"from":"paused",` + made + `}`,
	}
	events, err := log.List(t.Context(), engi.Everyone, engi.EventFilter{Subject: string(s.ID), Oldest: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s %s %s", e.Type, e.Owner, sorted(t, string(e.Data))))
	}
	for i, w := range want {
		kind, object, _ := strings.Cut(w, "{")
		want[i] = kind + sorted(t, "{"+object)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// sorted returns a JSON object with its members in the order of their names.
func sorted(t *testing.T, object string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		t.Fatalf("%s: %v", object, err)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
