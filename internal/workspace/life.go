package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// eventData is the data of events about workspaces.
type eventData struct {
	From     engi.WorkspaceState `json:"from,omitempty"`
	State    engi.WorkspaceState `json:"state,omitempty"`
	Sandbox  engi.SandboxID      `json:"sandbox_id,omitempty"`
	Revision int64               `json:"revision,omitempty"`
	Of       int64               `json:"of,omitempty"`
	Commit   string              `json:"commit,omitempty"`
	Text     string              `json:"text,omitempty"`
	Actor    string              `json:"actor,omitempty"`
	Files    int                 `json:"files,omitempty"`
	Error    string              `json:"error,omitempty"`
}

var workspaceName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// Create implements [engi.Workspaces].
func (s *Service) Create(ctx context.Context, spec engi.WorkspaceSpec) (_ engi.Workspace, err error) {
	defer engi.Annotate(&err, "create workspace %.70s", spec.Name)
	if spec.Name != "" && !workspaceName.MatchString(spec.Name) {
		return engi.Workspace{}, engi.Errorf(engi.Invalid, "%.70q is not a name", spec.Name).WithRemedy("use 1 to 63 letters, digits and dashes")
	}
	spec.Template = cmp.Or(spec.Template, defaultTemplate)
	if err := cmp.Or(checkFiles(spec.Files), checkCollaborators(spec.Owner, spec.Collaborators), checkMetadata(spec.Metadata)); err != nil {
		return engi.Workspace{}, err
	}
	if slices.ContainsFunc(spec.Files, func(f engi.WorkspaceFile) bool { return f.Removed }) {
		return engi.Workspace{}, engi.Errorf(engi.Invalid, "a new workspace has no files to delete")
	}
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency}
	spec.Idempotency = ""
	request.Fingerprint = idempotency.Fingerprint(spec)
	r, repeated, err := idempotency.Once(ctx, s.keys, request, s.opt.Store.ByIdempotencyKey, func() (Record, error) { return s.add(ctx, spec, request) })
	if err != nil || repeated {
		return r.Seen(), err
	}
	return s.served(ctx, r)
}

// add records a new workspace.
func (s *Service) add(ctx context.Context, spec engi.WorkspaceSpec, q idempotency.Request) (Record, error) {
	if _, err := s.template(ctx, spec.Owner, spec.Template); err != nil {
		return Record{}, err
	}
	n, err := s.opt.Store.Count(ctx, spec.Owner)
	if err != nil {
		return Record{}, err
	}
	if spec.Owner != "" && n >= maxWorkspaces {
		return Record{}, engi.Errorf(engi.Exhausted, "there are already %d workspaces, which is the limit", n).WithRemedy("remove an unused one")
	}
	now := time.Now().UTC()
	r := Record{
		Workspace: engi.Workspace{
			ID: engi.NewWorkspaceID(), Owner: spec.Owner, Name: spec.Name, Template: spec.Template, State: engi.WorkspaceStopped,
			Collaborators: slices.Clone(spec.Collaborators), Metadata: maps.Clone(spec.Metadata), Created: now, Used: now,
		},
		Idempotency: q.Key, Fingerprint: q.Fingerprint,
	}
	r.Name = cmp.Or(r.Name, "workspace-"+r.ID.Label()[:8])
	if r.Services, err = s.newServices(ctx, nil, spec.Services); err != nil {
		return Record{}, err
	}
	first, err := s.first(ctx, &r, spec.Files)
	if err != nil {
		return Record{}, err
	}
	return r, s.opt.Store.Put(ctx, r, first)
}

// served starts the services of a workspace that are to run, and returns the workspace
// afterwards. The result of each service is in its record.
func (s *Service) served(ctx context.Context, r Record) (engi.Workspace, error) {
	if len(r.Services) == 0 {
		return r.Seen(), nil
	}
	if err := s.startServices(ctx, r); err != nil {
		return r.Seen(), err
	}
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(r.ID))
	return r.Seen(), err
}

