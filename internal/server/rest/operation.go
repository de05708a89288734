package rest

import (
	"context"
	"iter"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const operationPath = "/v1/operations"

type operations struct{ engi.Operations }

type anOperation = byID[engi.OperationID]

type listOperations struct {
	Type  string `query:"type" maxLength:"64" doc:"Only objects in this state"`
	State string `query:"state" enum:"running,done,failed,cancelled" doc:"Only objects in this state"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type getOperation struct {
	anOperation
	Wait string `query:"wait" example:"30s" doc:"Maximum time to wait until the operation ends; at most 60s"`
}

type watchOperation struct {
	anOperation
	Offset    int64  `query:"offset" minimum:"0" doc:"Offset to resume from: the offset of the last event received"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of offset, as browsers send it; takes precedence over offset"`
}

// Operations returns the routes of operations: work that outlasts its request.
func Operations(service engi.Operations) Resource {
	o := &operations{service}
	const one = operationPath + "/{id}"
	return Resource{tag: "operations", about: "work that lasts longer than a request", routes: []Route{
		list(Route{Pattern: "GET " + operationPath, ID: "list-operations", Summary: "List operations", Text: "The newest come first.", Access: anyKey},
			func(c *call, in *listOperations) ([]engi.Operation, error) {
				return o.List(c, c.viewer(), engi.OperationFilter{Type: in.Type, State: engi.OperationState(in.State), Limit: in.Limit})
			}, operationOf),
		fetch(Route{
			Pattern: "GET " + one, ID: "get-operation", Summary: "Get an operation", Access: anyKey,
			Text: "Returns the record as it is now; with wait, once the operation has ended or the time is over.",
		}, o.get),
		raw(Route{
			Pattern: "GET " + one + "/events", ID: "watch-operation", Summary: "Watch an operation", Access: anyKey,
			Text: "Streams the operation's progress from an offset, and its result as the last event. A client that reconnects with the offset of the last event it received loses nothing, " +
				"even after a restart of the server, which starts the operation again.",
			Answers: streamOf[v1.OperationUpdate](nil, httpio.NDJSON, httpio.SSE),
		}, o.watch),
		act(Route{
			Pattern: "DELETE " + one, ID: "cancel-operation", Summary: "Cancel an operation", Access: writes(""),
			Text: "Answers when the operation has ended. Cancelling an operation that has ended is no error.",
		}, ending(service, engi.Operations.Cancel)),
	}}
}

func (o *operations) get(c *call, in *getOperation) (v1.Operation, error) {
	if err := await(c, in.Wait, in.ID, o.Wait); err != nil {
		return v1.Operation{}, err
	}
	return to(operationOf)(o.Get(c, c.viewer(), in.ID))
}

func (o *operations) watch(c *call, in *watchOperation, _ none) error {
	from, err := lastEvent(in.LastEvent, in.Offset)
	if err != nil {
		return err
	}
	if _, err := o.Get(c, c.viewer(), in.ID); err != nil {
		return err // the stream has not started
	}
	last := from
	return stream(c, func(ctx context.Context) iter.Seq2[engi.OperationUpdate, error] {
		return o.Watch(ctx, c.viewer(), in.ID, from)
	},
		func(out *httpio.EventWriter, e engi.OperationUpdate) (bool, error) {
			last = e.Offset
			wire := operationEventOf(e)
			return e.Operation != nil, out.Send(wire.Type, atOffset(wire.Offset), wire)
		},
		func(kind string, p *v1.Problem) any { return v1.OperationUpdate{Type: kind, Offset: last, Error: p} })
}

func operationOf(x engi.Operation) v1.Operation {
	out := v1.Operation{
		ID: string(x.ID), Owner: string(x.Owner), Type: x.Type, Subject: x.Subject, State: string(x.State), Attempt: x.Attempt,
		Error: problemOf(x.Error), CreatedAt: x.Created.UTC(), EndedAt: moment(x.Ended),
	}
	if x.State == engi.OperationDone && x.Type == engi.OperationBuildTemplate {
		out.Result = templatePath + "/" + x.Subject
	}
	return out
}

func operationEventOf(x engi.OperationUpdate) v1.OperationUpdate {
	p := x.Progress
	out := v1.OperationUpdate{Type: "progress", Offset: x.Offset, Step: p.Step, Steps: p.Steps, Name: p.Name, Done: p.Done, Total: p.Total}
	if p.Log != "" {
		out.Type, out.Log = "log", strings.ToValidUTF8(p.Log, "\uFFFD")
	}
	if x.Operation != nil {
		out.Type, out.Operation = v1.EventResult, new(operationOf(*x.Operation))
	}
	return out
}
