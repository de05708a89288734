package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// A Page is the page of a session. A model writes the page and changes it in answer to
// actions. It is a value.
type Page struct {
	Session SessionID
	Owner   Owner
	HTML    string // content of the page's body, sanitized; empty before the first answer
	Seq     int64  // Seq of the last event that HTML contains
	Working RunID  // ID of the run that answers; empty if there is none
	Waiting int    // number of actions that no run has received yet
	Updated time.Time

	Answered int64 // Seq of the event that ended the last answer; events of the current answer come after it
}

// A PageAction is an action of a user on a page.
type PageAction struct {
	Viewer      Viewer
	Session     string          // ID or name
	Action      string          // 1 to 128 bytes of printable text
	Data        json.RawMessage // JSON object of at most 64 KiB; nil means {}
	Agent       string          // agent that answers; empty means the node's agent for pages
	Model       string          // overrides the agent's
	Scopes      []Scope         // scopes of the caller's key; empty means no restriction
	Idempotency string          // a repeated key of the same owner and session returns the first action
}

// A PagePatch is one change of the elements of a page that a CSS selector
// selects. It has exactly one change.
type PagePatch struct {
	Selector string `json:"selector"`

	Text    *string            `json:"text,omitempty"`    // replaces the content of the elements
	HTML    *string            `json:"html,omitempty"`    // replaces the content of the elements
	Attr    map[string]*string `json:"attr,omitempty"`    // attributes; null removes one
	Class   map[string]bool    `json:"class,omitempty"`   // classes; true adds one, false removes it
	Style   map[string]*string `json:"style,omitempty"`   // style properties; null removes one
	Value   *string            `json:"value,omitempty"`   // value of form fields, as if typed
	Append  *string            `json:"append,omitempty"`  // HTML that is added as the last children
	Prepend *string            `json:"prepend,omitempty"` // HTML that is added as the first children
	Before  *string            `json:"before,omitempty"`  // HTML that is added as siblings
	After   *string            `json:"after,omitempty"`   // HTML that is added as siblings
	Replace *string            `json:"replace,omitempty"` // HTML that replaces the elements
	Remove  bool               `json:"remove,omitempty"`
	Move    *PageMove          `json:"move,omitempty"` // moves the first of the elements
}

// A PageMove is the destination of a moved element.
type PageMove struct {
	To    string `json:"to"`    // selector of the destination; the first matching element counts
	Place string `json:"place"` // append, prepend, before or after
}

// A PageUpdateKind is the kind of a [PageUpdate].
type PageUpdateKind string

const (
	PageActed    PageUpdateKind = "action" // a user sent an action
	PagePatched  PageUpdateKind = "patch"  // changes, in their order
	PageReplaced PageUpdateKind = "html"   // the whole page; Partial is set while it is being written
	PageStats    PageUpdateKind = "stats"
	PageTool     PageUpdateKind = "tool"   // a tool call starts, or, with Result, has ended
	PageOutput   PageUpdateKind = "stdout" // output of a tool while it works
	PageBad      PageUpdateKind = "error"  // a line of the model had no effect, or its run failed
	PageDone     PageUpdateKind = "done"   // a run has ended
)

// A PageUpdate is one item in the stream of a page.
type PageUpdate struct {
	Seq     int64 // Seq of the event; 0 for updates that are not stored: partial pages and output
	Time    time.Time
	Kind    PageUpdateKind
	Run     RunID
	Action  string          // for kind action
	Data    json.RawMessage // for kinds action and stats
	Patches []PagePatch     // for kind patch; sanitized
	HTML    string          // for kind html; sanitized
	Partial bool            // for kind html: the page is still being written; the next update of another kind, or a reconnection, restores the previous page
	Call    *ToolCall       // for kinds tool and stdout
	Result  *ToolResult     // for kind tool
	Text    string          // for stdout the output; for error the reason
	Ended   RunState        // for kind done
}

// Pages manages the pages of sessions. Methods find only objects that viewer sees and report
// NotFound for all others. It is safe for concurrent use.
type Pages interface {
	// Act queues an action, which outlives the process once Act has returned, and
	// returns the Seq of its event. Actions that arrive while a run answers are answered
	// together by the next run. It reports NotFound for an unknown session or agent,
	// Invalid for a bad action, and Exhausted when too many actions are waiting.
	Act(ctx context.Context, a PageAction) (int64, error)
	// Get returns the page as it was after the event with the Seq at; 0 means now. It
	// reports Expired if the log no longer has that event, and Invalid for an event that
	// has not happened.
	Get(ctx context.Context, viewer Viewer, session string, at int64) (Page, error)
	// Watch yields the whole page and then its updates; or, with seq above 0,
	// the updates after seq, each exactly once, and then new ones. If events
	// were dropped, or seq is in the future, the whole page comes first. It ends as [Events.Follow] does.
	Watch(ctx context.Context, viewer Viewer, session string, seq int64) iter.Seq2[PageUpdate, error]
	// Cancel ends the run that answers, if any, and drops the waiting actions.
	Cancel(ctx context.Context, viewer Viewer, session string) error
	// Restore restores the page as it was at an earlier Seq. It reports Conflict while
	// a run answers, and Expired and Invalid as Get does.
	Restore(ctx context.Context, viewer Viewer, session string, at int64) (Page, error)
}
