package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// workflowStore implements [workflow.Store].
type workflowStore struct{ db *DB }

var _ workflow.Store = workflowStore{}

// Workflows returns the store of workflows.
func Workflows(db *DB) workflow.Store { return workflowStore{db} }

const (
	workflowColumns = `id, owner, workspace, name, stage, deadline, detail`
	workflowFrom    = `SELECT ` + workflowColumns + ` FROM workflows`
)

var errNoWorkflow = engi.Errorf(engi.NotFound, "there is no such workflow").WithRemedy("'engi workflow list' shows yours")

// workflowDetail holds the fields of a workflow that no query selects by.
type workflowDetail struct {
	Task         string              `json:"task,omitempty"`
	Criteria     []string            `json:"criteria,omitempty"`
	Current      engi.WorkflowRole   `json:"current,omitempty"`
	Escalated    bool                `json:"escalated,omitempty"`
	Creator      string              `json:"creator,omitempty"`
	Reviewer     string              `json:"reviewer,omitempty"`
	Revision     int64               `json:"revision,omitempty"`
	Hash         string              `json:"hash,omitempty"`
	Submitter    string              `json:"submitter,omitempty"`
	Notes        string              `json:"notes,omitempty"`
	Round        int                 `json:"round,omitempty"`
	MaxRevisions int                 `json:"max_revisions"`
	Limits       engi.WorkflowLimits `json:"limits"`
	Review       *keptReview         `json:"review,omitempty"`
	Metadata     json.RawMessage     `json:"metadata,omitempty"`
	Events       int64               `json:"events"`
	Created      int64               `json:"created"`
	Changed      int64               `json:"changed"`
}

type keptReview struct {
	Approved      bool                   `json:"approved,omitempty"`
	Grade         string                 `json:"grade,omitempty"`
	Feedback      string                 `json:"feedback,omitempty"`
	Suggestions   []string               `json:"suggestions,omitempty"`
	Criteria      []engi.CriterionResult `json:"criteria,omitempty"`
	ModifiedFiles []string               `json:"modified_files,omitempty"`
	Revision      int64                  `json:"revision"`
	Hash          string                 `json:"hash"`
	Reviewer      string                 `json:"reviewer"`
}

// workflowEvent holds an event of a history, apart from its number, and the event of the log about it.
type workflowEvent struct {
	Time      int64               `json:"time,omitempty"` // not in the log, whose events have a time
	Actor     string              `json:"actor,omitempty"`
	Role      engi.WorkflowRole   `json:"role"`
	Action    engi.WorkflowAction `json:"action"`
	From      engi.WorkflowStage  `json:"from,omitempty"`
	To        engi.WorkflowStage  `json:"to"`
	Escalated bool                `json:"escalated"`
	Revision  int64               `json:"revision,omitempty"`
	Hash      string              `json:"hash,omitempty"`
	Reason    string              `json:"reason,omitempty"`
	Details   *keptReview         `json:"details,omitempty"` // not in the log

	// Only in the log.
	Number    int64            `json:"number,omitempty"`
	Name      string           `json:"name,omitempty"`
	Workspace engi.WorkspaceID `json:"workspace_id,omitempty"`
	Grade     string           `json:"grade,omitempty"`
}

func scanWorkflow(row scanner) (w engi.Workflow, err error) {
	var detail string
	if err := row.Scan(&w.ID, &w.Owner, &w.Workspace, &w.Name, &w.Stage, (*stamp)(&w.Deadline), &detail); err != nil {
		return w, err
	}
	var d workflowDetail
	if err := decode("workflow "+string(w.ID), detail, &d); err != nil {
		return w, err
	}
	w.Task, w.Criteria, w.Current, w.Escalated, w.Creator, w.Reviewer = d.Task, d.Criteria, d.Current, d.Escalated, d.Creator, d.Reviewer
	w.Revision, w.Hash, w.Submitter, w.Notes, w.Round, w.MaxRevisions, w.Limits = d.Revision, d.Hash, d.Submitter, d.Notes, d.Round, d.MaxRevisions, d.Limits
	w.Review, w.Metadata, w.Events, w.Created, w.Changed = (*engi.ReviewResult)(d.Review), d.Metadata, d.Events, moment(d.Created), moment(d.Changed)
	return w, nil
}

