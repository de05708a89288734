package function_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/memory"
	"github.com/engi-dev/engi/internal/store"
)

// TestWaitsDoNotFillTheQueue has as many runs wait as an owner may have, for an event that also starts
// functions.
func TestWaitsDoNotFillTheQueue(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	waits := functiontest.On("waits", 0, func(ctx context.Context, r *function.Run) (any, error) {
		_, _, err := r.Await(ctx, "await", function.Match{Types: []string{"go"}}, time.Time{})
		return nil, err
	})
	r, err := function.New(function.Options{Functions: []function.Function{waits, functiontest.On("go", 0, nothing)}, Store: store.Functions(db), Events: store.Events(db), Engine: &memory.Engine{}, MaxQueue: 4})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.Serve(ctx, func() { close(ready) }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-ready
	follow := func(id engi.FunctionRunID, want string) {
		t.Helper()
		for e, err := range store.Events(db).Follow(t.Context(), "anna", engi.EventFilter{Subject: string(id), Types: []string{"function.waiting", "function.failed", "function.done"}}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == want {
				return
			}
			if e.Type != "function.waiting" {
				t.Fatalf("run %s: %s %s", id, e.Type, e.Data)
			}
		}
	}
	var ids []engi.FunctionRunID
	for range 3 { // three quarters, see engi.Shares
		_, runs, err := r.Send(t.Context(), engi.EventSpec{Owner: "anna", Type: "waits"})
		if err != nil {
			t.Fatal(err)
		}
		follow(runs[0], "function.waiting")
		ids = append(ids, runs[0])
	}
	_, runs, err := r.Send(t.Context(), engi.EventSpec{Owner: "anna", Type: "waits"})
	if err != nil {
		t.Fatal(err)
	}
	follow(runs[0], "function.failed")
	if run, err := r.Run(t.Context(), "anna", runs[0]); err != nil || run.Error.Kind != engi.Exhausted || run.Error.Remedy == "" {
		t.Errorf("%+v %v", run.Error, err)
	}
	_, runs, err = r.Send(t.Context(), engi.EventSpec{Owner: "anna", Type: "go"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range append(ids, runs...) {
		follow(id, "function.done")
	}
}

// A sleepyEngine loses requests to wake runs, or cannot be reached.
type sleepyEngine struct {
	function.Engine
	asked atomic.Int64
	heard int64 // number of the first request that is not lost
}

func (e *sleepyEngine) Wake(ctx context.Context, id engi.FunctionRunID) error {
	switch n := e.asked.Add(1); {
	case n >= e.heard:
		return e.Engine.Wake(ctx, id)
	case n%2 == 0:
		return engi.Errorf(engi.Unavailable, "the engine's server does not answer")
	}
	return nil
}

// TestWakesAreRepeated loses many requests to wake a run.
func TestWakesAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &sleepyEngine{Engine: &memory.Engine{}, heard: 20}
		fix := functiontest.Open(t, func() function.Engine { return e }, functiontest.On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
			return nil, r.Sleep(ctx, "sleep", time.Hour)
		}))
		began := time.Now()
		id := fix.Send("anna", "f", `{}`)
		r, err := fix.Wait(t.Context(), "anna", id)
		if took := time.Since(began); err != nil || r.State != engi.FunctionDone || took < time.Hour+5*time.Minute || took > time.Hour+10*time.Minute || e.asked.Load() != e.heard {
			t.Errorf("the run is %s after %v and %d requests: %v", r.State, took, e.asked.Load(), err)
		}
		time.Sleep(time.Hour)
		if n := e.asked.Load(); n != e.heard {
			t.Errorf("%d requests, want %d", n, e.heard)
		}
		// The end of a run that is cancelled does not wait for the engine, which is not asked for ever.
		e.heard = 1000
		id = fix.Send("anna", "f", `{}`)
		synctest.Wait()
		if err := fix.Cancel(t.Context(), "anna", id); err != nil {
			t.Fatal(err)
		}
		if r, err := fix.Run(t.Context(), "anna", id); err != nil || r.State != engi.FunctionCancelled {
			t.Errorf("%s %v", r.State, err)
		}
		time.Sleep(24 * time.Hour)
		if n := e.asked.Load(); n > 40 {
			t.Errorf("%d requests for a cancelled run", n-20)
		}
		fix.Stop()
	})
}

// TestWaitsEndOnTime waits for a long time, over restarts.
func TestWaitsEndOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hour = time.Hour
		f := functiontest.On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
			if err := r.Sleep(ctx, "sleep", 40*hour); err != nil {
				return nil, err
			}
			_, ok, err := r.Await(ctx, "await", function.Match{Types: []string{"go"}}, time.Now().Add(10*hour))
			return ok, err
		})
		fix := functiontest.Open(t, engine(), f)
		began := time.Now()
		late, exact, missed := fix.Send("anna", "f", `{}`), fix.Send("bert", "f", `{}`), fix.Send("carl", "f", `{}`)
		for range 3 {
			time.Sleep(5 * hour)
			fix.Stop()
			time.Sleep(5 * hour)
			fix.Start()
		}
		time.Sleep(20*hour - 3*time.Nanosecond)
		synctest.Wait()
		if r, err := fix.Run(t.Context(), "anna", late); err != nil || r.State != engi.FunctionWaiting || !r.Wait.Until.Equal(began.Add(50*hour)) {
			t.Errorf("just before the deadline the run is %s: %+v, %v", r.State, r.Wait, err)
		}
		fix.Stop()
		time.Sleep(2 * time.Nanosecond)
		if _, err := fix.Log().Append(t.Context(), engi.EventSpec{Owner: "bert", Type: "go"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := fix.Log().Append(t.Context(), engi.EventSpec{Owner: "anna", Type: "go"}); err != nil {
			t.Fatal(err)
		}
		fix.Start()
		for id, want := range map[engi.FunctionRunID]string{late: "false", exact: "true", missed: "false"} {
			r, err := fix.Wait(t.Context(), engi.Everyone, id)
			if err != nil || r.State != engi.FunctionDone || string(r.Output) != want || r.Attempt != 1 {
				t.Errorf("the run of %s is %s with output %s, want %s: %v %v", r.Owner, r.State, r.Output, want, r.Error, err)
			}
		}
		fix.Stop()
	})
}
