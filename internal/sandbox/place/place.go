// Package place finds where programs run: in a session, a workspace or a sandbox that
// a caller names. Terminals, SSH, tools of agents and scripts all find and enter places
// with it, and so they agree on names, rights and errors.
//
// It does not manage places; package session, workspace and sandbox/fleet do.
package place

import (
	"cmp"
	"context"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
)

// A Place names where programs run. One of its fields is set.
type Place struct {
	Session   string // ID or name
	Workspace string // ID or name
	Sandbox   engi.SandboxID
}

func (p Place) String() string { return cmp.Or(p.Session, p.Workspace, string(p.Sandbox)) }

// Found is a place that a viewer may enter.
type Found struct {
	Owner     engi.Owner
	Session   engi.SessionID   // empty outside of sessions
	Workspace engi.WorkspaceID // empty outside of workspaces
	Sandbox   engi.SandboxID   // empty if the session or workspace has none now
	State     engi.State       // state of the sandbox
}

// Place returns the place with its ID.
func (f Found) Place() Place {
	switch {
	case f.Session != "":
		return Place{Session: string(f.Session)}
	case f.Workspace != "":
		return Place{Workspace: string(f.Workspace)}
	}
	return Place{Sandbox: f.Sandbox}
}

// Ended reports whether the sandbox has ended, or is about to.
func (f Found) Ended() bool { return f.State == engi.Stopping || f.State == engi.Stopped }

// Sessions is the part of [engi.Sessions] that a Resolver needs.
type Sessions interface {
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error)
	Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (g engi.Guest, release func(), err error)
}

// Workspaces is the part of [engi.Workspaces] that a Resolver needs.
type Workspaces interface {
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error)
	Start(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error)
}

// Sandboxes is the part of [engi.Sandboxes] that a Resolver needs.
type Sandboxes interface {
	Get(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Sandbox, error)
	List(ctx context.Context, viewer engi.Viewer, f engi.SandboxFilter) ([]engi.Sandbox, error)
	Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (g engi.Guest, release func(), err error)
}

// A Resolver finds and enters places. A field is nil on a node without such places.
// It is safe for concurrent use.
type Resolver struct {
	Sessions   Sessions
	Workspaces Workspaces
	Sandboxes  Sandboxes
}

// Find returns a place, and does not wake its sandbox. It reports NotFound for a place that viewer
// does not see and for a session that has ended, Denied for a workspace that viewer may only
// read, and Unsupported for a kind of place that this node does not have.
func (r Resolver) Find(ctx context.Context, viewer engi.Viewer, p Place) (f Found, err error) {
	if f, err = r.look(ctx, viewer, p); err != nil || f.Sandbox == "" {
		return f, err
	}
	inside := p.Session != "" || p.Workspace != ""
	if inside {
		viewer = engi.Everyone // a viewer who may enter the place may enter its sandbox
	}
	s, err := r.Sandboxes.Get(ctx, viewer, f.Sandbox)
	if inside && engi.Is(err, engi.NotFound) {
		f.Sandbox = "" // the sandbox has just stopped
		return f, nil
	}
	if err != nil {
		return Found{}, err
	}
	if f.State = s.State; !inside {
		f.Owner = s.Owner
	}
	return f, nil
}

// look is like Find without the state of the sandbox.
func (r Resolver) look(ctx context.Context, viewer engi.Viewer, p Place) (Found, error) {
	switch {
	case p.Session != "":
		if r.Sessions == nil {
			return Found{}, engi.Errorf(engi.Unsupported, "sessions are not available here").WithRemedy("use a sandbox, or add a section [sandbox] to the node's configuration")
		}
		s, err := r.Sessions.Get(ctx, viewer, p.Session)
		if err == nil && s.State == engi.SessionTerminated {
			err = engi.Errorf(engi.NotFound, "session %s has ended", s.ID).WithRemedy("create a new one")
		}
		return Found{Owner: s.Owner, Session: s.ID, Sandbox: s.Sandbox}, err
	case p.Workspace != "":
		if r.Workspaces == nil {
			return Found{}, engi.Errorf(engi.Unsupported, "workspaces are not available here").WithRemedy("use a session or a sandbox")
		}
		w, err := r.Workspaces.Get(ctx, viewer, p.Workspace)
		if err == nil {
			err = w.Allow(viewer, engi.RoleEditor)
		}
		f := Found{Owner: w.Owner, Workspace: w.ID}
		if w.State == engi.WorkspaceRunning {
			f.Sandbox = w.Sandbox
		}
		return f, err
	case p.Sandbox != "" && r.Sandboxes != nil:
		return Found{Sandbox: p.Sandbox}, nil
	}
	return Found{}, engi.Errorf(engi.Unsupported, "there is no sandbox to work in").WithRemedy("name a session, a workspace or a sandbox")
}

