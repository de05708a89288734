package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/session/deno"
)

// lock takes a token, unless ctx ends first.
func lock(ctx context.Context, c chan struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for the session: %v", context.Cause(ctx))
	}
}

// An inside is a session's sandbox in use.
type lease struct {
	guest        engi.Guest
	sandbox      engi.SandboxID
	config       string        // of Deno; empty for none
	size         engi.Size     // of the sandbox
	booted       time.Duration // spent on getting it; 0 if it was there
	endUse       func()        // ends the caller's use of the session
	leaveSandbox func()        // after that, ends that of the sandbox
}

// release ends the use of both.
func (l *lease) release() {
	l.endUse()
	l.leaveSandbox()
}

// enter gets a session's sandbox, a new one if there is none. The caller calls
// release.
func (m *Manager) enter(ctx context.Context, live *liveSession) (_ *lease, err error) {
	if !m.isServing() {
		return nil, errNotServing
	}
	if err := lock(ctx, live.sandboxLock); err != nil {
		return nil, err
	}
	defer func() { <-live.sandboxLock }()
	if err := live.checkAlive(); err != nil {
		return nil, err
	}
	began := m.now()
	r := live.record()
	if r.Sandbox != "" {
		in, err := m.enterExisting(ctx, live, r)
		if in != nil || err != nil {
			return in, err
		}
	}
	live.mu.Lock()
	live.booting = true
	live.mu.Unlock()
	defer func() {
		live.mu.Lock()
		live.booting = false
		live.mu.Unlock()
	}()
	in, err := m.boot(ctx, live)
	if err != nil {
		return nil, err
	}
	in.booted = m.now().Sub(began)
	m.opt.Meter.Booted(in.booted)
	return in, nil
}

// enterOld enters the sandbox that a session has; nil if that is gone.
func (m *Manager) enterExisting(ctx context.Context, live *liveSession, r Record) (*lease, error) {
	in, err := m.acquire(ctx, live, r.Sandbox, false)
	switch {
	case err == nil:
		return in, nil
	case engi.KindOf(err) == engi.NotFound:
		m.opt.Log.DebugContext(ctx, "a session's sandbox is gone", "session", live.id, "sandbox", r.Sandbox)
		return nil, m.clearSandbox(ctx, live, r.Sandbox)
	default:
		return nil, err
	}
}

// use counts the sandbox as used until the inside is released.
func (m *Manager) acquire(ctx context.Context, live *liveSession, id engi.SandboxID, fresh bool) (*lease, error) {
	g, release, err := m.opt.Sandboxes.Enter(ctx, "", id)
	if err != nil {
		return nil, err
	}
	sandbox, err := m.opt.Sandboxes.Get(ctx, "", id)
	live.mu.Lock()
	prepared := live.prepared == id
	live.mu.Unlock()
	if err == nil && !prepared {
		err = deno.Prepare(ctx, g, fresh)
	}
	if err != nil {
		release()
		return nil, err
	}
	if err := m.touch(ctx, live); err != nil {
		release()
		return nil, err
	}
	live.mu.Lock()
	live.uses++
	live.prepared = id
	live.mu.Unlock()
	in := &lease{guest: g, sandbox: id, size: sandbox.Size, config: sandbox.Notes["config"], leaveSandbox: release}
	in.endUse = func() {
		live.mu.Lock()
		live.uses--
		live.mu.Unlock()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		used := m.now().UTC().Truncate(time.Millisecond)
		err := m.update(late, live, func(r *Record) { r.Used = used })
		if err != nil {
			// At worst, after a crash, it looks as if it was left when it was
			// entered.
			m.opt.Log.WarnContext(ctx, "record the use of a session", "session", live.id, "error", err)
			live.mu.Lock()
			live.rec.Used = used
			live.mu.Unlock()
		}
	}
	return in, nil
}

// touch records that a session is used from now on: what is done in it must
// not be for nothing because a crash has forgotten that somebody came.
func (m *Manager) touch(ctx context.Context, live *liveSession) error {
	now := m.now().UTC().Truncate(time.Millisecond)
	live.mu.Lock()
	fresh := now.Sub(live.rec.Used) < time.Second
	live.mu.Unlock()
	if fresh {
		return nil
	}
	return m.update(ctx, live, func(r *Record) { r.Used = now })
}

