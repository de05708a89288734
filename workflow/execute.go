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
const unrecorded = 5 * time.Second

// errTimeout ends the context of a run whose time is up.
var errTimeout = errors.New("the run's time is up")

// Execute goes on with a run. It implements [Executor].
func (o *Runner) Execute(ctx context.Context, id engi.FunctionRunID, s Stepper) Outcome {
	rec, err := o.opt.Store.Run(ctx, "", id)
	switch {
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	case err != nil && engi.KindOf(err) == engi.NotFound:
		o.release(id)
		return Outcome{Next: Ended}
	case err != nil:
		return o.later(ctx, id, err)
	case rec.Over():
		o.release(id)
		return Outcome{Next: Ended, Output: rec.Output, Error: rec.Error}
	case rec.State == engi.FunctionWaiting && time.Until(rec.Next) > 0:
		return Outcome{Next: Again, After: time.Until(rec.Next), Error: rec.Error}
	}

	l := &active{cancelled: make(chan struct{})}
	o.mu.Lock()
	if o.live[id] != nil {
		o.mu.Unlock()
		return Outcome{Next: Again, After: time.Second}
	}
	o.live[id] = l
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.live, id)
	}()

	steps := rec.Steps
	if rec, err = o.opt.Store.Update(ctx, "", id, begin); err != nil {
		if errors.Is(err, errOver) { // cancelled a moment ago
			return Outcome{Next: Ended}
		}
		return o.later(ctx, id, err)
	}
	if rec.Cancel {
		l.cancel()
	}
	return o.finish(ctx, rec, l, func() (json.RawMessage, error) { return o.attempt(ctx, rec, steps, l, s) })
}

var errOver = errors.New("the run is over")

// begin begins an attempt, or goes on with the one that was cut short.
func begin(r *Record) error {
	switch r.State {
	case engi.FunctionRunning:
	case engi.FunctionQueued, engi.FunctionWaiting:
		r.State, r.Next = engi.FunctionRunning, time.Time{}
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
func (o *Runner) later(ctx context.Context, id engi.FunctionRunID, err error) Outcome {
	if ctx.Err() != nil {
		return Outcome{Next: Stopped}
	}
	o.opt.Log.ErrorContext(ctx, "record a run", "run", id, "error", err)
	return Outcome{Next: Again, After: unrecorded, Error: plain(err)}
}

// errYielded says that the engine has left the function.
var errYielded = errors.New("yielded")

// attempt calls the function of a run.
func (o *Runner) attempt(ctx context.Context, rec Record, steps []engi.FunctionStep, l *active, s Stepper) (out json.RawMessage, err error) {
	f, ok := o.functions[rec.Function]
	if !ok {
		return nil, Final(engi.Errorf(engi.NotFound, "there is no function %s any more", rec.Function))
	}
	r := &Run{
		ID: rec.ID, Owner: rec.Owner, Function: rec.Function, Attempt: rec.Attempt, Event: engi.Event{Owner: rec.Owner, Data: json.RawMessage("{}"), Time: rec.Created},
		Log:    o.opt.Log.With("function", rec.Function, "run", string(rec.ID)),
		runner: o, stepper: s, cancelled: l.cancelled, used: map[string]bool{}, steps: map[string]engi.FunctionStep{},
	}
	for _, step := range steps {
		r.steps[step.Name] = step
	}
	if rec.Event != "" {
		if r.Event, err = o.opt.Events.Get(ctx, "", rec.Event); err != nil {
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
			out, err = nil, r.panicked("the function", p)
		}
		if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
			err = Final(engi.Errorf(engi.Expired, "the run took longer than %v", f.Timeout).WithRemedy("raise the timeout of function %s", rec.Function))
		}
	}()
	v, err := f.Run(engi.WithActor(ctx, string(rec.ID)), r)
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
func (o *Runner) finish(ctx context.Context, rec Record, l *active, attempt func() (json.RawMessage, error)) Outcome {
	select {
	case <-l.cancelled: // before anything was done
		return o.record(ctx, rec, Outcome{Next: Ended}, func(r *Record) { end(r, engi.FunctionCancelled) })
	default:
	}
	out, err := attempt()
	switch {
	case errors.Is(err, errYielded):
		return Outcome{Next: Yielded}
	case err == nil:
		return o.record(ctx, rec, Outcome{Next: Ended, Output: out}, func(r *Record) {
			end(r, engi.FunctionDone)
			r.Output = out
		})
	case ctx.Err() != nil:
		return Outcome{Next: Stopped}
	}
	select {
	case <-l.cancelled:
		return o.record(ctx, rec, Outcome{Next: Ended}, func(r *Record) { end(r, engi.FunctionCancelled) })
	default:
	}
	why, f := plain(err), o.functions[rec.Function]
	wait := f.Backoff.after(rec.Attempt, why.Retry)
	next := time.Now().Add(wait).UTC()
	late := f.Timeout > 0 && next.After(rec.Started.Add(f.Timeout))
	log := o.opt.Log.With("function", rec.Function, "run", rec.ID, "attempt", rec.Attempt, "error", why)
	if !retriable(err) || rec.Attempt > f.Retries || late {
		log.WarnContext(ctx, "a run has failed")
		return o.record(ctx, rec, Outcome{Next: Ended, Error: why}, func(r *Record) {
			end(r, engi.FunctionFailed)
			r.Error = why
		})
	}
	log.InfoContext(ctx, "an attempt has failed", "after", wait)
	return o.record(ctx, rec, Outcome{Next: Again, After: wait, Error: why}, func(r *Record) {
		if r.Cancel { // a moment ago
			end(r, engi.FunctionCancelled)
			return
		}
		r.State, r.Next, r.Error = engi.FunctionWaiting, next, why
	})
}

// record changes the run and says what comes of that.
func (o *Runner) record(ctx context.Context, rec Record, out Outcome, change func(*Record)) Outcome {
	// What has been done is recorded also while the node stops.
	now, err := o.opt.Store.Update(context.WithoutCancel(ctx), "", rec.ID, func(r *Record) error { change(r); return nil })
	if err != nil {
		return o.later(ctx, rec.ID, err)
	}
	if now.Over() {
		o.release(rec.ID)
		out.Next = Ended
	}
	return out
}
