package workflow

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A transition is a row of the table: what an action of one of the roles does to a workflow in a stage.
type transition struct {
	from      engi.WorkflowStage
	escalated bool
	action    engi.WorkflowAction
	roles     []engi.WorkflowRole
	to        engi.WorkflowStage
	escalates bool // only the owner may act afterwards
}

// table has every transition of a workflow.
var table = func() (all []transition) {
	const (
		creation, review, revision = engi.WorkflowCreation, engi.WorkflowReview, engi.WorkflowRevision
		approved, rejected         = engi.WorkflowApproved, engi.WorkflowRejected
		creator, reviewer          = engi.RoleWorkCreator, engi.RoleWorkReviewer
		owner, node                = engi.RoleWorkOwner, engi.RoleWorkNode
	)
	add := func(from engi.WorkflowStage, escalated bool, action engi.WorkflowAction, to engi.WorkflowStage, escalates bool, roles ...engi.WorkflowRole) {
		all = append(all, transition{from: from, escalated: escalated, action: action, roles: roles, to: to, escalates: escalates})
	}
	for _, from := range []engi.WorkflowStage{creation, review, revision} {
		add(from, false, engi.ActSubmit, review, false, creator, owner)
		add(from, false, engi.ActCancel, rejected, false, creator, owner)
		add(from, false, engi.ActEscalate, from, true, reviewer, owner, node)
		add(from, false, engi.ActExpire, from, true, node)
		add(from, true, engi.ActSubmit, review, false, owner)
		add(from, true, engi.ActSendBack, revision, false, owner)
		add(from, true, engi.ActReject, rejected, false, owner)
		add(from, true, engi.ActCancel, rejected, false, owner)
	}
	add(review, false, engi.ActApprove, approved, false, reviewer)
	add(review, false, engi.ActSendBack, revision, false, reviewer)
	add(review, false, engi.ActReject, rejected, false, reviewer, owner)
	add(review, true, engi.ActApprove, approved, false, owner)
	add(approved, false, engi.ActVoid, revision, false, node)
	return all
}()

// find returns the transition of an action, and the role in which an actor with the roles takes it. It reports Conflict if
// the stage does not have the action, and Denied if none of the roles may take it.
func find(w engi.Workflow, action engi.WorkflowAction, roles []engi.WorkflowRole) (transition, engi.WorkflowRole, error) {
	i := slices.IndexFunc(table, func(t transition) bool {
		return t.from == w.Stage && t.escalated == w.Escalated && t.action == action
	})
	if i < 0 {
		err := engi.Errorf(engi.Conflict, "%s is not possible in the stage %s of workflow %s", action, w.Stage, w.ID)
		if actions := possible(w); len(actions) > 0 {
			return transition{}, "", err.WithRemedy("possible are: %s", strings.Join(actions, ", "))
		}
		return transition{}, "", err.WithRemedy("it has ended; create another workflow")
	}
	t := table[i]
	for _, r := range t.roles {
		if slices.Contains(roles, r) {
			return t, r, nil
		}
	}
	if w.Escalated {
		return t, "", engi.Errorf(engi.Denied, "workflow %s waits for the owner of its workspace, who alone may %s now", w.ID, action).
			WithRemedy("ask the owner to decide with a key of the owner: agents and functions do not decide what was escalated")
	}
	return t, "", engi.Errorf(engi.Denied, "only a participant with the role %s may %s in the stage %s of workflow %s", t.roles[0], action, w.Stage, w.ID).
		WithRemedy("the workflow names its creator and its reviewer; without names, editors create, and reviewers and editors review")
}

// possible returns the actions that participants may take in the stage of a workflow.
func possible(w engi.Workflow) (all []string) {
	for _, t := range table {
		if t.from == w.Stage && t.escalated == w.Escalated && !slices.Contains(t.roles, engi.RoleWorkNode) {
			all = append(all, string(t.action))
		}
	}
	return all
}

// A Content is what a workspace has in a revision.
type Content struct {
	Revision int64
	Hash     string // hash of all files
}

// A step is a transition that is to be made.
type step struct {
	action engi.WorkflowAction
	actor  string
	roles  []engi.WorkflowRole
	reason string
	review *engi.ReviewResult // nil unless the action is the result of a review
	head   Content            // last revision of the workspace
	seen   Content            // revision that the reviewer names
	makers []string           // actors that made a revision with the submitted content
	now    time.Time
}

// isReview reports whether an action is the result of a review.
func isReview(a engi.WorkflowAction) bool {
	return a == engi.ActApprove || a == engi.ActSendBack || a == engi.ActReject
}

