package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	// deadlineEvery is the maximum time between checks of the deadlines.
	deadlineEvery = 30 * time.Second
	// storeActiveEvery is the interval at which times of last use are stored.
	storeActiveEvery = 30 * time.Second
	// After each failed attempt to end a sandbox, the pause doubles, between
	// endRetryFirst and endRetryMost.
	endRetryFirst = time.Second
	endRetryMost  = time.Minute
)

// deadlineChanged makes enforceDeadlines check all deadlines again.
func (s *sandboxes) deadlineChanged() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// enforceDeadlines ends or hibernates sandboxes at their deadlines, until
// ctx ends. One loop serves all sandboxes.
func (s *sandboxes) enforceDeadlines(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stored := time.Now()
	for {
		now := time.Now()
		wait := deadlineEvery
		for _, sb := range s.all() {
			at := sb.nextTry()
			switch left := at.Sub(now); {
			case at.IsZero():
			case left > 0:
				wait = min(wait, left)
			case sb.beginEnding():
				if !s.spawn(func() { s.end(sb) }) {
					sb.endingDone(nil)
				}
			}
		}
		if now.Sub(stored) >= storeActiveEvery {
			stored = now
			s.storeActive(ctx)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.changed:
		case <-ctx.Done():
			return
		}
	}
}

// nextTry returns the time at which the sandbox is to be ended or hibernated; zero for never,
// or while an attempt is under way.
func (sb *sandbox) nextTry() time.Time {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.ending {
		return time.Time{}
	}
	at := sb.dueLocked()
	if !at.IsZero() && at.Before(sb.retryAt) {
		return sb.retryAt
	}
	return at
}

// due returns the deadline of the sandbox; zero for never.
func (sb *sandbox) due() time.Time {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.dueLocked()
}

func (sb *sandbox) dueLocked() time.Time {
	switch {
	case sb.endCause != "" || sb.rec.State == engi.Stopping:
		return time.Unix(1, 0)
	case sb.rec.State != engi.Running:
		return time.Time{}
	}
	at := sb.rec.Deadline
	if idle := sb.rec.Lifetime.Idle; idle > 0 {
		t := sb.active.Add(idle)
		if sb.users > 0 {
			t = time.Now().Add(idle) // earliest possible time; it is checked again then
		}
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// beginEnding reports whether the caller may try to end the sandbox. If so, the caller must
// then call endingDone.
func (sb *sandbox) beginEnding() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.ending {
		return false
	}
	sb.ending = true
	return true
}

func (sb *sandbox) endingDone(err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.ending = false
	if err == nil {
		sb.failedEnds, sb.retryAt = 0, time.Time{}
		return
	}
	sb.retryAt = time.Now().Add(min(endRetryFirst<<min(sb.failedEnds, 10), endRetryMost))
	sb.failedEnds++
}

// end ends or hibernates a sandbox whose deadline has passed. Call it after beginEnding.
func (s *sandboxes) end(sb *sandbox) {
	err := s.tryEnd(sb)
	if err != nil {
		s.log.Error("end a sandbox whose time is over; trying again", "sandbox", sb.id, "error", err)
	}
	sb.endingDone(err)
	s.deadlineChanged()
}

func (s *sandboxes) tryEnd(sb *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), transitionTime)
	defer cancel()
	if err := sb.lock(s.life); err != nil {
		return nil // the sandbox has stopped, or the node is stopping
	}
	defer sb.unlock()
	if at := sb.due(); at.IsZero() || time.Until(at) > 0 {
		return nil // the sandbox was used, or its state has changed
	}
	rec := sb.record()
	sb.mu.Lock()
	cause := sb.endCause
	sb.mu.Unlock()
	if cause == "" && rec.State == engi.Running && rec.Lifetime.OnTimeout == engi.EndHibernate {
		err := s.hibernate(ctx, sb, rec.Lifetime.DiskOnly)
		if !engi.Is(err, engi.Unsupported) {
			return err
		}
		s.log.Warn("a sandbox cannot hibernate, so it ends", "sandbox", sb.id, "error", err)
	}
	if cause == "" {
		cause = engi.CauseTimeout
	}
	return s.terminate(ctx, sb, cause)
}

// storeActive stores the times of the last use of sandboxes.
func (s *sandboxes) storeActive(ctx context.Context) {
	for _, sb := range s.all() {
		sb.mu.Lock()
		dirty := sb.activeDirty
		sb.activeDirty = false
		sb.mu.Unlock()
		if !dirty {
			continue
		}
		if _, err := s.edit(ctx, sb, func(*SandboxRecord) error { return nil }); err != nil && ctx.Err() == nil {
			s.log.Warn("store when a sandbox was last used", "sandbox", sb.id, "error", err)
		}
	}
}
