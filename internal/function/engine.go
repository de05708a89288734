package function

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// An Engine executes runs to their end, even if this process crashes, and
// remembers the results of their steps. It knows nothing of functions, queues,
// attempts and states: it calls an [Executor] until the outcome says that a run has
// ended. Package functiontest tests all engines. It is safe for concurrent use.
type Engine interface {
	// Start records a run: once it returns nil, Execute is called for the run
	// until it has ended. Starting a known run does nothing, so that Start can
	// be repeated after a crash. It is called only between ready and the end of
	// Run.
	Start(ctx context.Context, id engi.FunctionRunID, function string) error
	// Wake asks for the next Execute of a run, because the wait of a parked run is over or
	// the run was cancelled. It may be lost, also if it returns nil, and is repeated until
	// Execute is called. It does nothing for a run that is not waiting for Execute.
	Wake(ctx context.Context, id engi.FunctionRunID) error
	// Run executes runs until ctx ends, including those that an earlier process
	// has started and not ended. After it returns, no Execute is active.
	Run(ctx context.Context, x Executor, ready func()) error
}

// An Executor executes runs for an [Engine]. It is safe for concurrent use, but
// there is only one Execute per run at a time.
type Executor interface {
	// Execute continues a run as far as possible. All steps of the run use s.
	// It is called again according to the outcome, and immediately after a crash.
	// When ctx ends, it returns as soon as the current step does.
	Execute(ctx context.Context, id engi.FunctionRunID, s Stepper) Outcome
}

// A Stepper remembers the results of one run's steps.
type Stepper interface {
	// Step returns the remembered result of a step. If there is none, it calls
	// fn and remembers its result durably before it returns it. Errors of fn
	// are returned unchanged and not remembered; errors of the engine itself
	// are Unavailable.
	//
	// An engine that executes one step per call returns [ErrYield] after it; the
	// function is then unwound, and Execute returns [Yielded].
	Step(ctx context.Context, name string, fn func(ctx context.Context) (json.RawMessage, error)) (json.RawMessage, error)
}

// ErrYield unwinds a function, which is called again later; see [Stepper].
var ErrYield = engi.Errorf(engi.Internal, "the engine continues later")

// An Outcome says how a run continues after Execute.
type Outcome struct {
	Next  Next
	After time.Duration // earliest time of the next call; for Again
	// Output and Error are set for a run that has ended, for engines that show them.
	// Both are nil if it was cancelled or no longer exists.
	Output json.RawMessage
	Error  *engi.Error // reason; for Again
}

// Next is the action of an engine after Execute.
type Next string

const (
	Ended   Next = "ended"   // delete the run and its steps
	Again   Next = "again"   // call Execute after Outcome.After
	Parked  Next = "parked"  // call Execute after Wake; calling it earlier is useless but harmless
	Yielded Next = "yielded" // the engine has returned ErrYield
	Stopped Next = "stopped" // ctx ended: call Execute in the next process
)
