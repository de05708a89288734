package session

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session/deno"
)

// Release implements [engi.Sessions].
func (m *Manager) Release(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "release session %.140s", idOrName)
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	return m.releaseAndSave(ctx, live, causeRequest)
}

func (m *Manager) releaseAndSave(ctx context.Context, live *liveSession, cause string) error {
	if err := m.release(ctx, live, cause); err != nil || !live.record().Changed {
		return err
	}
	_, err := m.saveWorkspace(ctx, live)
	return err
}

// release releases a session's sandbox.
func (m *Manager) release(ctx context.Context, live *liveSession, cause string) (err error) {
	unlock, err := live.sandboxLock.Acquire(ctx, "session")
	if err != nil {
		return err
	}
	defer unlock()
	live.mu.Lock()
	r, uses := live.rec, live.uses
	live.mu.Unlock()
	switch {
	case uses > 0:
		return errInUse
	case r.Sandbox == "":
		return nil
	}
	if r.pushesOnRelease() {
		m.pushBefore(ctx, live, r.Sandbox)
	}
	switch r.Persistence {
	case engi.PersistSnapshot:
		return m.hibernate(ctx, live, cause)
	case engi.PersistOverlay:
		if _, err := m.saveOverlay(ctx, live); err != nil && !engi.Is(err, engi.NotFound) {
			return err
		}
	}
	return m.stop(ctx, live, r.Sandbox, cause)
}

// stop stops a session's sandbox; in a workspace, it only ends the session's code. The caller holds
// sandboxLock.
func (m *Manager) stop(ctx context.Context, live *liveSession, id engi.SandboxID, cause string) error {
	if live.record().Workspace == "" {
		if err := m.sandboxes.Destroy(ctx, id); err != nil {
			return err
		}
		return m.clearSandbox(ctx, live, id, cause)
	}
	if err := m.endCode(ctx, live, id); err != nil {
		return err
	}
	if err := m.clearSandbox(ctx, live, id, cause); err != nil {
		return err
	}
	return m.endCode(ctx, live, id) // which was started in between; none is started from now on
}

// endCode ends a session's code in the sandbox of its workspace. Code keeps a sandbox running, so there is none in
// one that sleeps.
func (m *Manager) endCode(ctx context.Context, live *liveSession, id engi.SandboxID) error {
	if !m.sandboxes.Runs(ctx, id) {
		return nil
	}
	g, leave, err := m.opt.Sandboxes.Enter(ctx, engi.Everyone, id)
	if err != nil {
		return ignoreNotFound(err)
	}
	defer leave()
	return deno.Kill(ctx, g, live.id)
}

// Terminate implements [engi.Sessions].
func (m *Manager) Terminate(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "terminate session %.140s", idOrName)
	r, err := m.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	live := m.lookUp(r.ID)
	if live == nil {
		return nil
	}
	if r := live.record(); r.Ended.IsZero() && r.Sandbox != "" && r.pushesOnRelease() {
		unlock, err := live.sandboxLock.Acquire(ctx, "session")
		if err != nil {
			return err
		}
		m.pushBefore(ctx, live, r.Sandbox)
		unlock()
	}
	if err := m.update(ctx, live, func(r *Record) { r.GivenUp = true }); err != nil {
		return err
	}
	return m.end(ctx, live, causeRequest, "it was terminated")
}

// end ends a session: first it records the end, then it removes the sandbox and the volume. Run
// repeats steps that fail.
func (m *Manager) end(ctx context.Context, live *liveSession, cause, reason string) error {
	if live.record().Ended.IsZero() {
		err := m.update(ctx, live, func(r *Record) {
			if r.Ended.IsZero() {
				r.Ended, r.EndReason = timestamp(), reason
				r.become(engi.SessionTerminated, cause)
			}
		})
		if err != nil {
			return err
		}
	}
	return m.cleanUp(ctx, live)
}

