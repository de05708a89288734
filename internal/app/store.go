package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A Record is the stored state of an app without its revisions. It is a value.
type Record struct {
	engi.App
	Boots       int // number of sandboxes made for the app so far
	Env         map[string]string
	Network     engi.NetworkPolicy
	Alerts      []engi.AppAlert
	Undo        *Undo // changes of an unfinished apply that must be undone; nil for none
	Snapshots   []Snapshot
	Stray       Stray
	Ahead       bool // the workspace of an app with Directory may not have recorded the files of the last revision
	Idempotency string
	Fingerprint string // fingerprint of the request that created the app
}

// Requested implements [idempotency.Record].
func (r Record) Requested() (id, fingerprint string) { return "app " + string(r.ID), r.Fingerprint }

// An Undo names the parts of the sandbox that an apply changes, so that they can be restored
// from the last revision.
type Undo struct {
	Paths    []string `json:"paths,omitempty"`
	All      bool     `json:"all,omitempty"`      // the apply runs commands, which may change any file
	Packages bool     `json:"packages,omitempty"` // the apply installs packages
	Restart  bool     `json:"restart,omitempty"`  // the server may be running with the changes

	Snapshot engi.SnapshotID `json:"snapshot,omitempty"` // snapshot from which the app's first sandbox starts; empty means the template
}

// A Snapshot is the snapshot of an app's sandbox that belongs to a revision.
type Snapshot struct {
	Revision int64           `json:"revision"`
	ID       engi.SnapshotID `json:"id"`
	Bytes    int64           `json:"bytes"`
	Created  time.Time       `json:"created"`
}

// A Stray names objects that may exist and are no longer needed, because work did not end or
// another object replaced them. They are to be deleted.
type Stray struct {
	Sandboxes []engi.SandboxID  `json:"sandboxes,omitempty"`
	Snapshots []engi.SnapshotID `json:"snapshots,omitempty"`
}

func (s Stray) any() bool { return len(s.Sandboxes)+len(s.Snapshots) > 0 }

// A File is a file of a revision.
type File struct {
	engi.AppFile
	Blob string // ID of the content in git
}

// A Tx changes an app in one transaction.
type Tx interface {
	// Emit appends an event about the app.
	Emit(kind string, data any) (seq int64, err error)
	// EmitOnce appends an event about the app with the key and the fingerprint of a request. It reports
	// Conflict if the owner has used the key before for an event of the app; an empty key does not count.
	EmitOnce(kind string, data any, q idempotency.Request) (seq int64, err error)
	// Revise adds a revision, whose files are those of the previous one without
	// removed and with put. contents has the contents that the store lacks, by digest. It drops
	// the oldest revisions beyond the bounds b, and reports Exhausted if the owner then
	// still exceeds them.
	Revise(r engi.Revision, put []File, removed []string, contents map[string][]byte, b Bounds) error
	// Publish replaces the published files; contents has their contents by digest. The
	// previous files are kept until the next Publish; without files, none are kept. It
	// reports Exhausted if the owner then exceeds the bounds b.
	Publish(files []Published, contents map[string][]byte, b Bounds) error
}

// A Published is a file of a published app.
type Published struct {
	Path   string
	Size   int64
	Digest string // digest of the content
	Packed string // digest of the compressed content; empty if there is none
	Fixed  bool   // the path changes with the content
}

// PartSize is the size in bytes of the parts in which published contents are stored, except
// the last part.
const PartSize = 64 << 10

// Bounds limits the history of apps.
type Bounds struct {
	Revisions int
	Bytes     int64 // bytes of contents of one app; the last two revisions are always kept
	Owner     int64 // bytes of contents of all apps of an owner, including published files
}

// A Store stores apps durably. It is safe for concurrent use.
type Store interface {
	// Put adds an app and its event. It reports Conflict for a name or an
	// idempotency key that the owner has used.
	Put(ctx context.Context, r Record) error
	// Branch adds an app as Put does, with a first revision that has the files of a revision
	// of another app of that owner. It reports NotFound if that revision does not exist, and Exhausted if
	// the owner then exceeds the bounds b.
	Branch(ctx context.Context, r Record, first engi.Revision, b Bounds) error
	// Find returns an app by ID or name. It reports NotFound, and, for [engi.Everyone], Conflict if
	// several owners have an app of that name.
	Find(ctx context.Context, viewer engi.Viewer, idOrName string) (Record, error)
	// ByIdempotencyKey returns the app that was added with a key. It reports NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// List returns apps, newest first.
	List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]Record, error)
	// Change calls f with the record of an app and stores the changed record together
	// with the changes that f makes through tx. Nothing is stored if f fails. f must not use the
	// store.
	Change(ctx context.Context, id engi.AppID, f func(r *Record, tx Tx) error) (Record, error)
	// Remove deletes an app with its history, and appends an event.
	Remove(ctx context.Context, id engi.AppID) error
	// EventByIdempotencyKey returns the event about the app that was emitted with a key. It
	// reports NotFound.
	EventByIdempotencyKey(ctx context.Context, owner engi.Owner, app engi.AppID, key string) (idempotency.Event, error)
	History
	Publications
}

// Publications reads the published files of apps. It is safe for concurrent use.
type Publications interface {
	// Published returns a file by its path. It also finds Fixed files of the previous
	// publication. It reports NotFound.
	Published(ctx context.Context, app engi.AppID, path string) (Published, error)
	// Part returns the size of a content and one part of it. It reports NotFound.
	Part(ctx context.Context, app engi.AppID, digest string, part int) (size int64, data []byte, err error)
}

// A History reads the revisions of apps. It is safe for concurrent use.
type History interface {
	// Revisions returns revisions, newest first; Paging.After is the number of a revision.
	Revisions(ctx context.Context, app engi.AppID, p engi.Paging) ([]engi.Revision, error)
	// Revision returns one revision. It reports NotFound.
	Revision(ctx context.Context, app engi.AppID, number int64) (engi.Revision, error)
	// Files returns the files of a revision, ordered by path. It reports NotFound for an unknown
	// revision.
	Files(ctx context.Context, app engi.AppID, number int64) ([]File, error)
	// Content returns the content of a file. It reports NotFound.
	Content(ctx context.Context, app engi.AppID, digest string) ([]byte, error)
}
