package app

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Record is what is kept of an app beside its revisions. It is a value.
type Record struct {
	engi.App
	Boots       int // sandboxes made for it so far
	Env         map[string]string
	Network     engi.NetworkPolicy
	Alerts      []engi.AppAlert
	Undo        *Undo // what is to be put back, because an apply has not ended; nil for nothing
	Snapshots   []Snapshot
	Stray       Stray
	Idempotency string
	Fingerprint string // of the request
}

// An Undo names what an apply changes in the sandbox, so that it can be put back to
// what the last revision has.
type Undo struct {
	Paths    []string `json:"paths,omitempty"`
	All      bool     `json:"all,omitempty"`      // it runs commands, which may change anything
	Packages bool     `json:"packages,omitempty"` // it installs packages
	Restart  bool     `json:"restart,omitempty"`  // the server may run with what is being put back

	Snapshot engi.SnapshotID `json:"snapshot,omitempty"` // that its first sandbox is to begin with; empty for the template
}

// A Snapshot is what was kept of the sandbox of an app with a revision.
type Snapshot struct {
	Revision int64           `json:"revision"`
	ID       engi.SnapshotID `json:"id"`
	Bytes    int64           `json:"bytes"`
	Created  time.Time       `json:"created"`
}

// A Stray names what may be there and is of no use, because something did not end, or
// another took its place: it is to be removed.
type Stray struct {
	Sandboxes []engi.SandboxID  `json:"sandboxes,omitempty"`
	Snapshots []engi.SnapshotID `json:"snapshots,omitempty"`
}

func (s Stray) any() bool { return len(s.Sandboxes)+len(s.Snapshots) > 0 }

// A File is a file of a revision.
type File struct {
	engi.AppFile
	Blob string // ID of its content in git
}

// A Tx changes an app in one transaction.
type Tx interface {
	// Emit appends an event about the app. A key that the owner has used before for
	// one of the app is a Conflict; the empty one is none.
	Emit(kind string, data any, key string) (seq int64, err error)
	// Revise adds a revision, whose files are those of the one before without
	// removed, and with put. contents has what the store does not, by digest. It drops
	// the oldest revisions beyond what b allows, and reports Exhausted if the owner then
	// has more than that allows.
	Revise(r engi.Revision, put []File, removed []string, contents map[string][]byte, b Bounds) error
	// Publish makes files what is published, of which contents has what they name. What
	// was published before is kept until the next time; without files nothing is. It
	// reports Exhausted if the owner then has more than b allows.
	Publish(files []Published, contents map[string][]byte, b Bounds) error
}

// A Published is a file of what an app has published.
type Published struct {
	Path   string
	Size   int64
	Digest string // of the content
	Packed string // digest of the content compressed; empty if that is not kept
	Fixed  bool   // another content would have another path
}

// PartSize is the size of the parts in which published contents are kept, of all but
// the last.
const PartSize = 64 << 10

// Bounds are how much history an app has.
type Bounds struct {
	Revisions int
	Bytes     int64 // of contents; the last two revisions are kept whatever they take
	Owner     int64 // bytes of contents of all apps of an owner, with what is published
}

// A Store keeps apps durably. It is safe for concurrent use.
type Store interface {
	// Put adds an app, with its event. It reports Conflict for a name or an
	// idempotency key that the owner has used.
	Put(ctx context.Context, r Record) error
	// Branch does as Put and adds a first revision, which has the files of a revision
	// of another app of that owner. It reports NotFound without that, and Exhausted if
	// the owner then has more than b allows.
	Branch(ctx context.Context, r Record, first engi.Revision, b Bounds) error
	// Find returns an app by ID or name, or NotFound. Of several owners' apps of one
	// name, the empty owner gets Conflict.
	Find(ctx context.Context, owner engi.Owner, idOrName string) (Record, error)
	// ByIdempotencyKey returns the app that was put with a key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// List returns the newest first.
	List(ctx context.Context, owner engi.Owner, p engi.Paging) ([]Record, error)
	// Change calls f with the record of an app and stores what f makes of it together
	// with what f does with tx. Nothing is stored if f fails. f must not use the
	// store.
	Change(ctx context.Context, id engi.AppID, f func(r *Record, tx Tx) error) (Record, error)
	// Remove deletes an app with its history, with an event.
	Remove(ctx context.Context, id engi.AppID) error
	// Emitted returns the Seq of the event about the app that was emitted with a key,
	// or NotFound.
	Emitted(ctx context.Context, owner engi.Owner, app engi.AppID, key string) (int64, error)
	History
	Publications
}

// Publications has what apps have published. It is safe for concurrent use.
type Publications interface {
	// Published returns a file by its path, or NotFound. Of one that is fixed and was
	// published before, that.
	Published(ctx context.Context, app engi.AppID, path string) (Published, error)
	// Part returns the size of a content and a part of it, or NotFound.
	Part(ctx context.Context, app engi.AppID, digest string, part int) (size int64, data []byte, err error)
}

// A History has the revisions of apps. It is safe for concurrent use.
type History interface {
	// Revisions returns the history, the newest first; a page goes on after a number.
	Revisions(ctx context.Context, app engi.AppID, p engi.Paging) ([]engi.Revision, error)
	// Revision returns one, or NotFound.
	Revision(ctx context.Context, app engi.AppID, number int64) (engi.Revision, error)
	// Files returns the files of a revision by path, or NotFound if there is no such
	// revision.
	Files(ctx context.Context, app engi.AppID, number int64) ([]File, error)
	// Content returns the content of a file, or NotFound.
	Content(ctx context.Context, app engi.AppID, digest string) ([]byte, error)
}