// workflowValues returns the values of workflowColumns.
func workflowValues(w engi.Workflow) ([]any, error) {
	detail, err := encode("workflow", workflowDetail{
		Task: w.Task, Criteria: w.Criteria, Current: w.Current, Escalated: w.Escalated, Creator: w.Creator, Reviewer: w.Reviewer, Revision: w.Revision, Hash: w.Hash, Submitter: w.Submitter, Notes: w.Notes,
		Round: w.Round, MaxRevisions: w.MaxRevisions, Limits: w.Limits, Review: (*keptReview)(w.Review), Metadata: w.Metadata, Events: w.Events, Created: nanos(w.Created), Changed: nanos(w.Changed),
	})
	return []any{string(w.ID), string(w.Owner), string(w.Workspace), w.Name, string(w.Stage), nanos(w.Deadline), detail}, err
}

// note adds an event to the history of a workflow, and to the log.
func (t *tx) note(ctx context.Context, w engi.Workflow, e engi.WorkflowEvent) error {
	x := workflowEvent{
		Time: nanos(e.Time), Actor: e.Actor, Role: e.Role, Action: e.Action, From: e.From, To: e.To, Escalated: e.Escalated, Revision: e.Revision, Hash: e.Hash, Reason: e.Reason,
		Details: (*keptReview)(e.Details),
	}
	detail, err := encode("event of a workflow", x)
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, `INSERT INTO workflow_events (workflow, number, action, actor, hash, detail) VALUES (?, ?, ?, ?, ?, ?)`, w.ID, w.Events, e.Action, e.Actor, e.Hash, detail); err != nil {
		return err
	}
	kind := engi.EventWorkflowStage
	if e.Action == engi.ActCreate {
		kind = engi.EventWorkflowCreated
	}
	if x.Time, x.Number, x.Name, x.Workspace = 0, w.Events, w.Name, w.Workspace; x.Details != nil {
		x.Grade, x.Details = x.Details.Grade, nil
	}
	return t.record(ctx, w.Owner, string(w.ID), kind, x)
}

func (s workflowStore) Put(ctx context.Context, w engi.Workflow, first engi.WorkflowEvent, b workflow.Bounds) (err error) {
	defer engi.Annotate(&err, "record workflow %s", w.ID)
	values, err := workflowValues(w)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		for _, x := range []struct {
			noun, query string
			arg         any
			most        int
		}{
			{"in the workspace", `SELECT count(*) FROM workflows WHERE workspace = ?`, w.Workspace, b.Workspace},
			{"of the owner", `SELECT count(*) FROM workflows WHERE owner = ?`, w.Owner, b.Owner},
		} {
			var n int
			if err := t.row(ctx, x.query, x.arg).Scan(&n); err != nil {
				return fault(ctx, err)
			}
			if n >= x.most {
				return engi.Errorf(engi.Exhausted, "there are already %d workflows %s, which is the limit", n, x.noun).WithRemedy("delete an unused one")
			}
		}
		_, err := t.exec(ctx, `INSERT INTO workflows (`+workflowColumns+`) VALUES (`+marks(7)+`)`, values...)
		switch {
		case engi.Is(err, engi.Conflict):
			return engi.Errorf(engi.Conflict, "the workspace has a workflow of that name").WithRemedy("use it, delete it, or choose another name")
		case engi.Is(err, engi.NotFound):
			return errNoWorkspace
		case err != nil:
			return err
		}
		return t.note(ctx, w, first)
	})
}

// workflowsOf returns the condition that viewer sees a workflow.
func workflowsOf(viewer engi.Viewer) (w where) {
	w.and(viewer != engi.Everyone, `(owner = ? OR workspace IN (SELECT workspace FROM workspace_collaborators WHERE owner = ?))`, string(viewer), string(viewer))
	return w
}

func (s workflowStore) Get(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID) (engi.Workflow, error) {
	w := workflowsOf(viewer)
	w.and(true, `id = ?`, id)
	return first(ctx, s.db.read, errNoWorkflow, scanWorkflow, workflowFrom+w.String(), w.args...)
}

