package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/rest"
)

// completions returns the route of chat completions.
func (f *front) completions() rest.Route {
	return rest.Foreign(rest.Route{
		Pattern: "POST /v1/chat/completions", ID: "create-chat-completion", Summary: "Create a chat completion (OpenAI)", Access: change, Objects: rest.Owned,
		Text: "model is the name of an agent. The agent's own tools run on this node; the client makes the calls of the tools in the request. sandbox and session select the sandbox in which the agent's tools work. " +
			"If the client disconnects, the run is cancelled, unless background is true or the request had an Idempotency-Key. To use this server, set the client's base URL to /v1 on this server and its API key to an engi key.",
		Creates: "a repeated key returns the first answer instead of asking again", Error: errorOf,
	}, f.complete)
}

type completionRequest struct {
	Model          string              `json:"model"`
	Stream         bool                `json:"stream"`
	Messages       []completionMessage `json:"messages"`
	ResponseFormat struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools []struct {
		Type     string `json:"type"`
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	ToolChoice    json.RawMessage `json:"tool_choice"`
	ParallelCalls *bool           `json:"parallel_tool_calls"`
	MaxTokens     int             `json:"max_tokens"`
	MaxCompletion int             `json:"max_completion_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	Stop          json.RawMessage `json:"stop"`
	N             int             `json:"n"`
	Effort        string          `json:"reasoning_effort"`
	Sandbox       string          `json:"sandbox"`
	Session       string          `json:"session"`
	Workspace     string          `json:"workspace"`
	Background    bool            `json:"background"`
}

type completionMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
	ToolCallID string `json:"tool_call_id"`
}

// completionValues holds the accepted values of fields that need no
// work; a field without values accepts any value.
var completionValues = map[string][]string{
	"frequency_penalty": {"0", "0.0"}, "presence_penalty": {"0", "0.0"}, "logprobs": {"false"}, "top_logprobs": {"0"}, "logit_bias": {"{}"}, "modalities": {`["text"]`},
	"store": {"false"}, "verbosity": {`"medium"`}, "functions": {"[]"}, "service_tier": {`"auto"`, `"default"`},
	// Data about the client, or hints for caches that providers manage themselves.
	"user": nil, "metadata": nil, "safety_identifier": nil, "prompt_cache_key": nil, "prompt_cache_retention": nil,
}

// maxChoices is the maximum of n.
const maxChoices = 8

func (f *front) complete(ex *rest.Exchange, _ *struct{}) error {
	var q completionRequest
	if _, err := dialect.Decode(ex, &q, completionValues); err != nil {
		return err
	}
	if q.N = max(q.N, 1); q.N > maxChoices {
		return engi.Errorf(engi.Invalid, "n: %d answers, %d at most", q.N, maxChoices)
	}
	spec, err := f.completionSpec(ex, q)
	if err != nil {
		return err
	}
	key := ex.IdempotencyKey()
	keep := q.Background || key != ""
	runs := make([]engi.Run, q.N)
	for i := range runs {
		spec.Idempotency = idempotency.Part(key, i) // each choice is a run of its own
		if runs[i], err = ex.StartRun(f.agents, spec); err != nil {
			dialect.Abandon(ex, f.agents, runs[:i]...)
			return err
		}
	}
	if !keep {
		defer func() {
			if ex.Left() {
				dialect.Abandon(ex, f.agents, runs...)
			}
		}()
	}
	if q.Stream {
		return f.streamCompletion(ex, q, runs, dialect.Typed(f.agents, spec))
	}
	choices, tokens := make([]any, len(runs)), engi.Tokens{}
	for i, x := range runs {
		if x, err = ex.WaitRun(f.agents, x, func(engi.RunUpdate) {}); err != nil {
			return err
		}
		message := map[string]any{"role": "assistant", "content": x.Text}
		if len(x.Calls) > 0 {
			message["tool_calls"] = completionCalls(x, false)
			if x.Text == "" {
				message["content"] = nil
			}
		}
		if completionStop(x) == "content_filter" {
			message["refusal"] = cmp.Or(x.Text, "the provider withheld the answer")
		}
		choices[i] = map[string]any{"index": i, "finish_reason": completionStop(x), "message": message, "logprobs": nil}
		tokens = tokens.Add(x.Tokens)
	}
	return ex.Reply(map[string]any{
		"id": string(runs[0].ID), "object": "chat.completion", "created": runs[0].Created.Unix(), "model": q.Model, "usage": completionUsage(tokens), "choices": choices,
	})
}

// completionSpec converts a request: the last message of the user, or the
// results of calls, become the input; the rest is the conversation before it.
func (f *front) completionSpec(ex *rest.Exchange, q completionRequest) (spec engi.RunSpec, err error) {
	spec.Agent, spec.Session, spec.Workspace = q.Model, q.Session, q.Workspace
	spec.Sampling = engi.Sampling{
		MaxTokens: cmp.Or(q.MaxCompletion, q.MaxTokens), Temperature: q.Temperature, TopP: q.TopP,
		OneCall: q.ParallelCalls != nil && !*q.ParallelCalls,
	}
	if spec.Sampling.Effort = engi.Effort(q.Effort); q.Effort == "minimal" {
		spec.Sampling.Effort = engi.EffortNone
	}
	if q.Sandbox != "" {
		if spec.Sandbox, err = engi.ParseSandboxID(q.Sandbox); err != nil {
			return spec, err
		}
	}
	if spec.Sampling.Stop, err = textOrTexts("stop", q.Stop); err != nil {
		return spec, err
	}
	switch q.ResponseFormat.Type {
	case "", "text":
	case "json_object":
		spec.Output = json.RawMessage(`{"type":"object"}`)
	case "json_schema":
		spec.Output = q.ResponseFormat.JSONSchema.Schema
	default:
		return spec, engi.Errorf(engi.Invalid, "response_format: there is no type %.40q", q.ResponseFormat.Type).WithRemedy("use text, json_object or json_schema")
	}
	for i, t := range q.Tools {
		if t.Type != "function" {
			return spec, engi.Errorf(engi.Invalid, "tools[%d]: tools of type %.40q are not supported", i, t.Type).WithRemedy("use functions")
		}
		schema := t.Function.Parameters
		if len(schema) == 0 || string(schema) == "null" {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		spec.Tools = append(spec.Tools, engi.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: schema})
	}
	var named struct{ Function struct{ Name string } }
	switch {
	case len(q.ToolChoice) == 0 || string(q.ToolChoice) == "null" || json.Unmarshal(q.ToolChoice, &spec.Choice) == nil:
	case json.Unmarshal(q.ToolChoice, &named) == nil && named.Function.Name != "":
		spec.Choice = named.Function.Name
	default:
		return spec, engi.Errorf(engi.Invalid, "tool_choice: this value is not supported").WithRemedy("use none, auto, required or a function")
	}
	for i, m := range q.Messages {
		if err := completionMessageTo(&spec, m); err != nil {
			return spec, engi.Errorf(engi.Invalid, "messages[%d]: %w", i, err)
		}
	}
	return spec, dialect.Continue(ex, f.agents, &spec, "messages")
}

// textOrTexts parses a field that is a text or a list of texts.
func textOrTexts(name string, raw json.RawMessage) (all []string, err error) {
	var one string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case json.Unmarshal(raw, &one) == nil:
		return []string{one}, nil
	case json.Unmarshal(raw, &all) == nil:
		return all, nil
	}
	return nil, engi.Errorf(engi.Invalid, "%s: this is neither a text nor a list of texts", name)
}

func completionMessageTo(spec *engi.RunSpec, m completionMessage) error {
	text, images, err := completionContent(m.Content)
	if err != nil {
		return err
	}
	switch m.Role {
	case "system", "developer":
		spec.System = strings.TrimSpace(spec.System + "\n\n" + text)
	case "user":
		spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleUser, Text: text, Images: images})
	case "assistant":
		out := engi.Message{Role: engi.RoleAssistant, Text: text}
		for _, t := range m.ToolCalls {
			out.Calls = append(out.Calls, engi.ToolCall{ID: t.ID, Name: t.Function.Name, Arguments: t.Function.Arguments})
		}
		spec.Messages = append(spec.Messages, out)
	case "tool":
		dialect.AddResult(spec, engi.ToolResult{Call: m.ToolCallID, Text: text, Images: images})
	default:
		return engi.Errorf(engi.Invalid, "there is no role %.40q", m.Role).WithRemedy("send system, user, assistant and tool messages")
	}
	return nil
}

type completionPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
	File file `json:"file"`
}

// A file is a document in one of OpenAI's formats.
type file struct {
	Data string `json:"file_data"`
	ID   string `json:"file_id"`
	URL  string `json:"file_url"`
	Name string `json:"filename"`
}

// document returns the file as a document. The request must contain its data.
func (f file) document() (engi.Image, error) {
	if f.Data == "" {
		return engi.Image{}, engi.Errorf(engi.Invalid, "a file is not part of the request").WithRemedy("send it as file_data, in base64; engi neither fetches nor stores files")
	}
	if !strings.HasPrefix(f.Data, "data:") {
		f.Data = "data:" + engi.PDF + ";base64," + f.Data
	}
	img, err := fromDataURL(f.Data)
	img.Name = f.Name
	if err == nil && img.MediaType != engi.PDF {
		err = engi.Errorf(engi.Invalid, "a file of type %.80q cannot be read", img.MediaType).WithRemedy("send PDFs as files, and the content of other documents as text")
	}
	return img, err
}

// fromDataURL parses an image in a data URL.
func fromDataURL(url string) (engi.Image, error) {
	head, data, ok := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
	if !ok || !strings.HasPrefix(url, "data:") {
		return engi.Image{}, engi.Errorf(engi.Invalid, "an image is not part of the request").WithRemedy("send it as a data: URL in base64; engi does not fetch URLs")
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return engi.Image{}, engi.Errorf(engi.Invalid, "an image or a file is no base64")
	}
	return engi.Image{MediaType: head, Data: raw}, nil
}

func completionContent(raw json.RawMessage) (text string, images []engi.Image, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	parts, err := dialect.Elements[completionPart](raw)
	if err != nil {
		return "", nil, engi.Errorf(engi.Invalid, "its content is neither text nor a list of parts")
	}
	for _, p := range parts {
		switch p.Type {
		case "text":
			text += p.Text
		case "image_url":
			img, err := fromDataURL(p.ImageURL.URL)
			if err != nil {
				return "", nil, err
			}
			images = append(images, img)
		case "file":
			doc, err := p.File.document()
			if err != nil {
				return "", nil, err
			}
			images = append(images, doc)
		default:
			return "", nil, engi.Errorf(engi.Invalid, "a part of type %.40q cannot be read", p.Type).WithRemedy("send text, image_url and file")
		}
	}
	return text, images, nil
}

func completionUsage(t engi.Tokens) map[string]any {
	in := t.Input + t.CacheRead + t.CacheWrite
	return map[string]any{
		"prompt_tokens": in, "completion_tokens": t.Output, "total_tokens": in + t.Output,
		"prompt_tokens_details": map[string]any{"cached_tokens": t.CacheRead}, "completion_tokens_details": map[string]any{"reasoning_tokens": t.Reasoning},
	}
}

// completionCalls returns the calls at the end of a run, for a message or for a delta.
func completionCalls(x engi.Run, numbered bool) []any {
	all := make([]any, len(x.Calls))
	for i, t := range x.Calls {
		o := map[string]any{"id": dialect.CallID(x, i), "type": "function", "function": map[string]any{"name": t.Name, "arguments": t.Arguments}}
		if numbered {
			o["index"] = i
		}
		all[i] = o
	}
	return all
}

func completionStop(x engi.Run) string {
	switch {
	case len(x.Calls) > 0:
		return "tool_calls"
	case x.Reason == "":
		return "stop"
	case x.Reason == "filter":
		return "content_filter"
	}
	return "length"
}

// streamCompletion answers with chunks, which have no event names or IDs. The chunks
// of each run follow those of the run before.
func (f *front) streamCompletion(ex *rest.Exchange, q completionRequest, runs []engi.Run, typed bool) error {
	out := dialect.NewStream(ex, f.agents)
	chunk := func(x engi.Run, delta map[string]any, finish any) map[string]any {
		return map[string]any{"id": string(runs[0].ID), "object": "chat.completion.chunk", "created": runs[0].Created.Unix(), "model": q.Model,
			"choices": []any{map[string]any{"index": slices.IndexFunc(runs, func(r engi.Run) bool { return r.ID == x.ID }), "delta": delta, "finish_reason": finish}}}
	}
	var tokens engi.Tokens
	for _, x := range runs {
		if !out.Send("", chunk(x, map[string]any{"role": "assistant", "content": ""}, nil)) {
			return nil
		}
		end, ok := out.Follow(x, func(e engi.RunUpdate) bool {
			switch {
			case e.Kind == engi.RunText && !typed:
				return out.Send("", chunk(x, map[string]any{"content": e.Text}, nil))
			case e.Kind == engi.RunThought:
				return out.Send("", chunk(x, map[string]any{"reasoning_content": e.Text}, nil))
			}
			return true
		}, func(p v1.Problem) (string, any) { return "", map[string]any{"error": errorOf(p)} })
		if !ok {
			return nil
		}
		delta := map[string]any{}
		if typed && end.Text != "" {
			delta["content"] = end.Text
		}
		if len(end.Calls) > 0 {
			delta["tool_calls"] = completionCalls(end, true)
		}
		if len(delta) > 0 && !out.Send("", chunk(x, delta, nil)) || !out.Send("", chunk(x, map[string]any{}, completionStop(end))) {
			return nil
		}
		tokens = tokens.Add(end.Tokens)
	}
	if q.StreamOptions.IncludeUsage {
		last := chunk(runs[0], nil, nil)
		last["choices"], last["usage"] = []any{}, completionUsage(tokens)
		if !out.Send("", last) {
			return nil
		}
	}
	out.Write("data: [DONE]\n\n")
	return nil
}
