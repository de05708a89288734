package rest

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// The wire format of OpenAI's chat completions, in front of agents: model is
// an agent's name. What the agent's own tools do happens here and is not seen;
// calls of the request's tools are the client's. A field that cannot be
// honoured is refused, never ignored.

// completions are the routes of that format.
func completions(a *agents) []Route {
	return []Route{
		raw(Route{
			Pattern: "POST /v1/chat/completions", ID: "create-chat-completion", Summary: "Complete a chat, as OpenAI's clients ask for it", Access: writes(engi.ScopeAgents), Objects: Owned,
			Text: "model is the name of an agent. What its own tools do happens here; calls of the request's tools are yours to make. sandbox and session say where the agent's tools work. " +
				"A client that leaves ends the run, unless background is true or it sent an Idempotency-Key. Point a chat program's base URL at /v1 and its key at yours.",
			Creates: "a repeated key returns the first answer instead of asking again",
			Answers: []answer{jsonOf[map[string]any](http.StatusOK, nil)}, Error: completionError,
		}, a.complete),
		fetch(Route{
			Pattern: "GET /v1/models", ID: "list-models", Summary: "List agents, as OpenAI's clients ask for models", Text: "Agents, see /v1/agents, and last the embedder of /v1/embeddings, if there is one.", Access: reads(engi.ScopeAgents), Objects: Shared, Error: completionError,
		}, func(c *call, _ *none) (map[string]any, error) {
			all := []any{}
			for _, name := range a.models() {
				all = append(all, modelOf(c, name))
			}
			return map[string]any{"object": "list", "data": all}, nil
		}),
		fetch(Route{
			Pattern: "GET /v1/models/{name}", ID: "get-model", Summary: "Get an agent, as OpenAI's clients ask for a model", Access: reads(engi.ScopeAgents), Objects: Shared, Error: completionError,
		}, func(c *call, in *startRun) (map[string]any, error) {
			if slices.Contains(a.models(), in.Name) {
				return modelOf(c, in.Name), nil
			}
			return nil, engi.Errorf(engi.NotFound, "there is no agent %s", in.Name).WithRemedy("GET /v1/models lists them")
		}),
	}
}

// models are the names of what OpenAI's clients use as models.
func (a *agents) models() (names []string) {
	for _, x := range a.service.Agents() {
		names = append(names, x.Name)
	}
	if a.embedder != nil {
		names = append(names, a.embedder.Name())
	}
	return names
}

func modelOf(c *call, name string) map[string]any {
	return map[string]any{"id": name, "object": "model", "created": c.s.started.Unix(), "owned_by": "engi"}
}

// paramName matches the field that an error is about.
var paramName = regexp.MustCompile(`^([a-z_]+(?:\[\d+\])?): `)

// completionError is an error as OpenAI's clients read it.
func completionError(p v1.Problem) any {
	kind, code, param := "invalid_request_error", any(nil), any(nil)
	if m := paramName.FindStringSubmatch(p.Detail); m != nil {
		param = m[1]
	}
	switch p.Kind {
	case v1.Anonymous:
		code = "invalid_api_key"
	case v1.NotFound:
		if code = "model_not_found"; param == "previous_response_id" {
			code = "previous_response_not_found"
		}
	case v1.Exhausted:
		kind, code = "rate_limit_error", "rate_limit_exceeded"
	case v1.Denied:
		kind, code = "permission_error", "permission_denied"
	case v1.Internal, v1.Unavailable, v1.Expired:
		kind = "server_error"
	}
	return map[string]any{"message": withRemedy(p), "type": kind, "code": code, "param": param}
}

