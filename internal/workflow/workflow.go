// Package workflow manages work that is created, reviewed, revised, and approved or rejected: it implements [engi.Workflows].
// Everything that may happen is a row of one table, and one function takes the steps.
//
// The work is the files of a workspace. An approval is for the hash of all files of one revision. Who has made a revision with
// this hash, or has submitted it, cannot approve it. The store ends an approval in the transaction that
// records other content, see [Store].
//
// Agents that take part get their turns from [Service.Run]. Package workspace keeps the files and records who changed them.
package workflow

import (
	"cmp"
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Options configures a Service. All fields except Templates and Log are required.
type Options struct {
	Store      Store
	Workspaces Workspaces
	Templates  []engi.WorkflowTemplate // ordered by name
	Events     engi.Events
	Log        *slog.Logger // nil discards
}

// Workspaces has the workspaces of workflows.
type Workspaces interface {
	// Get returns a workspace by ID or name; see [engi.Workspaces].
	Get(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	// Create creates a workspace; see [engi.Workspaces].
	Create(ctx context.Context, spec engi.WorkspaceSpec) (engi.Workspace, error)
	// Change changes a workspace; see [engi.Workspaces].
	Change(ctx context.Context, viewer engi.Viewer, workspace string, c engi.WorkspaceChange) (engi.Workspace, error)
	// Collect records the changes in the sandbox of a workspace as a revision. Without wake, it
	// does so only if the sandbox is awake.
	Collect(ctx context.Context, id engi.WorkspaceID, wake bool) error
}

const (
	maxHistory  = 1000 // maximum number of events of a history before it only takes the last ones
	maxModified = 1000 // maximum number of modified files in the result of a review
	retryPause  = time.Second
	longPause   = time.Hour
)

var bounds = Bounds{Workspace: 100, Owner: 1000}

// A Service manages workflows. It is safe for concurrent use.
type Service struct {
	opt     Options
	agents  Agents        // nil if agents are off
	changed chan struct{} // receives a value when there may be another deadline
}

// New returns a service. Deadlines have no effect before Run.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{opt: o, changed: make(chan struct{}, 1)}
}

// Run escalates workflows whose deadline has passed, and starts the agents whose turn it is, until ctx ends. Deadlines that
// passed before are first.
func (s *Service) Run(ctx context.Context, ready func()) error {
	ready()
	if s.agents != nil {
		var turns sync.WaitGroup
		defer turns.Wait()
		turns.Go(func() { s.runAgents(ctx) })
	}
	for ctx.Err() == nil {
		pause, err := s.expireDue(ctx)
		if err != nil && ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "escalate the workflows whose deadline has passed; it is retried", "error", err)
			pause = retryPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// expireDue escalates workflows whose deadline has passed, and returns the time until the next deadline.
func (s *Service) expireDue(ctx context.Context) (time.Duration, error) {
	for {
		now := time.Now()
		due, next, err := s.opt.Store.Due(ctx, now)
		if err != nil {
			return 0, err
		}
		if len(due) == 0 {
			if next.IsZero() {
				return longPause, nil
			}
			return min(next.Sub(now), longPause), nil
		}
		for _, id := range due {
			if err := s.expire(ctx, id); err != nil {
				return 0, err
			}
		}
	}
}

var errEarly = engi.Errorf(engi.Conflict, "the deadline has not passed")

// expire escalates a workflow if its deadline has passed.
func (s *Service) expire(ctx context.Context, id engi.WorkflowID) error {
	_, err := s.opt.Store.Change(engi.WithActor(ctx, ""), id, func(w *engi.Workflow, _ Tx) (engi.WorkflowEvent, error) {
		now := time.Now().UTC()
		if w.Deadline.IsZero() || w.Deadline.After(now) {
			return engi.WorkflowEvent{}, errEarly
		}
		return take(w, step{action: engi.ActExpire, roles: []engi.WorkflowRole{engi.RoleWorkNode}, reason: "the deadline has passed", now: now})
	})
	return engi.Ignore(err, engi.Conflict, engi.NotFound) // it was changed or deleted meanwhile
}

var workflowName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// Create implements [engi.Workflows].
func (s *Service) Create(ctx context.Context, spec engi.WorkflowSpec) (w engi.Workflow, err error) {
	defer engi.Annotate(&err, "create a workflow in workspace %.70s", spec.Workspace)
	f := spec.Faults()
	if spec.Name != "" && !workflowName.MatchString(spec.Name) {
		f.Addf("name", "%.70q is not a name; use 1 to 63 letters, digits and dashes", spec.Name)
	}
	if err := f.Err(); err != nil {
		return w, err
	}
	space, err := s.workspace(ctx, &spec)
	if err != nil {
		return w, err
	}
	if err := space.Allow(spec.Viewer, engi.RoleEditor); err != nil {
		return w, err
	}
	if err := s.checkAgents(spec, space); err != nil {
		return w, err
	}
	now, id := time.Now().UTC(), cmp.Or(spec.ID, engi.NewWorkflowID())
	w = engi.Workflow{
		ID: id, Owner: space.Owner, Workspace: space.ID, Name: cmp.Or(spec.Name, "workflow-"+strings.ToLower(string(id[4:12]))), Task: spec.Task, Criteria: slices.Clone(spec.Criteria),
		Creator: spec.Creator, Reviewer: spec.Reviewer, MaxRevisions: cmp.Or(spec.MaxRevisions, engi.DefaultWorkflowRounds), Limits: spec.Limits,
		Metadata: slices.Clone(spec.Metadata), Events: 1, Created: now,
	}
	enter(&w, engi.WorkflowCreation, false, now)
	role := engi.RoleWorkCreator
	if space.Allow(spec.Viewer, engi.RoleOwner) == nil {
		role = engi.RoleWorkOwner
	}
	first := engi.WorkflowEvent{Number: 1, Time: now, Actor: engi.ActorOf(ctx), Role: role, Action: engi.ActCreate, To: w.Stage, Reason: spec.Task}
	if err := s.opt.Store.Put(ctx, w, first, bounds); err != nil {
		return w, err
	}
	s.wake()
	return w, nil
}

// Templates implements [engi.Workflows].
func (s *Service) Templates() []engi.WorkflowTemplate { return slices.Clone(s.opt.Templates) }

// workspace returns the workspace of a new workflow. One that is made from a template is found again if the request is
// repeated, and the criteria of the template precede those of spec.
func (s *Service) workspace(ctx context.Context, spec *engi.WorkflowSpec) (x engi.Workspace, err error) {
	if spec.Template == "" {
		return s.opt.Workspaces.Get(ctx, spec.Viewer, spec.Workspace)
	}
	i := slices.IndexFunc(s.opt.Templates, func(t engi.WorkflowTemplate) bool { return t.Name == spec.Template })
	if i < 0 {
		return x, engi.Errorf(engi.NotFound, "there is no template %.70q of workflows", spec.Template).WithRemedy("'engi workflow templates' lists them")
	}
	t := s.opt.Templates[i]
	for _, c := range slices.Backward(t.Criteria) {
		if !slices.Contains(spec.Criteria, c) {
			spec.Criteria = slices.Insert(spec.Criteria, 0, c)
		}
	}
	if err := spec.Faults().Err(); err != nil {
		return x, err
	}
	x, err = s.opt.Workspaces.Create(ctx, engi.WorkspaceSpec{
		Owner: spec.Owner, Name: spec.Workspace, Files: t.Files, Services: t.Services, Idempotency: "workflow/" + t.Name + "/" + spec.Workspace,
	})
	if err == nil && x.Preview == (engi.WorkspacePreview{}) && t.Preview != x.Preview {
		x, err = s.opt.Workspaces.Change(ctx, x.Owner.Viewer(), string(x.ID), engi.WorkspaceChange{Preview: &t.Preview})
	}
	return x, err
}

// wake has Run look for another deadline.
func (s *Service) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Get implements [engi.Workflows].
func (s *Service) Get(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID) (w engi.Workflow, err error) {
	if w, err = s.opt.Store.Get(ctx, viewer, id); err != nil || w.Stage != engi.WorkflowApproved {
		return w, err
	}
	if err := s.opt.Workspaces.Collect(ctx, w.Workspace, false); err != nil {
		return w, err
	}
	return s.opt.Store.Get(ctx, viewer, id)
}

// List implements [engi.Workflows].
func (s *Service) List(ctx context.Context, viewer engi.Viewer, f engi.WorkflowFilter, p engi.Paging) ([]engi.Workflow, error) {
	filter := Filter{Stage: f.Stage}
	if f.Workspace != "" {
		space, err := s.opt.Workspaces.Get(ctx, viewer, f.Workspace)
		if err != nil {
			return nil, err
		}
		filter.Workspace = space.ID
	}
	return s.opt.Store.List(ctx, viewer, filter, p)
}

// History implements [engi.Workflows].
func (s *Service) History(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID, p engi.Paging) ([]engi.WorkflowEvent, error) {
	w, err := s.opt.Store.Get(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	return s.opt.Store.History(ctx, w.ID, p)
}

// Act implements [engi.Workflows].
func (s *Service) Act(ctx context.Context, a engi.WorkflowAct) (w engi.Workflow, err error) {
	defer engi.Annotate(&err, "%s workflow %.40s", a.Action, a.Workflow)
	review := isReview(a.Action)
	if !review && !slices.Contains([]engi.WorkflowAction{engi.ActSubmit, engi.ActCancel, engi.ActEscalate}, a.Action) {
		return w, engi.Errorf(engi.Invalid, "%.40q is not an action of a participant", a.Action)
	}
	if err := a.Faults().Err(); err != nil {
		return w, err
	}
	if w, err = s.opt.Store.Get(ctx, a.Viewer, a.Workflow); err != nil {
		return w, err
	}
	if err := s.expire(ctx, w.ID); err != nil { // Run may be late
		return w, err
	}
	if review || a.Action == engi.ActSubmit {
		if err := s.opt.Workspaces.Collect(ctx, w.Workspace, true); err != nil {
			return w, err
		}
	}
	played, err := s.playedBy(ctx, w.Owner, engi.ActorOf(ctx))
	if err != nil {
		return w, err
	}
	w, err = s.opt.Store.Change(ctx, w.ID, func(w *engi.Workflow, tx Tx) (engi.WorkflowEvent, error) {
		st, err := stepOf(ctx, *w, tx, a, played)
		if err != nil {
			return engi.WorkflowEvent{}, err
		}
		return take(w, st)
	})
	s.wake()
	return w, err
}

// stepOf returns the step that an act asks for. If the actor is a run of an agent, played is the agent as a participant.
func stepOf(ctx context.Context, w engi.Workflow, tx Tx, a engi.WorkflowAct, played string) (st step, err error) {
	space, err := tx.Workspace()
	if err != nil {
		return st, err
	}
	if err := space.Allow(a.Viewer, engi.RoleViewer); err != nil {
		return st, err // the viewer has lost the role
	}
	st = step{action: a.Action, actor: engi.ActorOf(ctx), reason: a.Reason, now: time.Now().UTC()}
	st.roles = rolesOf(w, space, a.Viewer, st.actor, played, a.ByModel)
	if st.head, err = tx.Content(0); err != nil || !isReview(a.Action) || w.Revision == 0 {
		return st, err
	}
	if st.seen, err = tx.Content(cmp.Or(a.Revision, w.Revision)); err != nil {
		return st, err
	}
	if st.makers, err = tx.Makers(w.Hash); err != nil {
		return st, err
	}
	st.review = &engi.ReviewResult{Grade: a.Grade, Feedback: a.Feedback, Suggestions: slices.Clone(a.Suggestions), Criteria: slices.Clone(a.Criteria)}
	st.review.ModifiedFiles, err = tx.ChangedBy(st.actor, w.Revision, maxModified)
	return st, err
}

// Delete implements [engi.Workflows].
func (s *Service) Delete(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID) (err error) {
	defer engi.Annotate(&err, "delete workflow %.40s", id)
	w, err := s.opt.Store.Get(ctx, viewer, id)
	if err != nil {
		return err
	}
	if !viewer.Sees(w.Owner) {
		return engi.Errorf(engi.Denied, "only the owner of workspace %s may delete it", w.Workspace).WithRemedy("cancel it instead, or ask the owner")
	}
	return s.opt.Store.Remove(ctx, w.ID)
}

// Wait implements [engi.Workflows].
func (s *Service) Wait(ctx context.Context, viewer engi.Viewer, id engi.WorkflowID, stages ...engi.WorkflowStage) (w engi.Workflow, err error) {
	stages = append(slices.Clone(stages), engi.WorkflowApproved, engi.WorkflowRejected)
	for {
		last, err := s.opt.Events.Last(ctx)
		if err != nil {
			return w, err
		}
		if w, err = s.Get(ctx, viewer, id); err != nil || slices.Contains(stages, w.Stage) {
			return w, err
		}
		for _, err := range s.opt.Events.Follow(ctx, w.Owner.Viewer(), engi.EventFilter{Subject: string(w.ID), After: last}) {
			if err != nil {
				return w, err
			}
			break
		}
	}
}
