package tool

import (
	"context"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// OfOneOwner returns services for agents, which always act as one owner. For the
// services of a node, the empty owner means all owners, as administrators
// expect of the API. For the returned services, it means the node itself, and
// gives no access to objects of others. Code that works for agents uses only
// these services. A second call of OfOneOwner changes nothing.
func (s Services) OfOneOwner() Services {
	if _, done := s.Executions.(ownExecutions); !done && s.Executions != nil {
		s.Executions = ownExecutions{s.Executions}
	}
	if _, done := s.Sandboxes.(ownSandboxes); !done && s.Sandboxes != nil {
		s.Sandboxes = ownSandboxes{s.Sandboxes}
	}
	if _, done := s.Sessions.(ownSessions); !done && s.Sessions != nil {
		s.Sessions = ownSessions{s.Sessions}
	}
	if _, done := s.Docs.(ownDocs); !done && s.Docs != nil {
		s.Docs = ownDocs{s.Docs, s.Sessions}
	}
	if _, done := s.Apps.(ownApps); !done && s.Apps != nil {
		s.Apps = ownApps{s.Apps}
	}
	if _, done := s.Workspaces.(ownWorkspaces); !done && s.Workspaces != nil {
		s.Workspaces = ownWorkspaces{s.Workspaces}
	}
	return s
}

// The types below embed no interface, so that a new method of a service does not
// compile until it is added here.

type ownExecutions struct{ all engi.Executions }

// find reports NotFound for an execution that does not belong to owner itself.
func (o ownExecutions) find(ctx context.Context, owner engi.Owner, id engi.ExecutionID) error {
	if owner != "" {
		return nil
	}
	x, err := o.all.Get(ctx, owner, id)
	if err == nil && x.Owner != "" {
		err = engi.Errorf(engi.NotFound, "there is no execution %s", id)
	}
	return err
}

func (o ownExecutions) Start(ctx context.Context, spec engi.ExecutionSpec) (engi.Execution, error) {
	return o.all.Start(ctx, spec)
}

func (o ownExecutions) Get(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return engi.Execution{}, err
	}
	return o.all.Get(ctx, owner, id)
}

func (o ownExecutions) Wait(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return engi.Execution{}, err
	}
	return o.all.Wait(ctx, owner, id)
}

func (o ownExecutions) Watch(ctx context.Context, owner engi.Owner, id engi.ExecutionID, from int64) iter.Seq2[engi.ExecutionUpdate, error] {
	if err := o.find(ctx, owner, id); err != nil {
		return func(yield func(engi.ExecutionUpdate, error) bool) { yield(engi.ExecutionUpdate{}, err) }
	}
	return o.all.Watch(ctx, owner, id, from)
}

func (o ownExecutions) Cancel(ctx context.Context, owner engi.Owner, id engi.ExecutionID) error {
	if err := o.find(ctx, owner, id); err != nil {
		return err
	}
	return o.all.Cancel(ctx, owner, id)
}

func (o ownExecutions) List(ctx context.Context, owner engi.Owner, f engi.ExecutionFilter) ([]engi.Execution, error) {
	list, err := o.all.List(ctx, owner, f)
	return ownOf(list, owner, func(x engi.Execution) engi.Owner { return x.Owner }), err
}

func (o ownExecutions) Artifact(ctx context.Context, owner engi.Owner, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return nil, err
	}
	return o.all.Artifact(ctx, owner, id, path)
}

func (o ownExecutions) Artifacts(ctx context.Context, owner engi.Owner, id engi.ExecutionID, limit int64) ([][]byte, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return nil, err
	}
	return o.all.Artifacts(ctx, owner, id, limit)
}

// ownOf returns the objects of a list that belong to owner itself.
func ownOf[T any](list []T, owner engi.Owner, of func(T) engi.Owner) []T {
	if owner != "" {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return of(x) != "" })
}

// ownID returns the ID or name with which to request an object that get returns. It is never a
// name that may belong to another owner by then. It reports NotFound for an object that
// does not belong to owner itself.
func ownID(owner engi.Owner, noun, idOrName string, get func() (id string, of engi.Owner, err error)) (string, error) {
	if owner != "" {
		return idOrName, nil
	}
	id, of, err := get()
	switch {
	case engi.Is(err, engi.Conflict), err == nil && of != "": // only other owners use the name
		return "", engi.Errorf(engi.NotFound, "there is no %s %.80q", noun, idOrName)
	case err != nil:
		return "", err
	}
	return id, nil
}