// lose records that a session has that sandbox no more.
func (m *Manager) clearSandbox(ctx context.Context, live *liveSession, id engi.SandboxID) error {
	return m.update(ctx, live, func(r *Record) {
		if r.Sandbox == id {
			r.Sandbox = ""
		}
		live.standby = nil // edit holds mu
	})
}

// boot makes a sandbox. The attempt is written down before: whoever repeats it
// after a crash gets the same.
func (m *Manager) boot(ctx context.Context, live *liveSession) (_ *lease, err error) {
	defer engi.Annotate(&err, "boot the sandbox of session %s", live.id)
	if err := m.volume(ctx, live); err != nil {
		return nil, err
	}
	r := live.record()
	template, config := r.Template, ""
	if template == "" {
		if template, config, err = m.opt.Packages.Template(ctx); err != nil {
			return nil, err
		}
	}
	spec := engi.SandboxSpec{
		Owner: r.Owner, Template: template, Size: r.Size, Env: r.Env, Network: r.Network, Ports: engi.PortPolicy{Private: true},
		Metadata: maps.Clone(r.Metadata), Notes: map[string]string{sessionNote: string(live.id), "config": config},
		Lifetime: engi.Lifetime{Timeout: m.opt.Defaults.MaxAwake, Idle: r.Dormancy, Max: m.opt.Defaults.MaxAwake, OnTimeout: engi.EndKill},
	}
	if r.Volume != "" {
		spec.Volumes = []engi.VolumeMount{{Volume: string(r.Volume), Path: WorkDir}}
	}
	if r.Persistence == engi.PersistSnapshot {
		spec.Lifetime.OnTimeout, spec.Lifetime.AutoResume = engi.EndHibernate, true
	}
	if err := m.update(ctx, live, func(r *Record) { r.Boots++ }); err != nil {
		return nil, err
	}
	sandbox, err := m.opt.Sandboxes.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := m.acquire(ctx, live, sandbox.ID, true)
	if err == nil {
		if err = m.update(ctx, live, func(r *Record) { r.Sandbox = sandbox.ID }); err != nil {
			in.release()
		}
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if e := m.opt.Sandboxes.Stop(late, "", sandbox.ID); e != nil && engi.KindOf(e) != engi.NotFound {
			m.opt.Log.ErrorContext(ctx, "stop a sandbox that its session does not get", "session", live.id, "sandbox", sandbox.ID, "error", e)
		}
		return nil, err
	}
	return in, nil
}

// volume makes sure that a session has the volume it should have.
func (m *Manager) volume(ctx context.Context, live *liveSession) error {
	r := live.record()
	if r.Persistence == engi.PersistNone {
		return nil
	}
	if r.Volume != "" {
		_, err := m.opt.Volumes.Get(ctx, "", string(r.Volume))
		if err == nil || engi.KindOf(err) != engi.NotFound {
			return err
		}
		m.opt.Log.WarnContext(ctx, "a session's volume is gone: it gets an empty one", "session", live.id, "volume", r.Volume)
	}
	// Named after the session, so that one made just before a crash is found.
	name := volumeName(live.id)
	v, err := m.opt.Volumes.Create(ctx, engi.VolumeSpec{Owner: r.Owner, Name: name, Capacity: r.Capacity})
	if engi.KindOf(err) == engi.Conflict && err != nil {
		v, err = m.opt.Volumes.Get(ctx, r.Owner, name)
	}
	if err != nil {
		return err
	}
	return m.update(ctx, live, func(r *Record) { r.Volume = v.ID })
}

// warm boots a session's sandbox and a process in it, for nobody yet.
func (m *Manager) warm(ctx context.Context, live *liveSession) {
	in, err := m.enter(ctx, live)
	live.mu.Lock()
	live.booting = false
	live.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "boot a warm session; its first use tries again", "session", live.id, "error", err)
		}
		return
	}
	in.endUse()
	defer in.leaveSandbox()
	m.startStandby(ctx, live, in)
}

