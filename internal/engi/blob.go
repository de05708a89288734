package engi

import (
	"context"
	"iter"
)

// Blobs stores blobs by name. Names are slash-separated and have lower-case
// letters, digits and dashes. It is safe for concurrent use.
type Blobs interface {
	// Put stores a blob, in place of one of that name. Others read all of the
	// one or of the other. Once it returns, the blob outlives the process.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns a blob. It reports NotFound, and Conflict for one with more
	// bytes than limit.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)
	// List yields the blobs whose names begin with prefix, in any order.
	List(ctx context.Context, prefix string) iter.Seq2[Blob, error]
	// Remove deletes a blob. It is no error if there is none.
	Remove(ctx context.Context, name string) error
}

// A Blob is an entry of a listing of [Blobs].
type Blob struct {
	Name string
	Size int64
}
