package v1

import (
	"encoding/json"
	"time"
)

// Stages of workflows.
const (
	WorkflowCreation = "creation"
	WorkflowReview   = "review"
	WorkflowRevision = "revision"
	WorkflowApproved = "approved"
	WorkflowRejected = "rejected"
)

// A WorkflowRequest creates a workflow.
type WorkflowRequest struct {
	Workspace    string          `json:"workspace" maxLength:"128" doc:"ID or name of the workspace; those of other owners are named by ID or as OWNER/NAME" example:"shop"`
	Template     string          `json:"template,omitempty" maxLength:"63" doc:"Name of a template: workspace then is the name of a new workspace, with the template's files, services and preview; see /v1/workflow-templates" example:"static-website"`
	Criteria     []string        `json:"criteria,omitempty" maxItems:"50" doc:"What a review answers, one by one, in addition to the template's criteria; at most 300 bytes each" example:"[\"Accessibility\"]"`
	Name         string          `json:"name,omitempty" maxLength:"63" doc:"Name: 1 to 63 letters, digits and dashes, unique in the workspace; absent means a generated name" example:"first-page"`
	Task         string          `json:"task,omitempty" doc:"What is to be done, for the participants; at most 16 KiB" example:"a page with our opening hours"`
	Creator      string          `json:"creator,omitempty" maxLength:"128" doc:"Who creates: the ID of a key, of a run or of a function run, the name of an owner, or agent:NAME for an agent of the node; absent means all editors of the workspace" example:"ann"`
	Reviewer     string          `json:"reviewer,omitempty" maxLength:"128" doc:"Who reviews, named as the creator; absent means all reviewers and editors of the workspace" example:"bob"`
	MaxRevisions int             `json:"max_revisions,omitempty" minimum:"0" maximum:"20" doc:"How often reviewers may send the work back before it is escalated to the owner; absent means 3" example:"3"`
	Limits       WorkflowLimits  `json:"limits,omitzero" doc:"Maximum durations of the stages, after which the workflow is escalated to the owner"`
	Metadata     json.RawMessage `json:"metadata,omitempty" doc:"Object of at most 64 KiB"`
}

// WorkflowLimits are the maximum durations of the stages of a workflow. Absent means no limit.
type WorkflowLimits struct {
	Creation Duration `json:"creation,omitempty" doc:"At least 1s, at most 90 days" example:"2h"`
	Review   Duration `json:"review,omitempty" doc:"At least 1s, at most 90 days" example:"24h"`
	Revision Duration `json:"revision,omitempty" doc:"At least 1s, at most 90 days" example:"2h"`
}

// A Workflow is work in a workspace that is created, reviewed and revised until it is approved or rejected. An approval is for
// the content of one revision of the workspace: other content makes it void.
type Workflow struct {
	ID           string          `json:"id" example:"wfl_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner        string          `json:"owner,omitempty" doc:"Owner of the workspace"`
	WorkspaceID  string          `json:"workspace_id" example:"wsp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Name         string          `json:"name" example:"first-page"`
	Task         string          `json:"task,omitempty"`
	Criteria     []string        `json:"criteria,omitempty" doc:"What a review answers, one by one" example:"[\"Accessibility\"]"`
	Stage        string          `json:"stage" enum:"creation,review,revision,approved,rejected"`
	Current      string          `json:"current,omitempty" enum:"creator,reviewer,owner" doc:"Role that must act next; absent when the work is approved or rejected"`
	Escalated    bool            `json:"escalated" doc:"Only the owner of the workspace may act, with a key and not through an agent or a function"`
	Creator      string          `json:"creator,omitempty" doc:"ID or owner; absent means all editors of the workspace"`
	Reviewer     string          `json:"reviewer,omitempty" doc:"ID or owner; absent means all reviewers and editors of the workspace"`
	Revision     int64           `json:"revision,omitempty" doc:"Submitted revision of the workspace; absent before the first submission" example:"3"`
	Hash         string          `json:"hash,omitempty" doc:"Hash of all files of the submitted revision: that of git's tree"`
	Submitter    string          `json:"submitter,omitempty" doc:"Key or run that submitted the revision"`
	Notes        string          `json:"notes,omitempty" doc:"Notes of the submission for the reviewer"`
	Round        int             `json:"round" doc:"How often the work was sent back"`
	MaxRevisions int             `json:"max_revisions" example:"3"`
	Limits       WorkflowLimits  `json:"limits,omitzero"`
	DeadlineAt   *time.Time      `json:"deadline_at,omitempty" doc:"Time at which the workflow is escalated to the owner; absent means never"`
	Review       *Review         `json:"review,omitempty" doc:"Last review"`
	Metadata     json.RawMessage `json:"metadata,omitempty"`
	CreatedAt    time.Time       `json:"created_at"`
	ChangedAt    time.Time       `json:"changed_at"`
}

