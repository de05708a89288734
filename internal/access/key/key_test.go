package key_test

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// empty returns a store without keys.
func empty(t testing.TB) key.Store {
	t.Helper()
	return store.Keys(storetest.Open(t))
}

func create(t *testing.T, r *key.Keyring, k engi.Key) (engi.Key, string) {
	t.Helper()
	k, secret, err := r.Create(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return k, secret
}

func TestSecretOpensItsKeyOnly(t *testing.T) {
	store := empty(t)
	r := key.New(store)
	a, secretA := create(t, r, engi.Key{Owner: "ann", Name: "a"})
	_, secretB := create(t, r, engi.Key{Owner: "bob"})
	if secretA == secretB || len(secretA) != len("engi_")+52 {
		t.Errorf("secrets %q, %q", secretA, secretB)
	}
	got, err := r.Authenticate(t.Context(), secretA)
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("Authenticate = %+v, %v, want %+v", got, err, a)
	}
	if k, err := store.Find(t.Context(), sha256.Sum256([]byte(secretA))); err != nil || k.ID != a.ID {
		t.Errorf("stored under its hash: %v, %v", k, err)
	}
	for _, bad := range []string{"", "x", secretA[:len(secretA)-1], secretA + "a", "engi_" + strings.Repeat("a", 52), strings.ToUpper(secretA)} {
		if _, err := r.Authenticate(t.Context(), bad); !engi.Is(err, engi.Anonymous) {
			t.Errorf("Authenticate(%q): %v, want anonymous", bad, err)
		}
	}
}

func TestEndsOfKeysAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := key.New(empty(t))
		k, secret := create(t, r, engi.Key{Owner: "ann", Expires: time.Now().Add(time.Hour)})
		other, revoked := create(t, r, engi.Key{Owner: "ann"})
		for range 2 { // the second time from the cache
			if _, err := r.Authenticate(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Authenticate(t.Context(), revoked); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Revoke(t.Context(), "ann", other.ID); err != nil {
			t.Fatal(err)
		}
		_, err := r.Authenticate(t.Context(), revoked)
		if !engi.Is(err, engi.Anonymous) || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("revoked key: %v", err)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if _, err := r.Authenticate(t.Context(), secret); err != nil {
			t.Errorf("a moment before it expires: %v", err)
		}
		time.Sleep(time.Nanosecond)
		_, err = r.Authenticate(t.Context(), secret)
		if !engi.Is(err, engi.Anonymous) || !strings.Contains(err.Error(), k.ID+" expired") {
			t.Errorf("expired key: %v", err)
		}
	})
}

func TestRevocationElsewhereIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := empty(t)
		here, there := key.New(store), key.New(store)
		k, secret := create(t, here, engi.Key{Owner: "ann"})
		if _, err := here.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		if err := there.Revoke(t.Context(), engi.Everyone, k.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if _, err := here.Authenticate(t.Context(), secret); !engi.Is(err, engi.Anonymous) {
			t.Errorf("5 s after another process revoked the key: %v, want anonymous", err)
		}
	})
}

