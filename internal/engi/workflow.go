package engi

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Workflow is work in a workspace that some participants create and others review, in rounds, until
// it is approved or rejected. An approval is for the content of one revision: a revision with
// other content makes it void. It is a value.
type Workflow struct {
	ID           WorkflowID
	Owner        Owner // owner of the workspace
	Workspace    WorkspaceID
	Name         string   // unique in the workspace, in the form of a workspace's name
	Task         string   // what is to be done, for the participants
	Criteria     []string // what a review answers, one by one
	Stage        WorkflowStage
	Current      WorkflowRole // role that must act next; empty when the work is approved or rejected
	Escalated    bool         // only the owner may act
	Creator      string       // ID of an actor (see [WithActor]), name of an owner, or agent: and the name of an agent; empty means all editors
	Reviewer     string       // in the form of Creator; empty means all who may review
	Revision     int64        // number of the submitted revision; 0 before the first submission
	Hash         string       // hash of all files of the submitted revision
	Submitter    string       // ID of the actor that submitted it
	Notes        string       // notes of the submission for the reviewer
	Round        int          // number of times that the work was sent back
	MaxRevisions int          // maximum of Round; to send the work back again escalates it to the owner
	Limits       WorkflowLimits
	Deadline     time.Time     // when the stage escalates to the owner; zero means never
	Review       *ReviewResult // last review; nil before the first
	Metadata     json.RawMessage
	Events       int64 // number of the last event of the history
	Created      time.Time
	Changed      time.Time // time of the last event of the history
}

// A WorkflowStage is a point in the life of a workflow.
type WorkflowStage string

const (
	WorkflowCreation WorkflowStage = "creation" // the creator works, before the first submission
	WorkflowReview   WorkflowStage = "review"   // a reviewer is to review the submission
	WorkflowRevision WorkflowStage = "revision" // the creator works again, after a review or a void approval
	WorkflowApproved WorkflowStage = "approved" // the content of the workspace is approved
	WorkflowRejected WorkflowStage = "rejected" // the end without an approval
)

// WorkflowStages returns all stages.
func WorkflowStages() []WorkflowStage {
	return []WorkflowStage{WorkflowCreation, WorkflowReview, WorkflowRevision, WorkflowApproved, WorkflowRejected}
}

// A WorkflowRole is a role in a workflow.
type WorkflowRole string

const (
	RoleWorkCreator  WorkflowRole = "creator"  // an editor of the workspace
	RoleWorkReviewer WorkflowRole = "reviewer" // a reviewer or an editor of the workspace
	RoleWorkOwner    WorkflowRole = "owner"    // the owner of the workspace in person: no run of an agent or a function
	RoleWorkNode     WorkflowRole = "node"     // the node itself
)

// A WorkflowAction changes a workflow.
type WorkflowAction string

const (
	ActCreate   WorkflowAction = "create"
	ActSubmit   WorkflowAction = "submit"    // submit the last revision for review
	ActApprove  WorkflowAction = "approve"   // a review: approve the submission
	ActSendBack WorkflowAction = "send_back" // a review: ask for a revision
	ActReject   WorkflowAction = "reject"    // a review: end the workflow
	ActCancel   WorkflowAction = "cancel"
	ActEscalate WorkflowAction = "escalate" // leave the next step to the owner
	ActExpire   WorkflowAction = "expire"   // by the node: the deadline has passed
	ActVoid     WorkflowAction = "void"     // by the node: the approved content has changed
)

// WorkflowLimits are the maximum durations of the stages; 0 means no limit.
type WorkflowLimits struct {
	Creation, Review, Revision time.Duration
}

// Of returns the limit of a stage; 0 means no limit.
func (l WorkflowLimits) Of(s WorkflowStage) time.Duration {
	return map[WorkflowStage]time.Duration{WorkflowCreation: l.Creation, WorkflowReview: l.Review, WorkflowRevision: l.Revision}[s]
}

// A ReviewResult is the result of a review. It is a value.
type ReviewResult struct {
	Approved    bool
	Grade       string // such as A or B+; empty for none
	Feedback    string
	Suggestions []string
	Criteria    []CriterionResult // in the order of the reviewer
	// ModifiedFiles are the paths, at most 1,000, that the reviewer has changed since the submission. They come
	// from the revisions that the reviewer has made.
	ModifiedFiles []string
	Revision      int64  // number of the reviewed revision
	Hash          string // hash of all files of the reviewed revision
	Reviewer      string // ID of the actor
}

