package workflow

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// A Record is a run as it is kept.
type Record struct {
	engi.FunctionRun
	Type            string    // of its event; empty of one that a clock started
	Key             string    // unique, of the tick or the event that started it; empty of one that was sent for
	NextAttempt     time.Time // of a waiting run: of its next attempt
	CancelRequested bool      // somebody wants a running run to end
}

// Over reports whether the run has ended.
func (r Record) HasEnded() bool { return !r.Ended.IsZero() }

// A Filter selects runs. Zero fields select all.
type Filter struct {
	engi.FunctionFilter
	Open      bool // only those that have not ended, the oldest first
	Scheduled bool // only those that a clock started
}

// A Store keeps runs, and appends an event to the log for each change of their
// state and each step that ends. It is safe for concurrent use; what a method
// has kept survives a crash. Methods with an owner see only what is that
// owner's; the empty one sees all.
type Store interface {
	EventStore
	RunStore
}

// An EventStore starts runs on events.
type EventStore interface {
	// Send appends an event and keeps the runs that it starts: all or nothing.
	// It reports Conflict if the owner has an event of the same idempotency key.
	Send(ctx context.Context, spec engi.EventSpec, runs []Record) (engi.Event, error)
	// Repeated returns the event of an idempotency key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (engi.Event, error)
	// Cursor returns how far the log has been read for runs; -1 if nobody has.
	Cursor(ctx context.Context) (int64, error)
	// Advance moves the cursor and keeps the runs that the event there starts,
	// those whose key is known excepted. It returns those that are new.
	Advance(ctx context.Context, seq int64, runs []Record) ([]Record, error)
}

// A RunStore keeps runs.
type RunStore interface {
	// Put keeps a run that a clock started. It reports Conflict if there is a
	// run of the same key.
	Put(ctx context.Context, r Record) error
	// Runs returns runs without steps, the newest first. A limit of 0 means all.
	Runs(ctx context.Context, owner engi.Owner, f Filter) ([]Record, error)
	// Run returns a run with its steps, or NotFound.
	Run(ctx context.Context, owner engi.Owner, id engi.FunctionRunID) (Record, error)
	// Update changes a run, unless change returns an error; nobody else changes
	// it meanwhile. It returns the run without its steps as it is then.
	Update(ctx context.Context, owner engi.Owner, id engi.FunctionRunID, change func(*Record) error) (Record, error)
	// Step keeps how a step of r is, instead of what was kept of that name.
	Step(ctx context.Context, r Record, s engi.FunctionStep) error
	// Forget removes runs that ended before a time, and the oldest that ended
	// beyond count, with their steps.
	Forget(ctx context.Context, before time.Time, count int) error
}
