package library

import (
	"context"
	"strings"

	"github.com/engi-dev/engi"
)

// A Record is a document, or a module, as it is kept.
type Record struct {
	engi.Document
	Collection string           // who finds it
	Key        string           // with Package unique on its shelf: URL, title or path
	Configured bool             // it is there because the node's configuration says so
	ETag       string           // of the answer that had it
	Modified   string           // that answer's Last-Modified
	Imports    []string         // packages that a module imports
	Module     *engi.CodeModule // nil of a document
}

// Packages are those it is found under.
func (r Record) Packages() []string {
	if r.Module != nil {
		return r.Imports
	}
	if r.Package == "" {
		return nil
	}
	return []string{r.Package}
}

// Shelves say who finds what is on them. Everywhere stands for all but those
// of sessions.
const (
	Everywhere = "*"

	documentPrefix = "d:"
	userPrefix     = "u:"
	sessionPrefix  = "s:"
)

func documentCollection(owner engi.Owner) string      { return documentPrefix + string(owner) }
func userCollection(owner engi.Owner) string          { return userPrefix + string(owner) }
func sessionCollection(session engi.SessionID) string { return sessionPrefix + string(session) }

// A Piece is what is found.
type Chunk struct {
	ID          int64 // the store's; never given again to another
	Document    engi.DocumentID
	Hash        string   // of what is embedded
	Headings    []string // above it, the outermost first
	Anchor      string   // of the innermost
	Text        string
	Identifiers string    // parts of the identifiers in it
	Embedder    string    // name of what made Vector; empty if it has none
	Vector      []float32 // nil if it has none
}

// A Filter chooses records. The zero value chooses all.
type Filter struct {
	IDs         []engi.DocumentID // only these; nil means all
	Collections []string          // only of these; nil means all
	Documents   bool              // no modules
	Key         string            // only of this place and Package; empty means all
	Package     string            // with Place
}

// A Query asks for pieces by words.
type Query struct {
	Collections []string // Everywhere may be among them
	Package     string   // empty for all
	Words       []string // any of them; the text of a user
	Limit       int
}

// A Store keeps records and pieces. It is safe for concurrent use.
type Store interface {
	// Records returns documents by package and title.
	Records(ctx context.Context, f Filter) ([]Record, error)
	// Put writes r in the place of the one of the same shelf, package and
	// place, whose ID it gets, and returns it. Pieces, unless nil, replace
	// its pieces, at once and whole; they get their ID and document. It
	// reports Exhausted when the shelf has more than quota then, whose zero
	// fields are no limit.
	Put(ctx context.Context, r Record, pieces []Chunk, quota Quota) (Record, error)
	// Remove forgets records of a shelf, all if ids is nil.
	Remove(ctx context.Context, shelf string, ids []engi.DocumentID) error
	// Pieces returns pieces without vectors, in no order; those that are gone
	// are missing.
	Chunks(ctx context.Context, ids []int64) ([]Chunk, error)
	// Vectors returns all pieces of a shelf by ID, with no text and no
	// headings; of one document unless id is empty.
	Vectors(ctx context.Context, shelf string, id engi.DocumentID) ([]Chunk, error)
	// SetVectors gives pieces their vectors; those that are gone are left out.
	SetVectors(ctx context.Context, embedder string, vectors map[int64][]float32) error
	// Match returns IDs of pieces, the best first, by BM25.
	Match(ctx context.Context, q Query) ([]int64, error)
}

// OfSession reports whether a shelf is a session's.
func IsSessionCollection(shelf string) bool { return strings.HasPrefix(shelf, sessionPrefix) }
