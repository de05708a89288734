package apitest

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/internal/engi"
)

// kept returns a revision that has a snapshot; 0 means the last revision.
func (x *app) kept(n int64) (appRevision, error) {
	for i := len(x.revisions); i > 0; i-- {
		if r := x.revisions[i-1]; r.Snapshot.ID != "" && (n == 0 || n == r.Number) {
			return r, nil
		}
	}
	return appRevision{}, engi.Errorf(engi.NotFound, "app %s has no snapshot of revision %d", x.Name, n).WithRemedy("make one first")
}

// keep adds a snapshot to the last revision.
func (x *app) keep() engi.Revision {
	r := &x.revisions[len(x.revisions)-1].Revision
	r.Snapshot = engi.AppSnapshot{ID: engi.NewSnapshotID(), Bytes: 100 << 20, Created: appMoment}
	return *r
}

// Snapshot implements engi.Apps.
func (a *Apps) Snapshot(ctx context.Context, viewer engi.Viewer, name string) (engi.Revision, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return engi.Revision{}, err
	}
	r := x.keep()
	_, err = a.happen(ctx, x, engi.EventAppSnapshotted, engi.AppUpdate{Kind: engi.AppSnapshotted, Revision: r.Number})
	return r, err
}

// Restore implements engi.Apps.
func (a *Apps) Restore(ctx context.Context, viewer engi.Viewer, name string, revision int64) (engi.Revision, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return engi.Revision{}, err
	}
	then, err := x.kept(revision)
	if err != nil {
		return engi.Revision{}, err
	}
	x.Sandbox = engi.NewSandboxID()
	r := x.revise(engi.Revision{Of: then.Number, Message: fmt.Sprintf("Restored %d", then.Number)}, then.files)
	_, err = a.happen(ctx, x, engi.EventAppRolledBack, engi.AppUpdate{Kind: engi.AppRolledBack, Revision: r.Number})
	return r, err
}
