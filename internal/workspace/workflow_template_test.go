package workspace_test

import (
	"slices"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workflow/template"
)

// TestWorkflowTemplates makes a workspace from each template of engi, and answers its criteria.
func TestWorkflowTemplates(t *testing.T) {
	f := &flow{TB: t, w: newFixture(t)}
	f.s, _ = f.w.begin(t)
	f.flows = workflow.New(workflow.Options{Store: store.Workflows(f.w.db), Workspaces: f.s, Templates: template.Own(), Events: store.Events(f.w.db)})
	for _, x := range f.flows.Templates() {
		spec := engi.WorkflowSpec{Viewer: "ann", Owner: "ann", Workspace: "of-" + x.Name, Template: x.Name, Criteria: []string{"Mine"}, Name: "one"}
		ctx := engi.WithActor(t.Context(), "key_ann")
		w := must[engi.Workflow](t)(f.flows.Create(ctx, spec))
		if want := append(slices.Clone(x.Criteria), "Mine"); !slices.Equal(w.Criteria, want) {
			t.Errorf("%s: its criteria are %q, want %q", x.Name, w.Criteria, want)
		}
		space := must[engi.Workspace](t)(f.s.Get(ctx, "ann", spec.Workspace))
		files := must[[]engi.WorkspaceFile](t)(f.s.Files(ctx, "ann", spec.Workspace, 0))
		if space.Owner != "ann" || space.Revision != 1 || len(files) != len(x.Files) || len(space.Services) != len(x.Services) || space.Preview != x.Preview {
			t.Errorf("%s: %+v with %d files", x.Name, space, len(files))
		}
		// A request that is repeated, with another name for the workflow, finds the workspace.
		spec.Name = "two"
		if again := must[engi.Workflow](t)(f.flows.Create(ctx, spec)); again.Workspace != w.Workspace || again.ID == w.ID {
			t.Errorf("%+v", again)
		}
		f.id = w.ID
		f.want("key_ann", "ann", submit, engi.WorkflowReview)
		all := func(met bool) (answers []engi.CriterionResult) {
			for _, c := range w.Criteria {
				answers = append(answers, engi.CriterionResult{Criterion: c, Met: met, Comment: "seen"})
			}
			return answers
		}
		for name, answers := range map[string][]engi.CriterionResult{
			"none": nil, "all but one": all(true)[1:], "one twice": append(all(true), all(true)[0]), "an unknown one": append(all(true), engi.CriterionResult{Criterion: "x"}),
		} {
			for _, action := range []engi.WorkflowAction{engi.ActApprove, engi.ActSendBack} {
				if _, err := f.act("key_other", "ann", engi.WorkflowAct{Action: action, Revision: 1, Criteria: answers}); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
					t.Errorf("%s with answers to %s: %v", action, name, err)
				}
			}
		}
		if got := f.want("key_other", "ann", engi.WorkflowAct{Action: engi.ActSendBack, Criteria: all(false)}, engi.WorkflowRevision); !slices.Equal(got.Review.Criteria, all(false)) {
			t.Errorf("%+v", got.Review)
		}
		if got := f.get(); !slices.Equal(got.Review.Criteria, all(false)) || !slices.Equal(got.Criteria, w.Criteria) {
			t.Errorf("%+v", got)
		}
	}
	if _, err := f.flows.Create(t.Context(), engi.WorkflowSpec{Viewer: "ann", Owner: "ann", Workspace: "x", Template: "nothing"}); !engi.Is(err, engi.NotFound) || engi.RemedyOf(err) == "" {
		t.Errorf("a template that is not there: %v", err)
	}
}
