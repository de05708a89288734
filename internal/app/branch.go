package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Branch implements [engi.Apps].
func (s *Service) Branch(ctx context.Context, spec engi.BranchSpec) (_ engi.App, err error) {
	defer engi.Annotate(&err, "branch app %.70s", spec.App)
	if spec.Name != "" && !appName.MatchString(spec.Name) {
		return engi.App{}, engi.Errorf(engi.Invalid, "%.70q is not a name", spec.Name).WithRemedy("use 1 to 63 letters, digits and dashes")
	}
	from, err := s.opt.Store.Find(ctx, spec.Viewer, spec.App)
	if err != nil {
		return engi.App{}, err
	}
	key := spec.Idempotency
	spec.Idempotency, spec.Viewer, spec.App = "", from.Owner.Viewer(), string(from.ID)
	fingerprint, err := fingerprintOf(spec)
	if err != nil {
		return engi.App{}, err
	}
	if older, err := s.repeated(ctx, from.Owner, key, fingerprint); err != nil || older != "" {
		if err != nil {
			return engi.App{}, err
		}
		return s.Open(ctx, from.Owner.Viewer(), string(older))
	}
	number, undo := spec.Revision, (*Undo)(nil)
	if spec.Snapshot {
		k, err := s.snapshotOf(ctx, from, number)
		if err != nil {
			return engi.App{}, err
		}
		number, undo = k.Revision, &Undo{All: true, Snapshot: k.ID}
	} else if _, number, err = s.revision(ctx, engi.Everyone, spec.App, number); err != nil {
		return engi.App{}, err
	}
	files, err := s.opt.Store.Files(ctx, from.ID, number)
	if err != nil {
		return engi.App{}, err
	}
	if _, err := s.underLimit(ctx, from.Owner); err != nil {
		return engi.App{}, err
	}
	r, first := branchOf(from, number, files, engi.ActorOf(ctx))
	r.Name, r.Undo, r.Idempotency, r.Fingerprint = cmp.Or(spec.Name, r.Name), undo, key, fingerprint
	if err := s.opt.Store.Branch(ctx, r, first, Bounds{maxRevisions, maxHistory, maxStored}); err != nil {
		return engi.App{}, err
	}
	return s.openNew(ctx, r.ID)
}

// branchOf returns the record of a branch, with a generated name, and its first
// revision.
func branchOf(from Record, number int64, files []File, actor string) (Record, engi.Revision) {
	now := time.Now().UTC()
	r := Record{
		App: engi.App{
			ID: engi.NewAppID(), Owner: from.Owner, Template: from.Template, State: engi.AppStarting, Port: from.Port, Revision: 1,
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
