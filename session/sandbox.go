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
type inside struct {
	guest   engi.Guest
	sandbox engi.SandboxID
	config  string        // of Deno; empty for none
	size    engi.Size     // of the sandbox
	booted  time.Duration // spent on getting it; 0 if it was there
	done    func()        // ends the caller's use of the session
	leave   func()        // after that, ends that of the sandbox
}

// release ends the use of both.
func (in *inside) release() {
	in.done()
	in.leave()
}

// enter gets a session's sandbox, a new one if there is none. The caller calls
// release.
func (m *Manager) enter(ctx context.Context, l *life) (_ *inside, err error) {
	if !m.isServing() {
		return nil, errNotServing
	}
	if err := lock(ctx, l.door); err != nil {
		return nil, err
	}
	defer func() { <-l.door }()
	if err := l.living(); err != nil {
		return nil, err
	}
	began := m.now()
	r := l.record()
	if r.Sandbox != "" {
		in, err := m.enterOld(ctx, l, r)
		if in != nil || err != nil {
			return in, err
		}
	}
	l.mu.Lock()
	l.booting = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.booting = false
		l.mu.Unlock()
	}()
	in, err := m.boot(ctx, l)
	if err != nil {
		return nil, err
	}
	in.booted = m.now().Sub(began)
	m.o.Meter.Booted(in.booted)
	return in, nil
}

// enterOld enters the sandbox that a session has; nil if that is gone.
func (m *Manager) enterOld(ctx context.Context, l *life, r Record) (*inside, error) {
	in, err := m.use(ctx, l, r.Sandbox, false)
	switch {
	case err == nil:
		return in, nil
	case engi.KindOf(err) == engi.NotFound:
		m.o.Log.DebugContext(ctx, "a session's sandbox is gone", "session", l.id, "sandbox", r.Sandbox)
		return nil, m.lose(ctx, l, r.Sandbox)
	default:
		return nil, err
	}
}

// use counts the sandbox as used until the inside is released.
func (m *Manager) use(ctx context.Context, l *life, id engi.SandboxID, fresh bool) (*inside, error) {
	g, release, err := m.o.Sandboxes.Enter(ctx, "", id)
	if err != nil {
		return nil, err
	}
	box, err := m.o.Sandboxes.Get(ctx, "", id)
	l.mu.Lock()
	prepared := l.prepared == id
	l.mu.Unlock()
	if err == nil && !prepared {
		err = deno.Prepare(ctx, g, fresh)
	}
	if err != nil {
		release()
		return nil, err
	}
	if err := m.touch(ctx, l); err != nil {
		release()
		return nil, err
	}
	l.mu.Lock()
	l.uses++
	l.prepared = id
	l.mu.Unlock()
	in := &inside{guest: g, sandbox: id, size: box.Size, config: box.Notes["config"], leave: release}
	in.done = func() {
		l.mu.Lock()
		l.uses--
		l.mu.Unlock()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		used := m.now().UTC().Truncate(time.Millisecond)
		err := m.edit(late, l, func(r *Record) { r.Used = used })
		if err != nil {
			// At worst, after a crash, it looks as if it was left when it was
			// entered.
			m.o.Log.WarnContext(ctx, "record the use of a session", "session", l.id, "error", err)
			l.mu.Lock()
			l.rec.Used = used
			l.mu.Unlock()
		}
	}
	return in, nil
}

// touch records that a session is used from now on: what is done in it must
// not be for nothing because a crash has forgotten that somebody came.
func (m *Manager) touch(ctx context.Context, l *life) error {
	now := m.now().UTC().Truncate(time.Millisecond)
	l.mu.Lock()
	fresh := now.Sub(l.rec.Used) < time.Second
	l.mu.Unlock()
	if fresh {
		return nil
	}
	return m.edit(ctx, l, func(r *Record) { r.Used = now })
}

// lose records that a session has that sandbox no more.
func (m *Manager) lose(ctx context.Context, l *life, id engi.SandboxID) error {
	return m.edit(ctx, l, func(r *Record) {
		if r.Sandbox == id {
			r.Sandbox = ""
		}
		l.spare = nil // edit holds mu
	})
}

