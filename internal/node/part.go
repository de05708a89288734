package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A part is a service of the node. Run blocks until ctx ends or the part fails;
// it has ended all of its goroutines when it returns.
type part struct {
	name string
	run  func(ctx context.Context, ready func()) error
	stop time.Duration // maximum time to stop
}

var errNoReason = errors.New("it gave no reason")

// runParts starts parts in order, each when the one before is ready, and
// calls ready after the last one. When ctx ends or a part fails, it stops all of them
// in reverse order and returns the failure, if there was one. A part
// that does not stop in time is logged and abandoned.
func runParts(ctx context.Context, log *slog.Logger, ready func(), parts ...part) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	type live struct {
		part
		cancel context.CancelFunc
		done   chan struct{}
	}
	var up []live

	for _, p := range parts {
		// Parts must outlive ctx, because the loop below stops them in turn.
		pctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l, started := live{p, cancel, make(chan struct{})}, make(chan struct{})
		up = append(up, l)
		go func() {
			defer close(l.done)
			err := p.run(pctx, func() { close(started) })
			if pctx.Err() != nil {
				return // the part was asked to stop
			}
			if err == nil {
				err = errNoReason
			}
			fail(fmt.Errorf("%s stopped unexpectedly: %w", p.name, err))
		}()
		select {
		case <-started:
			log.Debug("part is ready", "part", p.name)
		case <-running.Done():
		}
		if running.Err() != nil {
			break
		}
	}
	if running.Err() == nil {
		ready()
	}

	<-running.Done()
	for i := len(up) - 1; i >= 0; i-- {
		up[i].cancel()
		select {
		case <-up[i].done:
		case <-time.After(up[i].stop):
			log.Error("part does not stop in time", "part", up[i].name, "limit", up[i].stop)
		}
	}
	if cause := context.Cause(running); ctx.Err() == nil {
		return cause
	}
	return nil
}
