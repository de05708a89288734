// Package clock waits.
package clock

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Sleep returns nil after d, or why ctx ended before.
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