// A finder returns the ID or name with which to request an object.
type finder interface {
	find(ctx context.Context, owner engi.Owner, idOrName string) (string, error)
}

// by calls do with the result of f.
func by[T any](ctx context.Context, f finder, owner engi.Owner, idOrName string, do func(id string) (T, error)) (none T, err error) {
	id, err := f.find(ctx, owner, idOrName)
	if err != nil {
		return none, err
	}
	return do(id)
}

type ownSandboxes struct{ all engi.Sandboxes }

// find reports NotFound for a sandbox that does not belong to owner itself.
func (o ownSandboxes) find(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	if owner != "" {
		return nil
	}
	b, err := o.all.Get(ctx, owner, id)
	if err == nil && b.Owner != "" {
		err = engi.Errorf(engi.NotFound, "there is no sandbox %s", id)
	}
	return err
}

func (o ownSandboxes) Create(ctx context.Context, spec engi.SandboxSpec) (engi.Sandbox, error) {
	return o.all.Create(ctx, spec)
}

func (o ownSandboxes) Get(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Sandbox, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return engi.Sandbox{}, err
	}
	return o.all.Get(ctx, owner, id)
}

func (o ownSandboxes) List(ctx context.Context, owner engi.Owner, f engi.SandboxFilter) ([]engi.Sandbox, error) {
	list, err := o.all.List(ctx, owner, f)
	return ownOf(list, owner, func(b engi.Sandbox) engi.Owner { return b.Owner }), err
}

func (o ownSandboxes) Update(ctx context.Context, owner engi.Owner, id engi.SandboxID, u engi.SandboxUpdate) (engi.Sandbox, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return engi.Sandbox{}, err
	}
	return o.all.Update(ctx, owner, id, u)
}

func (o ownSandboxes) Stop(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	if err := o.find(ctx, owner, id); err != nil {
		return err
	}
	return o.all.Stop(ctx, owner, id)
}

func (o ownSandboxes) Enter(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Guest, func(), error) {
	if err := o.find(ctx, owner, id); err != nil {
		return nil, nil, err
	}
	return o.all.Enter(ctx, owner, id)
}

func (o ownSandboxes) Samples(ctx context.Context, owner engi.Owner, id engi.SandboxID, from, to time.Time) ([]engi.Sample, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return nil, err
	}
	return o.all.Samples(ctx, owner, id, from, to)
}

type ownSessions struct{ all engi.Sessions }

// find returns the ID or name with which to request a session. It reports NotFound for
// a session that does not belong to owner itself.
func (o ownSessions) find(ctx context.Context, owner engi.Owner, idOrName string) (string, error) {
	return ownID(owner, "session", idOrName, func() (string, engi.Owner, error) {
		x, err := o.all.Get(ctx, owner, idOrName)
		return string(x.ID), x.Owner, err
	})
}

func (o ownSessions) Create(ctx context.Context, spec engi.SessionSpec) (engi.Session, error) {
	return o.all.Create(ctx, spec)
}

func (o ownSessions) Get(ctx context.Context, owner engi.Owner, idOrName string) (engi.Session, error) {
	return by(ctx, o, owner, idOrName, func(id string) (engi.Session, error) { return o.all.Get(ctx, owner, id) })
}

func (o ownSessions) List(ctx context.Context, owner engi.Owner, p engi.Paging) ([]engi.Session, error) {
	list, err := o.all.List(ctx, owner, p)
	return ownOf(list, owner, func(x engi.Session) engi.Owner { return x.Owner }), err
}

func (o ownSessions) Enter(ctx context.Context, owner engi.Owner, idOrName string) (engi.Guest, func(), error) {
	id, err := o.find(ctx, owner, idOrName)
	if err != nil {
		return nil, nil, err
	}
	return o.all.Enter(ctx, owner, id)
}

func (o ownSessions) RunCode(ctx context.Context, owner engi.Owner, idOrName string, spec engi.CodeSpec, out func(engi.Chunk)) (engi.CodeResult, error) {
	return by(ctx, o, owner, idOrName, func(id string) (engi.CodeResult, error) { return o.all.RunCode(ctx, owner, id, spec, out) })
}

