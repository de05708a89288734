package session

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/session/deno"
)

// A lease is one use of a session's sandbox. The sandbox stays awake until leaveSandbox is called,
// and the session counts as used until endUse is called.
type lease struct {
	guest        engi.Guest
	sandbox      engi.SandboxID
	config       string    // path of deno.json; empty for none
	size         engi.Size // size of the sandbox
	network      engi.NetworkPolicy
	booted       time.Duration // time spent on getting a new sandbox; 0 for an existing one
	endUse       func()
	leaveSandbox func() // must be called after endUse
}

func (l *lease) release() {
	l.endUse()
	l.leaveSandbox()
}

// Enter implements [engi.Sessions].
func (m *Manager) Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Guest, release func(), err error) {
	defer engi.Annotate(&err, "enter session %.140s", idOrName)
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return nil, nil, err
	}
	l, err := m.enter(ctx, live)
	if err != nil {
		return nil, nil, err
	}
	leave := m.connect(ctx, live)
	return l.guest, sync.OnceFunc(func() {
		l.release()
		leave()
	}), nil
}

// enter leases a session's sandbox, or a new one if there is none. The caller
// must release the lease.
func (m *Manager) enter(ctx context.Context, live *liveSession) (*lease, error) {
	if !m.isServing() {
		return nil, errNotServing
	}
	unlock, err := live.sandboxLock.Acquire(ctx, "session")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := live.checkAlive(); err != nil {
		return nil, err
	}
	if r := live.record(); r.over() {
		return nil, engi.Errorf(engi.NotFound, "the session has reached its maximum duration of %v, and ends", r.MaxDuration).
			WithRemedy("create a new one, with a larger max_duration if the node allows it")
	}
	began := time.Now()
	if r := live.record(); r.Sandbox != "" {
		// Record changes of the sandbox's state before this call changes it again.
		if err := m.observe(ctx, live, r); err != nil {
			return nil, err
		}
	}
	if r := live.record(); r.Workspace != "" {
		return m.enterWorkspace(ctx, live, r)
	}
	var l *lease
	booted, err := m.sandboxes.Open(ctx, holder.Claim{
		Thing: string(live.id), Sandbox: live.record().Sandbox,
		Begin: func() (engi.SandboxSpec, error) { return m.beginBoot(ctx, live) },
		Record: func(id engi.SandboxID, _ int) error {
			return m.update(ctx, live, func(r *Record) { r.Sandbox = id })
		},
		Enter: func(id engi.SandboxID, created bool) (err error) {
			l, err = m.acquire(ctx, live, id, created)
			return err
		},
	})
	if !booted {
		return l, err
	}
	defer live.setBooting(false)
	if err == nil {
		if err = m.change(ctx, live, engi.SessionRunning, causeUse); err != nil {
			l.release()
		}
	}
	if err != nil {
		m.abandonBoot(ctx, live)
		engi.Annotate(&err, "boot the sandbox of session %s", live.id)
		return nil, err
	}
	l.booted = time.Since(began)
	m.opt.Meter.Booted(l.booted)
	return l, nil
}

// enterWorkspace leases the sandbox of a session's workspace, which it starts if it is not running.
func (m *Manager) enterWorkspace(ctx context.Context, live *liveSession, r Record) (*lease, error) {
	enter := func(w engi.Workspace) (*lease, error) {
		if live.record().Sandbox != w.Sandbox {
			if err := m.update(ctx, live, func(r *Record) { r.Sandbox = w.Sandbox }); err != nil {
				return nil, err
			}
		}
		return m.acquire(ctx, live, w.Sandbox, false)
	}
	w, err := m.opt.Shared.Get(ctx, r.Owner.Viewer(), string(r.Workspace))
	if err != nil {
		return nil, err
	}
	if w.State == engi.WorkspaceRunning && w.Sandbox != "" {
		if l, err := enter(w); !engi.Is(err, engi.NotFound) {
			return l, err
		}
	}
	if w, err = m.opt.Shared.Start(ctx, r.Owner.Viewer(), string(r.Workspace)); err != nil {
		return nil, err
	}
	return enter(w)
}

