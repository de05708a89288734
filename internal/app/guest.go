package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
)

const (
	guestTime  = 30 * time.Second // that a sandbox may take to answer
	streamTime = time.Minute      // and to take all files of an app
	graceTime  = 10 * time.Second // that it may be late to end what has its own time
)

// limits are how long the sandbox of an app may take. The reader of a file has its own limit.
var limits = worktree.Limits{Answer: guestTime, Stream: streamTime, Remedy: "try again; if that does not help, stop the app and open it again"}

// answer calls f, which ends when ctx does or after some time. The error says which.
func answer[T any](ctx context.Context, most time.Duration, f func(ctx context.Context) (T, error)) (T, error) {
	return worktree.Answer(ctx, most, limits.Remedy, f)
}

// none is what calls without an answer return.
type none struct{}
