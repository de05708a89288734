package rest

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"slices"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const (
	eventPath    = "/v1/events"
	functionPath = "/v1/functions"
)

type events struct {
	log        engi.Events
	functions  engi.Functions
	workspaces engi.Workspaces // nil if the node has none
}

type anEvent = byID[engi.EventID]

type listEvents struct {
	Type      string `query:"type" maxLength:"1000" doc:"Only events of these types, separated by commas; sandbox.* matches all types with this prefix"`
	Name      string `query:"name" maxLength:"128" doc:"Alias of type"`
	Subject   string `query:"subject" maxLength:"128" doc:"Only events about this ID"`
	Owner     string `query:"owner" maxLength:"128" doc:"Only events of this owner, for admins"`
	After     int64  `query:"after" minimum:"-1" default:"-1" doc:"Only events after this seq, oldest first; -1 lists the newest events, or streams new ones"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
	Limit     int    `query:"limit" minimum:"0" maximum:"1000" doc:"Maximum number of events; 0 means 100 in a list, and no limit in a stream"`
}

type aFunctionRun = byID[engi.FunctionRunID]

type listFunctionRuns struct {
	Function string       `query:"function" maxLength:"128" doc:"Only runs of this function"`
	Event    engi.EventID `query:"event" doc:"Only runs that the event with this ID started"`
	Name     string       `query:"name" maxLength:"128" doc:"Only runs that events of this type started"`
	State    string       `query:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"Only objects in this state"`
	Limit    int          `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type getFunctionRun struct {
	aFunctionRun
	Wait string `query:"wait" example:"30s" doc:"Maximum time to wait until the run ends; at most 60s"`
}

// Events returns the routes of the event log. Collaborators see the events of workspaces.
func Events(log engi.Events, functions engi.Functions, workspaces engi.Workspaces) Resource {
	e := &events{log, functions, workspaces}
	return Resource{tag: "events", about: "the log of events, and the durable functions that events start", routes: []Route{
		raw(Route{
			Pattern: "GET " + eventPath, ID: "list-events", Summary: "List or stream events", Access: reads(engi.ScopeEvents),
			Text: "A list has the newest events first, or, with after, the oldest. With an Accept header for NDJSON or SSE, the answer is a stream that continues with new events: " +
				"a client that reconnects with the seq of the last event it received misses nothing and receives nothing twice, also after a restart of the server. " +
				"If the log has dropped some of the requested events to keep its limits, the first event has the type events.dropped. " +
				"Events of a workspace that somebody else shares with the caller are only found with its ID as the subject.",
			Answers: append([]answer{jsonOf[v1.List[v1.Event]](http.StatusOK, nil)}, streamOf[v1.Event](nil, httpio.NDJSON, httpio.SSE)...),
		}, e.list),
		fetch(Route{Pattern: "GET " + eventPath + "/{id}", ID: "get-event", Summary: "Get an event", Access: reads(engi.ScopeEvents)}, e.get),
	}}
}

// Functions returns the routes for events that start durable functions; service may be nil.
func Functions(log engi.Events, service engi.Functions) Resource {
	absent := absentUnless(service != nil, "this node has no functions", "switch them on in its configuration, section [events]")
	f := &events{log: log, functions: service}
	look, change := reads(engi.ScopeEvents), writes(engi.ScopeEvents)
	return Resource{tag: "events", missing: absent, routes: []Route{
		send(Route{
			Pattern: "POST " + eventPath, ID: "send-event", Summary: "Send an event", Access: change, Objects: Owned,
			Text: "After the answer, the functions that are bound to the event's type are certain to run, even if the node crashes. " +
				"Data that one of these functions does not accept is refused. An event that no function is bound to is only recorded.",
			Creates: "a repeated key returns the first event and starts nothing",
			Status:  http.StatusAccepted, Location: "address of the event",
			Bodies: []example{{"echo", "the data come back as output", `{"type": "engi/debug/echo", "data": {"hello": "world"}}`}},
		}, f.send),
		send(Route{
			Pattern: "POST " + eventPath + "/{id}/replay", ID: "replay-event", Summary: "Send an event again", Access: change,
			Text:    "Creates a new event with the same type and data, for all functions that are bound to the type now, or for one function.",
			Creates: "a repeated key returns the first new event and starts nothing",
			Status:  http.StatusAccepted, Location: "address of the new event", Optional: true,
		}, f.replay),
		list(Route{Pattern: "GET " + functionPath, ID: "list-functions", Summary: "List functions", Text: "Lists the functions that events or schedules start.", Access: look, Objects: Shared},
			func(*call, *none) ([]engi.Function, error) { return service.Functions(), nil }, functionOf),
		list(Route{Pattern: "GET " + functionPath + "/runs", ID: "list-function-runs", Summary: "List function runs", Text: "The newest runs come first, without their steps.", Access: look},
			func(c *call, in *listFunctionRuns) ([]engi.FunctionRun, error) {
				return service.Runs(c, c.viewer(), engi.FunctionFilter{Type: in.Name, Function: in.Function, Event: in.Event, State: engi.FunctionState(in.State), Limit: in.Limit})
			}, functionRunOf),
		fetch(Route{
			Pattern: "GET " + functionPath + "/runs/{id}", ID: "get-function-run", Summary: "Get a function run", Access: look,
			Text: "Returns the run as it is now; with wait, once it has ended or the time is over.",
		}, f.run),
		act(Route{
			Pattern: "DELETE " + functionPath + "/runs/{id}", ID: "cancel-function-run", Summary: "Cancel a function run", Access: change,
			Text: "The run ends after its current step. Cancelling a run that has ended is no error.",
		}, ending(service, engi.Functions.Cancel)),
	}}
}

// list answers with recorded events, or with a stream of new ones.
func (e *events) list(c *call, in *listEvents, _ none) error {
	f := engi.EventFilter{Owner: engi.Owner(in.Owner), Subject: in.Subject, Limit: in.Limit}
	if in.Type != "" {
		f.Types = strings.Split(in.Type, ",")
	}
	if in.Name != "" {
		f.Types = append(f.Types, in.Name)
	}
	after, err := lastEvent(in.LastEvent, in.After)
	if err != nil {
		return err
	}
	viewer, err := e.viewerOf(c, in.Subject)
	if err != nil {
		return err
	}
	if c.form == httpio.JSON {
		f.After, f.Oldest = max(after, 0), after >= 0
		all, err := e.log.List(c, viewer, f)
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, listOf(all, eventOf))
	}
	leave, err := c.s.watches.Join("owner " + string(c.auth.Owner))
	if err != nil {
		return err
	}
	defer leave()
	if after < 0 {
		if after, err = e.log.Last(c); err != nil {
			return err
		}
	}
	f.After = after
	sent := 0
	return stream(c, func(ctx context.Context) iter.Seq2[engi.Event, error] { return e.follow(ctx, c.viewer(), viewer, f) },
		func(out *httpio.EventWriter, x engi.Event) (bool, error) {
			after = x.Seq
			sent++
			return sent == in.Limit, out.Send("message", atOffset(x.Seq), eventOf(x))
		},
		func(kind string, p *v1.Problem) any { return v1.Event{Type: kind, Seq: after, Error: p} })
}

