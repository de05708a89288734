// Package function runs durable functions: on events or on a schedule, in steps
// that are not repeated once they have completed. It records runs, queues them
// within the limits of their functions, retries failures and reports the
// outcome. It implements [engi.Functions].
//
// An [Engine] drives the execution and remembers the results of steps; see the
// packages below. The functions of engi itself are in package builtin.
package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Function is a durable function with its code. Run must be deterministic and
// quick between steps: it is called again from the top after a crash, for
// another attempt, and by some engines for every single step. Completed steps
// then return their remembered results. Everything with side effects belongs in
// a [Step].
//
// The result of Run is the run's output, as JSON. An error of kind Invalid,
// NotFound, Denied, Anonymous, Unsupported or Conflict, and one wrapped by
// [Final], fails the run; other errors are retried, not before the time of their retry
// hint.
type Function struct {
	engi.Function
	Owner   engi.Owner // owner of the runs that its schedule starts
	Backoff Backoff
	MaxOpen int // for functions of a [Source]: maximum number of unfinished runs; further events start none; 0 means no limit
	Run     func(ctx context.Context, r *Run) (any, error)
}

// A Source provides functions that come and go while a Runner runs, for example one for each
// webhook. Their runs are like those of other functions, but have
// slots of their own and use none of the others. It is safe for concurrent
// use.
type Source interface {
	// Function returns a function by name; false if it does not exist or no longer
	// exists, which fails its runs.
	Function(name string) (Function, bool)
	// Bound returns the functions that an event starts, on behalf of their
	// Owner. It gets every event of the log, in order, some of them again
	// after a restart, and must be quick.
	Bound(e engi.Event) []Function
	// Dropped is called for an event that does not start a function because the function
	// already has MaxOpen runs.
	Dropped(ctx context.Context, name string, e engi.Event)
}

// A Backoff determines the time between attempts of a run: First, then twice as
// long each time, up to Max. A random fifth is added or subtracted, so that runs
// that failed together are not retried together.
type Backoff struct {
	First time.Duration // 0 means 1 s
	Max   time.Duration // 0 means 5 min
}

// after returns the pause after an attempt, counted from 1.
func (b Backoff) after(attempt int, hint engi.Retry) time.Duration {
	if b.First <= 0 {
		b.First = time.Second
	}
	if b.Max <= 0 {
		b.Max = 5 * time.Minute
	}
	d := b.First
	for i := 1; i < attempt && d < b.Max; i++ {
		d *= 2
	}
	d = min(d, b.Max)
	d += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(d))
	return max(d, min(time.Duration(hint.AfterMillis)*time.Millisecond, time.Hour))
}

// Limits of runs.
const (
	maxStepName    = 128       // maximum bytes of a step's name
	maxSteps       = 1000      // maximum number of steps of a run
	maxStepResult  = 1 << 20   // maximum bytes of a step's result, as JSON
	maxShownOutput = 64 << 10  // maximum bytes of a step's output in its record
	maxOutput      = 256 << 10 // maximum bytes of a run's output
)

// A Run is a run in the form for its function. Its methods, and [Step], must be called
// from the goroutine in which the function was called.
type Run struct {
	ID       engi.FunctionRunID
	Owner    engi.Owner
	Function string
	Event    engi.Event // without ID and type, and with data {}, if a schedule started the run
	Attempt  int        // from 1
	Log      *slog.Logger

	runner    *Runner
	stepper   Stepper
	cancelled <-chan struct{}
	position  int64   // Seq of the log at which the run was started
	waited    *Waited // the run's last wait, if it is over
	started   time.Time
	active    *activeRun
	used      map[string]bool
	steps     map[string]engi.FunctionStep // recorded steps, by name
}

// Cancelled is closed when the run is cancelled. No further step begins then, and a
// long step should stop waiting and return.
func (r *Run) Cancelled() <-chan struct{} { return r.cancelled }

// Data decodes the event's data into v. It reports Invalid.
func (r *Run) Data(v any) error {
	if err := json.Unmarshal(r.Event.Data, v); err != nil {
		return engi.Errorf(engi.Invalid, "the data of the event: %v", err)
	}
	return nil
}

// Send sends an event on behalf of the run's owner, exactly once, in a step of
// the given name.
func (r *Run) Send(ctx context.Context, step, eventType string, data any) (engi.EventID, error) {
	return Step(ctx, r, step, func(ctx context.Context) (engi.EventID, error) {
		raw, err := json.Marshal(data)
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "encode the data of event %s: %v", eventType, err)
		}
		e, _, err := r.runner.Send(ctx, engi.EventSpec{Owner: r.Owner, Type: eventType, Data: raw, Idempotency: string(r.ID) + "/" + step})
		return e.ID, err
	})
}

