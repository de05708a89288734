package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// spaces are workspaces without sandboxes.
type spaces struct{ workspace.Store }

func (s spaces) Get(ctx context.Context, viewer engi.Viewer, id string) (engi.Workspace, error) {
	r, err := s.Find(ctx, viewer, id)
	return r.Workspace, err
}

func (spaces) Create(context.Context, engi.WorkspaceSpec) (engi.Workspace, error) {
	return engi.Workspace{}, errors.New("no workspace is made here")
}

func (spaces) Change(context.Context, engi.Viewer, string, engi.WorkspaceChange) (engi.Workspace, error) {
	return engi.Workspace{}, errors.New("no workspace is changed here")
}

func (spaces) Collect(context.Context, engi.WorkspaceID, bool) error { return nil }

// A node is a service on a database that outlives it.
type node struct {
	*testing.T
	db    *store.DB
	space engi.Workspace
	s     *workflow.Service
	team  *team // nil for no agents
	stop  func()
}

func newNode(t *testing.T) *node {
	n := &node{T: t, db: storetest.Open(t)}
	n.space = engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "ann", Name: "shop", Created: time.Now(), Collaborators: []engi.Collaborator{{Owner: "rita", Role: engi.RoleReviewer}}}
	if err := store.Workspaces(n.db).Put(t.Context(), workspace.Record{Workspace: n.space}, nil); err != nil {
		t.Fatal(err)
	}
	n.start()
	return n
}

// start runs the service until stop is called.
func (n *node) start() {
	n.s = workflow.New(workflow.Options{Store: store.Workflows(n.db), Workspaces: spaces{store.Workspaces(n.db)}, Events: store.Events(n.db)})
	if n.team != nil {
		n.s.Bind(n.team)
	}
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan error, 1)
	go func() { done <- n.s.Run(ctx, func() {}) }()
	n.stop = func() {
		cancel()
		if err := <-done; err != nil {
			n.Error(err)
		}
	}
}

// write records a revision with one file.
func (n *node) write(actor, text string) {
	n.Helper()
	o, err := repo.New(repo.Blob, []byte(text))
	if err != nil {
		n.Fatal(err)
	}
	_, err = store.Workspaces(n.db).Change(n.Context(), n.space.ID, func(r *workspace.Record, tx workspace.Tx) error {
		r.Revision++
		v, made, err := repo.Version{}.Next(repo.Files{"a": {Path: "a", Mode: repo.FileMode, Hash: o.Hash}}, repo.Note{Time: time.Now()})
		if err != nil {
			return err
		}
		return tx.Revise(engi.WorkspaceRevision{Number: r.Revision, Commit: v.Commit, Actor: actor, Created: time.Now()}, append(made, o), 1<<20)
	})
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) create(spec engi.WorkflowSpec) engi.Workflow {
	n.Helper()
	spec.Viewer, spec.Workspace = "ann", "shop"
	w, err := n.s.Create(n.Context(), spec)
	if err != nil {
		n.Fatal(err)
	}
	return w
}

func (n *node) act(id engi.WorkflowID, actor string, viewer engi.Viewer, a engi.WorkflowAct) engi.Workflow {
	n.Helper()
	a.Workflow, a.Viewer = id, viewer
	w, err := n.s.Act(engi.WithActor(n.Context(), actor), a)
	if err != nil {
		n.Fatal(err)
	}
	return w
}

func (n *node) is(id engi.WorkflowID, stage engi.WorkflowStage, escalated bool) engi.Workflow {
	n.Helper()
	w, err := n.s.Get(n.Context(), "ann", id)
	if err != nil || w.Stage != stage || w.Escalated != escalated {
		n.Fatalf("%+v %v, want %s, escalated %t", w, err, stage, escalated)
	}
	return w
}

// TestDeadlines lets the deadlines of stages pass, once while no service runs.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop() }()
		sleep := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		never := n.create(engi.WorkflowSpec{})
		w := n.create(engi.WorkflowSpec{Limits: engi.WorkflowLimits{Creation: 2 * time.Hour, Review: time.Minute, Revision: time.Hour}})
		sleep(2*time.Hour - time.Second)
		n.is(w.ID, engi.WorkflowCreation, false)
		sleep(time.Second)
		n.is(w.ID, engi.WorkflowCreation, true)
		n.act(w.ID, "key_ann", "ann", engi.WorkflowAct{Action: engi.ActSendBack, Reason: "take your time"})
		if w = n.is(w.ID, engi.WorkflowRevision, false); w.Round != 0 || !w.Deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%+v", w)
		}
		n.write("key_maker", "x")
		n.act(w.ID, "key_maker", "ann", engi.WorkflowAct{Action: engi.ActSubmit})
		sleep(time.Minute - time.Second)
		n.stop() // the deadline passes while the node is down
		sleep(time.Hour)
		n.start()
		synctest.Wait()
		w = n.is(w.ID, engi.WorkflowReview, true)
		if w = n.act(w.ID, "key_ann", "ann", engi.WorkflowAct{Action: engi.ActApprove, Revision: 1}); w.Stage != engi.WorkflowApproved || !w.Deadline.IsZero() {
			t.Errorf("%+v", w)
		}
		n.write("key_maker", "y")
		if w = n.is(w.ID, engi.WorkflowRevision, false); w.Deadline.IsZero() {
			t.Errorf("%+v", w)
		}
		n.is(never.ID, engi.WorkflowCreation, false)
		history, err := n.s.History(t.Context(), "rita", w.ID, engi.Paging{})
		var said []string
		for _, e := range history {
			said = append(said, fmt.Sprintf("%s/%s", e.Action, e.Role))
		}
		want := "create/owner expire/node send_back/owner submit/creator expire/node approve/owner void/node"
		if got := strings.Join(said, " "); got != want || err != nil {
			t.Errorf("%s %v, want %s", got, err, want)
		}
	})
}

