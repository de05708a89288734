package agent

import (
	"context"
	"encoding/json"
	"reflect"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// Ask runs an agent and returns its answer as a T. The schema of T, see
// [llm.SchemaOf], replaces spec.Output; the model is asked again until its
// answer conforms. partial, if not nil, is called with the answer as far as it
// has been written. When ctx ends or partial returns an error, the run is
// cancelled. In addition to the errors of [engi.Agents], Ask reports Exhausted
// for a run that a limit stopped, and the error of a failed run.
func Ask[T any](ctx context.Context, agents engi.Agents, spec engi.RunSpec, partial func(T) error) (v T, r engi.Run, err error) {
	schema, err := llm.SchemaOf(reflect.TypeFor[T]())
	if err != nil {
		return v, r, err
	}
	spec.Output = schema.JSON()
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
				continue // an incomplete value may not fit
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
	return v, r, engi.Errorf(engi.Internal, "the events of run %s ended without its end", id)
}

func answer[T any](r engi.Run) (v T, err error) {
	switch r.State {
	case engi.RunFailed:
		return v, r.Error
	case engi.RunCancelled:
		return v, engi.Errorf(engi.Expired, "run %s was cancelled", r.ID)
	case engi.RunStopped:
		return v, engi.Errorf(engi.Exhausted, "run %s was stopped by a limit: %s", r.ID, r.Reason).WithRemedy("raise the agent's limit, or ask for less")
	}
	if err := json.Unmarshal(r.Output, &v); err != nil {
		return v, engi.Errorf(engi.Unavailable, "the answer of run %s does not fit the type: %v", r.ID, err)
	}
	return v, nil
}
