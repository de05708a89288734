package engi

import (
	"context"
	"time"
)

// An AppSnapshot is a copy of an app's sandbox: its memory and processes, and its disk
// with what is no part of revisions, like databases. It is one of the owner's
// [Snapshots].
type AppSnapshot struct {
	ID      SnapshotID
	Bytes   int64
	Created time.Time
}

// An AppSnapshotter keeps snapshots of apps with their revisions; see [Apps]. An app has a
// few of them, of which the oldest goes first.
type AppSnapshotter interface {
	// Snapshot keeps a snapshot of an app as it is now with its last revision, and
	// returns that. One that the revision had before goes.
	Snapshot(ctx context.Context, owner Owner, app string) (Revision, error)
	// Restore makes an app what it was when the snapshot of a revision was made, 0
	// being the last revision that has one. A new sandbox takes the place of the old
	// one once its server answers; else nothing changes. It returns the revision that
	// has those files, a new one unless the last one has. It reports NotFound if there is
	// no snapshot.
	Restore(ctx context.Context, owner Owner, app string, revision int64) (Revision, error)
}
