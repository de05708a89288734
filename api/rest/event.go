package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const (
	events    = "/v1/events"
	functions = "/v1/functions"
)

type postEvent struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first event and starts nothing"`
}

type listEvents struct {
	Name  string `query:"name" maxLength:"128" doc:"only events of this name"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type anEvent struct {
	ID string `path:"id" doc:"of the event"`
}

type listFunctionRuns struct {
	Function string `query:"function" maxLength:"128" doc:"only runs of this one"`
	Event    string `query:"event" doc:"only runs that the event of this ID started"`
	Name     string `query:"name" maxLength:"128" doc:"only runs that events of this name started"`
	State    string `query:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"only these"`
	Limit    int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type aFunctionRun struct {
	ID string `path:"id" doc:"of the run"`
}

type getFunctionRun struct {
	ID   string `path:"id" doc:"of the run"`
	Wait string `query:"wait" example:"30s" doc:"wait that long for the run to end; at most 60s"`
}

func (s *server) serveEvents() {
	handle(s, s.opSendEvent(), s.sendEvent)
	handle(s, s.opListEvents(), s.listEvents)
	handle(s, s.opGetEvent(), s.getEvent)
	handle(s, s.opReplayEvent(), s.replayEvent)
	handle(s, s.opListFunctions(), s.listFunctions)
	handle(s, s.opListFunctionRuns(), s.listFunctionRuns)
	handle(s, s.opGetFunctionRun(), s.getFunctionRun)
	handle(s, s.opCancelFunctionRun(), s.cancelFunctionRun)
}

var errNoEvents = engi.Errorf(engi.Unsupported, "this node takes no events").
	WithRemedy("switch them on in its configuration, section [events]")

func (s *server) sendEvent(w http.ResponseWriter, r *http.Request, in *postEvent) error {
	if s.functions == nil {
		return errNoEvents
	}
	q, err := decode[v1.EventRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	if q.Name == "" {
		c.addf("name", "it is missing")
	}
	if text := checkIdempotency(in.Idempotency); text != "" {
		c.addf("header.Idempotency-Key", "%s", text)
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	x, runs, err := s.functions.Send(r.Context(), engi.EventSpec{Owner: callOf(r.Context()).key.Owner, Type: q.Name, Data: q.Data, Idempotency: in.Idempotency})
	if err != nil {
		return err
	}
	return s.replyEvent(w, x, runs)
}

// replyEvent answers with an event that was just taken in.
func (s *server) replyEvent(w http.ResponseWriter, x engi.Event, runs []engi.FunctionRunID) error {
	w.Header().Set("Location", events+"/"+string(x.ID))
	return s.reply(w, http.StatusAccepted, sentEventOf(x, runs))
}

func (s *server) listEvents(w http.ResponseWriter, r *http.Request, in *listEvents) error {
	if s.functions == nil {
		return errNoEvents
	}
	f := engi.EventFilter{Limit: in.Limit}
	if in.Name != "" {
		f.Types = []string{in.Name}
	}
	xs, err := s.log_.List(r.Context(), callOf(r.Context()).viewer(), f)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, func(x engi.Event) v1.SentEvent { return sentEventOf(x, nil) }))
}

func (s *server) getEvent(w http.ResponseWriter, r *http.Request, in *anEvent) error {
	if s.functions == nil {
		return errNoEvents
	}
	id, err := engi.ParseEventID(in.ID)
	if err != nil {
		return err
	}
	x, err := s.log_.Get(r.Context(), callOf(r.Context()).viewer(), id)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sentEventOf(x, nil))
}

func (s *server) replayEvent(w http.ResponseWriter, r *http.Request, in *anEvent) error {
	if s.functions == nil {
		return errNoEvents
	}
	id, err := engi.ParseEventID(in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.ReplayRequest](s, w, r)
	if err != nil {
		return err
	}
	x, runs, err := s.functions.Replay(r.Context(), callOf(r.Context()).viewer(), id, q.Function)
	if err != nil {
		return err
	}
	return s.replyEvent(w, x, runs)
}

func (s *server) listFunctions(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	if s.functions == nil {
		return errNoEvents
	}
	return s.reply(w, http.StatusOK, listOf(s.functions.Functions(), functionOf))
}

func (s *server) listFunctionRuns(w http.ResponseWriter, r *http.Request, in *listFunctionRuns) error {
	if s.functions == nil {
		return errNoEvents
	}
	f := engi.FunctionFilter{Type: in.Name, Function: in.Function, State: engi.FunctionState(in.State), Limit: in.Limit}
	if in.Event != "" {
		var err error
		if f.Event, err = engi.ParseEventID(in.Event); err != nil {
			return err
		}
	}
	xs, err := s.functions.Runs(r.Context(), callOf(r.Context()).viewer(), f)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, functionRunOf))
}

func (s *server) getFunctionRun(w http.ResponseWriter, r *http.Request, in *getFunctionRun) error {
	if s.functions == nil {
		return errNoEvents
	}
	id, err := engi.ParseFunctionRunID(in.ID)
	if err != nil {
		return err
	}
	var wait time.Duration
	if in.Wait != "" {
		d, err := v1.ParseDuration(in.Wait)
		if err != nil {
			return httpio.Invalid([]v1.Fault{{Field: "query.wait", Detail: err.Error()}})
		}
		wait = min(d.Std(), maxWait)
	}
	x, err := s.runEnded(r, id, wait)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, functionRunOf(x))
}

// runEnded returns a run when it has ended or d has passed, whichever is first.
func (s *server) runEnded(r *http.Request, id engi.FunctionRunID, d time.Duration) (engi.FunctionRun, error) {
	waiting, cancel := s.waiting(r)
	defer cancel()
	ctx, cancel := context.WithTimeout(waiting, d)
	defer cancel()
	x, err := s.functions.Wait(ctx, callOf(r.Context()).viewer(), id)
	if engi.KindOf(err) == engi.Expired && !x.Created.IsZero() && waiting.Err() == nil {
		err = nil // the time is over: as it is
	}
	return x, whole(waiting, err)
}

func (s *server) cancelFunctionRun(w http.ResponseWriter, r *http.Request, in *aFunctionRun) error {
	if s.functions == nil {
		return errNoEvents
	}
	id, err := engi.ParseFunctionRunID(in.ID)
	if err != nil {
		return err
	}
	if err := s.functions.Cancel(r.Context(), callOf(r.Context()).viewer(), id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func sentEventOf(x engi.Event, runs []engi.FunctionRunID) v1.SentEvent {
	out := v1.SentEvent{ID: string(x.ID), Owner: string(x.Owner), Name: x.Type, Data: x.Data, ReplayOf: string(x.Replay), RunIDs: []string{}, CreatedAt: x.Time.UTC()}
	if len(out.Data) == 0 {
		out.Data = json.RawMessage("{}")
	}
	for _, id := range runs {
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

// problemOf describes an error that a record keeps.
func problemOf(e *engi.Error) *v1.Problem {
	if e == nil {
		return nil
	}
	return new(httpio.Describe(e, ""))
}

func (s *server) opSendEvent() huma.Operation {
	op := s.operation(http.MethodPost, events, "send-event", "events", "Send an event",
		"Once this is answered, the functions that are bound to the event's name will run, whatever happens to the node. "+
			"Data that one of them does not take is refused. An event that nothing is bound to is kept and does nothing.", http.StatusAccepted)
	accepts[v1.EventRequest](s, &op, map[string]*huma.Example{
		"echo": {Summary: "the data come back as output", Value: json.RawMessage(`{"name": "engi/debug/echo", "data": {"hello": "world"}}`)},
	})
	answers[v1.SentEvent](s, &op, http.StatusAccepted, string(httpio.JSON), nil)
	header(&op, http.StatusAccepted, "Location", "address of the event")
	return op
}

func (s *server) opListEvents() huma.Operation {
	op := s.operation(http.MethodGet, events, "list-events", "events", "List events", "The newest come first.", http.StatusOK)
	answers[v1.List[v1.SentEvent]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetEvent() huma.Operation {
	op := s.operation(http.MethodGet, events+"/{id}", "get-event", "events", "Get an event", "", http.StatusOK)
	answers[v1.SentEvent](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opReplayEvent() huma.Operation {
	op := s.operation(http.MethodPost, events+"/{id}/replay", "replay-event", "events", "Send an event again",
		"Makes a new event with the same name and data, for all functions that are bound to it now, or for one.", http.StatusAccepted)
	mayAccept[v1.ReplayRequest](s, &op)
	answers[v1.SentEvent](s, &op, http.StatusAccepted, string(httpio.JSON), nil)
	header(&op, http.StatusAccepted, "Location", "address of the new event")
	return op
}

func (s *server) opListFunctions() huma.Operation {
	op := s.operation(http.MethodGet, functions, "list-functions", "events", "List functions", "What can be started by events, or starts by the clock.", http.StatusOK)
	answers[v1.List[v1.Function]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opListFunctionRuns() huma.Operation {
	op := s.operation(http.MethodGet, functions+"/runs", "list-function-runs", "events", "List runs of functions", "The newest come first, without their steps.", http.StatusOK)
	answers[v1.List[v1.FunctionRun]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetFunctionRun() huma.Operation {
	op := s.operation(http.MethodGet, functions+"/runs/{id}", "get-function-run", "events", "Get a run of a function",
		"Returns the run as it is, or with wait as it is when it has ended or the time is over.", http.StatusOK)
	answers[v1.FunctionRun](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opCancelFunctionRun() huma.Operation {
	return s.operation(http.MethodDelete, functions+"/runs/{id}", "cancel-function-run", "events", "Cancel a run of a function",
		"It ends after the step it is in. Cancelling a run that has ended changes nothing and is no error.", http.StatusNoContent)
}