// first returns a function that records the first revision of a workspace; nil if there are no files.
func (s *Service) first(ctx context.Context, r *Record, files []engi.WorkspaceFile) (func(tx Tx) error, error) {
	if len(files) == 0 {
		return nil, nil
	}
	next, objects, err := put(repo.Version{Files: repo.Files{}}, files)
	if err != nil {
		return nil, err
	}
	if err := next.Check(); err != nil {
		return nil, err
	}
	u := &use{rec: *r, last: repo.Version{Files: repo.Files{}}}
	rev := engi.WorkspaceRevision{Number: 1, Actor: engi.ActorOf(ctx), Message: "Begin with the files of the request", Created: r.Created.Truncate(time.Second)}
	if rev.Changed, r.Size, err = s.measure(ctx, u, next, objects); err != nil {
		return nil, err
	}
	v, made, err := u.last.Next(next, repo.Note{Message: rev.Message, Actor: rev.Actor, Time: rev.Created})
	if err != nil {
		return nil, err
	}
	rev.Commit = v.Commit
	r.Revision = 1
	return func(tx Tx) error { return record(r, tx, rev, append(objects, made...)) }, nil
}

func checkCollaborators(owner engi.Owner, all []engi.Collaborator) error {
	if len(all) > engi.MaxCollaborators {
		return engi.Errorf(engi.Invalid, "there are %d collaborators, %d at most", len(all), engi.MaxCollaborators)
	}
	seen := map[engi.Owner]bool{}
	for _, c := range all {
		switch {
		case c.Owner == "" || len(c.Owner) > maxName:
			return engi.Errorf(engi.Invalid, "%.70q is no collaborator", c.Owner).WithRemedy("name the owner of a key")
		case c.Owner == owner || seen[c.Owner]:
			return engi.Errorf(engi.Invalid, "%.70q is listed twice, or is the workspace's owner", c.Owner)
		case !slices.Contains([]engi.WorkspaceRole{engi.RoleViewer, engi.RoleReviewer, engi.RoleEditor}, c.Role):
			return engi.Errorf(engi.Invalid, "%.70q cannot be the role of %.70q", c.Role, c.Owner).WithRemedy("use viewer, reviewer or editor")
		}
		seen[c.Owner] = true
	}
	return nil
}

func checkMetadata(md map[string]string) error {
	var f engi.Faults
	f.Metadata("metadata", md)
	return f.Err()
}

// template returns a template that workspaces may use.
func (s *Service) template(ctx context.Context, owner engi.Owner, name string) (engi.Template, error) {
	t, err := s.opt.Templates.Get(ctx, name)
	if err == nil && !t.VisibleTo(owner.Reach()) {
		err = engi.ErrNoTemplate
	}
	return t, err
}

// Get implements [engi.Workspaces].
func (s *Service) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error) {
	r, err := s.find(ctx, viewer, idOrName, engi.RoleViewer)
	if err != nil {
		return engi.Workspace{}, err
	}
	return r.Seen(), nil
}

// List implements [engi.Workspaces].
func (s *Service) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Workspace, error) {
	all, err := s.opt.Store.List(ctx, viewer, p)
	if err != nil {
		return nil, err
	}
	seen := make([]engi.Workspace, len(all))
	for i, r := range all {
		seen[i] = r.Seen()
	}
	return seen, nil
}

// Change implements [engi.Workspaces].
func (s *Service) Change(ctx context.Context, viewer engi.Viewer, idOrName string, c engi.WorkspaceChange) (_ engi.Workspace, err error) {
	defer engi.Annotate(&err, "change workspace %.70s", idOrName)
	need := engi.RoleEditor
	if c.Collaborators != nil || len(c.Share) > 0 || len(c.Unshare) > 0 || c.Preview != nil && c.Preview.Public {
		need = engi.RoleOwner
	}
	r, err := s.find(ctx, viewer, idOrName, need)
	if err != nil {
		return engi.Workspace{}, err
	}
	if c.Collaborators != nil {
		err = checkCollaborators(r.Owner, *c.Collaborators)
	}
	if err = cmp.Or(err, checkCollaborators(r.Owner, c.Share)); err != nil { // duplicates would replace each other
		return engi.Workspace{}, err
	}
	if len(c.Unshare) > engi.MaxCollaborators {
		return engi.Workspace{}, engi.Errorf(engi.Invalid, "%d owners are to work in it no more, %d at most do", len(c.Unshare), engi.MaxCollaborators)
	}
	if err := cmp.Or(checkMetadata(c.Metadata), checkPreview(c.Preview)); err != nil {
		return engi.Workspace{}, err
	}
	r, err = s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error {
		if err := r.Allow(viewer, need); err != nil {
			return err // the workspace has changed since it was read
		}
		all, err := c.Of(r.Collaborators)
		if err != nil {
			return err
		}
		if err := checkCollaborators(r.Owner, all); err != nil {
			return err
		}
		shows := ""
		if r.Collaborators = all; c.Preview != nil {
			r.Preview = *c.Preview
			shows = previewSummary(r.Preview)
		}
		if c.Metadata != nil {
			r.Metadata = maps.Clone(c.Metadata)
		}
		return tx.Emit(engi.EventWorkspaceUpdated, eventData{Text: shows, Actor: engi.ActorOf(ctx)})
	})
	return r.Seen(), err
}