// boot makes a sandbox. The attempt is written down before: whoever repeats it
// after a crash gets the same.
func (m *Manager) boot(ctx context.Context, l *life) (_ *inside, err error) {
	defer engi.Annotate(&err, "boot the sandbox of session %s", l.id)
	if err := m.volume(ctx, l); err != nil {
		return nil, err
	}
	r := l.record()
	template, config := r.Template, ""
	if template == "" {
		if template, config, err = m.o.Packages.Template(ctx); err != nil {
			return nil, err
		}
	}
	spec := engi.SandboxSpec{
		Owner: r.Owner, Template: template, Size: r.Size, Env: r.Env, Network: r.Network, Ports: engi.PortPolicy{Private: true},
		Metadata: maps.Clone(r.Metadata), Notes: map[string]string{noteKey: string(l.id), "config": config},
		Lifetime: engi.Lifetime{Timeout: m.o.Defaults.Awake, Idle: r.Dormancy, Max: m.o.Defaults.Awake, OnTimeout: engi.EndKill},
	}
	if r.Volume != "" {
		spec.Volumes = []engi.VolumeMount{{Volume: string(r.Volume), Path: WorkDir}}
	}
	if r.Persistence == engi.PersistSnapshot {
		spec.Lifetime.OnTimeout, spec.Lifetime.AutoResume = engi.EndHibernate, true
	}
	if err := m.edit(ctx, l, func(r *Record) { r.Boots++ }); err != nil {
		return nil, err
	}
	box, err := m.o.Sandboxes.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := m.use(ctx, l, box.ID, true)
	if err == nil {
		if err = m.edit(ctx, l, func(r *Record) { r.Sandbox = box.ID }); err != nil {
			in.release()
		}
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if e := m.o.Sandboxes.Stop(late, "", box.ID); e != nil && engi.KindOf(e) != engi.NotFound {
			m.o.Log.ErrorContext(ctx, "stop a sandbox that its session does not get", "session", l.id, "sandbox", box.ID, "error", e)
		}
		return nil, err
	}
	return in, nil
}

// volume makes sure that a session has the volume it should have.
func (m *Manager) volume(ctx context.Context, l *life) error {
	r := l.record()
	if r.Persistence == engi.PersistNone {
		return nil
	}
	if r.Volume != "" {
		_, err := m.o.Volumes.Get(ctx, "", string(r.Volume))
		if err == nil || engi.KindOf(err) != engi.NotFound {
			return err
		}
		m.o.Log.WarnContext(ctx, "a session's volume is gone: it gets an empty one", "session", l.id, "volume", r.Volume)
	}
	// Named after the session, so that one made just before a crash is found.
	name := volumeName(l.id)
	v, err := m.o.Volumes.Create(ctx, engi.VolumeSpec{Owner: r.Owner, Name: name, Capacity: r.Capacity})
	if engi.KindOf(err) == engi.Conflict && err != nil {
		v, err = m.o.Volumes.Get(ctx, r.Owner, name)
	}
	if err != nil {
		return err
	}
	return m.edit(ctx, l, func(r *Record) { r.Volume = v.ID })
}

// warm boots a session's sandbox and a process in it, for nobody yet.
func (m *Manager) warm(ctx context.Context, l *life) {
	in, err := m.enter(ctx, l)
	l.mu.Lock()
	l.booting = false
	l.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "boot a warm session; its first use tries again", "session", l.id, "error", err)
		}
		return
	}
	in.done()
	defer in.leave()
	m.prestart(ctx, l, in)
}

