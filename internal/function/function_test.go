package function_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/memory"
	"github.com/engi-dev/engi/internal/store"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

func nothing(context.Context, *function.Run) (any, error) { return nil, nil }

func TestNewRefuses(t *testing.T) {
	ok := engi.Function{Name: "f", Event: "e"}
	for name, change := range map[string]func(*function.Function){
		"no name":       func(f *function.Function) { f.Name = "" },
		"a bad name":    func(f *function.Function) { f.Name = "a b" },
		"a long name":   func(f *function.Function) { f.Name = strings.Repeat("a", 129) },
		"no start":      func(f *function.Function) { f.Event = "" },
		"a bad event":   func(f *function.Function) { f.Event = "/x" },
		"no work":       func(f *function.Function) { f.Run = nil },
		"retries":       func(f *function.Function) { f.Retries = -1 },
		"many retries":  func(f *function.Function) { f.Retries = 101 },
		"timeout":       func(f *function.Function) { f.Timeout = -1 },
		"four fields":   func(f *function.Function) { f.Cron = "* * * *" },
		"a descriptor":  func(f *function.Function) { f.Cron = "@daily" },
		"a time zone":   func(f *function.Function) { f.Cron = "TZ=Europe/Berlin * * * *" },
		"minute 60":     func(f *function.Function) { f.Cron = "60 * * * *" },
		"no such day":   func(f *function.Function) { f.Cron = "0 0 30 2 *" },
		"no schema":     func(f *function.Function) { f.Input = json.RawMessage(`{"type":7}`) },
		"remote schema": func(f *function.Function) { f.Input = json.RawMessage(`{"$ref":"http://127.0.0.1:1/x"}`) },
	} {
		f := function.Function{Function: ok, Run: nothing}
		change(&f)
		if _, err := function.New(function.Options{Functions: []function.Function{f}}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	two := []function.Function{{Function: ok, Run: nothing}, {Function: ok, Run: nothing}}
	if _, err := function.New(function.Options{Functions: two}); err == nil {
		t.Error("two functions of one name are accepted")
	}
}

func engine() func() function.Engine {
	e := &memory.Engine{}
	return func() function.Engine { return e }
}

func TestSendRefuses(t *testing.T) {
	f := functiontest.On("f", 0, nothing)
	f.Input = json.RawMessage(`{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`)
	r := functiontest.Open(t, engine(), f)
	for name, spec := range map[string]engi.EventSpec{
		"no name":    {},
		"a bad name": {Type: "a\nb"},
		"no object":  {Type: "x", Data: json.RawMessage(`[]`)},
		"no JSON":    {Type: "x", Data: json.RawMessage(`{`)},
		"much":       {Type: "x", Data: json.RawMessage(`{"a":"` + strings.Repeat("a", 256<<10) + `"}`)},
		"a long key": {Type: "x", Idempotency: strings.Repeat("k", 256)},
		"misfit":     {Type: "f", Data: json.RawMessage(`{"n":"seven"}`)},
		"missing":    {Type: "f"},
		"engi's own": {Type: "sandbox.stopped"},
	} {
		if _, _, err := r.Runner.Send(t.Context(), spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	// An event without bound functions is appended.
	e, runs, err := r.Runner.Send(t.Context(), engi.EventSpec{Owner: "anna", Type: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Log().Get(t.Context(), "anna", e.ID); err != nil || string(got.Data) != "{}" || len(runs) != 0 {
		t.Errorf("%+v %v %v", got, runs, err)
	}
	if _, err := r.Log().Get(t.Context(), "bert", e.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("bert sees anna's event: %v", err)
	}
	if _, _, err := r.Replay(t.Context(), "anna", e.ID, "f"); !engi.Is(err, engi.NotFound) {
		t.Errorf("a function that is not bound is replayed: %v", err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r, err := function.New(function.Options{Functions: []function.Function{functiontest.On("f", 0, nothing)}, Store: store.Functions(db), Events: store.Events(db), Engine: &memory.Engine{}, MaxQueue: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // nothing runs without Serve
		_, _, err := r.Send(t.Context(), engi.EventSpec{Type: "f"})
		if full := engi.Is(err, engi.Exhausted); full != (i == 2) {
			t.Errorf("event %d: %v", i, err)
		}
	}
}

// TestQueueIsShared fills the queue by one owner.
func TestQueueIsShared(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r, err := function.New(function.Options{Functions: []function.Function{functiontest.On("f", 0, nothing)}, Store: store.Functions(db), Events: store.Events(db), Engine: &memory.Engine{}, MaxQueue: 16})
	if err != nil {
		t.Fatal(err)
	}
	fill := func(owner engi.Owner) (runs []engi.FunctionRunID) {
		for { // nothing runs without Serve
			_, more, err := r.Send(t.Context(), engi.EventSpec{Owner: owner, Type: "f"})
			if err != nil {
				return runs
			}
			runs = append(runs, more...)
		}
	}
	runs := fill("hog")
	if n := len(fill("anna")); len(runs) != 12 || n != 3 {
		t.Errorf("one owner got %d places, the next one %d", len(runs), n)
	}
	if err := r.Cancel(t.Context(), "hog", runs[0]); err != nil {
		t.Fatal(err)
	}
	if n := len(fill("bert")); n != 2 {
		t.Errorf("a third one got %d", n)
	}
}

// TestSchedule simulates several days.
func TestSchedule(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engi.db")
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC
		db, err := store.Open(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var ticks []string
		f := function.Function{Function: engi.Function{Name: "f", Cron: "30 */6 * * *"}, Owner: "anna", Run: func(ctx context.Context, r *function.Run) (any, error) {
			ticks = append(ticks, time.Now().UTC().Format("02 15:04"))
			return nil, r.Data(&struct{}{})
		}}
		runStore, e := store.Functions(db), &memory.Engine{}
		serve := func(d time.Duration) {
			fix, err := function.New(function.Options{Functions: []function.Function{f}, Store: runStore, Events: store.Events(db), Engine: e})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := fix.Serve(ctx, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		serve(13 * time.Hour)                  // 00:30 06:30 12:30
		time.Sleep(24*time.Hour - time.Minute) // misses four times, the last at 12:30 of the next day
		serve(time.Hour)                       // makes up for one of them
		serve(time.Minute)                     // once
		serve(5 * time.Hour)                   // 18:30
		want := "01 00:30, 01 06:30, 01 12:30, 02 12:59, 02 18:30"
		if got := strings.Join(ticks, ", "); got != want {
			t.Errorf("it ran at %s, want %s", got, want)
		}
		runs, err := runStore.Runs(t.Context(), "anna", function.Filter{Scheduled: true})
		if err != nil || len(runs) != 5 || runs[0].State != engi.FunctionDone || runs[0].Event != "" {
			t.Errorf("%+v %v", runs, err)
		}
	})
}

// TestBackoffGrows checks the times of attempts.
func TestBackoffGrows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engi.db")
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var at []time.Time
		f := function.Function{
			Function: engi.Function{Name: "f", Event: "f", Retries: 6}, Backoff: function.Backoff{First: 10 * time.Second, Max: time.Minute},
			Run: func(_ context.Context, r *function.Run) (any, error) {
				at = append(at, time.Now())
				err := engi.Errorf(engi.Exhausted, "full")
				if r.Attempt == 6 {
					err = err.WithRetry(engi.Retry{AfterMillis: 300_000})
				}
				return nil, err
			},
		}
		fix, err := function.New(function.Options{Functions: []function.Function{f}, Store: store.Functions(db), Events: store.Events(db), Engine: &memory.Engine{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := fix.Send(t.Context(), engi.EventSpec{Type: "f"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := fix.Serve(ctx, func() {}); err != nil {
			t.Fatal(err)
		}
		want := []float64{10, 20, 40, 60, 60, 300}
		if len(at) != len(want)+1 {
			t.Fatalf("%d attempts, want %d", len(at), len(want)+1)
		}
		for i, w := range want {
			// The time varies by a fifth, but is not before the hint.
			if got := at[i+1].Sub(at[i]).Seconds(); got < .79*w || got > 1.22*w {
				t.Errorf("attempt %d came %.1f s after the one before, want about %.0f", i+2, got, w)
			}
		}
	})
}

// TestRandomHistories sends and cancels runs and restarts the runner in random
// order, and checks how the runs end.
func TestRandomHistories(t *testing.T) {
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		if checks++; testing.Short() && checks > 10 || checks > 40 {
			return // each check creates a database
		}
		owners := []engi.Owner{"anna", "bert"}
		f := functiontest.On("f", 2, func(ctx context.Context, r *function.Run) (any, error) {
			var data struct{ Fails, Steps int }
			if err := r.Data(&data); err != nil {
				return nil, err
			}
			for i := range data.Steps {
				if _, err := function.Step(ctx, r, fmt.Sprint(i), func(context.Context) (int, error) { return i, nil }); err != nil {
					return nil, err
				}
			}
			if r.Attempt <= data.Fails {
				return nil, engi.Errorf(engi.Unavailable, "attempt %d", r.Attempt)
			}
			return data, nil
		})
		f.Backoff = function.Backoff{First: time.Millisecond, Max: time.Millisecond}
		f.Concurrency, f.PerOwner = rapid.IntRange(0, 3).Draw(rt, "concurrency"), rapid.IntRange(0, 2).Draw(rt, "per owner")
		fix := functiontest.Open(t, engine(), f)
		defer fix.Stop()
		type sent struct {
			id    engi.FunctionRunID
			fails int
		}
		var all []sent
		keys := map[string]engi.FunctionRunID{}
		cancelled := map[engi.FunctionRunID]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				fails, owner := rapid.IntRange(0, 3).Draw(rt, "fails"), rapid.SampledFrom(owners).Draw(rt, "owner")
				key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(rt, "key")
				_, runs, err := fix.Runner.Send(t.Context(), engi.EventSpec{Owner: owner, Type: "f", Idempotency: key,
					Data: json.RawMessage(fmt.Sprintf(`{"fails":%d,"steps":%d}`, fails, rapid.IntRange(0, 3).Draw(rt, "steps")))})
				if err != nil || len(runs) != 1 {
					rt.Fatalf("send: %v %v", runs, err)
				}
				id := runs[0]
				if first, ok := keys[string(owner)+key]; ok && key != "" {
					if first != id {
						rt.Fatalf("a repeated key has started run %s, the first was %s", id, first)
					}
					return
				}
				keys[string(owner)+key] = id
				all = append(all, sent{id, fails})
			},
			"cancel": func(rt *rapid.T) {
				if len(all) == 0 {
					rt.Skip("there are no runs")
				}
				id := rapid.SampledFrom(all).Draw(rt, "run").id
				if err := fix.Cancel(t.Context(), engi.Everyone, id); err != nil {
					rt.Fatal(err)
				}
				cancelled[id] = true
			},
			"restart": func(*rapid.T) {
				fix.Stop()
				fix.Start()
			},
		})
		for _, s := range all {
			r := fix.Await(s.id)
			switch {
			case r.State == engi.FunctionCancelled && cancelled[s.id]:
			case s.fails <= 2 && r.State == engi.FunctionDone && r.Attempt == s.fails+1 && r.Error == nil:
			case s.fails > 2 && r.State == engi.FunctionFailed && r.Attempt == 3 && r.Error != nil:
			default:
				rt.Fatalf("a run that was to fail %d times (cancelled: %v) is %s after %d attempts: %v", s.fails, cancelled[s.id], r.State, r.Attempt, r.Error)
			}
			for _, step := range r.Steps {
				if step.Attempts != 1 || step.Ended.IsZero() {
					rt.Fatalf("step %+v was not completed once", step)
				}
			}
		}
	})
}

// TestFunctionsOfOwnEvents binds functions to events of engi itself.
// They must start once, also after a restart, and not on events that they caused.
func TestFunctionsOfOwnEvents(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	on := func(name, event string) function.Function {
		return function.Function{Function: engi.Function{Name: name, Event: event}, Run: func(ctx context.Context, r *function.Run) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[name+" "+r.Event.Subject]++
			return nil, nil
		}}
	}
	fix := functiontest.Open(t, engine(), on("stopped", "sandbox.stopped"), on("done", "function.done"))
	log := fix.Log()
	put := func(subject, actor string) engi.Event {
		t.Helper()
		events, err := log.Append(t.Context(), engi.EventSpec{Owner: "anna", Subject: subject, Type: "sandbox.stopped", Actor: actor})
		if err != nil {
			t.Fatal(err)
		}
		return events[0]
	}
	ended := func(event engi.EventID, function string) engi.FunctionRun {
		t.Helper()
		for e, err := range log.Follow(t.Context(), "anna", engi.EventFilter{Types: []string{"function.done"}}) {
			if err != nil {
				t.Fatal(err)
			}
			r, err := fix.Run(t.Context(), "anna", engi.FunctionRunID(e.Subject))
			if err != nil {
				t.Fatal(err)
			}
			if r.Event == event && r.Function == function {
				return r
			}
		}
		panic("unreachable: Follow ends with an error")
	}
	first := ended(put("sbx_1", "").ID, "stopped")
	fix.Stop()
	late := put("sbx_2", "")
	fix.Start()
	second := ended(late.ID, "stopped")

	// The end of a run starts the other function, whose end starts no further run.
	for _, r := range []engi.FunctionRun{first, second} {
		ends, err := log.List(t.Context(), "anna", engi.EventFilter{Subject: string(r.ID), Types: []string{"function.done"}})
		if err != nil || len(ends) != 1 {
			t.Fatalf("%v %v", ends, err)
		}
		ended(ends[0].ID, "done")
	}
	// Sandboxes that runs of the function have created and stopped.
	if _, err := log.Append(t.Context(), engi.EventSpec{Owner: "anna", Subject: "sbx_3", Type: "sandbox.running", Actor: string(first.ID)}); err != nil {
		t.Fatal(err)
	}
	put("sbx_3", "")
	put("sbx_4", string(second.ID))
	ended(put("sbx_5", "key_1").ID, "stopped")

	mu.Lock()
	defer mu.Unlock()
	for key, want := range map[string]int{"stopped sbx_1": 1, "stopped sbx_2": 1, "stopped sbx_3": 0, "stopped sbx_4": 0, "stopped sbx_5": 1} {
		if seen[key] != want {
			t.Errorf("%s ran %d times, want %d", key, seen[key], want)
		}
	}
	loops, err := log.List(t.Context(), "anna", engi.EventFilter{Types: []string{engi.EventFunctionLoop}, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	subjects := map[string]int{}
	for _, e := range loops {
		subjects[e.Subject]++
	}
	if subjects["sbx_3"] != 1 || subjects["sbx_4"] != 1 {
		t.Errorf("refused loops: %v", subjects)
	}
}

// TestChainsOfEventsEnd makes a function send the event that starts it.
func TestChainsOfEventsEnd(t *testing.T) {
	var mu sync.Mutex
	n := 0
	fix := functiontest.Open(t, engine(), function.Function{Function: engi.Function{Name: "again", Event: "again"}, Run: func(ctx context.Context, r *function.Run) (any, error) {
		mu.Lock()
		n++
		mu.Unlock()
		_, err := r.Send(ctx, "next", "again", nil)
		return nil, err
	}})
	fix.Send("anna", "again", `{}`)
	for e, err := range fix.Log().Follow(t.Context(), "anna", engi.EventFilter{Types: []string{"function.failed"}}) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := fix.Run(t.Context(), "anna", engi.FunctionRunID(e.Subject))
		if err != nil || r.Error.Kind != engi.Denied || r.Error.Remedy == "" {
			t.Errorf("%+v %v", r.Error, err)
		}
		break
	}
	mu.Lock()
	defer mu.Unlock()
	if n != 32 {
		t.Errorf("it ran %d times, want 32", n)
	}
}

// A gate is an engine that cannot be reached at first.
type gate struct {
	function.Engine
	open atomic.Bool
}

func (g *gate) Start(ctx context.Context, id engi.FunctionRunID, function string) error {
	if !g.open.Load() {
		return engi.Errorf(engi.Unavailable, "the engine's server does not answer")
	}
	return g.Engine.Start(ctx, id, function)
}

// TestRunsSayWhyTheyDoNotBegin starts a run while the engine's server is down.
func TestRunsSayWhyTheyDoNotBegin(t *testing.T) {
	g := &gate{Engine: &memory.Engine{}}
	fix := functiontest.Open(t, func() function.Engine { return g }, functiontest.On("f", 0, func(_ context.Context, r *function.Run) (any, error) { return r.Attempt, nil }))
	id := fix.Send("anna", "f", `{}`)
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		r, err := fix.Run(t.Context(), "anna", id)
		if err != nil {
			t.Fatal(err)
		}
		if r.State == engi.FunctionWaiting && r.Attempt == 0 && r.Error != nil && r.Error.Text == "the engine's server does not answer" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, error %v", r, r.Error)
		}
	}
	g.open.Store(true)
	if r, err := fix.Wait(t.Context(), "anna", id); err != nil || r.State != engi.FunctionDone || string(r.Output) != "1" || r.Error != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestWait waits for a run from several goroutines, before and after its end.
func TestWait(t *testing.T) {
	release := make(chan struct{})
	fix := functiontest.Open(t, engine(), functiontest.On("f", 0, func(context.Context, *function.Run) (any, error) {
		<-release
		return 7, nil
	}))
	id := fix.Send("anna", "f", `{}`)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r, err := fix.Wait(short, "anna", id); !engi.Is(err, engi.Expired) || !r.Ended.IsZero() {
		t.Errorf("%+v %v, want Expired", r, err)
	}
	if _, err := fix.Wait(t.Context(), "bert", id); !engi.Is(err, engi.NotFound) {
		t.Errorf("bert waits for anna's run: %v", err)
	}
	var waiting sync.WaitGroup
	for range 20 {
		waiting.Go(func() {
			if r, err := fix.Wait(t.Context(), "anna", id); err != nil || r.State != engi.FunctionDone || string(r.Output) != "7" {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
	close(release)
	waiting.Wait()
	if r, err := fix.Wait(t.Context(), "anna", id); err != nil || r.State != engi.FunctionDone {
		t.Errorf("%+v %v", r, err)
	}
}
