package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// Events is a fake with three functions: echo, on engi/debug/echo, returns the
// event's data in one step; fail, on engi/debug/fail, fails; wait, on
// engi/debug/wait, runs until it is cancelled. It is safe for concurrent use.
type Events struct {
	mu     sync.Mutex
	events []engi.Event // newest first, as the runs
	keys   map[string]engi.EventID
	runs   []engi.FunctionRun
}

var _ engi.Events = (*Events)(nil)

var eventName = regexp.MustCompile(`^[A-Za-z0-9/._-]{1,128}$`)

// Functions implements engi.Events.
func (*Events) Functions() []engi.Function {
	return []engi.Function{
		{Name: "echo", Description: "says it again", Event: "engi/debug/echo", Retries: 3},
		{Name: "fail", Event: "engi/debug/fail", Concurrency: 2, PerOwner: 1, Timeout: time.Minute},
		{Name: "wait", Event: "engi/debug/wait", Cron: "0 4 * * *", Input: json.RawMessage(`{"type":"object"}`)},
	}
}

// Send implements engi.Events.
func (e *Events) Send(_ context.Context, spec engi.EventSpec) (engi.Event, error) {
	if len(spec.Data) == 0 {
		spec.Data = json.RawMessage("{}")
	}
	if !eventName.MatchString(spec.Name) {
		return engi.Event{}, engi.Errorf(engi.Invalid, "%.40q is not the name of an event", spec.Name).WithRemedy("use letters, digits and /._-")
	}
	if !bytes.HasPrefix(bytes.TrimSpace(spec.Data), []byte("{")) || !json.Valid(spec.Data) || len(spec.Data) > 256<<10 {
		return engi.Event{}, engi.Errorf(engi.Invalid, "the data of an event is an object of 256 KiB at most")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(spec.Owner) + "\x00" + spec.Idempotency
	if first, ok := e.keys[key]; ok && spec.Idempotency != "" {
		return e.find(spec.Owner, first)
	}
	x := e.send(engi.Event{Owner: spec.Owner, Name: spec.Name, Data: spec.Data}, "")
	if e.keys == nil {
		e.keys = map[string]engi.EventID{}
	}
	e.keys[key] = x.ID
	return x, nil
}

// send starts the functions of x, or only the named one.
func (e *Events) send(x engi.Event, function string) engi.Event {
	now := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	x.ID, x.Created = engi.NewEventID(), now
	for _, f := range e.Functions() {
		if f.Event != x.Name || function != "" && f.Name != function {
			continue
		}
		r := engi.FunctionRun{
			ID: engi.NewFunctionRunID(), Owner: x.Owner, Function: f.Name, Event: x.ID, Attempt: 1, Created: now, Started: now,
			Steps: []engi.FunctionStep{{Name: f.Name, Attempts: 1, Started: now}},
		}
		st := &r.Steps[0]
		switch f.Name {
		case "echo":
			r.State, r.Output, r.Ended = engi.FunctionDone, x.Data, now.Add(time.Second)
			st.Output, st.Ended = x.Data, r.Ended
		case "fail":
			r.State, r.Ended = engi.FunctionFailed, now.Add(time.Second)
			r.Error = engi.Errorf(engi.NotFound, "there is no sandbox").WithRemedy("send the ID of one that lives")
			st.Error, st.Ended = r.Error, r.Ended
		default:
			r.State = engi.FunctionRunning
		}
		e.runs = slices.Insert(e.runs, 0, r)
		x.Runs = append(x.Runs, r.ID)
	}
	e.events = slices.Insert(e.events, 0, x)
	return x
}

func (e *Events) find(owner engi.Owner, id engi.EventID) (engi.Event, error) {
	for _, x := range e.events {
		if x.ID == id && (owner == "" || x.Owner == owner) {
			return x, nil
		}
	}
	return engi.Event{}, engi.Errorf(engi.NotFound, "there is no such event")
}

// Replay implements engi.Events.
func (e *Events) Replay(_ context.Context, owner engi.Owner, id engi.EventID, function string) (engi.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, err := e.find(owner, id)
	if err != nil {
		return engi.Event{}, err
	}
	if function != "" && !slices.ContainsFunc(e.Functions(), func(f engi.Function) bool { return f.Name == function && f.Event == x.Name }) {
		return engi.Event{}, engi.Errorf(engi.NotFound, "no function %.40q is bound to %s", function, x.Name)
	}
	return e.send(engi.Event{Owner: x.Owner, Name: x.Name, Data: x.Data, Replay: x.ID}, function), nil
}

// Event implements engi.Events.
func (e *Events) Event(_ context.Context, owner engi.Owner, id engi.EventID) (engi.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.find(owner, id)
}

// List implements engi.Events.
func (e *Events) List(_ context.Context, owner engi.Owner, f engi.EventFilter) (list []engi.Event, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.events {
		if len(list) < limitOf(f.Limit) && (owner == "" || x.Owner == owner) && (f.Name == "" || x.Name == f.Name) {
			list = append(list, x)
		}
	}
	return list, nil
}

// limitOf returns how many items a filter asks for.
func limitOf(limit int) int {
	if limit == 0 {
		return 100
	}
	return limit
}

// Runs implements engi.Events.
func (e *Events) Runs(_ context.Context, owner engi.Owner, f engi.EventFilter) (list []engi.FunctionRun, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.runs {
		by, _ := e.find("", x.Event)
		if len(list) < limitOf(f.Limit) && (owner == "" || x.Owner == owner) && (f.Function == "" || x.Function == f.Function) &&
			(f.State == "" || x.State == f.State) && (f.Event == "" || x.Event == f.Event) && (f.Name == "" || by.Name == f.Name) {
			x.Steps = nil
			list = append(list, x)
		}
	}
	return list, nil
}

func (e *Events) run(owner engi.Owner, id engi.FunctionRunID) (*engi.FunctionRun, error) {
	for i, x := range e.runs {
		if x.ID == id && (owner == "" || x.Owner == owner) {
			return &e.runs[i], nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no such run")
}

// Run implements engi.Events.
func (e *Events) Run(_ context.Context, owner engi.Owner, id engi.FunctionRunID) (engi.FunctionRun, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, err := e.run(owner, id)
	if err != nil {
		return engi.FunctionRun{}, err
	}
	return *x, nil
}

// Cancel implements engi.Events.
func (e *Events) Cancel(_ context.Context, owner engi.Owner, id engi.FunctionRunID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, err := e.run(owner, id)
	if err == nil && x.Ended.IsZero() {
		x.State, x.Ended = engi.FunctionCancelled, x.Started.Add(time.Second)
	}
	return err
}
