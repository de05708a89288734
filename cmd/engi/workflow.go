package main

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type workflowCommand struct {
	Create   workflowCreate    `cmd:"" help:"Create a workflow in a workspace."`
	Template workflowTemplates `cmd:"" name:"templates" help:"List the templates of workflows."`
	List     workflowList      `cmd:"" aliases:"ls" help:"List workflows."`
	Show     showCommand       `cmd:"" aliases:"get" help:"Show a workflow."`
	History  workflowHistory   `cmd:"" aliases:"log" help:"Show who has done what in a workflow."`
	Submit   workflowSubmit    `cmd:"" help:"Submit the last revision of the workspace for review."`
	Review   workflowReview    `cmd:"" help:"Approve the submitted revision, send it back, or reject the work."`
	Feedback showCommand       `cmd:"" help:"Show the last review of a workflow."`
	Wait     workflowWait      `cmd:"" help:"Wait until a workflow is approved, rejected or in a stage."`
	Cancel   workflowCancel    `cmd:"" help:"Cancel a workflow."`
	Escalate workflowEscalate  `cmd:"" help:"Leave a workflow to the owner of its workspace."`
	Delete   removeCommand     `cmd:"" aliases:"rm" help:"Delete workflows with their history."`
}

const exampleWorkflow = "wfl_u2dmwmlezjgprkqrgppgcz2mgu"

var workflowCommands = workflowCommand{
	Show:     shows(example("engi workflow show "+exampleWorkflow, "engi workflow show "+exampleWorkflow+" --json | jq -r .stage"), (*globals).showWorkflow, (*client.Client).Workflow),
	Feedback: shows(example("engi workflow feedback "+exampleWorkflow), (*globals).showReview, (*client.Client).ReviewFeedback),
	Delete:   removes(example("engi workflow delete "+exampleWorkflow), "deleted", (*client.Client).DeleteWorkflow),
}

type workflowCreate struct {
	Workspace     string        `arg:"" help:"Workspace; with --template, the name of a new one." placeholder:"WORKSPACE"`
	Template      string        `help:"Create the workspace from this template of workflows; see 'engi workflow templates'." placeholder:"TEMPLATE"`
	Criterion     []string      `short:"c" help:"What a review answers, in addition to the criteria of the template; may be repeated." placeholder:"TEXT" sep:"none"`
	Name          string        `help:"Name (default: a generated name)." placeholder:"NAME"`
	Task          string        `short:"t" help:"What is to be done, for the participants." placeholder:"TEXT"`
	Creator       string        `help:"Who creates: an owner, agent:NAME, or the ID of a key or a run (default: all editors)." placeholder:"WHO"`
	Reviewer      string        `help:"Who reviews: an owner, agent:NAME, or the ID of a key or a run (default: all reviewers and editors)." placeholder:"WHO"`
	MaxRevisions  int           `help:"How often reviewers may send the work back before the owner decides (default: 3)." placeholder:"N"`
	CreationLimit time.Duration `help:"Time for the creation, after which the owner decides." placeholder:"DURATION"`
	ReviewLimit   time.Duration `help:"Time for each review, after which the owner decides." placeholder:"DURATION"`
	RevisionLimit time.Duration `help:"Time for each revision, after which the owner decides." placeholder:"DURATION"`
}

func (workflowCreate) Help() string {
	return `Prints the ID.

Examples:
  engi workflow create shop --task 'a page with our opening hours' --reviewer bob
  engi workflow create site --template static-website --task 'a page with our opening hours'
  engi workflow create shop --name page --review-limit 24h --json | jq -r .id`
}

func (w *workflowCreate) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Workflow, error) {
		return d.CreateWorkflow(ctx, v1.WorkflowRequest{
			Workspace: w.Workspace, Template: w.Template, Criteria: w.Criterion, Name: w.Name, Task: w.Task, Creator: w.Creator, Reviewer: w.Reviewer, MaxRevisions: w.MaxRevisions,
			Limits: v1.WorkflowLimits{Creation: v1.Duration(w.CreationLimit), Review: v1.Duration(w.ReviewLimit), Revision: v1.Duration(w.RevisionLimit)},
		})
	}, func(x v1.Workflow) string { return x.ID })
}

type workflowTemplates struct{}

func (workflowTemplates) Help() string {
	return `A template says what a new workspace begins with, and what its reviews answer.

Examples:
  engi workflow templates
  engi workflow templates --json | jq -r '.[0].criteria[]'`
}

func (workflowTemplates) Run(ctx context.Context, g *globals) error {
	all := table[v1.WorkflowTemplate]{"NAME\tFILES\tSERVICES\tPREVIEW\tCRITERIA", func(x v1.WorkflowTemplate) []any {
		return []any{x.Name, len(x.Files), strings.Join(x.Services, " "), x.Preview, clip(strings.Join(x.Criteria, ", "))}
	}, func(x v1.WorkflowTemplate) string { return x.Name }}
	return all.list(ctx, g, false, func(d *connection) ([]v1.WorkflowTemplate, error) { return d.WorkflowTemplates(ctx) })
}

