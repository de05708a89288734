package session

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// Release implements [engi.Sessions].
func (m *Manager) Release(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "release session %.140s", idOrName)
	live, err := m.find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	if err := lock(ctx, live.sandboxLock); err != nil {
		return err
	}
	defer func() { <-live.sandboxLock }()
	live.mu.Lock()
	r, uses := live.rec, live.uses
	live.mu.Unlock()
	switch {
	case uses > 0:
		return engi.Errorf(engi.Conflict, "its sandbox is in use").WithRemedy("wait for what runs in it, or terminate the session")
	case r.Sandbox == "":
		return nil
	case r.Persistence != engi.PersistSnapshot:
		return m.stop(ctx, live, r.Sandbox)
	}
	err = m.opt.Lifecycle.Hibernate(ctx, "", r.Sandbox, false)
	if err == nil {
		return nil
	}
	switch engi.KindOf(err) {
	case engi.NotFound:
		return m.clearSandbox(ctx, live, r.Sandbox)
	case engi.Conflict: // it may be hibernated already
		if sandbox, e := m.opt.Sandboxes.Get(ctx, "", r.Sandbox); e == nil && sandbox.State == engi.Hibernated {
			return nil
		}
	}
	return err
}

// stop ends a session's sandbox. The caller holds sandboxLock.
func (m *Manager) stop(ctx context.Context, live *liveSession, id engi.SandboxID) error {
	if err := m.opt.Sandboxes.Stop(ctx, "", id); err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	return m.clearSandbox(ctx, live, id)
}

// Terminate implements [engi.Sessions].
func (m *Manager) Terminate(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "terminate session %.140s", idOrName)
	r, err := m.opt.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	live := m.lookUp(r.ID)
	if live == nil {
		return nil
	}
	return m.end(ctx, live, "it was terminated")
}

// end ends a session: first its record, then its sandbox, then its volume. Run
// repeats what fails.
func (m *Manager) end(ctx context.Context, live *liveSession, reason string) error {
	if live.record().Ended.IsZero() {
		err := m.update(ctx, live, func(r *Record) {
			if r.Ended.IsZero() {
				r.Ended, r.EndReason, r.State = timestamp(), reason, engi.SessionTerminated
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
	// Taken after the end was recorded, so that no boot follows.
	if err := lock(ctx, live.sandboxLock); err != nil {
		return err
	}
	defer func() { <-live.sandboxLock }()
	r := live.record()
	if r.Sandbox != "" {
		if err := m.stop(ctx, live, r.Sandbox); err != nil {
			return err
		}
	}
	if err := m.removeVolume(ctx, r); err != nil {
		return err
	}
	return m.update(ctx, live, func(r *Record) { r.Volume, r.Cleared = "", true })
}

// removeVolume deletes a session's volume, even one that is not in the record
// because it was created just before a crash.
func (m *Manager) removeVolume(ctx context.Context, r Record) error {
	if r.Persistence == engi.PersistNone {
		return nil
	}
	id := r.Volume
	if id == "" {
		v, err := m.opt.Volumes.Get(ctx, r.Owner, volumeName(r.ID))
		if err != nil {
			return ignoreNotFound(err)
		}
		id = v.ID
	}
	return ignoreNotFound(m.opt.Volumes.Remove(ctx, "", string(id)))
}

func ignoreNotFound(err error) error {
	if err != nil && engi.KindOf(err) == engi.NotFound {
		return nil
	}
	return err
}

// Run serves until ctx ends, and meanwhile ends sessions whose time to live is
// over and notices sandboxes that have stopped. Sandboxes outlive it.
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

// adopt assigns sandboxes that a crash left unrecorded to the sessions they
// were booted for, and stops those that no session needs.
func (m *Manager) adopt(ctx context.Context) error {
	sandboxes, err := m.opt.Sandboxes.List(ctx, "", engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		return err
	}
	for _, sandbox := range sandboxes {
		id := engi.SessionID(sandbox.Notes[noteKey])
		if id == "" {
			continue
		}
		if live := m.lookUp(id); live != nil {
			r := live.record()
			if r.Sandbox == sandbox.ID {
				continue
			}
			if r.Sandbox == "" && r.Ended.IsZero() {
				if err := m.update(ctx, live, func(r *Record) { r.Sandbox = sandbox.ID }); err != nil {
					return err
				}
				m.opt.Log.InfoContext(ctx, "adopted the sandbox of a session", "session", id, "sandbox", sandbox.ID)
				continue
			}
		}
		m.opt.Log.InfoContext(ctx, "stop a sandbox that no session needs", "session", id, "sandbox", sandbox.ID)
		if err := m.opt.Sandboxes.Stop(ctx, "", sandbox.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			m.opt.Log.ErrorContext(ctx, "stop a sandbox that no session needs", "sandbox", sandbox.ID, "error", err)
		}
	}
	return nil
}

// checkAll checks all sessions and meters them.
func (m *Manager) checkAll(ctx context.Context) {
	var alive, sandboxes, waiting int
	for _, live := range m.all() {
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
	r, busy := live.rec, live.uses > 0 || live.booting || live.waiting > 0
	live.mu.Unlock()
	if !r.Ended.IsZero() {
		return m.checkEnded(ctx, live, r)
	}
	if busy {
		return nil
	}
	used, stopped := r.Used, true
	if r.Sandbox != "" {
		sandbox, err := m.opt.Sandboxes.Get(ctx, "", r.Sandbox)
		if err != nil && engi.KindOf(err) != engi.NotFound {
			return err
		}
		stopped = err != nil || sandbox.State == engi.Stopped
		if sandbox.Active.After(used) {
			used = sandbox.Active // it was used directly, not through the session
		}
	}
	if time.Since(used) > r.TTL {
		m.opt.Log.InfoContext(ctx, "a session expired", "session", live.id, "used", used, "ttl", r.TTL)
		return m.end(ctx, live, "nobody used it for "+r.TTL.String())
	}
	if r.Sandbox == "" || !stopped {
		return nil
	}
	select {
	case live.sandboxLock <- struct{}{}:
	default:
		return nil // whoever has the lock is about to notice
	}
	defer func() { <-live.sandboxLock }()
	return m.clearSandbox(ctx, live, r.Sandbox)
}

// checkEnded cleans up after a session that has ended, and forgets it in time.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, live.id)
	return nil
}
