package engi

import (
	"context"
	"encoding/json"
	"time"
)

// A Function is a durable function: it runs on an event or on a schedule, in
// steps that are not repeated once they have completed, whatever happens to the
// node.
type Function struct {
	Name        string
	Description string
	Event       string          // an event of this type starts a run; empty for none
	Cron        string          // five fields, in UTC; empty for none
	Scopes      []Scope         // scopes that a key needs, with write access, to send the event; the runs themselves need no key
	Input       json.RawMessage // JSON schema of the event's data; nil accepts any
	Retries     int             // number of attempts after the first
	Concurrency int             // maximum number of concurrent runs; 0 means no limit
	PerOwner    int             // maximum number of concurrent runs of one owner; 0 means no limit
	Timeout     time.Duration   // maximum time of a run, from its first attempt; 0 means no limit
}

// A FunctionRun is one run of a function. It is a value.
type FunctionRun struct {
	ID       FunctionRunID
	Owner    Owner
	Function string
	Event    EventID // empty if a schedule started it
	State    FunctionState
	Attempt  int // from 1; 0 before the first
	Output   json.RawMessage
	Error    *Error        // error of a failed run, or of the last attempt of a waiting run
	Wait     *FunctionWait // what a waiting run waits for; nil if it waits for another attempt
	Steps    []FunctionStep
	Created  time.Time
	Started  time.Time // zero before the first attempt
	Ended    time.Time // zero until the run has ended
}

// A FunctionState is a point in the life of a function's run.
type FunctionState string

const (
	FunctionQueued    FunctionState = "queued"  // the run waits for a slot
	FunctionRunning   FunctionState = "running" // an attempt is running
	FunctionWaiting   FunctionState = "waiting" // the next attempt is scheduled, or the run waits for an event or a time
	FunctionDone      FunctionState = "done"
	FunctionFailed    FunctionState = "failed" // Error says why
	FunctionCancelled FunctionState = "cancelled"
)

// FunctionStates returns every state, in the order of a run's life.
func FunctionStates() []FunctionState {
	return []FunctionState{FunctionQueued, FunctionRunning, FunctionWaiting, FunctionDone, FunctionFailed, FunctionCancelled}
}

// A FunctionWait says what a run waits for: for an event, until a time if Until is set, or only for
// that time if Types and Subject are empty. A run that waits has no slot.
type FunctionWait struct {
	Step    string
	Types   []string  // types of the event, as in [EventFilter]; empty means all
	Subject string    // ID of the object that the event is about; empty means any
	After   int64     // only events with a greater Seq
	Until   time.Time // zero means no limit
}

// A FunctionStep is a part of a run that completes once.
type FunctionStep struct {
	Name     string
	Attempts int
	Output   json.RawMessage // at most 64 KiB; a longer output is not stored
	Error    *Error          // error of the last attempt, if it failed
	Started  time.Time
	Ended    time.Time // zero while the step is running
}

// A FunctionFilter selects runs. Zero fields select all.
type FunctionFilter struct {
	Type     string // type of the event that started the run
	Function string
	Event    EventID
	State    FunctionState
	Limit    int // 0 means 100; 1000 at most
}

// Functions runs durable functions on the events they are bound to, on behalf of the event's owner.
// Methods find only objects that viewer sees and report NotFound for all others. It is safe for
// concurrent use.
type Functions interface {
	// Functions returns the functions, ordered by name.
	Functions() []Function
	// Send appends an event and returns it with the runs that it starts. Once
	// Send returns, the runs are certain to run, even if the node crashes. It reports
	// Invalid for a bad spec, for a type that engi appends itself, and for data
	// that a bound function does not accept. An event without bound functions
	// starts nothing.
	Send(ctx context.Context, spec EventSpec) (Event, []FunctionRunID, error)
	// Replay sends the same event again, to all its functions or to one.
	Replay(ctx context.Context, viewer Viewer, id EventID, function string) (Event, []FunctionRunID, error)
	// Runs returns runs without their steps, newest first.
	Runs(ctx context.Context, viewer Viewer, f FunctionFilter) ([]FunctionRun, error)
	// Run returns a run with its steps.
	Run(ctx context.Context, viewer Viewer, id FunctionRunID) (FunctionRun, error)
	// Wait returns a run once it has ended. It reports Expired if ctx ends
	// first.
	Wait(ctx context.Context, viewer Viewer, id FunctionRunID) (FunctionRun, error)
	// Cancel ends a run after its current step. It does nothing to a run that
	// has ended.
	Cancel(ctx context.Context, viewer Viewer, id FunctionRunID) error
}