// cleanUp removes the sandbox and the volume of a session that has ended.
func (m *Manager) cleanUp(ctx context.Context, live *liveSession) error {
	// The lock is taken after the end was recorded, so that no boot follows.
	unlock, err := live.sandboxLock.Acquire(ctx, "session")
	if err != nil {
		return err
	}
	defer unlock()
	r := live.record()
	if r.Sandbox != "" {
		if err := m.stop(ctx, live, r.Sandbox, causeRequest); err != nil {
			return err
		}
	}
	if err := m.removeVolume(ctx, r); err != nil {
		return err
	}
	if err := m.removeCopy(ctx, r); err != nil {
		return err
	}
	if err := m.removeOverlay(ctx, r); err != nil {
		return err
	}
	return m.update(ctx, live, func(r *Record) { r.Volume, r.Overlay, r.Stale, r.Cleared = "", "", nil, true })
}

// removeVolume deletes a session's volume. The volume may be missing in the record
// if it was created just before a crash.
func (m *Manager) removeVolume(ctx context.Context, r Record) error {
	if r.Persistence == engi.PersistNone {
		return nil
	}
	id := r.Volume
	if id == "" {
		v, err := m.opt.Volumes.Get(ctx, r.Owner.Viewer(), volumeName(r.ID))
		if err != nil {
			return ignoreNotFound(err)
		}
		id = v.ID
	}
	return ignoreNotFound(m.opt.Volumes.Remove(ctx, engi.Everyone, string(id)))
}

func ignoreNotFound(err error) error {
	return engi.Ignore(err, engi.NotFound)
}

