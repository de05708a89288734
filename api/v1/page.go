package v1

import (
	"encoding/json"
	"time"
)

// A PageActionRequest is an action of a user on the page of a session.
type PageActionRequest struct {
	Action string          `json:"action" maxLength:"128" doc:"Name of the action: 1 to 128 bytes of printable text, like the data-action of an element" example:"demo-counter"`
	Data   json.RawMessage `json:"data,omitempty" doc:"Object of at most 64 KiB, like the fields of a form; absent means an empty one"`
	Agent  string          `json:"agent,omitempty" maxLength:"64" doc:"Agent that answers; absent means the node's agent for pages"`
	Model  string          `json:"model,omitempty" maxLength:"200" doc:"Model, as provider:model; absent means the agent's model"`
}

// A PageAction is a queued action.
type PageAction struct {
	Seq int64 `json:"seq" doc:"Seq of the action's event; watch the page after it to follow the answer" example:"4711"`
}

// A PageRestoreRequest restores an earlier state of a page.
type PageRestoreRequest struct {
	Seq int64 `json:"seq" minimum:"1" doc:"Seq of the event after which the page was as wanted" example:"4711"`
}

// A Page is the page of a session, which a model writes and changes.
type Page struct {
	SessionID string     `json:"session_id" example:"ses_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty"`
	HTML      string     `json:"html" doc:"Content of the page's body, sanitized; empty before the first answer"`
	Seq       int64      `json:"seq" doc:"Seq of the last event that html contains; watch the page after it to follow changes" example:"4711"`
	Working   string     `json:"working,omitempty" doc:"ID of the run that answers; absent if there is none"`
	Waiting   int        `json:"waiting" doc:"Number of actions that no run has received yet"`
	UpdatedAt *time.Time `json:"updated_at,omitempty" doc:"Time of the last change; absent before the first answer"`
}

// A PagePatch is one change of a page, at the elements that a CSS selector selects. Besides
// the selector, it contains exactly one change.
type PagePatch struct {
	Selector string             `json:"selector" example:"#count"`
	Text     *string            `json:"text,omitempty" doc:"Replaces the content of the elements"`
	HTML     *string            `json:"html,omitempty" doc:"Replaces the content of the elements"`
	Attr     map[string]*string `json:"attr,omitempty" doc:"Attributes; null removes one"`
	Class    map[string]bool    `json:"class,omitempty" doc:"Classes; true adds one, false removes it"`
	Style    map[string]*string `json:"style,omitempty" doc:"Style properties; null removes one"`
	Value    *string            `json:"value,omitempty" doc:"Values of form fields, as if typed"`
	Append   *string            `json:"append,omitempty" doc:"HTML that is added as the last children"`
	Prepend  *string            `json:"prepend,omitempty" doc:"HTML that is added as the first children"`
	Before   *string            `json:"before,omitempty" doc:"HTML that is added as siblings"`
	After    *string            `json:"after,omitempty" doc:"HTML that is added as siblings"`
	Replace  *string            `json:"replace,omitempty" doc:"HTML that replaces the elements"`
	Remove   bool               `json:"remove,omitempty"`
	Move     *PageMove          `json:"move,omitempty" doc:"Moves the first of the elements"`
}

// A PageMove is the destination of a moved element.
type PageMove struct {
	To    string `json:"to" doc:"Selector of the destination; the first matching element counts"`
	Place string `json:"place" enum:"append,prepend,before,after"`
}

// Types of updates of a page. An error with problem ends the stream.
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
	Seq     int64           `json:"seq,omitempty" doc:"Seq of the event, to resume the stream; absent for updates that are not kept: partial pages and output" example:"4711"`
	Time    time.Time       `json:"time,omitzero"`
	Run     string          `json:"run,omitempty" doc:"ID of the agent's run"`
	Action  string          `json:"action,omitempty" doc:"Only with type action"`
	Data    json.RawMessage `json:"data,omitempty" doc:"Only with type action"`
	HTML    *string         `json:"html,omitempty" doc:"Type html: content of the page's body, sanitized"`
	Partial bool            `json:"partial,omitempty" doc:"Type html: the page is still being written; it shows until the next update and then gives way to the previous page"`
	Patches []PagePatch     `json:"patches,omitempty" doc:"Type patch: changes in their order, sanitized"`
	Stats   json.RawMessage `json:"stats,omitempty" doc:"Type stats: remarks of the model about its answer"`
	Call    *ToolCall       `json:"call,omitempty" doc:"Types tool and stdout: the tool call"`
	Result  *ToolResult     `json:"result,omitempty" doc:"Type tool: the result, once the call has ended"`
	Text    string          `json:"text,omitempty" doc:"Type stdout: output; type error: reason why a line of the model had no effect, or its run failed"`
	State   string          `json:"state,omitempty" doc:"Type done: state of the run" enum:"done,stopped,failed,cancelled"`
	Error   *Problem        `json:"error,omitempty" doc:"Reason why the stream ends"`
}
