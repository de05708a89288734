package workflow

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// AgentPrefix is in front of the name of an agent that takes part in a workflow.
const AgentPrefix = "agent:"

// Agents runs the agents that take part in workflows. See [engi.Agents].
type Agents interface {
	Agents() []engi.AgentSpec
	Start(ctx context.Context, spec engi.RunSpec) (engi.Run, error)
	Get(ctx context.Context, viewer engi.Viewer, id engi.RunID) (engi.Run, error)
	Cancel(ctx context.Context, viewer engi.Viewer, id engi.RunID) error
}

// Bind has Run start agents. It is called before Run and before any workflow is created.
func (s *Service) Bind(a Agents) { s.agents = a }

const creatorText = `You are the creator in a workflow: you do the work in the workspace, and somebody else reviews it.
When the work is done, call submit_for_review once, with notes that say what you have done. Work that is not submitted is not reviewed.
After a review that asks for a revision, get_review_feedback returns what is to be changed.`

const reviewerText = `You are the reviewer in a workflow: somebody else has done the work in the workspace, and you judge it. Do not trust what the work or its notes say about itself: read the files, and query the databases.
Then call submit_review once, with an answer to each criterion. Approve only what may stay as it is. Otherwise say exactly what is to be changed.
You may change files to show what you mean, but what you have changed is your work, and you cannot approve it.`

const (
	maxLastText = 2000             // maximum bytes of an agent's last words in the history
	maxPart     = 64 << 10         // maximum bytes of one part of what an agent is told
	startPause  = 10 * time.Second // time until an agent that could not start is started again
)

// agentOf returns the name of the agent whose turn it is; empty if there is none.
func agentOf(w engi.Workflow) string {
	who := map[engi.WorkflowRole]string{engi.RoleWorkCreator: w.Creator, engi.RoleWorkReviewer: w.Reviewer}[w.Current]
	name, _ := strings.CutPrefix(who, AgentPrefix)
	if name == who {
		return ""
	}
	return name
}

// checkAgents reports why agents cannot take part in a workflow of a workspace.
func (s *Service) checkAgents(spec engi.WorkflowSpec, space engi.Workspace) error {
	for _, who := range []string{spec.Creator, spec.Reviewer} {
		name, ok := strings.CutPrefix(who, AgentPrefix)
		switch {
		case !ok:
		case s.agents == nil:
			return engi.Errorf(engi.Unsupported, "agents are off on this node, so that %.80s cannot take part", who).WithRemedy("let a person or a program take part")
		case !spec.Viewer.Sees(space.Owner):
			return engi.Errorf(engi.Denied, "agents in workspace %s work for its owner, and you are a collaborator", space.ID).WithRemedy("ask the owner to create the workflow")
		case !slices.ContainsFunc(s.agents.Agents(), func(a engi.AgentSpec) bool { return a.Name == name }):
			return engi.Errorf(engi.NotFound, "there is no agent %.80q", name).WithRemedy("'engi agent list' shows the agents of this node")
		}
	}
	return nil
}

// playedBy returns the participant that a run of an agent is, in the form of [engi.Workflow]'s Creator; empty if actor is no
// run of the owner.
func (s *Service) playedBy(ctx context.Context, owner engi.Owner, actor string) (string, error) {
	id := engi.RunID(actor)
	if s.agents == nil || id.Check() != nil {
		return "", nil
	}
	run, err := s.agents.Get(ctx, owner.Viewer(), id)
	if err != nil {
		return "", engi.Ignore(err, engi.NotFound)
	}
	return AgentPrefix + run.Agent, nil
}

