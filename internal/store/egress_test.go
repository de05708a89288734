package store_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/store"
)

func openDB(t *testing.T) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestEgressKeepsThePromises(t *testing.T) {
	egressPromises(t, func(t *testing.T, keep int, age time.Duration) egress.Store {
		return store.Egress(openDB(t), keep, age)
	})
}

// TestNetworkEventsGoWithTheSandbox removes a sandbox's record.
func TestNetworkEventsGoWithTheSandbox(t *testing.T) {
	db := openDB(t)
	sandboxes, log := store.Fleet(db), store.Egress(db, 0, 0)
	a, b := engi.NewSandboxID(), engi.NewSandboxID()
	for _, id := range []engi.SandboxID{a, b} {
		if err := sandboxes.PutSandbox(t.Context(), fleet.SandboxRecord{Sandbox: engi.Sandbox{ID: id, Owner: "ann", State: engi.Running, Created: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		if err := log.Append(t.Context(), []engi.NetworkRecord{{Sandbox: id, Owner: "ann", Time: time.Now(), Kind: engi.NetworkLookup}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sandboxes.ForgetSandbox(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[engi.SandboxID]int{a: 0, b: 1} {
		list, err := log.Events(t.Context(), engi.Everyone, id, 0, 10)
		if err != nil || len(list) != want {
			t.Errorf("%s: %d events, %v; want %d", id, len(list), err, want)
		}
	}
}
