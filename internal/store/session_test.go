package store_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/store"
)

func TestSessionStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engi.db")
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	f := store.Sessions(db)
	now := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	r := session.Record{Idempotency: "k", Fingerprint: "p", Boots: 3, Session: engi.Session{
		ID: engi.NewSessionID(), Owner: "ann", Name: "s", State: engi.SessionIdle, Mode: engi.SessionWarm, Persistence: engi.PersistSnapshot, Template: "base",
		Size: engi.Size{Memory: 1 << 30}, Volume: engi.NewVolumeID(), Sandbox: engi.NewSandboxID(), Capacity: 5, TTL: time.Hour, Dormancy: time.Minute,
		Network:  engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a.example"}, Grants: []engi.Grant{{Secret: "x", Hosts: []string{"h"}, Env: "E"}}},
		Metadata: map[string]string{"a": "b"}, Env: map[string]string{"C": "d"}, Created: now, Used: now.Add(time.Second),
	}}
	if err := f.Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	same := r
	same.ID, same.Idempotency = engi.NewSessionID(), ""
	if err := f.Put(t.Context(), same); !engi.Is(err, engi.Conflict) {
		t.Errorf("a name twice: %v", err)
	}
	same.Owner = "bob"
	if err := f.Put(t.Context(), same); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Find(t.Context(), engi.Everyone, "s"); !engi.Is(err, engi.Conflict) {
		t.Errorf("a name of two owners: %v", err)
	}
	for _, c := range []struct {
		viewer engi.Viewer
		key    string
		found  bool
	}{
		{"ann", string(r.ID), true}, {"ann", "s", true}, {engi.Everyone, string(r.ID), true}, {"", string(r.ID), false}, {"", "s", false}, {"bob", string(r.ID), false}, {"ann", "", false}, {"ann", "t", false},
	} {
		got, err := f.Find(t.Context(), c.viewer, c.key)
		if (err == nil) != c.found || err != nil && !engi.Is(err, engi.NotFound) {
			t.Errorf("%s as %q: %v", c.key, c.viewer, err)
		}
		if d := cmp.Diff(r, got); c.found && d != "" {
			t.Errorf("%s as %q: %s", c.key, c.viewer, d)
		}
	}
	if got, err := f.ByIdempotencyKey(t.Context(), "ann", "k"); err != nil || got.ID != r.ID {
		t.Errorf("%v, %v", got.ID, err)
	}
	if _, err := f.ByIdempotencyKey(t.Context(), "bob", "k"); !engi.Is(err, engi.NotFound) {
		t.Errorf("somebody else's key: %v", err)
	}
	if _, err := f.ByIdempotencyKey(t.Context(), "bob", ""); !engi.Is(err, engi.NotFound) {
		t.Errorf("no key: %v", err)
	}

	// What ends gives its name away, and is found by its ID still.
	r.Ended, r.EndReason, r.State, r.Volume, r.Sandbox, r.Cleared = now.Add(time.Hour), "over", engi.SessionTerminated, "", "", true
	if err := f.Save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Find(t.Context(), "ann", "s"); err != nil || got.ID != r.ID || got.EndReason != "over" {
		t.Errorf("the last of its name: %v, %v", got.ID, err)
	}
	next := r
	next.ID, next.Idempotency, next.Ended, next.State, next.EndReason, next.Cleared = engi.NewSessionID(), "", time.Time{}, engi.SessionIdle, "", false
	if err := f.Put(t.Context(), next); err != nil {
		t.Errorf("its name again: %v", err)
	}
	if got, err := f.Find(t.Context(), "ann", "s"); err != nil || got.ID != next.ID {
		t.Errorf("%v, %v", got.ID, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if err := f.Forget(t.Context(), r.ID); err == nil {
		t.Error("a closed database forgets")
	}
	if db, err = store.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f = store.Sessions(db)
	all, err := f.All(t.Context())
	if err != nil || len(all) != 3 || all[0].ID != next.ID {
		t.Fatalf("%d of them, %v", len(all), err)
	}
	if d := cmp.Diff(r, all[2]); d != "" {
		t.Error(d)
	}
	for range 2 {
		if err := f.Forget(t.Context(), r.ID); err != nil {
			t.Error(err)
		}
	}
	if err := f.Save(t.Context(), r); !engi.Is(err, engi.NotFound) {
		t.Errorf("save what is forgotten: %v", err)
	}
}
