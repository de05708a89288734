package pagestream

import (
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// aiSDK sends the AI SDK's UI message stream, version 1: one message, with the ID
// of the run, from the next update of a run to its end. The page and its patches
// are parts of data. Their IDs are those of the events, so that a client that receives one
// twice stores it once.
type aiSDK struct {
	Start
	run    engi.RunID
	page   *engi.PageUpdate // page before the run
	called map[string]bool
	failed string // the last error
}

type part = map[string]any

func newAISDK(s Start) Encoder { return &aiSDK{Start: s, called: map[string]bool{}} }

// Encode implements Encoder.
func (a *aiSDK) Encode(u engi.PageUpdate) (events []Event, last bool) {
	send := func(p part) { events = append(events, Event{Data: p}) }
	if u.Run == "" && a.run == "" {
		switch u.Kind {
		case engi.PageReplaced:
			// A part that is not transient would start a message without an ID.
			a.page = &u
			if !a.Answer {
				send(dataPart(u, true))
			}
			if a.Idle {
				return append(events, Event{Text: "[DONE]"}), true
			}
		case engi.PageActed:
			send(dataPart(u, true))
		}
		return events, false
	}
	if a.run == "" {
		a.run = u.Run
		send(part{"type": "start", "messageId": string(u.Run), "messageMetadata": part{"session": a.Session}})
		if !a.Resumed { // a resumed client looks for its calls in the current step
			send(part{"type": "start-step"})
		}
		if a.page != nil {
			p := dataPart(*a.page, false)
			p["id"] = "page" // the message has at most one such part
			send(p)
		}
	}
	switch u.Kind {
	case engi.PageTool:
		if !a.called[u.Call.ID] {
			a.called[u.Call.ID] = true
			send(part{"type": "tool-input-available", "toolCallId": u.Call.ID, "toolName": u.Call.Name, "input": object(u.Call.Arguments), "dynamic": true, "providerExecuted": true})
		}
		switch r := u.Result; {
		case r == nil:
		case r.Failed:
			send(part{"type": "tool-output-error", "toolCallId": u.Call.ID, "errorText": r.Text, "dynamic": true, "providerExecuted": true})
		default:
			send(part{"type": "tool-output-available", "toolCallId": u.Call.ID, "output": r.Text, "dynamic": true, "providerExecuted": true})
		}
	case engi.PageDone:
		if u.Run != a.run {
			return events, false
		}
		switch u.Ended {
		case engi.RunCancelled:
			send(part{"type": "abort", "reason": "cancelled"})
		case engi.RunFailed:
			send(part{"type": "error", "errorText": a.failed})
			send(part{"type": "finish-step"})
			send(part{"type": "finish", "finishReason": "error"})
		default:
			send(part{"type": "finish-step"})
			send(part{"type": "finish", "finishReason": "stop"})
		}
		return append(events, Event{Text: "[DONE]"}), true
	default:
		if u.Kind == engi.PageBad {
			a.failed = u.Text
		}
		send(dataPart(u, u.Seq == 0))
	}
	return events, false
}

// dataPart returns an update as a part of data; a transient part does not belong to the message.
func dataPart(u engi.PageUpdate, transient bool) part {
	e, _ := engiEncoder{}.Encode(u)
	p := part{"type": "data-" + string(u.Kind), "data": e[0].Data}
	if transient {
		p["transient"] = true
	} else {
		p["id"] = strconv.FormatInt(u.Seq, 10)
	}
	return p
}

// Fail implements Encoder.
func (*aiSDK) Fail(p *v1.Problem) Event {
	return Event{Data: part{"type": "error", "errorText": p.Detail}}
}
