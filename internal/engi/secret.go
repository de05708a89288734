package engi

import (
	"context"
	"time"
)

// A Secret describes a named value that never enters a sandbox: the gateway adds it
// to outgoing requests. The value itself is not part of the struct.
type Secret struct {
	ID       SecretID
	Owner    Owner
	Name     string // unique per owner: letters, digits, dashes, dots and underscores, 128 at most
	Version  int    // 1, incremented with each change of the value
	Metadata map[string]string
	Hosts    []string // names and *.SUFFIX: the only hosts that get the secret, whatever grants it; empty means every host
	Created  time.Time
	Updated  time.Time
}

// Secrets stores secrets, encrypted. Methods find only objects that viewer sees and report NotFound
// for all others. It is safe for concurrent use.
type Secrets interface {
	// Create stores a secret. It reports Conflict if the owner has a secret of that name. The secret
	// gets a new ID if it has none.
	Create(ctx context.Context, s Secret, value string) (Secret, error)
	// Get returns a secret by ID or name, without its value.
	Get(ctx context.Context, viewer Viewer, idOrName string) (Secret, error)
	// List returns secrets, ordered by name.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Secret, error)
	// Update replaces the value, and metadata and hosts unless they are nil.
	// Hosts change with the value only, so that a caller who does not know the value cannot
	// send it to another host.
	Update(ctx context.Context, viewer Viewer, idOrName, value string, metadata map[string]string, hosts *[]string) (Secret, error)
	// Remove deletes a secret.
	Remove(ctx context.Context, viewer Viewer, idOrName string) error
	// Reveal returns the value. Only the gateway may call it, never an API.
	Reveal(ctx context.Context, viewer Viewer, idOrName string) (string, error)
}
