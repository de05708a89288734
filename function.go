package engi

import (
	"context"
	"encoding/json"
	"time"
)

// A Function is something durable that is done on an event or at set times:
// its steps are not repeated once they are done, whatever happens to the node.
type Function struct {
	Name        string
	Description string
	Event       string          // an event of this type starts a run; empty for none
	Cron        string          // five fields, in UTC; empty for none
	Input       json.RawMessage // JSON schema of the event's data; nil for any
	Retries     int             // after the first attempt
	Concurrency int             // runs at once; 0 means no limit
	PerOwner    int             // runs of one owner at once; 0 means no limit
	Timeout     time.Duration   // of a run, waiting for its turn excluded; 0 means none
}

// A FunctionRun is one run of a function. It is a value.
type FunctionRun struct {
	ID       FunctionRunID
	Owner    Owner
	Function string
	Event    EventID // empty of one that a clock started
	State    FunctionState
	Attempt  int // from 1; 0 before the first
	Output   json.RawMessage
	Error    *Error // of a failed run, or of the last attempt of one that waits
	Steps    []FunctionStep
	Created  time.Time
	Started  time.Time // zero before the first attempt
	Ended    time.Time // zero while it goes on
}

// A FunctionState is a point in the life of a function's run.
type FunctionState string

const (
	FunctionQueued    FunctionState = "queued"  // waits for its turn
	FunctionRunning   FunctionState = "running" // an attempt goes on
	FunctionWaiting   FunctionState = "waiting" // for its next attempt
	FunctionDone      FunctionState = "done"
	FunctionFailed    FunctionState = "failed" // Error says why
	FunctionCancelled FunctionState = "cancelled"
)

// FunctionStates returns every state in the order of a life.
func FunctionStates() []FunctionState {
	return []FunctionState{FunctionQueued, FunctionRunning, FunctionWaiting, FunctionDone, FunctionFailed, FunctionCancelled}
}

// A FunctionStep is a part of a run that is done once.
type FunctionStep struct {
	Name     string
	Attempts int
	Output   json.RawMessage // 64 KiB at most; longer ones are left out
	Error    *Error          // of the last attempt, if it failed
	Started  time.Time
	Ended    time.Time // zero while it goes on
}

// A FunctionFilter selects runs. Zero fields select all.
type FunctionFilter struct {
	Type     string // of the event that started them
	Function string
	Event    EventID
	State    FunctionState
	Limit    int // 0 means 100; 1000 at most
}

// Functions runs durable functions on the events they are bound to, in the
// name of the event's owner. Methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Functions interface {
	// Functions returns what there is, by name.
	Functions() []Function
	// Send appends an event and returns it with the runs that it starts; once it
	// returns, they will run whatever happens to the node. It reports Invalid
	// for a bad spec, for a type that engi appends itself, and for data that a
	// bound function does not take. An event that nothing is bound to does
	// nothing.
	Send(ctx context.Context, spec EventSpec) (Event, []FunctionRunID, error)
	// Replay sends the same event again, for all its functions or for one.
	Replay(ctx context.Context, owner Owner, id EventID, function string) (Event, []FunctionRunID, error)
	// Runs returns runs without their steps, the newest first.
	Runs(ctx context.Context, owner Owner, f FunctionFilter) ([]FunctionRun, error)
	// Run returns a run with its steps.
	Run(ctx context.Context, owner Owner, id FunctionRunID) (FunctionRun, error)
	// Wait returns a run once it has ended. It reports Expired when ctx ends
	// first.
	Wait(ctx context.Context, owner Owner, id FunctionRunID) (FunctionRun, error)
	// Cancel ends a run after the step it is in. Ending twice is no error.
	Cancel(ctx context.Context, owner Owner, id FunctionRunID) error
}
