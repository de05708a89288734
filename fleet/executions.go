package fleet

import (
	"context"
	"io"
	"iter"

	"github.com/engi-dev/engi"
)

// executions is the Manager as engi.Executions.
type executions struct{ m *Manager }

var _ engi.Executions = executions{}

func (e executions) Start(ctx context.Context, spec engi.ExecutionSpec) (engi.Execution, error) {
	return engi.Execution{}, errNotRunning
}

func (e executions) Get(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	return engi.Execution{}, errNotRunning
}

func (e executions) Wait(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	return engi.Execution{}, errNotRunning
}

func (e executions) Watch(ctx context.Context, owner engi.Owner, id engi.ExecutionID, from int64) iter.Seq2[engi.ExecutionEvent, error] {
	return func(yield func(engi.ExecutionEvent, error) bool) { yield(engi.ExecutionEvent{}, errNotRunning) }
}

func (e executions) Cancel(ctx context.Context, owner engi.Owner, id engi.ExecutionID) error {
	return errNotRunning
}

func (e executions) List(ctx context.Context, owner engi.Owner, f engi.ExecutionFilter) ([]engi.Execution, error) {
	return nil, errNotRunning
}

func (e executions) Artifact(ctx context.Context, owner engi.Owner, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	return nil, errNotRunning
}