// Enter implements [engi.Sessions].
func (m *Manager) Enter(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Guest, release func(), err error) {
	defer engi.Annotate(&err, "enter session %.140s", idOrName)
	l, err := m.find(ctx, owner, idOrName)
	if err != nil {
		return nil, nil, err
	}
	in, err := m.enter(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	return in.guest, sync.OnceFunc(in.release), nil
}

// Release implements [engi.Sessions].
func (m *Manager) Release(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "release session %.140s", idOrName)
	l, err := m.find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	if err := lock(ctx, l.door); err != nil {
		return err
	}
	defer func() { <-l.door }()
	l.mu.Lock()
	r, uses := l.rec, l.uses
	l.mu.Unlock()
	if uses > 0 {
		return engi.Errorf(engi.Conflict, "its sandbox is in use").WithRemedy("wait for what runs in it, or terminate the session")
	}
	if r.Sandbox == "" {
		return nil
	}
	if r.Persistence == engi.PersistSnapshot {
		err := m.o.Lifecycle.Hibernate(ctx, "", r.Sandbox, false)
		switch {
		case err == nil:
			return nil
		case engi.KindOf(err) == engi.NotFound:
			return m.lose(ctx, l, r.Sandbox)
		case engi.KindOf(err) == engi.Conflict: // it sleeps already
			if box, e := m.o.Sandboxes.Get(ctx, "", r.Sandbox); e == nil && box.State == engi.Hibernated {
				return nil
			}
		}
		return err
	}
	return m.stop(ctx, l, r.Sandbox)
}

// stop ends a session's sandbox. The caller has the door.
func (m *Manager) stop(ctx context.Context, l *life, id engi.SandboxID) error {
	if err := m.o.Sandboxes.Stop(ctx, "", id); err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	return m.lose(ctx, l, id)
}

// Terminate implements [engi.Sessions].
func (m *Manager) Terminate(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "terminate session %.140s", idOrName)
	r, err := m.o.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	m.mu.Lock()
	l := m.lives[r.ID]
	m.mu.Unlock()
	if l == nil {
		return nil
	}
	return m.finish(ctx, l, "it was terminated")
}

// finish ends a session for good: in the store first, then its sandbox, then
// its volume. What fails, Run tries again.
func (m *Manager) finish(ctx context.Context, l *life, why string) error {
	if l.record().Ended.IsZero() {
		err := m.edit(ctx, l, func(r *Record) {
			if r.Ended.IsZero() {
				r.Ended, r.Why, r.State = m.now().UTC().Truncate(time.Millisecond), why, engi.SessionTerminated
			}
		})
		if err != nil {
			return err
		}
	}
	return m.clear(ctx, l)
}

// clear removes what a session that is over still has.
func (m *Manager) clear(ctx context.Context, l *life) error {
	// A boot that is under way ends first, so that nothing comes after.
	if err := lock(ctx, l.door); err != nil {
		return err
	}
	defer func() { <-l.door }()
	r := l.record()
	if r.Sandbox != "" {
		if err := m.stop(ctx, l, r.Sandbox); err != nil {
			return err
		}
	}
	if err := m.removeVolume(ctx, r); err != nil {
		return err
	}
	return m.edit(ctx, l, func(r *Record) { r.Volume, r.Cleared = "", true })
}