// A CriterionResult is the answer of a review to one criterion.
type CriterionResult struct {
	Criterion string
	Met       bool
	Comment   string
}

// A WorkflowTemplate is a kind of work: what its workspace begins with, and the criteria of the reviews. It is a value.
type WorkflowTemplate struct {
	Name     string
	Files    []WorkspaceFile
	Services []ServiceSpec
	Preview  WorkspacePreview
	Criteria []string
}

// A WorkflowEvent is an entry of a workflow's history. It is a value.
type WorkflowEvent struct {
	Number    int64 // 1 for the first
	Time      time.Time
	Actor     string // as in [Event.Actor]
	Role      WorkflowRole
	Action    WorkflowAction
	From, To  WorkflowStage // From is empty for the first
	Escalated bool          // whether only the owner may act afterwards
	Revision  int64         // number of the workspace's revision that the action is about; 0 for none
	Hash      string        // hash of all files of the revision
	Reason    string        // notes of a submission, or why
	Details   *ReviewResult // of a review
}

// A WorkflowSpec describes a workflow to create.
type WorkflowSpec struct {
	ID           WorkflowID // empty means a new one
	Viewer       Viewer
	Owner        Owner  // owner of the workspace that is made from Template
	Workspace    string // ID or name; with Template, the name of a new workspace
	Template     string // name of a [WorkflowTemplate], from which the workspace is made and whose criteria hold; empty for a workspace that exists
	Criteria     []string
	Name         string // empty means a generated name
	Task         string
	Creator      string // see [Workflow]
	Reviewer     string
	MaxRevisions int // 0 means 3
	Limits       WorkflowLimits
	Metadata     json.RawMessage // JSON object; nil for none
}

// Bounds of workflows.
const (
	MaxWorkflowText       = 16 << 10 // bytes of a task, of notes and of a reason
	MaxWorkflowMetadata   = 64 << 10 // bytes
	MaxReviewFeedback     = 64 << 10 // bytes
	MaxReviewSuggestions  = 100
	MaxReviewSuggestion   = 4 << 10 // bytes
	MaxReviewGrade        = 100     // bytes
	MaxCriteria           = 50
	MaxCriterion          = 300 // bytes
	MaxWorkflowRevisions  = 20
	MaxWorkflowLimit      = 90 * 24 * time.Hour
	maxParticipant        = 128 // bytes
	DefaultWorkflowRounds = 3
)

// Faults returns the faults of the spec, except that of a name.
func (s WorkflowSpec) Faults() (f Faults) {
	f.longText("task", s.Task, MaxWorkflowText)
	f.longText("creator", s.Creator, maxParticipant)
	f.longText("reviewer", s.Reviewer, maxParticipant)
	if len(s.Criteria) > MaxCriteria {
		f.Addf("criteria", "there are %d, %d at most", len(s.Criteria), MaxCriteria)
	}
	for i, c := range s.Criteria {
		if c == "" || len(c) > MaxCriterion || !isText(c) || strings.ContainsFunc(c, unicode.IsControl) || slices.Contains(s.Criteria[:i], c) {
			f.Addf("criteria", "%.70q is not one line of 1 to %d bytes, or it is there twice", c, MaxCriterion)
		}
	}
	if s.MaxRevisions < 0 || s.MaxRevisions > MaxWorkflowRevisions {
		f.Addf("max_revisions", "it is %d, %d at most", s.MaxRevisions, MaxWorkflowRevisions)
	}
	for name, d := range map[string]time.Duration{"creation": s.Limits.Creation, "review": s.Limits.Review, "revision": s.Limits.Revision} {
		if d != 0 {
			f.duration("limits."+name, d, time.Second, MaxWorkflowLimit)
		}
	}
	var object map[string]any
	f.Size("metadata", int64(len(s.Metadata)), MaxWorkflowMetadata, "write more into a file of the workspace")
	if s.Metadata != nil && (len(s.Metadata) > MaxWorkflowMetadata || !utf8.Valid(s.Metadata) || json.Unmarshal(s.Metadata, &object) != nil || object == nil) {
		f.Addf("metadata", "it is not a JSON object")
	}
	return f
}

