package functiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/store"
)

// append appends an event that starts nothing.
func (r *Runner) append(spec engi.EventSpec) engi.Event {
	r.t.Helper()
	events, err := r.Log().Append(r.t.Context(), spec)
	if err != nil {
		r.t.Fatal(err)
	}
	return events[0]
}

// states returns the states of a run that the log has, oldest first.
func (r *Runner) states(id engi.FunctionRunID) (all []string) {
	r.t.Helper()
	events, err := r.Log().List(r.t.Context(), engi.Everyone, engi.EventFilter{Subject: string(id), Oldest: true, Limit: 1000})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range events {
		if e.Type != engi.EventFunctionStepDone && e.Type != engi.EventFunctionStepFailed {
			all = append(all, e.Type[len(engi.EventFunctionPrefix):])
		}
	}
	return all
}

// parked waits until a run waits for an event or a time.
func (r *Runner) parked(id engi.FunctionRunID) engi.FunctionRun {
	r.t.Helper()
	run := r.Await(id, engi.FunctionWaiting)
	if run.Wait == nil {
		r.t.Fatalf("run %s waits for nothing: %+v", id, run)
	}
	return run
}

// awaits returns a function that awaits an event, after a step.
func awaits(name string, c *calls, m func(*function.Run) function.Match, deadline time.Duration) function.Function {
	return On(name, 2, func(ctx context.Context, r *function.Run) (any, error) {
		if _, err := function.Step(ctx, r, "before", func(context.Context) (int, error) { return c.add("before"), nil }); err != nil {
			return nil, err
		}
		var until time.Time
		if deadline > 0 {
			until = time.Now().Add(deadline)
		}
		e, ok, err := r.Await(ctx, "await", m(r), until)
		if err != nil {
			return nil, err
		}
		if _, err := function.Step(ctx, r, "after", func(context.Context) (int, error) { return c.add("after"), nil }); err != nil {
			return nil, err
		}
		return map[string]any{"id": e.ID, "ok": ok, "data": e.Data}, nil
	})
}

func match(m function.Match) func(*function.Run) function.Match {
	return func(*function.Run) function.Match { return m }
}

// wantFound checks the output of a function of awaits; an empty ID expects that the deadline has passed.
func wantFound(t *testing.T, r engi.FunctionRun, id engi.EventID) {
	t.Helper()
	var out struct {
		ID engi.EventID
		OK bool
	}
	if err := json.Unmarshal(r.Output, &out); err != nil || r.State != engi.FunctionDone || r.Attempt != 1 {
		t.Fatalf("run %s is %s after %d attempts with output %s and error %v", r.ID, r.State, r.Attempt, r.Output, r.Error)
	}
	if out.ID != id || out.OK != (id != "") {
		t.Errorf("run %s has found %+v, want event %s", r.ID, out, id)
	}
}

func slotsGivenBack(t *testing.T, open func() function.Engine) {
	var c calls
	f := awaits("f", &c, func(r *function.Run) function.Match {
		var data struct{ Type string }
		_ = r.Data(&data) // an empty type is refused
		return function.Match{Types: []string{data.Type}, Subject: "thing"}
	}, 0)
	f.Concurrency = 1
	fix := Open(t, open, f)
	found := fix.append(engi.EventSpec{Owner: "anna", Type: "two", Subject: "thing"})
	early := fix.Send("anna", "f", `{"type":"two"}`)
	first := fix.Send("anna", "f", `{"type":"one"}`)
	r := fix.parked(first)
	if w := r.Wait; w.Step != "await" || !slices.Equal(w.Types, []string{"one"}) || w.Subject != "thing" || !w.Until.IsZero() || r.Error != nil {
		t.Errorf("the run waits for %+v (%v)", w, r.Error)
	}
	// An event from before the run started is not found.
	if r := fix.parked(early); r.Wait.After < found.Seq {
		t.Errorf("the run waits for %+v", r.Wait)
	}
	fix.append(engi.EventSpec{Owner: "anna", Type: "one", Subject: "other thing"})
	fix.append(engi.EventSpec{Owner: "anna", Type: "three", Subject: "thing"})
	two := fix.append(engi.EventSpec{Owner: "anna", Type: "two", Subject: "thing"})
	wantFound(t, fix.Await(early), two.ID)
	fix.parked(first)
	one := fix.append(engi.EventSpec{Owner: "anna", Type: "one", Subject: "thing"})
	r = fix.Await(first)
	wantFound(t, r, one.ID)
	if r.Wait != nil {
		t.Errorf("an ended run waits for %+v", r.Wait)
	}
	if s := fix.states(first); !slices.Equal(s, []string{"queued", "running", "waiting", "queued", "running", "done"}) {
		t.Errorf("the states were %v", s)
	}
	if len(r.Steps) != 3 || r.Steps[1].Name != "await" || r.Steps[1].Attempts != 1 || r.Steps[1].Ended.IsZero() {
		t.Errorf("steps are shown as %+v", r.Steps)
	}
	c.want(t, "before", 2)
	c.want(t, "after", 2)
}

