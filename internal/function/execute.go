package function

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// storeRetry is the pause of a run whose record cannot be read or written.
const storeRetry = 5 * time.Second

// errTimeout is the cause of a run's context when its timeout has passed.
var errTimeout = errors.New("the run's timeout has passed")

// Execute implements [Executor].
func (r *Runner) Execute(ctx context.Context, id engi.FunctionRunID, s Stepper) Outcome {
	rec, err := r.opt.Store.Run(ctx, engi.Everyone, id)
	switch {
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	case engi.Is(err, engi.NotFound):
		r.release(id)
		r.heard(id)
		return Outcome{Next: Ended}
	case err != nil:
		return r.retryLater(ctx, id, err)
	case rec.HasEnded():
		r.release(id)
		r.heard(id)
		return Outcome{Next: Ended, Output: rec.Output, Error: rec.Error}
	case rec.Wait != nil, rec.State == engi.FunctionQueued && rec.Waited != nil:
		return Outcome{Next: Parked} // without a slot
	case rec.State == engi.FunctionWaiting && time.Until(rec.NextAttempt) > 0:
		return Outcome{Next: Again, After: time.Until(rec.NextAttempt), Error: rec.Error}
	}

	active := &activeRun{cancelled: make(chan struct{})}
	r.mu.Lock()
	if r.active[id] != nil {
		r.mu.Unlock()
		return Outcome{Next: Again, After: time.Second}
	}
	r.active[id] = active
	delete(r.unheard, id)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.active, id)
	}()

	steps := rec.Steps
	if rec, err = r.opt.Store.Update(ctx, engi.Everyone, id, beginAttempt); err != nil {
		if errors.Is(err, errEnded) { // cancelled in the meantime
			return Outcome{Next: Ended}
		}
		return r.retryLater(ctx, id, err)
	}
	if rec.CancelRequested {
		active.cancel()
	}
	return r.runAttempt(ctx, rec, steps, active, s)
}

var errEnded = errors.New("the run has ended")

// beginAttempt begins an attempt, or continues an interrupted one.
func beginAttempt(r *Record) error {
	switch r.State {
	case engi.FunctionRunning:
	case engi.FunctionQueued, engi.FunctionWaiting:
		if r.State != engi.FunctionQueued || r.Waited == nil { // a wait does not end the attempt
			r.Attempt++
		}
		r.State, r.NextAttempt = engi.FunctionRunning, time.Time{}
		if r.Started.IsZero() {
			r.Started = time.Now().UTC()
		}
	default:
		return errEnded
	}
	return nil
}

// retryLater returns the outcome for a run whose record cannot be read or written.
func (r *Runner) retryLater(ctx context.Context, id engi.FunctionRunID, err error) Outcome {
	if ctx.Err() != nil {
		return Outcome{Next: Stopped}
	}
	r.opt.Log.ErrorContext(ctx, "read or write the record of a run", "run", id, "error", err)
	return Outcome{Next: Again, After: storeRetry, Error: toError(err)}
}

var (
	errYielded = errors.New("yielded") // the function was unwound by ErrYield
	errParked  = errors.New("parked")  // the function was unwound to wait without a slot
)