// take makes a step, and returns its event, without a number. It is the only code that changes the stage of a workflow.
func take(w *engi.Workflow, s step) (engi.WorkflowEvent, error) {
	if s.review != nil && w.Stage == engi.WorkflowReview {
		if err := checkAnswers(*w, s); err != nil {
			return engi.WorkflowEvent{}, err
		}
	}
	e := engi.WorkflowEvent{Time: s.now, Actor: s.actor, Action: s.action, From: w.Stage, Revision: w.Revision, Hash: w.Hash, Reason: s.reason}
	t, role, err := find(*w, s.action, s.roles)
	if err != nil {
		return e, err
	}
	if role != engi.RoleWorkNode && w.Events >= maxHistory && s.action != engi.ActCancel && s.action != engi.ActReject {
		return e, engi.Errorf(engi.Exhausted, "the history of workflow %s has %d events, which is the limit", w.ID, w.Events).WithRemedy("cancel it, and create another")
	}
	switch {
	case s.action == engi.ActSubmit:
		if s.head.Revision == 0 {
			return e, engi.Errorf(engi.Conflict, "workspace %s has no revision to submit", w.Workspace).WithRemedy("write a file first")
		}
		w.Revision, w.Hash, w.Submitter, w.Notes = s.head.Revision, s.head.Hash, s.actor, s.reason
		e.Revision, e.Hash = w.Revision, w.Hash
	case s.action == engi.ActApprove:
		if err := mayApprove(*w, s); err != nil {
			return e, err
		}
	case s.action == engi.ActSendBack && w.Stage == engi.WorkflowReview && !w.Escalated && w.Round >= w.MaxRevisions:
		// The owner decides instead of another round.
		e.Action = engi.ActEscalate
		if t, _, err = find(*w, engi.ActEscalate, s.roles); err != nil {
			return e, err
		}
		e.Reason = strings.TrimSpace(fmt.Sprintf("all revisions are used (%d). %s", w.Round, s.reason))
	case s.action == engi.ActSendBack && w.Stage == engi.WorkflowReview:
		w.Round++
	}
	if s.review != nil && w.Stage == engi.WorkflowReview {
		s.review.Approved, s.review.Reviewer = s.action == engi.ActApprove, s.actor
		s.review.Revision, s.review.Hash = w.Revision, w.Hash
		w.Review, e.Details = s.review, s.review
	}
	enter(w, t.to, t.escalates, s.now)
	e.Role, e.To, e.Escalated = role, w.Stage, w.Escalated
	return e, nil
}

// checkAnswers reports why the answers of a review to the criteria are refused. An owner who decides what was escalated, and
// who rejects the work, need not answer all of them.
func checkAnswers(w engi.Workflow, s step) error {
	left := slices.Clone(w.Criteria)
	for _, a := range s.review.Criteria {
		i := slices.Index(left, a.Criterion)
		if i < 0 {
			return engi.Errorf(engi.Invalid, "workflow %s has no criterion %.100q, or it is answered twice", w.ID, a.Criterion).WithRemedy("its criteria are: %s", strings.Join(w.Criteria, "; "))
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 && !w.Escalated && s.action != engi.ActReject {
		return engi.Errorf(engi.Invalid, "the review does not answer all criteria of workflow %s", w.ID).WithRemedy("say for each of these whether it is met: %s", strings.Join(left, "; "))
	}
	return nil
}

// mayApprove reports why an approval is refused.
func mayApprove(w engi.Workflow, s step) error {
	const submit = "read what has changed, have it submitted again, and review that submission"
	switch {
	case s.seen.Hash != w.Hash:
		return engi.Errorf(engi.Conflict, "revision %d, which the review names, does not have the content of the submitted revision %d", s.seen.Revision, w.Revision).
			WithRemedy("review revision %d, and name it", w.Revision)
	case s.head.Hash != w.Hash:
		return engi.Errorf(engi.Conflict, "workspace %s has changed since revision %d was submitted: the last revision is %d", w.Workspace, w.Revision, s.head.Revision).WithRemedy(submit)
	case s.actor == "":
		return engi.Errorf(engi.Denied, "nobody is named as the reviewer").WithRemedy("approve with a key")
	case s.actor == w.Submitter || slices.Contains(s.makers, s.actor):
		return engi.Errorf(engi.Denied, "who has made or submitted the content of revision %d cannot approve it", w.Revision).
			WithRemedy("ask somebody else, with another key, to review it")
	}
	return nil
}

// enter puts a workflow in a stage, from now on.
func enter(w *engi.Workflow, stage engi.WorkflowStage, escalated bool, now time.Time) {
	w.Stage, w.Escalated, w.Changed, w.Deadline = stage, escalated, now, time.Time{}
	w.Current = map[engi.WorkflowStage]engi.WorkflowRole{
		engi.WorkflowCreation: engi.RoleWorkCreator, engi.WorkflowReview: engi.RoleWorkReviewer, engi.WorkflowRevision: engi.RoleWorkCreator,
	}[stage]
	if escalated {
		w.Current = engi.RoleWorkOwner
	} else if d := w.Limits.Of(stage); d > 0 {
		w.Deadline = now.Add(d)
	}
}

// Void ends the approval of a workflow whose workspace has other content than was approved, and returns its event; changed is
// false if the approval holds. A store calls it in the transaction that records a revision.
func Void(w *engi.Workflow, head Content, actor string, now time.Time) (e engi.WorkflowEvent, changed bool, err error) {
	if w.Stage != engi.WorkflowApproved || head.Hash == w.Hash {
		return e, false, nil
	}
	e, err = take(w, step{action: engi.ActVoid, actor: actor, roles: []engi.WorkflowRole{engi.RoleWorkNode}, reason: "the content has changed since the approval", now: now})
	e.Revision, e.Hash = head.Revision, head.Hash
	return e, err == nil, err
}

// rolesOf returns the roles of a viewer in a workflow of a workspace. If the actor is a run of an agent, played is the agent as a
// participant. A role that an agent has is for nobody else.
func rolesOf(w engi.Workflow, space engi.Workspace, viewer engi.Viewer, actor, played string, byModel bool) (all []engi.WorkflowRole) {
	named := func(who string) bool {
		if strings.HasPrefix(who, AgentPrefix) {
			return who == played
		}
		return who == "" || who == actor || who == string(viewer.Owner())
	}
	if named(w.Creator) && space.Allow(viewer, engi.RoleEditor) == nil {
		all = append(all, engi.RoleWorkCreator)
	}
	if named(w.Reviewer) && space.Allow(viewer, engi.RoleReviewer) == nil {
		all = append(all, engi.RoleWorkReviewer)
	}
	run := byModel || engi.RunID(actor).Check() == nil || engi.FunctionRunID(actor).Check() == nil
	if !run && space.Allow(viewer, engi.RoleOwner) == nil {
		all = append(all, engi.RoleWorkOwner)
	}
	return all
}
