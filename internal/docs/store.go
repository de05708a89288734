package docs

import (
	"context"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A Record is a stored document or module.
type Record struct {
	engi.Document
	Collection string           // collection, which determines who finds it
	Key        string           // unique within collection and package: URL, title or path
	Configured bool             // from the node's configuration
	ETag       string           // ETag of the response with the text
	Modified   string           // Last-Modified of that response
	Imports    []string         // packages that the module imports
	Module     *engi.CodeModule // nil for a document
}

// Packages returns the packages under which the record is found.
func (r Record) Packages() []string {
	if r.Module != nil {
		return r.Imports
	}
	if r.Package == "" {
		return nil
	}
	return []string{r.Package}
}

// A collection holds records with the same audience: the documents of an owner or of
// the node, the modules of a user, or those of a session. Everywhere selects
// all collections except those of sessions.
const (
	Everywhere = "*"

	documentPrefix = "d:"
	userPrefix     = "u:"
	sessionPrefix  = "s:"
)

func documentCollection(owner engi.Owner) string      { return documentPrefix + string(owner) }
func userCollection(owner engi.Owner) string          { return userPrefix + string(owner) }
func sessionCollection(session engi.SessionID) string { return sessionPrefix + string(session) }

// A Chunk is the unit of search: a chunk of a document, or the description of a
// module.
type Chunk struct {
	ID          int64 // assigned by the store; never reused
	Document    engi.DocumentID
	Hash        string   // hash of the text that is embedded
	Headings    []string // headings above the chunk, outermost first
	Anchor      string   // anchor of the innermost heading
	Text        string
	Identifiers string    // parts of mixed-case identifiers in the chunk
	Embedder    string    // embedder that computed Vector; empty if there is none
	Vector      []float32 // nil if there is none
}

// A Filter selects records. The zero value selects all.
type Filter struct {
	IDs         []engi.DocumentID // only these; nil means all
	Collections []string          // only in these; nil means all
	Documents   bool              // exclude modules
	Key         string            // only with this key and Package; empty means all
	Package     string            // used with Key
	Page        engi.Paging
}

// A Query selects chunks by words.
type Query struct {
	Collections []string // may contain Everywhere
	Package     string   // empty for all
	Words       []string // any of the words; not sanitized
	Limit       int
}

// A Store stores records and chunks durably. It is safe for concurrent use.
type Store interface {
	// Records returns records by package and title. It reports Invalid for a page
	// after one that is not selected.
	Records(ctx context.Context, f Filter) ([]Record, error)
	// Put stores r, or replaces the record with the same collection, package
	// and key but keeps its ID, and returns the stored record. Chunks, unless nil,
	// replace the record's in the same transaction and get their ID and
	// document. It reports Exhausted if the collection would exceed quota, in
	// which zero fields mean no limit.
	Put(ctx context.Context, r Record, chunks []Chunk, quota Quota) (Record, error)
	// Remove deletes records of a collection; all of them if ids is nil.
	Remove(ctx context.Context, collection string, ids []engi.DocumentID) error
	// Chunks returns chunks without vectors, in any order. Deleted ones are
	// missing.
	Chunks(ctx context.Context, ids []int64) ([]Chunk, error)
	// Vectors returns the chunks of a collection, or of one document unless id
	// is empty, sorted by ID and without text and headings.
	Vectors(ctx context.Context, collection string, id engi.DocumentID) ([]Chunk, error)
	// SetVectors stores vectors of chunks by ID. It ignores deleted chunks.
	SetVectors(ctx context.Context, embedder string, vectors map[int64][]float32) error
	// Match returns the IDs of the chunks that match, best first, by BM25.
	Match(ctx context.Context, q Query) ([]int64, error)
}

// IsSessionCollection reports whether a collection belongs to a session.
func IsSessionCollection(collection string) bool { return strings.HasPrefix(collection, sessionPrefix) }