// attempt calls the function of a run. It converts panics to errors.
func (r *Runner) attempt(ctx context.Context, rec Record, steps []engi.FunctionStep, active *activeRun, s Stepper) (out json.RawMessage, err error) {
	f, ok := r.function(rec.Function)
	if !ok {
		return nil, Final(engi.Errorf(engi.NotFound, "function %s no longer exists", rec.Function))
	}
	run := &Run{
		ID: rec.ID, Owner: rec.Owner, Function: rec.Function, Attempt: rec.Attempt, Event: engi.Event{Owner: rec.Owner, Data: json.RawMessage("{}"), Time: rec.Created},
		Log:    r.opt.Log.With("function", rec.Function, "run", string(rec.ID)),
		runner: r, stepper: s, cancelled: active.cancelled, active: active, position: rec.Position, started: rec.Started, waited: rec.Waited, used: map[string]bool{}, steps: map[string]engi.FunctionStep{},
	}
	for _, step := range steps {
		run.steps[step.Name] = step
	}
	if rec.Event != "" {
		if run.Event, err = r.opt.Events.Get(ctx, engi.Everyone, rec.Event); err != nil {
			return nil, err
		}
		run.position = run.Event.Seq
	}
	if f.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, rec.Started.Add(f.Timeout), errTimeout)
		defer cancel()
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case yield:
			out, err = nil, errYielded
		case park:
			out, err = nil, errParked
			return // if the time is up, the wait ends at once
		default:
			out, err = nil, run.panicError("the function", p)
		}
		if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
			err = Final(engi.Errorf(engi.Expired, "the run took longer than %v", f.Timeout).WithRemedy("raise the timeout of function %s", rec.Function))
		}
	}()
	v, err := f.Run(engi.WithActor(ctx, string(rec.ID)), run)
	if err != nil {
		return nil, err
	}
	if out, err = json.Marshal(v); err != nil {
		return nil, engi.Errorf(engi.Invalid, "encode the output: %v", err)
	}
	if len(out) > maxOutput {
		return nil, engi.Errorf(engi.Invalid, "the output has %d bytes, %d at most", len(out), maxOutput).WithRemedy("keep large data in a file or volume and return its location")
	}
	return out, nil
}

// runAttempt makes an attempt and records its outcome.
func (r *Runner) runAttempt(ctx context.Context, rec Record, steps []engi.FunctionStep, active *activeRun, s Stepper) Outcome {
	cancel := func(rec *Record) { endRun(rec, engi.FunctionCancelled) }
	if active.isCancelled() {
		return r.update(ctx, rec.ID, Outcome{Next: Ended}, cancel)
	}
	out, err := r.attempt(ctx, rec, steps, active, s)
	defer r.settle(active, false)
	switch {
	case errors.Is(err, errParked):
		return r.park(ctx, rec.ID, active)
	case errors.Is(err, errYielded):
		return Outcome{Next: Yielded}
	case err == nil:
		return r.update(ctx, rec.ID, Outcome{Next: Ended, Output: out}, func(rec *Record) {
			endRun(rec, engi.FunctionDone)
			rec.Output = out
		})
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	case active.isCancelled():
		return r.update(ctx, rec.ID, Outcome{Next: Ended}, cancel)
	}
	reason := toError(err)
	f, _ := r.function(rec.Function)
	wait := f.Backoff.after(rec.Attempt, reason.Retry)
	next := time.Now().Add(wait).UTC()
	late := f.Timeout > 0 && next.After(rec.Started.Add(f.Timeout))
	log := r.opt.Log.With("function", rec.Function, "run", rec.ID, "attempt", rec.Attempt, "error", reason)
	if !retriable(err) || rec.Attempt > f.Retries || late {
		log.WarnContext(ctx, "a run failed")
		return r.update(ctx, rec.ID, Outcome{Next: Ended, Error: reason}, func(rec *Record) {
			endRun(rec, engi.FunctionFailed)
			rec.Error = reason
		})
	}
	log.InfoContext(ctx, "an attempt failed", "after", wait)
	return r.update(ctx, rec.ID, Outcome{Next: Again, After: wait, Error: reason}, func(rec *Record) {
		if rec.CancelRequested { // cancelled in the meantime
			cancel(rec)
			return
		}
		rec.State, rec.NextAttempt, rec.Error = engi.FunctionWaiting, next, reason
	})
}

// update changes the record of a run and returns the outcome, which is Ended if
// the run has ended.
func (r *Runner) update(ctx context.Context, id engi.FunctionRunID, out Outcome, change func(*Record)) Outcome {
	// The outcome is recorded even if the node is stopping.
	rec, err := r.opt.Store.Update(context.WithoutCancel(ctx), engi.Everyone, id, func(rec *Record) error { change(rec); return nil })
	if err != nil {
		return r.retryLater(ctx, id, err)
	}
	if rec.HasEnded() {
		r.release(id)
		out.Next = Ended
	}
	return out
}
