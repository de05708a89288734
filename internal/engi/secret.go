package engi

import (
	"context"
	"time"
)

// A Secret describes a named value that never enters a sandbox: the wall puts it
// into outgoing requests. The value itself is not part of the struct.
type Secret struct {
	ID       SecretID
	Owner    Owner
	Name     string // unique per owner: letters, digits, dashes, dots and underscores, 128 at most
	Version  int    // 1, incremented with each change of the value
	Metadata map[string]string
	Hosts    []string // names and *.SUFFIX: it may be sent to these and nowhere else, whatever grants it; empty means anywhere
	Created  time.Time
	Updated  time.Time
}

// Secrets stores secrets, encrypted. All methods see only what owner owns; the
// rest is NotFound. The empty owner sees all. It is safe for concurrent use.
type Secrets interface {
	// Create stores a secret; Conflict if the owner has one of that name. It
	// gets a fresh ID if it has none.
	Create(ctx context.Context, s Secret, value string) (Secret, error)
	// Get returns a secret by ID or name, without its value.
	Get(ctx context.Context, owner Owner, idOrName string) (Secret, error)
	// List returns secrets by name.
	List(ctx context.Context, owner Owner, p Paging) ([]Secret, error)
	// Update replaces the value, and metadata and hosts unless they are nil.
	// Hosts change with the value only, so that who does not know a value cannot
	// have it sent anywhere else.
	Update(ctx context.Context, owner Owner, idOrName, value string, metadata map[string]string, hosts *[]string) (Secret, error)
	// Remove deletes a secret.
	Remove(ctx context.Context, owner Owner, idOrName string) error
	// Reveal returns the value. Only the wall may call it, never an API.
	Reveal(ctx context.Context, owner Owner, idOrName string) (string, error)
}
