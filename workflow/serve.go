package workflow

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/engi-dev/engi"
)

// Serve runs functions until ctx ends, beginning with what a crash or a stop
// has left; then it lets go of what runs, to be gone on with later, and waits.
// A clock's tick that was missed is made up for once, if the function has run
// by its clock before.
func (r *Runner) Serve(ctx context.Context, ready func()) error {
	open, err := r.opt.Store.Runs(ctx, "", Filter{Open: true})
	if err != nil {
		return err
	}
	var begun []queuedRun
	r.mu.Lock()
	for _, rec := range open {
		p := queuedRunOf(rec)
		if rec.State == engi.FunctionQueued {
			r.queue = append(r.queue, p)
			continue
		}
		begun = append(begun, p)
		r.slots[p.id] = p
		r.count(p, 1)
	}
	r.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	gone, there := make(chan struct{}), make(chan struct{})
	var failure error // of the engine; after gone
	go func() {
		defer close(gone)
		failure = r.opt.Engine.Run(ctx, r, func() { close(there) })
	}()
	defer func() {
		cancel()
		<-gone
	}()
	select {
	case <-there:
	case <-gone:
		return failure
	}
	if err := r.startMissed(ctx); err != nil {
		return err
	}
	following, err := r.followEvents(ctx)
	if err != nil {
		return err
	}
	defer following.Wait() // after cancel
	ready()
	r.wakeUp()
	r.loop(ctx, begun, gone)
	if ctx.Err() == nil {
		return cmp.Or(failure, error(engi.Errorf(engi.Internal, "the engine has ended")))
	}
	cancel()
	<-gone
	return failure
}

// loop gives turns until ctx or the engine ends.
func (r *Runner) loop(ctx context.Context, begun []queuedRun, gone <-chan struct{}) {
	again := time.NewTimer(0) // hand over what could not be
	defer again.Stop()
	wait := time.Second
	tidy := time.NewTicker(time.Hour)
	defer tidy.Stop()
	r.forget(ctx)
	seen := time.Now()
	clock := time.NewTimer(r.untilNext(seen))
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
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
			for _, p := range begun {
				if !r.dispatch(ctx, p) {
					failed = append(failed, p)
				}
			}
			if begun = failed; len(begun) > 0 {
				again.Reset(wait)
				wait = min(2*wait, 30*time.Second)
			} else {
				wait = time.Second
			}
		case <-r.wake:
			for ctx.Err() == nil {
				p, ok := r.next()
				if !ok {
					break
				}
				if !r.dispatch(ctx, p) {
					if begun = append(begun, p); len(begun) == 1 {
						again.Reset(wait)
					}
				}
			}
		}
	}
}

// hand records that a run has its turn and hands it to the engine.
func (r *Runner) dispatch(ctx context.Context, p queuedRun) bool {
	_, err := r.opt.Store.Update(ctx, "", p.id, func(rec *Record) error {
		if rec.State == engi.FunctionQueued {
			return beginAttempt(rec)
		}
		if rec.HasEnded() {
			return errOver
		}
		return nil
	})
	if err == nil {
		err = r.opt.Engine.Start(ctx, p.id, p.function)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, errOver), engi.KindOf(err) == engi.NotFound:
		r.release(p.id)
		return true
	}
	if ctx.Err() == nil {
		r.opt.Log.WarnContext(ctx, "hand a run to the engine; it is tried again", "function", p.function, "run", p.id, "error", err)
	}
	return false
}

func (r *Runner) forget(ctx context.Context) {
	if err := r.opt.Store.Forget(ctx, time.Now().Add(-r.opt.Retention), r.opt.RetainCount); err != nil && ctx.Err() == nil {
		r.opt.Log.WarnContext(ctx, "forget runs", "error", err)
	}
}
