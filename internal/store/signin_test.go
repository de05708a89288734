package store_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

func TestSignIns(t *testing.T) {
	db := openDB(t)
	s, ctx, now := store.SignIns(db), t.Context(), time.Now().UTC().Truncate(time.Microsecond)
	put := func(n byte, key string, expires time.Time) {
		t.Helper()
		if err := s.Put(ctx, signin.Record{Hash: signin.Hash{n}, Key: key, Sealed: []byte{n, 1}, Expires: expires}, 2); err != nil {
			t.Fatal(err)
		}
	}
	there := func(n byte) bool {
		t.Helper()
		r, err := s.Find(ctx, signin.Hash{n})
		if err != nil && !engi.Is(err, engi.NotFound) {
			t.Fatal(err)
		}
		if err == nil && (r.Hash[0] != n || r.Sealed[0] != n || r.Expires.Before(now)) {
			t.Errorf("%+v", r)
		}
		return err == nil
	}
	put(1, "key_a", now.Add(time.Hour))
	put(2, "key_a", now.Add(2*time.Hour))
	put(9, "key_b", now.Add(time.Minute))
	put(3, "key_a", now.Add(3*time.Hour))
	if there(1) || !there(2) || !there(3) || !there(9) {
		t.Error("the oldest of a key must give way, and no other")
	}
	put(4, "key_c", now.Add(-time.Second))
	if there(4) {
		t.Error("one that has expired stays")
	}
	for range 2 {
		if err := s.Remove(ctx, signin.Hash{3}); err != nil || there(3) {
			t.Errorf("remove: %v", err)
		}
	}
}

func TestSignInsEndWithTheirKey(t *testing.T) {
	db := openDB(t)
	keys, ctx := key.New(store.Keys(db)), t.Context()
	d := signin.New(store.SignIns(db), keys)
	k, secret, err := keys.Create(ctx, engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := d.Enter(ctx, secret)
	if err != nil {
		t.Fatal(err)
	}
	_, got, done, err := d.Use(ctx, token)
	if err != nil || got != secret {
		t.Fatal(err)
	}
	done()
	if err := keys.Revoke(ctx, "ann", k.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := d.Use(ctx, token); !engi.Is(err, engi.Anonymous) {
		t.Errorf("after the key was revoked: %v", err)
	}
}