func TestUselessKeysAreRefused(t *testing.T) {
	r := key.New(empty(t))
	for name, k := range map[string]engi.Key{
		"no owner":     {Name: "x"},
		"owner form":   {Owner: "../x"},
		"owner length": {Owner: engi.Owner(strings.Repeat("a", 65))},
		"name":         {Owner: "ann", Name: "a\nb"},
		"name length":  {Owner: "ann", Name: strings.Repeat("a", 101)},
		"NUL in name":  {Owner: "ann", Name: "a\x00b"},
		"reserved":     {Admin: true, Name: "admin.key"},
		"past":         {Owner: "ann", Expires: time.Now().Add(-time.Second)},
	} {
		if _, _, err := r.Create(t.Context(), k); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestBootstrap(t *testing.T) {
	file := func(t *testing.T) string { return filepath.Join(t.TempDir(), "admin.key") }
	start := func(t *testing.T, s key.Store, path string) (string, *key.Keyring) {
		t.Helper()
		r := key.New(s)
		secret, err := key.Bootstrap(t.Context(), r, path)
		if err != nil {
			t.Fatal(err)
		}
		k, err := r.Authenticate(t.Context(), secret)
		if err != nil || !k.Admin {
			t.Fatalf("the admin key opens %+v, %v", k, err)
		}
		return secret, r
	}

	t.Run("makes one line for this user only, and keeps it", func(t *testing.T) {
		store, path := empty(t), file(t)
		secret, _ := start(t, store, path)
		if again, _ := start(t, store, path); again != secret {
			t.Errorf("second start: another key")
		}
		data, err := os.ReadFile(path)
		if err != nil || string(data) != secret+"\n" {
			t.Errorf("file holds %q, %v", data, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
			t.Errorf("left in the directory: %v, %v", left, err)
		}
	})
	t.Run("repairs a store that lost the key", func(t *testing.T) {
		path := file(t)
		secret, _ := start(t, empty(t), path)
		if again, _ := start(t, empty(t), path); again != secret {
			t.Errorf("another key")
		}
	})
	t.Run("a deleted file means a new key and the end of the old", func(t *testing.T) {
		store, path := empty(t), file(t)
		old, r := start(t, store, path)
		_, mine := create(t, r, engi.Key{Admin: true, Name: "mine"})
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		_, r = start(t, store, path)
		if _, err := r.Authenticate(t.Context(), old); !engi.Is(err, engi.Anonymous) {
			t.Errorf("old key: %v, want anonymous", err)
		}
		if _, err := r.Authenticate(t.Context(), mine); err != nil {
			t.Errorf("a key somebody asked for: %v", err)
		}
	})
	t.Run("refuses", func(t *testing.T) {
		for name, c := range map[string]struct {
			prepare func(t *testing.T, path string)
			want    engi.Kind
		}{
			"a file others may read": {func(t *testing.T, path string) { must(t, os.Chmod(path, 0o640)) }, engi.Denied},
			"an empty file":          {func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) }, engi.Invalid},
			"a weak key":             {func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("engi_secret\n"), 0o600)) }, engi.Invalid},
			"a directory": {func(t *testing.T, path string) {
				must(t, os.Remove(path))
				must(t, os.Mkdir(path, 0o700))
			}, engi.Invalid},
		} {
			store, path := empty(t), file(t)
			start(t, store, path)
			c.prepare(t, path)
			_, err := key.Bootstrap(t.Context(), key.New(store), path)
			if !engi.Is(err, c.want) || !strings.Contains(engi.RemedyOf(err), path) {
				t.Errorf("%s: %v (%s), want %s and a remedy", name, err, engi.RemedyOf(err), c.want)
			}
		}
	})
	t.Run("refuses a revoked key and one that is not an admin's", func(t *testing.T) {
		store, path := empty(t), file(t)
		secret, r := start(t, store, path)
		k, err := r.Authenticate(t.Context(), secret)
		must(t, err)
		must(t, r.Revoke(t.Context(), engi.Everyone, k.ID))
		if _, err := key.Bootstrap(t.Context(), r, path); !engi.Is(err, engi.Anonymous) || !strings.Contains(engi.RemedyOf(err), path) {
			t.Errorf("revoked: %v (%s)", err, engi.RemedyOf(err))
		}
		_, small := create(t, r, engi.Key{Owner: "ann"})
		must(t, os.WriteFile(path, []byte(small), 0o600))
		if _, err := key.Bootstrap(t.Context(), r, path); !engi.Is(err, engi.Invalid) {
			t.Errorf("small key: %v, want invalid", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	r := key.New(empty(b))
	_, secret, err := r.Create(b.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := r.Authenticate(b.Context(), secret); err != nil {
			b.Fatal(err)
		}
	}
}

// TestContextsEndWithTheirKey ends keys in each way, while contexts of them are used.
func TestContextsEndWithTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := empty(t)
		r, elsewhere := key.New(store), key.New(store)
		a, secretA := create(t, r, engi.Key{Owner: "ann"})
		b, secretB := create(t, r, engi.Key{Owner: "ann"})
		_, short := create(t, r, engi.Key{Owner: "ann", Expires: time.Now().Add(time.Minute)})
		_, kept := create(t, r, engi.Key{Owner: "ann"})
		caller, leave := context.WithCancel(t.Context())
		var held []context.Context
		for _, secret := range []string{secretA, secretA, secretB, short, kept} {
			ctx, done := r.Valid(t.Context(), secret)
			defer done()
			held = append(held, ctx)
		}
		left, done := r.Valid(caller, kept)
		defer done()
		over, done := r.Valid(t.Context(), secretA)
		done()
		done()
		ended := func(when, want string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for _, ctx := range held {
				switch {
				case ctx.Err() == nil:
					got += "-"
				case engi.Is(context.Cause(ctx), engi.Anonymous):
					got += "x"
				default:
					t.Errorf("%s: %v", when, context.Cause(ctx))
				}
			}
			if got != want {
				t.Errorf("%s: ended %s, want %s", when, got, want)
			}
		}
		time.Sleep(12 * time.Second)
		ended("at first", "-----")
		if context.Cause(over) != context.Canceled {
			t.Errorf("one that is given back: %v", context.Cause(over))
		}
		if err := r.Revoke(t.Context(), "ann", a.ID); err != nil {
			t.Fatal(err)
		}
		ended("when it is revoked", "xx---")
		if err := elsewhere.Revoke(t.Context(), "ann", b.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ended("a while after it is revoked elsewhere", "xxx--")
		time.Sleep(time.Minute)
		ended("when it has expired", "xxxx-")
		leave()
		synctest.Wait()
		if context.Cause(left) != context.Canceled {
			t.Errorf("the caller has left: %v", context.Cause(left))
		}
		late, done := r.Valid(t.Context(), secretA)
		defer done()
		held = []context.Context{late}
		ended("one that is asked for too late", "x")
	})
}
