package engi

import (
	"context"
	"time"
)

// A DocumentSpec asks the library to take in a document: Markdown or plain
// text, given or fetched. Seed S0, section 5.
type DocumentSpec struct {
	Owner   Owner  // empty: of the node, and everybody finds it
	Package string // that it is about; empty for none
	Title   string // empty means its first heading, or the last part of URL
	URL     string // http or https; fetched now, and again when it is refreshed
	Text    string // instead of fetching; 8 MiB at most. With URL: that is where it came from
}

// A Document is something the library has read. It is a value.
type Document struct {
	ID      DocumentID
	Owner   Owner
	Package string
	Title   string
	URL     string
	Fetched bool // it is refreshed from URL
	Bytes   int64
	Chunks  int    // pieces that can be found
	Digest  string // sha256 of the text
	State   DocumentState
	Error   *Error    // why it could not be read last; its older text stays
	Checked time.Time // last time anybody looked whether it changed
	Changed time.Time
}

// A DocumentState says how far the reading of a document is.
type DocumentState string

const (
	DocumentReading DocumentState = "reading"
	DocumentReady   DocumentState = "ready"
	DocumentFailed  DocumentState = "failed" // it is tried again with the next refresh
)

// A CodeModule is a file of code in a session's volume that is worth finding
// again. The volume has the source; the library knows what it is for. Seed S0,
// sections 4 and 8.
type CodeModule struct {
	Path        string // below /workspace, like lib/linear.ts
	Description string
	Exports     []string
	Usage       string // an example of its import
	Scope       ModuleScope
	Source      string // a copy, of ModuleUser only
	Session     SessionID
	Saved       time.Time
}

// A ModuleScope says who finds a module.
type ModuleScope string

const (
	ModuleSession ModuleScope = "session" // its session, while its volume lives
	ModuleUser    ModuleScope = "user"    // all sessions of its owner, as a copy
)

// A SearchMode says how the library searches.
type SearchMode string

const (
	SearchHybrid  SearchMode = "hybrid"  // both, ranks fused
	SearchVector  SearchMode = "vector"  // by likeness of embeddings
	SearchKeyword SearchMode = "keyword" // by words, BM25
)

// A SearchSpec asks the library a question.
type SearchSpec struct {
	Owner   Owner
	Session string // ID or name: its modules are found, too; empty for none
	Text    string
	Package string     // only what is about it; empty for everything
	Mode    SearchMode // empty means hybrid
	Limit   int        // 0 means 5; 50 at most
}

// A Finding is what the library found.
type Finding struct {
	Hits     []Hit  // the best first
	Embedder string // that compared meanings; empty if none did
	Note     string // what the caller should know about the search; empty for nothing
}

// A Hit is a piece of a document, or a module.
type Hit struct {
	Document DocumentID // empty of a module
	Package  string
	Title    string   // of the document
	Headings []string // above the piece, the outermost first
	URL      string   // with the anchor of the heading, if it has one
	Text     string
	Module   *CodeModule // nil of a document
	Score    float64     // falls with the rank; of different searches it cannot be compared
}

// A DocumentPackage says what the library has about a package.
type DocumentPackage struct {
	Name      string
	Documents int
	Chunks    int
}

// A Library keeps documentation and knowledge of code modules, and finds
// pieces of them. Methods see what owner owns and what is the node's; the rest
// is NotFound. The empty owner sees all. It is safe for concurrent use.
type Library interface {
	// Search reports Invalid for a bad spec and NotFound for a session.
	Search(ctx context.Context, spec SearchSpec) (Finding, error)
	// Packages returns what documents are about, by name.
	Packages(ctx context.Context, owner Owner) ([]DocumentPackage, error)
	// Add takes in a document and returns once it can be found. One of the
	// same owner, package and URL (or title, without URL) is replaced. It
	// reports Invalid for what is no text, Denied for a URL that may not be
	// fetched, Unavailable for one that does not answer, Exhausted when the
	// owner's share is full.
	Add(ctx context.Context, spec DocumentSpec) (Document, error)
	// Documents returns what there is, by package and title.
	Documents(ctx context.Context, owner Owner) ([]Document, error)
	// Refresh looks whether documents have changed, and reads those that
	// have; all of owner's if id is empty. The node's are for the empty owner.
	Refresh(ctx context.Context, owner Owner, id DocumentID) ([]Document, error)
	// Remove forgets a document. The node's are for the empty owner.
	Remove(ctx context.Context, owner Owner, id DocumentID) error
	// SaveModules remembers modules of a session, in the place of those of
	// the same path. It reports NotFound for files that are not there.
	SaveModules(ctx context.Context, owner Owner, session string, modules []CodeModule) error
	// Modules returns the modules that a session finds; with session empty
	// those of scope user.
	Modules(ctx context.Context, owner Owner, session string) ([]CodeModule, error)
}
