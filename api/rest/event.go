package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/v1"
)

const (
	eventPath    = "/v1/events"
	functionPath = "/v1/functions"
)

type events struct{ engi.Events }

type anEvent struct {
	ID engi.EventID `path:"id" doc:"of the event"`
}

type listEvents struct {
	Name  string `query:"name" maxLength:"128" doc:"only events of this name"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type aFunctionRun struct {
	ID engi.FunctionRunID `path:"id" doc:"of the run"`
}

type listFunctionRuns struct {
	Function string       `query:"function" maxLength:"128" doc:"only runs of this one"`
	Event    engi.EventID `query:"event" doc:"only runs that the event of this ID started"`
	Name     string       `query:"name" maxLength:"128" doc:"only runs that events of this name started"`
	State    string       `query:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"only these"`
	Limit    int          `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type getFunctionRun struct {
	aFunctionRun
	Wait string `query:"wait" example:"30s" doc:"wait that long for the run to end; at most 60s"`
}

// Events takes in events and shows the functions that they start; service may
// be nil.
func Events(service engi.Events) Resource {
	e := &events{service}
	var absent error
	if service == nil {
		absent = engi.Errorf(engi.Unsupported, "this node takes no events").WithRemedy("switch them on in its configuration, section [events]")
	}
	look, change := reads(engi.ScopeEvents), writes(engi.ScopeEvents)
	return Resource{tag: "events", about: "what has happened, and the durable functions that it starts", missing: absent, routes: []Route{
		send(Route{
			Pattern: "POST " + eventPath, ID: "send-event", Summary: "Send an event", Access: change, Objects: Owned,
			Text: "Once this is answered, the functions that are bound to the event's name will run, whatever happens to the node. " +
				"Data that one of them does not take is refused. An event that nothing is bound to is kept and does nothing.",
			Creates: "a repeated key returns the first event and starts nothing",
			Status:  http.StatusAccepted, Location: "address of the event",
			Bodies: []example{{"echo", "the data come back as output", `{"name": "engi/debug/echo", "data": {"hello": "world"}}`}},
		}, func(c *call, _ *none, q v1.EventRequest) (v1.SentEvent, error) {
			if q.Name == "" {
				return v1.SentEvent{}, invalid("name", "it is missing")
			}
			// The service remembers the key, but not what came with it.
			return taken(c)(once(c, q, creation[engi.Event]{work: func([]string) (engi.Event, error) {
				return e.Send(c, engi.EventSpec{Owner: c.owner(), Name: q.Name, Data: q.Data, Idempotency: c.key})
			}}))
		}),
		list(Route{Pattern: "GET " + eventPath, ID: "list-events", Summary: "List events", Text: "The newest come first.", Access: look},
			func(c *call, in *listEvents) ([]engi.Event, error) {
				return e.List(c, c.owner(), engi.EventFilter{Name: in.Name, Limit: in.Limit})
			}, sentEventOf),
		fetch(Route{Pattern: "GET " + eventPath + "/{id}", ID: "get-event", Summary: "Get an event", Access: look},
			func(c *call, in *anEvent) (v1.SentEvent, error) { return to(sentEventOf)(e.Event(c, c.owner(), in.ID)) }),
		send(Route{
			Pattern: "POST " + eventPath + "/{id}/replay", ID: "replay-event", Summary: "Send an event again", Access: change,
			Text:    "Makes a new event with the same name and data, for all functions that are bound to it now, or for one.",
			Creates: "a repeated key returns the first new event and starts nothing",
			Status:  http.StatusAccepted, Location: "address of the new event", Optional: true,
		}, func(c *call, in *anEvent, q v1.ReplayRequest) (v1.SentEvent, error) {
			return taken(c)(once(c, q, creation[engi.Event]{
				work: func([]string) (engi.Event, error) { return e.Replay(c, c.owner(), in.ID, q.Function) },
				made: func(x engi.Event) []string { return []string{string(x.ID)} },
				find: func(ids []string, _ bool) (engi.Event, error) { return e.Event(c, c.owner(), engi.EventID(ids[0])) },
			}))
		}),
		list(Route{Pattern: "GET " + functionPath, ID: "list-functions", Summary: "List functions", Text: "What can be started by events, or starts by the clock.", Access: look, Objects: Shared},
			func(*call, *none) ([]engi.Function, error) { return e.Functions(), nil }, functionOf),
		list(Route{Pattern: "GET " + functionPath + "/runs", ID: "list-function-runs", Summary: "List runs of functions", Text: "The newest come first, without their steps.", Access: look},
			func(c *call, in *listFunctionRuns) ([]engi.FunctionRun, error) {
				return e.Runs(c, c.owner(), engi.EventFilter{Name: in.Name, Function: in.Function, Event: in.Event, State: engi.FunctionState(in.State), Limit: in.Limit})
			}, functionRunOf),
		fetch(Route{
			Pattern: "GET " + functionPath + "/runs/{id}", ID: "get-function-run", Summary: "Get a run of a function", Access: look,
			Text: "Returns the run as it is, or with wait as it is when it has ended or the time is over.",
		}, e.run),
		act(Route{
			Pattern: "DELETE " + functionPath + "/runs/{id}", ID: "cancel-function-run", Summary: "Cancel a run of a function", Access: change,
			Text: "It ends after the step it is in. Cancelling a run that has ended changes nothing and is no error.",
		}, func(c *call, in *aFunctionRun, _ none) error { return e.Cancel(c, c.owner(), in.ID) }),
	}}
}

// taken answers with an event that was just taken in.
func taken(c *call) func(engi.Event, error) (v1.SentEvent, error) {
	return to(func(x engi.Event) v1.SentEvent {
		c.location(eventPath, string(x.ID))
		return sentEventOf(x)
	})
}

// Pauses between two looks at a run that somebody waits for.
const (
	leastLook = 10 * time.Millisecond
	mostLook  = 250 * time.Millisecond
)

// run returns a run when it has ended or the caller has waited long enough.
func (e *events) run(c *call, in *getFunctionRun) (v1.FunctionRun, error) {
	wait, err := waitOf(in.Wait)
	if err != nil {
		return v1.FunctionRun{}, err
	}
	waiting, cancel := c.waiting()
	defer cancel()
	ctx, cancel := context.WithTimeout(waiting, wait)
	defer cancel()
	for pause := leastLook; ; pause = min(2*pause, mostLook) {
		x, err := e.Run(c, c.owner(), in.ID)
		if err != nil || !x.Ended.IsZero() {
			return functionRunOf(x), err
		}
		look := time.NewTimer(pause)
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return functionRunOf(x), orLeaving(waiting, waiting.Err())
		}
	}
}