// Over reports whether the work is approved or rejected.
func (w Workflow) Over() bool { return w.Stage == WorkflowApproved || w.Stage == WorkflowRejected }

// A Review is the result of a review.
type Review struct {
	Approved      bool              `json:"approved"`
	Grade         string            `json:"grade,omitempty" example:"B+"`
	Feedback      string            `json:"feedback"`
	Suggestions   []string          `json:"suggestions"`
	Criteria      []CriterionResult `json:"criteria,omitempty"`
	ModifiedFiles []string          `json:"modified_files" doc:"Files, at most 1,000, that the reviewer has changed since the submission, as the revisions of the workspace say"`
	Revision      int64             `json:"revision" doc:"Reviewed revision of the workspace" example:"3"`
	Hash          string            `json:"hash" doc:"Hash of all files of the reviewed revision"`
	Reviewer      string            `json:"reviewer" doc:"Key or run that reviewed"`
}

// A CriterionResult is the answer of a review to one criterion.
type CriterionResult struct {
	Criterion string `json:"criterion" doc:"Criterion of the workflow" example:"Accessibility"`
	Met       bool   `json:"met"`
	Comment   string `json:"comment,omitempty" doc:"At most 4 KiB" example:"the form has no labels"`
}

// A WorkflowTemplate is a kind of work: what its workspace begins with, and the criteria of the reviews.
type WorkflowTemplate struct {
	Name     string   `json:"name" example:"static-website"`
	Files    []string `json:"files" doc:"Files of the first revision" example:"[\"index.html\"]"`
	Services []string `json:"services" doc:"Types of the services" example:"[\"postgres\"]"`
	Preview  string   `json:"preview,omitempty" enum:"static,proxy,websocket" doc:"Type of the preview; absent means none"`
	Criteria []string `json:"criteria" doc:"What a review answers, one by one" example:"[\"Accessibility\"]"`
}

// A WorkflowEvent is an entry in the history of a workflow, which never changes.
type WorkflowEvent struct {
	Number    int64     `json:"number" example:"2"`
	Time      time.Time `json:"time"`
	Actor     string    `json:"actor,omitempty" doc:"ID of the key, run or function run; absent for the server itself"`
	Role      string    `json:"role" enum:"creator,reviewer,owner,node" doc:"Role of the actor; node: the server applied a rule"`
	Action    string    `json:"action" enum:"create,submit,approve,send_back,reject,cancel,escalate,expire,void" doc:"expire: the deadline has passed; void: the content has changed after the approval"`
	From      string    `json:"from,omitempty" doc:"Stage before the action; absent in the first entry"`
	To        string    `json:"to" enum:"creation,review,revision,approved,rejected"`
	Escalated bool      `json:"escalated" doc:"Whether only the owner may act after the action"`
	Revision  int64     `json:"revision,omitempty" doc:"Revision of the workspace that the action is about"`
	Hash      string    `json:"hash,omitempty" doc:"Hash of all files of the revision"`
	Reason    string    `json:"reason,omitempty" doc:"Task, notes or reason of the action"`
	Details   *Review   `json:"details,omitempty" doc:"Result of a review"`
}

// A SubmitRequest submits the last revision of a workspace for review.
type SubmitRequest struct {
	Notes string `json:"notes,omitempty" doc:"Notes for the reviewer; at most 16 KiB"`
}

// A ReviewRequest is the result of a review.
type ReviewRequest struct {
	Decision    string            `json:"decision" enum:"approve,send_back,reject" doc:"approve: the submitted content; send_back: for a revision; reject: end the workflow"`
	Revision    int64             `json:"revision,omitempty" minimum:"0" doc:"Revision that the reviewer has seen; an approval needs it" example:"3"`
	Grade       string            `json:"grade,omitempty" doc:"At most 100 bytes" example:"B+"`
	Feedback    string            `json:"feedback,omitempty" doc:"At most 64 KiB"`
	Suggestions []string          `json:"suggestions,omitempty" maxItems:"100" doc:"At most 4 KiB each"`
	Criteria    []CriterionResult `json:"criteria,omitempty" maxItems:"50" doc:"An answer to each criterion of the workflow, which approve and send_back need"`
}

// A ReasonRequest says why something is done.
type ReasonRequest struct {
	Reason string `json:"reason,omitempty" doc:"At most 16 KiB"`
}
