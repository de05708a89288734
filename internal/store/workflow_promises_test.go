package store_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace"
)

// A workflowFixture is an empty store of workflows with the workspaces that they are in and the log.
type workflowFixture struct {
	Store      workflow.Store
	Workspaces workspace.Store
	Events     engi.Events
}

var (
	workflowBounds = workflow.Bounds{Workspace: 10, Owner: 20}
	workflowAt     = time.Date(2026, 11, 29, 5, 0, 0, 123456000, time.UTC)
)

func aWorkflow(space workspace.Record, name string) engi.Workflow {
	return engi.Workflow{
		ID: engi.NewWorkflowID(), Owner: space.Owner, Workspace: space.ID, Name: name, Task: "write", Stage: engi.WorkflowCreation, Current: engi.RoleWorkCreator, MaxRevisions: 3,
		Events: 1, Created: workflowAt, Changed: workflowAt,
	}
}

var createdWorkflow = engi.WorkflowEvent{Number: 1, Time: workflowAt, Actor: "key_a", Role: engi.RoleWorkOwner, Action: engi.ActCreate, To: engi.WorkflowCreation, Reason: "write"}

func putWorkflow(t *testing.T, s workflow.Store, w engi.Workflow) engi.Workflow {
	t.Helper()
	if err := s.Put(t.Context(), w, createdWorkflow, workflowBounds); err != nil {
		t.Fatal(err)
	}
	return w
}

