// Package functiontest tests implementations of [function.Engine], by running a
// [function.Runner] on them. Its Runner is also for tests of functions.
package functiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/store"
)

// A Runner is a function.Runner with an engine and a database. It runs until the
// test ends, or Stop is called.
type Runner struct {
	*function.Runner
	t     testing.TB
	db    *store.DB
	open  func() function.Engine
	funcs []function.Function
	stop  func()
}

// Open runs a Runner with functions. Each engine that open returns must have the
// records of the one before.
func Open(t testing.TB, open func() function.Engine, functions ...function.Function) *Runner {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &Runner{t: t, db: db, open: open, funcs: functions}
	r.Start()
	return r
}

// Start starts the runner again after Stop.
func (r *Runner) Start() {
	r.t.Helper()
	runner, err := function.New(function.Options{Functions: r.funcs, Store: store.Functions(r.db), Events: store.Events(r.db), Engine: r.open()})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	there, gone := make(chan struct{}), make(chan error, 1)
	go func() { gone <- runner.Serve(ctx, func() { close(there) }) }()
	select {
	case <-there:
	case err := <-gone:
		cancel()
		r.t.Fatalf("the runner did not start: %v", err)
	}
	r.Runner = runner
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-gone; err != nil {
			r.t.Errorf("the runner ended with %v", err)
		}
	})
	r.t.Cleanup(r.stop)
}

// Stop stops the runner and its engine; runs continue after Start.
func (r *Runner) Stop() { r.stop() }

// Send sends an event and returns the ID of the only run it starts.
func (r *Runner) Send(owner engi.Owner, name, data string) engi.FunctionRunID {
	r.t.Helper()
	_, runs, err := r.Runner.Send(r.t.Context(), engi.EventSpec{Owner: owner, Type: name, Data: json.RawMessage(data)})
	if err != nil {
		r.t.Fatal(err)
	}
	if len(runs) != 1 {
		r.t.Fatalf("event %s has started %d runs, want 1", name, len(runs))
	}
	return runs[0]
}

// Log returns the event log.
func (r *Runner) Log() engi.EventLog { return store.Events(r.db) }

// Await waits until a run is in one of the states or has ended.
func (r *Runner) Await(id engi.FunctionRunID, states ...engi.FunctionState) engi.FunctionRun {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	for {
		run, err := r.Run(ctx, engi.Everyone, id)
		if err != nil {
			r.t.Fatal(err)
		}
		if !run.Ended.IsZero() || slices.Contains(states, run.State) {
			return run
		}
		if clock.Sleep(ctx, 2*time.Millisecond) != nil {
			r.t.Fatalf("run %s is still %s: %+v", id, run.State, run)
		}
	}
}

// Quick is a backoff for tests.
var Quick = function.Backoff{First: 5 * time.Millisecond, Max: 20 * time.Millisecond}

// On returns a function that is bound to the event of its name.
func On(name string, retries int, run func(ctx context.Context, r *function.Run) (any, error)) function.Function {
	return function.Function{Function: engi.Function{Name: name, Event: name, Retries: retries}, Backoff: Quick, Run: run}
}

// Promises tests an engine. For each test, factory returns a function that opens
// engines, each of which must have the records of the one before.
func Promises(t *testing.T, factory func(t *testing.T) (open func() function.Engine)) {
	tests := map[string]func(*testing.T, func() function.Engine){
		"completed steps are not repeated": stepsOnce,
		"failed attempts are retried":      retries,
		"final errors are not retried":     finals,
		"panics are errors":                panics,
		"names of steps are unique":        names,
		"limits are enforced":              limits,
		"a running run is cancelled":       cancelRunning,
		"a waiting run is cancelled":       cancelWaiting,
		"a queued run is cancelled":        cancelQueued,
		"timeouts are enforced":            timeouts,
		"keys are used once":               keys,
		"functions send events once":       sends,
		"active runs survive a restart":    restart,
		"waiting runs survive a restart":   restartWaiting,
		"lost starts are repeated":         lostStart,
		"runs that wait have no slot":      slotsGivenBack,
		"runs sleep":                       sleeps,
		"waits survive a restart":          waitsSurvive,
		"no moment of an event is missed":  anyMoment,
		"events are awaited in order":      inOrder,
		"deadlines of waits":               deadlines,
		"a run that waits is cancelled":    cancelParked,
		"owners do not share events":       ownersApart,
		"found events are remembered":      foundIsKept,
		"dropped events are reported":      droppedIsSaid,
		"bad waits are refused":            badWaits,
		"many runs wait":                   func(t *testing.T, open func() function.Engine) { ManyWaits(t, open, 50) },
		"lost wakes are repeated":          lostWake,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, factory(t)) })
	}
}