// Step completes fn once per run: once fn has returned without an error, its
// result is remembered and returned from then on. If the node crashes before the
// result is on disk, fn is called again. If fn must not take effect twice, it needs an
// idempotency key, such as the run's ID and the step's name.
//
// Names are unique within a run; number them in loops. The result is converted
// to JSON of at most 1 MiB, also the first time. A panic of fn becomes an
// Internal error. A failed step is repeated in the run's next attempt.
func Step[T any](ctx context.Context, r *Run, name string, fn func(ctx context.Context) (T, error)) (T, error) {
	var result T
	raw, err := r.step(ctx, name, func(ctx context.Context) (json.RawMessage, error) {
		v, err := fn(ctx)
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(v)
		switch {
		case err != nil:
			return nil, engi.Errorf(engi.Invalid, "step %s: encode its result: %v", name, err)
		case len(raw) > maxStepResult:
			return nil, engi.Errorf(engi.Invalid, "step %s: its result has %d bytes, %d at most", name, len(raw), maxStepResult).WithRemedy("keep large data in a file or volume and return its location")
		}
		return raw, nil
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return result, engi.Errorf(engi.Invalid, "step %s: its remembered result has another type: %v", name, err)
	}
	return result, nil
}

// beginStep reports why no step of a name may begin; nil if it may.
func (r *Run) beginStep(ctx context.Context, name string) error {
	if err := checkStepName(name); err != nil {
		return err
	}
	switch {
	case r.used[name]:
		return engi.Errorf(engi.Invalid, "there are two steps named %q in a run of %s", name, r.Function).WithRemedy("number the steps of a loop")
	case len(r.used) >= maxSteps:
		return engi.Errorf(engi.Invalid, "a run of %s has more than %d steps", r.Function, maxSteps)
	}
	r.used[name] = true
	if err := ctx.Err(); err != nil {
		return engi.Errorf(engi.Expired, "step %s: %v", name, context.Cause(ctx))
	}
	select {
	case <-r.cancelled:
		return errCancelled
	default:
		return nil
	}
}

func (r *Run) step(ctx context.Context, name string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	if err := r.beginStep(ctx, name); err != nil {
		return nil, err
	}
	raw, err := r.stepper.Step(ctx, name, func(ctx context.Context) (raw json.RawMessage, err error) {
		s := r.steps[name]
		s.Name, s.Attempts, s.Started, s.Ended, s.Error = name, s.Attempts+1, time.Now().UTC(), time.Time{}, nil
		r.recordStep(ctx, s)
		defer func() {
			if p := recover(); p != nil {
				raw, err = nil, r.panicError("step "+name, p)
			}
			s.Ended, s.Output = time.Now().UTC(), nil
			if err != nil {
				s.Error = toError(err)
			} else if len(raw) <= maxShownOutput {
				s.Output = raw
			}
			r.recordStep(ctx, s)
		}()
		return fn(ctx)
	})
	if errors.Is(err, ErrYield) {
		panic(yield{})
	}
	return raw, err
}

// recordStep records a step for display only: if recording fails, the run continues.
func (r *Run) recordStep(ctx context.Context, s engi.FunctionStep) {
	r.steps[s.Name] = s
	if err := r.runner.opt.Store.Step(context.WithoutCancel(ctx), Record{FunctionRun: engi.FunctionRun{ID: r.ID, Owner: r.Owner, Function: r.Function}}, s); err != nil {
		r.Log.WarnContext(ctx, "record a step", "step", s.Name, "error", err)
	}
}

func (r *Run) panicError(where string, p any) error {
	r.Log.Error("a function panicked", "where", where, "panic", p, "stack", string(debug.Stack()))
	return engi.Errorf(engi.Internal, "%s panicked: %.200s", where, fmt.Sprint(p))
}

// yield is the panic that unwinds a function after [ErrYield].
type yield struct{}

// errCancelled is the error of steps after the run was cancelled.
var errCancelled = engi.Errorf(engi.Expired, "the run was cancelled")

// A final error is not retried.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final wraps err so that it fails the run, whatever its kind. Nil stays nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

// retriable reports whether the run is attempted again after err.
func retriable(err error) bool {
	if _, ok := errors.AsType[final](err); ok {
		return false
	}
	switch engi.KindOf(err) {
	case engi.Unavailable, engi.Exhausted, engi.Expired, engi.Internal:
		return true
	}
	return false
}

// toError converts err to the form in which it is stored and shown.
func toError(err error) *engi.Error {
	return &engi.Error{Kind: engi.KindOf(err), Text: clip.Text(err.Error(), 2000), Remedy: engi.RemedyOf(err), Retry: engi.RetryOf(err)}
}

func checkStepName(name string) error {
	unprintable := func(c rune) bool { return !unicode.IsPrint(c) }
	if name == "" || len(name) > maxStepName || !utf8.ValidString(name) || strings.ContainsFunc(name, unprintable) {
		return engi.Errorf(engi.Invalid, "%.140q is not a name for a step", name).WithRemedy("use 1 to %d printable characters", maxStepName)
	}
	return nil
}
