// Package signin signs browsers in: it exchanges a key, or a link that works
// once, for a token that a browser keeps in a cookie, and exchanges the token of a request
// for the key's secret. A browser has the rights of its
// key, and ends with its key: every use authenticates the secret again.
//
// Tokens are stored as hashes. The secret of the key, which is stored nowhere else, is
// encrypted with a key derived from the token, so that neither the
// database nor the node alone can use it.
package signin

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	// Life is the time for which a browser stays signed in.
	Life = 7 * 24 * time.Hour
	// LinkLife is the lifetime of a link.
	LinkLife = 5 * time.Minute

	keepRecords = 50 // maximum number of browsers of a key; the oldest are signed out
	keepLinks   = 10 // maximum number of unused links of a key; the oldest are dropped
)

// A Hash is the SHA-256 of a token.
type Hash [sha256.Size]byte

// A Record is a signed-in browser.
type Record struct {
	Hash    Hash
	Key     string // ID of the key
	Sealed  []byte // encrypted secret of the key
	Expires time.Time
}

// A Store stores records. It is safe for concurrent use.
//
//  1. Put stores a record, and deletes expired ones and, for its key, all but the
//     keep records that expire last.
//  2. Find returns the record with the given hash, or NotFound.
//  3. Remove deletes a record; a missing one is no error.
type Store interface {
	Put(ctx context.Context, r Record, keep int) error
	Find(ctx context.Context, h Hash) (Record, error)
	Remove(ctx context.Context, h Hash) error
}

// A Manager signs browsers in. It is safe for concurrent use.
type Manager struct {
	keys  engi.Keys
	store Store

	mu    sync.Mutex
	links map[Hash]link // guarded by mu
	used  map[Hash]*use // browsers with requests in progress; guarded by mu
}

type link struct {
	key, secret string
	expires     time.Time
}

// A use is the shared parent of the contexts of one browser's requests.
type use struct {
	ctx   context.Context // ends when the browser signs out
	end   context.CancelCauseFunc
	count int // number of requests; guarded by Manager.mu
}

// New returns a manager whose browsers use keys.
func New(store Store, keys engi.Keys) *Manager {
	return &Manager{keys: keys, store: store, links: map[Hash]link{}, used: map[Hash]*use{}}
}

// Link returns a code that signs in one browser as the key with this secret, and
// the time of its expiry. It is lost when the process ends.
func (m *Manager) Link(ctx context.Context, secret string) (code string, expires time.Time, err error) {
	k, err := m.keys.Authenticate(ctx, secret)
	if err != nil {
		return "", time.Time{}, err
	}
	code, now := token(), time.Now()
	expires = now.Add(LinkLife)
	m.mu.Lock()
	defer m.mu.Unlock()
	var oldest Hash
	count := 0
	for h, l := range m.links {
		switch {
		case !now.Before(l.expires):
			delete(m.links, h)
		case l.key == k.ID:
			if count++; count == 1 || l.expires.Before(m.links[oldest].expires) {
				oldest = h
			}
		}
	}
	if count >= keepLinks {
		delete(m.links, oldest)
	}
	m.links[sha256.Sum256([]byte(code))] = link{k.ID, secret, expires}
	return code, expires, nil
}

// Open signs a browser in with the code of a link. The code cannot be used again.
func (m *Manager) Open(ctx context.Context, code string) (string, engi.Key, error) {
	h := Hash(sha256.Sum256([]byte(code)))
	m.mu.Lock()
	l, ok := m.links[h]
	delete(m.links, h)
	m.mu.Unlock()
	if !ok || !time.Now().Before(l.expires) {
		return "", engi.Key{}, engi.Errorf(engi.Anonymous, "this link was used already, or is older than %v", LinkLife).
			WithRemedy("run 'engi open' for a new link")
	}
	return m.Enter(ctx, l.secret)
}

// Enter signs a browser in with the secret of a key and returns its token.
func (m *Manager) Enter(ctx context.Context, secret string) (string, engi.Key, error) {
	k, err := m.keys.Authenticate(ctx, secret)
	if err != nil {
		return "", engi.Key{}, err
	}
	t := token()
	r := Record{Hash: sha256.Sum256([]byte(t)), Key: k.ID, Expires: time.Now().Add(Life).UTC().Truncate(time.Microsecond)}
	if !k.Expires.IsZero() && k.Expires.Before(r.Expires) {
		r.Expires = k.Expires
	}
	r.Sealed = sealer(t).Seal(nil, nonce, []byte(secret), r.Hash[:])
	return t, k, m.store.Put(ctx, r, keepRecords)
}

// Use returns the secret of the key for a browser's token, and a copy
// of ctx that ends when the browser signs out. It reports Anonymous for a token that
// is unknown or has expired. The key may have been revoked: the caller authenticates the secret.
func (m *Manager) Use(ctx context.Context, token string) (_ context.Context, secret string, done context.CancelFunc, err error) {
	h := Hash(sha256.Sum256([]byte(token)))
	// Count first, so that a sign-out in the meantime is noticed.
	m.mu.Lock()
	u := m.used[h]
	if u == nil {
		u = new(use)
		u.ctx, u.end = context.WithCancelCause(context.Background())
		m.used[h] = u
	}
	u.count++
	m.mu.Unlock()
	release := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if u.count--; u.count == 0 {
			u.end(nil)
			if m.used[h] == u {
				delete(m.used, h)
			}
		}
	}
	r, err := m.store.Find(ctx, h)
	if engi.Is(err, engi.NotFound) || err == nil && !time.Now().Before(r.Expires) {
		err = errSignedOut
	}
	if err != nil {
		release()
		return nil, "", nil, err
	}
	plain, err := sealer(token).Open(nil, nonce, r.Sealed, h[:])
	if err != nil {
		release()
		return nil, "", nil, engi.Errorf(engi.Internal, "the record of a browser is damaged")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(u.ctx, func() { cancel(context.Cause(u.ctx)) })
	return ctx, string(plain), sync.OnceFunc(func() { stop(); cancel(nil); release() }), nil
}

var errSignedOut = engi.Errorf(engi.Anonymous, "this browser is not signed in").
	WithRemedy("run 'engi open', or sign in with a key")

// Leave signs a browser out and ends its requests.
func (m *Manager) Leave(ctx context.Context, token string) error {
	h := Hash(sha256.Sum256([]byte(token)))
	err := m.store.Remove(ctx, h)
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.used[h]; u != nil {
		u.end(errSignedOut)
		delete(m.used, h)
	}
	return err
}

// token returns 260 random bits.
func token() string { return strings.ToLower(rand.Text() + rand.Text()) }

// sealer returns a cipher for one secret. Its key is used once, so the nonce may be constant.
func sealer(token string) cipher.AEAD {
	key, err := hkdf.Key(sha256.New, []byte(token), nil, "engi sign-in", 32)
	if err != nil {
		panic(err) // unreachable: the length is allowed
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // unreachable: the length is right
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // unreachable: AES has the right block size
	}
	return a
}

var nonce = make([]byte, 12)
