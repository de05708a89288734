// Package memory is a fake engine of durable functions for tests. It remembers
// the results of steps for its lifetime.
package memory

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// An Engine implements [function.Engine]. Run may be called again after it has
// returned, as a new process would. The zero value is ready to use.
type Engine struct {
	mu    sync.Mutex
	tasks map[engi.FunctionRunID]*task
	start func(*task) // nil unless Run is active
}

// A task is a run with the results of its steps.
type task struct {
	id   engi.FunctionRunID
	wake chan struct{}
	mu   sync.Mutex
	done map[string]json.RawMessage
}

var _ function.Engine = (*Engine)(nil)

// Start implements [function.Engine].
func (e *Engine) Start(_ context.Context, id engi.FunctionRunID, _ string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.start == nil {
		return engi.Errorf(engi.Unavailable, "the engine is not running")
	}
	if e.tasks[id] != nil {
		return nil
	}
	t := &task{id: id, wake: make(chan struct{}, 1), done: map[string]json.RawMessage{}}
	if e.tasks == nil {
		e.tasks = map[engi.FunctionRunID]*task{}
	}
	e.tasks[id] = t
	e.start(t)
	return nil
}

// Wake implements [function.Engine].
func (e *Engine) Wake(_ context.Context, id engi.FunctionRunID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tasks[id]; t != nil {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// Run implements [function.Engine].
func (e *Engine) Run(ctx context.Context, x function.Executor, ready func()) error {
	var wg sync.WaitGroup
	e.mu.Lock()
	e.start = func(t *task) {
		wg.Go(func() {
			if t.execute(ctx, x) {
				e.mu.Lock()
				defer e.mu.Unlock()
				delete(e.tasks, t.id)
			}
		})
	}
	for _, t := range e.tasks {
		e.start(t)
	}
	e.mu.Unlock()
	ready()
	<-ctx.Done()
	e.mu.Lock()
	e.start = nil
	e.mu.Unlock()
	wg.Wait()
	return nil
}

// execute executes the run and reports whether it has ended.
func (t *task) execute(ctx context.Context, x function.Executor) bool {
	for ctx.Err() == nil {
		out := x.Execute(ctx, t.id, t)
		switch out.Next {
		case function.Ended:
			return true
		case function.Stopped:
			return false
		}
		var again <-chan time.Time
		if out.Next != function.Parked {
			again = time.After(out.After)
		}
		select {
		case <-ctx.Done():
		case <-t.wake:
		case <-again:
		}
	}
	return false
}

// Step implements [function.Stepper].
func (t *task) Step(ctx context.Context, name string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	t.mu.Lock()
	raw, ok := t.done[name]
	t.mu.Unlock()
	if ok {
		return raw, nil
	}
	raw, err := fn(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done[name] = raw
	return raw, nil
}