func (s workflowStore) List(ctx context.Context, viewer engi.Viewer, f workflow.Filter, p engi.Paging) ([]engi.Workflow, error) {
	w := workflowsOf(viewer)
	w.and(f.Workspace != "", `workspace = ?`, f.Workspace)
	w.and(f.Stage != "", `stage = ?`, f.Stage)
	return listPage(ctx, s.db, p, scanWorkflow, workflowColumns, "workflows", w, true, "seq")
}

func (s workflowStore) History(ctx context.Context, id engi.WorkflowID, p engi.Paging) ([]engi.WorkflowEvent, error) {
	after := int64(0)
	if p.After != "" {
		var err error
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil || after < 1 {
			return nil, p.Lost()
		}
		if _, err = first(ctx, s.db.read, p.Lost(), value[int], `SELECT 1 FROM workflow_events WHERE workflow = ? AND number = ?`, id, after); err != nil {
			return nil, err
		}
	}
	return list(ctx, s.db.read, func(row scanner) (e engi.WorkflowEvent, err error) {
		var detail string
		if err := row.Scan(&e.Number, &detail); err != nil {
			return e, err
		}
		var x workflowEvent
		if err := decode("event of workflow "+string(id), detail, &x); err != nil {
			return e, err
		}
		return engi.WorkflowEvent{
			Number: e.Number, Time: moment(x.Time), Actor: x.Actor, Role: x.Role, Action: x.Action, From: x.From, To: x.To, Escalated: x.Escalated, Revision: x.Revision, Hash: x.Hash, Reason: x.Reason,
			Details: (*engi.ReviewResult)(x.Details),
		}, nil
	}, `SELECT number, detail FROM workflow_events WHERE workflow = ? AND number > ? ORDER BY number LIMIT ?`, id, after, limit(p.Limit))
}

func (s workflowStore) Change(ctx context.Context, id engi.WorkflowID, f func(*engi.Workflow, workflow.Tx) (engi.WorkflowEvent, error)) (w engi.Workflow, err error) {
	err = s.db.tx(ctx, func(t *tx) error {
		if w, err = first(ctx, t, errNoWorkflow, scanWorkflow, workflowFrom+` WHERE id = ?`, id); err != nil {
			return err
		}
		e, err := f(&w, workflowTx{ctx, s.db, t, w.Workspace})
		if err != nil {
			return err
		}
		return t.advance(ctx, &w, e)
	})
	return w, err
}

// advance stores a changed workflow with the event of its change.
func (t *tx) advance(ctx context.Context, w *engi.Workflow, e engi.WorkflowEvent) error {
	w.Events++
	values, err := workflowValues(*w)
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, `UPDATE workflows SET (`+workflowColumns+`) = (`+marks(7)+`) WHERE id = ?`, append(values, w.ID)...); err != nil {
		return err
	}
	return t.note(ctx, *w, e)
}

func (s workflowStore) Remove(ctx context.Context, id engi.WorkflowID) (err error) {
	defer engi.Annotate(&err, "remove workflow %s", id)
	return s.db.tx(ctx, func(t *tx) error {
		n, err := t.removeWorkflows(ctx, `id = ?`, id)
		if err == nil && n == 0 {
			err = errNoWorkflow
		}
		return err
	})
}

// removeWorkflows deletes the workflows that a condition selects, each with an event.
func (t *tx) removeWorkflows(ctx context.Context, condition string, arg any) (int, error) {
	gone, err := list(ctx, t, scanWorkflow, `DELETE FROM workflows WHERE `+condition+` RETURNING `+workflowColumns, arg)
	for _, w := range gone {
		if err := t.record(ctx, w.Owner, string(w.ID), engi.EventWorkflowDeleted, map[string]any{"name": w.Name, "workspace_id": w.Workspace, "stage": w.Stage}); err != nil {
			return 0, err
		}
	}
	return len(gone), err
}

func (s workflowStore) Due(ctx context.Context, now time.Time) (due []engi.WorkflowID, next time.Time, err error) {
	due, err = list(ctx, s.db.read, value[engi.WorkflowID], `SELECT id FROM workflows WHERE deadline > 0 AND deadline <= ? ORDER BY deadline LIMIT 100`, nanos(now))
	if err != nil || len(due) > 0 {
		return due, next, err
	}
	at, err := first(ctx, s.db.read, nil, value[int64], `SELECT coalesce(min(deadline), 0) FROM workflows WHERE deadline > 0`)
	return nil, moment(at), err
}