// acquire leases a sandbox. fresh means that no program has run in it yet.
func (m *Manager) acquire(ctx context.Context, live *liveSession, id engi.SandboxID, fresh bool) (*lease, error) {
	g, leave, err := m.opt.Sandboxes.Enter(ctx, engi.Everyone, id)
	if err != nil {
		return nil, err
	}
	sandbox, err := m.opt.Sandboxes.Get(ctx, engi.Everyone, id)
	live.mu.Lock()
	prepared := live.prepared == id
	live.mu.Unlock()
	if err == nil && !prepared {
		of := engi.SessionID("") // all code in a sandbox of its own
		if live.record().Workspace != "" {
			of = live.id
		}
		err = deno.Prepare(ctx, g, of, fresh && sandbox.Snapshot == "")
	}
	if err == nil {
		err = m.ensureRepository(ctx, live, g, id)
	}
	if err == nil {
		err = m.touch(ctx, live, fresh)
	}
	if err != nil {
		leave()
		return nil, err
	}
	live.mu.Lock()
	live.uses++
	live.prepared = id
	live.mu.Unlock()
	endUse := func() {
		live.mu.Lock()
		live.uses--
		live.mu.Unlock()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		used := timestamp()
		if err := m.update(late, live, func(r *Record) { r.Used = used }); err != nil {
			// If this fails and the node crashes, the session appears to have been used last when
			// it was entered.
			m.opt.Log.WarnContext(ctx, "record the use of a session", "session", live.id, "error", err)
			live.mu.Lock()
			live.rec.Used = used
			live.mu.Unlock()
		}
	}
	return &lease{guest: g, sandbox: id, size: sandbox.Size, network: sandbox.Network, config: sandbox.Notes["config"], endUse: endUse, leaveSandbox: leave}, nil
}

// touch records that a session is in use, so that it does not expire if
// the node crashes and restarts. It also records the state running, unless the sandbox is
// still being booted.
func (m *Manager) touch(ctx context.Context, live *liveSession, booting bool) error {
	now, r := timestamp(), live.record()
	if now.Sub(r.Used) < time.Second && (booting || r.State == engi.SessionRunning) {
		return nil
	}
	return m.update(ctx, live, func(r *Record) {
		if r.Used = now; !booting {
			r.become(engi.SessionRunning, causeUse)
		}
	})
}

// clearSandbox records that a session has lost its sandbox, and the cause.
func (m *Manager) clearSandbox(ctx context.Context, live *liveSession, id engi.SandboxID, cause string) error {
	return m.update(ctx, live, func(r *Record) {
		if r.Sandbox == id {
			r.become(engi.SessionIdle, cause)
			r.Sandbox = ""
		}
		live.standby = nil // mu is held by update
	})
}

