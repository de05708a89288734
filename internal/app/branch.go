package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// Branch implements [engi.Apps].
func (s *Service) Branch(ctx context.Context, spec engi.BranchSpec) (_ engi.App, err error) {
	defer engi.Annotate(&err, "branch app %.70s", spec.App)
	if spec.Name != "" && !appName.MatchString(spec.Name) {
		return engi.App{}, engi.Errorf(engi.Invalid, "%.70q is not a name", spec.Name).WithRemedy("use 1 to 63 letters, digits and dashes")
	}
	from, err := s.opt.Store.Find(ctx, spec.Viewer, spec.App)
	if err == nil {
		err = from.alone("branches")
	}
	if err != nil {
		return engi.App{}, err
	}
	request := idempotency.Request{Owner: from.Owner, Key: spec.Idempotency}
	spec.Idempotency, spec.Viewer, spec.App = "", from.Owner.Viewer(), string(from.ID)
	request.Fingerprint = idempotency.Fingerprint(spec)
	return s.once(ctx, request, func() (Record, error) { return s.addBranch(ctx, spec, from, request) })
}

// addBranch records a branch of an app.
func (s *Service) addBranch(ctx context.Context, spec engi.BranchSpec, from Record, q idempotency.Request) (_ Record, err error) {
	number, undo := spec.Revision, (*Undo)(nil)
	if spec.Snapshot {
		k, err := s.snapshotOf(ctx, from, number)
		if err != nil {
			return Record{}, err
		}
		number, undo = k.Revision, &Undo{All: true, Snapshot: k.ID}
	} else if _, number, err = s.revision(ctx, engi.Everyone, spec.App, number); err != nil {
		return Record{}, err
	}
	files, err := s.opt.Store.Files(ctx, from.ID, number)
	if err != nil {
		return Record{}, err
	}
	if _, err := s.underLimit(ctx, from.Owner); err != nil {
		return Record{}, err
	}
	r, first := branchOf(from, number, files, engi.ActorOf(ctx))
	r.Name, r.Undo, r.Idempotency, r.Fingerprint = cmp.Or(spec.Name, r.Name), undo, q.Key, q.Fingerprint
	return r, s.opt.Store.Branch(ctx, r, first, Bounds{maxRevisions, maxHistory, maxStored})
}

// branchOf returns the record of a branch, with a generated name, and its first
// revision.
func branchOf(from Record, number int64, files []File, actor string) (Record, engi.Revision) {
	now := time.Now().UTC()
	r := Record{
		App: engi.App{
			ID: engi.NewAppID(), Owner: from.Owner, Template: from.Template, Workspace: from.Workspace, State: engi.AppStarting, Port: from.Port, Revision: 1,
			Metadata: maps.Clone(from.Metadata), Created: now, Used: now,
		},
		Env: from.Env, Network: from.Network,
	}
	r.Name = madeUp(r.ID)
	first := engi.Revision{
		App: r.ID, Number: 1, Of: number, From: from.ID, Message: fmt.Sprintf("Branch from %s at revision %d", from.Name, number), Actor: actor,
		Created: now.Truncate(time.Second), Changed: tree{}.changes(treeOf(files)),
	}
	first.Commit = commitOf(first, "", files).id()
	return r, first
}
