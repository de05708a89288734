package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	freshTime  = 5 * time.Second        // that a reader waits for what is in a sandbox by now
	freshEvery = 100 * time.Millisecond // pause between looks whether an app is being changed
	handsPause = 2 * time.Second        // between revisions of what was changed by hand, because somebody reads
)

// fresh returns the record of an app whose last revision has what is in its sandbox now,
// so that nobody who reads that is told what was there before. The sandbox is asked each
// time, since a watch may tell of a change only after its writer has gone on: of a file
// that has not changed since it was read last, no more than its times.
//
// A sandbox that sleeps is left asleep. Neither are readers kept from what is recorded while
// something changes the app, which is old until it is new, nor for long by a sandbox that
// does not answer.
func (s *Service) fresh(ctx context.Context, r Record) (Record, error) {
	if !s.readable(ctx, r) {
		return r, nil
	}
	late, cancel := context.WithTimeout(ctx, freshTime)
	defer cancel()
	var now Record
	var err error
	for pause := freshEvery; ; pause *= 2 {
		if now, err = s.refresh(late, r); err == nil {
			return now, nil
		}
		if again := engi.Is(err, engi.Unavailable, engi.Internal); !again || clock.Sleep(late, pause) != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return r, engi.Errorf(engi.Expired, "look what is in the sandbox: %v", context.Cause(ctx))
	}
	if !engi.Is(err, engi.NotFound, engi.Expired) {
		s.opt.Log.WarnContext(ctx, "look what is in the sandbox of an app; its last revision is read", "app", r.ID, "error", err)
	}
	return s.opt.Store.Find(ctx, "", string(r.ID))
}

// readable reports whether an app has a sandbox that runs and that nothing changes.
func (s *Service) readable(ctx context.Context, r Record) bool {
	if r.Sandbox == "" || r.Revision == 0 || r.Undo != nil || r.Applying != 0 || r.Editing != 0 {
		return false
	}
	return s.sandboxes.Runs(ctx, r.Sandbox)
}

// refresh makes what is in the sandbox of an app a revision, once nobody else uses it.
func (s *Service) refresh(ctx context.Context, r Record) (Record, error) {
	a := s.live(r.ID)
	for {
		unlock, r, err := s.lockToRead(ctx, a, r.ID)
		if err != nil || unlock == nil {
			return r, err
		}
		wait := time.Duration(0)
		r, wait, err = s.captureHands(ctx, a, r)
		unlock()
		if err != nil || wait == 0 {
			return r, err
		}
		if err := clock.Sleep(ctx, wait); err != nil {
			return r, err
		}
	}
}

// lockToRead locks an app, whose record is read anew then. Without a function to unlock
// it, there is nothing to be read but what is recorded.
func (s *Service) lockToRead(ctx context.Context, a *app, id engi.AppID) (unlock func(), r Record, err error) {
	tick := time.NewTicker(freshEvery)
	defer tick.Stop()
	for {
		select {
		case a.locked <- struct{}{}:
			unlock = func() { <-a.locked }
		case <-tick.C:
		case <-ctx.Done():
			return nil, r, engi.Errorf(engi.Expired, "wait for the app: %v", context.Cause(ctx))
		}
		if r, err = s.opt.Store.Find(ctx, "", string(id)); err == nil && s.readable(ctx, r) {
			if unlock != nil {
				return unlock, r, nil
			}
			continue
		}
		if unlock != nil {
			unlock()
		}
		return nil, r, err
	}
}

// captureHands records what somebody has changed in a sandbox, or returns after what time
// that may be done again. The caller holds the app's lock.
func (s *Service) captureHands(ctx context.Context, a *app, r Record) (_ Record, wait time.Duration, err error) {
	t, err := s.opt.Templates.Get(ctx, r.Template)
	if err != nil {
		return r, 0, err
	}
	g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
	if err != nil {
		return r, 0, err
	}
	defer leave()
	if wait := time.Until(a.hands.Add(handsPause)); wait > 0 {
		// A file that is written all the time, like a log, would fill the history.
		now, _, err := a.copy.read(ctx, g, t.WorkDir)
		if err != nil {
			return r, 0, err
		}
		files, err := s.opt.Store.Files(ctx, r.ID, r.Revision)
		if err != nil || len(treeOf(files).changes(now)) == 0 {
			return r, 0, err
		}
		a.copy.forget() // what was read now is not kept
		return r, wait, nil
	}
	before := r.Revision
	if r, err = s.capture(ctx, a, r, g, t.WorkDir); err == nil && r.Revision != before {
		a.hands = time.Now()
	}
	return r, 0, err
}
