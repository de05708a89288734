package workspace

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// A Record is what is kept of a workspace beside its history. It is a value: whoever
// changes a slice or map of it replaces it.
type Record struct {
	engi.Workspace                 // its Services are those of Services, see [Record.Seen]
	Services       []ServiceRecord // by name
	Boots          int             // sandboxes made for the working copy so far
	// Base is the revision that the files in the sandbox were made of, as far as nobody
	// has changed them there. What later revisions changed is still to be put there. It is
	// unfurnished while any of the files may be missing, or there in part.
	Base        int64
	Size        int64 // bytes of the files of the last revision
	Idempotency string
	Fingerprint string // of the request
}

// unfurnished is the Base of a sandbox that is new.
const unfurnished = -1

// A ServiceRecord is what is kept of a service.
type ServiceRecord struct {
	engi.Service
	User     string
	Password string
	Database string
	Env      map[string]string
	Wanted   string // version that was asked for; empty for the latest
	Boots    int    // sandboxes made for it so far, for idempotency keys
	Failures int    // in a row, of starting it
	Going    bool   // it is being removed
}

// Seen returns the workspace as its users see it.
func (r Record) Seen() engi.Workspace {
	w := r.Workspace
	w.Services = make([]engi.Service, 0, len(r.Services))
	for _, s := range r.Services {
		if !s.Going {
			w.Services = append(w.Services, s.Service)
		}
	}
	return w
}

// A Tx changes a workspace in one transaction.
type Tx interface {
	// Emit appends an event about the workspace.
	Emit(kind string, data any) error
	// Revise adds a revision, whose number is one more than that of the last one, with
	// the objects of its commit that the store does not have. It reports Exhausted if
	// the history of all workspaces of the owner then takes more than most bytes.
	Revise(r engi.WorkspaceRevision, objects []repo.Object, most int64) error
}

// A Store keeps workspaces durably. It is safe for concurrent use.
type Store interface {
	// Put adds a workspace, with its event and what f does with tx; f may be nil. It
	// reports Conflict for a name or an idempotency key that the owner has used.
	Put(ctx context.Context, r Record, f func(tx Tx) error) error
	// Find returns a workspace that owner owns or works on, by ID or name, or NotFound.
	// Of several of one name, it is the owner's own, else it reports Conflict.
	Find(ctx context.Context, owner engi.Owner, idOrName string) (Record, error)
	// ByIdempotencyKey returns the workspace that was put with a key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// List returns what owner owns or works on, the newest first.
	List(ctx context.Context, owner engi.Owner, p engi.Paging) ([]Record, error)
	// Count returns how many workspaces an owner owns.
	Count(ctx context.Context, owner engi.Owner) (int, error)
	// Change calls f with the record of a workspace and stores what f makes of it
	// together with what f does with tx. Nothing is stored if f fails. f must not use
	// the store.
	Change(ctx context.Context, id engi.WorkspaceID, f func(r *Record, tx Tx) error) (Record, error)
	// Remove deletes a workspace with its history, with an event.
	Remove(ctx context.Context, id engi.WorkspaceID) error
	History
}

// A History has the revisions of workspaces. It is safe for concurrent use.
type History interface {
	// Revisions returns the history, the newest first; a page goes on after a number.
	Revisions(ctx context.Context, id engi.WorkspaceID, p engi.Paging) ([]engi.WorkspaceRevision, error)
	// Revision returns one, or NotFound.
	Revision(ctx context.Context, id engi.WorkspaceID, number int64) (engi.WorkspaceRevision, error)
	// Touched returns the revisions up to one that have changed a path, the newest
	// first.
	Touched(ctx context.Context, id engi.WorkspaceID, path string, last int64, limit int) ([]engi.WorkspaceRevision, error)
	// Object returns an object of git, or NotFound.
	Object(ctx context.Context, id engi.WorkspaceID, hash string) (repo.Object, error)
	// Sizes returns how many bytes the objects of git have that are of a kind and that the
	// store has.
	Sizes(ctx context.Context, id engi.WorkspaceID, kind repo.Kind, hashes []string) (map[string]int64, error)
}
