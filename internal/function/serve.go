package function

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Serve runs functions until ctx ends, including the runs that earlier processes
// have left. It then interrupts active runs, which the next process continues,
// and waits for them. If a scheduled time passed while no node was running, the function is
// started once, if the schedule has started it before.
func (r *Runner) Serve(ctx context.Context, ready func()) error {
	open, err := r.opt.Store.Runs(ctx, engi.Everyone, Filter{Open: true})
	if err != nil {
		return err
	}
	var toStart []queuedRun
	r.mu.Lock()
	for _, rec := range open {
		if rec.Wait != nil {
			r.parkAgain(rec)
			continue
		}
		q := r.opened(rec)
		if rec.State == engi.FunctionQueued {
			r.queueUp(q)
			continue
		}
		toStart = append(toStart, q)
		r.slots[q.id] = q
		r.count(q, 1)
	}
	r.mu.Unlock()
	if err := r.startWaits(ctx); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	ended, started := make(chan struct{}), make(chan struct{})
	var failure error // error of the engine; valid after ended
	go func() {
		defer close(ended)
		failure = r.opt.Engine.Run(ctx, r, func() { close(started) })
	}()
	defer func() {
		cancel()
		<-ended
	}()
	select {
	case <-started:
	case <-ended:
		return failure
	}
	if err := r.startMissed(ctx); err != nil {
		return err
	}
	following, err := r.followEvents(ctx)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		following.Wait()
	}()
	waits := r.followWaits(ctx)
	defer func() {
		cancel()
		waits.Wait()
	}()
	ready()
	r.wakeUp()
	r.loop(ctx, toStart, ended)
	if ctx.Err() == nil {
		return cmp.Or(failure, error(engi.Errorf(engi.Internal, "the engine ended")))
	}
	cancel()
	<-ended
	return failure
}

// loop starts runs until ctx or the engine ends. toStart are runs that already have a
// slot.
func (r *Runner) loop(ctx context.Context, toStart []queuedRun, ended <-chan struct{}) {
	again := time.NewTimer(0) // retries runs that could not be started
	defer again.Stop()
	wait := time.Second
	tidy := time.NewTicker(time.Hour)
	defer tidy.Stop()
	r.forget(ctx)
	seen := time.Now()
	clock := time.NewTimer(r.untilNext(seen))
	defer clock.Stop()
	unheard := time.NewTimer(0)
	defer unheard.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case <-tidy.C:
			r.forget(ctx)
		case <-clock.C:
			now := time.Now()
			r.startDue(ctx, seen, now)
			seen = now
			clock.Reset(r.untilNext(now))
		case <-again.C:
			var failed []queuedRun
			for _, q := range toStart {
				if !r.dispatch(ctx, q) {
					failed = append(failed, q)
				}
			}
			if toStart = failed; len(toStart) > 0 {
				again.Reset(wait)
				wait = min(2*wait, 30*time.Second)
			} else {
				wait = time.Second
			}
		case <-unheard.C:
			if next := r.wakeUnheard(ctx); next > 0 {
				unheard.Reset(next)
			}
		case <-r.wake:
			for ctx.Err() == nil {
				q, ok := r.next()
				if !ok {
					break
				}
				if !r.dispatch(ctx, q) {
					if toStart = append(toStart, q); len(toStart) == 1 {
						again.Reset(wait)
					}
				}
			}
			unheard.Reset(0)
		}
	}
}

// dispatch records that a run has a slot and starts it in the engine. It reports
// whether that succeeded, or is no longer needed.
func (r *Runner) dispatch(ctx context.Context, q queuedRun) bool {
	rec, err := r.opt.Store.Update(ctx, engi.Everyone, q.id, func(rec *Record) error {
		if rec.State == engi.FunctionQueued {
			return beginAttempt(rec)
		}
		if rec.HasEnded() {
			return errEnded
		}
		return nil
	})
	if err == nil {
		if rec.Waited != nil && rec.State == engi.FunctionRunning {
			r.mustHear(q.id, false)
		}
		err = r.opt.Engine.Start(ctx, q.id, q.function)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, errEnded), engi.Is(err, engi.NotFound):
		r.release(q.id)
		return true
	}
	if ctx.Err() == nil {
		r.opt.Log.WarnContext(ctx, "start a run in the engine; it is retried", "function", q.function, "run", q.id, "error", err)
		// Callers that wait for the run must learn why it does not begin.
		if _, e := r.opt.Store.Update(ctx, engi.Everyone, q.id, func(rec *Record) error { return notBegun(rec, err) }); e != nil && !errors.Is(e, errEnded) && ctx.Err() == nil {
			r.opt.Log.WarnContext(ctx, "record that a run does not begin", "run", q.id, "error", e)
		}
	}
	return false
}

// notBegun records that the engine could not be reached for the first attempt.
func notBegun(rec *Record, why error) error {
	switch {
	case rec.HasEnded():
		return errEnded
	case rec.Waited != nil: // it has begun
	case rec.State == engi.FunctionRunning && rec.Attempt == 1 && len(rec.Steps) == 0, rec.State == engi.FunctionWaiting && rec.Attempt == 0:
		rec.State, rec.Attempt, rec.Error = engi.FunctionWaiting, 0, toError(why)
	}
	return nil
}

func (r *Runner) forget(ctx context.Context) {
	if err := r.opt.Store.Forget(ctx, time.Now().Add(-r.opt.Retention), r.opt.RetainCount); err != nil && ctx.Err() == nil {
		r.opt.Log.WarnContext(ctx, "delete old runs", "error", err)
	}
}
