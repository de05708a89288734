package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
)

const (
	guestTime  = 30 * time.Second // maximum time for an answer of the sandbox
	streamTime = time.Minute      // maximum time to transfer all files of an app
	graceTime  = 10 * time.Second // additional time for commands with a time limit of their own
)

// limits are how long the sandbox of an app may take. The reader of a file has its own limit.
var limits = worktree.Limits{Answer: guestTime, Stream: streamTime, Remedy: "try again; if that does not help, stop the app and open it again"}

// answer calls f, which ends when ctx does or after the time limit. The error says which.
func answer[T any](ctx context.Context, most time.Duration, f func(ctx context.Context) (T, error)) (T, error) {
	return worktree.Answer(ctx, most, limits.Remedy, f)
}

// none is the result of calls without one.
type none struct{}
