package signin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/engi"
)

// memory keeps keys and records.
type memory struct {
	mu      sync.Mutex
	keys    map[key.Hash]engi.Key
	records map[signin.Hash]signin.Record
}

type keyStore struct{ *memory }

func (m keyStore) Put(_ context.Context, k engi.Key, h key.Hash) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[h] = k
	return nil
}

func (m keyStore) Find(_ context.Context, h key.Hash) (engi.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.keys[h]; ok {
		return k, nil
	}
	return engi.Key{}, engi.Errorf(engi.NotFound, "no such key")
}

func (m keyStore) List(context.Context, engi.Viewer, engi.Paging) ([]engi.Key, error) {
	return nil, nil
}

func (m keyStore) Live(context.Context, engi.Owner, time.Time) ([]engi.Key, error) { return nil, nil }

func (m keyStore) Revoke(_ context.Context, _ engi.Viewer, id string, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h, k := range m.keys {
		if k.ID == id {
			k.Revoked = at
			m.keys[h] = k
		}
	}
	return nil
}

func (m *memory) Put(_ context.Context, r signin.Record, _ int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[r.Hash] = r
	return nil
}

func (m *memory) Find(_ context.Context, h signin.Hash) (signin.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.records[h]; ok {
		return r, nil
	}
	return signin.Record{}, engi.Errorf(engi.NotFound, "no such browser")
}

func (m *memory) Remove(_ context.Context, h signin.Hash) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, h)
	return nil
}

func open(t *testing.T) (*signin.Manager, *key.Keyring, *memory) {
	m := &memory{keys: map[key.Hash]engi.Key{}, records: map[signin.Hash]signin.Record{}}
	keys := key.New(keyStore{m})
	return signin.New(m, keys), keys, m
}

func newKey(t *testing.T, keys *key.Keyring, k engi.Key) (engi.Key, string) {
	t.Helper()
	k.Owner = "ann"
	k, secret, err := keys.Create(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return k, secret
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !engi.Is(err, engi.Anonymous) {
		t.Errorf("%s: %v, want Anonymous", what, err)
	}
}

func TestLinksWorkOnce(t *testing.T) {
	d, keys, _ := open(t)
	k, secret := newKey(t, keys, engi.Key{})
	code, _, err := d.Link(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	opened := 0
	for range 20 {
		wg.Go(func() {
			token, got, err := d.Open(t.Context(), code)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && token != "" && got.ID == k.ID {
				opened++
			} else if !engi.Is(err, engi.Anonymous) {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if opened != 1 {
		t.Errorf("%d of 20 browsers opened one link", opened)
	}
	_, _, err = d.Open(t.Context(), "")
	refused(t, "no code", err)
	_, _, err = d.Link(t.Context(), "engi_no")
	refused(t, "a link for no key", err)
}

// TestOldLinksGiveWay makes more links than a key may have unused.
func TestOldLinksGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, keys, _ := open(t)
		_, secret := newKey(t, keys, engi.Key{})
		_, other := newKey(t, keys, engi.Key{})
		theirs, _, err := d.Link(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		var codes []string
		for range 11 {
			code, _, err := d.Link(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, code)
			time.Sleep(time.Second)
		}
		_, _, err = d.Open(t.Context(), codes[0])
		refused(t, "the oldest of eleven", err)
		for _, code := range []string{codes[1], codes[10], theirs} {
			if _, _, err := d.Open(t.Context(), code); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLinksAndBrowsersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, keys, _ := open(t)
		_, secret := newKey(t, keys, engi.Key{})
		code, expires, err := d.Link(t.Context(), secret)
		if err != nil || time.Until(expires) != signin.LinkLife {
			t.Fatal(expires, err)
		}
		late, _, err := d.Link(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(signin.LinkLife - time.Second)
		token, _, err := d.Open(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, _, err = d.Open(t.Context(), late)
		refused(t, "a link that is five minutes old", err)

		time.Sleep(signin.Life - 2*time.Second)
		_, got, done, err := d.Use(t.Context(), token)
		if err != nil || got != secret {
			t.Fatal(err)
		}
		done()
		time.Sleep(2 * time.Second)
		_, _, _, err = d.Use(t.Context(), token)
		refused(t, "a browser after a week", err)

		// A browser does not outlive its key.
		_, short := newKey(t, keys, engi.Key{Expires: time.Now().Add(time.Hour)})
		if token, _, err = d.Enter(t.Context(), short); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Second)
		_, _, _, err = d.Use(t.Context(), token)
		refused(t, "a browser whose key expired", err)
	})
}

func TestRevokedKeysLetNobodyIn(t *testing.T) {
	d, keys, _ := open(t)
	k, secret := newKey(t, keys, engi.Key{})
	code, _, err := d.Link(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Revoke(t.Context(), engi.Everyone, k.ID); err != nil {
		t.Fatal(err)
	}
	_, _, err = d.Open(t.Context(), code)
	refused(t, "a link of a revoked key", err)
	_, _, err = d.Enter(t.Context(), secret)
	refused(t, "a revoked key", err)
}

func TestLeavingEndsRequests(t *testing.T) {
	d, keys, m := open(t)
	_, secret := newKey(t, keys, engi.Key{})
	token, _, err := d.Enter(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := d.Enter(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	ctx, _, done, err := d.Use(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	theirs, _, doneToo, err := d.Use(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer doneToo()
	if err := d.Leave(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	refused(t, "why it ended", context.Cause(ctx))
	if theirs.Err() != nil {
		t.Error("another browser's request ended, too")
	}
	_, _, _, err = d.Use(t.Context(), token)
	refused(t, "a token after signing out", err)
	if len(m.records) != 1 {
		t.Errorf("%d records are left", len(m.records))
	}
}

// TestNothingUsableIsStored looks for secrets in what is stored, and opens a record
// with another token.
func TestNothingUsableIsStored(t *testing.T) {
	d, keys, m := open(t)
	_, secret := newKey(t, keys, engi.Key{})
	token, _, err := d.Enter(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	r := m.records[sha256.Sum256([]byte(token))]
	for _, s := range []string{token, secret, secret[5:20]} {
		if bytes.Contains(r.Sealed, []byte(s)) || bytes.Contains(r.Hash[:], []byte(s)) {
			t.Errorf("the record has %q in it", s)
		}
	}
	moved := sha256.Sum256([]byte("another token"))
	r.Hash = moved
	m.records[moved] = r
	if _, _, _, err := d.Use(t.Context(), "another token"); !engi.Is(err, engi.Internal) {
		t.Errorf("a record of another token: %v", err)
	}
}
