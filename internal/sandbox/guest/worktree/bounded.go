package worktree

import (
	"context"
	"io"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Limits holds the maximum times of calls to a sandbox.
type Limits struct {
	Answer time.Duration // maximum time of one call
	Stream time.Duration // maximum time of a call that sends files
	Remedy string        // advice in the error after that time
}

// Default holds the limits for the sandbox of a workspace.
var Default = Limits{30 * time.Second, 5 * time.Minute, "try again; if that does not help, stop it and start it again"}

// Bound returns a guest whose calls end in time whatever the sandbox does, except the streaming calls
// Watch, Pack and Open.
func (l Limits) Bound(g engi.Guest) engi.Guest { return bounded{g, l} }

type bounded struct {
	engi.Guest
	Limits
}

// Answer calls f with a context that ends when ctx ends or after time most. The error names the cause.
func Answer[T any](ctx context.Context, most time.Duration, remedy string, f func(ctx context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	x, err := f(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = engi.Errorf(engi.Unavailable, "the sandbox has not answered for %v", most).WithRemedy("%s", remedy)
	}
	return x, err
}

// none is the answer type of calls without an answer.
type none struct{}

func (g bounded) Start(ctx context.Context, c engi.Command) (engi.Process, error) {
	return Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) (engi.Process, error) { return g.Guest.Start(ctx, c) })
}

func (g bounded) Attach(ctx context.Context, name string) (engi.Process, error) {
	return Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) (engi.Process, error) { return g.Guest.Attach(ctx, name) })
}

func (g bounded) Stat(ctx context.Context, path string) (engi.FileInfo, error) {
	return Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) (engi.FileInfo, error) { return g.Guest.Stat(ctx, path) })
}

func (g bounded) List(ctx context.Context, dir string, depth int) ([]engi.FileInfo, error) {
	return Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) ([]engi.FileInfo, error) { return g.Guest.List(ctx, dir, depth) })
}

func (g bounded) Move(ctx context.Context, from, to string) error {
	_, err := Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) (none, error) { return none{}, g.Guest.Move(ctx, from, to) })
	return err
}

func (g bounded) Remove(ctx context.Context, path string) error {
	_, err := Answer(ctx, g.Answer, g.Remedy, func(ctx context.Context) (none, error) { return none{}, g.Guest.Remove(ctx, path) })
	return err
}

func (g bounded) Unpack(ctx context.Context, dir string, r io.Reader) error {
	_, err := Answer(ctx, g.Stream, g.Remedy, func(ctx context.Context) (none, error) { return none{}, g.Guest.Unpack(ctx, dir, r) })
	return err
}

func (g bounded) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	_, err := Answer(ctx, g.Stream, g.Remedy, func(ctx context.Context) (none, error) { return none{}, g.Guest.Write(ctx, path, r, o) })
	return err
}
