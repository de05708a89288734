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
	Scopes      []Scope         // that a key needs, with write access, to send the event: what runs do with it needs no key
	Input       json.RawMessage // JSON schema of the event's data; nil accepts any
	Retries     int             // after the first attempt
	Concurrency int             // runs at once; 0 means no limit
	PerOwner    int             // runs of one owner at once; 0 means no limit
	Timeout     time.Duration   // of a run, from its first attempt; 0 means none
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
	Error    *Error // of a failed run, or of the last attempt of a waiting one
	Steps    []FunctionStep
	Created  time.Time
	Started  time.Time // zero before the first attempt
	Ended    time.Time // zero until it has ended
}

// A FunctionState is a point in the life of a function's run.
type FunctionState string

const (
	FunctionQueued    FunctionState = "queued"  // waits for a slot
	FunctionRunning   FunctionState = "running" // an attempt is being made
	FunctionWaiting   FunctionState = "waiting" // for its next attempt
	FunctionDone      FunctionState = "done"
	FunctionFailed    FunctionState = "failed" // Error says why
	FunctionCancelled FunctionState = "cancelled"
)

// FunctionStates returns every state in the order of a life.
func FunctionStates() []FunctionState {
	return []FunctionState{FunctionQueued, FunctionRunning, FunctionWaiting, FunctionDone, FunctionFailed, FunctionCancelled}
}

// A FunctionStep is a part of a run that completes once.
type FunctionStep struct {
	Name     string
	Attempts int
	Output   json.RawMessage // 64 KiB at most; longer ones are left out
	Error    *Error          // of the last attempt, if it failed
	Started  time.Time
	Ended    time.Time // zero while it is running
}

// A FunctionFilter selects runs. Zero fields select all.
type FunctionFilter struct {
	Type     string // of the event that started the run
	Function string
	Event    EventID
	State    FunctionState
	Limit    int // 0 means 100; 1000 at most
}

// Functions runs durable functions on the events they are bound to, on behalf
// of the event's owner. Methods see only what owner owns; the rest is NotFound.
// The empty owner sees all. It is safe for concurrent use.
type Functions interface {
	// Functions returns the functions, sorted by name.
	Functions() []Function
	// Send appends an event and returns it with the runs that it starts. Once
	// it returns, they will run whatever happens to the node. It reports
	// Invalid for a bad spec, for a type that engi appends itself, and for data
	// that a bound function does not accept. An event without bound functions
	// starts nothing.
	Send(ctx context.Context, spec EventSpec) (Event, []FunctionRunID, error)
	// Replay sends the same event again, to all its functions or to one.
	Replay(ctx context.Context, owner Owner, id EventID, function string) (Event, []FunctionRunID, error)
	// Runs returns runs without their steps, newest first.
	Runs(ctx context.Context, owner Owner, f FunctionFilter) ([]FunctionRun, error)
	// Run returns a run with its steps.
	Run(ctx context.Context, owner Owner, id FunctionRunID) (FunctionRun, error)
	// Wait returns a run once it has ended. It reports Expired if ctx ends
	// first.
	Wait(ctx context.Context, owner Owner, id FunctionRunID) (FunctionRun, error)
	// Cancel ends a run after its current step. It does nothing to a run that
	// has ended.
	Cancel(ctx context.Context, owner Owner, id FunctionRunID) error
}
