package rest

import (
	"context"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

const workflowPath = "/v1/workflows"

type aWorkflow = byID[engi.WorkflowID]

type listWorkflows struct {
	page
	Workspace string `query:"workspace" maxLength:"128" doc:"Only those of this workspace, by ID or name"`
	Stage     string `query:"stage" enum:"creation,review,revision,approved,rejected" doc:"Only objects in this stage"`
}

type getWorkflow struct {
	aWorkflow
	Wait  string `query:"wait" example:"30s" doc:"Maximum time to wait until the workflow is approved, rejected or in the stage; at most 60s"`
	Stage string `query:"stage" enum:"creation,review,revision,approved,rejected" doc:"Stage to wait for"`
}

type listWorkflowEvents struct {
	aWorkflow
	page
}

// Workflows returns the routes of workflows; service may be nil.
func Workflows(service engi.Workflows) Resource {
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	const one = workflowPath + "/{id}"
	take := func(c *call, id engi.WorkflowID, a engi.WorkflowAct) (v1.Workflow, error) {
		a.Viewer, a.Workflow = c.viewer(), id
		return to(workflowOf)(service.Act(c, a))
	}
	reasoned := func(action engi.WorkflowAction) func(c *call, in *aWorkflow, q v1.ReasonRequest) (v1.Workflow, error) {
		return func(c *call, in *aWorkflow, q v1.ReasonRequest) (v1.Workflow, error) {
			return take(c, in.ID, engi.WorkflowAct{Action: action, Reason: q.Reason})
		}
	}
	return Resource{
		tag: "workflows", about: "work in workspaces that is created, reviewed and revised until it is approved or rejected",
		missing: absentUnless(service != nil, "this node has no workflows", "use /v1/workspaces"),
		routes: []Route{
			create(Route{
				Pattern: "POST " + workflowPath, ID: "create-workflow", Summary: "Create a workflow", Access: change, Location: "path of the workflow",
				Text:   "Needs the role editor in the workspace. With a template, the workspace is created; if the request is repeated, it is found again.",
				Bodies: []example{{"page", "in a workspace", `{"workspace": "shop", "task": "a page with our opening hours"}`}, {"template", "in a new workspace", `{"workspace": "site", "template": "static-website", "task": "a page with our opening hours"}`}},
			}, engi.NewWorkflowID, func(c *call, _ *none, id engi.WorkflowID, q v1.WorkflowRequest) (engi.Workflow, error) {
				if q.Workspace == "" {
					return engi.Workflow{}, invalid("workspace", "it is missing")
				}
				return service.Create(c, engi.WorkflowSpec{
					ID: id, Viewer: c.viewer(), Owner: c.owner(), Workspace: q.Workspace, Template: q.Template, Criteria: q.Criteria, Name: q.Name, Task: q.Task, Creator: q.Creator, Reviewer: q.Reviewer, MaxRevisions: q.MaxRevisions,
					Limits: engi.WorkflowLimits{Creation: q.Limits.Creation.Std(), Review: q.Limits.Review.Std(), Revision: q.Limits.Revision.Std()}, Metadata: q.Metadata,
				})
			}, func(c *call, id engi.WorkflowID) (engi.Workflow, error) { return service.Get(c, c.viewer(), id) }, workflowOf),
			list(Route{Pattern: "GET /v1/workflow-templates", ID: "list-workflow-templates", Summary: "List the templates of workflows", Access: look, Objects: Shared},
				func(*call, *none) ([]engi.WorkflowTemplate, error) { return service.Templates(), nil }, workflowTemplateOf),
			paged(Route{Pattern: "GET " + workflowPath, ID: "list-workflows", Summary: "List workflows", Access: look, Text: "The newest come first. Includes those of workspaces that others have shared with the caller."},
				func(c *call, in *listWorkflows, p engi.Paging) ([]engi.Workflow, error) {
					return service.List(c, c.viewer(), engi.WorkflowFilter{Workspace: in.Workspace, Stage: engi.WorkflowStage(in.Stage)}, p)
				}, workflowOf, func(x v1.Workflow) string { return x.ID }),
			fetch(Route{
				Pattern: "GET " + one, ID: "get-workflow", Summary: "Get a workflow", Access: look,
				Text: "Returns the workflow as it is now; with wait, once it is approved, rejected or in the given stage, or the time is over. Changes in the sandbox of the workspace are recorded first if the work is approved, and make the approval void.",
			}, func(c *call, in *getWorkflow) (v1.Workflow, error) {
				wait, err := waitOf(in.Wait)
				if err != nil {
					return v1.Workflow{}, err
				}
				if wait > 0 {
					waiting, cancel := c.waiting()
					defer cancel()
					ctx, cancel := context.WithTimeout(waiting, wait)
					defer cancel()
					// Get reports all other errors again.
					if _, err := service.Wait(ctx, c.viewer(), in.ID, engi.WorkflowStage(in.Stage)); err != nil && waiting.Err() != nil {
						return v1.Workflow{}, orEnded(waiting, err)
					}
				}
				return to(workflowOf)(service.Get(c, c.viewer(), in.ID))
			}),
			paged(Route{Pattern: "GET " + one + "/history", ID: "list-workflow-events", Summary: "List the history of a workflow", Access: look, Text: "The oldest entry comes first. Entries never change."},
				func(c *call, in *listWorkflowEvents, p engi.Paging) ([]engi.WorkflowEvent, error) {
					return service.History(c, c.viewer(), in.ID, p)
				}, workflowEventOf, func(x v1.WorkflowEvent) string { return strconv.FormatInt(x.Number, 10) }),
			fetch(Route{Pattern: "GET " + one + "/feedback", ID: "get-review-feedback", Summary: "Get the last review of a workflow", Access: look, Text: "Before the first review, the answer is not found."},
				func(c *call, in *aWorkflow) (v1.Review, error) {
					w, err := service.Get(c, c.viewer(), in.ID)
					if err == nil && w.Review == nil {
						err = engi.Errorf(engi.NotFound, "workflow %s has no review yet", w.ID).WithRemedy("submit the work, and wait for a review")
					}
					if err != nil {
						return v1.Review{}, err
					}
					return *reviewOf(w.Review), nil
				}),
			send(Route{
				Pattern: "POST " + one + "/submit", ID: "submit-for-review", Summary: "Submit the last revision for review", Access: change, Optional: true,
				Text: "Changes in the sandbox of the workspace become a revision first. Who submits content cannot approve it. The body is optional.",
			}, func(c *call, in *aWorkflow, q v1.SubmitRequest) (v1.Workflow, error) {
				return take(c, in.ID, engi.WorkflowAct{Action: engi.ActSubmit, Reason: q.Notes})
			}),
			send(Route{
				Pattern: "POST " + one + "/review", ID: "submit-review", Summary: "Submit a review", Access: change,
				Text: "Changes in the sandbox of the workspace become a revision first. An approval names the revision that the reviewer has seen. It is a conflict if this revision does not have the submitted content, or the workspace has other content by now. " +
					"A key or run that has made or submitted the content is denied. Work that reviewers have sent back max_revisions times is escalated to the owner if it is sent back again.",
				Bodies: []example{{"back", "ask for a revision", `{"decision": "send_back", "feedback": "The hours of Sunday are missing."}`}},
			}, func(c *call, in *aWorkflow, q v1.ReviewRequest) (v1.Workflow, error) {
				var check checker
				if check.oneOf("decision", q.Decision, words(engi.ActApprove, engi.ActSendBack, engi.ActReject)); q.Decision == "" {
					check.addf("decision", "it is missing")
				}
				if err := check.err(); err != nil {
					return v1.Workflow{}, err
				}
				return take(c, in.ID, engi.WorkflowAct{Action: engi.WorkflowAction(q.Decision), Revision: q.Revision, Grade: q.Grade, Feedback: q.Feedback, Suggestions: q.Suggestions, Criteria: answersOf(q.Criteria)})
			}),
			send(Route{Pattern: "POST " + one + "/cancel", ID: "cancel-workflow", Summary: "Cancel a workflow", Access: change, Optional: true, Text: "The workflow ends in the stage rejected. The body is optional."}, reasoned(engi.ActCancel)),
			send(Route{Pattern: "POST " + one + "/escalate", ID: "escalate-workflow", Summary: "Escalate a workflow to the owner", Access: change, Optional: true, Text: "From then on, only the owner of the workspace may act. The body is optional."}, reasoned(engi.ActEscalate)),
			act(Route{Pattern: "DELETE " + one, ID: "delete-workflow", Summary: "Delete a workflow", Access: change, Text: "Deletes the workflow and its history. Only the owner of the workspace may do so."}, ending(service, engi.Workflows.Delete)),
		},
	}
}

func workflowOf(x engi.Workflow) v1.Workflow {
	return v1.Workflow{
		ID: string(x.ID), Owner: string(x.Owner), WorkspaceID: string(x.Workspace), Name: x.Name, Task: x.Task, Criteria: x.Criteria, Stage: string(x.Stage), Current: string(x.Current), Escalated: x.Escalated,
		Creator: x.Creator, Reviewer: x.Reviewer, Revision: x.Revision, Hash: x.Hash, Submitter: x.Submitter, Notes: x.Notes, Round: x.Round, MaxRevisions: x.MaxRevisions,
		Limits:     v1.WorkflowLimits{Creation: length(x.Limits.Creation), Review: length(x.Limits.Review), Revision: length(x.Limits.Revision)},
		DeadlineAt: moment(x.Deadline), Review: reviewOf(x.Review), Metadata: x.Metadata, CreatedAt: x.Created.UTC(), ChangedAt: x.Changed.UTC(),
	}
}

func reviewOf(x *engi.ReviewResult) *v1.Review {
	if x == nil {
		return nil
	}
	var criteria []v1.CriterionResult
	for _, c := range x.Criteria {
		criteria = append(criteria, v1.CriterionResult(c))
	}
	return &v1.Review{
		Criteria: criteria, Approved: x.Approved, Grade: x.Grade, Feedback: x.Feedback, Suggestions: orEmpty(x.Suggestions), ModifiedFiles: texts(x.ModifiedFiles), Revision: x.Revision, Hash: x.Hash, Reviewer: x.Reviewer,
	}
}

func answersOf(all []v1.CriterionResult) (list []engi.CriterionResult) {
	for _, c := range all {
		list = append(list, engi.CriterionResult(c))
	}
	return list
}

func workflowTemplateOf(x engi.WorkflowTemplate) v1.WorkflowTemplate {
	out := v1.WorkflowTemplate{Name: x.Name, Files: []string{}, Services: []string{}, Preview: string(x.Preview.Type), Criteria: orEmpty(x.Criteria)}
	for _, f := range x.Files {
		out.Files = append(out.Files, f.Path)
	}
	for _, s := range x.Services {
		out.Services = append(out.Services, string(s.Type))
	}
	return out
}

func workflowEventOf(x engi.WorkflowEvent) v1.WorkflowEvent {
	return v1.WorkflowEvent{
		Number: x.Number, Time: x.Time.UTC(), Actor: x.Actor, Role: string(x.Role), Action: string(x.Action), From: string(x.From), To: string(x.To), Escalated: x.Escalated,
		Revision: x.Revision, Hash: x.Hash, Reason: x.Reason, Details: reviewOf(x.Details),
	}
}
