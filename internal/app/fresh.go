package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	freshTime  = 5 * time.Second        // maximum time that a reader waits for the sandbox's current files
	freshEvery = 100 * time.Millisecond // pause between checks whether the app is being changed
	handsPause = 2 * time.Second        // minimum time between revisions of manual changes that readers cause
)

// fresh returns the record of an app whose last revision has the sandbox's current files,
// so that readers never see stale files. It asks the sandbox each
// time, because a watch may report a change only after its writer has continued. For a file
// that has not changed since the last read, it asks for the times only.
//
// A sleeping sandbox is not resumed. Readers get the recorded files without waiting while
// a change of the app is running, and after a short wait if the sandbox
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
		return r, engi.Errorf(engi.Expired, "list the sandbox's files: %v", context.Cause(ctx))
	}
	if !engi.Is(err, engi.NotFound, engi.Expired) {
		s.opt.Log.WarnContext(ctx, "look what is in the sandbox of an app; its last revision is read", "app", r.ID, "error", err)
	}
	return s.opt.Store.Find(ctx, engi.Everyone, string(r.ID))
}

// readable reports whether an app has a running sandbox and no change is running.
func (s *Service) readable(ctx context.Context, r Record) bool {
	if r.Sandbox == "" || r.Revision == 0 || r.Undo != nil || r.Applying != 0 || r.Editing != 0 {
		return false
	}
	return s.sandboxes.Runs(ctx, r.Sandbox)
}

// refresh records the current files of an app's sandbox as a revision, once nobody else uses the sandbox.
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

// lockToRead locks an app and reads its record again. If unlock is nil,
// the caller reads the recorded files only.
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
		if r, err = s.opt.Store.Find(ctx, engi.Everyone, string(id)); err == nil && s.readable(ctx, r) {
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

// captureHands records manual changes in a sandbox, or returns the time after which
// it may do so again. The caller holds the app's lock.
func (s *Service) captureHands(ctx context.Context, a *app, r Record) (_ Record, wait time.Duration, err error) {
	t, err := s.templateOf(ctx, r)
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
		a.copy.forget() // the files that were read are not recorded
		return r, wait, nil
	}
	before := r.Revision
	if r, err = s.capture(ctx, a, r, g, t.WorkDir); err == nil && r.Revision != before {
		a.hands = time.Now()
	}
	return r, 0, err
}