// beginBoot records that a session's sandbox is being booted, and returns a spec for it. The
// sandbox carries the session's ID as a note, by which adopt finds it after a crash.
func (m *Manager) beginBoot(ctx context.Context, live *liveSession) (spec engi.SandboxSpec, err error) {
	live.setBooting(true)
	if id := live.record().Sandbox; id != "" {
		m.opt.Log.DebugContext(ctx, "a session's sandbox is gone", "session", live.id, "sandbox", id)
		if err := m.clearSandbox(ctx, live, id, causeLost); err != nil {
			return spec, err
		}
	}
	if err := m.ensureVolume(ctx, live); err != nil {
		return spec, err
	}
	r := live.record()
	template, config := r.Template, ""
	if template == "" {
		if template, config, err = m.opt.Packages.Template(ctx); err != nil {
			return spec, err
		}
	}
	spec = engi.SandboxSpec{
		Owner: r.Owner, Template: template, Size: r.Size, Env: r.Env, Network: r.Network, Ports: engi.PortPolicy{Private: true},
		Metadata: maps.Clone(r.Metadata), Notes: map[string]string{noteKey: string(live.id), "config": config},
		Lifetime: engi.Lifetime{Timeout: m.opt.Defaults.MaxAwake, Idle: r.Dormancy, Max: m.opt.Defaults.MaxAwake, OnTimeout: engi.EndKill, AutoResume: true},
	}
	if r.CPUQuota > 0 {
		// After an earlier sandbox, a new one does not get a full budget, only the CPU time saved in between.
		window := m.opt.Defaults.CPUQuota.Window
		saved := window
		if !r.Freed.IsZero() {
			saved = min(window, time.Since(r.Freed))
		}
		spec.CPUQuota = engi.CPUQuota{VCPUs: r.CPUQuota, Window: window, Credit: time.Duration(r.CPUQuota * float64(saved))}
	}
	if r.releasedByCheck() {
		spec.Lifetime.Idle = m.opt.Defaults.MaxAwake
	}
	if r.Volume != "" {
		spec.Volumes = []engi.VolumeMount{{Volume: string(r.Volume), Path: WorkDir}}
	}
	if r.Persistence == engi.PersistSnapshot {
		spec.Lifetime.OnTimeout = engi.EndHibernate
	}
	if r.Persistence == engi.PersistOverlay {
		spec.Lifetime.OnTimeout, spec.Lifetime.DiskOnly = engi.EndHibernate, true
		if err := m.findOverlay(ctx, live, &spec); err != nil {
			return spec, err
		}
	}
	return spec, m.update(ctx, live, func(r *Record) {
		r.Boots++
		r.Changed = r.Persistence == engi.PersistWorkspace
		r.become(engi.SessionBooting, causeUse)
	})
}

// abandonBoot destroys the sandbox of a boot that failed. The caller holds sandboxLock.
func (m *Manager) abandonBoot(ctx context.Context, live *liveSession) {
	r := live.record()
	if r.State != engi.SessionBooting {
		return
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := m.stop(late, live, r.Sandbox, causeFailed); err != nil {
		m.opt.Log.ErrorContext(ctx, "end a failed boot", "session", live.id, "sandbox", r.Sandbox, "error", err)
	}
}

// ensureVolume creates a session's volume unless it exists.
func (m *Manager) ensureVolume(ctx context.Context, live *liveSession) error {
	r := live.record()
	if r.Persistence == engi.PersistNone {
		return nil
	}
	if r.Volume != "" {
		_, err := m.opt.Volumes.Get(ctx, engi.Everyone, string(r.Volume))
		if err == nil {
			return m.fillVolume(ctx, live)
		}
		if !engi.Is(err, engi.NotFound) {
			return err
		}
		m.opt.Log.WarnContext(ctx, "a session's volume is gone, creating an empty one", "session", live.id, "volume", r.Volume)
	}
	// The volume was created just before a crash.
	name := volumeName(live.id)
	v, err := m.opt.Volumes.Create(ctx, engi.VolumeSpec{Owner: r.Owner, Name: name, Capacity: r.Capacity})
	if engi.Is(err, engi.Conflict) {
		v, err = m.opt.Volumes.Get(ctx, r.Owner.Viewer(), name)
	}
	if err != nil {
		return err
	}
	if err := m.update(ctx, live, func(r *Record) { r.Volume, r.Filled = v.ID, false }); err != nil {
		return err
	}
	return m.fillVolume(ctx, live)
}

// volumeName returns the name of a session's volume.
func volumeName(id engi.SessionID) string { return "session-" + string(id) }

// warm boots a session's sandbox and a standby process before they are requested.
func (m *Manager) warm(ctx context.Context, live *liveSession) {
	l, err := m.enter(ctx, live)
	live.setBooting(false)
	if err != nil {
		if ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "boot a warm session; its first use tries again", "session", live.id, "error", err)
		}
		return
	}
	l.endUse()
	defer l.leaveSandbox()
	if live.record().Workspace == "" { // a process that waits would outlive a session in a workspace
		m.startStandby(ctx, live, l)
	}
}
