package session

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Causes of changes of state. If a sandbox ended by itself, the cause is its
// [engi.Cause].
const (
	causeRequest     = "request"      // a client requested it
	causeUse         = "use"          // the session is used
	causeDetach      = "detach"       // the last client left
	causeDormancy    = "dormancy"     // the sandbox was not used for its dormancy
	causeTTL         = "ttl"          // the session was not used for its time to live
	causeMaxDuration = "max_duration" // the session reached its maximum duration
	causeSandbox     = "sandbox"      // the sandbox was changed directly
	causeFailed      = "failed"       // the sandbox did not boot
	causeCrash       = "crash"        // the server ended in the meantime
	causeLost        = string(engi.CauseSandboxLost)
)

var errInUse = engi.Errorf(engi.Conflict, "its sandbox is in use").WithRemedy("wait until its executions end, or terminate the session")

// A Step is a change of a session's state. It is recorded as an event.
type Step struct {
	From, To engi.SessionState
	Cause    string
	Sandbox  engi.SandboxID
}

// become changes the state, unless the state is the same or cannot follow. A change that
// the table does not allow is split into several steps: for example, a hibernated sandbox that is
// paused now was running in between.
func (r *Record) become(to engi.SessionState, cause string) {
	for _, next := range route(r.State, to) {
		r.Steps = append(r.Steps, Step{r.State, next, cause, r.Sandbox})
		if r.State = next; next == engi.SessionIdle {
			r.Freed = timestamp()
		}
	}
	if r.State != engi.SessionRunning {
		r.Attached = nil
	}
}

// route returns the shortest sequence of states from one state to another in the table.
func route(from, to engi.SessionState) []engi.SessionState {
	paths := map[engi.SessionState][]engi.SessionState{from: {}}
	for queue := []engi.SessionState{from}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to {
			break
		}
		for _, next := range engi.SessionStates() {
			if _, err := queue[0].To(next); err == nil && paths[next] == nil {
				paths[next] = append(slices.Clone(paths[queue[0]]), next)
				queue = append(queue, next)
			}
		}
	}
	return paths[to]
}

// observe records changes of the state of a session's sandbox, including those that the session
// has not caused. The caller holds sandboxLock.
func (m *Manager) observe(ctx context.Context, live *liveSession, r Record) error {
	sandbox, gone, err := m.sandboxes.Look(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	if gone {
		cause := cmp.Or(string(sandbox.End), causeLost)
		if sandbox.End == engi.CauseTimeout {
			cause = causeDormancy
		}
		return m.clearSandbox(ctx, live, r.Sandbox, cause)
	}
	cause := causeSandbox
	if sandbox.State == engi.Hibernated && time.Since(sandbox.Active) >= r.Dormancy {
		cause = causeDormancy
	}
	switch to := sessionStates[sandbox.State]; {
	case to == r.State:
		return nil
	case to != engi.SessionRunning && to != engi.SessionSuspended && to != engi.SessionHibernated:
		return nil // the state is changing
	default:
		return m.change(ctx, live, to, cause)
	}
}

// change records a new state.
func (m *Manager) change(ctx context.Context, live *liveSession, to engi.SessionState, cause string) error {
	return m.update(ctx, live, func(r *Record) { r.become(to, cause) })
}

// hibernate writes a session's sandbox to disk. The caller holds sandboxLock.
func (m *Manager) hibernate(ctx context.Context, live *liveSession, cause string) error {
	id := live.record().Sandbox
	err := m.opt.Lifecycle.Hibernate(ctx, engi.Everyone, id, false)
	switch {
	case err == nil:
	case engi.Is(err, engi.NotFound):
		return m.clearSandbox(ctx, live, id, causeLost)
	default:
		sandbox, e := m.opt.Sandboxes.Get(ctx, engi.Everyone, id)
		if e != nil || sandbox.State != engi.Hibernated {
			return err
		}
	}
	return m.change(ctx, live, engi.SessionHibernated, cause)
}

// still runs f for a session with a sandbox that is not in use.
func (m *Manager) still(ctx context.Context, viewer engi.Viewer, idOrName string, f func(*liveSession, Record) error) (engi.Session, error) {
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	if live.record().Workspace != "" {
		return engi.Session{}, engi.Errorf(engi.Unsupported, "the sandbox of the session belongs to its workspace").WithRemedy("stop the workspace, or release the session")
	}
	if m.opt.Lifecycle == nil {
		return engi.Session{}, engi.Errorf(engi.Unsupported, "this node cannot put sandboxes to sleep").WithRemedy("release the session instead")
	}
	unlock, err := live.sandboxLock.Acquire(ctx, "session")
	if err != nil {
		return engi.Session{}, err
	}
	defer unlock()
	if r := live.record(); r.Sandbox != "" {
		if err := m.observe(ctx, live, r); err != nil {
			return engi.Session{}, err
		}
	}
	live.mu.Lock()
	r, uses := live.rec, live.uses
	live.mu.Unlock()
	switch {
	case !r.Ended.IsZero():
		err = live.checkAlive()
	case uses > 0:
		err = errInUse
	case r.Sandbox == "":
		err = engi.Errorf(engi.Conflict, "the session has no sandbox").WithRemedy("resume it first")
	default:
		err = f(live, r)
	}
	if err != nil {
		return engi.Session{}, err
	}
	return m.view(ctx, live), nil
}

// Suspend implements [engi.SessionLifecycle].
func (m *Manager) Suspend(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "suspend session %.140s", idOrName)
	return m.still(ctx, viewer, idOrName, func(live *liveSession, r Record) error {
		if _, err := r.State.To(engi.SessionSuspended); err != nil && r.State != engi.SessionSuspended {
			return engi.Errorf(engi.Conflict, "%w", err).WithRemedy("resume it first")
		}
		if err := m.opt.Lifecycle.Pause(ctx, engi.Everyone, r.Sandbox); err != nil {
			return err
		}
		return m.change(ctx, live, engi.SessionSuspended, causeRequest)
	})
}