// viewerOf returns who sees the events about a subject: the caller, or, if it is a workspace that somebody else
// shares with the caller, its owner.
func (e *events) viewerOf(c *call, subject string) (engi.Viewer, error) {
	id, err := engi.ParseWorkspaceID(subject)
	if err != nil || e.workspaces == nil {
		return c.viewer(), nil
	}
	w, err := e.workspaces.Get(c, c.viewer(), string(id))
	if engi.Is(err, engi.NotFound) || err == nil && c.viewer().Sees(w.Owner) {
		return c.viewer(), nil // the owner also sees those of a workspace that was removed
	}
	return w.Owner.Viewer(), err
}

// follow yields events that viewer sees, until caller may not see them any more.
func (e *events) follow(ctx context.Context, caller, viewer engi.Viewer, f engi.EventFilter) iter.Seq2[engi.Event, error] {
	if caller == viewer {
		return e.log.Follow(ctx, viewer, f)
	}
	return func(yield func(engi.Event, error) bool) {
		for x, err := range e.log.Follow(ctx, viewer, f) {
			if x.Type == engi.EventsDropped {
				continue // it counts all events of the owner
			}
			if _, lost := e.workspaces.Get(ctx, caller, f.Subject); err == nil && lost != nil {
				yield(engi.Event{}, lost)
				return
			}
			if !yield(x, err) {
				return
			}
		}
	}
}

func (e *events) get(c *call, in *anEvent) (v1.Event, error) {
	x, err := e.log.Get(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Event{}, err
	}
	return e.withRuns(c, x)
}