// longText checks that s is UTF-8 without NUL, and its size in bytes.
func (f *Faults) longText(field, s string, most int64) {
	f.Size(field, int64(len(s)), most, "")
	f.Text(field, s)
}

// A WorkflowAct is an action of a participant.
type WorkflowAct struct {
	Viewer   Viewer
	Workflow WorkflowID
	Action   WorkflowAction // submit, approve, send_back, reject, cancel or escalate
	Reason   string         // notes of a submission, or why
	// Revision is the number of the revision that the reviewer has seen; its content must be the submitted one.
	// An approval needs it; 0 in other reviews means the submitted revision.
	Revision    int64
	Grade       string
	Feedback    string
	Suggestions []string
	Criteria    []CriterionResult // an answer for each criterion, in an approval and when the work is sent back
	ByModel     bool              // a model acts through a tool: it never has the role of the owner
}

// Faults returns the faults of the act.
func (a WorkflowAct) Faults() (f Faults) {
	f.longText("reason", a.Reason, MaxWorkflowText)
	f.longText("grade", a.Grade, MaxReviewGrade)
	f.longText("feedback", a.Feedback, MaxReviewFeedback)
	if len(a.Suggestions) > MaxReviewSuggestions {
		f.Addf("suggestions", "there are %d, %d at most", len(a.Suggestions), MaxReviewSuggestions)
	} else if slices.ContainsFunc(a.Suggestions, func(s string) bool { return len(s) > MaxReviewSuggestion || !isText(s) }) {
		f.Addf("suggestions", "one is longer than %d bytes, or not UTF-8 text without NUL", MaxReviewSuggestion)
	}
	if len(a.Criteria) > MaxCriteria {
		f.Addf("criteria", "there are %d answers, %d at most", len(a.Criteria), MaxCriteria)
	} else if slices.ContainsFunc(a.Criteria, func(c CriterionResult) bool { return len(c.Comment) > MaxReviewSuggestion || !isText(c.Comment) }) {
		f.Addf("criteria", "a comment is longer than %d bytes, or not UTF-8 text without NUL", MaxReviewSuggestion)
	}
	if a.Action == ActApprove && a.Revision <= 0 {
		f.Addf("revision", "an approval names the revision that the reviewer has seen, and this names none; the workflow has the number of the submitted one")
	}
	return f
}

// A WorkflowFilter selects workflows. Zero fields select all.
type WorkflowFilter struct {
	Workspace string // ID or name of the workspace
	Stage     WorkflowStage
}

// Workflows manages workflows. Methods find workflows of workspaces in which viewer has a role, and report NotFound for
// all others, and Denied for actions that the role does not allow. Actions are in the name of
// [ActorOf] ctx. It is safe for concurrent use.
type Workflows interface {
	// Templates returns the templates of the node, ordered by name.
	Templates() []WorkflowTemplate
	// Create starts a workflow in a workspace, and with a template makes that first. It needs the role editor. It reports Conflict for a name that is
	// taken, and Exhausted if the workspace or its owner has too many workflows.
	Create(ctx context.Context, spec WorkflowSpec) (Workflow, error)
	// Get returns a workflow. Before it returns one that is approved, it records what has changed in
	// the sandbox of the workspace, if that is awake, which may make the approval void.
	Get(ctx context.Context, viewer Viewer, id WorkflowID) (Workflow, error)
	// List returns workflows, newest first.
	List(ctx context.Context, viewer Viewer, f WorkflowFilter, p Paging) ([]Workflow, error)
	// History returns the history of a workflow, oldest first. A page continues after the number of an event.
	History(ctx context.Context, viewer Viewer, id WorkflowID, p Paging) ([]WorkflowEvent, error)
	// Act does what a participant asks for. A submission or a review first records the changes in the sandbox as a
	// revision. Act reports Conflict if the stage does not allow the action, and for an approval
	// of content that is not the submitted content or not the last; and Denied if the
	// role does not allow the action, and for an approval by an actor that made the content or submitted it.
	Act(ctx context.Context, a WorkflowAct) (Workflow, error)
	// Delete deletes a workflow with its history. It needs the role owner. The events of the event log stay.
	Delete(ctx context.Context, viewer Viewer, id WorkflowID) error
	// Wait returns a workflow once it is in one of the stages, approved or rejected. It reports Expired when ctx ends
	// first.
	Wait(ctx context.Context, viewer Viewer, id WorkflowID, stages ...WorkflowStage) (Workflow, error)
}