type workflowList struct {
	Workspace string `short:"w" help:"Only workflows of this workspace." placeholder:"WORKSPACE"`
	Stage     string `help:"Only workflows in this stage: creation, review, revision, approved or rejected." enum:"creation,review,revision,approved,rejected," default:"" placeholder:"STAGE"`
	Quiet     bool   `short:"q" help:"Print IDs only."`
}

func (workflowList) Help() string {
	return `Includes workflows of workspaces that others have shared with you. The newest come first.

Examples:
  engi workflow list --stage review
  engi workflow list --workspace shop --json`
}

func (w *workflowList) Run(ctx context.Context, g *globals) error {
	all := table[v1.Workflow]{"NAME\tID\tWORKSPACE\tSTAGE\tWAITS FOR\tREVISION\tROUND\tCHANGED", func(x v1.Workflow) []any {
		return []any{x.Name, x.ID, x.WorkspaceID, x.Stage, x.Current, x.Revision, x.Round, ago(x.ChangedAt)}
	}, func(x v1.Workflow) string { return x.ID }}
	return all.list(ctx, g, w.Quiet, func(d *connection) ([]v1.Workflow, error) {
		return d.Workflows(ctx, client.WorkflowFilter{Workspace: w.Workspace, Stage: w.Stage})
	})
}

func (g *globals) showWorkflow(x v1.Workflow) {
	var f facts
	f.add("workflow", "%s", x.ID)
	f.add("name", "%s", x.Name)
	f.add("workspace", "%s", x.WorkspaceID)
	f.add("task", "%s", x.Task)
	for _, c := range x.Criteria {
		f.add("criterion", "%s", c)
	}
	stage := x.Stage
	if x.Current != "" {
		stage += ", waits for the " + x.Current
	}
	f.add("stage", "%s", stage)
	f.add("creator", "%s", x.Creator)
	f.add("reviewer", "%s", x.Reviewer)
	if x.Revision > 0 {
		f.add("submitted", "revision %d by %s", x.Revision, x.Submitter)
		f.add("hash", "%s", x.Hash)
	}
	f.add("notes", "%s", x.Notes)
	f.add("sent back", "%d times, at most %d", x.Round, x.MaxRevisions)
	if x.DeadlineAt != nil {
		f.add("deadline", "%s", x.DeadlineAt.Local().Format(time.DateTime))
	}
	f.print(g)
	if x.Review != nil {
		g.showReview(*x.Review)
	}
}

func (g *globals) showReview(x v1.Review) {
	var f facts
	result := "sent back"
	if x.Approved {
		result = "approved"
	}
	f.add("review", "revision %d %s by %s", x.Revision, result, x.Reviewer)
	f.add("grade", "%s", x.Grade)
	f.add("feedback", "%s", x.Feedback)
	for _, c := range x.Criteria {
		answer := "not met"
		if c.Met {
			answer = "met"
		}
		f.add("criterion", "%s: %s. %s", c.Criterion, answer, c.Comment)
	}
	for _, s := range x.Suggestions {
		f.add("suggestion", "%s", s)
	}
	f.add("modified", "%s", strings.Join(x.ModifiedFiles, ", "))
	f.print(g)
}

type workflowHistory struct {
	ID string `arg:"" help:"Workflow." placeholder:"ID"`
}

func (workflowHistory) Help() string {
	return `The oldest entry comes first. Entries never change.

Examples:
  engi workflow history ` + exampleWorkflow + `
  engi workflow history ` + exampleWorkflow + ` --json | jq '.[].action'`
}

func (w *workflowHistory) Run(ctx context.Context, g *globals) error {
	events := table[v1.WorkflowEvent]{"NUMBER\tTIME\tACTION\tBY\tROLE\tSTAGE\tREVISION\tREASON", func(x v1.WorkflowEvent) []any {
		stage := x.To
		if x.Escalated {
			stage += " (owner)"
		}
		reason, _, _ := strings.Cut(x.Reason, "\n")
		return []any{x.Number, ago(x.Time), x.Action, x.Actor, x.Role, stage, x.Revision, reason}
	}, nil}
	return events.list(ctx, g, false, func(d *connection) ([]v1.WorkflowEvent, error) { return d.WorkflowHistory(ctx, w.ID) })
}

// stageOf returns the stage of a workflow, as commands that act on it print it.
func stageOf(x v1.Workflow) string { return x.Stage }

type workflowSubmit struct {
	ID    string `arg:"" help:"Workflow." placeholder:"ID"`
	Notes string `short:"n" help:"Notes for the reviewer." placeholder:"TEXT"`
}

func (workflowSubmit) Help() string {
	return `Prints the stage. Changes in the sandbox of the workspace become a revision first. The key that submits content
cannot approve it.

Examples:
  engi workflow submit ` + exampleWorkflow + ` --notes 'Sunday is new'`
}

func (w *workflowSubmit) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Workflow, error) { return d.SubmitForReview(ctx, w.ID, w.Notes) }, stageOf)
}

