package app

import (
	"context"
	"io"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	guestTime  = 30 * time.Second // that a sandbox may take to answer
	streamTime = time.Minute      // and to take all files of an app
	graceTime  = 10 * time.Second // that it may be late to end what has its own time
)

// A boundedGuest is a guest whose calls end, whatever it does. Open's are bounded where
// the file is read.
type boundedGuest struct{ engi.Guest }

// inside enters the sandbox of an app.
func (s *Service) inside(ctx context.Context, id engi.SandboxID) (engi.Guest, func(), error) {
	g, leave, err := s.opt.Sandboxes.Enter(ctx, "", id)
	if err != nil {
		return nil, func() {}, err
	}
	return boundedGuest{g}, leave, nil
}

// answer calls f, which ends when ctx does or after some time. The error says which.
func answer[T any](ctx context.Context, most time.Duration, f func(ctx context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	x, err := f(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = engi.Errorf(engi.Unavailable, "the sandbox has not answered for %v", most).WithRemedy("try again; if that does not help, stop the app and open it again")
	}
	return x, err
}

// none is what calls without an answer return.
type none struct{}

func (g boundedGuest) Start(ctx context.Context, c engi.Command) (engi.Process, error) {
	return answer(ctx, guestTime, func(ctx context.Context) (engi.Process, error) { return g.Guest.Start(ctx, c) })
}

func (g boundedGuest) Attach(ctx context.Context, name string) (engi.Process, error) {
	return answer(ctx, guestTime, func(ctx context.Context) (engi.Process, error) { return g.Guest.Attach(ctx, name) })
}

func (g boundedGuest) Stat(ctx context.Context, path string) (engi.FileInfo, error) {
	return answer(ctx, guestTime, func(ctx context.Context) (engi.FileInfo, error) { return g.Guest.Stat(ctx, path) })
}

func (g boundedGuest) List(ctx context.Context, dir string, depth int) ([]engi.FileInfo, error) {
	return answer(ctx, guestTime, func(ctx context.Context) ([]engi.FileInfo, error) { return g.Guest.List(ctx, dir, depth) })
}

func (g boundedGuest) Move(ctx context.Context, from, to string) error {
	_, err := answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, g.Guest.Move(ctx, from, to) })
	return err
}

func (g boundedGuest) Remove(ctx context.Context, path string) error {
	_, err := answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, g.Guest.Remove(ctx, path) })
	return err
}

func (g boundedGuest) Unpack(ctx context.Context, dir string, r io.Reader) error {
	_, err := answer(ctx, streamTime, func(ctx context.Context) (none, error) { return none{}, g.Guest.Unpack(ctx, dir, r) })
	return err
}
