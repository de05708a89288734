// Package key authenticates callers: it creates API keys, stores their hashes
// and authenticates callers by the secret that they send. Other code decides the rights
// of a caller; package rest has the table.
//
// A secret has more than 256 random bits, so a plain SHA-256 of it is
// sufficient: it cannot be guessed, and a slow hash would only slow down requests.
// Secrets are compared by looking up their hashes. Attackers cannot choose
// the leading bits of a hash, so the duration of a lookup reveals nothing
// about the hashes in the store.
package key

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Hash is the SHA-256 of a key's secret. The secret itself is not stored.
type Hash [sha256.Size]byte

// A Store stores keys. It is safe for concurrent use. Package keytest tests these
// promises.
//
//  1. Put stores a new key; Conflict if its ID or its hash exists already.
//  2. Find returns the key with that hash, whatever its state, or NotFound.
//  3. List returns the keys that viewer sees, newest first.
//  4. Live returns the keys of owner and those of administrators that are
//     neither revoked nor expired at that time, in any order.
//  5. Revoke stores the time of a key's revocation. Revoking again changes nothing
//     and is no error. It reports NotFound for a key that viewer does not see.
type Store interface {
	Put(ctx context.Context, k engi.Key, h Hash) error
	Find(ctx context.Context, h Hash) (engi.Key, error)
	List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Key, error)
	Live(ctx context.Context, owner engi.Owner, at time.Time) ([]engi.Key, error)
	Revoke(ctx context.Context, viewer engi.Viewer, id string, at time.Time) error
}

const (
	secretPrefix = "engi_"
	secretLength = 52 // base32 characters: 260 bits
	idPrefix     = "key_"
	alphabet     = "abcdefghijklmnopqrstuvwxyz234567"

	nameLimit = 100 // maximum bytes of a key's name

	// cacheTTL is the maximum time for which a key still works after another process
	// revoked it in a shared store.
	cacheTTL  = 5 * time.Second
	cacheSize = 4096
)

var ownerForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._@-]{0,63}$`)

// A Keyring implements [engi.Keys] on a store. It is safe for concurrent use.
type Keyring struct {
	store Store

	mu      sync.RWMutex
	cache   map[Hash]cached     // guarded by mu
	live    map[engi.Owner]live // guarded by mu
	changes int                 // number of creations and revocations so far; guarded by mu
	inUse   map[Hash]*use       // keys with contexts of Valid; guarded by mu
}

// A cached is a key as it was in the store at the given time.
type cached struct {
	key engi.Key
	at  time.Time
}

// A live holds live keys as they were in the store at the given time.
type live struct {
	keys []engi.Key
	at   time.Time
}

var _ engi.Keys = (*Keyring)(nil)

// New returns the keys in store. No other code in this process may write to the store.
func New(store Store) *Keyring {
	return &Keyring{store: store, cache: map[Hash]cached{}, live: map[engi.Owner]live{}, inUse: map[Hash]*use{}}
}

// Authenticate returns the key with this secret. It reports Anonymous for an
// unknown, expired or revoked key; the text says which.
func (r *Keyring) Authenticate(ctx context.Context, secret string) (engi.Key, error) {
	if !wellFormed(secret) {
		return engi.Key{}, engi.Errorf(engi.Anonymous, "this is not an engi key")
	}
	return r.authenticate(ctx, sha256.Sum256([]byte(secret)))
}

func (r *Keyring) authenticate(ctx context.Context, h Hash) (engi.Key, error) {
	k, err := r.find(ctx, h)
	if err != nil {
		return engi.Key{}, err
	}
	if !k.Revoked.IsZero() {
		return engi.Key{}, engi.Errorf(engi.Anonymous, "key %s was revoked at %s", k.ID, k.Revoked.Format(time.RFC3339)).
			WithRemedy("ask for a new key; a holder of the admin key can create one")
	}
	if !k.Expires.IsZero() && !time.Now().Before(k.Expires) {
		return engi.Key{}, engi.Errorf(engi.Anonymous, "key %s expired at %s", k.ID, k.Expires.Format(time.RFC3339)).
			WithRemedy("ask for a new key; a holder of the admin key can create one")
	}
	return k, nil
}

func (r *Keyring) find(ctx context.Context, h Hash) (engi.Key, error) {
	now := time.Now()
	r.mu.RLock()
	c, ok := r.cache[h]
	before := r.changes
	r.mu.RUnlock()
	if ok && now.Sub(c.at) < cacheTTL {
		return c.key, nil
	}
	k, err := r.store.Find(ctx, h)
	if engi.Is(err, engi.NotFound) {
		return engi.Key{}, engi.Errorf(engi.Anonymous, "unknown key")
	}
	if err != nil {
		return engi.Key{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes != before {
		return k, nil // k may have been revoked after it was read
	}
	if len(r.cache) >= cacheSize {
		clear(r.cache)
	}
	r.cache[h] = cached{k, now}
	return k, nil
}

// Live implements [engi.Keys]. Revoked keys disappear at once after a revocation
// in this process, and within a few seconds after one in another process.
func (r *Keyring) Live(ctx context.Context, owner engi.Owner) ([]engi.Key, error) {
	now := time.Now()
	r.mu.RLock()
	l, ok := r.live[owner]
	before := r.changes
	r.mu.RUnlock()
	if !ok || now.Sub(l.at) >= cacheTTL {
		keys, err := r.store.Live(ctx, owner, now)
		if err != nil {
			return nil, err
		}
		l = live{keys, now}
		r.mu.Lock()
		if r.changes == before {
			if len(r.live) >= cacheSize {
				clear(r.live)
			}
			r.live[owner] = l
		}
		r.mu.Unlock()
	}
	expired := func(k engi.Key) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }
	if slices.ContainsFunc(l.keys, expired) {
		return slices.DeleteFunc(slices.Clone(l.keys), expired), nil
	}
	return l.keys, nil
}

// NewID returns a new ID for a key.
func NewID() string { return idPrefix + strings.ToLower(rand.Text()) }

// Create stores a new key with k's Owner, Name, Admin, Scopes and Expires, and
// returns it with its secret, which cannot be read again. ID is empty, which means a
// new one, or from [NewID]. It reports Invalid for bad names and scopes, no
// owner and an expiry in the past, and Conflict for an ID that exists.
func (r *Keyring) Create(ctx context.Context, k engi.Key) (engi.Key, string, error) {
	if k.Name == fileKeyName {
		return engi.Key{}, "", engi.Errorf(engi.Invalid, "the name %q belongs to the key in the data directory", fileKeyName).
			WithRemedy("choose another name")
	}
	secret := newSecret()
	k, err := r.put(ctx, k, secret)
	if err != nil {
		return engi.Key{}, "", err
	}
	return k, secret, nil
}

func (r *Keyring) put(ctx context.Context, k engi.Key, secret string) (engi.Key, error) {
	if k.ID == "" {
		k.ID = NewID()
	}
	k.Created = now()
	k.Expires = k.Expires.UTC()
	k.Revoked = time.Time{}
	k.Scopes = slices.Compact(slices.Sorted(slices.Values(k.Scopes)))
	if err := check(k); err != nil {
		return engi.Key{}, err
	}
	if err := r.store.Put(ctx, k, sha256.Sum256([]byte(secret))); err != nil {
		return engi.Key{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	clear(r.live)
	return k, nil
}

func check(k engi.Key) error {
	switch {
	case k.Owner == "" && !k.Admin: // the empty owner is the node itself
		return engi.Errorf(engi.Invalid, "a key needs an owner unless it is an admin key").
			WithRemedy("name the owner, such as a team or a service")
	case k.Owner != "" && !ownerForm.MatchString(string(k.Owner)):
		return engi.Errorf(engi.Invalid, "%.80q cannot be an owner", string(k.Owner)).
			WithRemedy("use 1 to 64 letters, digits and any of . _ @ -, beginning with a letter or digit")
	case len(k.Name) > nameLimit || strings.ContainsFunc(k.Name, func(c rune) bool { return c < ' ' || c == 0x7f || c == 0xfffd }):
		return engi.Errorf(engi.Invalid, "%.40q cannot be a key's name", k.Name).
			WithRemedy("use at most %d bytes of printable text", nameLimit)
	case k.Admin && len(k.Scopes) > 0:
		return engi.Errorf(engi.Invalid, "an admin key has no scopes, because it may do everything").
			WithRemedy("leave out one or the other")
	case !k.Expires.IsZero() && !k.Expires.After(k.Created):
		return engi.Errorf(engi.Invalid, "expiry %s is in the past", k.Expires.Format(time.RFC3339)).
			WithRemedy("choose a time in the future, or leave it out for a key that never expires")
	}
	for _, s := range k.Scopes {
		if !slices.Contains(engi.Scopes(), s) {
			return engi.Errorf(engi.Invalid, "%.40q is not a scope", string(s)).WithRemedy("use one of %s", ScopeNames())
		}
	}
	return nil
}

// ScopeNames lists all scopes, for error texts.
func ScopeNames() string {
	var names []string
	for _, s := range engi.Scopes() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// List returns the keys that viewer sees, newest first.
func (r *Keyring) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Key, error) {
	return r.store.List(ctx, viewer, p)
}

// Revoke revokes a key permanently, at once in this process and within a few seconds
// in others. Revoking again is no error. It reports NotFound, also for keys of
// other owners.
func (r *Keyring) Revoke(ctx context.Context, viewer engi.Viewer, id string) (err error) {
	defer engi.Annotate(&err, "revoke key %.40q", id)
	if err := r.store.Revoke(ctx, viewer, id, now()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	clear(r.live)
	for h, c := range r.cache {
		if c.key.ID == id {
			delete(r.cache, h)
		}
	}
	for _, u := range r.inUse {
		u.timer.Reset(0)
	}
	return nil
}

func newSecret() string { return secretPrefix + strings.ToLower(rand.Text()+rand.Text()) }

func wellFormed(secret string) bool {
	rest, ok := strings.CutPrefix(secret, secretPrefix)
	return ok && len(rest) == secretLength && strings.Trim(rest, alphabet) == ""
}

// now returns the time with the precision of stores.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
