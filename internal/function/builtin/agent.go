package builtin

import (
	"context"
	"encoding/json"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// agent returns a function that runs an agent in a sandbox.
func (s Services) agent(name string) func(context.Context, *function.Run) (any, error) {
	return func(ctx context.Context, r *function.Run) (any, error) {
		var data struct {
			Prompt  string `json:"prompt"`
			Sandbox string `json:"sandbox_id"`
		}
		if err := r.Data(&data); err != nil {
			return nil, err
		}
		id, err := engi.ParseSandboxID(data.Sandbox)
		if err != nil {
			return nil, err
		}
		return s.runAgent(ctx, r, engi.RunSpec{Agent: name, Input: data.Prompt, Sandbox: id, Scopes: agentScopes()})
	}
}

// agentOutput is the output of a function that runs an agent.
type agentOutput struct {
	Run     engi.RunID      `json:"run_id"`
	Text    string          `json:"text"`
	Output  json.RawMessage `json:"output,omitempty"`
	Stopped string          `json:"stopped,omitempty"` // limit that stopped the agent
}

// runAgent runs an agent. The agent's run has an idempotency key derived from r,
// so that after a crash it is found and waited for.
func (s Services) runAgent(ctx context.Context, r *function.Run, spec engi.RunSpec) (any, error) {
	id, err := function.Step(ctx, r, "start", func(ctx context.Context) (engi.RunID, error) {
		if spec.Sandbox != "" {
			sandbox, err := s.Sandboxes.Get(ctx, r.Owner.Reach(), spec.Sandbox)
			if err != nil {
				return "", err
			}
			if sandbox.State == engi.Stopped {
				return "", engi.Errorf(engi.NotFound, "sandbox %s has ended", sandbox.ID).WithRemedy("create one with %s", SandboxCreate)
			}
		}
		spec.Owner, spec.Idempotency = r.Owner, string(r.ID)+"/start"
		run, err := s.Agents.Start(ctx, spec)
		return run.ID, err
	})
	if err != nil {
		return nil, err
	}
	return waitOrCancel(ctx, r, "wait", func(ctx context.Context) (agentOutput, error) { return s.waitForRun(ctx, r, id) },
		func(ctx context.Context) error { return s.Agents.Cancel(ctx, r.Owner.Viewer(), id) })
}

// waitOrCancel waits in a step for the end of work that an earlier step has started. It cancels
// the work if r is cancelled or times out, even before the step begins.
func waitOrCancel[T any](ctx context.Context, r *function.Run, step string, wait func(context.Context) (T, error), cancel func(context.Context) error) (T, error) {
	out, err := function.Step(ctx, r, step, wait)
	if err != nil && giveUp(ctx, r) {
		if err := cancel(context.WithoutCancel(ctx)); err != nil {
			return out, err
		}
	}
	return out, err
}

// waitForRun waits for the end of an agent's run.
func (s Services) waitForRun(ctx context.Context, r *function.Run, id engi.RunID) (agentOutput, error) {
	watching, stop := untilCancelled(ctx, r)
	defer stop()
	for e, err := range s.Agents.Watch(watching, r.Owner.Viewer(), id, 0) {
		switch {
		case watching.Err() != nil:
		case err != nil:
			return agentOutput{}, err
		case e.Kind == engi.RunEnd:
			return agentResult(*e.Run)
		}
	}
	if !giveUp(ctx, r) { // the node is stopping: the agent continues in the next process
		return agentOutput{}, engi.Errorf(engi.Unavailable, "wait for agent run %s: %v", id, context.Cause(ctx))
	}
	return agentOutput{}, function.Final(engi.Errorf(engi.Expired, "agent run %s was cancelled", id))
}

// agentResult returns the outcome of an agent's run. Its errors are final, since
// another attempt would find the same run.
func agentResult(run engi.Run) (agentOutput, error) {
	a := agentOutput{Run: run.ID, Text: run.Text, Output: run.Output}
	switch run.State {
	case engi.RunDone:
		return a, nil
	case engi.RunStopped:
		a.Stopped = run.Reason
		return a, nil
	case engi.RunCancelled:
		return a, function.Final(engi.Errorf(engi.Expired, "agent run %s was cancelled", run.ID))
	}
	if run.Error != nil {
		return a, function.Final(engi.Errorf(run.Error.Kind, "agent run %s: %w", run.ID, run.Error).WithRemedy("%s", engi.RemedyOf(run.Error)))
	}
	return a, function.Final(engi.Errorf(engi.Internal, "agent run %s is %s", run.ID, run.State))
}

// untilCancelled returns a context that ends with ctx or when r is cancelled. The
// caller calls stop.
func untilCancelled(ctx context.Context, r *function.Run) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-r.Cancelled():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// giveUp reports whether r was cancelled or has timed out.
func giveUp(ctx context.Context, r *function.Run) bool {
	select {
	case <-r.Cancelled():
		return true
	default:
		return ctx.Err() == context.DeadlineExceeded
	}
}
