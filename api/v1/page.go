package v1

import (
	"encoding/json"
	"time"
)

// A PageActionRequest is what a user did on the page of a session.
type PageActionRequest struct {
	Action string          `json:"action" maxLength:"128" doc:"what was done: 1 to 128 bytes of printable text, like the data-action of an element" example:"demo-counter"`
	Data   json.RawMessage `json:"data,omitempty" doc:"an object of 64 KiB at most, like the fields of a form; absent means an empty one"`
	Agent  string          `json:"agent,omitempty" maxLength:"64" doc:"that answers; absent means the node's for pages"`
	Model  string          `json:"model,omitempty" maxLength:"200" doc:"instead of the agent's"`
}

// A PageAction is an action that has been queued.
type PageAction struct {
	Seq int64 `json:"seq" doc:"of its event; a stream after it shows the answer" example:"4711"`
}

// A PageRestoreRequest makes a page what it was.
type PageRestoreRequest struct {
	Seq int64 `json:"seq" minimum:"1" doc:"of the event after which the page was so" example:"4711"`
}

// A Page is the page of a session, which a model writes and changes.
type Page struct {
	SessionID string     `json:"session_id" example:"ses_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty"`
	HTML      string     `json:"html" doc:"what is in the body of the page, sanitized; empty before the first answer"`
	Seq       int64      `json:"seq" doc:"of the last event that html contains; a stream after it goes on from here" example:"4711"`
	Working   string     `json:"working,omitempty" doc:"ID of the run that answers; absent if none does"`
	Waiting   int        `json:"waiting" doc:"actions that no run has seen yet"`
	UpdatedAt *time.Time `json:"updated_at,omitempty" doc:"absent before the first answer"`
}

// A PagePatch is one change of a page: of the elements that a CSS selector selects. It
// has one change beside the selector.
type PagePatch struct {
	Selector string             `json:"selector" example:"#count"`
	Text     *string            `json:"text,omitempty" doc:"replaces what is in them"`
	HTML     *string            `json:"html,omitempty" doc:"replaces what is in them"`
	Attr     map[string]*string `json:"attr,omitempty" doc:"attributes; null removes one"`
	Class    map[string]bool    `json:"class,omitempty" doc:"false removes one"`
	Style    map[string]*string `json:"style,omitempty" doc:"properties; null removes one"`
	Value    *string            `json:"value,omitempty" doc:"of fields, as if typed"`
	Append   *string            `json:"append,omitempty" doc:"HTML, as their last children"`
	Prepend  *string            `json:"prepend,omitempty" doc:"HTML, as their first children"`
	Before   *string            `json:"before,omitempty" doc:"HTML, as siblings"`
	After    *string            `json:"after,omitempty" doc:"HTML, as siblings"`
	Replace  *string            `json:"replace,omitempty" doc:"HTML, in their place"`
	Remove   bool               `json:"remove,omitempty"`
	Move     *PageMove          `json:"move,omitempty" doc:"the first of them"`
}

// A PageMove says where to.
type PageMove struct {
	To    string `json:"to" doc:"selector; the first element counts"`
	Place string `json:"place" enum:"append,prepend,before,after"`
}

// Types of updates of a page. An error with problem is the end of the stream.
const (
	PageActed    = "action"
	PagePatched  = "patch"
	PageReplaced = "html"
	PageStats    = "stats"
	PageTool     = "tool"
	PageOutput   = "stdout"
	PageBad      = "error"
	PageDone     = "done"
)

// A PageUpdate is one item in the stream of a page.
type PageUpdate struct {
	Type    string          `json:"type" enum:"action,patch,html,stats,tool,stdout,error,done,heartbeat"`
	Seq     int64           `json:"seq,omitempty" doc:"of its event, to come back to; absent for what is not kept: partial pages and output" example:"4711"`
	Time    time.Time       `json:"time,omitzero"`
	Run     string          `json:"run,omitempty" doc:"ID of the agent's run"`
	Action  string          `json:"action,omitempty" doc:"of action"`
	Data    json.RawMessage `json:"data,omitempty" doc:"of action"`
	HTML    *string         `json:"html,omitempty" doc:"of html: what is in the body of the page, sanitized"`
	Partial bool            `json:"partial,omitempty" doc:"of html: it is being written, and shows until the next update; then the page is the one before"`
	Patches []PagePatch     `json:"patches,omitempty" doc:"of patch: changes in their order, sanitized"`
	Stats   json.RawMessage `json:"stats,omitempty" doc:"of stats: what the model says about its answer"`
	Call    *ToolCall       `json:"call,omitempty" doc:"of tool and stdout"`
	Result  *ToolResult     `json:"result,omitempty" doc:"of tool, once it has ended"`
	Text    string          `json:"text,omitempty" doc:"of stdout; of error, why a line of the model did nothing, or its run failed"`
	State   string          `json:"state,omitempty" doc:"of done: how the run ended" enum:"done,stopped,failed,cancelled"`
	Error   *Problem        `json:"error,omitempty" doc:"why the stream ends"`
}
