package engi

import (
	"context"
	"time"
)

// A Key lets a caller act as an owner. The secret is shown once, at creation,
// and stored as a hash only.
type Key struct {
	ID      string // "key_" and 26 characters; names the key, opens nothing
	Owner   Owner
	Name    string // for people
	Admin   bool   // may see and do everything on the node
	Created time.Time
	Expires time.Time // zero means never
	Revoked time.Time // zero means it is in force
}

// Keys authenticates callers and keeps their keys. It is safe for concurrent
// use.
type Keys interface {
	// Authenticate returns the key behind secret. It reports Anonymous for
	// an unknown, expired or revoked one, and says which.
	Authenticate(ctx context.Context, secret string) (Key, error)
	// Create stores a new key and returns its secret, "engi_" and 52
	// characters.
	Create(ctx context.Context, key Key) (Key, string, error)
	// List returns all keys of owner; of everybody if owner is empty.
	List(ctx context.Context, owner Owner) ([]Key, error)
	// Revoke ends a key for ever. It reports NotFound.
	Revoke(ctx context.Context, owner Owner, id string) error
}
