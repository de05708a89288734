package page

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Record is what is kept of a page beside the events about it. It is a value.
type Record struct {
	Session engi.SessionID
	Owner   engi.Owner
	HTML    string // the page after the event Seq
	Seq     int64
	First   int64     // Seq of the first event about the page; 0 for none
	Waiting []Action  // that no run has seen, oldest first
	Batch   *Batch    // that is being answered; nil for none
	Modules []Modules // that are to be saved
	Updated time.Time
}

// Busy reports whether there is something to do.
func (r Record) Busy() bool { return len(r.Waiting) > 0 || r.Batch != nil || len(r.Modules) > 0 }

// An Action is what somebody did on a page.
type Action struct {
	Seq    int64           `json:"seq"` // of its event
	Name   string          `json:"name"`
	Data   json.RawMessage `json:"data"`
	Agent  string          `json:"agent"`
	Model  string          `json:"model,omitempty"`
	Scopes []engi.Scope    `json:"scopes,omitempty"`
}

// A Batch has the actions that one run answers, and others that correct it.
type Batch struct {
	Actions   []Action            `json:"actions"`
	Input     string              `json:"input,omitempty"`           // of the run, until that is recorded
	Talk      engi.ConversationID `json:"conversation_id,omitempty"` // that the run goes on with, to correct what it said
	Run       engi.RunID          `json:"run_id,omitempty"`          // empty before it is known to have started
	Retry     int                 `json:"retry,omitempty"`           // how many runs came before it
	Cancelled bool                `json:"cancelled,omitempty"`       // on request
}

// Modules are those that a run has announced in one line.
type Modules struct {
	Run  engi.RunID        `json:"run_id"`
	List []engi.CodeModule `json:"list"`
}

// An Emit appends an event about a page. A key that the owner has used before is a
// Conflict; the empty one is none.
type Emit func(kind string, data json.RawMessage, key string) (seq int64, err error)

// A Store keeps records of pages durably. A record is deleted when its session ends.
// It is safe for concurrent use.
type Store interface {
	// Get returns the record of a session, or NotFound.
	Get(ctx context.Context, session engi.SessionID) (Record, error)
	// Change calls f with the record of a session, a new one if there is none, and
	// stores what f makes of it together with the events that f emits. Nothing is
	// stored if f fails. It reports NotFound if the session has ended. f must not use
	// the store.
	Change(ctx context.Context, session engi.SessionID, f func(r *Record, emit Emit) error) (Record, error)
	// Busy returns the sessions whose records are [Record.Busy].
	Busy(ctx context.Context) ([]engi.SessionID, error)
	// Emitted returns the Seq of the event that was emitted with a key, or NotFound.
	Emitted(ctx context.Context, owner engi.Owner, key string) (int64, error)
}

// eventData is the data of events about pages. Which fields there are depends on the
// type, see docs/events.md.
type eventData struct {
	Run     engi.RunID `json:"run_id,omitempty"`
	Step    int        `json:"step,omitempty"`
	Attempt int        `json:"attempt,omitempty"` // at the step: how often its text had begun anew
	Line    int        `json:"line,omitempty"`    // of the step's text, from 1, of those that have events
	Hash    string     `json:"hash,omitempty"`    // of the line
	Undoes  int        `json:"undoes,omitempty"`  // the lines of the step from this one on

	Action  string           `json:"action,omitempty"`
	Data    json.RawMessage  `json:"data,omitempty"`
	Agent   string           `json:"agent,omitempty"`
	Model   string           `json:"model,omitempty"`
	Patches []engi.PagePatch `json:"patches,omitempty"`
	HTML    *string          `json:"html,omitempty"`
	At      int64            `json:"at,omitempty"`
	Stats   json.RawMessage  `json:"stats,omitempty"`
	Call    *callData        `json:"call,omitempty"`
	Result  *resultData      `json:"result,omitempty"`
	Text    string           `json:"text,omitempty"`
	Remedy  string           `json:"remedy,omitempty"`
	Source  string           `json:"source,omitempty"` // the beginning of the line that failed
	State   engi.RunState    `json:"state,omitempty"`
	Reason  string           `json:"reason,omitempty"`
}

type callData struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments,omitempty"`
}

type resultData struct {
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`
}

// encode returns d as JSON that is not longer than it must be: escaping HTML would
// make a page exceed what an event may hold.
func (d eventData) encode() (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode an event about a page: %v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func decodeEvent(e engi.Event) (d eventData, err error) {
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return d, engi.Errorf(engi.Internal, "event %s is damaged: %v", e.ID, err)
	}
	return d, nil
}
