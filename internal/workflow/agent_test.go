package workflow_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workflow"
)

// A team has two agents, maker and judge, whose runs do nothing until the test ends them.
type team struct {
	events engi.EventLog

	mu    sync.Mutex
	fails error // of Start; nil for none
	specs map[engi.RunID]engi.RunSpec
	runs  map[string]*engi.Run // by idempotency key
	order []*engi.Run
}

func newTeam(db *store.DB) *team {
	return &team{events: store.Events(db), specs: map[engi.RunID]engi.RunSpec{}, runs: map[string]*engi.Run{}}
}

func (*team) Agents() []engi.AgentSpec { return []engi.AgentSpec{{Name: "maker"}, {Name: "judge"}} }

func (m *team) Start(_ context.Context, spec engi.RunSpec) (engi.Run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return engi.Run{}, m.fails
	}
	if r := m.runs[spec.Idempotency]; r != nil {
		return *r, nil
	}
	r := &engi.Run{ID: engi.NewRunID(), Owner: spec.Owner, Agent: spec.Agent, State: engi.RunRunning}
	m.runs[spec.Idempotency], m.specs[r.ID], m.order = r, spec, append(m.order, r)
	return *r, nil
}

func (m *team) Get(_ context.Context, viewer engi.Viewer, id engi.RunID) (engi.Run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.order {
		if r.ID == id && viewer.Sees(r.Owner) {
			return *r, nil
		}
	}
	return engi.Run{}, engi.Errorf(engi.NotFound, "there is no such run")
}

func (m *team) Cancel(ctx context.Context, _ engi.Viewer, id engi.RunID) error {
	return m.end(ctx, id, engi.RunCancelled, "")
}

// end ends a run that has not ended.
func (m *team) end(ctx context.Context, id engi.RunID, state engi.RunState, text string) error {
	m.mu.Lock()
	var ended bool
	for _, r := range m.order {
		if r.ID == id && r.Ended.IsZero() {
			r.State, r.Text, r.Ended, ended = state, text, time.Now(), true
		}
	}
	m.mu.Unlock()
	if !ended {
		return nil
	}
	_, err := m.events.Append(ctx, engi.EventSpec{Owner: "ann", Subject: string(id), Type: engi.EventRunEnded, Data: json.RawMessage("{}")})
	return err
}

func (m *team) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = err
}

// turn waits until everything is done, and returns the last run, which must be the n-th and one of an agent.
func (n *node) turn(count int, agent string) (engi.Run, engi.RunSpec) {
	n.Helper()
	synctest.Wait()
	n.team.mu.Lock()
	defer n.team.mu.Unlock()
	if len(n.team.order) != count || n.team.order[count-1].Agent != agent {
		n.Fatalf("there are %d runs, want %d, the last of %s", len(n.team.order), count, agent)
	}
	r := *n.team.order[count-1]
	return r, n.team.specs[r.ID]
}

func (n *node) end(r engi.Run, text string) {
	n.Helper()
	if err := n.team.end(n.Context(), r.ID, engi.RunDone, text); err != nil {
		n.Fatal(err)
	}
	synctest.Wait()
}

func withTeam(t *testing.T) *node {
	n := newNode(t)
	n.stop()
	n.team = newTeam(n.db)
	n.start()
	return n
}

var agents = engi.WorkflowSpec{Task: "a shop", Creator: "agent:maker", Reviewer: "agent:judge"}

