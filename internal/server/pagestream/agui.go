package pagestream

import (
	"fmt"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// agUI sends the events of AG-UI 1.0. The state is the page: html, the patches that
// have changed it since, and partial, the unfinished page that shows instead. A run, its message and its calls are opened when
// one of their events is first sent on a connection, even if they were open on
// an earlier one: a client that verifies a stream sees only its own connection.
type agUI struct {
	Start
	page   *engi.PageUpdate // page at the start of the next run
	run    engi.RunID       // open run; empty for none
	part   bool             // the state has a partial page
	spoken bool             // the run's message is open
	called map[string]bool
	failed string // the last error
}

func newAGUI(s Start) Encoder { return &agUI{Start: s, called: map[string]bool{}} }

// aEvent is an event of AG-UI, without its type.
type aEvent = map[string]any

// Encode implements Encoder.
func (a *agUI) Encode(u engi.PageUpdate) (events []Event, last bool) {
	send := func(kind string, e aEvent) {
		e["type"] = kind
		if !u.Time.IsZero() {
			e["timestamp"] = u.Time.UnixMilli()
		}
		events = append(events, Event{Data: e})
	}
	custom := func() {
		e, _ := engiEncoder{}.Encode(u)
		send("CUSTOM", aEvent{"name": "engi." + string(u.Kind), "value": e[0].Data})
	}
	started := func(run string) { send("RUN_STARTED", aEvent{"threadId": a.Session, "runId": run}) }
	finished := func(run string) { send("RUN_FINISHED", aEvent{"threadId": a.Session, "runId": run}) }
	snapshot := func(page engi.PageUpdate) {
		send("STATE_SNAPSHOT", aEvent{"snapshot": aEvent{"html": page.HTML, "patches": []any{}, "partial": nil}})
	}
	partial := func(html any) {
		send("STATE_DELTA", aEvent{"delta": []any{aEvent{"op": "add", "path": "/partial", "value": html}}})
	}
	if u.Run == "" && a.run == "" {
		if a.Answer && u.Kind == engi.PageReplaced {
			a.page = &u
			return nil, false
		}
		// Events must belong to a run, so this event becomes one.
		run := fmt.Sprintf("%s-%d", u.Kind, u.Seq)
		started(run)
		if u.Kind == engi.PageReplaced {
			snapshot(u)
		} else {
			custom()
		}
		finished(run)
		return events, false
	}
	if u.Run != "" && u.Run != a.run {
		if a.run != "" { // the end of the run was not seen
			a.endMessage(send)
			finished(string(a.run))
		}
		a.run = u.Run
		started(string(a.run))
		if a.page != nil {
			snapshot(*a.page)
			a.page = nil
		}
		a.part = a.part || a.Resumed // an earlier connection may have sent a partial page
	}
	if a.part && !u.Partial && u.Kind != engi.PageReplaced {
		partial(nil)
	}
	a.part = u.Partial
	switch {
	case u.Partial:
		partial(u.HTML)
	case u.Kind == engi.PageReplaced:
		snapshot(u)
	case u.Kind == engi.PagePatched:
		var delta []any
		for _, p := range u.Patches {
			delta = append(delta, aEvent{"op": "add", "path": "/patches/-", "value": patchOf(p)})
		}
		if delta != nil {
			send("STATE_DELTA", aEvent{"delta": delta})
		}
	case u.Kind == engi.PageTool:
		a.tool(u, send)
	case u.Kind == engi.PageBad:
		a.failed = u.Text
		if !a.spoken {
			a.spoken = true
			send("TEXT_MESSAGE_START", aEvent{"messageId": a.run, "role": "assistant"})
		}
		send("TEXT_MESSAGE_CONTENT", aEvent{"messageId": a.run, "delta": u.Text + "\n"})
	case u.Kind == engi.PageDone:
		if u.Ended == engi.RunFailed {
			send("RUN_ERROR", aEvent{"message": a.failed})
			return events, true
		}
		a.endMessage(send)
		end := aEvent{"threadId": a.Session, "runId": a.run}
		if u.Ended == engi.RunCancelled {
			end["outcome"] = aEvent{"type": "cancelled"}
		}
		send("RUN_FINISHED", end)
		return events, true
	default:
		custom()
	}
	return events, false
}

func (a *agUI) endMessage(send func(string, aEvent)) {
	if a.spoken {
		send("TEXT_MESSAGE_END", aEvent{"messageId": a.run})
		a.spoken = false
	}
}

// tool sends the start of a call, if the client needs it, and its result.
func (a *agUI) tool(u engi.PageUpdate, send func(string, aEvent)) {
	id := u.Call.ID
	if !a.called[id] {
		a.called[id] = true
		send("TOOL_CALL_START", aEvent{"toolCallId": id, "toolCallName": u.Call.Name, "parentMessageId": a.run})
		// A client that resumes has the arguments, and would append them again.
		if u.Call.Arguments != "" && (u.Result == nil || !a.Resumed) {
			send("TOOL_CALL_ARGS", aEvent{"toolCallId": id, "delta": u.Call.Arguments})
		}
		send("TOOL_CALL_END", aEvent{"toolCallId": id})
	}
	if r := u.Result; r != nil {
		send("TOOL_CALL_RESULT", aEvent{"messageId": id + "-result", "toolCallId": id, "content": r.Text, "role": "tool"})
	}
}

// Fail implements Encoder.
func (*agUI) Fail(p *v1.Problem) Event {
	return Event{Data: aEvent{"type": "RUN_ERROR", "message": p.Detail, "code": p.Kind}}
}
