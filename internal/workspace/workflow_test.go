package workspace_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/test/seed"
)

// flow is a workflow in a workspace of ann, in which bob is an editor, rita a reviewer and vera a viewer.
type flow struct {
	testing.TB
	w     *fixture
	s     *workspace.Service
	flows *workflow.Service
	space engi.Workspace
	id    engi.WorkflowID
}

func newFlow(t testing.TB, spec engi.WorkflowSpec) *flow {
	f := &flow{TB: t, w: newFixture(t)}
	f.s, _ = f.w.begin(t)
	f.flows = workflow.New(workflow.Options{Store: store.Workflows(f.w.db), Workspaces: f.s, Events: store.Events(f.w.db)})
	f.space = must[engi.Workspace](t)(f.s.Create(t.Context(), engi.WorkspaceSpec{Owner: "ann", Name: "shop", Collaborators: []engi.Collaborator{
		{Owner: "bob", Role: engi.RoleEditor}, {Owner: "rita", Role: engi.RoleReviewer}, {Owner: "vera", Role: engi.RoleViewer},
	}}))
	f.begin("key_ann", "ann", spec)
	return f
}

// begin creates a workflow.
func (f *flow) begin(actor string, viewer engi.Viewer, spec engi.WorkflowSpec) engi.Workflow {
	f.Helper()
	spec.Viewer, spec.Workspace = viewer, string(f.space.ID)
	w := must[engi.Workflow](f)(f.flows.Create(engi.WithActor(f.Context(), actor), spec))
	f.id = w.ID
	return w
}

func (f *flow) write(actor, text string) int64 {
	f.Helper()
	rev := must[engi.WorkspaceRevision](f)(f.s.Write(engi.WithActor(f.Context(), actor), engi.WriteSpec{Viewer: engi.Everyone, Workspace: string(f.space.ID), Files: []engi.WorkspaceFile{file("a.txt", text)}}))
	return rev.Number
}

func (f *flow) act(actor string, viewer engi.Viewer, a engi.WorkflowAct) (engi.Workflow, error) {
	a.Viewer, a.Workflow = viewer, f.id
	return f.flows.Act(engi.WithActor(f.Context(), actor), a)
}

// want takes an action that leads to a stage.
func (f *flow) want(actor string, viewer engi.Viewer, a engi.WorkflowAct, stage engi.WorkflowStage) engi.Workflow {
	f.Helper()
	w := must[engi.Workflow](f)(f.act(actor, viewer, a))
	if w.Stage != stage {
		f.Fatalf("it is in stage %s after %s, want %s", w.Stage, a.Action, stage)
	}
	return w
}

// refused takes an action that is refused.
func (f *flow) refused(actor string, viewer engi.Viewer, a engi.WorkflowAct, kind engi.Kind) {
	f.Helper()
	if _, err := f.act(actor, viewer, a); !engi.Is(err, kind) || engi.RemedyOf(err) == "" {
		f.Errorf("%s by %s: %v (%s), want %s", a.Action, actor, err, engi.RemedyOf(err), kind)
	}
}

func (f *flow) get() engi.Workflow {
	f.Helper()
	return must[engi.Workflow](f)(f.flows.Get(f.Context(), "ann", f.id))
}

var (
	submit = engi.WorkflowAct{Action: engi.ActSubmit, Reason: "please"}
	reject = engi.WorkflowAct{Action: engi.ActReject}
)

func approve(revision int64) engi.WorkflowAct {
	return engi.WorkflowAct{Action: engi.ActApprove, Revision: revision, Grade: "A"}
}

func sendBack(feedback string) engi.WorkflowAct {
	return engi.WorkflowAct{Action: engi.ActSendBack, Feedback: feedback, Suggestions: []string{"shorter"}}
}