// TestAgents leads a workflow of two agents over a revision to an approval, with a restart in each turn.
func TestAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := withTeam(t)
		defer func() { n.stop() }()
		restart := func() {
			n.stop()
			n.start()
			synctest.Wait()
		}
		w := n.create(agents)
		first, spec := n.turn(1, "maker")
		if spec.Owner != "ann" || spec.Workspace != string(n.space.ID) || spec.Reviews || spec.Context[0].Text != "a shop" || !strings.Contains(spec.System, "submit_for_review") {
			t.Errorf("%+v", spec)
		}
		restart()
		n.turn(1, "maker")
		n.write(string(first.ID), "one")
		// Nobody else is the creator, not even a run of the other agent; the owner is the owner.
		if _, err := n.s.Act(engi.WithActor(t.Context(), "key_bob"), engi.WorkflowAct{Viewer: "ann", Workflow: w.ID, Action: engi.ActSubmit, ByModel: true}); !engi.Is(err, engi.Denied) {
			t.Errorf("another's submission: %v", err)
		}
		n.act(w.ID, string(first.ID), "ann", engi.WorkflowAct{Action: engi.ActSubmit, Reason: "done", ByModel: true})
		review, spec := n.turn(2, "judge")
		if !spec.Reviews || spec.Context[3].Text != "done" || !strings.Contains(spec.System, "submit_review") {
			t.Errorf("%+v", spec)
		}
		n.end(first, "I have submitted it")
		restart()
		n.turn(2, "judge")
		for actor, kind := range map[string]engi.Kind{string(first.ID): engi.Denied, string(engi.NewRunID()): engi.Denied, "key_ann": engi.Denied} {
			if _, err := n.s.Act(engi.WithActor(t.Context(), actor), engi.WorkflowAct{Viewer: "ann", Workflow: w.ID, Action: engi.ActApprove, Revision: 1}); !engi.Is(err, kind) {
				t.Errorf("an approval by %s: %v", actor, err)
			}
		}
		n.act(w.ID, string(review.ID), "ann", engi.WorkflowAct{Action: engi.ActSendBack, Feedback: "too small", Suggestions: []string{"more"}, ByModel: true})
		again, spec := n.turn(3, "maker")
		if got := spec.Context[2].Text + "/" + spec.Context[4].Text; got != "too small/more" || again.ID == first.ID {
			t.Errorf("%s: %+v", got, spec)
		}
		n.end(review, "")
		n.write(string(again.ID), "two")
		n.act(w.ID, string(again.ID), "ann", engi.WorkflowAct{Action: engi.ActSubmit, ByModel: true})
		second, _ := n.turn(4, "judge")
		n.act(w.ID, string(second.ID), "ann", engi.WorkflowAct{Action: engi.ActApprove, Revision: 2, Grade: "A", ByModel: true})
		n.end(again, "")
		n.end(second, "")
		restart()
		n.turn(4, "judge")
		n.is(w.ID, engi.WorkflowApproved, false)
		// What is approved and then changes has to be looked at again.
		n.write("key_ann", "three")
		_, spec = n.turn(5, "maker")
		if !strings.Contains(spec.Input, "was approved and then changed") {
			t.Errorf("%+v", spec)
		}
	})
}

// TestAgentsThatDoNotAct checks that the owner decides when an agent ends without its act, or cannot start for good.
func TestAgentsThatDoNotAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := withTeam(t)
		defer func() { n.stop() }()
		w := n.create(agents)
		r, _ := n.turn(1, "maker")
		n.end(r, "I do not want to")
		n.is(w.ID, engi.WorkflowCreation, true)
		history, err := n.s.History(t.Context(), "ann", w.ID, engi.Paging{})
		if last := history[len(history)-1]; err != nil || last.Role != engi.RoleWorkNode || !strings.Contains(last.Reason, "I do not want to") {
			t.Errorf("%+v %v", last, err)
		}
		// The owner gives it back: the agent gets another turn.
		n.act(w.ID, "key_ann", "ann", engi.WorkflowAct{Action: engi.ActSendBack})
		r, _ = n.turn(2, "maker")
		// Whoever cancels the workflow cancels the run.
		n.act(w.ID, "key_ann", "ann", engi.WorkflowAct{Action: engi.ActCancel})
		synctest.Wait()
		if r, err = n.team.Get(t.Context(), "ann", r.ID); err != nil || r.State != engi.RunCancelled {
			t.Errorf("%+v %v", r, err)
		}

		n.team.fail(engi.Errorf(engi.Exhausted, "too many runs"))
		w = n.create(agents)
		synctest.Wait()
		time.Sleep(time.Minute)
		n.is(w.ID, engi.WorkflowCreation, false)
		n.team.fail(nil)
		time.Sleep(time.Minute)
		n.turn(3, "maker")
		n.team.fail(engi.Errorf(engi.Invalid, "the model is gone"))
		w = n.create(agents)
		synctest.Wait()
		n.is(w.ID, engi.WorkflowCreation, true)
	})
}

func TestWhoMayHaveAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := withTeam(t)
		defer n.stop()
		if _, err := n.s.Create(t.Context(), engi.WorkflowSpec{Viewer: "ann", Workspace: "shop", Creator: "agent:nobody"}); !engi.Is(err, engi.NotFound) || engi.RemedyOf(err) == "" {
			t.Errorf("an agent that is not there: %v", err)
		}
		without := workflow.New(workflow.Options{Store: store.Workflows(n.db), Workspaces: spaces{store.Workspaces(n.db)}, Events: store.Events(n.db)})
		if _, err := without.Create(t.Context(), engi.WorkflowSpec{Viewer: "ann", Workspace: "shop", Reviewer: "agent:judge"}); !engi.Is(err, engi.Unsupported) {
			t.Errorf("without agents: %v", err)
		}
	})
}
