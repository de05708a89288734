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
func (o *Runner) Serve(ctx context.Context, ready func()) error {
	open, err := o.opt.Store.Runs(ctx, "", Filter{Open: true})
	if err != nil {
		return err
	}
	var begun []slot
	o.mu.Lock()
	for _, r := range open {
		p := slotOf(r)
		if r.State == engi.FunctionQueued {
			o.queue = append(o.queue, p)
			continue
		}
		begun = append(begun, p)
		o.turns[p.id] = p
		o.count(p, 1)
	}
	o.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	gone, there := make(chan struct{}), make(chan struct{})
	var failure error // of the engine; after gone
	go func() {
		defer close(gone)
		failure = o.opt.Engine.Run(ctx, o, func() { close(there) })
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
	if err := o.wind(ctx); err != nil {
		return err
	}
	following, err := o.follow(ctx)
	if err != nil {
		return err
	}
	defer following.Wait() // after cancel
	ready()
	o.poke()
	o.loop(ctx, begun, gone)
	if ctx.Err() == nil {
		return cmp.Or(failure, error(engi.Errorf(engi.Internal, "the engine has ended")))
	}
	cancel()
	<-gone
	return failure
}

// loop gives turns until ctx or the engine ends.
func (o *Runner) loop(ctx context.Context, begun []slot, gone <-chan struct{}) {
	again := time.NewTimer(0) // hand over what could not be
	defer again.Stop()
	wait := time.Second
	tidy := time.NewTicker(time.Hour)
	defer tidy.Stop()
	o.forget(ctx)
	seen := time.Now()
	clock := time.NewTimer(o.untilTick(seen))
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-tidy.C:
			o.forget(ctx)
		case <-clock.C:
			now := time.Now()
			o.tick(ctx, seen, now)
			seen = now
			clock.Reset(o.untilTick(now))
		case <-again.C:
			var failed []slot
			for _, p := range begun {
				if !o.hand(ctx, p) {
					failed = append(failed, p)
				}
			}
			if begun = failed; len(begun) > 0 {
				again.Reset(wait)
				wait = min(2*wait, 30*time.Second)
			} else {
				wait = time.Second
			}
		case <-o.nudge:
			for ctx.Err() == nil {
				p, ok := o.turn()
				if !ok {
					break
				}
				if !o.hand(ctx, p) {
					if begun = append(begun, p); len(begun) == 1 {
						again.Reset(wait)
					}
				}
			}
		}
	}
}

// hand records that a run has its turn and hands it to the engine.
func (o *Runner) hand(ctx context.Context, p slot) bool {
	_, err := o.opt.Store.Update(ctx, "", p.id, func(r *Record) error {
		if r.State == engi.FunctionQueued {
			return begin(r)
		}
		if r.Over() {
			return errOver
		}
		return nil
	})
	if err == nil {
		err = o.opt.Engine.Start(ctx, p.id, p.function)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, errOver), engi.KindOf(err) == engi.NotFound:
		o.release(p.id)
		return true
	}
	if ctx.Err() == nil {
		o.opt.Log.WarnContext(ctx, "hand a run to the engine; it is tried again", "function", p.function, "run", p.id, "error", err)
	}
	return false
}

func (o *Runner) forget(ctx context.Context) {
	if err := o.opt.Store.Forget(ctx, time.Now().Add(-o.opt.Keep), o.opt.KeepCount); err != nil && ctx.Err() == nil {
		o.opt.Log.WarnContext(ctx, "forget runs", "error", err)
	}
}
