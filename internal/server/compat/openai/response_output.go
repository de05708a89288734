package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A responseBuilder builds the output of a response from the updates of its run, and
// sends each event as it happens.
type responseBuilder struct {
	run      engi.Run
	note     responseNote
	typed    bool // the answer is JSON, and text before it is not part of it
	thoughts bool // the request asks for thoughts

	send     func(kind string, event map[string]any) bool // sends an event, and returns false if the client has left; nil if no client follows
	sequence int                                          // sequence number of the last event
	left     bool                                         // the client has left

	output []map[string]any
	step   int            // step that is being written
	from   int            // index in output of the step's first item
	next   int            // index of the next item in the stream
	open   map[string]any // item that is being written; nil if there is none
	text   strings.Builder
}

func (f *front) responseBuilder(x engi.Run, note responseNote) *responseBuilder {
	b := &responseBuilder{run: x, note: note, sequence: -1, output: []map[string]any{}}
	var text struct{ Format responseFormat }
	var reasoning struct{ Summary *string }
	_, _ = json.Unmarshal(note["text"], &text), json.Unmarshal(note["reasoning"], &reasoning) // both were checked when the note was made
	b.thoughts = reasoning.Summary != nil
	b.typed = text.Format.Type != "text" || dialect.Typed(f.agents, engi.RunSpec{Agent: x.Agent})
	return b
}

func (b *responseBuilder) tell(kind string, event map[string]any) {
	if b.send == nil || b.left {
		return
	}
	b.sequence++
	event["type"], event["sequence_number"] = kind, b.sequence
	b.left = !b.send(kind, event)
}

// about sends an event about the open item.
func (b *responseBuilder) about(kind string, event map[string]any) {
	event["item_id"], event["output_index"] = b.open["id"], b.next-1
	switch b.open["type"] {
	case "message":
		event["content_index"] = 0
	case "reasoning":
		event["summary_index"] = 0
	}
	b.tell(kind, event)
}

// see processes an update of the run. It returns false if the client has left.
func (b *responseBuilder) see(e engi.RunUpdate) bool {
	switch kind := e.Kind; {
	case kind == engi.RunText && !b.typed:
		b.write("message", e.Step, e.Text)
	case kind == engi.RunThought && b.thoughts:
		b.write("reasoning", e.Step, e.Text)
	case kind == engi.RunReset && e.Step == b.step:
		b.close("incomplete", "")
		b.output = b.output[:b.from]
	case kind == engi.RunCall:
		b.close("completed", "commentary")
	}
	return !b.left
}