// withRemedy is a problem in the one text that other servers' errors have.
func withRemedy(p v1.Problem) string {
	if p.Remedy == "" {
		return p.Detail
	}
	return p.Detail + " (" + p.Remedy + ")"
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

// completionValues are the values of fields that ask for nothing we could not
// do; a field without values may have any.
var completionValues = map[string][]string{
	"frequency_penalty": {"0", "0.0"}, "presence_penalty": {"0", "0.0"}, "logprobs": {"false"}, "top_logprobs": {"0"}, "logit_bias": {"{}"}, "modalities": {`["text"]`},
	"store": {"false"}, "verbosity": {`"medium"`}, "functions": {"[]"}, "service_tier": {`"auto"`, `"default"`},
	// About the client, or for caches that providers keep by themselves.
	"user": nil, "metadata": nil, "safety_identifier": nil, "prompt_cache_key": nil, "prompt_cache_retention": nil,
}

// maxChoices bounds n.
const maxChoices = 8

func (a *agents) complete(c *call, _ *none, _ none) error {
	var q completionRequest
	if err := c.decodeForeign(&q, completionValues); err != nil {
		return err
	}
	if q.N = max(q.N, 1); q.N > maxChoices {
		return engi.Errorf(engi.Invalid, "n: %d answers, %d at most", q.N, maxChoices)
	}
	spec, err := a.completionSpec(c, q)
	if err != nil {
		return err
	}
	keep := q.Background || c.key != ""
	runs := make([]engi.Run, q.N)
	key := c.key
	for i := range runs {
		if i > 0 && key != "" {
			c.key = fmt.Sprintf("%s #%d", key, i) // they are different runs
		}
		if runs[i], err = a.launch(c, spec); err != nil {
			a.abandon(c, runs[:i])
			return err
		}
	}
	if !keep {
		defer func() {
			if c.gone() {
				a.abandon(c, runs)
			}
		}()
	}
	if q.Stream {
		return a.streamCompletion(c, q, runs, a.typed(spec))
	}
	choices, tokens := make([]any, len(runs)), engi.Tokens{}
	for i, x := range runs {
		if x, err = a.end(c, x); err != nil {
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
	return c.reply(http.StatusOK, map[string]any{
		"id": string(runs[0].ID), "object": "chat.completion", "created": runs[0].Created.Unix(), "model": q.Model, "usage": completionUsage(tokens), "choices": choices,
	})
}

// typed reports whether the answer is JSON. What a model says before it is then no
// part of the answer.
func (a *agents) typed(spec engi.RunSpec) bool {
	return spec.Output != nil || slices.ContainsFunc(a.service.Agents(), func(x engi.AgentSpec) bool { return x.Name == spec.Agent && x.Output != nil })
}

// abandon ends runs that nobody waits for.
func (a *agents) abandon(c *call, runs []engi.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), 10*time.Second)
	defer cancel()
	for _, x := range runs {
		if err := a.service.Cancel(ctx, x.Owner, x.ID); err != nil {
			c.s.log.ErrorContext(ctx, "end a run that was left", "run", x.ID, "error", err)
		}
	}
}

// completionSpec translates a request: the last thing its user says, or the
// results of calls, are the input; the rest came before.
func (a *agents) completionSpec(c *call, q completionRequest) (spec engi.RunSpec, err error) {
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
			return spec, engi.Errorf(engi.Invalid, "tools[%d]: a tool of type %.40q cannot be called here", i, t.Type).WithRemedy("use functions")
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
		return spec, engi.Errorf(engi.Invalid, "tool_choice: this cannot be honoured here").WithRemedy("use none, auto, required or a function")
	}
	for i, m := range q.Messages {
		if err := completionMessageTo(&spec, m); err != nil {
			return spec, engi.Errorf(engi.Invalid, "messages[%d]: %w", i, err)
		}
	}
	return spec, a.continueRun(c, &spec, "messages")
}

// textOrTexts reads a field that is a text or a list of some.
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
		addResult(spec, engi.ToolResult{Call: m.ToolCallID, Text: text, Images: images})
	default:
		return engi.Errorf(engi.Invalid, "there is no role %.40q", m.Role).WithRemedy("send system, user, assistant and tool messages")
	}
	return nil
}

// addResult adds a result to the last message, if that has some, or in a new one.
func addResult(spec *engi.RunSpec, r engi.ToolResult) {
	if n := len(spec.Messages); n > 0 && spec.Messages[n-1].Role == engi.RoleTool {
		spec.Messages[n-1].Results = append(spec.Messages[n-1].Results, r)
		return
	}
	spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleTool, Results: []engi.ToolResult{r}})
}

// callID is the ID under which a client sees a call: it says which run's it is.
func callID(x engi.Run, n int) string { return fmt.Sprintf("%s_%d", x.ID, n) }

