package function

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A Record is a stored run.
type Record struct {
	engi.FunctionRun
	Type            string    // type of its event; empty if a schedule started it
	Key             string    // unique: function and scheduled time, or the event of engi itself that started it; empty for other runs
	NextAttempt     time.Time // time of the next attempt of a waiting run
	CancelRequested bool      // a running run must end after its current step
	Position        int64     // Seq of the log's last event when a schedule started the run
	Waited          *Waited   // the last wait that is over; nil while the run waits
}

// A Waited is a wait that is over. It keeps the result for the run's step, because an event may
// leave the log before the run gets a slot.
type Waited struct {
	Step   string
	Until  time.Time       // end of the wait; zero means no limit
	Result json.RawMessage // result of the step; nil means that the run must look again
}

// HasEnded reports whether the run has ended.
func (r Record) HasEnded() bool { return !r.Ended.IsZero() }

// A Filter selects runs. Zero fields select all.
type Filter struct {
	engi.FunctionFilter
	Open      bool // only unfinished runs, oldest first
	Scheduled bool // only runs started by a schedule
}

// A Store stores runs durably, and appends an event to the log for each change of their state and
// each step that ends. Look-ups find only the runs that viewer sees. It is safe for concurrent use.
type Store interface {
	EventStore
	RunStore
}

// An EventStore starts runs on events.
type EventStore interface {
	// Send appends an event and stores the runs that it starts, in one
	// transaction. It reports Conflict if the owner has an event with the same
	// idempotency key.
	Send(ctx context.Context, spec engi.EventSpec, runs []Record) (engi.Event, error)
	// ByIdempotencyKey returns the event with an idempotency key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (idempotency.Event, error)
	// Cursor returns the sequence number of the log up to which runs have been started,
	// or with waits up to which they have been woken; -1 if it was never stored.
	Cursor(ctx context.Context, waits bool) (int64, error)
	// Woken stores the sequence number of the log up to which runs have been woken.
	Woken(ctx context.Context, seq int64) error
	// Lost reports whether the log has dropped events of owner after a sequence number.
	Lost(ctx context.Context, owner engi.Owner, after int64) (bool, error)
	// Advance moves the cursor and stores the runs that the event there starts,
	// except those whose key exists, in one transaction. It returns the stored
	// runs.
	Advance(ctx context.Context, seq int64, runs []Record) ([]Record, error)
}

// A RunStore stores runs.
type RunStore interface {
	// Put stores a run that a schedule started. It reports Conflict if there is
	// a run with the same key.
	Put(ctx context.Context, r Record) error
	// Runs returns runs without steps, newest first unless f is Open. A limit
	// of 0 means all.
	Runs(ctx context.Context, viewer engi.Viewer, f Filter) ([]Record, error)
	// Run returns a run with its steps, or NotFound.
	Run(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID) (Record, error)
	// Update changes a run atomically, unless change returns an error. It
	// returns the changed run without its steps.
	Update(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID, change func(*Record) error) (Record, error)
	// Step stores a step of r, and replaces an earlier one with the same name.
	Step(ctx context.Context, r Record, s engi.FunctionStep) error
	// Forget deletes runs, with their steps, that ended before a time, and the oldest ended
	// runs if there are more than count.
	Forget(ctx context.Context, before time.Time, count int) error
}
