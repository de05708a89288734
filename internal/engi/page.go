package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// A Page is the page of a session, which a model writes and changes in answer to
// actions. It is a value.
type Page struct {
	Session SessionID
	Owner   Owner
	HTML    string // what is in the body of the page, sanitized; empty before the first answer
	Seq     int64  // of the last event that HTML contains
	Working RunID  // the run that answers; empty if none does
	Waiting int    // actions that no run has seen yet
	Updated time.Time

	Answered int64 // Seq of the event with which the last answer so far ended, or before the first: what has come of the next is after it
}

// A PageAction is what a user did on a page.
type PageAction struct {
	Owner       Owner
	Session     string          // ID or name
	Action      string          // 1 to 128 bytes of printable text
	Data        json.RawMessage // an object of 64 KiB at most; nil means {}
	Agent       string          // that answers; empty means the node's for pages
	Model       string          // overrides the agent's
	Scopes      []Scope         // of the caller's key; empty means no limit
	Idempotency string          // a repeated key of the same owner and session returns the first action
}

// A PagePatch is one change of a page: of the elements that a CSS selector
// selects. It has exactly one change.
type PagePatch struct {
	Selector string `json:"selector"`

	Text    *string            `json:"text,omitempty"`    // replaces what is in them
	HTML    *string            `json:"html,omitempty"`    // replaces what is in them
	Attr    map[string]*string `json:"attr,omitempty"`    // null removes
	Class   map[string]bool    `json:"class,omitempty"`   // false removes
	Style   map[string]*string `json:"style,omitempty"`   // properties; null removes
	Value   *string            `json:"value,omitempty"`   // of fields, as if typed
	Append  *string            `json:"append,omitempty"`  // HTML, as their last children
	Prepend *string            `json:"prepend,omitempty"` // HTML, as their first children
	Before  *string            `json:"before,omitempty"`  // HTML, as siblings
	After   *string            `json:"after,omitempty"`   // HTML, as siblings
	Replace *string            `json:"replace,omitempty"` // HTML, in their place
	Remove  bool               `json:"remove,omitempty"`
	Move    *PageMove          `json:"move,omitempty"` // the first of them
}

// A PageMove says where to.
type PageMove struct {
	To    string `json:"to"`    // selector; the first element counts
	Place string `json:"place"` // append, prepend, before or after
}

// A PageUpdateKind tells updates of a page apart.
type PageUpdateKind string

const (
	PageActed    PageUpdateKind = "action" // somebody did something
	PagePatched  PageUpdateKind = "patch"  // changes, in their order
	PageReplaced PageUpdateKind = "html"   // the whole page; Partial while it is being written
	PageStats    PageUpdateKind = "stats"
	PageTool     PageUpdateKind = "tool"   // a tool call begins, or with Result has ended
	PageOutput   PageUpdateKind = "stdout" // what a tool prints while it works
	PageBad      PageUpdateKind = "error"  // a line of the model did nothing, or its run failed
	PageDone     PageUpdateKind = "done"   // a run has ended
)

// A PageUpdate is one item in the stream of a page.
type PageUpdate struct {
	Seq     int64 // of its event; 0 for what is not kept: partial pages and output
	Time    time.Time
	Kind    PageUpdateKind
	Run     RunID
	Action  string          // of action
	Data    json.RawMessage // of action and stats
	Patches []PagePatch     // of patch, sanitized
	HTML    string          // of html, sanitized
	Partial bool            // of html: it is being written; with any other update, and after a reconnection, the page is the one before it
	Call    *ToolCall       // of tool and stdout
	Result  *ToolResult     // of tool
	Text    string          // of stdout; of error, why
	Ended   RunState        // of done
}

// Pages are the pages of sessions. All methods see only what owner owns; the rest
// is NotFound. The empty owner sees all. It is safe for concurrent use.
type Pages interface {
	// Act queues an action, which outlives the process once Act has returned, and
	// returns the Seq of its event. Actions that come while a run answers are answered
	// together by the next. It reports NotFound for an unknown session or agent,
	// Invalid for a bad action, Exhausted when too many wait.
	Act(ctx context.Context, a PageAction) (int64, error)
	// Get returns the page as it was when the event at had happened; 0 means now. It
	// reports Expired if the log does not reach back so far, Invalid for an event that
	// has not happened.
	Get(ctx context.Context, owner Owner, session string, at int64) (Page, error)
	// Watch yields the whole page and then what happens to it; or, with seq above 0,
	// what has happened after seq, each event exactly once, and what comes. Where events
	// were dropped, or seq has not happened, the whole page comes first. It ends as [Events.Follow] does.
	Watch(ctx context.Context, owner Owner, session string, seq int64) iter.Seq2[PageUpdate, error]
	// Cancel ends the run that answers, if any, and forgets the actions that wait.
	Cancel(ctx context.Context, owner Owner, session string) error
	// Restore makes the page what it was at an earlier Seq. It reports Conflict while
	// a run answers, and Expired and Invalid as Get does.
	Restore(ctx context.Context, owner Owner, session string, at int64) (Page, error)
}
