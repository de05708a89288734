package page

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A Record is the stored state of a page, in addition to its events. It is a value.
type Record struct {
	Session engi.SessionID
	Owner   engi.Owner
	HTML    string // page after the event Seq
	Seq     int64
	First   int64     // sequence number of the first event about the page; 0 for none
	Waiting []Action  // actions that no run has seen, oldest first
	Batch   *Batch    // batch that is being answered; nil for none
	Modules []Modules // modules that are to be saved
	Updated time.Time
}

// Busy reports whether the page has work to do.
func (r Record) Busy() bool { return len(r.Waiting) > 0 || r.Batch != nil || len(r.Modules) > 0 }

// An Action is an action of a user on a page.
type Action struct {
	Seq    int64           `json:"seq"` // sequence number of its event
	Name   string          `json:"name"`
	Data   json.RawMessage `json:"data"`
	Agent  string          `json:"agent"`
	Model  string          `json:"model,omitempty"`
	Scopes []engi.Scope    `json:"scopes,omitempty"`
}

// A Batch holds the actions that one run answers. Further runs may correct the answer.
type Batch struct {
	Actions   []Action            `json:"actions"`
	Input     string              `json:"input,omitempty"`           // prompt of the run, until the run is recorded
	Talk      engi.ConversationID `json:"conversation_id,omitempty"` // conversation that the run continues, to correct its answer
	Run       engi.RunID          `json:"run_id,omitempty"`          // empty until the run is known to have started
	Retry     int                 `json:"retry,omitempty"`           // number of earlier runs of the batch
	Cancelled bool                `json:"cancelled,omitempty"`       // a user has cancelled the batch
}

// A Modules holds the modules that a run has announced in one line.
type Modules struct {
	Run  engi.RunID        `json:"run_id"`
	List []engi.CodeModule `json:"list"`
}

// An Emit appends an event about a page, with the key and the fingerprint of q. It reports
// Conflict for a key that was already used for the session; an empty key does not count.
type Emit func(kind string, data json.RawMessage, q idempotency.Request) (seq int64, err error)

// A Store keeps records of pages durably. A record is deleted when its session ends.
// It is safe for concurrent use.
type Store interface {
	// Get returns the record of a session, or NotFound.
	Get(ctx context.Context, session engi.SessionID) (Record, error)
	// Change calls f with the record of a session, or a new record if there is none, and
	// stores the changed record together with the events that f emits. Nothing is
	// stored if f fails. It reports NotFound if the session has ended. f must not use
	// the store.
	Change(ctx context.Context, session engi.SessionID, f func(r *Record, emit Emit) error) (Record, error)
	// Busy returns the sessions whose records are [Record.Busy].
	Busy(ctx context.Context) ([]engi.SessionID, error)
	// EventByIdempotencyKey returns the event that was emitted with a key for a session, or NotFound.
	EventByIdempotencyKey(ctx context.Context, owner engi.Owner, session engi.SessionID, key string) (idempotency.Event, error)
}

// eventData is the data of events about pages. The type determines which fields are
// set, see docs/events.md.
type eventData struct {
	Run     engi.RunID `json:"run_id,omitempty"`
	Step    int        `json:"step,omitempty"`
	Attempt int        `json:"attempt,omitempty"` // number of times that the text of the step had begun again before
	Line    int        `json:"line,omitempty"`    // line of the step's text, from 1, counting only lines with events
	Hash    string     `json:"hash,omitempty"`    // hash of the line
	Undoes  int        `json:"undoes,omitempty"`  // number of the first line of the step that the event undoes

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
	Source  string           `json:"source,omitempty"` // beginning of the line that failed
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

// encode returns d as compact JSON: escaping HTML would
// make a page exceed the maximum size of an event.
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
