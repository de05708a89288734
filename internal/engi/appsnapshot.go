package engi

import (
	"context"
	"time"
)

// An AppSnapshot is a snapshot of an app's sandbox: memory, processes, and the disk
// including data outside of revisions, such as databases. It is one of the owner's
// [Snapshots].
type AppSnapshot struct {
	ID      SnapshotID
	Bytes   int64
	Created time.Time
}

// An AppSnapshotter takes snapshots of apps and restores them; see [Apps]. An app keeps
// a few snapshots; a new one replaces the oldest.
type AppSnapshotter interface {
	// Snapshot takes a snapshot of an app, attaches it to the last revision, and
	// returns that revision. It replaces an earlier snapshot of the revision.
	Snapshot(ctx context.Context, viewer Viewer, app string) (Revision, error)
	// Restore restores the snapshot of a revision; 0 is
	// the last revision with a snapshot. A new sandbox replaces the old
	// one once its server answers; if it does not, nothing changes. It returns the revision with
	// the restored files, which is new unless the last one has them. It reports NotFound if there is
	// no snapshot.
	Restore(ctx context.Context, viewer Viewer, app string, revision int64) (Revision, error)
}
