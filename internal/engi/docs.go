package engi

import (
	"context"
	"time"
)

// A DocumentSpec asks to add a document to the docs: Markdown or plain text,
// given or fetched.
type DocumentSpec struct {
	Owner   Owner  // empty means a document of the node, which every owner finds
	Package string // package that the document describes; empty for none
	Title   string // empty means the first heading, or the last element of URL
	URL     string // http or https; fetched now and on each refresh
	Text    string // replaces fetching; at most 8 MiB. With Text, URL is only the source of the text
}

// A Document is the record of a document in the docs. It is a value.
type Document struct {
	ID      DocumentID
	Owner   Owner
	Package string
	Title   string
	URL     string
	Fetched bool // the text comes from URL and can be refreshed
	Bytes   int64
	Chunks  int    // number of indexed passages
	Digest  string // SHA-256 of the text
	State   DocumentState
	Error   *Error    // error of the last fetch; the older text stays
	Checked time.Time // time of the last fetch, or of the last check that found no change
	Changed time.Time
}

// A DocumentState says whether a document has been read.
type DocumentState string

const (
	DocumentReading DocumentState = "reading"
	DocumentReady   DocumentState = "ready"
	DocumentFailed  DocumentState = "failed" // the next refresh tries again
)

// A CodeModule describes a source file in a session's volume so that it can be
// found and used again. The source itself stays in the volume.
type CodeModule struct {
	Path        string // below /workspace, like lib/linear.ts
	Description string
	Exports     []string
	Usage       string // example of an import
	Scope       ModuleScope
	Source      string // copy of the source; only for scope user
	Session     SessionID
	Saved       time.Time
	Owner       Owner // owner of the session
}

// A ModuleScope says which sessions find a module.
type ModuleScope string

const (
	ModuleSession ModuleScope = "session" // the module's session, while its volume exists
	ModuleUser    ModuleScope = "user"    // all sessions of the owner, which find a copy
)

// A SearchMode selects the ranking of a search.
type SearchMode string

const (
	SearchHybrid  SearchMode = "hybrid"  // vector and keyword, with fused ranks
	SearchVector  SearchMode = "vector"  // by similarity of embeddings
	SearchKeyword SearchMode = "keyword" // by words, BM25
)

// A SearchSpec is a search of the docs.
type SearchSpec struct {
	Viewer  Viewer
	Session string // ID or name of a session whose modules are searched too; empty for none
	Text    string
	Package string     // search only documents about this package, and modules that use it; empty means all
	Mode    SearchMode // empty means hybrid
	Limit   int        // 0 means 5; 50 at most
}

// A SearchResult is the answer to a search.
type SearchResult struct {
	Hits     []SearchHit // best first
	Embedder string      // embedding model that was used; empty if none was
	Note     string      // remark for the caller; empty for none
}

// A SearchHit is a passage of a document, or a module.
type SearchHit struct {
	Document DocumentID // empty for a module
	Package  string
	Title    string   // title of the document
	Headings []string // headings above the passage, outermost first
	URL      string   // URL of the document, with the anchor of the heading if it has one
	Text     string
	Module   *CodeModule // nil for a document
	Score    float64     // score that decreases with the rank; not comparable between searches
}

// A DocumentPackage counts the documents about a package.
type DocumentPackage struct {
	Name      string
	Documents int
	Chunks    int
}

// Docs stores documentation and descriptions of code modules, and searches
// them. Methods find the objects that the viewer sees and those of the node, and report NotFound
// for all others. It is safe for concurrent use.
type Docs interface {
	// Search reports Invalid for a bad spec and NotFound for an unknown session.
	Search(ctx context.Context, spec SearchSpec) (SearchResult, error)
	// Packages returns the packages that have documents, by name.
	Packages(ctx context.Context, viewer Viewer) ([]DocumentPackage, error)
	// Add adds a document and returns once searches find it. It replaces the document
	// of the same owner, package and URL (or title, without URL). It
	// reports Invalid for content that is not text, Denied for a URL that may not be
	// fetched, Unavailable for one that does not answer, Exhausted when the
	// owner's quota is used up.
	Add(ctx context.Context, spec DocumentSpec) (Document, error)
	// Documents returns documents ordered by package and title; with ids, only these. It
	// reports Invalid for a page after a document that viewer does not see.
	Documents(ctx context.Context, viewer Viewer, p Paging, ids ...DocumentID) ([]Document, error)
	// Refresh fetches a document again, or all documents of the viewer's owner if id is empty.
	// Owners do not refresh documents of the node; [Everyone] refreshes all of them if id is empty.
	Refresh(ctx context.Context, viewer Viewer, id DocumentID) ([]Document, error)
	// Remove deletes a document. It reports Denied for a document of the node that viewer does
	// not see.
	Remove(ctx context.Context, viewer Viewer, id DocumentID) error
	// SaveModules adds modules of a session and replaces modules with the same path.
	// It reports NotFound for files that do not exist.
	SaveModules(ctx context.Context, viewer Viewer, session string, modules []CodeModule) error
	// Modules returns the modules that a session finds; with an empty
	// session, the modules of scope user.
	Modules(ctx context.Context, viewer Viewer, session string) ([]CodeModule, error)
}