func wantState(t *testing.T, r engi.FunctionRun, state engi.FunctionState, attempts int) {
	t.Helper()
	if r.State != state || r.Attempt != attempts {
		t.Fatalf("run is %s after %d attempts, want %s after %d (error %v)", r.State, r.Attempt, state, attempts, r.Error)
	}
}

// calls counts calls by name.
type calls struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *calls) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
	return c.n[name]
}

func (c *calls) want(t *testing.T, name string, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[name] != n {
		t.Errorf("%s was called %d times, want %d", name, c.n[name], n)
	}
}

func stepsOnce(t *testing.T, open func() function.Engine) {
	var c calls
	fix := Open(t, open, On("f", 5, func(ctx context.Context, r *function.Run) (any, error) {
		sum := 0
		for i := range 3 {
			n, err := function.Step(ctx, r, fmt.Sprintf("step %d", i), func(context.Context) (int, error) { return c.add(fmt.Sprint(i)), nil })
			if err != nil {
				return nil, err
			}
			sum += n
		}
		last, err := function.Step(ctx, r, "last", func(context.Context) (string, error) {
			if c.add("last") < 3 {
				return "", engi.Errorf(engi.Unavailable, "not yet")
			}
			return "x", nil
		})
		return map[string]any{"sum": sum, "last": last}, err
	}))
	r := fix.Await(fix.Send("anna", "f", `{}`))
	wantState(t, r, engi.FunctionDone, 3)
	if string(r.Output) != `{"last":"x","sum":3}` {
		t.Errorf("output %s", r.Output)
	}
	for i := range 3 {
		c.want(t, fmt.Sprint(i), 1)
	}
	c.want(t, "last", 3)
	if len(r.Steps) != 4 || r.Steps[0].Name != "step 0" || r.Steps[3].Attempts != 3 || string(r.Steps[3].Output) != `"x"` || r.Steps[3].Error != nil {
		t.Errorf("steps are shown as %+v", r.Steps)
	}
}

func retries(t *testing.T, open func() function.Engine) {
	var c calls
	fail := func(kind engi.Kind) func(context.Context, *function.Run) (any, error) {
		return func(ctx context.Context, r *function.Run) (any, error) {
			_, err := function.Step(ctx, r, "fail", func(context.Context) (int, error) {
				return 0, engi.Errorf(kind, "attempt %d", c.add(r.Function))
			})
			return nil, err
		}
	}
	var all []function.Function
	for _, k := range []engi.Kind{engi.Unavailable, engi.Exhausted, engi.Expired, engi.Internal} {
		all = append(all, On(k.String(), 2, fail(k)))
	}
	all = append(all, On("foreign", 1, func(context.Context, *function.Run) (any, error) { return nil, errors.New("unknown") }))
	fix := Open(t, open, all...)
	for _, f := range all {
		r := fix.Await(fix.Send("anna", f.Name, `{}`))
		wantState(t, r, engi.FunctionFailed, f.Retries+1)
		if r.Error == nil || r.Output != nil {
			t.Errorf("%s: error %v, output %s", f.Name, r.Error, r.Output)
		}
	}
}

