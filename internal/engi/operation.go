package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// An Operation is work that lasts longer than a request. It continues when its
// caller disconnects, and after a restart of the node. It is a value.
type Operation struct {
	ID      OperationID
	Owner   Owner
	Type    string // kind of work, such as [OperationBuildTemplate]
	Subject string // ID or name of the object that the operation is about
	State   OperationState
	Input   json.RawMessage // parameters; may be large, and are left out of lists
	Error   *Error          // error of state failed
	Attempt int             // number of the attempt: 1, plus one for each restart of the node meanwhile
	Created time.Time
	Ended   time.Time // zero while the operation is running
}

// Types of operations.
const (
	OperationBuildTemplate = "template.build"
)

// A BuildTemplateInput is the input of [OperationBuildTemplate], whose subject
// is the name of the template.
type BuildTemplateInput struct {
	Definition string `json:"definition,omitempty"` // definition in YAML; empty means the built-in template
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

// An OperationUpdate is one item in the stream of an operation; with Operation set, its end.
type OperationUpdate struct {
	Offset    int64 // offset with which to resume without losing or repeating updates
	Progress  Progress
	Operation *Operation // the operation after its end; for the last update only
}

// Progress describes the progress of long work.
type Progress struct {
	Step  int    // number of the step, from 1
	Steps int    // number of steps; 0 if unknown
	Name  string // name of the step, for people
	Log   string // line of the step's output; empty for the start of a step
	Done  int64  // bytes or items of the step that are done
	Total int64  // bytes or items of the step in all; 0 if unknown

	Warning bool // Log is a warning about a setting that has no effect
}

// Operations carries out long work. Methods find only objects that viewer sees and report NotFound
// for all others. It is safe for concurrent use.
type Operations interface {
	// Start starts an operation and returns once it is recorded; the operation then
	// continues even if the node crashes. It reports Unsupported for a type
	// that the node does not know, and Exhausted when too many operations are running.
	Start(ctx context.Context, spec OperationSpec) (Operation, error)
	// Get returns an operation.
	Get(ctx context.Context, viewer Viewer, id OperationID) (Operation, error)
	// List returns operations without their input, newest first.
	List(ctx context.Context, viewer Viewer, f OperationFilter) ([]Operation, error)
	// Wait returns an operation once it has ended. It reports Expired when ctx
	// ends first, and Unavailable when the node stops.
	Wait(ctx context.Context, viewer Viewer, id OperationID) (Operation, error)
	// Watch yields the updates after an offset, and the end as the last one. It
	// reports the same errors as Wait.
	Watch(ctx context.Context, viewer Viewer, id OperationID, after int64) iter.Seq2[OperationUpdate, error]
	// Cancel ends an operation and returns once it has ended. It does nothing to an operation
	// that has ended.
	Cancel(ctx context.Context, viewer Viewer, id OperationID) error
}