type workflowReview struct {
	ID       string   `arg:"" help:"Workflow." placeholder:"ID"`
	Decision string   `arg:"" help:"approve, send_back or reject." enum:"approve,send_back,reject" placeholder:"DECISION"`
	Revision int64    `short:"r" help:"Revision that you have seen; an approval needs it." placeholder:"N"`
	Grade    string   `help:"Grade, such as A or B+." placeholder:"GRADE"`
	Feedback string   `short:"f" help:"Feedback for the creator." placeholder:"TEXT"`
	Met      []string `short:"m" help:"Criterion that is met, optionally with a comment after a colon; may be repeated." placeholder:"CRITERION[: TEXT]" sep:"none"`
	Unmet    []string `short:"u" help:"Criterion that is not met, optionally with a comment after a colon; may be repeated." placeholder:"CRITERION[: TEXT]" sep:"none"`
	AllMet   bool     `help:"All criteria are met, except those of --unmet."`
	Suggest  []string `short:"s" help:"Suggestion for improvement; may be repeated." placeholder:"TEXT" sep:"none"`
}

func (workflowReview) Help() string {
	return `Prints the stage. An approval names the revision that you have seen, and is refused if the workspace has other
content by now, or if your key has made or submitted the content. If the workflow has criteria, a review answers
all of them.

Examples:
  engi workflow review ` + exampleWorkflow + ` send_back --feedback 'Sunday is missing' --suggest 'use a table'
  engi workflow review ` + exampleWorkflow + ` send_back --all-met --unmet 'Accessibility: the form has no labels'
  engi workflow review ` + exampleWorkflow + ` approve --revision 3 --grade A`
}

// answers returns the answers to the criteria of a workflow.
func (w *workflowReview) answers(x v1.Workflow) (all []v1.CriterionResult) {
	for _, given := range []struct {
		texts []string
		met   bool
	}{{w.Met, true}, {w.Unmet, false}} {
		for _, text := range given.texts {
			a := v1.CriterionResult{Criterion: text, Met: given.met}
			if name, comment, ok := strings.Cut(text, ":"); ok && !slices.Contains(x.Criteria, text) {
				a.Criterion, a.Comment = name, strings.TrimSpace(comment)
			}
			all = append(all, a)
		}
	}
	for _, c := range x.Criteria {
		if w.AllMet && !slices.ContainsFunc(all, func(a v1.CriterionResult) bool { return a.Criterion == c }) {
			all = append(all, v1.CriterionResult{Criterion: c, Met: true})
		}
	}
	return all
}

func (w *workflowReview) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (x v1.Workflow, err error) {
		if len(w.Met)+len(w.Unmet) > 0 || w.AllMet {
			if x, err = d.Workflow(ctx, w.ID); err != nil {
				return x, err
			}
		}
		return d.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: w.Decision, Revision: w.Revision, Grade: w.Grade, Feedback: w.Feedback, Suggestions: w.Suggest, Criteria: w.answers(x)})
	}, stageOf)
}

type workflowWait struct {
	ID    string `arg:"" help:"Workflow." placeholder:"ID"`
	Stage string `help:"Stage: creation, review, revision, approved or rejected (default: the end)." enum:"creation,review,revision,approved,rejected," default:"" placeholder:"STAGE"`
}

func (workflowWait) Help() string {
	return `Prints the stage. Exits with 1 if the work is rejected, unless --stage asks for this.

Examples:
  engi workflow wait ` + exampleWorkflow + `
  engi workflow wait ` + exampleWorkflow + ` --stage review`
}

func (w *workflowWait) Run(ctx context.Context, g *globals) error {
	var got v1.Workflow
	err := create(ctx, g, func(d *connection) (x v1.Workflow, err error) {
		got, err = d.WaitWorkflow(ctx, w.ID, w.Stage)
		return got, err
	}, stageOf)
	if err == nil && got.Stage == v1.WorkflowRejected && w.Stage != v1.WorkflowRejected {
		err = engi.Errorf(engi.Conflict, "the work is rejected").WithRemedy("'engi workflow history %s' says why", w.ID)
	}
	return err
}

type workflowCancel struct {
	ID     string `arg:"" help:"Workflow." placeholder:"ID"`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (workflowCancel) Help() string {
	return "Prints the stage, which is rejected.\n\n" + example("engi workflow cancel "+exampleWorkflow+" --reason 'not needed'")
}

func (w *workflowCancel) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Workflow, error) { return d.CancelWorkflow(ctx, w.ID, w.Reason) }, stageOf)
}

type workflowEscalate struct {
	ID     string `arg:"" help:"Workflow." placeholder:"ID"`
	Reason string `help:"Why." placeholder:"TEXT"`
}

func (workflowEscalate) Help() string {
	return "Prints the stage. From then on, only the owner may act.\n\n" + example("engi workflow escalate "+exampleWorkflow+" --reason 'we disagree'")
}

func (w *workflowEscalate) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Workflow, error) { return d.EscalateWorkflow(ctx, w.ID, w.Reason) }, stageOf)
}
