package builtin

import (
	"context"
	"encoding/json"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/workflow"
)

// agent returns a function that lets an agent work in a sandbox.
func (s Services) agent(name string) func(context.Context, *workflow.Run) (any, error) {
	return func(ctx context.Context, r *workflow.Run) (any, error) {
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
		return s.runAgent(ctx, r, engi.RunSpec{Agent: name, Input: data.Prompt, Sandbox: id})
	}
}

// An answer is what came of an agent's work.
type agentOutput struct {
	Run     engi.RunID      `json:"run_id"`
	Text    string          `json:"text"`
	Output  json.RawMessage `json:"output,omitempty"`
	Stopped string          `json:"stopped,omitempty"` // the limit that ended it
}

// work lets an agent work: the run has a key of this run's, so that whoever
// comes after a crash finds it and waits for it.
func (s Services) runAgent(ctx context.Context, r *workflow.Run, spec engi.RunSpec) (any, error) {
	id, err := workflow.Step(ctx, r, "start", func(ctx context.Context) (engi.RunID, error) {
		if spec.Sandbox != "" {
			sandbox, err := s.Sandboxes.Get(ctx, r.Owner, spec.Sandbox)
			if err != nil {
				return "", err
			}
			if sandbox.State == engi.Stopped {
				return "", engi.Errorf(engi.NotFound, "sandbox %s has ended", sandbox.ID).WithRemedy("make one with %s", SandboxCreate)
			}
		}
		spec.Owner, spec.Idempotency = r.Owner, string(r.ID)+"/start"
		run, err := s.Agents.Start(ctx, spec)
		return run.ID, err
	})
	if err != nil {
		return nil, err
	}
	return workflow.Step(ctx, r, "wait", func(ctx context.Context) (agentOutput, error) { return s.waitForRun(ctx, r, id) })
}

// wait waits for the end of an agent's run, and ends it when this run is to
// end.
func (s Services) waitForRun(ctx context.Context, r *workflow.Run, id engi.RunID) (agentOutput, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-r.Cancelled():
			stop()
		case <-watching.Done():
		}
	}()
	defer func() { stop(); <-watched }()

	for e, err := range s.Agents.Watch(watching, r.Owner, id, 0) {
		switch {
		case watching.Err() != nil:
		case err != nil:
			return agentOutput{}, err
		case e.Kind == engi.RunEnd:
			return agentResult(*e.Run)
		}
	}
	select {
	case <-r.Cancelled():
	default:
		if ctx.Err() != context.DeadlineExceeded { // the node stops; the agent goes on in its next life
			return agentOutput{}, engi.Errorf(engi.Unavailable, "wait for agent run %s: %v", id, context.Cause(ctx))
		}
	}
	if err := s.Agents.Cancel(context.WithoutCancel(ctx), r.Owner, id); err != nil {
		return agentOutput{}, err
	}
	return agentOutput{}, workflow.Final(engi.Errorf(engi.Expired, "agent run %s was cancelled", id))
}

// result is what came of an agent's run. Another attempt would find the same
// run, so its errors are final.
func agentResult(run engi.Run) (agentOutput, error) {
	a := agentOutput{Run: run.ID, Text: run.Text, Output: run.Output}
	switch run.State {
	case engi.RunDone:
		return a, nil
	case engi.RunStopped:
		a.Stopped = run.Reason
		return a, nil
	case engi.RunCancelled:
		return a, workflow.Final(engi.Errorf(engi.Expired, "agent run %s was cancelled", run.ID))
	}
	if run.Error != nil {
		return a, workflow.Final(engi.Errorf(run.Error.Kind, "agent run %s: %w", run.ID, run.Error).WithRemedy("%s", engi.RemedyOf(run.Error)))
	}
	return a, workflow.Final(engi.Errorf(engi.Internal, "agent run %s is %s", run.ID, run.State))
}
