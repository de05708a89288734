package openai

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/rest"
)

// A response is a run. The run's note holds the fields of the request that answers repeat.

// aResponse holds the ID of a response: its run's ID, with the prefix that clients expect.
type aResponse struct {
	ID string `path:"id" maxLength:"64" doc:"ID of the object"`
}

type getResponse struct {
	aResponse
	Stream bool `query:"stream" doc:"Answer with the events of the response, from its beginning"`
	After  int  `query:"starting_after" default:"-1" doc:"In a stream, only events after this sequence number"`
}

// responses returns the routes of responses.
func (f *front) responses() []rest.Route {
	return []rest.Route{
		rest.Foreign(rest.Route{
			Pattern: "POST /v1/responses", ID: "create-response", Summary: "Create a response (OpenAI)", Access: change, Objects: rest.Owned,
			Text: "model is the name of an agent. The agent's own tools run on this node; the client makes the calls of the tools in the request. previous_response_id continues an earlier response of the caller. " +
				"If the client disconnects, the run is cancelled, unless background is true or the request had an Idempotency-Key. With store false, the conversation is deleted after the answer.",
			Creates: "a repeated key returns the first answer instead of asking again", Error: errorOf,
		}, f.respond),
		rest.Foreign(rest.Route{Pattern: "GET /v1/responses/{id}", ID: "get-response", Summary: "Get a response (OpenAI)", Access: look, Error: responseError}, f.response),
		rest.Foreign(rest.Route{
			Pattern: "DELETE /v1/responses/{id}", ID: "delete-response", Summary: "Delete a response (OpenAI)", Text: "Deletes the response and its run. A run that is active is cancelled.",
			Access: change, Error: responseError,
		}, func(ex *rest.Exchange, in *aResponse) error {
			x, _, err := f.responseRun(ex, in.ID)
			if err == nil {
				err = f.forget(ex, x)
			}
			if err != nil {
				return err
			}
			return ex.Reply(map[string]any{"id": in.ID, "object": "response", "deleted": true})
		}),
		rest.Foreign(rest.Route{
			Pattern: "POST /v1/responses/{id}/cancel", ID: "cancel-response", Summary: "Cancel a response (OpenAI)", Text: "The response must have been created with background true. Cancelling twice is no error.",
			Access: change, Error: responseError,
		}, func(ex *rest.Exchange, in *aResponse) error {
			x, note, err := f.responseRun(ex, in.ID)
			if err == nil && !note.is("background") {
				err = engi.Errorf(engi.Invalid, "response %s is not in the background", in.ID).WithRemedy("to cancel the request, disconnect")
			}
			if err == nil {
				err = f.agents.Cancel(ex.Context(), x.Owner.Viewer(), x.ID)
			}
			if err != nil {
				return err
			}
			return f.response(ex, &getResponse{aResponse: *in})
		}),
	}
}

// responseError returns an error about a response in the format that OpenAI's clients expect.
func responseError(p v1.Problem) any {
	e := errorObject(p)
	if p.Kind == v1.NotFound {
		e["code"] = nil
	}
	return e
}

const responsePrefix = "resp_"

// suffixOf returns the common part of the IDs of a run, of its response and
// of the response's items.
func suffixOf(id engi.RunID) string { return string(id)[4:] }

// runOfResponse returns the ID of a response's run.
func runOfResponse(id string) (engi.RunID, error) {
	suffix, ok := strings.CutPrefix(id, responsePrefix)
	if run, err := engi.ParseRunID("run_" + suffix); ok && err == nil {
		return run, nil
	}
	return "", noResponse(id)
}

func noResponse(id string) error {
	return engi.Errorf(engi.NotFound, "there is no response %.80q", id).WithRemedy("responses that were created with store false, or long ago, are not kept")
}

// A responseNote holds the fields of a request that answers repeat.
type responseNote map[string]json.RawMessage

func (n responseNote) is(field string) bool { return string(n[field]) == "true" }

