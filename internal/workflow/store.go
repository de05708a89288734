package workflow

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Filter selects workflows. Zero fields select all.
type Filter struct {
	Workspace engi.WorkspaceID
	Stage     engi.WorkflowStage
}

// A Store keeps workflows durably, and ends them with their workspace. It is safe for concurrent use.
//
//  1. Each change of a workflow, the event of its history and an event of the log are one transaction. Numbers in a
//     history ascend from 1 without gaps, and no event of a history is ever changed.
//  2. Viewers find the workflows of the workspaces that they own or collaborate on; everyone finds them all.
//  3. The transaction that records a revision of a workspace calls [Void] for its approved workflows, and stores
//     the result. So an approved workflow always has the content of the last revision.
//  4. The transaction that removes a workspace deletes its workflows, each with an event.
type Store interface {
	// Put adds a workflow and the first event of its history. It reports Conflict for a name that the workspace has or an
	// ID that is used, NotFound if the workspace is gone, and Exhausted if the workspace or the
	// owner then has more workflows than the bounds.
	Put(ctx context.Context, w engi.Workflow, first engi.WorkflowEvent, b Bounds) error
	// Get returns a workflow, or NotFound.
	Get(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID) (engi.Workflow, error)
	// List returns workflows, newest first.
	List(ctx context.Context, viewer engi.Viewer, f Filter, p engi.Paging) ([]engi.Workflow, error)
	// History returns the history of a workflow, oldest first; a page continues after a number.
	History(ctx context.Context, id engi.WorkflowID, p engi.Paging) ([]engi.WorkflowEvent, error)
	// Change calls f with a workflow, and stores the changed workflow and the event that f returns. Nothing is stored if f fails. f
	// must not use the store.
	Change(ctx context.Context, id engi.WorkflowID, f func(w *engi.Workflow, tx Tx) (engi.WorkflowEvent, error)) (engi.Workflow, error)
	// Remove deletes a workflow with its history.
	Remove(ctx context.Context, id engi.WorkflowID) error
	// Due returns the workflows, at most 100, whose deadline is not after now, and otherwise the next deadline; zero if there is none.
	Due(ctx context.Context, now time.Time) (due []engi.WorkflowID, next time.Time, err error)
}

// Bounds are the maximum numbers of workflows.
type Bounds struct{ Workspace, Owner int }

// A Tx reads the workspace of a workflow in the transaction that changes the workflow.
type Tx interface {
	// Workspace returns the workspace without its services.
	Workspace() (engi.Workspace, error)
	// Content returns the content of a revision, or NotFound; 0 is the last one. A workspace
	// without a revision has the zero Content.
	Content(revision int64) (Content, error)
	// Makers returns the actors that have made a revision with a content, each once. Changes that programs made in the
	// sandbox have no actor.
	Makers(hash string) ([]string, error)
	// ChangedBy returns the paths, at most a number of them, that an actor has changed in revisions after a revision, ordered.
	ChangedBy(actor string, after int64, most int) ([]string, error)
}
