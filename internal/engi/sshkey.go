package engi

import (
	"context"
	"time"
)

// An SSHKey lets the holder of the private key use the sessions, sandboxes and
// workspaces of its owner over SSH. It is a value.
type SSHKey struct {
	ID          SSHKeyID
	Owner       Owner
	Name        string    // for people
	PublicKey   string    // type and base64, as in authorized_keys
	Fingerprint string    // SHA256: and base64; unique on a node
	Created     time.Time // UTC, as are all times in this package
	Used        time.Time // time of the last login; zero means never
}

// SSHKeys stores the public keys of owners. Methods find only objects that viewer sees and report
// NotFound for all others. It is safe for concurrent use.
type SSHKeys interface {
	// Create stores k.PublicKey, a line of authorized_keys. An empty ID means a
	// new one, an empty Name the line's comment. It reports Invalid for text that is no
	// public key, or a weak one, Conflict for a key that the node already has,
	// whoever owns it, and Exhausted if the owner has too many.
	Create(ctx context.Context, k SSHKey) (SSHKey, error)
	// Get returns one key.
	Get(ctx context.Context, viewer Viewer, id SSHKeyID) (SSHKey, error)
	// List returns keys, oldest first.
	List(ctx context.Context, viewer Viewer, p Paging) ([]SSHKey, error)
	// Remove deletes a key and closes its connections.
	Remove(ctx context.Context, viewer Viewer, id SSHKeyID) error
}