func sleeps(t *testing.T, open func() function.Engine) {
	var c calls
	f := On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
		var begun time.Time
		var err error
		if begun, err = function.Step(ctx, r, "begin", func(context.Context) (time.Time, error) { return time.Now(), nil }); err != nil {
			return nil, err
		}
		for i := range 2 {
			if err := r.Sleep(ctx, fmt.Sprint("sleep ", i), 150*time.Millisecond); err != nil {
				return nil, err
			}
		}
		if err := r.SleepUntil(ctx, "past", begun); err != nil {
			return nil, err
		}
		return function.Step(ctx, r, "end", func(context.Context) (bool, error) {
			c.add("end")
			return time.Since(begun) >= 300*time.Millisecond, nil
		})
	})
	f.Concurrency = 1
	fix := Open(t, open, f)
	var ids []engi.FunctionRunID
	for range 3 {
		ids = append(ids, fix.Send("anna", "f", `{}`))
	}
	for _, id := range ids {
		r := fix.Await(id)
		wantState(t, r, engi.FunctionDone, 1)
		if string(r.Output) != "true" {
			t.Error("a run has slept less than it should")
		}
	}
	c.want(t, "end", 3)
}

func waitsSurvive(t *testing.T, open func() function.Engine) {
	var c calls
	sleeper := On("sleeper", 0, func(ctx context.Context, r *function.Run) (any, error) {
		until, err := function.Step(ctx, r, "begin", func(context.Context) (time.Time, error) { return time.Now().Add(time.Second), nil })
		if err != nil {
			return nil, err
		}
		if err := r.SleepUntil(ctx, "sleep", until); err != nil {
			return nil, err
		}
		return !time.Now().Before(until), nil
	})
	gone := awaits("gone", &c, match(function.Match{Types: []string{"never"}}), 0)
	fix := Open(t, open, awaits("f", &c, match(function.Match{Types: []string{"go"}}), 0), sleeper, gone)
	first, slept, removed := fix.Send("anna", "f", `{}`), fix.Send("anna", "sleeper", `{}`), fix.Send("anna", "gone", `{}`)
	fix.parked(first)
	fix.parked(removed)
	for range 2 {
		fix.Stop()
		fix.Start()
	}
	// A restart changes nothing for a run whose event is still missing.
	if s := fix.states(first); !slices.Equal(s, []string{"queued", "running", "waiting"}) {
		t.Errorf("the states were %v", s)
	}
	second := fix.Send("anna", "f", `{}`)
	fix.parked(second)
	fix.Stop()
	while := fix.append(engi.EventSpec{Owner: "anna", Type: "go"}) // as by a process that was killed before it woke the run
	fix.funcs = fix.funcs[:2]
	fix.Start()
	wantFound(t, fix.Await(first), while.ID)
	wantFound(t, fix.Await(second), while.ID)
	r := fix.Await(slept)
	wantState(t, r, engi.FunctionDone, 1)
	if string(r.Output) != "true" {
		t.Error("the run has slept less than it should")
	}
	if r := fix.Await(removed); r.State != engi.FunctionFailed || r.Error.Kind != engi.NotFound {
		t.Errorf("the run of a function that was removed is %s: %v", r.State, r.Error)
	}
	c.want(t, "before", 3)
	c.want(t, "after", 2)
}