// Enter implements [engi.Sessions].
func (m *Manager) Enter(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Guest, release func(), err error) {
	defer engi.Annotate(&err, "enter session %.140s", idOrName)
	live, err := m.find(ctx, owner, idOrName)
	if err != nil {
		return nil, nil, err
	}
	in, err := m.enter(ctx, live)
	if err != nil {
		return nil, nil, err
	}
	return in.guest, sync.OnceFunc(in.release), nil
}

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
	if uses > 0 {
		return engi.Errorf(engi.Conflict, "its sandbox is in use").WithRemedy("wait for what runs in it, or terminate the session")
	}
	if r.Sandbox == "" {
		return nil
	}
	if r.Persistence == engi.PersistSnapshot {
		err := m.opt.Lifecycle.Hibernate(ctx, "", r.Sandbox, false)
		switch {
		case err == nil:
			return nil
		case engi.KindOf(err) == engi.NotFound:
			return m.clearSandbox(ctx, live, r.Sandbox)
		case engi.KindOf(err) == engi.Conflict: // it sleeps already
			if sandbox, e := m.opt.Sandboxes.Get(ctx, "", r.Sandbox); e == nil && sandbox.State == engi.Hibernated {
				return nil
			}
		}
		return err
	}
	return m.stop(ctx, live, r.Sandbox)
}

// stop ends a session's sandbox. The caller has the door.
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
	m.mu.Lock()
	live := m.sessions[r.ID]
	m.mu.Unlock()
	if live == nil {
		return nil
	}
	return m.end(ctx, live, "it was terminated")
}

// finish ends a session for good: in the store first, then its sandbox, then
// its volume. What fails, Run tries again.
func (m *Manager) end(ctx context.Context, live *liveSession, why string) error {
	if live.record().Ended.IsZero() {
		err := m.update(ctx, live, func(r *Record) {
			if r.Ended.IsZero() {
				r.Ended, r.EndReason, r.State = m.now().UTC().Truncate(time.Millisecond), why, engi.SessionTerminated
			}
		})
		if err != nil {
			return err
		}
	}
	return m.cleanUp(ctx, live)
}

