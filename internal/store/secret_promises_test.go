package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
)

// secretPromises holds a [secret.Store] to its promises. Each call of open returns an empty one.
func secretPromises(t *testing.T, open func(*testing.T) secret.Store) {
	at := time.Date(2026, 11, 20, 23, 0, 0, 123456000, time.UTC)
	of := func(owner engi.Owner, name string) engi.Secret {
		return engi.Secret{ID: engi.NewSecretID(), Owner: owner, Name: name, Version: 1, Metadata: map[string]string{"k": "v"}, Hosts: []string{"a.example", "*.b.example:8443"}, Created: at, Updated: at}
	}
	put := func(t *testing.T, s secret.Store, sec engi.Secret, key string) engi.Secret {
		t.Helper()
		if err := s.Put(t.Context(), sec, secret.Sealed{Key: key, Data: []byte(sec.ID)}); err != nil {
			t.Fatal(err)
		}
		return sec
	}
	wantKind := func(t *testing.T, what string, err error, kind engi.Kind) {
		t.Helper()
		if !engi.Is(err, kind) {
			t.Errorf("%s: %v, want kind %s", what, err, kind)
		}
	}

	t.Run("1 Put", func(t *testing.T) {
		s := open(t)
		a := put(t, s, of("ann", "x"), "k")
		put(t, s, of("bob", "x"), "k")
		wantKind(t, "same name", s.Put(t.Context(), of("ann", "x"), secret.Sealed{}), engi.Conflict)
		again := of("ann", "y")
		again.ID = a.ID
		wantKind(t, "same ID", s.Put(t.Context(), again, secret.Sealed{}), engi.Conflict)
	})
	t.Run("2 Find", func(t *testing.T) {
		s := open(t)
		a, b := put(t, s, of("ann", "x"), "k"), put(t, s, of("bob", "x"), "k")
		only := of("bob", "only")
		only.Metadata, only.Hosts = nil, nil
		put(t, s, only, "k2")
		for _, c := range []struct {
			viewer engi.Viewer
			by     string
			want   engi.Secret
		}{{"ann", "x", a}, {"ann", string(a.ID), a}, {"bob", "x", b}, {engi.Everyone, string(b.ID), b}, {engi.Everyone, "only", only}} {
			got, v, err := s.Find(t.Context(), c.viewer, c.by)
			if err != nil || cmp.Diff(c.want, got) != "" || string(v.Data) != string(c.want.ID) {
				t.Errorf("find %s of %q: %v\n%s", c.by, c.viewer, err, cmp.Diff(c.want, got))
			}
		}
		for _, c := range []struct {
			viewer engi.Viewer
			by     string
		}{{"ann", "only"}, {"ann", string(b.ID)}, {"ann", "X"}, {"ann", ""}, {engi.Everyone, "none"}, {"", "x"}, {"", string(b.ID)}} {
			_, _, err := s.Find(t.Context(), c.viewer, c.by)
			wantKind(t, "find "+c.by, err, engi.NotFound)
		}
		_, _, err := s.Find(t.Context(), engi.Everyone, "x")
		wantKind(t, "a name of two owners", err, engi.Conflict)
	})
	t.Run("3 List", func(t *testing.T) {
		s := open(t)
		b, a2, a1 := put(t, s, of("bob", "m"), "k"), put(t, s, of("ann", "m"), "k"), put(t, s, of("ann", "b"), "k")
		for viewer, want := range map[engi.Viewer][]engi.Secret{"ann": {a1, a2}, "bob": {b}, engi.Everyone: {a1, a2, b}, "eve": nil, "": nil} {
			got, err := s.List(t.Context(), viewer, engi.Secret{}, 0)
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("list of %q: %v\n%s", viewer, err, d)
			}
			if viewer != engi.Everyone {
				if n, err := s.Count(t.Context(), viewer.Owner()); n != len(want) || err != nil {
					t.Errorf("count of %q: %d, %v", viewer, n, err)
				}
			}
		}
	})
	t.Run("4 Replace", func(t *testing.T) {
		s := open(t)
		a := put(t, s, of("ann", "x"), "k")
		a.Version, a.Metadata, a.Updated = 2, map[string]string{"z": "1"}, at.Add(time.Hour)
		a.Hosts = []string{"c.example"}
		if err := s.Replace(t.Context(), a, secret.Sealed{Key: "k9", Data: []byte("new")}, 1); err != nil {
			t.Fatal(err)
		}
		got, v, err := s.Find(t.Context(), "ann", "x")
		if d := cmp.Diff(a, got); err != nil || d != "" || string(v.Data) != "new" || v.Key != "k9" {
			t.Errorf("%v %+v\n%s", err, v, d)
		}
		wantKind(t, "stale version", s.Replace(t.Context(), a, secret.Sealed{}, 1), engi.Conflict)
		wantKind(t, "missing", s.Replace(t.Context(), of("ann", "x"), secret.Sealed{}, 1), engi.NotFound)
	})
	t.Run("5 Remove", func(t *testing.T) {
		s := open(t)
		a := put(t, s, of("ann", "x"), "k")
		if err := s.Remove(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		wantKind(t, "again", s.Remove(t.Context(), a.ID), engi.NotFound)
		put(t, s, of("ann", "x"), "k")
	})
	t.Run("6 Keys", func(t *testing.T) {
		s := open(t)
		if keys, err := s.Keys(t.Context()); err != nil || len(keys) != 0 {
			t.Errorf("%q, %v", keys, err)
		}
		for name, key := range map[string]string{"a": "k1", "b": "k2", "c": "k1"} {
			put(t, s, of("ann", name), key)
		}
		keys, err := s.Keys(t.Context())
		if slices.Sort(keys); err != nil || !slices.Equal(keys, []string{"k1", "k2"}) {
			t.Errorf("%q, %v", keys, err)
		}
	})
}