// Hibernate implements [engi.SessionLifecycle].
func (m *Manager) Hibernate(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "hibernate session %.140s", idOrName)
	return m.still(ctx, viewer, idOrName, func(live *liveSession, r Record) error {
		if r.pushesOnRelease() && r.State == engi.SessionRunning {
			m.pushBefore(ctx, live, r.Sandbox)
		}
		return m.hibernate(ctx, live, causeRequest)
	})
}

// Resume implements [engi.SessionLifecycle].
func (m *Manager) Resume(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "resume session %.140s", idOrName)
	return m.resume(ctx, viewer, idOrName, nil)
}

// resume resumes or boots a session's sandbox, and applies then to the session's record.
func (m *Manager) resume(ctx context.Context, viewer engi.Viewer, idOrName string, then func(*liveSession, *Record)) (engi.Session, error) {
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	l, err := m.enter(ctx, live)
	if err != nil {
		return engi.Session{}, err
	}
	defer l.release()
	if then != nil {
		if err := m.update(ctx, live, func(r *Record) { then(live, r) }); err != nil {
			return engi.Session{}, err
		}
	}
	return m.view(ctx, live), nil
}

const maxClients = 64 // maximum number of clients attached to one session

// Attach implements [engi.SessionLifecycle].
func (m *Manager) Attach(ctx context.Context, viewer engi.Viewer, idOrName, client string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "attach to session %.140s", idOrName)
	if !namePattern.MatchString(client) {
		return engi.Session{}, engi.Errorf(engi.Invalid, "%.140q is not a valid name of a client", client).
			WithRemedy("use letters, digits, '.', '_' and '-', at most 128")
	}
	var refused error
	s, err := m.resume(ctx, viewer, idOrName, func(live *liveSession, r *Record) {
		switch {
		case slices.ContainsFunc(r.Attached, func(c engi.SessionClient) bool { return c.Name == client }):
		case len(r.Attached) >= maxClients:
			refused = engi.Errorf(engi.Exhausted, "%d clients are attached to it", maxClients).WithRemedy("detach the clients that have left")
		default:
			r.Attached = append(slices.Clip(r.Attached), engi.SessionClient{Name: client, Since: timestamp()})
			r.Note = &Note{Type: engi.EventSessionAttached, Data: map[string]any{"client": client, "clients": len(live.attached()) + 1}}
		}
	})
	if err == nil {
		err = refused
	}
	return s, err
}

// Detach implements [engi.SessionLifecycle].
func (m *Manager) Detach(ctx context.Context, viewer engi.Viewer, idOrName, client string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "detach from session %.140s", idOrName)
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	last := false
	if err := m.update(ctx, live, func(r *Record) {
		left := slices.DeleteFunc(slices.Clone(r.Attached), func(c engi.SessionClient) bool { return c.Name == client })
		if len(left) == len(r.Attached) {
			return
		}
		clients := len(live.attached()) - 1 // mu is held by update
		last = clients == 0
		r.Attached = left
		r.Note = &Note{Type: engi.EventSessionDetached, Data: map[string]any{"client": client, "clients": clients}}
	}); err != nil {
		return engi.Session{}, err
	}
	if r := live.record(); last && r.Persistence != engi.PersistSession {
		err := error(nil)
		if r.Persistence == engi.PersistWorkspace {
			_, err = m.saveWorkspace(ctx, live)
		} else {
			err = m.releaseAndSave(ctx, live, causeDetach)
		}
		// If the sandbox is in use, dormancy saves or releases it later.
		if err != nil && !engi.Is(err, engi.Conflict) {
			return engi.Session{}, err
		}
	}
	return m.view(ctx, live), nil
}