// responseRun returns the run of a response, and its note.
func (f *front) responseRun(ex *rest.Exchange, id string) (x engi.Run, note responseNote, err error) {
	run, err := runOfResponse(id)
	if err != nil {
		return x, nil, err
	}
	x, err = f.agents.Get(ex.Context(), ex.Viewer(), run)
	switch {
	case engi.Is(err, engi.NotFound):
		return x, nil, noResponse(id)
	case err != nil:
		return x, nil, err
	case x.Note == nil || json.Unmarshal(x.Note, &note) != nil || !note.is("store"):
		return x, nil, noResponse(id) // the run is of another kind, or about to be deleted
	}
	return x, note, nil
}

// forgetTime is the maximum time to delete a run, whether or not its client is still connected.
const forgetTime = 10 * time.Second

// forget deletes a run.
func (f *front) forget(ex *rest.Exchange, x engi.Run) error {
	d, ok := f.agents.(engi.RunDeleter)
	if !ok {
		return engi.Errorf(engi.Unsupported, "runs of this node cannot be deleted")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ex.Context()), forgetTime)
	defer cancel()
	return d.Delete(ctx, x.Owner.Viewer(), x.ID)
}

type responseRequest struct {
	Model        string            `json:"model"`
	Input        json.RawMessage   `json:"input"`
	Instructions string            `json:"instructions"`
	Previous     string            `json:"previous_response_id"`
	Store        *bool             `json:"store"`
	Background   bool              `json:"background"`
	Stream       bool              `json:"stream"`
	Metadata     map[string]string `json:"metadata"`
	Text         struct {
		Format    responseFormat `json:"format"`
		Verbosity string         `json:"verbosity"`
	} `json:"text"`
	Reasoning struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	Tools         []responseTool  `json:"tools"`
	ToolChoice    json.RawMessage `json:"tool_choice"`
	ParallelCalls *bool           `json:"parallel_tool_calls"`
	MaxTokens     *int            `json:"max_output_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	StreamOptions struct {
		Obfuscation bool `json:"include_obfuscation"`
	} `json:"stream_options"`
	Sandbox   string `json:"sandbox"`
	Session   string `json:"session"`
	Workspace string `json:"workspace"`
}

type responseFormat struct {
	Type        string          `json:"type"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

type responseTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// responseValues holds the accepted values of fields that need no work.
var responseValues = map[string][]string{
	"truncation": {`"disabled"`}, "include": {"[]"}, "top_logprobs": {"0"}, "service_tier": {`"auto"`, `"default"`}, "context_management": {"[]"},
	// Data about the client, or hints for caches that providers manage themselves.
	"user": nil, "safety_identifier": nil, "prompt_cache_key": nil, "prompt_cache_retention": nil, "prompt_cache_options": nil,
}

func (f *front) respond(ex *rest.Exchange, _ *struct{}) error {
	var q responseRequest
	if _, err := dialect.Decode(ex, &q, responseValues); err != nil {
		return err
	}
	spec, note, err := f.responseSpec(ex, q)
	if err != nil {
		return err
	}
	if spec.Note, err = json.Marshal(note); err != nil {
		return engi.Errorf(engi.Internal, "keep the request of a response: %v", err)
	}
	x, err := ex.StartRun(f.agents, spec)
	if err != nil {
		return err
	}
	b := f.responseBuilder(x, note)
	switch {
	case q.Background && !q.Stream && x.State == engi.RunRunning:
		return ex.Reply(b.response())
	case !q.Background && ex.IdempotencyKey() == "":
		defer func() {
			if ex.Left() {
				dialect.Abandon(ex, f.agents, x)
			}
			if !note.is("store") {
				if err := f.forget(ex, x); err != nil {
					ex.Report(err)
				}
			}
		}()
	}
	if q.Stream {
		f.streamResponse(ex, b, -1)
		return nil
	}
	end, err := ex.WaitRun(f.agents, x, func(e engi.RunUpdate) { b.see(e) })
	if err != nil {
		return err
	}
	b.finish(end)
	return ex.Reply(b.response())
}

// response answers with the current state of a response, or with its events.
func (f *front) response(ex *rest.Exchange, in *getResponse) error {
	x, note, err := f.responseRun(ex, in.ID)
	if err != nil {
		return err
	}
	b := f.responseBuilder(x, note)
	if in.Stream {
		f.streamResponse(ex, b, in.After)
		return nil
	}
	if x.State != engi.RunRunning {
		end, err := ex.WaitRun(f.agents, x, func(e engi.RunUpdate) { b.see(e) })
		if err != nil && end.State != engi.RunFailed {
			return err
		}
		b.finish(end)
	}
	return ex.Reply(b.response())
}

// streamResponse answers with the events of a response after a sequence number.
func (f *front) streamResponse(ex *rest.Exchange, b *responseBuilder, after int) {
	out := dialect.NewStream(ex, f.agents)
	out.Failures = true
	b.run.State = engi.RunRunning // the state at its start
	b.send = func(kind string, event map[string]any) bool {
		return b.sequence <= after || out.Send(kind, event)
	}
	b.tell("response.created", map[string]any{"response": b.response()})
	b.tell("response.in_progress", map[string]any{"response": b.response()})
	end, ok := out.Follow(b.run, b.see, func(p v1.Problem) (string, any) {
		e := errorObject(p)
		return "error", map[string]any{"type": "error", "sequence_number": b.sequence + 1, "code": e["code"], "message": e["message"], "param": e["param"]}
	})
	if ok {
		b.finish(end)
	}
}

// responseSpec converts a request, and returns the fields that answers repeat.
func (f *front) responseSpec(ex *rest.Exchange, q responseRequest) (spec engi.RunSpec, note responseNote, err error) {
	spec.Agent, spec.Session, spec.Workspace, spec.System = q.Model, q.Session, q.Workspace, q.Instructions
	spec.Sampling = engi.Sampling{Temperature: q.Temperature, TopP: q.TopP, OneCall: q.ParallelCalls != nil && !*q.ParallelCalls}
	if q.MaxTokens != nil {
		if *q.MaxTokens < 1 {
			return spec, nil, engi.Errorf(engi.Invalid, "max_output_tokens: an answer cannot have %d tokens", *q.MaxTokens)
		}
		spec.Sampling.MaxTokens = *q.MaxTokens
	}
	if q.Reasoning.Effort != nil {
		if spec.Sampling.Effort = engi.Effort(*q.Reasoning.Effort); spec.Sampling.Effort == "minimal" {
			spec.Sampling.Effort = engi.EffortNone
		}
	}
	if s := q.Reasoning.Summary; s != nil && !slices.Contains([]string{"auto", "concise", "detailed"}, *s) {
		return spec, nil, engi.Errorf(engi.Invalid, "reasoning: there is no summary %.40q", *s).WithRemedy("use auto, concise or detailed")
	}
	switch {
	case q.Background && q.Store != nil && !*q.Store:
		return spec, nil, engi.Errorf(engi.Invalid, "background: a response that is not stored cannot be read later").WithRemedy("leave store out")
	case q.StreamOptions.Obfuscation:
		return spec, nil, engi.Errorf(engi.Invalid, "stream_options: include_obfuscation is not supported").WithRemedy("leave it out")
	case q.Text.Verbosity != "" && q.Text.Verbosity != "medium":
		return spec, nil, engi.Errorf(engi.Invalid, "text: the verbosity %.40q is not supported", q.Text.Verbosity).WithRemedy("leave it out, and say it in instructions")
	case len(q.Metadata) > 16:
		return spec, nil, engi.Errorf(engi.Invalid, "metadata: %d members, 16 at most", len(q.Metadata))
	}
	for k, v := range q.Metadata {
		if len(k) > 64 || len(v) > 512 {
			return spec, nil, engi.Errorf(engi.Invalid, "metadata: a name has 64 bytes at most, a value 512")
		}
	}
	switch q.Text.Format.Type {
	case "", "text":
		q.Text.Format = responseFormat{Type: "text"}
	case "json_object":
		spec.Output = json.RawMessage(`{"type":"object"}`)
	case "json_schema":
		spec.Output = q.Text.Format.Schema
	default:
		return spec, nil, engi.Errorf(engi.Invalid, "text: there is no format %.40q", q.Text.Format.Type).WithRemedy("use text, json_object or json_schema")
	}
	for i, t := range q.Tools {
		if t.Type != "function" {
			return spec, nil, engi.Errorf(engi.Invalid, "tools[%d]: tools of type %.40q are not supported", i, t.Type).WithRemedy("use functions")
		}
		if len(t.Parameters) == 0 || string(t.Parameters) == "null" {
			q.Tools[i].Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		spec.Tools = append(spec.Tools, engi.Tool{Name: t.Name, Description: t.Description, Schema: q.Tools[i].Parameters})
	}
	choice := any("auto")
	var named struct{ Type, Name string }
	switch {
	case len(q.ToolChoice) == 0 || string(q.ToolChoice) == "null":
	case json.Unmarshal(q.ToolChoice, &spec.Choice) == nil:
		choice = spec.Choice
	case json.Unmarshal(q.ToolChoice, &named) == nil && named.Type == "function" && named.Name != "":
		spec.Choice, choice = named.Name, map[string]string{"type": "function", "name": named.Name}
	default:
		return spec, nil, engi.Errorf(engi.Invalid, "tool_choice: this value is not supported").WithRemedy("use none, auto, required or a function")
	}
	if q.Sandbox != "" {
		if spec.Sandbox, err = engi.ParseSandboxID(q.Sandbox); err != nil {
			return spec, nil, err
		}
	}
	if err := addItems(&spec, q.Input); err != nil {
		return spec, nil, err
	}
	if q.Metadata == nil {
		q.Metadata = map[string]string{}
	}
	if q.Tools == nil {
		q.Tools = []responseTool{} // an empty list, not null
	}
	q.Text.Verbosity = "medium"
	switch {
	case q.Previous != "" && spec.After != "":
		err = engi.Errorf(engi.Invalid, "previous_response_id: the input refers to a response, too").WithRemedy("leave one of the two out")
	case q.Previous != "":
		err = f.continueResponse(ex, &spec, q.Previous, "previous_response_id")
	case spec.After != "":
		err = f.continueResponse(ex, &spec, responsePrefix+suffixOf(spec.After), "input")
	default:
		err = dialect.Continue(ex, f.agents, &spec, "input")
	}
	if err != nil {
		return spec, nil, err
	}
	note = responseNote{}
	for field, v := range map[string]any{
		"model": q.Model, "instructions": orNull(q.Instructions), "previous_response_id": orNull(q.Previous), "store": q.Store == nil || *q.Store, "background": q.Background,
		"metadata": q.Metadata, "text": q.Text, "reasoning": q.Reasoning, "tools": q.Tools, "tool_choice": choice,
		"parallel_tool_calls": !spec.Sampling.OneCall, "max_output_tokens": q.MaxTokens, "temperature": q.Temperature, "top_p": q.TopP,
	} {
		if note[field], err = json.Marshal(v); err != nil {
			return spec, nil, engi.Errorf(engi.Invalid, "%s: %v", field, err)
		}
	}
	return spec, note, nil
}

// orNull returns a text for JSON, with null for an empty one.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// continueResponse makes a run continue from the end of a response, which a field of the request
// names.
func (f *front) continueResponse(ex *rest.Exchange, spec *engi.RunSpec, previous, field string) error {
	x, _, err := f.responseRun(ex, previous)
	if err == nil && x.Owner != ex.Owner() {
		err = noResponse(previous) // an administrator sees the responses of others, but continues only its own
	}
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "%s: %w", field, err)
	}
	dialect.NameCalls(x, spec.Messages)
	spec.After = x.ID
	return dialect.LastIsInput(spec, "input")
}

type responseItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// addItems adds the items of a request's input.
func addItems(spec *engi.RunSpec, input json.RawMessage) error {
	var text string
	if json.Unmarshal(input, &text) == nil && text != "" {
		spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleUser, Text: text})
		return nil
	}
	items, err := dialect.Elements[responseItem](input)
	if err != nil {
		return engi.Errorf(engi.Invalid, "input: it is neither a text nor a list of items")
	}
	for i, item := range items {
		if err := item.add(spec); err != nil {
			return engi.Errorf(engi.Invalid, "input[%d]: %w", i, err)
		}
	}
	return nil
}

// madeBy returns the run that made an item, from the item's ID; empty if another
// server made the item.
func (item responseItem) madeBy() engi.RunID {
	parts := strings.Split(item.ID, "_")
	if item.Type == "function_call" {
		parts = strings.Split(item.CallID, "_")
	}
	if len(parts) != 3 {
		return ""
	}
	id, err := engi.ParseRunID("run_" + parts[1])
	if err != nil {
		return ""
	}
	return id
}

func (item responseItem) add(spec *engi.RunSpec) error {
	run := item.madeBy()
	if run != "" && run == spec.After {
		return nil // the run's conversation has this item
	}
	switch item.Type {
	case "item_reference":
		if run == "" {
			return engi.Errorf(engi.Invalid, "there is no item %.80q", item.ID).WithRemedy("send the item itself")
		}
		// The conversation of the run has the messages before, including the calls of the agent's tools.
		spec.After, spec.Messages = run, nil
	case "", "message":
		text, images, err := responseContent(item.Content)
		if err != nil {
			return err
		}
		switch item.Role {
		case "system", "developer":
			spec.System = strings.TrimSpace(spec.System + "\n\n" + text)
		case "user", "assistant":
			spec.Messages = append(spec.Messages, engi.Message{Role: engi.Role(item.Role), Text: text, Images: images})
		default:
			return engi.Errorf(engi.Invalid, "there is no role %.40q", item.Role).WithRemedy("send messages of user, assistant, system and developer")
		}
	case "function_call":
		// Each call of one answer is a separate item.
		n := len(spec.Messages)
		if n == 0 || spec.Messages[n-1].Role != engi.RoleAssistant {
			spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleAssistant})
			n++
		}
		m := &spec.Messages[n-1]
		m.Calls = append(m.Calls, engi.ToolCall{ID: item.CallID, Name: item.Name, Arguments: item.Arguments})
	case "function_call_output":
		text, images, err := responseContent(item.Output)
		if err != nil {
			return err
		}
		dialect.AddResult(spec, engi.ToolResult{Call: item.CallID, Text: text, Images: images})
	case "reasoning":
		// The run with this item still has it.
	default:
		return engi.Errorf(engi.Invalid, "an item of type %.40q cannot be read", item.Type).WithRemedy("send messages, function calls and their outputs; previous_response_id refers to a stored response")
	}
	return nil
}

// responseContent parses the content of a message, or the output of a call.
func responseContent(raw json.RawMessage) (text string, images []engi.Image, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	parts, err := dialect.Elements[struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
		URL     string `json:"image_url"`
		file
	}](raw)
	if err != nil {
		return "", nil, engi.Errorf(engi.Invalid, "its content is neither text nor a list of parts")
	}
	var texts strings.Builder
	for _, p := range parts {
		img, err := engi.Image{}, error(nil)
		switch p.Type {
		case "input_text", "output_text", "refusal", "text":
			texts.WriteString(p.Text + p.Refusal)
			continue
		case "input_image":
			img, err = fromDataURL(p.URL)
		case "input_file":
			img, err = p.document()
		default:
			err = engi.Errorf(engi.Invalid, "a part of type %.40q cannot be read", p.Type).WithRemedy("send input_text, input_image and input_file")
		}
		if err != nil {
			return "", nil, err
		}
		images = append(images, img)
	}
	return texts.String(), images, nil
}
