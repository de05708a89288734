package workflow

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi"
)

// An Engine sees to it that runs are executed to their end, whatever happens
// to this process, and remembers the results of their steps. It knows nothing
// of functions, turns, attempts and states: it calls an [Executor] until that
// says that a run has ended. Package workflowtest holds every engine to this.
//
// It is safe for concurrent use.
type Engine interface {
	// Start takes on a run: once it returns nil, Execute is called for it until
	// it has ended. A run that is known is left as it is, so that Start may be
	// repeated after a crash. Start is called between ready and the end of Run
	// only.
	Start(ctx context.Context, id engi.FunctionRunID, function string) error
	// Wake says that a run which waits for its next Execute has been cancelled.
	// It is a hint: the run counts as ended already.
	Wake(id engi.FunctionRunID)
	// Run executes until ctx ends, beginning with the runs that were taken on
	// before and have not ended. When it returns, no Execute goes on.
	Run(ctx context.Context, x Executor, ready func()) error
}

// An Executor carries out runs for an [Engine]. It is safe for concurrent use,
// but Execute is called for one run at a time.
type Executor interface {
	// Functions returns what there is, by name, for engines that must tell
	// somebody. Turns, attempts and clocks are not theirs to look after.
	Functions() []engi.Function
	// Execute goes on with a run, all of whose steps go through s, as far as it
	// can. It is called again as the outcome says, and after a crash at once.
	// When ctx ends, it returns as soon as the step under way does.
	Execute(ctx context.Context, id engi.FunctionRunID, s Stepper) Outcome
}

// A Stepper is an engine's memory of the steps of one run.
type Stepper interface {
	// Step returns the remembered result of a step, or else calls fn and, if
	// that gives no error, remembers what it returns before Step returns. An
	// error of fn is returned as it is and not remembered. What the engine
	// itself cannot do is Unavailable.
	//
	// An engine that does not go on after a step returns an [ErrYield]; the
	// function is left then, and Execute says [Yielded].
	Step(ctx context.Context, name string, fn func(ctx context.Context) (json.RawMessage, error)) (json.RawMessage, error)
}

// ErrYield leaves a function, to be called again: see [Stepper].
var ErrYield = engi.Errorf(engi.Internal, "the engine goes on later")

// An Outcome says how a run goes on after Execute.
type Outcome struct {
	Next  Next
	After time.Duration // of Again: not before; the run keeps its results of steps
	// Output and Error are those of a run that has ended, for engines that show
	// them. Both nil means that it was cancelled, or is not known any more.
	Output json.RawMessage
	Error  *engi.Error // of Again: why
}

// Next is what an engine does after Execute.
type Next string

const (
	Ended   Next = "ended"   // forget the run and its steps
	Again   Next = "again"   // call Execute after Outcome.After
	Yielded Next = "yielded" // the engine has left the function by ErrYield
	Stopped Next = "stopped" // ctx ended: call Execute in the next life
)
