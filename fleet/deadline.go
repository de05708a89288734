package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

const (
	// timeEvery is how often ends are looked for unasked.
	timeEvery = 30 * time.Second
	// storeActiveEvery is how often the times of last use are stored.
	storeActiveEvery = 30 * time.Second
	// endRetry is the pause after an end that failed; it doubles up to
	// endRetryMost.
	endRetry     = time.Second
	endRetryMost = time.Minute
)

// stirTime tells the timekeeper that an end may have come nearer.
func (m *Manager) stirTime() {
	select {
	case m.time <- struct{}{}:
	default:
	}
}

// keepTime ends boxes, or puts them to sleep, when their time has come, until
// ctx ends. It is one loop for all of them.
func (m *Manager) keepTime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stored := time.Now()
	for {
		now := time.Now()
		wait := timeEvery
		for _, x := range m.allBoxes() {
			at := x.due(false)
			switch left := at.Sub(now); {
			case at.IsZero():
			case left > 0:
				wait = min(wait, left)
			case x.beginEnd():
				if !m.spawn(func() { m.overdue(x) }) {
					x.endEnd(nil)
				}
			}
		}
		if now.Sub(stored) >= storeActiveEvery {
			stored = now
			m.storeActive(ctx)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-m.time:
		case <-ctx.Done():
			return
		}
	}
}

// due returns when the box is to end or to sleep, zero if never, or if that
// is being tried, unless it is who tries that asks.
func (x *sandbox) due(leaving bool) (at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.leaving != leaving {
		return time.Time{}
	}
	defer func() {
		if !leaving && !at.IsZero() && at.Before(x.again) {
			at = x.again
		}
	}()
	switch {
	case x.doom != "" || x.rec.State == engi.Stopping:
		return time.Unix(1, 0)
	case x.rec.State != engi.Running:
		return time.Time{}
	}
	at = x.rec.Deadline
	if idle := x.rec.Lifetime.Idle; idle > 0 {
		t := x.active.Add(idle)
		if x.holders > 0 {
			t = time.Now().Add(idle) // at the earliest: look again then
		}
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// beginEnd makes sure that one at a time tries to end the box.
func (x *sandbox) beginEnd() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.leaving {
		return false
	}
	x.leaving = true
	return true
}

// endEnd says how the try ended.
func (x *sandbox) endEnd(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leaving = false
	if err == nil {
		x.tries, x.again = 0, time.Time{}
		return
	}
	x.again = time.Now().Add(min(endRetry<<min(x.tries, 10), endRetryMost))
	x.tries++
}

// overdue ends a box whose time has come, or puts it to sleep.
func (m *Manager) overdue(x *sandbox) {
	err := m.tryEnd(x)
	if err != nil {
		m.log.Error("the time of a sandbox is over; trying again", "sandbox", x.id, "error", err)
	}
	x.endEnd(err)
	m.stirTime()
}

func (m *Manager) tryEnd(x *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), moveTime)
	defer cancel()
	if err := x.take(m.life); err != nil {
		return nil // it has stopped, or the node does
	}
	defer x.leave()
	at := x.due(true)
	if at.IsZero() || time.Until(at) > 0 {
		return nil // somebody used it, or moved it
	}
	rec := x.record()
	x.mu.Lock()
	doom := x.doom
	x.mu.Unlock()
	if doom == "" && rec.State == engi.Running && rec.Lifetime.OnTimeout == engi.EndHibernate {
		err := m.hibernate(ctx, x, rec.Lifetime.DiskOnly)
		if err == nil || engi.KindOf(err) != engi.Unsupported {
			return err
		}
		m.log.Warn("a sandbox cannot hibernate: it ends", "sandbox", x.id, "error", err)
	}
	if doom == "" {
		doom = engi.CauseTimeout
	}
	return m.finishBox(ctx, x, doom)
}

// storeActive stores when boxes were used last.
func (m *Manager) storeActive(ctx context.Context) {
	for _, x := range m.allBoxes() {
		x.mu.Lock()
		stale := x.stale
		x.stale = false
		x.mu.Unlock()
		if !stale {
			continue
		}
		if _, err := m.edit(ctx, x, func(*SandboxRecord) error { return nil }); err != nil && ctx.Err() == nil {
			m.log.Warn("store when a sandbox was used", "sandbox", x.id, "error", err)
		}
	}
}

// dissolveBox ends a box of a node that leaves nothing behind.
func (m *Manager) dissolveBox(x *sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 30*time.Second)
	defer cancel()
	if err := x.take(ctx); err != nil {
		return
	}
	defer x.leave()
	if err := m.finishBox(ctx, x, engi.CauseCancelled); err != nil {
		m.log.Error("end sandbox; the next start removes it", "sandbox", x.id, "error", err)
	}
}
