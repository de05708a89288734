package v1

import "time"

// Modes of a search.
const (
	SearchHybrid  = "hybrid"
	SearchVector  = "vector"
	SearchKeyword = "keyword"
)

// A DocumentRequest adds a document to the index: its text, or a URL to fetch
// it from.
type DocumentRequest struct {
	Package string `json:"package,omitempty" maxLength:"214" doc:"Package that the document describes" example:"@linear/sdk"`
	Title   string `json:"title,omitempty" maxLength:"500" doc:"Title; absent means the first heading, or the last element of the URL"`
	URL     string `json:"url,omitempty" maxLength:"2048" doc:"http or https URL: fetched now, and again on refresh; with text: the source of the text" example:"https://example.com/sdk.md"`
	Text    string `json:"text,omitempty" doc:"Markdown or plain text, instead of fetching url; at most 8 MiB"`
}

// A Document is an indexed document.
type Document struct {
	ID        string    `json:"id" example:"doc_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string    `json:"owner,omitempty" doc:"Owner; absent for documents of the node, which every owner finds"`
	Package   string    `json:"package,omitempty" example:"@linear/sdk"`
	Title     string    `json:"title"`
	URL       string    `json:"url,omitempty"`
	Fetched   bool      `json:"fetched" doc:"The text comes from url and can be refreshed"`
	Bytes     Bytes     `json:"bytes"`
	Chunks    int       `json:"chunks" doc:"Number of indexed passages"`
	Digest    string    `json:"digest,omitempty" doc:"SHA-256 of the text"`
	State     string    `json:"state" enum:"reading,ready,failed"`
	Error     *Problem  `json:"error,omitempty" doc:"Reason why the last fetch failed; searches use the previous text"`
	CheckedAt time.Time `json:"checked_at" doc:"Time of the last check for changes"`
	ChangedAt time.Time `json:"changed_at"`
}

// A DocumentPackage lists the indexed documentation of a package.
type DocumentPackage struct {
	Name      string `json:"name" example:"@linear/sdk"`
	Documents int    `json:"documents"`
	Chunks    int    `json:"chunks"`
}

// A SearchRequest searches the index of documentation.
type SearchRequest struct {
	Query   string
	Package string // package to search in; empty means all
	Session string // ID or name of a session whose modules are searched too
	Mode    string // empty means SearchHybrid
	Limit   int    // 0 means 5; at most 50
}

// A Finding is the result of a search.
type Finding struct {
	Hits     []Hit  `json:"hits" doc:"Hits, best first"`
	Embedder string `json:"embedder,omitempty" doc:"Embedding model of the semantic search; absent if none was used" example:"openai:text-embedding-3-small"`
	Note     string `json:"note,omitempty" doc:"Remarks on this search"`
}

// A Hit is a piece of a document, or a module.
type Hit struct {
	DocumentID string      `json:"document_id,omitempty" doc:"ID of the document; absent for a module"`
	Package    string      `json:"package,omitempty"`
	Title      string      `json:"title,omitempty" doc:"Title of the document"`
	Headings   []string    `json:"headings,omitempty" doc:"Headings above the passage, outermost first"`
	URL        string      `json:"url,omitempty" doc:"URL of the document, with the anchor of the heading if it has one"`
	Text       string      `json:"text"`
	Module     *CodeModule `json:"module,omitempty" doc:"Module; absent for a document"`
	Score      float64     `json:"score" doc:"Score that decreases with the rank; not comparable between searches"`
}

// A CodeModuleRequest describes a file in a session's volume, so that a search
// finds it.
type CodeModuleRequest struct {
	Path        string   `json:"path" minLength:"1" maxLength:"1024" doc:"Path below /workspace" example:"lib/linear.ts"`
	Description string   `json:"description" example:"Fetches issues with their labels."`
	Exports     []string `json:"exports,omitempty"`
	Usage       string   `json:"usage,omitempty" doc:"Example of importing the module" example:"import { issues } from './lib/linear.ts'"`
	Scope       string   `json:"scope,omitempty" enum:"session,user" doc:"session: the session finds the module; user: all sessions of the owner do; absent means session"`
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
	Source      string    `json:"source,omitempty" doc:"Source code, a copy; only with scope user"`
	SessionID   string    `json:"session_id,omitempty" doc:"ID of the session that saved the module"`
	SavedAt     time.Time `json:"saved_at"`
}