// write adds a piece to an item of the step. It starts the item if there is none.
func (b *responseBuilder) write(kind string, step int, piece string) {
	if step != b.step {
		b.close("completed", "commentary")
		b.step, b.from = step, len(b.output)
	}
	if b.open == nil || b.open["type"] != kind {
		b.close("completed", "commentary")
		if kind == "message" {
			b.begin("msg", map[string]any{"type": kind, "role": "assistant", "content": []any{}})
			b.about("response.content_part.added", map[string]any{"part": outputText("")})
		} else {
			b.begin("rs", map[string]any{"type": kind, "summary": []any{}})
			b.about("response.reasoning_summary_part.added", map[string]any{"part": summaryText("")})
		}
	}
	b.text.WriteString(piece)
	if kind == "message" {
		b.about("response.output_text.delta", map[string]any{"delta": piece, "logprobs": []any{}})
	} else {
		b.about("response.reasoning_summary_text.delta", map[string]any{"delta": piece})
	}
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func summaryText(text string) map[string]any {
	return map[string]any{"type": "summary_text", "text": text}
}

func (b *responseBuilder) begin(prefix string, item map[string]any) {
	item["id"], item["status"] = fmt.Sprintf("%s_%s_%d", prefix, suffixOf(b.run.ID), b.next), "in_progress"
	b.open = item
	b.text.Reset()
	b.tell("response.output_item.added", map[string]any{"output_index": b.next, "item": item})
	b.next++
}

// close ends the open item, if there is one. phase is the phase of a message, which says whether
// the message is the answer.
func (b *responseBuilder) close(status, phase string) {
	if b.open == nil {
		return
	}
	text := b.text.String()
	switch b.open["type"] {
	case "message":
		part := outputText(text)
		b.about("response.output_text.done", map[string]any{"text": text, "logprobs": []any{}})
		b.about("response.content_part.done", map[string]any{"part": part})
		b.open["content"] = []any{part}
		if phase != "" {
			b.open["phase"] = phase
		}
	case "reasoning":
		part := summaryText(text)
		b.about("response.reasoning_summary_text.done", map[string]any{"text": text})
		b.about("response.reasoning_summary_part.done", map[string]any{"part": part})
		b.open["summary"] = []any{part}
	}
	b.open["status"] = status
	b.tell("response.output_item.done", map[string]any{"output_index": b.next - 1, "item": b.open})
	b.output, b.open = append(b.output, b.open), nil
}

// finish processes the end of the run.
func (b *responseBuilder) finish(x engi.Run) {
	b.run = x
	status, phase := "completed", "final_answer"
	if x.State != engi.RunDone {
		status = "incomplete"
	}
	if len(x.Calls) > 0 {
		phase = "commentary"
	}
	said := slices.ContainsFunc(b.output, func(item map[string]any) bool { return item["type"] == "message" }) || b.open != nil && b.open["type"] == "message"
	switch {
	case b.typed && len(x.Calls) == 0:
		b.close("completed", "")
		fallthrough
	case !b.typed && !said:
		if x.Text != "" {
			b.write("message", x.Steps, x.Text)
		}
	}
	b.close(status, phase)
	for i, t := range x.Calls {
		b.begin("fc", map[string]any{"type": "function_call", "call_id": dialect.CallID(x, i), "name": t.Name, "arguments": ""})
		b.about("response.function_call_arguments.delta", map[string]any{"delta": t.Arguments})
		b.about("response.function_call_arguments.done", map[string]any{"arguments": t.Arguments, "name": t.Name})
		b.open["arguments"] = t.Arguments
		b.close("completed", "")
	}
	kind := "response.completed"
	switch b.status() {
	case "failed":
		kind = "response.failed"
	case "incomplete", "cancelled":
		kind = "response.incomplete"
	}
	b.tell(kind, map[string]any{"response": b.response()})
}

func (b *responseBuilder) status() string {
	switch b.run.State {
	case engi.RunDone:
		return "completed"
	case engi.RunStopped:
		return "incomplete"
	case engi.RunFailed:
		return "failed"
	case engi.RunCancelled:
		return "cancelled"
	}
	return "in_progress"
}

// response returns the response in its current state.
func (b *responseBuilder) response() map[string]any {
	x := b.run
	out := map[string]any{
		"id": responsePrefix + suffixOf(x.ID), "object": "response", "created_at": x.Created.Unix(), "completed_at": nil, "status": b.status(), "output": b.output,
		"error": nil, "incomplete_details": nil, "usage": nil, "truncation": "disabled", "service_tier": "default", "max_tool_calls": nil, "user": nil,
	}
	for field, v := range b.note {
		out[field] = v
	}
	switch x.State {
	case engi.RunRunning:
		return out
	case engi.RunDone:
		out["completed_at"] = x.Ended.Unix()
	case engi.RunStopped:
		reason := "max_output_tokens"
		if x.Reason == "filter" {
			reason = "content_filter"
		}
		out["incomplete_details"] = map[string]any{"reason": reason}
	case engi.RunFailed:
		e := map[string]any{"code": "server_error", "message": "the run has failed"}
		if x.Error != nil {
			p := httpio.Describe(x.Error, "")
			e["message"] = dialect.WithRemedy(p)
			if p.Kind == v1.Exhausted {
				e["code"] = "rate_limit_exceeded"
			}
		}
		out["error"] = e
	}
	t := x.Tokens
	in := t.Input + t.CacheRead + t.CacheWrite
	out["usage"] = map[string]any{
		"input_tokens": in, "input_tokens_details": map[string]any{"cached_tokens": t.CacheRead, "cache_write_tokens": t.CacheWrite},
		"output_tokens": t.Output, "output_tokens_details": map[string]any{"reasoning_tokens": t.Reasoning}, "total_tokens": in + t.Output,
	}
	return out
}
