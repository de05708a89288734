// Package workflow runs durable functions: what is done on an event or at set
// times, in steps that are not repeated once they are done. It records the runs
// that events start, gives them their turn, retries those that fail, and knows
// what became of them. It implements [engi.Functions].
//
// It is not for executing: an [Engine] calls it back and remembers the results
// of steps; see the packages below. What functions do is theirs; those that
// come with engi are in package builtin.
package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

// A Function is one that is carried out here. Between steps Run must be
// deterministic and quick: engines call it again from the top, after a crash,
// for another attempt, or for every single step, and the steps that are done
// are then not done again. All that touches the world belongs into a [Step].
//
// What Run returns is the run's output, as JSON. An error of the kinds
// Invalid, NotFound, Denied, Anonymous, Unsupported and Conflict, and one in
// [Final], ends the run; others are retried, after the time of their hint if
// they have one.
type Function struct {
	engi.Function
	Owner   engi.Owner // in whose name a clock starts it
	Backoff Backoff
	Run     func(ctx context.Context, r *Run) (any, error)
}

// A Backoff says how long a run waits for its next attempt: First, then twice
// as long each time, up to Max, and in each case up to a fifth longer or
// shorter, so that those that failed together do not come back together.
type Backoff struct {
	First time.Duration // 0 means 1 s
	Max   time.Duration // 0 means 5 min
}

// after is the wait after an attempt, counted from 1.
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

// Bounds of what functions give back.
const (
	maxStepName    = 128     // bytes
	maxSteps       = 1000    // of a run
	maxStepResult  = 1 << 20 // bytes of JSON that are remembered
	maxShownOutput = 64 << 10
	maxOutput      = 256 << 10
)

// A Run is a run as its function sees it. Its methods, and [Step], are called
// by the goroutine that Run of the function was called in.
type Run struct {
	ID       engi.FunctionRunID
	Owner    engi.Owner
	Function string
	Event    engi.Event // without ID and type, and with the data {}, of a run that a clock started
	Attempt  int        // from 1
	Log      *slog.Logger

	runner    *Runner
	stepper   Stepper
	cancelled <-chan struct{}
	used      map[string]bool
	steps     map[string]engi.FunctionStep // as recorded
}

// Cancelled is closed when somebody asks for the run to end. No further step
// begins then; one that takes long ends what it waits for, and returns.
func (r *Run) Cancelled() <-chan struct{} { return r.cancelled }

// Data reads the event's data into v. It reports Invalid.
func (r *Run) Data(v any) error {
	if err := json.Unmarshal(r.Event.Data, v); err != nil {
		return engi.Errorf(engi.Invalid, "the data of the event: %v", err)
	}
	return nil
}

// Send sends an event in the name of the run's owner, in a step of the given
// name: once, whatever happens.
func (r *Run) Send(ctx context.Context, step, eventType string, data any) (engi.EventID, error) {
	return Step(ctx, r, step, func(ctx context.Context) (engi.EventID, error) {
		raw, err := json.Marshal(data)
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "the data of event %s cannot be encoded: %v", eventType, err)
		}
		e, _, err := r.runner.Send(ctx, engi.EventSpec{Owner: r.Owner, Type: eventType, Data: raw, Idempotency: string(r.ID) + "/" + step})
		return e.ID, err
	})
}

// Step does fn once in the life of a run: once it has returned without an
// error, its result is remembered and returned ever after. If the node dies
// while fn goes on, or before its result is on disk, fn is called again; what
// must not happen twice needs a key of its own, like the run's ID and the name.
//
// Names are unique in a run; loops number them. The result goes through JSON
// the first time too, and may have 1 MiB of it. A panic of fn is an Internal
// error. A step that failed is done again in the run's next attempt.
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
			return nil, engi.Errorf(engi.Invalid, "step %s: its result cannot be written down: %v", name, err)
		case len(raw) > maxStepResult:
			return nil, engi.Errorf(engi.Invalid, "step %s: its result has %d bytes, %d at most", name, len(raw), maxStepResult).WithRemedy("keep long things in a file or a volume and return where they are")
		}
		return raw, nil
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return result, engi.Errorf(engi.Invalid, "step %s: its remembered result is of another type: %v", name, err)
	}
	return result, nil
}

func (r *Run) step(ctx context.Context, name string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	if err := checkName("step", name, maxStepName); err != nil {
		return nil, err
	}
	switch {
	case r.used[name]:
		return nil, engi.Errorf(engi.Invalid, "there are two steps called %q in a run of %s", name, r.Function).WithRemedy("number the steps of a loop")
	case len(r.used) >= maxSteps:
		return nil, engi.Errorf(engi.Invalid, "a run of %s has more than %d steps", r.Function, maxSteps)
	}
	r.used[name] = true
	if err := ctx.Err(); err != nil {
		return nil, engi.Errorf(engi.Expired, "step %s: %v", name, context.Cause(ctx))
	}
	select {
	case <-r.cancelled:
		return nil, errCancelled
	default:
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

// note records how a step is. Who executes must not fail because nobody can
// see it.
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

// yield unwinds a function whose engine calls it once per step.
type yield struct{}

// errCancelled ends a function between steps.
var errCancelled = engi.Errorf(engi.Expired, "the run was cancelled")

// final is an error that is not retried.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final returns err as one that ends the run, whatever its kind. Nil stays
// nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

// retriable reports whether another attempt makes sense after err.
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

// plain is err as it is kept and shown.
func toError(err error) *engi.Error {
	text := err.Error()
	if len(text) > 2000 {
		text = text[:2000] + "…"
	}
	return &engi.Error{Kind: engi.KindOf(err), Text: toValid(text), Remedy: engi.RemedyOf(err), Retry: engi.RetryOf(err)}
}

func toValid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// checkName reports Invalid for what is no name.
func checkName(what, name string, limit int) error {
	ok := name != "" && len(name) <= limit && utf8.ValidString(name)
	for _, c := range name {
		ok = ok && unicode.IsPrint(c)
	}
	if !ok {
		return engi.Errorf(engi.Invalid, "%.140q is no name for a %s", name, what).WithRemedy("use 1 to %d printable characters", limit)
	}
	return nil
}