// void ends the approvals of a workspace's workflows for which the last revision has other content.
func (t *tx) void(ctx context.Context, id engi.WorkspaceID, head workflow.Content, actor string, now time.Time) error {
	approved, err := list(ctx, t, scanWorkflow, workflowFrom+` WHERE workspace = ? AND stage = ? ORDER BY seq`, id, engi.WorkflowApproved)
	if err != nil {
		return err
	}
	for _, w := range approved {
		e, changed, err := workflow.Void(&w, head, actor, now)
		if err == nil && changed {
			err = t.advance(ctx, &w, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// workflowTx implements [workflow.Tx].
type workflowTx struct {
	ctx context.Context
	db  *DB
	t   *tx
	id  engi.WorkspaceID
}

func (x workflowTx) Workspace() (engi.Workspace, error) {
	r, err := workspacesOf(x.db).one(x.ctx, x.t, when(`id = ?`, x.id))
	return r.Workspace, err
}

func (x workflowTx) Content(revision int64) (workflow.Content, error) {
	if err := x.t.hashRevisions(x.ctx, x.id); err != nil {
		return workflow.Content{}, err
	}
	scan := func(row scanner) (c workflow.Content, err error) { return c, row.Scan(&c.Revision, &c.Hash) }
	if revision == 0 {
		all, err := list(x.ctx, x.t, scan, `SELECT number, tree FROM workspace_revisions WHERE workspace = ? ORDER BY number DESC LIMIT 1`, x.id)
		if err != nil || len(all) == 0 {
			return workflow.Content{}, err
		}
		return all[0], nil
	}
	return first(x.ctx, x.t, errNoWorkspaceRevision, scan, `SELECT number, tree FROM workspace_revisions WHERE workspace = ? AND number = ?`, x.id, revision)
}

func (x workflowTx) Makers(hash string) ([]string, error) {
	if err := x.t.hashRevisions(x.ctx, x.id); err != nil {
		return nil, err
	}
	return list(x.ctx, x.t, value[string], `SELECT coalesce(json_extract(detail, '$.actor'), '') AS maker FROM workspace_revisions WHERE workspace = ?1 AND tree = ?2 AND maker <> ''
		UNION SELECT actor FROM workflow_events WHERE action = 'submit' AND hash = ?2 AND actor <> '' AND workflow IN (SELECT id FROM workflows WHERE workspace = ?1) ORDER BY 1`, x.id, hash)
}

func (x workflowTx) ChangedBy(actor string, after int64, most int) ([]string, error) {
	if actor == "" {
		return nil, nil
	}
	paths := map[string]bool{}
	_, err := listWhile(x.ctx, x.t, func(row scanner) (none struct{}, err error) {
		r, err := scanWorkspaceRevision(row)
		for _, c := range r.Changed {
			if len(paths) < most {
				paths[c.Path] = true
			}
		}
		return none, err
	}, func(struct{}) bool { return len(paths) < most },
		revisionFrom+` WHERE workspace = ? AND number > ? AND json_extract(detail, '$.actor') = ? ORDER BY number`, x.id, after, actor)
	return slices.Sorted(maps.Keys(paths)), err
}

// hashRevisions stores the hashes of the files of revisions that an earlier version of engi recorded.
func (t *tx) hashRevisions(ctx context.Context, id engi.WorkspaceID) error {
	old, err := list(ctx, t, scanWorkspaceRevision, revisionFrom+` WHERE workspace = ? AND tree = ''`, id)
	if err != nil {
		return err
	}
	for _, r := range old {
		tree, err := t.treeOf(ctx, id, r.Commit)
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE workspace_revisions SET tree = ? WHERE workspace = ? AND number = ?`, tree, id, r.Number); err != nil {
			return err
		}
	}
	return nil
}

// treeOf returns the hash of all files of a commit.
func (t *tx) treeOf(ctx context.Context, id engi.WorkspaceID, commit string) (string, error) {
	return repo.TreeOf(ctx, func(ctx context.Context, hash string) (repo.Object, error) { return workspaceObject(ctx, t, id, hash) }, commit)
}