// TestWorkflow leads a workflow from creation to an approval and beyond.
func TestWorkflow(t *testing.T) {
	f := newFlow(t, engi.WorkflowSpec{Task: "a shop"})
	f.refused("key_ann", "ann", submit, engi.Conflict) // there is no revision
	f.write("run_maker", "one")
	for viewer, kind := range map[engi.Viewer]engi.Kind{"rita": engi.Denied, "vera": engi.Denied, "eve": engi.NotFound, "": engi.NotFound} {
		f.refused("key_x", viewer, submit, kind)
	}
	f.refused("key_rita", "rita", approve(1), engi.Conflict)
	w := f.want("run_maker", "ann", submit, engi.WorkflowReview)
	if w.Revision != 1 || len(w.Hash) != 40 || w.Submitter != "run_maker" || w.Notes != "please" || w.Current != engi.RoleWorkReviewer {
		t.Errorf("%+v", w)
	}
	f.refused("run_maker", "ann", approve(1), engi.Denied)
	f.refused("key_vera", "vera", approve(1), engi.Denied)
	f.refused("key_rita", "rita", approve(0), engi.Invalid)
	f.refused("key_rita", "rita", approve(7), engi.NotFound)

	// The reviewer shows what it means, and sends the work back.
	f.write("key_bob", "one, shorter")
	w = f.want("key_bob", "bob", sendBack("too long"), engi.WorkflowRevision)
	if r := w.Review; r == nil || r.Approved || r.Feedback != "too long" || !slices.Equal(r.ModifiedFiles, []string{"a.txt"}) || r.Revision != 1 || r.Reviewer != "key_bob" || w.Round != 1 {
		t.Errorf("%+v", w.Review)
	}
	f.want("run_maker", "ann", submit, engi.WorkflowReview)
	f.refused("key_bob", "bob", approve(2), engi.Denied)     // bob has made it
	f.refused("run_maker", "ann", approve(2), engi.Denied)   // and the maker has submitted it
	f.refused("key_rita", "rita", approve(1), engi.Conflict) // rita has read another revision

	// A program in the sandbox changes a file after the submission.
	sandbox := must[engi.Workspace](t)(f.s.Start(t.Context(), "ann", "shop")).Sandbox
	f.w.in(sandbox, func(b *fakeSandbox) { b.put("/workspace/a.txt", "worse", 0o644) })
	f.refused("key_rita", "rita", approve(2), engi.Conflict)
	f.w.in(sandbox, func(b *fakeSandbox) { b.put("/workspace/b.txt", "from a program", 0o644) })
	if w = f.want("run_maker", "ann", submit, engi.WorkflowReview); w.Revision != 4 {
		t.Errorf("revision %d was submitted, want the changes in the sandbox", w.Revision)
	}
	// Nobody else may take the submission over, so that its first submitter could approve it.
	f.want("key_ann", "ann", submit, engi.WorkflowReview)
	f.refused("run_maker", "ann", approve(4), engi.Denied)
	w = f.want("key_rita", "rita", approve(4), engi.WorkflowApproved)
	if r := w.Review; !r.Approved || r.Grade != "A" || r.Hash != w.Hash || len(r.ModifiedFiles) != 0 || w.Current != "" {
		t.Errorf("%+v", r)
	}
	f.write("key_bob", "worse") // what it is already
	if w = f.get(); w.Stage != engi.WorkflowApproved {
		t.Errorf("it is in stage %s, and nothing has changed", w.Stage)
	}
	f.w.in(sandbox, func(b *fakeSandbox) { b.put("/workspace/b.txt", "after the approval", 0o644) })
	if w = f.get(); w.Stage != engi.WorkflowRevision || w.Current != engi.RoleWorkCreator {
		t.Errorf("it is in stage %s after a change in the sandbox", w.Stage)
	}
	var actions []string
	for _, e := range must[[]engi.WorkflowEvent](t)(f.flows.History(t.Context(), "vera", f.id, engi.Paging{})) {
		actions = append(actions, string(e.Action))
	}
	if got := strings.Join(actions, " "); got != "create submit send_back submit submit submit approve void" {
		t.Errorf("its history is %s", got)
	}
	if err := f.flows.Delete(t.Context(), "bob", f.id); !engi.Is(err, engi.Denied) {
		t.Errorf("an editor deletes it: %v", err)
	}
	if err := f.s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.flows.Get(t.Context(), "ann", f.id); !engi.Is(err, engi.NotFound) {
		t.Errorf("it outlives its workspace: %v", err)
	}
}

// TestEscalation sends work back more often than it may be. The owner decides then, in person.
func TestEscalation(t *testing.T) {
	run := string(engi.NewRunID())
	f := newFlow(t, engi.WorkflowSpec{MaxRevisions: 1, Creator: run, Reviewer: "rita"})
	f.write(run, "one")
	f.refused("key_ann2", "ann", approve(1), engi.Conflict)
	f.want(run, "ann", submit, engi.WorkflowReview)
	f.refused("key_bob", "bob", approve(1), engi.Denied) // rita is the reviewer
	f.refused("key_ann2", "ann", approve(1), engi.Denied)
	f.want("key_rita", "rita", sendBack("no"), engi.WorkflowRevision)
	f.refused("key_bob", "bob", submit, engi.Denied) // the run is the creator
	f.want(run, "ann", submit, engi.WorkflowReview)
	w := f.want("key_rita", "rita", sendBack("again"), engi.WorkflowReview)
	if !w.Escalated || w.Current != engi.RoleWorkOwner || w.Round != 1 || w.Review.Feedback != "again" {
		t.Errorf("%+v", w)
	}
	f.refused("key_rita", "rita", approve(1), engi.Denied)
	f.refused(string(engi.NewRunID()), "ann", approve(1), engi.Denied)
	byModel := approve(1)
	byModel.ByModel = true
	f.refused("key_ann", "ann", byModel, engi.Denied)
	f.refused(run, "ann", submit, engi.Denied)
	f.want("key_ann", "ann", approve(1), engi.WorkflowApproved)
	f.refused("key_ann", "ann", reject, engi.Conflict)

	// The owner who has made the content cannot approve it either.
	f.begin("key_ann", "ann", engi.WorkflowSpec{})
	f.write("key_ann", "two")
	f.want("key_ann", "ann", submit, engi.WorkflowReview)
	f.want("key_ann", "ann", engi.WorkflowAct{Action: engi.ActEscalate}, engi.WorkflowReview)
	f.refused("key_ann", "ann", approve(2), engi.Denied)
	f.want("key_ann2", "ann", approve(2), engi.WorkflowApproved)
}