// Enter returns the guest of a place, and wakes or starts its sandbox. The caller
// must call release. Errors are those of Find and of starting the sandbox.
func (r Resolver) Enter(ctx context.Context, viewer engi.Viewer, p Place) (g engi.Guest, release func(), err error) {
	switch {
	case p.Session != "" && r.Sessions != nil:
		return r.Sessions.Enter(ctx, viewer, p.Session)
	case p.Session == "" && p.Workspace == "" && p.Sandbox != "" && r.Sandboxes != nil:
		return r.Sandboxes.Enter(ctx, viewer, p.Sandbox)
	}
	f, err := r.look(ctx, viewer, p)
	if err != nil {
		return nil, nil, err
	}
	if f.Sandbox != "" {
		g, release, err = r.Sandboxes.Enter(ctx, engi.Everyone, f.Sandbox)
		if !engi.Is(err, engi.NotFound) {
			return g, release, err
		}
	}
	w, err := r.Workspaces.Start(ctx, viewer, string(f.Workspace))
	if err != nil {
		return nil, nil, err
	}
	return r.Sandboxes.Enter(ctx, engi.Everyone, w.Sandbox)
}

// nameLabel is the key of the metadata with the name of a sandbox.
const nameLabel = "name"

// Named returns the place of a name or an ID: a sandbox by ID, otherwise a session, otherwise a
// sandbox with the metadata "name", otherwise a workspace. With own, only places of the viewer's
// own are found. It reports NotFound if there is none, Conflict if several sandboxes have the
// name, and Denied for a workspace of another owner: a connection there would outlast a change of
// the viewer's role.
func (r Resolver) Named(ctx context.Context, viewer engi.Viewer, own bool, name string) (Found, error) {
	absent := engi.Errorf(engi.NotFound, "there is no session, workspace or sandbox %.80q", name).
		WithRemedy("'engi session list', 'engi workspace list' and 'engi sandbox list' show their names")
	foreign := func(o engi.Owner) bool { return own && o.Viewer() != viewer }
	if name == "" {
		return Found{}, absent
	}
	if id, err := engi.ParseSandboxID(name); err == nil {
		f, err := r.Find(ctx, viewer, Place{Sandbox: id})
		if engi.Is(err, engi.NotFound) || err == nil && (foreign(f.Owner) || f.Ended()) {
			return Found{}, absent
		}
		return f, err
	}
	in := func(p Place) (Found, bool, error) {
		f, err := r.look(ctx, viewer, p)
		if engi.Is(err, engi.NotFound) || err == nil && foreign(f.Owner) {
			return Found{}, false, nil
		}
		return f, err == nil, err
	}
	if r.Sessions != nil {
		if f, ok, err := in(Place{Session: name}); ok || err != nil {
			return f, err
		}
	}
	all, err := r.Sandboxes.List(ctx, viewer, engi.SandboxFilter{Metadata: map[string]string{nameLabel: name}, Owned: true, Limit: 100})
	if err != nil {
		return Found{}, err
	}
	all = slices.DeleteFunc(all, func(b engi.Sandbox) bool { return foreign(b.Owner) })
	switch {
	case len(all) == 1:
		return Found{Owner: all[0].Owner, Sandbox: all[0].ID, State: all[0].State}, nil
	case len(all) > 1:
		return Found{}, engi.Errorf(engi.Conflict, "%d sandboxes have the name %.80q", len(all), name).WithRemedy("use an ID instead")
	}
	if r.Workspaces != nil {
		f, ok, err := in(Place{Workspace: name})
		if ok && !viewer.Sees(f.Owner) {
			err = engi.Errorf(engi.Denied, "workspace %s belongs to another owner", f.Workspace).WithRemedy("run programs in it with 'engi workspace exec'")
		}
		if ok || err != nil {
			return f, err
		}
	}
	return Found{}, absent
}
