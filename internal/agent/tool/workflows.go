package tool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Workflows is the part of [engi.Workflows] that tools use.
type Workflows interface {
	List(ctx context.Context, viewer engi.Viewer, f engi.WorkflowFilter, p engi.Paging) ([]engi.Workflow, error)
	Get(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID) (engi.Workflow, error)
	Act(ctx context.Context, a engi.WorkflowAct) (engi.Workflow, error)
}

type submitForReviewArgs struct {
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Workflow  string `json:"workflow,omitempty" jsonschema:"name of the workflow; default: the only one of the workspace that has not ended"`
	Notes     string `json:"notes,omitempty" jsonschema:"notes for the reviewer about what was done"`
}

type submitReviewArgs struct {
	Workspace   string          `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Workflow    string          `json:"workflow,omitempty" jsonschema:"name of the workflow; default: the only one of the workspace that has not ended"`
	Approved    bool            `json:"approved" jsonschema:"whether the work is approved; otherwise it is sent back for a revision"`
	Revision    int64           `json:"revision,omitempty" jsonschema:"revision that you have reviewed, which get_review_feedback says; an approval needs it"`
	Grade       string          `json:"grade,omitempty" jsonschema:"grade, such as A or B+"`
	Feedback    string          `json:"feedback,omitempty" jsonschema:"detailed feedback for the creator"`
	Suggestions []string        `json:"suggestions,omitempty" jsonschema:"specific suggestions for improvement"`
	Criteria    []criterionArgs `json:"criteria,omitempty" jsonschema:"an answer to each criterion of the workflow, which get_review_feedback lists"`
}

type criterionArgs struct {
	Criterion string `json:"criterion"`
	Met       bool   `json:"met"`
	Comment   string `json:"comment,omitempty"`
}

type getReviewFeedbackArgs struct {
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Workflow  string `json:"workflow,omitempty" jsonschema:"name of the workflow; default: the only one of the workspace that has not ended, or else the newest"`
}

func workflowTools(s Services) ([]Tool, error) {
	if s.Workspaces == nil || s.Workflows == nil {
		return nil, nil
	}
	submit, err := inWorkspace(s, "submit_for_review", "Submits the files of a workspace for review. Afterwards you cannot approve them.", func(a submitForReviewArgs) string { return a.Workspace }, s.submitForReview)
	review, failed := inWorkspace(s, "submit_review", "Submits your review of the work in a workspace: approves it, or sends it back for a revision. You cannot approve what you have made.", func(a submitReviewArgs) string { return a.Workspace }, s.submitReview)
	feedback, wrong := inWorkspace(s, "get_review_feedback", "Returns the task, the stage and the submitted revision of the work in a workspace, and the last review.", func(a getReviewFeedbackArgs) string { return a.Workspace }, s.getReviewFeedback)
	feedback.Repeatable = true
	all := []Tool{submit, review, feedback}
	for i := range all {
		all[i].hidesIDs = true
	}
	return all, cmp.Or(err, failed, wrong)
}

// workflow returns the workflow of a workspace that a model calls by a name. For an empty name, it returns the only one
// that has not ended; with ended, it otherwise returns the newest.
func (s Services) workflow(ctx context.Context, c *Call, x engi.Workspace, name string, ended bool) (none engi.Workflow, err error) {
	all, err := s.Workflows.List(ctx, c.Owner.Viewer(), engi.WorkflowFilter{Workspace: string(x.ID)}, engi.Paging{})
	if err != nil {
		return none, err
	}
	var open []engi.Workflow
	var names []string
	for _, w := range all {
		if names = append(names, w.Name); w.Stage != engi.WorkflowApproved && w.Stage != engi.WorkflowRejected {
			open = append(open, w)
		}
	}
	i := slices.Index(names, name)
	switch {
	case i >= 0:
		return s.Workflows.Get(ctx, c.Owner.Viewer(), all[i].ID)
	case name != "":
		return none, engi.Errorf(engi.NotFound, "workspace %s has no workflow %.70q", x.Name, name).WithRemedy("it has: %.2000s", strings.Join(names, ", "))
	case len(open) == 1:
		return open[0], nil
	case len(open) > 1:
		return none, engi.Errorf(engi.Conflict, "workspace %s has several workflows", x.Name).WithRemedy("name one of: %.2000s", strings.Join(names, ", "))
	case ended && len(all) > 0:
		return s.Workflows.Get(ctx, c.Owner.Viewer(), all[0].ID)
	}
	return none, engi.Errorf(engi.NotFound, "workspace %s has no workflow that goes on", x.Name).WithRemedy("somebody must create one first; you cannot")
}

// act acts on a workflow for a model.
func (s Services) act(ctx context.Context, c *Call, x engi.Workspace, name string, a engi.WorkflowAct) (Result, error) {
	w, err := s.workflow(ctx, c, x, name, false)
	if err != nil {
		return Result{}, err
	}
	a.Viewer, a.Workflow, a.ByModel = c.Owner.Viewer(), w.ID, true
	if w, err = s.Workflows.Act(engi.WithActor(ctx, cmp.Or(string(c.Run), engi.ActorOf(ctx))), a); err != nil {
		return Result{}, err
	}
	return Result{Text: stageOf(w)}, nil
}

func (s Services) submitForReview(ctx context.Context, c *Call, x engi.Workspace, a submitForReviewArgs) (Result, error) {
	return s.act(ctx, c, x, a.Workflow, engi.WorkflowAct{Action: engi.ActSubmit, Reason: a.Notes})
}

func (s Services) submitReview(ctx context.Context, c *Call, x engi.Workspace, a submitReviewArgs) (Result, error) {
	action := engi.ActSendBack
	if a.Approved {
		action = engi.ActApprove
		if a.Revision <= 0 {
			return Result{}, engi.Errorf(engi.Invalid, "an approval names the revision that was reviewed").WithRemedy("get_review_feedback says the submitted revision: review that one, and name it")
		}
	}
	var answers []engi.CriterionResult
	for _, c := range a.Criteria {
		answers = append(answers, engi.CriterionResult(c))
	}
	return s.act(ctx, c, x, a.Workflow, engi.WorkflowAct{Action: action, Revision: a.Revision, Grade: a.Grade, Feedback: a.Feedback, Suggestions: a.Suggestions, Criteria: answers})
}

// stageOf says what a workflow waits for, in one line.
func stageOf(w engi.Workflow) string {
	text := fmt.Sprintf("workflow %s is in stage %s", w.Name, w.Stage)
	if w.Revision > 0 {
		text += fmt.Sprintf(", revision %d is submitted", w.Revision)
	}
	if w.Round > 0 {
		text += fmt.Sprintf(", sent back %d times of %d", w.Round, w.MaxRevisions)
	}
	if w.Escalated {
		text += "; the owner of the workspace decides now, and nobody else"
	} else if w.Current != "" {
		text += fmt.Sprintf("; it waits for the %s", w.Current)
	}
	return text
}

func (s Services) getReviewFeedback(ctx context.Context, c *Call, x engi.Workspace, a getReviewFeedbackArgs) (Result, error) {
	w, err := s.workflow(ctx, c, x, a.Workflow, true)
	if err != nil {
		return Result{}, err
	}
	var b strings.Builder
	b.WriteString(stageOf(w))
	add := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "\n\n%s:\n%s", name, text)
		}
	}
	add("task", w.Task)
	if len(w.Criteria) > 0 {
		add("criteria that a review answers", "- "+strings.Join(w.Criteria, "\n- "))
	}
	add("notes of the submission", w.Notes)
	r := w.Review
	if r == nil {
		b.WriteString("\n\nThere is no review yet.")
		return Result{Text: b.String()}, nil
	}
	result := "sent back"
	if r.Approved {
		result = "approved"
	}
	fmt.Fprintf(&b, "\n\nThe last review, of revision %d: %s", r.Revision, result)
	if r.Grade != "" {
		fmt.Fprintf(&b, ", grade %s", oneLine(r.Grade))
	}
	add("feedback", r.Feedback)
	for _, c := range r.Criteria {
		answer := "not met"
		if c.Met {
			answer = "met"
		}
		fmt.Fprintf(&b, "\n- %s: %s. %s", c.Criterion, answer, c.Comment)
	}
	if len(r.Suggestions) > 0 {
		add("suggestions", "- "+strings.Join(r.Suggestions, "\n- "))
	}
	if len(r.ModifiedFiles) > 0 {
		add("files that the reviewer has changed", strings.Join(r.ModifiedFiles, "\n"))
	}
	return Result{Text: b.String()}, nil
}