// removeVolume deletes a session's volume, also one that was made just before a
// crash, so that the record does not have it.
func (m *Manager) removeVolume(ctx context.Context, r Record) error {
	if r.Persistence == engi.PersistNone {
		return nil
	}
	id := r.Volume
	if id == "" {
		v, err := m.o.Volumes.Get(ctx, r.Owner, volumeName(r.ID))
		if err != nil {
			if engi.KindOf(err) == engi.NotFound {
				return nil
			}
			return err
		}
		id = v.ID
	}
	err := m.o.Volumes.Remove(ctx, "", string(id))
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
	tick := time.NewTicker(m.o.Tick)
	defer tick.Stop()
	for ctx.Err() == nil {
		m.look(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	m.mu.Lock()
	m.serving = false
	m.mu.Unlock()
	m.end()
	m.work.Wait()
	return nil
}

// adopt brings sessions and sandboxes in line after a crash: a sandbox that its
// session was about to get, it gets; those of nobody end.
func (m *Manager) adopt(ctx context.Context) error {
	boxes, err := m.o.Sandboxes.List(ctx, "", engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		return err
	}
	for _, box := range boxes {
		id := engi.SessionID(box.Notes[noteKey])
		if id == "" {
			continue
		}
		m.mu.Lock()
		l := m.lives[id]
		m.mu.Unlock()
		if l != nil {
			r := l.record()
			if r.Sandbox == box.ID {
				continue
			}
			if r.Sandbox == "" && r.Ended.IsZero() {
				if err := m.edit(ctx, l, func(r *Record) { r.Sandbox = box.ID }); err != nil {
					return err
				}
				m.o.Log.InfoContext(ctx, "a session gets the sandbox that it was about to get", "session", id, "sandbox", box.ID)
				continue
			}
		}
		m.o.Log.InfoContext(ctx, "end a sandbox of no session", "session", id, "sandbox", box.ID)
		if err := m.o.Sandboxes.Stop(ctx, "", box.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			m.o.Log.ErrorContext(ctx, "end a sandbox of no session", "sandbox", box.ID, "error", err)
		}
	}
	return nil
}

// look does what is overdue.
func (m *Manager) look(ctx context.Context) {
	var alive, sandboxes, waiting int
	for _, l := range m.all() {
		if ctx.Err() != nil {
			return
		}
		if err := m.lookAt(ctx, l); err != nil && ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "look after a session", "session", l.id, "error", err)
		}
		l.mu.Lock()
		if l.rec.Ended.IsZero() {
			alive++
		}
		if l.rec.Sandbox != "" {
			sandboxes++
		}
		waiting += l.waiting
		l.mu.Unlock()
	}
	m.o.Meter.Sessions(alive, sandboxes, waiting)
}

func (m *Manager) lookAt(ctx context.Context, l *life) error {
	l.mu.Lock()
	r, uses, busy := l.rec, l.uses, l.booting || l.waiting > 0
	l.mu.Unlock()
	now := m.now()
	if !r.Ended.IsZero() {
		if !r.Cleared {
			return m.clear(ctx, l)
		}
		if now.Sub(r.Ended) > m.o.Keep {
			if err := m.o.Store.Forget(ctx, l.id); err != nil {
				return err
			}
			m.mu.Lock()
			delete(m.lives, l.id)
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
		box, err := m.o.Sandboxes.Get(ctx, "", r.Sandbox)
		if err != nil && engi.KindOf(err) != engi.NotFound {
			return err
		}
		if gone = err != nil || box.State == engi.Stopped; box.Active.After(used) {
			used = box.Active // it was used directly
		}
	}
	if now.Sub(used) > r.TTL {
		m.o.Log.InfoContext(ctx, "a session's time is over", "session", l.id, "used", used, "ttl", r.TTL)
		return m.finish(ctx, l, "nobody used it for "+r.TTL.String())
	}
	if r.Sandbox == "" || !gone {
		return nil
	}
	select {
	case l.door <- struct{}{}:
	default:
		return nil // somebody finds out just now
	}
	defer func() { <-l.door }()
	return m.lose(ctx, l, r.Sandbox)
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
type spare struct {
	runner  *deno.Runner
	sandbox engi.SandboxID
}

func (m *Manager) options(l *life, in *inside) deno.Options {
	r := l.record()
	return deno.Options{Dir: WorkDir, Config: in.config, Network: r.Network, Names: envNames(r), Memory: in.size.Memory}
}

// prestart starts the process that the next code gets.
func (m *Manager) prestart(ctx context.Context, l *life, in *inside) {
	l.mu.Lock()
	have := l.spare != nil && l.spare.sandbox == in.sandbox
	l.mu.Unlock()
	if have {
		return
	}
	r, err := deno.Start(ctx, in.guest, m.options(l, in))
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			m.o.Log.DebugContext(ctx, "start the next process of a session", "session", l.id, "error", err)
		}
		return // the next code starts its own
	}
	l.mu.Lock()
	l.spare = &spare{r, in.sandbox} // one of another sandbox went with that
	l.mu.Unlock()
}

// take returns the process that waits in a sandbox; nil if none does.
func (l *life) take(id engi.SandboxID) *deno.Runner {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.spare
	if s == nil || s.sandbox != id {
		return nil
	}
	l.spare = nil
	return s.runner
}
