package engi

import (
	"context"
	"time"
)

// An SSHKey lets whoever has its private half use the sessions and sandboxes of
// its owner over SSH. It is a value.
type SSHKey struct {
	ID          SSHKeyID
	Owner       Owner
	Name        string    // for people
	PublicKey   string    // type and base64, as in authorized_keys
	Fingerprint string    // SHA256: and base64; unique on a node
	Created     time.Time // UTC, as are all times in this package
	Used        time.Time // when it last let somebody in; zero means never
}

// SSHKeys keeps the public keys of owners. All methods see only what owner owns;
// the rest is NotFound. The empty owner sees all. It is safe for concurrent use.
type SSHKeys interface {
	// Create stores k's PublicKey, a line of authorized_keys. ID is empty for a
	// fresh one, Name for the line's comment. It reports Invalid for what is no
	// public key, or is too weak, Conflict for a key that the node has already,
	// whoever owns it, and Exhausted if the owner has too many.
	Create(ctx context.Context, k SSHKey) (SSHKey, error)
	// Get returns one key.
	Get(ctx context.Context, owner Owner, id SSHKeyID) (SSHKey, error)
	// List returns keys, oldest first.
	List(ctx context.Context, owner Owner, p Paging) ([]SSHKey, error)
	// Remove deletes a key, and ends its connections.
	Remove(ctx context.Context, owner Owner, id SSHKeyID) error
}