// become changes the stage of a workflow.
func become(t *testing.T, s workflow.Store, id engi.WorkflowID, stage engi.WorkflowStage, e engi.WorkflowEvent) engi.Workflow {
	t.Helper()
	w, err := s.Change(t.Context(), id, func(w *engi.Workflow, _ workflow.Tx) (engi.WorkflowEvent, error) {
		e.From, e.To, e.Time = w.Stage, stage, workflowAt
		w.Stage, w.Revision, w.Hash = stage, e.Revision, e.Hash
		return e, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// inWorkflow calls f in a transaction that changes nothing.
func inWorkflow(t *testing.T, s workflow.Store, id engi.WorkflowID, f func(tx workflow.Tx)) {
	t.Helper()
	undone := engi.Errorf(engi.Conflict, "undone")
	_, err := s.Change(t.Context(), id, func(_ *engi.Workflow, tx workflow.Tx) (engi.WorkflowEvent, error) {
		f(tx)
		return engi.WorkflowEvent{}, undone
	})
	if err != undone {
		t.Fatal(err)
	}
}

func same(t *testing.T, what string, want, got any, err error) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s: %v (-want +got):\n%s", what, err, diff)
	}
}

// workflowPromises tests every promise of [workflow.Store].
func workflowPromises(t *testing.T, fixture func(t *testing.T) workflowFixture) {
	for name, f := range map[string]func(*testing.T, workflowFixture){
		"a workflow is what was put and changed":        workflowRecords,
		"1 a change is one transaction with its events": workflowHistories,
		"2 who works in the workspace finds it":         workflowFinding,
		"3 other content voids an approval":             workflowVoid,
		"4 they end with the workspace":                 workflowRemoved,
		"numbers are bounded":                           workflowBounded,
		"deadlines":                                     workflowDue,
		"who has made what":                             workflowMakers,
	} {
		t.Run(name, func(t *testing.T) { f(t, fixture(t)) })
	}
}

func workflowRecords(t *testing.T, f workflowFixture) {
	space := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n"))
	w := putWorkflow(t, f.Store, aWorkflow(space, "w"))
	got, err := f.Store.Get(t.Context(), "o", w.ID)
	same(t, "put", w, got, err)
	full := w
	full.Stage, full.Current, full.Escalated, full.Creator, full.Reviewer = engi.WorkflowReview, engi.RoleWorkOwner, true, "c", "r"
	full.Revision, full.Hash, full.Submitter, full.Notes, full.Round, full.MaxRevisions = 7, "h", "s", "notes", 2, 4
	full.Limits, full.Deadline = engi.WorkflowLimits{Creation: 1, Review: 2, Revision: 3}, workflowAt
	full.Review = &engi.ReviewResult{Approved: true, Grade: "A", Feedback: "f", Suggestions: []string{"s"}, ModifiedFiles: []string{"m"}, Revision: 6, Hash: "g", Reviewer: "r"}
	full.Metadata, full.Changed = json.RawMessage(`{"a":[1.10,null]}`), workflowAt.Add(time.Second)
	event := engi.WorkflowEvent{
		Number: 2, Time: workflowAt, Actor: "r", Role: engi.RoleWorkReviewer, Action: engi.ActSendBack, From: engi.WorkflowReview, To: engi.WorkflowRevision, Escalated: true,
		Revision: 7, Hash: "h", Reason: "why", Details: full.Review,
	}
	changed, err := f.Store.Change(t.Context(), w.ID, func(w *engi.Workflow, _ workflow.Tx) (engi.WorkflowEvent, error) {
		*w = full
		return event, nil
	})
	full.Events = 2
	same(t, "what Change returns", full, changed, err)
	got, err = f.Store.Get(t.Context(), engi.Everyone, w.ID)
	same(t, "changed", full, got, err)
	history, err := f.Store.History(t.Context(), w.ID, engi.Paging{})
	same(t, "history", []engi.WorkflowEvent{createdWorkflow, event}, history, err)
	wantKind(t, f.Store.Put(t.Context(), aWorkflow(space, "w"), createdWorkflow, workflowBounds), engi.Conflict)
	gone := workspaceRecord("o", "gone")
	wantKind(t, f.Store.Put(t.Context(), aWorkflow(gone, "x"), createdWorkflow, workflowBounds), engi.NotFound)
}

func workflowHistories(t *testing.T, f workflowFixture) {
	space := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n"))
	w := putWorkflow(t, f.Store, aWorkflow(space, "w"))
	for range 4 {
		become(t, f.Store, w.ID, engi.WorkflowReview, engi.WorkflowEvent{Actor: "a", Action: engi.ActSubmit, Role: engi.RoleWorkCreator})
	}
	failed := engi.Errorf(engi.Denied, "no")
	_, err := f.Store.Change(t.Context(), w.ID, func(w *engi.Workflow, _ workflow.Tx) (engi.WorkflowEvent, error) {
		w.Stage = engi.WorkflowApproved
		return engi.WorkflowEvent{}, failed
	})
	if err != failed {
		t.Errorf("got %v", err)
	}
	numbers := func(p engi.Paging) (all []int64) {
		events, err := f.Store.History(t.Context(), w.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			all = append(all, e.Number)
		}
		return all
	}
	same(t, "numbers", []int64{1, 2, 3, 4, 5}, numbers(engi.Paging{}), nil)
	same(t, "first page", []int64{1, 2}, numbers(engi.Paging{Limit: 2}), nil)
	same(t, "next page", []int64{3, 4}, numbers(engi.Paging{Limit: 2, After: "2"}), nil)
	for _, after := range []string{"6", "0", "-1", "x"} {
		_, err := f.Store.History(t.Context(), w.ID, engi.Paging{After: after})
		wantKind(t, err, engi.Invalid)
	}
	log, err := f.Events.List(t.Context(), "o", engi.EventFilter{Subject: string(w.ID), Oldest: true})
	var types []string
	for _, e := range log {
		types = append(types, e.Type)
	}
	same(t, "log", []string{"workflow.created", "workflow.stage", "workflow.stage", "workflow.stage", "workflow.stage"}, types, err)
	wantKind(t, func() error { _, err := f.Store.Change(t.Context(), engi.NewWorkflowID(), nil); return err }(), engi.NotFound)
}

func workflowFinding(t *testing.T, f workflowFixture) {
	r := workspaceRecord("o", "n")
	r.Collaborators = []engi.Collaborator{{Owner: "p", Role: engi.RoleViewer}}
	space, other := putWorkspace(t, f.Workspaces, r), putWorkspace(t, f.Workspaces, workspaceRecord("q", "n"))
	a, b, c := putWorkflow(t, f.Store, aWorkflow(space, "a")), putWorkflow(t, f.Store, aWorkflow(other, "b")), putWorkflow(t, f.Store, aWorkflow(space, "c"))
	c = become(t, f.Store, c.ID, engi.WorkflowReview, engi.WorkflowEvent{Action: engi.ActSubmit})
	for viewer, want := range map[engi.Viewer][]engi.Workflow{"o": {c, a}, "p": {c, a}, "q": {b}, "r": nil, "": nil, engi.Everyone: {c, b, a}} {
		got, err := f.Store.List(t.Context(), viewer, workflow.Filter{}, engi.Paging{})
		same(t, "list of "+string(viewer), want, got, err)
		for _, w := range []engi.Workflow{a, b, c} {
			_, err := f.Store.Get(t.Context(), viewer, w.ID)
			if slices.ContainsFunc(want, func(x engi.Workflow) bool { return x.ID == w.ID }) != (err == nil) || err != nil && !engi.Is(err, engi.NotFound) {
				t.Errorf("%s of %q: %v", w.Name, viewer, err)
			}
		}
	}
	got, err := f.Store.List(t.Context(), engi.Everyone, workflow.Filter{Workspace: space.ID, Stage: engi.WorkflowCreation}, engi.Paging{})
	same(t, "filtered", []engi.Workflow{a}, got, err)
	got, err = f.Store.List(t.Context(), "p", workflow.Filter{}, engi.Paging{Limit: 1, After: string(c.ID)})
	same(t, "second page", []engi.Workflow{a}, got, err)
	_, err = f.Store.List(t.Context(), "p", workflow.Filter{}, engi.Paging{After: string(b.ID)})
	wantKind(t, err, engi.Invalid)
}

func workflowVoid(t *testing.T, f workflowFixture) {
	space := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n"))
	revise := func(text string) engi.WorkspaceRevision {
		t.Helper()
		rev, err := reviseWorkspace(t, f.Workspaces, space, plentyForWorkspaces, map[string]string{"a": text})
		if err != nil {
			t.Fatal(err)
		}
		space.Revision = rev.Number
		return rev
	}
	revise("good")
	w, open := putWorkflow(t, f.Store, aWorkflow(space, "w")), putWorkflow(t, f.Store, aWorkflow(space, "open"))
	var good workflow.Content
	inWorkflow(t, f.Store, w.ID, func(tx workflow.Tx) { good, _ = tx.Content(0) })
	approve := func() {
		become(t, f.Store, w.ID, engi.WorkflowApproved, engi.WorkflowEvent{Action: engi.ActApprove, Revision: good.Revision, Hash: good.Hash})
	}
	stage := func(want engi.WorkflowStage) {
		t.Helper()
		if got, err := f.Store.Get(t.Context(), "o", w.ID); err != nil || got.Stage != want {
			t.Errorf("%+v %v, want it %s", got, err, want)
		}
	}
	approve()
	revise("good")
	stage(engi.WorkflowApproved)
	if _, err := reviseWorkspace(t, f.Workspaces, space, 1, map[string]string{"a": "bad"}); !engi.Is(err, engi.Exhausted) {
		t.Fatal(err)
	}
	stage(engi.WorkflowApproved) // the revision is not recorded
	revise("bad")
	stage(engi.WorkflowRevision)
	revise("good") // the approval does not come back
	stage(engi.WorkflowRevision)
	history, err := f.Store.History(t.Context(), w.ID, engi.Paging{After: "2"})
	if err != nil || len(history) != 1 {
		t.Fatalf("%+v %v", history, err)
	}
	e := history[0]
	if e.Action != engi.ActVoid || e.From != engi.WorkflowApproved || e.To != engi.WorkflowRevision || e.Role != engi.RoleWorkNode || e.Revision != 3 || e.Hash == good.Hash || e.Hash == "" {
		t.Errorf("%+v", e)
	}
	if got, err := f.Store.Get(t.Context(), "o", open.ID); err != nil || got.Events != 1 {
		t.Errorf("the open one: %+v %v", got, err)
	}
}

func workflowRemoved(t *testing.T, f workflowFixture) {
	space := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n"))
	a, b := putWorkflow(t, f.Store, aWorkflow(space, "a")), putWorkflow(t, f.Store, aWorkflow(space, "b"))
	if err := f.Store.Remove(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, f.Store.Remove(t.Context(), a.ID), engi.NotFound)
	if err := f.Workspaces.Remove(t.Context(), space.ID); err != nil {
		t.Fatal(err)
	}
	for _, w := range []engi.Workflow{a, b} {
		_, err := f.Store.Get(t.Context(), engi.Everyone, w.ID)
		wantKind(t, err, engi.NotFound)
		history, err := f.Store.History(t.Context(), w.ID, engi.Paging{})
		same(t, "history", []engi.WorkflowEvent(nil), history, err)
		log, err := f.Events.List(t.Context(), "o", engi.EventFilter{Subject: string(w.ID)})
		if err != nil || len(log) != 2 || log[0].Type != engi.EventWorkflowDeleted {
			t.Errorf("%+v %v", log, err)
		}
	}
}

func workflowBounded(t *testing.T, f workflowFixture) {
	space, other := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n")), putWorkspace(t, f.Workspaces, workspaceRecord("o", "m"))
	theirs := putWorkspace(t, f.Workspaces, workspaceRecord("p", "n"))
	b := workflow.Bounds{Workspace: 1, Owner: 2}
	for _, x := range []struct {
		space workspace.Record
		name  string
		want  engi.Kind
	}{{space, "a", engi.NoKind}, {space, "b", engi.Exhausted}, {other, "a", engi.NoKind}, {theirs, "a", engi.NoKind}} {
		if err := f.Store.Put(t.Context(), aWorkflow(x.space, x.name), createdWorkflow, b); engi.KindOf(err) != x.want {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	third := putWorkspace(t, f.Workspaces, workspaceRecord("o", "k"))
	wantKind(t, f.Store.Put(t.Context(), aWorkflow(third, "c"), createdWorkflow, b), engi.Exhausted)
}

func workflowDue(t *testing.T, f workflowFixture) {
	space := putWorkspace(t, f.Workspaces, workspaceRecord("o", "n"))
	due := func(now time.Time, want []engi.WorkflowID, next time.Time) {
		t.Helper()
		ids, at, err := f.Store.Due(t.Context(), now)
		same(t, "due", want, ids, err)
		same(t, "next", next, at, nil)
	}
	putWorkflow(t, f.Store, aWorkflow(space, "never"))
	due(workflowAt, nil, time.Time{})
	late, soon := aWorkflow(space, "late"), aWorkflow(space, "soon")
	late.Deadline, soon.Deadline = workflowAt.Add(2*time.Minute), workflowAt.Add(time.Minute)
	putWorkflow(t, f.Store, late)
	putWorkflow(t, f.Store, soon)
	due(workflowAt, nil, soon.Deadline)
	due(soon.Deadline, []engi.WorkflowID{soon.ID}, time.Time{})
	due(late.Deadline, []engi.WorkflowID{soon.ID, late.ID}, time.Time{})
	if _, err := f.Store.Change(t.Context(), soon.ID, func(w *engi.Workflow, _ workflow.Tx) (engi.WorkflowEvent, error) {
		w.Deadline = time.Time{}
		return engi.WorkflowEvent{Action: engi.ActExpire}, nil
	}); err != nil {
		t.Fatal(err)
	}
	due(soon.Deadline, nil, late.Deadline)
}

func workflowMakers(t *testing.T, f workflowFixture) {
	r := workspaceRecord("o", "n")
	r.Collaborators = []engi.Collaborator{{Owner: "p", Role: engi.RoleEditor}}
	space := putWorkspace(t, f.Workspaces, r)
	w := putWorkflow(t, f.Store, aWorkflow(space, "w"))
	inWorkflow(t, f.Store, w.ID, func(tx workflow.Tx) {
		c, err := tx.Content(0)
		same(t, "no revision", workflow.Content{}, c, err)
		_, err = tx.Content(1)
		wantKind(t, err, engi.NotFound)
		got, err := tx.Workspace()
		same(t, "workspace", space.Collaborators, got.Collaborators, err)
	})
	for _, text := range []string{"x", "y", "x"} {
		rev, err := reviseWorkspace(t, f.Workspaces, space, plentyForWorkspaces, map[string]string{"b": "same", "a": text})
		if err != nil {
			t.Fatal(err)
		}
		space.Revision = rev.Number
	}
	var first, last workflow.Content
	inWorkflow(t, f.Store, w.ID, func(tx workflow.Tx) {
		first, _ = tx.Content(1)
		last, _ = tx.Content(0)
	})
	if first.Revision != 1 || last.Revision != 3 || first.Hash != last.Hash || len(first.Hash) != 40 {
		t.Errorf("%+v %+v", first, last)
	}
	become(t, f.Store, w.ID, engi.WorkflowReview, engi.WorkflowEvent{Actor: "submitter", Action: engi.ActSubmit, Hash: first.Hash})
	become(t, f.Store, w.ID, engi.WorkflowRevision, engi.WorkflowEvent{Actor: "reviewer", Action: engi.ActSendBack, Hash: first.Hash})
	inWorkflow(t, f.Store, w.ID, func(tx workflow.Tx) {
		makers, err := tx.Makers(first.Hash)
		same(t, "makers", []string{"a", "submitter"}, makers, err)
		makers, err = tx.Makers("other")
		same(t, "makers of nothing", []string(nil), makers, err)
		paths, err := tx.ChangedBy("a", 1, 10)
		same(t, "paths", []string{"a", "b"}, paths, err)
		paths, err = tx.ChangedBy("a", 1, 1)
		same(t, "bounded paths", []string{"a"}, paths, err)
		for actor, after := range map[string]int64{"a": 3, "": 0, "other": 0} {
			paths, err = tx.ChangedBy(actor, after, 10)
			same(t, "paths of "+actor, []string{}, append([]string{}, paths...), err)
		}
	})
}