// TestApprovalsRace approves a revision while others are recorded.
func TestApprovalsRace(t *testing.T) {
	f := newFlow(t, engi.WorkflowSpec{})
	approvals := 0
	for i := range 40 {
		n := f.write("key_bob", fmt.Sprint(i))
		f.want("key_ann", "ann", submit, engi.WorkflowReview)
		var both sync.WaitGroup
		var err error
		both.Go(func() { _, err = f.act("key_rita", "rita", approve(n)) })
		both.Go(func() {
			_, failed := f.s.Write(engi.WithActor(t.Context(), "key_bob"), engi.WriteSpec{Viewer: "bob", Workspace: string(f.space.ID), Files: []engi.WorkspaceFile{file("a.txt", fmt.Sprint("after ", i))}})
			if failed != nil {
				t.Error(failed)
			}
		})
		both.Wait()
		switch {
		case err == nil:
			approvals++
		case !engi.Is(err, engi.Conflict):
			t.Fatal(err)
		}
		if w := f.get(); w.Stage == engi.WorkflowApproved {
			t.Fatal("it is approved with other content")
		}
	}
	t.Log(approvals, "approvals")
}

// TestSequencesOfWorkflows draws actions of everybody, with programs in the sandbox. Whoever reads an approved workflow finds that the workspace has
// what its reviewer has read.
func TestSequencesOfWorkflows(t *testing.T) {
	random, counts := seed.New(t), map[string]int{}
	people := []struct {
		actor  string
		viewer engi.Viewer
	}{{"key_ann", "ann"}, {"key_ann2", "ann"}, {"key_bob", "bob"}, {"key_rita", "rita"}, {"key_vera", "vera"}, {string(engi.NewRunID()), "ann"}}
	for range 8 {
		f := newFlow(t, engi.WorkflowSpec{MaxRevisions: 1})
		sandbox := must[engi.Workspace](t)(f.s.Start(t.Context(), "ann", "shop")).Sandbox
		var read map[string]string // what the reviewer who approved it has read
		makers := map[string][]string{}
		made := func(actor string, revision int64) {
			key := fmt.Sprint(contents(t, f.s, "shop", revision))
			makers[key] = append(makers[key], actor)
		}
		for range 60 {
			p := people[random.IntN(len(people))]
			text := fmt.Sprint(random.IntN(3))
			var err error
			switch random.IntN(9) {
			case 0:
				var rev engi.WorkspaceRevision
				rev, err = f.s.Write(engi.WithActor(t.Context(), p.actor), engi.WriteSpec{Viewer: p.viewer, Workspace: string(f.space.ID), Files: []engi.WorkspaceFile{file("a.txt", text)}})
				if err == nil && rev.Actor == p.actor { // otherwise nothing has changed
					made(p.actor, rev.Number)
				}
			case 1:
				f.w.in(sandbox, func(b *fakeSandbox) { b.put("/workspace/b.txt", text, 0o644) })
			case 2, 3:
				var w engi.Workflow
				if w, err = f.act(p.actor, p.viewer, submit); err == nil {
					made(p.actor, w.Revision)
				}
			case 4, 5, 6:
				last := must[[]engi.WorkspaceRevision](t)(f.s.Revisions(t.Context(), "ann", "shop", engi.Paging{Limit: 1}))
				if len(last) == 0 {
					continue
				}
				seen := contents(t, f.s, "shop", last[0].Number)
				if _, err = f.act(p.actor, p.viewer, approve(last[0].Number)); err == nil {
					read = seen
					counts["approved"]++
					if slices.Contains(makers[fmt.Sprint(seen)], p.actor) {
						t.Fatalf("%s has made it, and approves it", p.actor)
					}
				}
			case 7:
				_, err = f.act(p.actor, p.viewer, sendBack("no"))
			default:
				if random.IntN(6) == 0 {
					f.begin("key_ann", "ann", engi.WorkflowSpec{MaxRevisions: 1})
				}
			}
			if err != nil && !engi.Is(err, engi.Denied, engi.Conflict, engi.Invalid, engi.NotFound) {
				t.Fatal(err)
			}
			w := f.get()
			counts[string(w.Stage)]++
			if got := contents(t, f.s, "shop", 0); w.Stage == engi.WorkflowApproved && fmt.Sprint(got) != fmt.Sprint(read) {
				t.Fatalf("it is approved with %v, and the workspace has %v", read, got)
			}
		}
	}
	if counts["approved"] < 10 || counts["revision"] < 10 {
		t.Error(counts)
	}
	t.Log(counts)
}
