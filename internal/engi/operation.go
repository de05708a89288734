package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// An Operation is work that lasts longer than a request. It goes on when its
// caller leaves, and after a restart of the node. It is a value.
type Operation struct {
	ID      OperationID
	Owner   Owner
	Type    string // what is done, such as [OperationBuildTemplate]
	Subject string // ID or name of what it is done to
	State   OperationState
	Input   json.RawMessage // what was asked for; may be large, and is left out of lists
	Error   *Error          // why it failed
	Attempt int             // from 1, and one more for each restart of the node in the middle
	Created time.Time
	Ended   time.Time // zero while it goes on
}

// Types of operations.
const (
	OperationBuildTemplate = "template.build"
)

// A BuildTemplateInput is the input of [OperationBuildTemplate], whose subject
// is the name of the template.
type BuildTemplateInput struct {
	Definition string `json:"definition,omitempty"` // empty means a built-in one
}

// An OperationState is a point in the life of an operation.
type OperationState string

const (
	OperationRunning   OperationState = "running"
	OperationDone      OperationState = "done"
	OperationFailed    OperationState = "failed" // Error says why
	OperationCancelled OperationState = "cancelled"
)

// An OperationSpec asks for an operation.
type OperationSpec struct {
	ID      OperationID // empty means a fresh one
	Owner   Owner
	Type    string
	Subject string
	Input   json.RawMessage
}

// An OperationFilter selects operations. Zero fields select all.
type OperationFilter struct {
	Type  string
	State OperationState
	Limit int // 0 means 100; 1000 at most
}

// An OperationUpdate is a step of an operation, or, with Operation, its end.
type OperationUpdate struct {
	Offset    int64 // come back with this, and nothing is lost or repeated
	Progress  Progress
	Operation *Operation // as it ended; the last event
}

// Progress says how far something is that takes long.
type Progress struct {
	Step  int    // 1-based
	Steps int    // total; 0 if unknown
	Name  string // what the step does, for people
	Log   string // a line of its output; empty for a step's start
	Done  int64  // bytes or items of the step done
	Total int64  // 0 if unknown

	Warning bool // Log is about something that has no effect
}

// Operations carries out long work. All methods see only what owner owns; the
// rest is NotFound. The empty owner sees all. It is safe for concurrent use.
type Operations interface {
	// Start begins an operation and returns at once; it is recorded then, and
	// goes on whatever happens to the node. It reports Unsupported for a type
	// that the node does not know, and Exhausted when too many go on.
	Start(ctx context.Context, spec OperationSpec) (Operation, error)
	// Get returns an operation.
	Get(ctx context.Context, owner Owner, id OperationID) (Operation, error)
	// List returns operations without their input, the newest first.
	List(ctx context.Context, owner Owner, f OperationFilter) ([]Operation, error)
	// Wait returns an operation once it has ended. It reports Expired when ctx
	// ends first, and Unavailable when the node stops.
	Wait(ctx context.Context, owner Owner, id OperationID) (Operation, error)
	// Watch yields the events after an offset, and as the last the end. It
	// reports what Wait does.
	Watch(ctx context.Context, owner Owner, id OperationID, after int64) iter.Seq2[OperationUpdate, error]
	// Cancel ends an operation and waits for that. One that has ended stays as
	// it is.
	Cancel(ctx context.Context, owner Owner, id OperationID) error
}