// anyMoment sends events while their runs begin to wait.
func anyMoment(t *testing.T, open func() function.Engine) {
	const n = 40
	var c calls
	var fix *Runner
	var sending sync.WaitGroup
	sent := make([]engi.EventID, n)
	send := func(i int) {
		events, err := fix.Log().Append(context.Background(), engi.EventSpec{Owner: "anna", Type: "go", Subject: fmt.Sprint("thing ", i)})
		if err != nil {
			t.Error(err)
			return
		}
		sent[i] = events[0].ID
	}
	ready := make(chan struct{})
	f := On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
		var data struct{ N int }
		if err := r.Data(&data); err != nil {
			return nil, err
		}
		if _, err := function.Step(ctx, r, "before", func(context.Context) (int, error) {
			<-ready
			switch data.N % 4 {
			case 0:
				send(data.N) // between the start of the run and Await
			case 1:
				sending.Go(func() { send(data.N) }) // at the same moment
			case 2:
				sending.Go(func() {
					fix.parked(r.ID)
					send(data.N)
				})
			case 3: // at the same moment, with others
				sending.Go(func() {
					for i := range 5 {
						fix.append(engi.EventSpec{Owner: "anna", Type: "go", Subject: fmt.Sprint("other ", i)})
					}
					send(data.N)
				})
			}
			return c.add("before"), nil
		}); err != nil {
			return nil, err
		}
		e, ok, err := r.Await(ctx, "await", function.Match{Types: []string{"go"}, Subject: fmt.Sprint("thing ", data.N)}, time.Time{})
		return map[string]any{"id": e.ID, "ok": ok}, err
	})
	fix = Open(t, open, f)
	var ids []engi.FunctionRunID
	for i := range n {
		ids = append(ids, fix.Send("anna", "f", fmt.Sprintf(`{"n":%d}`, i)))
	}
	close(ready)
	for i, id := range ids {
		r := fix.Await(id)
		if i == 0 {
			sending.Wait()
		}
		wantFound(t, r, sent[i])
	}
	c.want(t, "before", n)
}

func inOrder(t *testing.T, open func() function.Engine) {
	fix := Open(t, open, On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
		// Events before the position are not found.
		after, err := r.Position(ctx, "position")
		if err != nil {
			return nil, err
		}
		var all []string
		for i := range 3 {
			e, _, err := r.Await(ctx, fmt.Sprint("await ", i), function.Match{Types: []string{"item.*"}, After: after}, time.Time{})
			if err != nil {
				return nil, err
			}
			after = e.Seq
			all = append(all, string(e.Data))
		}
		return all, nil
	}))
	fix.append(engi.EventSpec{Owner: "anna", Type: "item.old"})
	id := fix.Send("anna", "f", `{}`)
	fix.parked(id)
	for i := range 3 {
		fix.append(engi.EventSpec{Owner: "anna", Type: "item.new", Data: json.RawMessage(fmt.Sprint(`{"n":`, i, `}`))})
	}
	r := fix.Await(id)
	wantState(t, r, engi.FunctionDone, 1)
	if want := `["{\"n\":0}","{\"n\":1}","{\"n\":2}"]`; string(r.Output) != want {
		t.Errorf("found %s, want %s", r.Output, want)
	}
}

func deadlines(t *testing.T, open func() function.Engine) {
	var c calls
	m := match(function.Match{Types: []string{"never"}})
	late := awaits("late", &c, m, 0)
	late.Timeout = 100 * time.Millisecond
	fix := Open(t, open, awaits("f", &c, m, 100*time.Millisecond), awaits("over", &c, m, 1), late)
	for _, name := range []string{"f", "over"} {
		id := fix.Send("anna", name, `{}`)
		wantFound(t, fix.Await(id), "")
	}
	r := fix.Await(fix.Send("anna", "late", `{}`))
	wantState(t, r, engi.FunctionFailed, 1)
	if r.Error.Kind != engi.Expired {
		t.Errorf("error %+v", r.Error)
	}
	c.want(t, "after", 2)
}

func cancelParked(t *testing.T, open func() function.Engine) {
	var c calls
	f := awaits("f", &c, match(function.Match{Types: []string{"go"}}), time.Hour)
	f.Concurrency = 1
	fix := Open(t, open, f)
	first := fix.Send("anna", "f", `{}`)
	r := fix.parked(first)
	if r.Wait.Until.IsZero() {
		t.Error("the run waits without limit")
	}
	if err := fix.Cancel(t.Context(), "bert", first); !engi.Is(err, engi.NotFound) {
		t.Errorf("bert cancels anna's run: %v", err)
	}
	if err := fix.Cancel(t.Context(), "anna", first); err != nil {
		t.Fatal(err)
	}
	// The run has ended when Cancel returns.
	r, err := fix.Run(t.Context(), "anna", first)
	if err != nil || r.State != engi.FunctionCancelled || r.Wait != nil {
		t.Errorf("the run is %s and waits for %+v (%v)", r.State, r.Wait, err)
	}
	second := fix.Send("anna", "f", `{}`)
	fix.parked(second)
	e := fix.append(engi.EventSpec{Owner: "anna", Type: "go"})
	wantFound(t, fix.Await(second), e.ID)
	if s := fix.states(first); !slices.Equal(s, []string{"queued", "running", "waiting", "cancelled"}) {
		t.Errorf("the states were %v", s)
	}
	c.want(t, "after", 1)
}

