package tool_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// TestWorkflowTools has a creator and a reviewer work on one workflow, as models would.
func TestWorkflowTools(t *testing.T) {
	w := apitest.New(nil)
	defer w.Close()
	s := tool.Services{Workspaces: w.Workspaces, Workflows: w.Workflows}
	ids := regexp.MustCompile(`\b(wsp|wfl|sbx|run|key)_[a-z0-9]+`)
	creator, reviewer, nobody := engi.NewRunID(), engi.NewRunID(), engi.NewRunID()
	use := func(run engi.RunID, owner engi.Owner, name, args string) tool.Result {
		t.Helper()
		r, err := find(t, s, name).Run(t.Context(), &tool.Call{Env: tool.Env{Owner: owner, Run: run, Workspace: "ann/shop"}, Out: func(engi.Stream, []byte) {}}, args)
		if err != nil {
			t.Fatal(err)
		}
		if id := ids.FindString(r.Text); id != "" {
			t.Errorf("%s shows the model %s: %s", name, id, r.Text)
		}
		return r
	}
	create := func(name string) {
		t.Helper()
		if _, err := w.Workflows.Create(engi.WithActor(t.Context(), "key_ann"), engi.WorkflowSpec{Viewer: "ann", Workspace: "shop", Name: name, Task: "a page", MaxRevisions: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Workspaces.Create(t.Context(), engi.WorkspaceSpec{Owner: "ann", Name: "shop", Collaborators: []engi.Collaborator{{Owner: "rita", Role: engi.RoleReviewer}}}); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		run        engi.RunID
		owner      engi.Owner
		name, args string
		failed     bool
		want       string
	}{
		{creator, "ann", "get_review_feedback", `{}`, true, "no workflow that goes on"},
		{creator, "ann", "create", "page", false, ""},
		{creator, "ann", "get_review_feedback", `{}`, false, "workflow page is in stage creation; it waits for the creator\n\ntask:\na page\n\nThere is no review yet."},
		{creator, "ann", "submit_for_review", `{}`, true, "no revision to submit"},
		{creator, "ann", "write_workspace", `{"files":[{"path":"a","content":"one"}]}`, false, "revision 1"},
		{reviewer, "rita", "submit_for_review", `{}`, true, "only a participant with the role creator"},
		{creator, "ann", "submit_for_review", `{"notes":"done"}`, false, "in stage review, revision 1 is submitted; it waits for the reviewer"},
		{creator, "ann", "submit_review", `{"approved":true,"revision":1}`, true, "who has made or submitted the content of revision 1 cannot approve it"},
		{reviewer, "rita", "get_review_feedback", `{}`, false, "notes of the submission:\ndone"},
		{reviewer, "rita", "submit_review", `{"approved":true}`, true, "an approval names the revision"},
		{reviewer, "rita", "submit_review", `{"approved":false,"grade":"C","feedback":"no","suggestions":["shorter","cleaner"]}`, false, "in stage revision, revision 1 is submitted, sent back 1 times of 1; it waits for the creator"},
		{creator, "ann", "get_review_feedback", `{"workflow":"page"}`, false, "The last review, of revision 1: sent back, grade C\n\nfeedback:\nno\n\nsuggestions:\n- shorter\n- cleaner"},
		{creator, "ann", "write_workspace", `{"files":[{"path":"a","content":"two"}]}`, false, "revision 2"},
		{creator, "ann", "submit_for_review", `{"workflow":"page"}`, false, "revision 2 is submitted"},
		{reviewer, "rita", "submit_review", `{"approved":true,"revision":1}`, true, "does not have the content of the submitted revision 2"},
		{reviewer, "rita", "submit_review", `{"approved":true,"revision":2,"grade":"A"}`, false, "in stage approved"},
		{creator, "ann", "get_review_feedback", `{}`, false, "revision 2: approved, grade A"},
		{creator, "ann", "submit_for_review", `{}`, true, "no workflow that goes on"},
		{creator, "ann", "submit_for_review", `{"workflow":"page"}`, true, "submit is not possible in the stage approved"},
		{creator, "ann", "submit_for_review", `{"workflow":"none"}`, true, `no workflow "none"`},
		{creator, "ann", "create", "second", false, ""},
		{creator, "ann", "create", "third", false, ""},
		{creator, "ann", "submit_for_review", `{}`, true, "several workflows"},
		{nobody, "eve", "get_review_feedback", `{}`, true, "no workspace"},
		{nobody, "ann", "submit_for_review", `{"workflow":"second","notes":"` + strings.Repeat("x", engi.MaxWorkflowText+1) + `"}`, true, "bytes"},
	} {
		if step.name == "create" {
			create(step.args)
			continue
		}
		if r := use(step.run, step.owner, step.name, step.args); r.Failed != step.failed || !strings.Contains(r.Text, step.want) {
			t.Errorf("%s: failed %v, %q; want %v, %q", fmt.Sprint(i, " ", step.name, " ", step.args), r.Failed, r.Text, step.failed, step.want)
		}
	}
	// A model does not decide what was escalated, even with the key of the owner.
	all, err := w.Workflows.List(t.Context(), "ann", engi.WorkflowFilter{Stage: engi.WorkflowCreation}, engi.Paging{})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if _, err := w.Workflows.Act(engi.WithActor(t.Context(), "key_ann"), engi.WorkflowAct{Viewer: "ann", Workflow: all[0].ID, Action: engi.ActEscalate}); err != nil {
		t.Fatal(err)
	}
	for _, run := range []engi.RunID{nobody, ""} {
		if r := use(run, "ann", "submit_for_review", `{"workflow":"`+all[0].Name+`"}`); !r.Failed || !strings.Contains(r.Text, "waits for the owner") {
			t.Errorf("%+v", r)
		}
	}
}
