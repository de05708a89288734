package workspace

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// A Record is the stored state of a workspace without its history. It is a value: to
// change a slice or map of it, replace the slice or map.
type Record struct {
	engi.Workspace                 // its Services are set from the field Services, see [Record.Seen]
	Services       []ServiceRecord // ordered by name
	Boots          int             // number of sandboxes created for the working copy so far
	// Base is the revision of the files in the sandbox, apart from changes made in the
	// sandbox. Changes of later revisions are still to be written to the sandbox. It is
	// unfurnished while any of the files may be missing or incomplete.
	Base        int64
	Size        int64 // total size of the files of the last revision, in bytes
	Idempotency string
	Fingerprint string // fingerprint of the request that created the workspace
}

// Requested implements [idempotency.Record].
func (r Record) Requested() (id, fingerprint string) {
	return "workspace " + string(r.ID), r.Fingerprint
}

// unfurnished is the Base of a new sandbox.
const unfurnished = -1

// A ServiceRecord is the stored state of a service.
type ServiceRecord struct {
	engi.Service
	User     string
	Password string
	Database string
	Env      map[string]string
	Wanted   string // requested version; empty for the latest
	Template string // the operator's template with the server's program; empty for the one of the type
	Boots    int    // number of sandboxes created for the service so far, for idempotency keys
	Failures int    // number of failed starts in a row
	Going    bool   // the service is being removed
}

// Seen returns the workspace in the form for users.
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
	// Revise adds a revision, whose number must be the last one plus 1, and
	// the objects of its commit that the store does not have. It reports Exhausted if
	// the history of all workspaces of the owner then exceeds most bytes.
	Revise(r engi.WorkspaceRevision, objects []repo.Object, most int64) error
}

// A Store keeps workspaces durably. It is safe for concurrent use.
type Store interface {
	// Put adds a workspace, with its event and the changes that f makes with tx; f may be nil. It
	// reports Conflict for a name or an idempotency key that the owner has already used.
	Put(ctx context.Context, r Record, f func(tx Tx) error) error
	// Find returns a workspace that viewer owns, by ID or name, or collaborates on, by ID or
	// OWNER/NAME, or NotFound. Everyone finds them all; if several owners use the name and the node
	// does not, Find reports Conflict.
	Find(ctx context.Context, viewer engi.Viewer, idOrName string) (Record, error)
	// ByIdempotencyKey returns the workspace created with an idempotency key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// List returns the workspaces that owner owns or collaborates on, newest first.
	List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]Record, error)
	// Count returns the number of workspaces that an owner owns.
	Count(ctx context.Context, owner engi.Owner) (int, error)
	// Change calls f with the record of a workspace. It stores the changes of the record
	// and those made with tx in one transaction. Nothing is stored if f fails. f must not use
	// the store.
	Change(ctx context.Context, id engi.WorkspaceID, f func(r *Record, tx Tx) error) (Record, error)
	// Remove deletes a workspace and its history, and appends an event.
	Remove(ctx context.Context, id engi.WorkspaceID) error
	History
}

// A History reads the revisions of workspaces. It is safe for concurrent use.
type History interface {
	// Revisions returns revisions, newest first; a page continues after a number.
	Revisions(ctx context.Context, id engi.WorkspaceID, p engi.Paging) ([]engi.WorkspaceRevision, error)
	// Revision returns the revision with a number, or NotFound.
	Revision(ctx context.Context, id engi.WorkspaceID, number int64) (engi.WorkspaceRevision, error)
	// Touched returns the revisions up to last that have changed a path, newest
	// first.
	Touched(ctx context.Context, id engi.WorkspaceID, path string, last int64, limit int) ([]engi.WorkspaceRevision, error)
	// Object returns a git object, or NotFound.
	Object(ctx context.Context, id engi.WorkspaceID, hash string) (repo.Object, error)
	// Sizes returns the sizes, in bytes, of the given git objects of a kind. Objects that the
	// store does not have are missing from the result.
	Sizes(ctx context.Context, id engi.WorkspaceID, kind repo.Kind, hashes []string) (map[string]int64, error)
}