func finals(t *testing.T, open func() function.Engine) {
	var all []function.Function
	for _, k := range []engi.Kind{engi.Invalid, engi.NotFound, engi.Conflict, engi.Denied, engi.Anonymous, engi.Unsupported} {
		all = append(all, On(k.String(), 5, func(ctx context.Context, r *function.Run) (any, error) {
			_, err := function.Step(ctx, r, "fail", func(context.Context) (int, error) { return 0, engi.Errorf(k, "no").WithRemedy("do not") })
			return nil, fmt.Errorf("wrapped: %w", err)
		}))
	}
	all = append(all, On("said", 5, func(context.Context, *function.Run) (any, error) {
		return nil, fmt.Errorf("so: %w", function.Final(engi.Errorf(engi.Unavailable, "never again")))
	}))
	fix := Open(t, open, all...)
	for _, f := range all {
		r := fix.Await(fix.Send("anna", f.Name, `{}`))
		wantState(t, r, engi.FunctionFailed, 1)
		if f.Name != "said" && (r.Error.Kind.String() != f.Name || r.Error.Remedy != "do not") {
			t.Errorf("%s: error %+v", f.Name, r.Error)
		}
	}
}

func panics(t *testing.T, open func() function.Engine) {
	fix := Open(t, open,
		On("body", 1, func(context.Context, *function.Run) (any, error) { panic("oh") }),
		On("step", 1, func(ctx context.Context, r *function.Run) (any, error) {
			return function.Step(ctx, r, "s", func(context.Context) (int, error) { panic("oh") })
		}))
	for _, name := range []string{"body", "step"} {
		r := fix.Await(fix.Send("anna", name, `{}`))
		wantState(t, r, engi.FunctionFailed, 2)
		if r.Error.Kind != engi.Internal {
			t.Errorf("%s: %+v", name, r.Error)
		}
	}
}

func names(t *testing.T, open func() function.Engine) {
	fix := Open(t, open, On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		for range 2 {
			if _, err := function.Step(ctx, r, "same", func(context.Context) (int, error) { return 1, nil }); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	r := fix.Await(fix.Send("anna", "f", `{}`))
	wantState(t, r, engi.FunctionFailed, 1)
	if r.Error.Kind != engi.Invalid {
		t.Errorf("error %+v", r.Error)
	}
}

func limits(t *testing.T, open func() function.Engine) {
	var now, most [2]atomic.Int64 // numbers for all owners, and for anna
	f := On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		return function.Step(ctx, r, "work", func(ctx context.Context) (int, error) {
			for i := range now {
				if i == 1 && r.Owner != "anna" {
					continue
				}
				n := now[i].Add(1)
				defer now[i].Add(-1)
				for m := most[i].Load(); n > m && !most[i].CompareAndSwap(m, n); m = most[i].Load() {
				}
			}
			time.Sleep(3 * time.Millisecond) // other runs may begin during this time
			return 0, nil
		})
	})
	f.Concurrency, f.PerOwner = 3, 2
	fix := Open(t, open, f)
	var ids []engi.FunctionRunID
	for i := range 24 {
		owner := engi.Owner("anna")
		if i%3 == 0 {
			owner = "bert"
		}
		ids = append(ids, fix.Send(owner, "f", `{}`))
	}
	for _, id := range ids {
		wantState(t, fix.Await(id), engi.FunctionDone, 1)
	}
	if all, anna := most[0].Load(), most[1].Load(); all > 3 || anna > 2 {
		t.Errorf("%d at once and %d of one owner; the limits are 3 and 2", all, anna)
	}
}

func cancelRunning(t *testing.T, open func() function.Engine) {
	begun, asked := make(chan struct{}), make(chan struct{})
	var c calls
	fix := Open(t, open, On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		if _, err := function.Step(ctx, r, "long", func(context.Context) (int, error) {
			close(begun)
			<-asked
			<-r.Cancelled()
			return c.add("long"), nil
		}); err != nil {
			return nil, err
		}
		return function.Step(ctx, r, "next", func(context.Context) (int, error) { return c.add("next"), nil })
	}))
	id := fix.Send("anna", "f", `{}`)
	<-begun
	for range 2 { // doing it twice is no error
		if err := fix.Cancel(t.Context(), "anna", id); err != nil {
			t.Fatal(err)
		}
	}
	close(asked)
	r := fix.Await(id)
	wantState(t, r, engi.FunctionCancelled, 1)
	c.want(t, "long", 1)
	c.want(t, "next", 0)
	if r.Error != nil {
		t.Errorf("a cancelled run has the error %v", r.Error)
	}
}