// TestLateActs acts after a deadline before the service has noticed it.
func TestLateActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		w := n.create(engi.WorkflowSpec{Limits: engi.WorkflowLimits{Creation: time.Minute}})
		n.stop()
		n.write("key_maker", "x")
		time.Sleep(time.Minute)
		_, err := n.s.Act(engi.WithActor(t.Context(), string(engi.NewRunID())), engi.WorkflowAct{Viewer: "ann", Workflow: w.ID, Action: engi.ActSubmit})
		if !engi.Is(err, engi.Denied) {
			t.Errorf("got %v", err)
		}
		n.is(w.ID, engi.WorkflowCreation, true)
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer n.stop()
		w := n.create(engi.WorkflowSpec{})
		n.write("key_maker", "x")
		waits := make(chan error, 3)
		wait := func(want engi.WorkflowStage, viewer engi.Viewer, stages ...engi.WorkflowStage) {
			go func() {
				got, err := n.s.Wait(t.Context(), viewer, w.ID, stages...)
				if err == nil && got.Stage != want {
					err = fmt.Errorf("it is %s, want %s", got.Stage, want)
				}
				waits <- err
			}()
		}
		wait(engi.WorkflowReview, "rita", engi.WorkflowReview)
		wait(engi.WorkflowRejected, "ann")
		wait(engi.WorkflowRejected, "ann", engi.WorkflowRevision)
		synctest.Wait()
		n.act(w.ID, "key_maker", "ann", engi.WorkflowAct{Action: engi.ActSubmit})
		if err := <-waits; err != nil {
			t.Error(err)
		}
		n.act(w.ID, "key_rita", "rita", engi.WorkflowAct{Action: engi.ActReject})
		for range 2 {
			if err := <-waits; err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer cancel()
		other := n.create(engi.WorkflowSpec{})
		if _, err := n.s.Wait(ctx, "ann", other.ID); !engi.Is(err, engi.Expired) {
			t.Errorf("got %v", err)
		}
		if _, err := n.s.Wait(ctx, "eve", other.ID); !engi.Is(err, engi.NotFound, engi.Expired) {
			t.Errorf("got %v", err)
		}
	})
}

// TestBounds sends more than a workflow takes.
func TestBounds(t *testing.T) {
	n := newNode(t)
	defer n.stop()
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, spec := range map[string]engi.WorkflowSpec{
		"name": {Name: "a/b"}, "task": {Task: long(engi.MaxWorkflowText + 1)}, "creator": {Creator: long(129)}, "reviewer": {Reviewer: "a\x00"}, "max_revisions": {MaxRevisions: 21},
		"limits.review": {Limits: engi.WorkflowLimits{Review: 91 * 24 * time.Hour}}, "limits.creation": {Limits: engi.WorkflowLimits{Creation: time.Millisecond}}, "limits.revision": {Limits: engi.WorkflowLimits{Revision: -time.Hour}},
		"metadata": {Metadata: []byte(`[1]`)},
	} {
		spec.Viewer, spec.Workspace = "ann", "shop"
		_, err := n.s.Create(t.Context(), spec)
		if f := engi.FaultsOf(err); !engi.Is(err, engi.Invalid) || len(f) != 1 || f[0].Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, viewer := range []engi.Viewer{"rita", "eve"} {
		if _, err := n.s.Create(t.Context(), engi.WorkflowSpec{Viewer: viewer, Workspace: string(n.space.ID)}); !engi.Is(err, engi.Denied, engi.NotFound) {
			t.Errorf("%s: %v", viewer, err)
		}
	}
	w := n.create(engi.WorkflowSpec{Name: "w", Metadata: []byte(`{"a":"` + long(engi.MaxWorkflowMetadata-8) + `"}`), Task: long(engi.MaxWorkflowText)})
	n.write("key_maker", "x")
	n.act(w.ID, "key_maker", "ann", engi.WorkflowAct{Action: engi.ActSubmit, Reason: strings.Repeat("\x01", engi.MaxWorkflowText)})
	suggestions := make([]string, engi.MaxReviewSuggestions)
	for i := range suggestions {
		suggestions[i] = strings.Repeat("\x01", engi.MaxReviewSuggestion)
	}
	for name, a := range map[string]engi.WorkflowAct{
		"reason": {Action: engi.ActReject, Reason: "\xff"}, "grade": {Action: engi.ActReject, Grade: long(101)}, "feedback": {Action: engi.ActReject, Feedback: long(engi.MaxReviewFeedback + 1)},
		"suggestions": {Action: engi.ActReject, Suggestions: append(suggestions, "x")}, "revision": {Action: engi.ActApprove}, "": {Action: engi.ActVoid},
	} {
		a.Viewer, a.Workflow = "rita", w.ID
		_, err := n.s.Act(t.Context(), a)
		if f := engi.FaultsOf(err); !engi.Is(err, engi.Invalid) || (name != "") != (len(f) == 1 && f[0].Field == name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w = n.act(w.ID, "key_rita", "rita", engi.WorkflowAct{Action: engi.ActSendBack, Feedback: strings.Repeat("\x01", engi.MaxReviewFeedback), Suggestions: suggestions})
	if len(w.Review.Suggestions) != engi.MaxReviewSuggestions {
		t.Errorf("%d suggestions", len(w.Review.Suggestions))
	}
}