// continueRun makes the last of spec.Messages its input, unless that has the
// results of calls. If there are results of calls that a run of ours made, the messages up to these are
// the run's own, with what its agent's tools did, which the client has not seen.
func (a *agents) continueRun(c *call, spec *engi.RunSpec, field string) error {
	all := spec.Messages
	for i, m := range slices.Backward(all) {
		if m.Role != engi.RoleAssistant || len(m.Calls) == 0 {
			continue
		}
		at := strings.LastIndexByte(m.Calls[0].ID, '_')
		id, err := engi.ParseRunID(m.Calls[0].ID[:max(at, 0)])
		if err != nil {
			break // another server's
		}
		x, err := a.service.Get(c, c.owner(), id)
		if engi.Is(err, engi.NotFound) || err == nil && x.Owner != c.owner() {
			break // an administrator sees those of others, and continues only its own
		}
		if err != nil {
			return err
		}
		before, err := a.service.Messages(c, c.owner(), id)
		if err != nil {
			return err
		}
		later := all[i+1:]
		nameCalls(x, later)
		// The agent's own tools may have been called in the same answer.
		if n := len(before); n > 0 && before[n-1].Role == engi.RoleTool && len(later) > 0 && later[0].Role == engi.RoleTool {
			before[n-1].Results = append(slices.Clone(before[n-1].Results), later[0].Results...)
			later = later[1:]
		}
		all = append(before, later...)
		break
	}
	spec.Messages = all
	return lastIsInput(spec, field)
}

// nameCalls gives calls of a run, in results from a client, the IDs that they have
// here.
func nameCalls(x engi.Run, messages []engi.Message) {
	for _, m := range messages {
		for j := range m.Results {
			for n, made := range x.Calls {
				if m.Results[j].Call == callID(x, n) {
					m.Results[j].Call = made.ID
				}
			}
		}
	}
}

// lastIsInput makes the last message the input, unless that has the results of calls.
// field is where the messages come from.
func lastIsInput(spec *engi.RunSpec, field string) error {
	all := spec.Messages
	last := len(all) - 1
	switch {
	case last >= 0 && all[last].Role == engi.RoleUser:
		spec.Input, spec.Images, spec.Messages = all[last].Text, all[last].Images, all[:last]
	case last < 0 || all[last].Role != engi.RoleTool:
		return engi.Errorf(engi.Invalid, "%s: the last message is neither the user's nor the result of a call", field)
	}
	return nil
}

type completionPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
	File foreignFile `json:"file"`
}

// A foreignFile is a document in one of OpenAI's formats.
type foreignFile struct {
	Data string `json:"file_data"`
	ID   string `json:"file_id"`
	URL  string `json:"file_url"`
	Name string `json:"filename"`
}

// document returns the document, which must be part of the request.
func (f foreignFile) document() (engi.Image, error) {
	if f.Data == "" {
		return engi.Image{}, engi.Errorf(engi.Invalid, "a file is not part of the request").WithRemedy("send it as file_data, in base64; nothing is fetched or kept for you")
	}
	if !strings.HasPrefix(f.Data, "data:") {
		f.Data = "data:" + engi.PDF + ";base64," + f.Data
	}
	img, err := fromDataURL(f.Data)
	img.Name = f.Name
	if err == nil && img.MediaType != engi.PDF {
		err = engi.Errorf(engi.Invalid, "a file of type %.80q cannot be read", img.MediaType).WithRemedy("send PDFs as files, and what is in others as text")
	}
	return img, err
}