func cancelWaiting(t *testing.T, open func() function.Engine) {
	f := On("f", 3, func(context.Context, *function.Run) (any, error) { return nil, engi.Errorf(engi.Unavailable, "no") })
	f.Backoff = function.Backoff{First: time.Hour, Max: time.Hour}
	f.Concurrency = 1
	fix := Open(t, open, f)
	first, second := fix.Send("anna", "f", `{}`), fix.Send("anna", "f", `{}`)
	r := fix.Await(first, engi.FunctionWaiting)
	wantState(t, r, engi.FunctionWaiting, 1)
	if r.Error == nil {
		t.Error("a waiting run does not say why")
	}
	if err := fix.Cancel(t.Context(), "anna", first); err != nil {
		t.Fatal(err)
	}
	wantState(t, fix.Await(first), engi.FunctionCancelled, 1)
	// The run's slot is free.
	wantState(t, fix.Await(second, engi.FunctionWaiting), engi.FunctionWaiting, 1)
}

func cancelQueued(t *testing.T, open func() function.Engine) {
	unblock := make(chan struct{})
	f := On("f", 0, func(ctx context.Context, r *function.Run) (any, error) { <-unblock; return nil, nil })
	f.Concurrency = 1
	fix := Open(t, open, f)
	first, second := fix.Send("anna", "f", `{}`), fix.Send("anna", "f", `{}`)
	if err := fix.Cancel(t.Context(), "anna", second); err != nil {
		t.Fatal(err)
	}
	wantState(t, fix.Await(second), engi.FunctionCancelled, 0)
	if err := fix.Cancel(t.Context(), "bert", first); !engi.Is(err, engi.NotFound) {
		t.Errorf("bert cancels anna's run: %v", err)
	}
	close(unblock)
	wantState(t, fix.Await(first), engi.FunctionDone, 1)
}

func timeouts(t *testing.T, open func() function.Engine) {
	f := On("f", 5, func(ctx context.Context, r *function.Run) (any, error) {
		return function.Step(ctx, r, "long", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, engi.Errorf(engi.Expired, "%v", ctx.Err())
		})
	})
	f.Timeout = 50 * time.Millisecond
	fix := Open(t, open, f)
	r := fix.Await(fix.Send("anna", "f", `{}`))
	wantState(t, r, engi.FunctionFailed, 1)
	if r.Error.Kind != engi.Expired {
		t.Errorf("error %+v", r.Error)
	}
}

