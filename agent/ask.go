package agent

import (
	"context"
	"encoding/json"
	"reflect"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
)

// Ask puts an agent to work and returns its answer as a T: the schema of T, as
// [llm.ShapeOf] makes it, goes to the model instead of spec.Output, and the
// answer is asked for again until it keeps to it. partial, if not nil, gets
// the answer as far as it is known while it is written. When ctx ends or
// partial fails, the run is cancelled. Beside the kinds of [engi.Agents] it
// reports Exhausted for a run that a limit stopped, and what a failed run
// failed for.
func Ask[T any](ctx context.Context, agents engi.Agents, spec engi.RunSpec, partial func(T) error) (v T, r engi.Run, err error) {
	shape, err := llm.SchemaOf(reflect.TypeFor[T]())
	if err != nil {
		return v, r, err
	}
	spec.Output = shape.JSON()
	if r, err = agents.Start(ctx, spec); err != nil {
		return v, r, err
	}
	owner, id := spec.Owner, r.ID
	defer func() {
		if err != nil && r.State == engi.RunRunning {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			_ = agents.Cancel(stop, owner, id)
			cancel()
		}
	}()
	for e, err := range agents.Watch(ctx, owner, id, 0) {
		switch {
		case err != nil:
			return v, r, err
		case e.Kind == engi.RunPartial && partial != nil:
			var part T
			if json.Unmarshal(e.Object, &part) != nil {
				continue // half a value may not fit yet
			}
			if err := partial(part); err != nil {
				return v, r, err
			}
		case e.Kind == engi.RunEnd:
			r = *e.Run
			v, err := answer[T](r)
			return v, r, err
		}
	}
	return v, r, engi.Errorf(engi.Internal, "run %s has no end", id)
}

func answer[T any](r engi.Run) (v T, err error) {
	switch r.State {
	case engi.RunFailed:
		return v, r.Error
	case engi.RunCancelled:
		return v, engi.Errorf(engi.Expired, "run %s was cancelled", r.ID)
	case engi.RunStopped:
		return v, engi.Errorf(engi.Exhausted, "run %s was stopped by a limit: %s", r.ID, r.Reason).WithRemedy("allow the agent more, or ask for less")
	}
	if err := json.Unmarshal(r.Output, &v); err != nil {
		return v, engi.Errorf(engi.Unavailable, "the answer of run %s does not fit: %v", r.ID, err)
	}
	return v, nil
}
