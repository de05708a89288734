package engi

import (
	"context"
	"time"
)

// A DocumentSpec asks the library to add a document: Markdown or plain text,
// given or fetched.
type DocumentSpec struct {
	Owner   Owner  // empty: the node's, visible to everybody
	Package string // that it documents; empty for none
	Title   string // empty means its first heading, or the last part of URL
	URL     string // http or https; fetched now and on each refresh
	Text    string // instead of fetching; 8 MiB at most. With URL: where the text came from
}

// A Document is a document in the library. It is a value.
type Document struct {
	ID      DocumentID
	Owner   Owner
	Package string
	Title   string
	URL     string
	Fetched bool // it is refreshed from URL
	Bytes   int64
	Chunks  int    // searchable pieces
	Digest  string // sha256 of the text
	State   DocumentState
	Error   *Error    // of the last attempt to read it; the older text stays
	Checked time.Time // when it was last read or found unchanged
	Changed time.Time
}

// A DocumentState says whether a document has been read.
type DocumentState string

const (
	DocumentReading DocumentState = "reading"
	DocumentReady   DocumentState = "ready"
	DocumentFailed  DocumentState = "failed" // retried with the next refresh
)

// A CodeModule describes a source file in a session's volume so that it can be
// found and used again. The source itself stays in the volume.
type CodeModule struct {
	Path        string // below /workspace, like lib/linear.ts
	Description string
	Exports     []string
	Usage       string // an example of its import
	Scope       ModuleScope
	Source      string // a copy, of ModuleUser only
	Session     SessionID
	Saved       time.Time
	Owner       Owner // of the session
}

// A ModuleScope says who finds a module.
type ModuleScope string

const (
	ModuleSession ModuleScope = "session" // its session, while its volume exists
	ModuleUser    ModuleScope = "user"    // all sessions of its owner, as a copy
)

// A SearchMode says how the library searches.
type SearchMode string

const (
	SearchHybrid  SearchMode = "hybrid"  // both, their ranks fused
	SearchVector  SearchMode = "vector"  // by similarity of embeddings
	SearchKeyword SearchMode = "keyword" // by words, BM25
)

// A SearchSpec is a search of the library.
type SearchSpec struct {
	Owner   Owner
	Own     bool   // for the empty owner: only what is the node's, not what is everybody's
	Session string // ID or name: its modules are searched too; empty for none
	Text    string
	Package string     // search only what documents or uses it; empty for everything
	Mode    SearchMode // empty means hybrid
	Limit   int        // 0 means 5; 50 at most
}

// A SearchResult is the answer to a search.
type SearchResult struct {
	Hits     []SearchHit // best first
	Embedder string      // that compared vectors; empty if none did
	Note     string      // a caveat for the caller; empty for none
}

// A SearchHit is a piece of a document, or a module.
type SearchHit struct {
	Document DocumentID // empty for a module
	Package  string
	Title    string   // of the document
	Headings []string // above the piece, outermost first
	URL      string   // with the anchor of the heading, if it has one
	Text     string
	Module   *CodeModule // nil for a document
	Score    float64     // falls with the rank; not comparable between searches
}

// A DocumentPackage counts the documents about a package.
type DocumentPackage struct {
	Name      string
	Documents int
	Chunks    int
}

// A Docs keeps documentation and descriptions of code modules, and searches
// them. Methods see what owner owns and what is the node's; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Docs interface {
	// Search reports Invalid for a bad spec and NotFound for a session.
	Search(ctx context.Context, spec SearchSpec) (SearchResult, error)
	// Packages returns the packages that have documents, by name.
	Packages(ctx context.Context, owner Owner) ([]DocumentPackage, error)
	// Add adds a document and returns once it can be found. It replaces the
	// one of the same owner, package and URL (or title, without URL). It
	// reports Invalid for what is not text, Denied for a URL that may not be
	// fetched, Unavailable for one that does not answer, Exhausted when the
	// owner's quota is used up.
	Add(ctx context.Context, spec DocumentSpec) (Document, error)
	// Documents returns the documents by package and title, or only those of ids. It
	// reports Invalid for a page after one that owner does not see.
	Documents(ctx context.Context, owner Owner, p Paging, ids ...DocumentID) ([]Document, error)
	// Refresh fetches a document again, or all of owner's if id is empty. Only
	// the empty owner refreshes the node's.
	Refresh(ctx context.Context, owner Owner, id DocumentID) ([]Document, error)
	// Remove deletes a document. Only the empty owner removes the node's.
	Remove(ctx context.Context, owner Owner, id DocumentID) error
	// SaveModules adds modules of a session, replacing those of the same path.
	// It reports NotFound for files that do not exist.
	SaveModules(ctx context.Context, owner Owner, session string, modules []CodeModule) error
	// Modules returns the modules visible to a session, or with an empty
	// session those of scope user.
	Modules(ctx context.Context, owner Owner, session string) ([]CodeModule, error)
}
