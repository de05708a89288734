package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
)

// keyPromises tests every promise of key.Store. Each call of open returns an empty store.
func keyPromises(t *testing.T, open func(t *testing.T) key.Store) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	mine := engi.Key{ID: "key_a", Owner: "ann", Name: "laptop", Scopes: []engi.Scope{engi.ScopeRead, engi.ScopeSandboxes}, Created: at, Expires: at.Add(time.Hour)}
	other := engi.Key{ID: "key_b", Owner: "bob", Created: at.Add(time.Second)}
	admin := engi.Key{ID: "key_c", Admin: true, Created: at.Add(2 * time.Second)}

	fill := func(t *testing.T) key.Store {
		s := open(t)
		for i, k := range []engi.Key{mine, other, admin} {
			if err := s.Put(t.Context(), k, key.Hash{byte(i + 1)}); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}

	t.Run("Put/refuses a known ID and a known hash", func(t *testing.T) {
		s := fill(t)
		if err := s.Put(t.Context(), mine, key.Hash{9}); !engi.Is(err, engi.Conflict) {
			t.Errorf("same ID: %v, want conflict", err)
		}
		fresh := engi.Key{ID: "key_d", Owner: "dan", Created: at}
		if err := s.Put(t.Context(), fresh, key.Hash{1}); !engi.Is(err, engi.Conflict) {
			t.Errorf("same hash: %v, want conflict", err)
		}
	})
	t.Run("Find/returns what Put stored", func(t *testing.T) {
		s := fill(t)
		for i, want := range []engi.Key{mine, other, admin} {
			got, err := s.Find(t.Context(), key.Hash{byte(i + 1)})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("Find (-want +got):\n%s", d)
			}
		}
		if _, err := s.Find(t.Context(), key.Hash{9}); !engi.Is(err, engi.NotFound) {
			t.Errorf("unknown hash: %v, want not_found", err)
		}
	})
	t.Run("List/shows owners their own, newest first", func(t *testing.T) {
		s := fill(t)
		for viewer, want := range map[engi.Viewer][]engi.Key{engi.Everyone: {admin, other, mine}, "": {admin}, "ann": {mine}, "eve": nil} {
			got, err := s.List(t.Context(), viewer, engi.Paging{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("List %q (-want +got):\n%s", viewer, d)
			}
		}
	})
	t.Run("Live/has an owner's and administrators', less revoked and expired ones", func(t *testing.T) {
		s := fill(t)
		boss := engi.Key{ID: "key_d", Owner: "bob", Admin: true, Created: at}
		if err := s.Put(t.Context(), boss, key.Hash{4}); err != nil {
			t.Fatal(err)
		}
		live := func(owner engi.Owner, at time.Time, want ...string) {
			t.Helper()
			keys, err := s.Live(t.Context(), owner, at)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range keys {
				got = append(got, k.ID)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s has %v, want %v", owner, got, want)
			}
		}
		live("ann", mine.Expires.Add(-time.Second), mine.ID, admin.ID, boss.ID)
		live("ann", mine.Expires, admin.ID, boss.ID)
		live("bob", at, other.ID, admin.ID, boss.ID)
		live("", at, admin.ID, boss.ID)
		for _, id := range []string{other.ID, admin.ID} {
			if err := s.Revoke(t.Context(), engi.Everyone, id, at); err != nil {
				t.Fatal(err)
			}
		}
		live("bob", at, boss.ID)
		live("eve", at, boss.ID)
	})
	t.Run("Revoke/stores the first time and keeps it", func(t *testing.T) {
		s := fill(t)
		when := at.Add(time.Minute)
		for _, w := range []time.Time{when, when.Add(time.Hour)} {
			if err := s.Revoke(t.Context(), "ann", mine.ID, w); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Find(t.Context(), key.Hash{1})
		if err != nil || !got.Revoked.Equal(when) {
			t.Errorf("Revoked = %v, %v, want %v", got.Revoked, err, when)
		}
	})
	t.Run("Revoke/does not find the keys of others", func(t *testing.T) {
		s := fill(t)
		for _, id := range []string{other.ID, admin.ID, "key_x"} {
			if err := s.Revoke(t.Context(), "ann", id, at); !engi.Is(err, engi.NotFound) {
				t.Errorf("Revoke %s: %v, want not_found", id, err)
			}
		}
		if err := s.Revoke(t.Context(), engi.Everyone, other.ID, at); err != nil {
			t.Errorf("Revoke as the node: %v", err)
		}
	})
}
