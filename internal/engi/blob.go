package engi

import (
	"context"
	"iter"
)

// Blobs stores blobs by name. Names are slash-separated and have lower-case
// letters, digits and dashes. It is safe for concurrent use.
type Blobs interface {
	// Put stores a blob and replaces one with the same name. Concurrent readers get
	// either the old or the new content. Once Put returns, the blob outlives the process.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns a blob. It reports NotFound for an unknown name, and Conflict for a blob with more
	// bytes than limit.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)
	// List yields the blobs whose names begin with prefix, in any order.
	List(ctx context.Context, prefix string) iter.Seq2[Blob, error]
	// Remove deletes a blob. An unknown name is no error.
	Remove(ctx context.Context, name string) error
}

// A Blob describes one blob in a list.
type Blob struct {
	Name string
	Size int64
}