// Start implements [engi.Workspaces].
func (s *Service) Start(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Workspace, err error) {
	defer engi.Annotate(&err, "start workspace %.70s", idOrName)
	r, release, err := s.hold(ctx, viewer, idOrName, engi.RoleEditor)
	if err != nil {
		return engi.Workspace{}, err
	}
	r, err = s.wantServices(ctx, r.ID)
	if err != nil {
		release()
		return engi.Workspace{}, err
	}
	// The services start concurrently. This call waits for them after it has released the workspace,
	// so that a stop of the workspace, which also stops its services, need not wait.
	var services sync.WaitGroup
	services.Go(func() { err = s.startServices(ctx, r) })
	started, failed := s.start(ctx, r)
	release()
	services.Wait()
	if err = cmp.Or(failed, err); err != nil || len(r.Services) == 0 {
		return started.Seen(), err
	}
	r, err = s.opt.Store.Find(ctx, engi.Everyone, string(r.ID))
	return r.Seen(), err
}

// start gives a locked workspace a sandbox with its files. If that fails, the
// record has the error.
func (s *Service) start(ctx context.Context, r Record) (_ Record, err error) {
	u, err := s.use(ctx, r, true)
	if err != nil {
		return s.failed(ctx, r, err)
	}
	defer func() { u.leave() }()
	if u.g != nil && u.rec.State == engi.WorkspaceRunning {
		return u.rec, nil
	}
	if u.g == nil {
		if err := s.boot(ctx, u); err != nil {
			return s.failed(ctx, u.rec, err)
		}
		if err := s.furnish(ctx, u); err != nil {
			return s.failed(ctx, u.rec, err)
		}
	}
	return s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error { return become(r, tx, engi.WorkspaceRunning, nil) })
}

// boot enters the sandbox of a workspace that is being started. If there is none, boot
// creates one.
func (s *Service) boot(ctx context.Context, u *use) error {
	t, err := s.template(ctx, u.rec.Owner, u.rec.Template)
	if err != nil {
		return err
	}
	s.forget(u.rec.ID)
	change := func(f func(r *Record, tx Tx) error) (err error) {
		u.rec, err = s.opt.Store.Change(ctx, u.rec.ID, f)
		return err
	}
	_, err = s.sandboxes.Open(ctx, holder.Claim{
		Thing: string(u.rec.ID), Key: string(u.rec.ID), Sandbox: u.rec.Sandbox, Boots: u.rec.Boots,
		Begin: func() (engi.SandboxSpec, error) {
			err := change(func(r *Record, tx Tx) error {
				r.Sandbox, r.Base = "", 0
				return become(r, tx, engi.WorkspaceStarting, nil)
			})
			r := u.rec
			return engi.SandboxSpec{
				Owner: r.Owner, Template: r.Template, Size: t.Size, Network: s.network(r, mainName),
				Notes: map[string]string{noteWorkspace: string(r.ID)}, Metadata: map[string]string{metaWorkspace: r.Name},
				Lifetime: engi.Lifetime{Timeout: s.opt.MaxAwake, Max: s.opt.MaxAwake, Idle: s.opt.Idle, OnTimeout: engi.EndHibernate, AutoResume: true},
			}, err
		},
		Record: func(id engi.SandboxID, boots int) error {
			return change(func(r *Record, _ Tx) error {
				r.Sandbox, r.Boots, r.Base = id, boots, unfurnished
				return nil
			})
		},
		Enter: func(id engi.SandboxID, _ bool) (err error) {
			u.g, u.leave, err = s.sandboxes.Reconnect(ctx, id)
			return err
		},
	})
	return err
}

