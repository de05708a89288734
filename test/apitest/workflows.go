package apitest

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workflow/template"
	records "github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// newWorkflows returns the real service of workflows for fake workspaces.
func newWorkflows(db *store.DB, spaces *Workspaces) engi.Workflows {
	return workflow.New(workflow.Options{Store: store.Workflows(db), Workspaces: recorded{spaces, store.Workspaces(db)}, Events: store.Events(db), Templates: template.Own()})
}

// recorded are fake workspaces that are copied to the database before a workflow looks at them.
type recorded struct {
	spaces *Workspaces
	store  records.Store
}

// Get implements [workflow.Workspaces].
func (r recorded) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	x, err := r.spaces.Get(ctx, viewer, name)
	if err != nil {
		return x, err
	}
	return x, r.record(ctx, x)
}

// Create implements [workflow.Workspaces].
func (r recorded) Create(ctx context.Context, spec engi.WorkspaceSpec) (engi.Workspace, error) {
	x, err := r.spaces.Create(ctx, spec)
	if err != nil {
		return x, err
	}
	return x, r.record(ctx, x)
}

// Change implements [workflow.Workspaces].
func (r recorded) Change(ctx context.Context, viewer engi.Viewer, name string, c engi.WorkspaceChange) (engi.Workspace, error) {
	return r.spaces.Change(ctx, viewer, name, c)
}

// Collect implements [workflow.Workspaces].
func (r recorded) Collect(ctx context.Context, id engi.WorkspaceID, _ bool) error {
	_, err := r.Get(ctx, engi.Everyone, string(id))
	return err
}

// record copies a workspace with its revisions.
func (r recorded) record(ctx context.Context, x engi.Workspace) error {
	x.Services, x.Metadata = nil, nil
	if _, err := r.store.Find(ctx, engi.Everyone, string(x.ID)); engi.Is(err, engi.NotFound) {
		first := x
		first.Revision = 0
		if err := r.store.Put(ctx, records.Record{Workspace: first}, nil); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	revisions, err := with(r.spaces, engi.Everyone, string(x.ID), engi.RoleViewer, func(x *workspace) ([]workspaceRevision, error) { return x.revisions, nil })
	if err != nil {
		return err
	}
	_, err = r.store.Change(ctx, x.ID, func(rec *records.Record, tx records.Tx) error {
		rec.Collaborators = x.Collaborators
		for _, rev := range revisions[min(int(rec.Revision), len(revisions)):] {
			files, objects := repo.Files{}, []repo.Object(nil)
			for p, f := range rev.files {
				o, err := repo.New(repo.Blob, []byte(f.content))
				if err != nil {
					return err
				}
				objects, files[p] = append(objects, o), repo.File{Path: p, Mode: f.mode, Hash: o.Hash}
			}
			v, made, err := repo.Version{}.Next(files, repo.Note{Message: rev.Message, Actor: rev.Actor, Time: rev.Created})
			if err != nil {
				return err
			}
			rev.Commit, rec.Revision = v.Commit, rev.Number
			if err := tx.Revise(rev.WorkspaceRevision, append(objects, made...), 1<<30); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