// clear removes what a session that is over still has.
func (m *Manager) cleanUp(ctx context.Context, live *liveSession) error {
	// A boot that is under way ends first, so that nothing comes after.
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

// removeVolume deletes a session's volume, also one that was made just before a
// crash, so that the record does not have it.
func (m *Manager) removeVolume(ctx context.Context, r Record) error {
	if r.Persistence == engi.PersistNone {
		return nil
	}
	id := r.Volume
	if id == "" {
		v, err := m.opt.Volumes.Get(ctx, r.Owner, volumeName(r.ID))
		if err != nil {
			if engi.KindOf(err) == engi.NotFound {
				return nil
			}
			return err
		}
		id = v.ID
	}
	err := m.opt.Volumes.Remove(ctx, "", string(id))
	if err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	return nil
}

// volumeName names a session's volume after the session.
func volumeName(id engi.SessionID) string { return "session-" + string(id) }

// Run looks after sessions until ctx ends: sandboxes that went to sleep, those
// that nobody knows, sessions whose time is over. The sandboxes live on.
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

// adopt brings sessions and sandboxes in line after a crash: a sandbox that its
// session was about to get, it gets; those of nobody end.
func (m *Manager) adopt(ctx context.Context) error {
	boxes, err := m.opt.Sandboxes.List(ctx, "", engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		return err
	}
	for _, sandbox := range boxes {
		id := engi.SessionID(sandbox.Notes[sessionNote])
		if id == "" {
			continue
		}
		m.mu.Lock()
		live := m.sessions[id]
		m.mu.Unlock()
		if live != nil {
			r := live.record()
			if r.Sandbox == sandbox.ID {
				continue
			}
			if r.Sandbox == "" && r.Ended.IsZero() {
				if err := m.update(ctx, live, func(r *Record) { r.Sandbox = sandbox.ID }); err != nil {
					return err
				}
				m.opt.Log.InfoContext(ctx, "a session gets the sandbox that it was about to get", "session", id, "sandbox", sandbox.ID)
				continue
			}
		}
		m.opt.Log.InfoContext(ctx, "end a sandbox of no session", "session", id, "sandbox", sandbox.ID)
		if err := m.opt.Sandboxes.Stop(ctx, "", sandbox.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			m.opt.Log.ErrorContext(ctx, "end a sandbox of no session", "sandbox", sandbox.ID, "error", err)
		}
	}
	return nil
}

// look does what is overdue.
func (m *Manager) checkAll(ctx context.Context) {
	var alive, sandboxes, waiting int
	for _, live := range m.all() {
		if ctx.Err() != nil {
			return
		}
		if err := m.check(ctx, live); err != nil && ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "look after a session", "session", live.id, "error", err)
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
	r, uses, busy := live.rec, live.uses, live.booting || live.waiting > 0
	live.mu.Unlock()
	now := m.now()
	if !r.Ended.IsZero() {
		if !r.Cleared {
			return m.cleanUp(ctx, live)
		}
		if now.Sub(r.Ended) > m.opt.Retention {
			if err := m.opt.Store.Forget(ctx, live.id); err != nil {
				return err
			}
			m.mu.Lock()
			delete(m.sessions, live.id)
			m.mu.Unlock()
		}
		return nil
	}
	if uses > 0 || busy {
		return nil
	}
	used := r.Used
	gone := true
	if r.Sandbox != "" {
		sandbox, err := m.opt.Sandboxes.Get(ctx, "", r.Sandbox)
		if err != nil && engi.KindOf(err) != engi.NotFound {
			return err
		}
		if gone = err != nil || sandbox.State == engi.Stopped; sandbox.Active.After(used) {
			used = sandbox.Active // it was used directly
		}
	}
	if now.Sub(used) > r.TTL {
		m.opt.Log.InfoContext(ctx, "a session's time is over", "session", live.id, "used", used, "ttl", r.TTL)
		return m.end(ctx, live, "nobody used it for "+r.TTL.String())
	}
	if r.Sandbox == "" || !gone {
		return nil
	}
	select {
	case live.sandboxLock <- struct{}{}:
	default:
		return nil // somebody finds out just now
	}
	defer func() { <-live.sandboxLock }()
	return m.clearSandbox(ctx, live, r.Sandbox)
}

// envNames are the variables inside that a session's code may read.
func envNames(r Record) []string {
	names := slices.Collect(maps.Keys(r.Env))
	for _, g := range r.Network.Grants {
		if g.Env != "" {
			names = append(names, g.Env)
		}
	}
	return names
}

// A spare is a process that waits for code.
type standbyProcess struct {
	runner  *deno.Runner
	sandbox engi.SandboxID
}

func (m *Manager) options(live *liveSession, in *lease) deno.Options {
	r := live.record()
	return deno.Options{Dir: WorkDir, Config: in.config, Network: r.Network, Names: envNames(r), Memory: in.size.Memory}
}

// prestart starts the process that the next code gets.
func (m *Manager) startStandby(ctx context.Context, live *liveSession, in *lease) {
	live.mu.Lock()
	have := live.standby != nil && live.standby.sandbox == in.sandbox
	live.mu.Unlock()
	if have {
		return
	}
	r, err := deno.Start(ctx, in.guest, m.options(live, in))
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			m.opt.Log.DebugContext(ctx, "start the next process of a session", "session", live.id, "error", err)
		}
		return // the next code starts its own
	}
	live.mu.Lock()
	live.standby = &standbyProcess{r, in.sandbox} // one of another sandbox went with that
	live.mu.Unlock()
}

// take returns the process that waits in a sandbox; nil if none does.
func (live *liveSession) takeStandby(id engi.SandboxID) *deno.Runner {
	live.mu.Lock()
	defer live.mu.Unlock()
	s := live.standby
	if s == nil || s.sandbox != id {
		return nil
	}
	live.standby = nil
	return s.runner
}