// withRuns returns an event with the runs that it started.
func (e *events) withRuns(c *call, x engi.Event) (v1.Event, error) {
	out := eventOf(x)
	if e.functions == nil {
		return out, nil
	}
	runs, err := e.functions.Runs(c, x.Owner.Viewer(), engi.FunctionFilter{Event: x.ID})
	slices.Reverse(runs) // in the order of their start
	for _, r := range runs {
		out.RunIDs = append(out.RunIDs, string(r.ID))
	}
	return out, err
}

func (e *events) send(c *call, _ *none, q v1.EventRequest) (v1.Event, error) {
	kind := cmp.Or(q.Type, q.Name)
	switch {
	case kind == "":
		return v1.Event{}, invalid("type", "it is missing")
	case q.Name != "" && q.Name != kind:
		return v1.Event{}, invalid("name", "it contradicts type; send one of the two")
	}
	if err := e.mayStart(c, kind); err != nil {
		return v1.Event{}, err
	}
	x, _, err := e.functions.Send(c, engi.EventSpec{Owner: c.owner(), Type: kind, Data: q.Data, Idempotency: c.key, Fingerprint: c.fingerprint(q)})
	return e.sent(c, x, err)
}

// mayStart reports Denied if an event of this type starts a function that needs
// more than the caller's key allows.
func (e *events) mayStart(c *call, kind string) error {
	for _, f := range e.functions.Functions() {
		for _, s := range f.Scopes {
			if err := c.auth.May(s, true); f.Event == kind && err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *events) replay(c *call, in *anEvent, q v1.ReplayRequest) (v1.Event, error) {
	old, err := e.log.Get(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Event{}, err
	}
	if err := e.mayStart(c, old.Type); err != nil {
		return v1.Event{}, err
	}
	x, err := once(c, q, idempotency.Creation[engi.Event]{
		Work: func([]string) (engi.Event, error) {
			x, _, err := e.functions.Replay(c, c.viewer(), in.ID, q.Function)
			return x, err
		},
		Made: func(x engi.Event) []string { return []string{string(x.ID)} },
		Find: func(ids []string, _ bool) (engi.Event, error) {
			return e.log.Get(c, c.viewer(), engi.EventID(ids[0]))
		},
	})
	return e.sent(c, x, err)
}

// sent answers with an event that was just recorded.
func (e *events) sent(c *call, x engi.Event, err error) (v1.Event, error) {
	if err != nil {
		return v1.Event{}, err
	}
	c.location(eventPath, string(x.ID))
	return e.withRuns(c, x)
}

// run returns a run when it has ended, or after the caller's waiting time.
func (e *events) run(c *call, in *getFunctionRun) (v1.FunctionRun, error) {
	if err := await(c, in.Wait, in.ID, e.functions.Wait); err != nil {
		return v1.FunctionRun{}, err
	}
	return to(functionRunOf)(e.functions.Run(c, c.viewer(), in.ID))
}

func eventOf(x engi.Event) v1.Event {
	return v1.Event{
		Seq: x.Seq, ID: string(x.ID), Owner: string(x.Owner), Subject: x.Subject, Type: x.Type, Name: x.Type, Actor: x.Actor,
		Data: x.Data, ReplayOf: string(x.Replay), CreatedAt: x.Time.UTC(),
	}
}

func functionOf(f engi.Function) v1.Function {
	return v1.Function{
		Name: f.Name, Description: f.Description, Event: f.Event, Cron: f.Cron, Scopes: words(f.Scopes...), Input: f.Input,
		Retries: f.Retries, Concurrency: f.Concurrency, PerOwner: f.PerOwner, Timeout: v1.Duration(f.Timeout),
	}
}

func functionRunOf(x engi.FunctionRun) v1.FunctionRun {
	out := v1.FunctionRun{
		ID: string(x.ID), Owner: string(x.Owner), Function: x.Function, EventID: string(x.Event), State: string(x.State), Attempt: x.Attempt,
		Output: x.Output, Error: problemOf(x.Error), CreatedAt: x.Created.UTC(), StartedAt: moment(x.Started), EndedAt: moment(x.Ended),
	}
	if w := x.Wait; w != nil {
		out.Wait = &v1.FunctionWait{Step: w.Step, Types: w.Types, Subject: w.Subject, Until: moment(w.Until)}
	}
	for _, st := range x.Steps {
		out.Steps = append(out.Steps, v1.FunctionStep{
			Name: st.Name, Attempts: st.Attempts, Output: st.Output, Error: problemOf(st.Error), StartedAt: st.Started.UTC(), EndedAt: moment(st.Ended),
		})
	}
	return out
}