func (o ownSessions) Release(ctx context.Context, owner engi.Owner, idOrName string) error {
	id, err := o.find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	return o.all.Release(ctx, owner, id)
}

func (o ownSessions) Terminate(ctx context.Context, owner engi.Owner, idOrName string) error {
	id, err := o.find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	return o.all.Terminate(ctx, owner, id)
}

func (o ownSessions) Dependencies(ctx context.Context) (engi.Dependencies, error) {
	return o.all.Dependencies(ctx)
}

type ownDocs struct {
	all      engi.Docs
	sessions engi.Sessions // sessions restricted to one owner; nil if the node has none
}

// session returns the ID or name with which to request a session; empty for none. It reports
// NotFound for a session that does not belong to owner itself.
func (o ownDocs) session(ctx context.Context, owner engi.Owner, idOrName string) (string, error) {
	if owner != "" || idOrName == "" || o.sessions == nil {
		return idOrName, nil
	}
	x, err := o.sessions.Get(ctx, owner, idOrName)
	return string(x.ID), err
}

// find reports NotFound for a document that does not belong to owner itself.
func (o ownDocs) find(ctx context.Context, owner engi.Owner, id engi.DocumentID) error {
	if owner != "" || id == "" {
		return nil
	}
	list, err := o.Documents(ctx, owner, engi.Paging{}, id)
	if err == nil && len(list) == 0 {
		err = engi.Errorf(engi.NotFound, "there is no document %s", id)
	}
	return err
}

func (o ownDocs) Search(ctx context.Context, spec engi.SearchSpec) (found engi.SearchResult, err error) {
	spec.Own = spec.Own || spec.Owner == ""
	if spec.Session, err = o.session(ctx, spec.Owner, spec.Session); err != nil {
		return found, err
	}
	return o.all.Search(ctx, spec)
}

func (o ownDocs) Packages(ctx context.Context, owner engi.Owner) ([]engi.DocumentPackage, error) {
	if owner != "" {
		return o.all.Packages(ctx, owner)
	}
	documents, err := o.Documents(ctx, owner, engi.Paging{}) // the list is ordered by package
	var list []engi.DocumentPackage
	for _, d := range documents {
		if d.Package == "" {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Name != d.Package {
			list = append(list, engi.DocumentPackage{Name: d.Package})
		}
		p := &list[len(list)-1]
		p.Documents, p.Chunks = p.Documents+1, p.Chunks+d.Chunks
	}
	return list, err
}

func (o ownDocs) Add(ctx context.Context, spec engi.DocumentSpec) (engi.Document, error) {
	return o.all.Add(ctx, spec)
}

func (o ownDocs) Documents(ctx context.Context, owner engi.Owner, p engi.Paging, ids ...engi.DocumentID) ([]engi.Document, error) {
	list, err := o.all.Documents(ctx, owner, p, ids...)
	return ownOf(list, owner, func(d engi.Document) engi.Owner { return d.Owner }), err
}

func (o ownDocs) Refresh(ctx context.Context, owner engi.Owner, id engi.DocumentID) ([]engi.Document, error) {
	if err := o.find(ctx, owner, id); err != nil {
		return nil, err
	}
	return o.all.Refresh(ctx, owner, id)
}

func (o ownDocs) Remove(ctx context.Context, owner engi.Owner, id engi.DocumentID) error {
	if err := o.find(ctx, owner, id); err != nil {
		return err
	}
	return o.all.Remove(ctx, owner, id)
}

func (o ownDocs) SaveModules(ctx context.Context, owner engi.Owner, session string, modules []engi.CodeModule) error {
	session, err := o.session(ctx, owner, session)
	if err != nil {
		return err
	}
	return o.all.SaveModules(ctx, owner, session, modules)
}

func (o ownDocs) Modules(ctx context.Context, owner engi.Owner, session string) ([]engi.CodeModule, error) {
	session, err := o.session(ctx, owner, session)
	if err != nil {
		return nil, err
	}
	list, err := o.all.Modules(ctx, owner, session)
	return ownOf(list, owner, func(m engi.CodeModule) engi.Owner { return m.Owner }), err
}