func keys(t *testing.T, open func() function.Engine) {
	var c calls
	fix := Open(t, open, On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
		return function.Step(ctx, r, "s", func(context.Context) (int, error) { return c.add("s"), nil })
	}))
	spec := engi.EventSpec{Owner: "anna", Type: "f", Idempotency: "k"}
	events, runs := make([]engi.Event, 8), make([][]engi.FunctionRunID, 8)
	var wg sync.WaitGroup
	for i := range events {
		wg.Go(func() {
			var err error
			if events[i], runs[i], err = fix.Runner.Send(t.Context(), spec); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, e := range events {
		if e.ID != events[0].ID || len(runs[i]) != 1 || runs[i][0] != runs[0][0] {
			t.Fatalf("events of one key are %+v and %+v with runs %v and %v", e, events[0], runs[i], runs[0])
		}
	}
	wantState(t, fix.Await(runs[0][0]), engi.FunctionDone, 1)
	spec.Owner = "bert"
	other, started, err := fix.Runner.Send(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if other.ID == events[0].ID {
		t.Error("bert's key is anna's")
	}
	wantState(t, fix.Await(started[0]), engi.FunctionDone, 1)
	again, started, err := fix.Replay(t.Context(), "anna", events[0].ID, "f")
	if err != nil {
		t.Fatal(err)
	}
	if again.Replay != events[0].ID || len(started) != 1 {
		t.Errorf("replayed as %+v with runs %v", again, started)
	}
	wantState(t, fix.Await(started[0]), engi.FunctionDone, 1)
	c.want(t, "s", 3)
}

func sends(t *testing.T, open func() function.Engine) {
	var c calls
	fix := Open(t, open,
		On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
			id, err := r.Send(ctx, "tell", "g", map[string]int{"n": 7})
			if err != nil {
				return nil, err
			}
			if c.add("f") < 3 {
				return nil, engi.Errorf(engi.Unavailable, "not yet")
			}
			return id, nil
		}),
		On("g", 0, func(ctx context.Context, r *function.Run) (any, error) {
			var data struct{ N int }
			err := r.Data(&data)
			return data.N, err
		}))
	wantState(t, fix.Await(fix.Send("anna", "f", `{}`)), engi.FunctionDone, 3)
	events, err := fix.Log().List(t.Context(), "anna", engi.EventFilter{Types: []string{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 {
		t.Fatalf("%d events were sent, want 1", len(events))
	}
	runs, err := fix.Runs(t.Context(), "anna", engi.FunctionFilter{Event: events[0].ID})
	if err != nil || len(runs) != 1 {
		t.Fatalf("runs of the event: %v, %v", runs, err)
	}
	r := fix.Await(runs[0].ID)
	wantState(t, r, engi.FunctionDone, 1)
	if string(r.Output) != "7" {
		t.Errorf("output %s", r.Output)
	}
}

func restart(t *testing.T, open func() function.Engine) {
	var c calls
	begun := make(chan struct{}, 1)
	fix := Open(t, open, On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		if _, err := function.Step(ctx, r, "a", func(context.Context) (int, error) { return c.add("a"), nil }); err != nil {
			return nil, err
		}
		if _, err := function.Step(ctx, r, "b", func(ctx context.Context) (int, error) {
			if c.add("b") == 1 {
				begun <- struct{}{}
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 0, nil
		}); err != nil {
			return nil, err
		}
		return function.Step(ctx, r, "c", func(context.Context) (int, error) { return c.add("c"), nil })
	}))
	id := fix.Send("anna", "f", `{}`)
	<-begun
	fix.Stop()
	fix.Start()
	// A restart is not a failure: it is the same attempt.
	wantState(t, fix.Await(id), engi.FunctionDone, 1)
	c.want(t, "a", 1)
	c.want(t, "b", 2)
	c.want(t, "c", 1)
	fix.Stop()
	fix.Start()
	c.want(t, "c", 1)
}

func restartWaiting(t *testing.T, open func() function.Engine) {
	var c calls
	f := On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		if _, err := function.Step(ctx, r, "a", func(context.Context) (int, error) { return c.add("a"), nil }); err != nil {
			return nil, err
		}
		return function.Step(ctx, r, "b", func(context.Context) (int, error) {
			if c.add("b") == 1 {
				return 0, engi.Errorf(engi.Unavailable, "not yet")
			}
			return 0, nil
		})
	})
	f.Backoff = function.Backoff{First: 300 * time.Millisecond}
	f.Concurrency = 1
	fix := Open(t, open, f)
	first, second := fix.Send("anna", "f", `{}`), fix.Send("anna", "f", `{}`)
	wantState(t, fix.Await(first, engi.FunctionWaiting), engi.FunctionWaiting, 1)
	fix.Stop()
	r, err := fix.Run(t.Context(), engi.Everyone, second)
	if err != nil || r.State != engi.FunctionQueued {
		t.Fatalf("the second run is %s before the first has ended (%v)", r.State, err)
	}
	fix.Start()
	wantState(t, fix.Await(first), engi.FunctionDone, 2)
	wantState(t, fix.Await(second), engi.FunctionDone, 1)
	c.want(t, "a", 2) // once in each run
	c.want(t, "b", 3)
}

// lostStart makes a node crash between recording that a run has a slot and starting
// it in the engine.
func lostStart(t *testing.T, open func() function.Engine) {
	fix := Open(t, open, On("f", 0, func(context.Context, *function.Run) (any, error) { return "x", nil }))
	fix.Stop()
	now := time.Now().UTC()
	r := function.Record{FunctionRun: engi.FunctionRun{
		ID: engi.NewFunctionRunID(), Owner: "anna", Function: "f", State: engi.FunctionRunning, Attempt: 1, Created: now, Started: now,
	}}
	if err := store.Functions(fix.db).Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	fix.Start()
	wantState(t, fix.Await(r.ID), engi.FunctionDone, 1)
}