func sentEventOf(x engi.Event) v1.SentEvent {
	out := v1.SentEvent{ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Data: x.Data, ReplayOf: string(x.Replay), RunIDs: []string{}, CreatedAt: x.Created.UTC()}
	if len(out.Data) == 0 {
		out.Data = json.RawMessage("{}")
	}
	for _, id := range x.Runs {
		out.RunIDs = append(out.RunIDs, string(id))
	}
	return out
}

func functionOf(f engi.Function) v1.Function {
	return v1.Function{
		Name: f.Name, Description: f.Description, Event: f.Event, Cron: f.Cron, Input: f.Input,
		Retries: f.Retries, Concurrency: f.Concurrency, PerOwner: f.PerOwner, Timeout: v1.Duration(f.Timeout),
	}
}

func functionRunOf(x engi.FunctionRun) v1.FunctionRun {
	out := v1.FunctionRun{
		ID: string(x.ID), Owner: string(x.Owner), Function: x.Function, EventID: string(x.Event), State: string(x.State), Attempt: x.Attempt,
		Output: x.Output, Error: problemOf(x.Error), CreatedAt: x.Created.UTC(), StartedAt: moment(x.Started), EndedAt: moment(x.Ended),
	}
	for _, st := range x.Steps {
		out.Steps = append(out.Steps, v1.FunctionStep{
			Name: st.Name, Attempts: st.Attempts, Output: st.Output, Error: problemOf(st.Error), StartedAt: st.Started.UTC(), EndedAt: moment(st.Ended),
		})
	}
	return out
}