func ownersApart(t *testing.T, open func() function.Engine) {
	var c calls
	fix := Open(t, open, awaits("f", &c, match(function.Match{Types: []string{"go"}}), 0), awaits("g", &c, match(function.Match{Types: []string{"go"}, Subject: "thing"}), 0),
		awaits("own", &c, func(r *function.Run) function.Match {
			return function.Match{Types: []string{"function.*"}, Subject: string(r.ID)}
		}, 200*time.Millisecond))
	hers, his, about := fix.Send("anna", "f", `{}`), fix.Send("bert", "f", `{}`), fix.Send("anna", "g", `{}`)
	for range 2 {
		fix.append(engi.EventSpec{Owner: "carl", Type: "go", Subject: "thing"})
		fix.append(engi.EventSpec{Type: "go", Subject: "thing"}) // the node's
		fix.parked(hers)
		fix.parked(his)
		fix.parked(about)
	}
	b := fix.append(engi.EventSpec{Owner: "bert", Type: "go", Subject: "thing", Data: json.RawMessage(`{"secret":"of bert"}`)})
	wantFound(t, fix.Await(his), b.ID)
	fix.parked(hers)
	fix.parked(about)
	a := fix.append(engi.EventSpec{Owner: "anna", Type: "go", Subject: "thing"})
	wantFound(t, fix.Await(hers), a.ID)
	wantFound(t, fix.Await(about), a.ID)
	// Events about the run itself do not match.
	wantFound(t, fix.Await(fix.Send("anna", "own", `{}`)), "")
}

// trim drops all events of the log that it can.
func (r *Runner) trim() {
	r.t.Helper()
	if _, err := store.TrimEvents(r.t.Context(), r.db, store.EventBounds{Age: time.Nanosecond}); err != nil {
		r.t.Fatal(err)
	}
}

func foundIsKept(t *testing.T, open func() function.Engine) {
	var c calls
	slot := make(chan struct{})
	f := On("f", 1, func(ctx context.Context, r *function.Run) (any, error) {
		var data struct{ Block bool }
		if err := r.Data(&data); err != nil || data.Block {
			<-slot
			return nil, err
		}
		e, _, err := r.Await(ctx, "await", function.Match{Types: []string{"go"}}, time.Time{})
		if err != nil {
			return nil, err
		}
		return function.Step(ctx, r, "after", func(context.Context) (engi.Event, error) {
			if c.add("after") == 1 {
				return e, engi.Errorf(engi.Unavailable, "again")
			}
			return e, nil
		})
	})
	f.Concurrency = 1
	fix := Open(t, open, f)
	first := fix.Send("anna", "f", `{}`)
	fix.parked(first)
	other := fix.Send("anna", "f", `{"block":true}`)
	fix.Await(other, engi.FunctionRunning)
	want := fix.append(engi.EventSpec{Owner: "anna", Type: "go", Data: json.RawMessage(`{"n":9007199254740993}`)})
	fix.Await(first, engi.FunctionQueued) // there is no slot
	fix.trim()
	if _, err := fix.Log().Get(t.Context(), "anna", want.ID); !engi.Is(err, engi.NotFound) {
		t.Fatalf("the event is still there: %v", err)
	}
	close(slot)
	r := fix.Await(first)
	wantState(t, r, engi.FunctionDone, 2)
	var e engi.Event
	if err := json.Unmarshal(r.Output, &e); err != nil || e.ID != want.ID || e.Seq != want.Seq || e.Owner != "anna" || string(e.Data) != string(want.Data) || !e.Time.Equal(want.Time) {
		t.Errorf("the event is %+v, want %+v (%v)", e, want, err)
	}
}