// fromDataURL reads an image that is a URL.
func fromDataURL(url string) (engi.Image, error) {
	head, data, ok := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
	if !ok || !strings.HasPrefix(url, "data:") {
		return engi.Image{}, engi.Errorf(engi.Invalid, "an image is not part of the request").WithRemedy("send it as a data: URL in base64; nothing is fetched for you")
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
	parts, err := elements[completionPart](raw)
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

// completionCalls are the calls of a run's end, for a message or for a delta.
func completionCalls(x engi.Run, numbered bool) []any {
	all := make([]any, len(x.Calls))
	for i, t := range x.Calls {
		o := map[string]any{"id": callID(x, i), "type": "function", "function": map[string]any{"name": t.Name, "arguments": t.Arguments}}
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

// streamCompletion answers with chunks, which have no names and no IDs; those
// of one run after those of the other.
func (a *agents) streamCompletion(c *call, q completionRequest, runs []engi.Run, typed bool) error {
	out := a.dialectStream(c)
	chunk := func(x engi.Run, delta map[string]any, finish any) map[string]any {
		return map[string]any{"id": string(runs[0].ID), "object": "chat.completion.chunk", "created": runs[0].Created.Unix(), "model": q.Model,
			"choices": []any{map[string]any{"index": slices.IndexFunc(runs, func(r engi.Run) bool { return r.ID == x.ID }), "delta": delta, "finish_reason": finish}}}
	}
	var tokens engi.Tokens
	for _, x := range runs {
		if !out.send("", chunk(x, map[string]any{"role": "assistant", "content": ""}, nil)) {
			return nil
		}
		end, ok := out.follow(x, func(e engi.RunUpdate) bool {
			switch {
			case e.Kind == engi.RunText && !typed:
				return out.send("", chunk(x, map[string]any{"content": e.Text}, nil))
			case e.Kind == engi.RunThought:
				return out.send("", chunk(x, map[string]any{"reasoning_content": e.Text}, nil))
			}
			return true
		}, func(p v1.Problem) (string, any) { return "", map[string]any{"error": completionError(p)} })
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
		if len(delta) > 0 && !out.send("", chunk(x, delta, nil)) || !out.send("", chunk(x, map[string]any{}, completionStop(end))) {
			return nil
		}
		tokens = tokens.Add(end.Tokens)
	}
	if q.StreamOptions.IncludeUsage {
		last := chunk(runs[0], nil, nil)
		last["choices"], last["usage"] = []any{}, completionUsage(tokens)
		if !out.send("", last) {
			return nil
		}
	}
	out.write("data: [DONE]\n\n")
	return nil
}

// A dialectStream writes a stream of another server's format.
type dialectStream struct {
	a        *agents
	c        *call
	rc       *http.ResponseController
	failures bool // the format has a form for runs that failed, other than that of errors
}

func (a *agents) dialectStream(c *call) *dialectStream {
	c.Header().Set("Content-Type", "text/event-stream")
	c.Header().Set("Cache-Control", "no-cache")
	return &dialectStream{a: a, c: c, rc: http.NewResponseController(c)}
}

func (d *dialectStream) write(text string) bool {
	_, err := httpio.DeadlineWriter{W: d.c}.Write([]byte(text))
	return err == nil && d.rc.Flush() == nil
}

// send writes an event, which has a name in some formats.
func (d *dialectStream) send(name string, v any) bool {
	raw, err := httpio.Marshal(v)
	if err != nil {
		d.c.logInternal(err)
		return false
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	return d.write(fmt.Sprintf("%sdata: %s\n\n", name, raw))
}

// follow calls f with what happens in a run, until it ends or f returns false.
// An error is sent in the form of the format.
func (d *dialectStream) follow(x engi.Run, f func(engi.RunUpdate) bool, form func(v1.Problem) (name string, v any)) (end engi.Run, ok bool) {
	ctx, cancel := d.c.waiting()
	source := httpio.Pull(d.a.service.Watch(ctx, x.Owner, x.ID, 0))
	defer source.Stop()
	defer cancel()
	defer d.c.gone()
	failed := func(err error) {
		if p, ok := d.c.tell(err); ok {
			d.send(form(p))
		}
	}
	beat := time.NewTicker(d.c.s.beat)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if !d.write(": alive\n\n") {
				return end, false
			}
		case e, more := <-source.Events:
			if !more {
				return end, false
			}
			if e.Err != nil {
				failed(e.Err)
				return end, false
			}
			event := e.Event
			source.Release()
			if event.Kind == engi.RunEnd {
				if event.Run.State == engi.RunFailed && !d.failures {
					failed(event.Run.Error)
					return end, false
				}
				return *event.Run, true
			}
			if !f(event) {
				return end, false
			}
		}
	}
}