// Run ends sessions whose time to live has passed and records sandboxes that have stopped,
// until ctx ends. Sandboxes keep running after that.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	if err := m.adopt(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	m.serving = true
	m.mu.Unlock()
	ready()
	tick := time.NewTicker(m.opt.CheckInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		m.checkAll(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	m.mu.Lock()
	m.serving = false
	m.mu.Unlock()
	m.cancel()
	m.background.Wait()
	return nil
}

// adopt assigns sandboxes that are unrecorded after a crash to the sessions for which
// they were booted, and stops sandboxes that no session needs.
func (m *Manager) adopt(ctx context.Context) error {
	if err := m.sandboxes.Sweep(ctx, func(sandbox engi.Sandbox) (needed bool, err error) {
		live := m.lookUp(engi.SessionID(sandbox.Notes[noteKey]))
		if live == nil {
			return false, nil
		}
		switch r := live.record(); {
		case r.Sandbox == sandbox.ID && r.State != engi.SessionBooting:
			return true, nil
		case r.Sandbox != "" && r.Sandbox != sandbox.ID || !r.Ended.IsZero():
			return false, nil
		}
		m.opt.Log.InfoContext(ctx, "adopted the sandbox of a session", "session", live.id, "sandbox", sandbox.ID)
		return true, m.update(ctx, live, func(r *Record) {
			r.Sandbox = sandbox.ID
			r.become(engi.SessionRunning, causeUse)
		})
	}); err != nil {
		return err
	}
	for _, live := range m.all(engi.Everyone) {
		if r := live.record(); r.State == engi.SessionBooting && r.Sandbox == "" {
			if err := m.update(ctx, live, func(r *Record) { r.become(engi.SessionIdle, causeCrash) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAll checks all sessions and meters them.
func (m *Manager) checkAll(ctx context.Context) {
	var alive, sandboxes, waiting int
	for _, live := range m.all(engi.Everyone) {
		if ctx.Err() != nil {
			return
		}
		if err := m.check(ctx, live); err != nil && ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "check a session", "session", live.id, "error", err)
		}
		live.mu.Lock()
		if live.rec.Ended.IsZero() {
			alive++
		}
		if live.rec.Sandbox != "" {
			sandboxes++
		}
		waiting += live.waiting
		live.mu.Unlock()
	}
	m.opt.Meter.Sessions(alive, sandboxes, waiting)
}

func (m *Manager) check(ctx context.Context, live *liveSession) error {
	live.mu.Lock()
	r, busy := live.rec, live.uses > 0 || live.booting || live.waiting > 0 || live.leaving
	live.mu.Unlock()
	if !r.Ended.IsZero() {
		return m.checkEnded(ctx, live, r)
	}
	m.seeOff(ctx, live)
	if r.over() {
		m.endLater(live)
		return nil
	}
	if busy {
		return nil
	}
	used, awake := r.Used, false
	if r.Sandbox != "" {
		sandbox, _, err := m.sandboxes.Look(ctx, r.Sandbox)
		if err != nil {
			return err
		}
		awake = sandbox.State == engi.Running
		if r.Workspace == "" && sandbox.Active.After(used) {
			used = sandbox.Active // the sandbox was used directly
		}
	}
	idle := time.Since(used)
	switch {
	case r.Sandbox == "" && r.Changed:
		m.saveLater(live) // the session does not end before its files are saved
		return nil
	case r.Sandbox == "" && len(r.Stale) > 0:
		return m.removeStale(ctx, live)
	case awake && r.releasedByCheck() && idle > min(r.Dormancy, r.TTL) && (idle <= r.TTL || r.Persistence != engi.PersistOverlay), r.Changed && idle > r.TTL:
		m.releaseLater(live)
		return nil
	case idle > r.TTL:
		m.opt.Log.InfoContext(ctx, "a session expired", "session", live.id, "used", used, "ttl", r.TTL)
		return m.end(ctx, live, causeTTL, "nobody used it for "+r.TTL.String())
	}
	if r.Sandbox == "" {
		return nil
	}
	unlock, ok := live.sandboxLock.Try()
	if !ok {
		return nil // the holder of the lock will record the state
	}
	defer unlock()
	return m.observe(ctx, live, r)
}

// releasedByCheck reports whether the release needs more work than the fleet
// does.
func (r Record) releasedByCheck() bool {
	return r.pushesOnRelease() || r.Persistence == engi.PersistOverlay
}

// releaseLater releases a session's sandbox in the background, unless an attempt failed only
// recently.
func (m *Manager) releaseLater(live *liveSession) {
	if live.tooEarly() {
		return
	}
	m.later(live, func(ctx context.Context) {
		if err := m.releaseAndSave(ctx, live, causeDormancy); err != nil && ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "release a session's sandbox", "session", live.id, "error", err)
		}
	})
}

// later runs f in the background; check skips the session until f returns.
func (m *Manager) later(live *liveSession, f func(ctx context.Context)) {
	leaving := func(is bool) {
		live.mu.Lock()
		defer live.mu.Unlock()
		live.leaving = is
	}
	leaving(true)
	if !m.spawn(func(ctx context.Context) {
		defer leaving(false)
		f(ctx)
	}) {
		leaving(false)
	}
}

// over reports whether a session has reached its maximum duration.
func (r Record) over() bool { return r.MaxDuration > 0 && time.Since(r.Created) > r.MaxDuration }

// endLater ends a session that has reached its maximum duration, in the background, even if it is in use.
// It first pushes its work and saves its files.
func (m *Manager) endLater(live *liveSession) {
	live.mu.Lock()
	wait := live.leaving || live.booting || live.unsaved > 0 && time.Now().Before(live.retry)
	live.mu.Unlock()
	if wait {
		return
	}
	m.later(live, func(ctx context.Context) {
		if err := m.endOver(ctx, live); err != nil && ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "end a session that is over; it is tried again", "session", live.id, "error", err)
		}
	})
}

func (m *Manager) endOver(ctx context.Context, live *liveSession) error {
	unlock, err := live.sandboxLock.Acquire(ctx, "session")
	if err != nil {
		return err
	}
	if r := live.record(); r.Sandbox != "" {
		if r.pushesOnRelease() {
			m.pushBefore(ctx, live, r.Sandbox)
		}
		err = m.stop(ctx, live, r.Sandbox, causeMaxDuration)
	}
	unlock()
	if err == nil && live.record().Changed {
		_, err = m.saveWorkspace(ctx, live)
	}
	if err != nil {
		return err
	}
	return m.end(ctx, live, causeMaxDuration, "it reached its maximum duration of "+live.record().MaxDuration.String())
}

// checkEnded cleans up after a session that has ended, and removes it after the retention time.
func (m *Manager) checkEnded(ctx context.Context, live *liveSession, r Record) error {
	if !r.Cleared {
		return m.cleanUp(ctx, live)
	}
	if time.Since(r.Ended) <= m.opt.Retention {
		return nil
	}
	if err := m.opt.Store.Forget(ctx, live.id); err != nil {
		return err
	}
	m.forget(r.Owner, live.id)
	return nil
}
