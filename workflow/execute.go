package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/engi-dev/engi"
)

// unrecorded is how long a run waits when its record cannot be read or
// written.
const storeRetry = 5 * time.Second

// errTimeout ends the context of a run whose time is up.
var errTimeout = errors.New("the run's time is up")

// Execute goes on with a run. It implements [Executor].
func (r *Runner) Execute(ctx context.Context, id engi.FunctionRunID, s Stepper) Outcome {
	rec, err := r.opt.Store.Run(ctx, "", id)
	switch {
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	case err != nil && engi.KindOf(err) == engi.NotFound:
		r.release(id)
		return Outcome{Next: Ended}
	case err != nil:
		return r.retryLater(ctx, id, err)
	case rec.HasEnded():
		r.release(id)
		return Outcome{Next: Ended, Output: rec.Output, Error: rec.Error}
	case rec.State == engi.FunctionWaiting && time.Until(rec.NextAttempt) > 0:
		return Outcome{Next: Again, After: time.Until(rec.NextAttempt), Error: rec.Error}
	}

	run := &activeRun{cancelled: make(chan struct{})}
	r.mu.Lock()
	if r.active[id] != nil {
		r.mu.Unlock()
		return Outcome{Next: Again, After: time.Second}
	}
	r.active[id] = run
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.active, id)
	}()

	steps := rec.Steps
	if rec, err = r.opt.Store.Update(ctx, "", id, beginAttempt); err != nil {
		if errors.Is(err, errOver) { // cancelled a moment ago
			return Outcome{Next: Ended}
		}
		return r.retryLater(ctx, id, err)
	}
	if rec.CancelRequested {
		run.cancel()
	}
	return r.runAttempt(ctx, rec, run, func() (json.RawMessage, error) { return r.attempt(ctx, rec, steps, run, s) })
}

var errOver = errors.New("the run is over")

// begin begins an attempt, or goes on with the one that was cut short.
func beginAttempt(r *Record) error {
	switch r.State {
	case engi.FunctionRunning:
	case engi.FunctionQueued, engi.FunctionWaiting:
		r.State, r.NextAttempt = engi.FunctionRunning, time.Time{}
		r.Attempt++
		if r.Started.IsZero() {
			r.Started = time.Now().UTC()
		}
	default:
		return errOver
	}
	return nil
}

// later is for a run whose record is out of reach.
func (r *Runner) retryLater(ctx context.Context, id engi.FunctionRunID, err error) Outcome {
	if ctx.Err() != nil {
		return Outcome{Next: Stopped}
	}
	r.opt.Log.ErrorContext(ctx, "record a run", "run", id, "error", err)
	return Outcome{Next: Again, After: storeRetry, Error: toError(err)}
}

// errYielded says that the engine has left the function.
var errYielded = errors.New("yielded")

// attempt calls the function of a run.
func (r *Runner) attempt(ctx context.Context, rec Record, steps []engi.FunctionStep, active *activeRun, s Stepper) (out json.RawMessage, err error) {
	f, ok := r.functions[rec.Function]
	if !ok {
		return nil, Final(engi.Errorf(engi.NotFound, "there is no function %s any more", rec.Function))
	}
	run := &Run{
		ID: rec.ID, Owner: rec.Owner, Function: rec.Function, Attempt: rec.Attempt, Event: engi.Event{Owner: rec.Owner, Data: json.RawMessage("{}"), Time: rec.Created},
		Log:    r.opt.Log.With("function", rec.Function, "run", string(rec.ID)),
		runner: r, stepper: s, cancelled: active.cancelled, used: map[string]bool{}, steps: map[string]engi.FunctionStep{},
	}
	for _, step := range steps {
		run.steps[step.Name] = step
	}
	if rec.Event != "" {
		if run.Event, err = r.opt.Events.Get(ctx, "", rec.Event); err != nil {
			return nil, err
		}
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
		return nil, engi.Errorf(engi.Invalid, "the output cannot be written down: %v", err)
	}
	if len(out) > maxOutput {
		return nil, engi.Errorf(engi.Invalid, "the output has %d bytes, %d at most", len(out), maxOutput).WithRemedy("keep long things in a file or a volume and return where they are")
	}
	return out, nil
}

// finish makes an attempt and records what came of it.
func (r *Runner) runAttempt(ctx context.Context, rec Record, run *activeRun, attempt func() (json.RawMessage, error)) Outcome {
	select {
	case <-run.cancelled: // before anything was done
		return r.update(ctx, rec, Outcome{Next: Ended}, func(stored *Record) { endRun(stored, engi.FunctionCancelled) })
	default:
	}
	out, err := attempt()
	switch {
	case errors.Is(err, errYielded):
		return Outcome{Next: Yielded}
	case err == nil:
		return r.update(ctx, rec, Outcome{Next: Ended, Output: out}, func(stored *Record) {
			endRun(stored, engi.FunctionDone)
			stored.Output = out
		})
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	}
	select {
	case <-run.cancelled:
		return r.update(ctx, rec, Outcome{Next: Ended}, func(stored *Record) { endRun(stored, engi.FunctionCancelled) })
	default:
	}
	why, f := toError(err), r.functions[rec.Function]
	wait := f.Backoff.after(rec.Attempt, why.Retry)
	next := time.Now().Add(wait).UTC()
	late := f.Timeout > 0 && next.After(rec.Started.Add(f.Timeout))
	log := r.opt.Log.With("function", rec.Function, "run", rec.ID, "attempt", rec.Attempt, "error", why)
	if !retriable(err) || rec.Attempt > f.Retries || late {
		log.WarnContext(ctx, "a run has failed")
		return r.update(ctx, rec, Outcome{Next: Ended, Error: why}, func(stored *Record) {
			endRun(stored, engi.FunctionFailed)
			stored.Error = why
		})
	}
	log.InfoContext(ctx, "an attempt has failed", "after", wait)
	return r.update(ctx, rec, Outcome{Next: Again, After: wait, Error: why}, func(stored *Record) {
		if stored.CancelRequested { // a moment ago
			endRun(stored, engi.FunctionCancelled)
			return
		}
		stored.State, stored.NextAttempt, stored.Error = engi.FunctionWaiting, next, why
	})
}

// record changes the run and says what comes of that.
func (r *Runner) update(ctx context.Context, rec Record, out Outcome, change func(*Record)) Outcome {
	// What has been done is recorded also while the node stops.
	now, err := r.opt.Store.Update(context.WithoutCancel(ctx), "", rec.ID, func(stored *Record) error { change(stored); return nil })
	if err != nil {
		return r.retryLater(ctx, rec.ID, err)
	}
	if now.HasEnded() {
		r.release(rec.ID)
		out.Next = Ended
	}
	return out
}
