package engi

import (
	"context"
	"encoding/json"
	"time"
)

// An EventSpec says that something has happened, or asks for something to be
// done. Seed S2.
type EventSpec struct {
	Owner       Owner
	Name        string          // like engi/sandbox/create: 1 to 128 letters, digits and /._-
	Data        json.RawMessage // an object of 256 KiB at most; nil means {}
	Idempotency string          // a repeated key of the same owner returns the first event and starts nothing
}

// An Event is one that was taken in. It is a value.
type Event struct {
	ID      EventID
	Owner   Owner
	Name    string
	Data    json.RawMessage
	Replay  EventID // that this one repeats; empty for none
	Runs    []FunctionRunID
	Created time.Time
}

// A Function is something durable that is done on an event or at set times:
// its steps are not repeated once they are done, whatever happens to the node.
type Function struct {
	Name        string
	Description string
	Event       string          // its name starts a run; empty for none
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

// A FunctionStep is a part of a run that is done once.
type FunctionStep struct {
	Name     string
	Attempts int
	Output   json.RawMessage // 64 KiB at most; longer ones are left out
	Error    *Error          // of the last attempt, if it failed
	Started  time.Time
	Ended    time.Time // zero while it goes on
}

// An EventFilter selects events and runs. Zero fields select all.
type EventFilter struct {
	Name     string // of events, or of the events of runs
	Function string // of runs only
	Event    EventID
	State    FunctionState // of runs only
	Limit    int           // 0 means 100; 1000 at most
}

// Events takes in events and runs the functions that are bound to them, in
// the name of the event's owner. Methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Events interface {
	// Functions returns what there is, by name.
	Functions() []Function
	// Send takes in an event; once it returns, its functions will run
	// whatever happens to the node. It reports Invalid for a bad spec and for
	// data that a bound function does not take. An event that nothing is
	// bound to is kept and does nothing.
	Send(ctx context.Context, spec EventSpec) (Event, error)
	// Replay sends the same event again, for all its functions or for one.
	Replay(ctx context.Context, owner Owner, id EventID, function string) (Event, error)
	// Event returns an event.
	Event(ctx context.Context, owner Owner, id EventID) (Event, error)
	// List returns events, the newest first.
	List(ctx context.Context, owner Owner, f EventFilter) ([]Event, error)
	// Runs returns runs without their steps, the newest first.
	Runs(ctx context.Context, owner Owner, f EventFilter) ([]FunctionRun, error)
	// Run returns a run with its steps.
	Run(ctx context.Context, owner Owner, id FunctionRunID) (FunctionRun, error)
	// Cancel ends a run after the step it is in. Ending twice is no error.
	Cancel(ctx context.Context, owner Owner, id FunctionRunID) error
}
