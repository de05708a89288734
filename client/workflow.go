package client

import (
	"context"

	"github.com/engi-dev/engi/api/v1"
)

const workflows = "/v1/workflows"

// CreateWorkflow creates a workflow in a workspace. A broken connection creates no second workflow.
func (c *Client) CreateWorkflow(ctx context.Context, q v1.WorkflowRequest) (v1.Workflow, error) {
	return create[v1.Workflow](ctx, c, workflows, q)
}

// WorkflowTemplates returns the templates of workflows, ordered by name.
func (c *Client) WorkflowTemplates(ctx context.Context) ([]v1.WorkflowTemplate, error) {
	return list[v1.WorkflowTemplate](ctx, c, "/v1/workflow-templates", nil)
}

// A WorkflowFilter selects workflows. Zero fields select all workflows.
type WorkflowFilter struct {
	Workspace string // ID or name
	Stage     string // v1.WorkflowReview …
}

// Workflows returns workflows, newest first, including those of workspaces in which the caller is a
// collaborator.
func (c *Client) Workflows(ctx context.Context, f WorkflowFilter) ([]v1.Workflow, error) {
	return all[v1.Workflow](ctx, c, workflows, set("workspace", f.Workspace, "stage", f.Stage))
}

// Workflow returns the current state of a workflow.
func (c *Client) Workflow(ctx context.Context, id string) (v1.Workflow, error) {
	return get[v1.Workflow](ctx, c, workflows+segment(id), nil)
}

// WaitWorkflow returns a workflow when it is approved, rejected or in a stage; an empty stage
// means only the first two.
func (c *Client) WaitWorkflow(ctx context.Context, id, stage string) (v1.Workflow, error) {
	for {
		x, err := get[v1.Workflow](ctx, c, workflows+segment(id), set("wait", longPoll.String(), "stage", stage))
		if err != nil || x.Over() || x.Stage == stage {
			return x, err
		}
	}
}

// WorkflowHistory returns the history of a workflow, oldest first.
func (c *Client) WorkflowHistory(ctx context.Context, id string) ([]v1.WorkflowEvent, error) {
	return all[v1.WorkflowEvent](ctx, c, workflows+segment(id)+"/history", nil)
}

// SubmitForReview submits the last revision of the workspace for review, after the changes in its sandbox have become
// a revision. The request is not repeated.
func (c *Client) SubmitForReview(ctx context.Context, id, notes string) (v1.Workflow, error) {
	return once[v1.Workflow](ctx, c, workflows+segment(id)+"/submit", v1.SubmitRequest{Notes: notes})
}

// SubmitReview submits the result of a review. An approval names the revision that the caller has seen. The
// request is not repeated.
func (c *Client) SubmitReview(ctx context.Context, id string, q v1.ReviewRequest) (v1.Workflow, error) {
	return once[v1.Workflow](ctx, c, workflows+segment(id)+"/review", q)
}

// ReviewFeedback returns the last review of a workflow, or NotFound before the first.
func (c *Client) ReviewFeedback(ctx context.Context, id string) (v1.Review, error) {
	return get[v1.Review](ctx, c, workflows+segment(id)+"/feedback", nil)
}

// CancelWorkflow ends a workflow in the stage rejected.
func (c *Client) CancelWorkflow(ctx context.Context, id, reason string) (v1.Workflow, error) {
	return once[v1.Workflow](ctx, c, workflows+segment(id)+"/cancel", v1.ReasonRequest{Reason: reason})
}

// EscalateWorkflow leaves a workflow to the owner of its workspace.
func (c *Client) EscalateWorkflow(ctx context.Context, id, reason string) (v1.Workflow, error) {
	return once[v1.Workflow](ctx, c, workflows+segment(id)+"/escalate", v1.ReasonRequest{Reason: reason})
}

// DeleteWorkflow deletes a workflow with its history.
func (c *Client) DeleteWorkflow(ctx context.Context, id string) error {
	return c.remove(ctx, workflows+segment(id))
}
