package client_test

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// newPage makes a workflow in a workspace with a file.
func newPage(ctx context.Context, c *client.Client) v1.Workflow {
	return must(c.CreateWorkflow(ctx, v1.WorkflowRequest{Workspace: newShop(ctx, c).ID, Name: "page", Task: "a page with our hours"}))
}

func ExampleClient_CreateWorkflow() {
	c, stop := connect()
	defer stop()
	w := newPage(context.Background(), c)
	fmt.Println(w.Name, w.Stage, w.Current, w.MaxRevisions)
	// Output: page creation creator 3
}

func ExampleClient_Workflows() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newPage(ctx, c)
	for _, w := range must(c.Workflows(ctx, client.WorkflowFilter{Workspace: "shop", Stage: v1.WorkflowCreation})) {
		fmt.Println(w.Name)
	}
	// Output: page
}

func ExampleClient_Workflow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	fmt.Println(must(c.Workflow(ctx, newPage(ctx, c).ID)).Task)
	// Output: a page with our hours
}

func ExampleClient_SubmitForReview() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.SubmitForReview(ctx, newPage(ctx, c).ID, "the first draft"))
	fmt.Println(w.Stage, w.Current, w.Revision, w.Notes)
	// Output: review reviewer 1 the first draft
}

func ExampleClient_SubmitReview() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.SubmitForReview(ctx, newPage(ctx, c).ID, ""))
	_, err := c.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "approve", Revision: w.Revision})
	fmt.Println(client.IsKind(err, v1.Denied)) // the key has submitted it
	w = must(c.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "send_back", Feedback: "Sunday is missing", Suggestions: []string{"use a table"}}))
	fmt.Println(w.Stage, w.Round)
	// Output:
	// true
	// revision 1
}

func ExampleClient_ReviewFeedback() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.SubmitForReview(ctx, newPage(ctx, c).ID, ""))
	must(c.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "send_back", Grade: "C", Feedback: "Sunday is missing"}))
	r := must(c.ReviewFeedback(ctx, w.ID))
	fmt.Println(r.Approved, r.Grade, r.Feedback, len(r.ModifiedFiles))
	// Output: false C Sunday is missing 0
}

func ExampleClient_WorkflowHistory() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.SubmitForReview(ctx, newPage(ctx, c).ID, ""))
	for _, e := range must(c.WorkflowHistory(ctx, w.ID)) {
		fmt.Println(e.Number, e.Action, e.Role, e.To)
	}
	// Output:
	// 1 create owner creation
	// 2 submit creator review
}

func ExampleClient_WaitWorkflow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.SubmitForReview(ctx, newPage(ctx, c).ID, ""))
	fmt.Println(must(c.WaitWorkflow(ctx, w.ID, v1.WorkflowReview)).Stage)
	// Output: review
}

func ExampleClient_EscalateWorkflow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.EscalateWorkflow(ctx, newPage(ctx, c).ID, "we disagree"))
	fmt.Println(w.Stage, w.Escalated, w.Current)
	// Output: creation true owner
}

func ExampleClient_CancelWorkflow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.CancelWorkflow(ctx, newPage(ctx, c).ID, "not needed"))
	fmt.Println(w.Stage, w.Over())
	// Output: rejected true
}

func ExampleClient_DeleteWorkflow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := newPage(ctx, c)
	fmt.Println(c.DeleteWorkflow(ctx, w.ID))
	_, err := c.Workflow(ctx, w.ID)
	fmt.Println(client.IsKind(err, v1.NotFound))
	// Output:
	// <nil>
	// true
}

func ExampleClient_WorkflowTemplates() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	for _, t := range must(c.WorkflowTemplates(ctx)) {
		fmt.Println(t.Name, t.Services, len(t.Criteria))
	}
	w := must(c.CreateWorkflow(ctx, v1.WorkflowRequest{Workspace: "site", Template: "static-website", Criteria: []string{"Opening hours"}}))
	fmt.Println(w.Criteria[4:])
	// Output:
	// database-schema [postgres] 5
	// fullstack-app [postgres redis] 5
	// static-website [] 5
	// [Responsive design Opening hours]
}
