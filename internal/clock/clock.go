// Package clock waits for times and intervals.
package clock

import (
	"context"
	"iter"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Sleep returns nil after d, or Expired if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait: %v", context.Cause(ctx))
	}
}

// Every yields at once, and then after each interval d, until ctx ends.
func Every(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(d)
		defer t.Stop()
		for at := time.Now(); ctx.Err() == nil && yield(at); {
			select {
			case at = <-t.C:
			case <-ctx.Done():
			}
		}
	}
}

// Later is like Every, but first yields after d.
func Later(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		first := true
		for at := range Every(ctx, d) {
			if !first && !yield(at) {
				return
			}
			first = false
		}
	}
}
