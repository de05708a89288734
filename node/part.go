package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A part is one room, running. Run blocks until ctx ends or the part cannot
// go on; when it returns, none of its goroutines is left.
type part struct {
	name string
	run  func(ctx context.Context, ready func()) error
	stop time.Duration // how long it may take to leave
}

var errNoReason = errors.New("no reason given")

// runParts starts parts in order, each when the one before is ready, and
// calls ready after the last. When ctx ends or a part fails, it stops them
// all, last started first, and returns the failure, if that was the cause. A
// part that overstays is named in the log and left behind.
func runParts(ctx context.Context, log *slog.Logger, ready func(), parts ...part) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	type live struct {
		part
		cancel context.CancelFunc
		gone   chan struct{}
	}
	var up []live

	for _, p := range parts {
		// A part outlives ctx on purpose: the loop below ends it, in turn.
		pctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		l, there := live{p, cancel, make(chan struct{})}, make(chan struct{})
		up = append(up, l)
		go func() {
			defer close(l.gone)
			err := p.run(pctx, func() { close(there) })
			if pctx.Err() != nil {
				return // it was asked to leave
			}
			if err == nil {
				err = errNoReason
			}
			fail(fmt.Errorf("%s ended early: %w", p.name, err))
		}()
		select {
		case <-there:
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
		case <-up[i].gone:
		case <-time.After(up[i].stop):
			log.Error("part overstays", "part", up[i].name, "limit", up[i].stop)
		}
	}
	if cause := context.Cause(running); ctx.Err() == nil {
		return cause
	}
	return nil
}