// furnish writes the files of the last revision to a new sandbox, instead of those of
// the template. If there is no revision, the template's files become the first.
func (s *Service) furnish(ctx context.Context, u *use) error {
	if u.rec.Revision == 0 {
		here, h, err := s.read(ctx, u)
		if err != nil {
			return err
		}
		defer h.drop()
		if len(here) == 0 {
			return s.furnished(ctx, u)
		}
		_, err = s.revise(ctx, u, here, h.objects, engi.WorkspaceRevision{Message: "Begin with the template " + u.rec.Template}, func(r *Record) { r.Base = 1 })
		if err != nil {
			s.forget(u.rec.ID)
		}
		return err
	}
	here, h, err := s.read(ctx, u, u.last)
	if err != nil {
		return err
	}
	h.drop() // the contents that are replaced are not needed
	s.forget(u.rec.ID)
	return s.fill(ctx, u, here)
}

// failed records the error of a start, unless the workspace is running or ctx has ended.
func (s *Service) failed(ctx context.Context, r Record, why error) (Record, error) {
	if ctx.Err() != nil || r.State == engi.WorkspaceRunning {
		return r, why
	}
	late, cancel := s.late(ctx)
	defer cancel()
	now, err := s.opt.Store.Change(late, r.ID, func(r *Record, tx Tx) error { return become(r, tx, engi.WorkspaceFailed, asError(why)) })
	if err != nil {
		s.opt.Log.WarnContext(ctx, "record that a workspace does not start", "workspace", r.ID, "error", err)
		return r, why
	}
	return now, why
}

// Stop implements [engi.Workspaces].
func (s *Service) Stop(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "stop workspace %.70s", idOrName)
	r, release, err := s.hold(ctx, viewer, idOrName, engi.RoleEditor)
	if err != nil {
		return err
	}
	defer release()
	u, err := s.use(ctx, r, false)
	switch {
	case err == nil:
		u.leave()
	case engi.Is(err, engi.Unavailable) && ctx.Err() == nil:
		// The sandbox does not answer, so its changes cannot be determined.
		s.opt.Log.WarnContext(ctx, "keep what was changed in the sandbox of a workspace, which goes", "workspace", r.ID, "error", err)
	default:
		return err
	}
	return s.stop(ctx, r.ID)
}

// stop destroys the sandbox of a locked workspace.
func (s *Service) stop(ctx context.Context, id engi.WorkspaceID) error {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil {
		return err
	}
	begun := r.State != engi.WorkspaceStopped && r.State != engi.WorkspaceRunning
	if err := s.sandboxes.Release(ctx, string(id), r.Sandbox, begun); err != nil {
		return err
	}
	if err := s.stopServices(ctx, id); err != nil {
		return err
	}
	s.forget(id)
	_, err = s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		r.Sandbox, r.Base = "", 0
		return become(r, tx, engi.WorkspaceStopped, nil)
	})
	return err
}

// Remove implements [engi.Workspaces].
func (s *Service) Remove(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove workspace %.70s", idOrName)
	r, release, err := s.hold(ctx, viewer, idOrName, engi.RoleOwner)
	if err != nil {
		return err
	}
	defer release()
	if err := s.stop(ctx, r.ID); err != nil {
		return err
	}
	if err := s.removeServices(ctx, r.ID); err != nil {
		return err
	}
	return s.opt.Store.Remove(ctx, r.ID)
}

// become changes the state of a workspace, with an event if the state differs.
func become(r *Record, tx Tx, to engi.WorkspaceState, why *engi.Error) error {
	from := r.State
	r.State, r.Error = to, why
	if from == to {
		return nil
	}
	r.Used = time.Now().UTC()
	d := eventData{From: from, State: to, Sandbox: r.Sandbox}
	if why != nil {
		d.Error = why.Text
	}
	return tx.Emit(engi.EventWorkspaceState, d)
}

// asError converts err to an [engi.Error] with its remedy.
func asError(err error) *engi.Error {
	text := fmt.Sprintf("%.2000s", err.Error())
	if e, ok := errors.AsType[*engi.Error](err); ok {
		c := *e
		c.Text, c.Remedy = text, engi.RemedyOf(err)
		return &c
	}
	return engi.Errorf(engi.KindOf(err), "%s", text)
}