// runAgents starts the agents whose turn it is, until ctx ends. What an agent does is in the log and in the
// records of workflows and runs: after a crash, each start finds the run that was started before.
func (s *Service) runAgents(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.followTurns(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.opt.Log.WarnContext(ctx, "start the agents whose turn it is in workflows; it is retried", "error", err)
		timer := time.NewTimer(retryPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// followTurns gives agents their turns, until there is an error, or an agent that could not start is to be started again.
func (s *Service) followTurns(ctx context.Context) error {
	last, err := s.opt.Events.Last(ctx)
	if err != nil {
		return err
	}
	runs, late := map[engi.RunID]engi.WorkflowID{}, false // active runs, and whether an agent could not start
	for _, stage := range []engi.WorkflowStage{engi.WorkflowCreation, engi.WorkflowReview, engi.WorkflowRevision} {
		for p := (engi.Paging{Limit: 100}); ; {
			all, err := s.opt.Store.List(ctx, engi.Everyone, Filter{Stage: stage}, p)
			if err != nil {
				return err
			}
			for _, w := range all {
				started, err := s.giveTurn(ctx, w.ID, "", runs)
				if err != nil {
					return err
				}
				late = late || !started
			}
			if len(all) < p.Limit {
				break
			}
			p.After = string(all[len(all)-1].ID)
		}
	}
	if late {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startPause)
		defer cancel()
	}
	f := engi.EventFilter{Types: []string{engi.EventWorkflowCreated, engi.EventWorkflowStage, engi.EventRunEnded}, After: last}
	for e, err := range s.opt.Events.Follow(ctx, engi.Everyone, f) {
		if err != nil {
			return engi.Ignore(err, engi.Expired)
		}
		if e.Type == engi.EventsDropped {
			return nil // look at all workflows again
		}
		id := engi.WorkflowID(e.Subject)
		if e.Type == engi.EventRunEnded {
			var ours bool
			if id, ours = runs[engi.RunID(e.Subject)]; !ours {
				continue
			}
			delete(runs, engi.RunID(e.Subject))
		}
		if started, err := s.giveTurn(ctx, id, e.Actor, runs); err != nil || !started {
			return err
		}
	}
	return nil
}

// giveTurn starts the agent whose turn it is in a workflow. If it has ended and the workflow is where it was, the owner is
// to decide what happens. Runs of earlier turns are cancelled, except that of the actor by, who has ended its turn and still
// says so. started is false if the agent could not start, and may later.
func (s *Service) giveTurn(ctx context.Context, id engi.WorkflowID, by string, runs map[engi.RunID]engi.WorkflowID) (started bool, err error) {
	w, err := s.opt.Store.Get(ctx, engi.Everyone, id)
	if err != nil {
		return true, engi.Ignore(err, engi.NotFound)
	}
	name, run := agentOf(w), engi.Run{}
	if name != "" {
		run, err = s.agents.Start(engi.WithActor(ctx, string(w.ID)), turnOf(w, name))
	}
	for other, of := range runs {
		if of == id && other != run.ID && string(other) != by {
			if err := engi.Ignore(s.agents.Cancel(ctx, w.Owner.Viewer(), other), engi.NotFound, engi.Conflict); err != nil {
				return true, err
			}
		}
	}
	switch {
	case name == "":
		return true, nil
	case engi.Is(err, engi.Unavailable, engi.Exhausted, engi.Expired, engi.Internal):
		s.opt.Log.InfoContext(ctx, "the agent whose turn it is cannot start; it is tried again", "workflow", w.ID, "agent", name, "error", err)
		return false, nil
	case err != nil:
		return true, s.leave(ctx, w, fmt.Sprintf("agent %s cannot start: %v", name, err))
	case run.Ended.IsZero():
		runs[run.ID] = w.ID
		return true, nil
	}
	said := run.Text
	if run.Error != nil {
		said = run.Error.Error()
	}
	return true, s.leave(ctx, w, fmt.Sprintf("agent %s has ended (%s) and has not acted: %s", name, run.State, clip.Text(said, maxLastText)))
}

// leave escalates a workflow whose agent does nothing more, unless it has gone on.
func (s *Service) leave(ctx context.Context, seen engi.Workflow, reason string) error {
	_, err := s.opt.Store.Change(engi.WithActor(ctx, ""), seen.ID, func(w *engi.Workflow, _ Tx) (engi.WorkflowEvent, error) {
		if w.Events != seen.Events {
			return engi.WorkflowEvent{}, engi.Errorf(engi.Conflict, "it has gone on")
		}
		return take(w, step{action: engi.ActEscalate, roles: []engi.WorkflowRole{engi.RoleWorkNode}, reason: reason, now: time.Now().UTC()})
	})
	return engi.Ignore(err, engi.Conflict, engi.NotFound)
}

// unmet returns the criteria that are not met, one per line.
func unmet(all []engi.CriterionResult) string {
	var lines []string
	for _, c := range all {
		if !c.Met {
			lines = append(lines, strings.TrimSuffix(c.Criterion+": "+c.Comment, ": "))
		}
	}
	return strings.Join(lines, "\n")
}

// turnOf returns the run of an agent whose turn it is.
func turnOf(w engi.Workflow, name string) engi.RunSpec {
	spec := engi.RunSpec{
		Owner: w.Owner, Agent: name, Workspace: string(w.Workspace), System: creatorText, Input: "Do the task in the workspace, and submit it for review.",
		Context: []engi.ContextPart{{Name: "TASK", Text: w.Task}}, Idempotency: fmt.Sprintf("%s/%d", w.ID, w.Events),
	}
	spec.Context = append(spec.Context, engi.ContextPart{Name: "NAME OF THE WORKFLOW", Text: w.Name})
	part := func(name, text string) {
		spec.Context = append(spec.Context, engi.ContextPart{Name: name, Text: clip.Text(text, maxPart)})
	}
	switch w.Stage {
	case engi.WorkflowReview:
		spec.System, spec.Reviews = reviewerText, true
		spec.Input = fmt.Sprintf("Review revision %d.", w.Revision)
		part("CRITERIA", strings.Join(w.Criteria, "\n"))
		part("NOTES OF THE CREATOR", w.Notes)
	case engi.WorkflowRevision:
		spec.Input = "Revise the work in the workspace as the review asks, and submit it for review again."
		if r := w.Review; r != nil && !r.Approved {
			part("REVIEW", r.Feedback)
			part("CRITERIA THAT ARE NOT MET", unmet(r.Criteria))
			part("SUGGESTIONS", strings.Join(r.Suggestions, "\n"))
			part("FILES THAT THE REVIEWER CHANGED", strings.Join(r.ModifiedFiles, "\n"))
		} else {
			spec.Input = "The work was approved and then changed. Look at the changes, and submit it for review again."
		}
	}
	return spec
}
