package apitest

import (
	"context"
	"encoding/json"
	"iter"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Agents is a fake with one agent, echo. Its runs call one tool and answer with
// their input; with the input "wait" they run until they are cancelled. It is
// safe for concurrent use.
type Agents struct {
	mu  sync.Mutex
	all []*agentRun
}

type agentRun struct {
	engi.Run
	input string
	spec  engi.RunSpec // spec that the caller passed
	done  chan struct{}
}

var _ engi.Agents = (*Agents)(nil)

// Agents implements engi.Agents.
func (a *Agents) Agents() []engi.AgentSpec {
	return []engi.AgentSpec{{Name: "echo", Description: "says it again", Model: "demo:script", Tools: []string{"*"}, Steps: 10, Output: json.RawMessage(`{"type":"string"}`)}}
}

// Servers implements engi.ToolServers.
func (a *Agents) Servers() []engi.ToolServer {
	return []engi.ToolServer{{Name: "search", Kind: engi.ToolServerURL, State: engi.ToolServerReady, Tools: []string{"search_find"}, Checked: time.Unix(1_800_000_000, 0).UTC()}}
}

// Start implements engi.Agents.
func (a *Agents) Start(_ context.Context, spec engi.RunSpec) (engi.Run, error) {
	if spec.Agent != "" && spec.Agent != "echo" {
		return engi.Run{}, engi.Errorf(engi.NotFound, "there is no agent %q", spec.Agent)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.all {
		if spec.Idempotency == "" || r.spec.Idempotency != spec.Idempotency || r.Owner != spec.Owner {
			continue
		}
		if !reflect.DeepEqual(r.spec, spec) {
			return engi.Run{}, errRepeated
		}
		return r.Run, nil
	}
	now := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	conversation := spec.Conversation
	if conversation == "" {
		conversation = engi.NewConversationID()
	}
	r := &agentRun{input: spec.Input, spec: spec, done: make(chan struct{}), Run: engi.Run{
		ID: engi.NewRunID(), Owner: spec.Owner, Agent: "echo", Model: "demo:script", Conversation: conversation, Sandbox: spec.Sandbox, Session: spec.Session, Workspace: spec.Workspace,
		State: engi.RunRunning, Created: now, Note: spec.Note,
	}}
	if spec.Input != "wait" {
		r.State, r.Text, r.Steps, r.Ended = engi.RunDone, spec.Input, 2, now.Add(time.Second)
		r.Tokens = engi.Tokens{Input: 10, Output: 5, Cost: 1500, Calls: 2}
		close(r.done)
	}
	a.all = append([]*agentRun{r}, a.all...)
	return r.Run, nil
}

func (a *Agents) find(viewer engi.Viewer, id engi.RunID) (*agentRun, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.all {
		if r.ID == id && viewer.Sees(r.Owner) {
			return r, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no such run")
}

// Get implements engi.Agents.
func (a *Agents) Get(_ context.Context, viewer engi.Viewer, id engi.RunID) (engi.Run, error) {
	r, err := a.find(viewer, id)
	if err != nil {
		return engi.Run{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return r.Run, nil
}

// List implements engi.Agents.
func (a *Agents) List(_ context.Context, viewer engi.Viewer, limit int) (all []engi.Run, _ error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.all {
		if viewer.Sees(r.Owner) && len(all) < limit {
			all = append(all, r.Run)
		}
	}
	return all, nil
}

func call() engi.ToolCall {
	return engi.ToolCall{ID: "c1", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hi"}`}
}

// Messages implements engi.Agents.
func (a *Agents) Messages(_ context.Context, viewer engi.Viewer, id engi.RunID) ([]engi.Message, error) {
	r, err := a.find(viewer, id)
	if err != nil {
		return nil, err
	}
	return []engi.Message{
		{Role: engi.RoleUser, Text: r.input, Images: []engi.Image{{MediaType: "image/png", Data: []byte("\x89PNG")}}},
		{Role: engi.RoleAssistant, Thought: "hm", Calls: []engi.ToolCall{call()}},
		{Role: engi.RoleTool, Results: []engi.ToolResult{{Call: "c1", Name: "execute_code", Text: "hi"}}},
		{Role: engi.RoleAssistant, Text: r.input},
	}, nil
}

// Watch implements engi.Agents.
func (a *Agents) Watch(ctx context.Context, viewer engi.Viewer, id engi.RunID, seq int64) iter.Seq2[engi.RunUpdate, error] {
	return func(yield func(engi.RunUpdate, error) bool) {
		for {
			events, err := a.events(ctx, viewer, id, seq)
			if err != nil {
				yield(engi.RunUpdate{}, err)
				return
			}
			if len(events) == 0 {
				return
			}
			for _, e := range events {
				if seq = e.Seq; !yield(e, nil) || e.Kind == engi.RunEnd {
					return
				}
			}
		}
	}
}

// events returns the events after seq, and waits until there is one.
func (a *Agents) events(ctx context.Context, viewer engi.Viewer, id engi.RunID, seq int64) ([]engi.RunUpdate, error) {
	r, err := a.find(viewer, id)
	if err != nil {
		return nil, err
	}
	c := call()
	named := &engi.ToolCall{ID: c.ID, Name: c.Name}
	all := []engi.RunUpdate{
		{Kind: engi.RunThought, Step: 1, Text: "hm"}, {Kind: engi.RunWaiting, Step: 1, Call: &c}, {Kind: engi.RunCall, Step: 1, Call: &c}, {Kind: engi.RunOutput, Step: 1, Stream: engi.Stdout, Text: "hi", Call: named},
		{Kind: engi.RunResult, Step: 1, Call: named, Result: &engi.ToolResult{Call: "c1", Name: "execute_code", Text: "hi"}},
		{Kind: engi.RunText, Step: 2, Text: r.input}, {Kind: engi.RunReset, Step: 2}, {Kind: engi.RunText, Step: 2, Text: r.input}, {Kind: engi.RunPartial, Step: 2, Object: json.RawMessage(`{"a":1}`)},
	}
	if seq >= int64(len(all)) {
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, engi.Errorf(engi.Expired, "watch run %s: %v", id, context.Cause(ctx))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.State != engi.RunRunning {
		all = append(all, engi.RunUpdate{Kind: engi.RunEnd, Step: 2, Run: new(r.Run)})
	}
	for i := range all {
		all[i].Seq, all[i].Time = int64(i+1), r.Created
	}
	return all[min(int(seq), len(all)):], nil
}

// FullResult implements engi.Agents.
func (a *Agents) FullResult(_ context.Context, viewer engi.Viewer, id engi.RunID, call string) ([]byte, error) {
	if _, err := a.find(viewer, id); err != nil {
		return nil, err
	}
	if call != "c1" {
		return nil, engi.Errorf(engi.NotFound, "no result of call %q is kept", call)
	}
	return []byte("hi"), nil
}

// Cancel implements engi.Agents.
func (a *Agents) Cancel(_ context.Context, viewer engi.Viewer, id engi.RunID) error {
	r, err := a.find(viewer, id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.State == engi.RunRunning {
		r.State, r.Ended = engi.RunCancelled, r.Created.Add(time.Second)
		close(r.done)
	}
	return nil
}

// Decide implements engi.CallDecider. The call of a run waits as long as the run is running.
func (a *Agents) Decide(_ context.Context, viewer engi.Viewer, id engi.RunID, call string, _ bool, _ string) error {
	r, err := a.find(viewer, id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if call != "c1" || r.State != engi.RunRunning {
		return engi.Errorf(engi.Conflict, "it does not wait for a decision").WithRemedy("look at the run")
	}
	return nil
}

// Delete implements engi.RunDeleter.
func (a *Agents) Delete(ctx context.Context, viewer engi.Viewer, id engi.RunID) error {
	if err := a.Cancel(ctx, viewer, id); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = slices.DeleteFunc(a.all, func(r *agentRun) bool { return r.ID == id })
	return nil
}

// embedder is a fake whose vectors contain only the length of the text.
type embedder struct{}

func (embedder) Name() string { return "demo:lengths" }

func (embedder) Embed(_ context.Context, _ engi.Owner, texts []string) (all [][]float32, _ error) {
	for _, t := range texts {
		all = append(all, []float32{float32(len(t)), 0.5})
	}
	return all, nil
}
