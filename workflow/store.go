package workflow

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// A Record is a run as it is kept.
type Record struct {
	engi.FunctionRun
	Name   string    // of its event; empty of one that a clock started
	Key    string    // of the tick that started it; empty of one of an event
	Next   time.Time // of a waiting run: of its next attempt
	Cancel bool      // somebody wants a running run to end
}

// Over reports whether the run has ended.
func (r Record) Over() bool { return !r.Ended.IsZero() }

// A Filter selects runs. Zero fields select all.
type Filter struct {
	engi.EventFilter
	Open   bool // only those that have not ended, the oldest first
	Ticked bool // only those that a clock started
}

// A Store keeps events and runs. It is safe for concurrent use; what it has
// said is kept survives a crash. Methods with an owner see only what is that
// owner's; the empty one sees all.
type Store interface {
	// Put keeps an event, if it has an ID, with the runs that it starts: all or
	// nothing. It reports Conflict if the owner has an event of the same
	// idempotency key, or there is a run of the same key.
	Put(ctx context.Context, e engi.Event, idempotency string, runs []Record) error
	// Repeated returns the event of an idempotency key, or NotFound.
	Repeated(ctx context.Context, owner engi.Owner, key string) (engi.Event, error)
	// Events returns events with the IDs of their runs, the newest first.
	Events(ctx context.Context, owner engi.Owner, f engi.EventFilter) ([]engi.Event, error)
	// Runs returns runs without steps, the newest first. A limit of 0 means all.
	Runs(ctx context.Context, owner engi.Owner, f Filter) ([]Record, error)
	// Run returns a run with its steps, or NotFound.
	Run(ctx context.Context, owner engi.Owner, id engi.FunctionRunID) (Record, error)
	// Update changes a run, unless change returns an error; nobody else changes
	// it meanwhile. It returns the run without its steps as it is then.
	Update(ctx context.Context, owner engi.Owner, id engi.FunctionRunID, change func(*Record) error) (Record, error)
	// Step keeps how a step is, instead of what was kept of that name.
	Step(ctx context.Context, id engi.FunctionRunID, s engi.FunctionStep) error
	// Forget removes runs that ended before a time, and the oldest that ended
	// beyond count, with their steps; and events from before that time, or
	// beyond count, that have no runs left.
	Forget(ctx context.Context, before time.Time, count int) error
}
