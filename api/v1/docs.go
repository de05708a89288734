package v1

import "time"

// Modes of a search.
const (
	SearchHybrid  = "hybrid"
	SearchVector  = "vector"
	SearchKeyword = "keyword"
)

// A DocumentRequest adds a document to the library: its text, or a URL to fetch
// it from.
type DocumentRequest struct {
	Package string `json:"package,omitempty" maxLength:"214" doc:"that it is about" example:"@linear/sdk"`
	Title   string `json:"title,omitempty" maxLength:"500" doc:"absent means its first heading, or the last part of the address"`
	URL     string `json:"url,omitempty" maxLength:"2048" doc:"http or https: fetched now, and again when it is refreshed; with text: where that came from" example:"https://example.com/sdk.md"`
	Text    string `json:"text,omitempty" doc:"Markdown or plain text instead of fetching; at most 8 MiB"`
}

// A Document is an indexed document.
type Document struct {
	ID        string    `json:"id" example:"doc_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string    `json:"owner,omitempty" doc:"absent means the node's, which everybody finds"`
	Package   string    `json:"package,omitempty" example:"@linear/sdk"`
	Title     string    `json:"title"`
	URL       string    `json:"url,omitempty"`
	Fetched   bool      `json:"fetched" doc:"it is refreshed from url"`
	Bytes     Bytes     `json:"bytes"`
	Chunks    int       `json:"chunks" doc:"indexed passages"`
	Digest    string    `json:"digest,omitempty" doc:"SHA-256 of the text"`
	State     string    `json:"state" enum:"reading,ready,failed"`
	Error     *Problem  `json:"error,omitempty" doc:"why it could not be fetched last; its previous text is still searched"`
	CheckedAt time.Time `json:"checked_at" doc:"when it was last checked for changes"`
	ChangedAt time.Time `json:"changed_at"`
}

// A DocumentPackage lists the documentation of a package in the library.
type DocumentPackage struct {
	Name      string `json:"name" example:"@linear/sdk"`
	Documents int    `json:"documents"`
	Chunks    int    `json:"chunks"`
}

// A SearchRequest searches the library.
type SearchRequest struct {
	Query   string
	Package string // only what is about it
	Session string // ID or name: its modules are found, too
	Mode    string // SearchHybrid if empty
	Limit   int    // 5 if 0; 50 at most
}

// A Finding is the result of a search.
type Finding struct {
	Hits     []Hit  `json:"hits" doc:"best first"`
	Embedder string `json:"embedder,omitempty" doc:"used for semantic search; absent if none was" example:"openai:text-embedding-3-small"`
	Note     string `json:"note,omitempty" doc:"remarks on this search"`
}

// A Hit is a piece of a document, or a module.
type Hit struct {
	DocumentID string      `json:"document_id,omitempty" doc:"absent for a module"`
	Package    string      `json:"package,omitempty"`
	Title      string      `json:"title,omitempty" doc:"of the document"`
	Headings   []string    `json:"headings,omitempty" doc:"above the passage, outermost first"`
	URL        string      `json:"url,omitempty" doc:"with the anchor of the heading, if it has one"`
	Text       string      `json:"text"`
	Module     *CodeModule `json:"module,omitempty" doc:"absent for a document"`
	Score      float64     `json:"score" doc:"decreases with the rank; not comparable between searches"`
}

// A CodeModuleRequest describes a file in a session's volume, so that it can be
// found again.
type CodeModuleRequest struct {
	Path        string   `json:"path" minLength:"1" maxLength:"1024" doc:"below /workspace" example:"lib/linear.ts"`
	Description string   `json:"description" example:"Fetches issues with their labels."`
	Exports     []string `json:"exports,omitempty"`
	Usage       string   `json:"usage,omitempty" doc:"an example of its import" example:"import { issues } from './lib/linear.ts'"`
	Scope       string   `json:"scope,omitempty" enum:"session,user" doc:"who can find it: its session, or all sessions of its owner; absent means session"`
}

// A CodeModulesRequest describes several files in a session's volume.
type CodeModulesRequest struct {
	Modules []CodeModuleRequest `json:"modules" minItems:"1"`
}

// A CodeModule is a described file of code in a session's volume.
type CodeModule struct {
	Path        string    `json:"path" example:"lib/linear.ts"`
	Description string    `json:"description"`
	Exports     []string  `json:"exports,omitempty"`
	Usage       string    `json:"usage,omitempty"`
	Scope       string    `json:"scope" enum:"session,user"`
	Source      string    `json:"source,omitempty" doc:"a copy, with scope user"`
	SessionID   string    `json:"session_id,omitempty" doc:"that saved it"`
	SavedAt     time.Time `json:"saved_at"`
}