func droppedIsSaid(t *testing.T, open func() function.Engine) {
	said := func(name string, m function.Match) function.Function {
		return On(name, 3, func(ctx context.Context, r *function.Run) (any, error) {
			if _, err := function.Step(ctx, r, "before", func(context.Context) (int, error) { return 1, nil }); err != nil {
				return nil, err
			}
			e, ok, err := r.Await(ctx, "await", m, time.Time{})
			if errors.Is(err, function.ErrDropped) && engi.Is(err, engi.NotFound) {
				return "dropped", nil
			}
			return map[string]any{"id": e.ID, "ok": ok}, err
		})
	}
	fix := Open(t, open, said("f", function.Match{Types: []string{"go"}}), said("kept", function.Match{Types: []string{"last"}}), said("early", function.Match{Types: []string{"go"}, After: 1}))
	first, kept, his := fix.Send("anna", "f", `{}`), fix.Send("anna", "kept", `{}`), fix.Send("bert", "f", `{}`)
	for _, id := range []engi.FunctionRunID{first, kept, his} {
		fix.parked(id)
	}
	fix.trim() // what the runs have seen is not missing
	fix.Stop()
	fix.Start()
	for _, id := range []engi.FunctionRunID{first, kept, his} {
		fix.parked(id)
	}
	fix.Stop()
	fix.append(engi.EventSpec{Owner: "anna", Type: "go"})
	last := fix.append(engi.EventSpec{Owner: "anna", Type: "last"}) // trimming keeps the newest event
	fix.trim()
	fix.Start()
	if r := fix.Await(first); string(r.Output) != `"dropped"` {
		t.Errorf("the run is %s with output %s: %v", r.State, r.Output, r.Error)
	}
	wantFound(t, fix.Await(kept), last.ID)
	// None of bert's events was dropped.
	fix.parked(his)
	// Await itself looks at what was dropped, too.
	if r := fix.Await(fix.Send("anna", "early", `{}`)); string(r.Output) != `"dropped"` {
		t.Errorf("the run is %s with output %s: %v", r.State, r.Output, r.Error)
	}
}

func badWaits(t *testing.T, open func() function.Engine) {
	fix := Open(t, open, On("f", 3, func(ctx context.Context, r *function.Run) (any, error) {
		for i, m := range []function.Match{{}, {Types: []string{"a b"}}, {Types: make([]string, 51)}, {Subject: string(make([]byte, 1000))}, {Types: []string{"x"}, After: -1}} {
			if _, _, err := r.Await(ctx, fmt.Sprint("await ", i), m, time.Time{}); !engi.Is(err, engi.Invalid) {
				return nil, function.Final(engi.Errorf(engi.Internal, "match %d: %w", i, err))
			}
		}
		if err := r.SleepUntil(ctx, "zero", time.Time{}); !engi.Is(err, engi.Invalid) {
			return nil, function.Final(engi.Errorf(engi.Internal, "zero: %w", err))
		}
		if err := r.Sleep(ctx, "same", 0); err != nil {
			return nil, err
		}
		return nil, r.Sleep(ctx, "same", 0)
	}))
	r := fix.Await(fix.Send("anna", "f", `{}`))
	wantState(t, r, engi.FunctionFailed, 1)
	if r.Error.Kind != engi.Invalid {
		t.Errorf("error %+v", r.Error)
	}
}

// ManyWaits has n runs wait with 16 slots, restarts the engine, and wakes all.
func ManyWaits(t *testing.T, open func() function.Engine, n int) {
	var c calls
	f := awaits("f", &c, match(function.Match{Types: []string{"go"}}), 0)
	f.Concurrency = 16
	fix := Open(t, open, f)
	var ids []engi.FunctionRunID
	for range n {
		ids = append(ids, fix.Send("anna", "f", `{}`))
	}
	for _, id := range ids {
		fix.parked(id)
	}
	fix.Stop()
	fix.Start()
	e := fix.append(engi.EventSpec{Owner: "anna", Type: "go"})
	for _, id := range ids {
		wantFound(t, fix.Await(id), e.ID)
	}
	c.want(t, "before", n)
	c.want(t, "after", n)
}

// lostWake makes a node crash between recording that a run, whose wait is over, has a slot, and waking it
// in the engine.
func lostWake(t *testing.T, open func() function.Engine) {
	var c calls
	fix := Open(t, open, awaits("f", &c, match(function.Match{Types: []string{"go"}}), 0))
	id := fix.Send("anna", "f", `{}`)
	fix.parked(id)
	fix.Stop()
	if _, err := store.Functions(fix.db).Update(t.Context(), engi.Everyone, id, func(r *function.Record) error {
		r.State, r.Waited, r.Wait = engi.FunctionRunning, &function.Waited{Step: r.Wait.Step, Result: json.RawMessage(`{}`)}, nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fix.Start()
	wantFound(t, fix.Await(id), "")
	c.want(t, "before", 1)
}
