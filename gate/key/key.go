// Package key decides who is calling: it makes API keys, keeps their hashes,
// and recognizes callers by the secret they send. What a caller may do is
// decided elsewhere (package rest has the table).
//
// A secret is 256 random bits, so a plain SHA-256 of it is enough to store:
// there is nothing to guess and slow hashes would only slow down requests.
package key

import (
	"context"

	"github.com/engi-dev/engi"
)

// A Hash is the SHA-256 of a key's secret: all that is kept of it.
type Hash [32]byte

// A Store is all the memory this room needs. It is safe for concurrent use.
type Store interface {
	// Put stores a new key; Conflict if its ID or hash is there already.
	Put(ctx context.Context, k engi.Key, h Hash) error
	// Find returns the key with that hash, or NotFound.
	Find(ctx context.Context, h Hash) (engi.Key, error)
	// List returns the keys of owner, of everybody if owner is empty, newest
	// first.
	List(ctx context.Context, owner engi.Owner) ([]engi.Key, error)
	// Revoke stores k.Revoked of the key with k.ID, if it has none yet. It
	// reports NotFound.
	Revoke(ctx context.Context, k engi.Key) error
}

// A Ring is a store's keys, implementing [engi.Keys]. It is safe for
// concurrent use.
type Ring struct{ store Store }

// New returns the keys in store.
func New(store Store) *Ring { return &Ring{store: store} }

// Bootstrap makes sure that there is an admin key and that path, readable by
// this user only, holds its secret in one line. It returns the secret. A file
// that others may read is refused.
func Bootstrap(ctx context.Context, keys *Ring, path string) (secret string, err error) {
	return "", engi.Errorf(engi.Unsupported, "bootstrap %s: not built yet", path)
}
