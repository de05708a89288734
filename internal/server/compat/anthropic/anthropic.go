// Package anthropic serves the format of Anthropic's messages, so that unmodified
// clients work. The model of a request is the name of an agent. The agent's own tools run
// here, and the client does not see them; the client runs the request's tools. A field that
// engi cannot honour is refused, never ignored.
package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/rest"
)

// front answers requests with runs of agents.
type front struct{ agents engi.Agents }

// Resource returns the routes for Anthropic's clients; agents may be nil.
func Resource(agents engi.Agents) rest.Resource {
	f := &front{agents}
	change := rest.Access{Scope: engi.ScopeAgents, Write: true}
	return dialect.Resource(agents,
		rest.Foreign(rest.Route{
			Pattern: "POST /v1/messages", ID: "create-message", Summary: "Create a message (Anthropic)", Access: change, Objects: rest.Owned,
			Text:    "model is the name of an agent. The agent's own tools run on this node; the client makes the calls of the tools in the request. If the client disconnects, the run is cancelled, unless the request had an Idempotency-Key. To use this server, set the client's base URL to this server and its API key to an engi key.",
			Creates: "a repeated key returns the first answer instead of asking again", Error: errorOf,
		}, f.message),
		rest.Foreign(rest.Route{
			Pattern: "POST /v1/messages/count_tokens", ID: "count-message-tokens", Summary: "Count the tokens of a message (Anthropic)", Access: change, Objects: rest.Shared,
			Text: "Counts one token for four bytes, because the agent's model and its tokenizer are not known in advance.", Error: errorOf,
		}, func(ex *rest.Exchange, _ *struct{}) error {
			body, free, err := ex.ReadBody()
			if err != nil {
				return err
			}
			defer free()
			if !json.Valid(body) {
				return engi.Errorf(engi.Invalid, "the body is not JSON")
			}
			return ex.Reply(map[string]any{"input_tokens": estimate(len(body))})
		}),
	)
}

// errorOf returns a problem in the format that Anthropic's clients expect.
func errorOf(p v1.Problem) any {
	kind, ok := map[string]string{
		v1.Anonymous: "authentication_error", v1.Denied: "permission_error", v1.NotFound: "not_found_error", v1.Exhausted: "rate_limit_error",
		v1.Internal: "api_error", v1.Expired: "api_error", v1.Unavailable: "overloaded_error",
	}[p.Kind]
	if !ok {
		kind = "invalid_request_error"
	}
	return map[string]any{"type": kind, "message": dialect.WithRemedy(p)}
}

type request struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	System   json.RawMessage `json:"system"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"input_schema"`
	} `json:"tools"`
	ToolChoice struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		OneCall bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	MaxTokens   int      `json:"max_tokens"`
	Temperature *float64 `json:"temperature"`
	TopP        *float64 `json:"top_p"`
	Stop        []string `json:"stop_sequences"`
	Thinking    struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	Output struct {
		Effort string `json:"effort"`
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	Sandbox   string `json:"sandbox"`
	Session   string `json:"session"`
	Workspace string `json:"workspace"`
}

// values holds the accepted values of fields that need no work; a field
// without values accepts any value.
var values = map[string][]string{
	"service_tier": {`"auto"`, `"standard_only"`}, "mcp_servers": {"[]"},
	"metadata": nil, "context_management": nil, "cache_control": nil, // hints for savings, which the node decides itself
}

type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
	Source    struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
	} `json:"source"`
	Title     string `json:"title"`
	Context   string `json:"context"`
	Citations struct {
		Enabled bool `json:"enabled"`
	} `json:"citations"`
}

// blocksOf parses a content, which is a text or a list of blocks.
func blocksOf(raw json.RawMessage) (blocks []block, err error) {
	var text string
	switch {
	case len(raw) == 0 || string(raw) == "null":
	case json.Unmarshal(raw, &text) == nil:
		blocks = []block{{Type: "text", Text: text}}
	default:
		if blocks, err = dialect.Elements[block](raw); err != nil {
			return nil, engi.Errorf(engi.Invalid, "its content is neither a text nor a list of blocks")
		}
	}
	return blocks, nil
}

// contentOf returns the texts and images of a content.
func contentOf(raw json.RawMessage) (text string, images []engi.Image, err error) {
	blocks, err := blocksOf(raw)
	if err != nil {
		return "", nil, err
	}
	return readBlocks(blocks, func(b block) error {
		return engi.Errorf(engi.Invalid, "a block of type %.40q cannot be read", b.Type).WithRemedy("send text, images and documents")
	})
}

// readBlocks collects texts and images, and calls other for each other block.
func readBlocks(blocks []block, other func(block) error) (text string, images []engi.Image, err error) {
	var texts []string
	for _, b := range blocks {
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "image":
			img, err := b.image()
			if err != nil {
				return "", nil, err
			}
			images = append(images, img)
		case "document":
			switch {
			case b.Citations.Enabled:
				return "", nil, engi.Errorf(engi.Invalid, "citations are not supported").WithRemedy("leave them out")
			case b.Source.Type == "text":
				texts = append(texts, join(b.Title, b.Context, b.Source.Data))
				continue
			case b.Source.Type == "base64" && b.Source.MediaType != engi.PDF:
				return "", nil, engi.Errorf(engi.Invalid, "a document of type %.80q cannot be read", b.Source.MediaType).WithRemedy("send PDFs and texts")
			}
			doc, err := b.image()
			if err != nil {
				return "", nil, err
			}
			doc.Name = b.Title
			images = append(images, doc)
			if b.Context != "" {
				texts = append(texts, b.Context)
			}
		default:
			if err := other(b); err != nil {
				return "", nil, err
			}
		}
	}
	return strings.Join(texts, "\n"), images, nil
}

// join joins non-empty texts with line breaks.
func join(lines ...string) string {
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return l == "" }), "\n")
}

func (b block) image() (engi.Image, error) {
	if b.Source.Type != "base64" {
		return engi.Image{}, engi.Errorf(engi.Invalid, "an image or a document is not part of the request").WithRemedy("send it in base64; engi does not fetch URLs")
	}
	raw, err := base64.StdEncoding.DecodeString(b.Source.Data)
	if err != nil {
		return engi.Image{}, engi.Errorf(engi.Invalid, "an image or a document is no base64")
	}
	return engi.Image{MediaType: b.Source.MediaType, Data: raw}, nil
}

func (f *front) message(ex *rest.Exchange, _ *struct{}) error {
	var q request
	size, err := dialect.Decode(ex, &q, values)
	if err != nil {
		return err
	}
	spec, err := f.spec(ex, q)
	if err != nil {
		return err
	}
	x, err := ex.StartRun(f.agents, spec)
	if err != nil {
		return err
	}
	if ex.IdempotencyKey() == "" {
		defer func() {
			if ex.Left() {
				dialect.Abandon(ex, f.agents, x)
			}
		}()
	}
	if q.Stream {
		return f.streamMessage(ex, q, estimate(size), x, dialect.Typed(f.agents, spec))
	}
	end, err := ex.WaitRun(f.agents, x, func(engi.RunUpdate) {})
	if err != nil {
		return err
	}
	content := []any{}
	if end.Text != "" {
		content = append(content, map[string]any{"type": "text", "text": end.Text})
	}
	for i, t := range end.Calls {
		content = append(content, map[string]any{"type": "tool_use", "id": dialect.CallID(end, i), "name": t.Name, "input": arguments(t)})
	}
	return ex.Reply(map[string]any{
		"id": string(x.ID), "type": "message", "role": "assistant", "model": q.Model, "content": content,
		"stop_reason": stopReason(end), "stop_sequence": nil, "usage": usageOf(end.Tokens),
	})
}

// arguments returns the arguments of a call as a JSON object; those of a model may be invalid.
func arguments(t engi.ToolCall) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(t.Arguments), &o) != nil || o == nil {
		return json.RawMessage("{}")
	}
	return json.RawMessage(t.Arguments)
}

func usageOf(t engi.Tokens) map[string]any {
	return map[string]any{"input_tokens": t.Input, "output_tokens": t.Output, "cache_read_input_tokens": t.CacheRead, "cache_creation_input_tokens": t.CacheWrite}
}

func stopReason(x engi.Run) string {
	switch {
	case len(x.Calls) > 0:
		return "tool_use"
	case x.Reason == "":
		return "end_turn"
	case x.Reason == "filter":
		return "refusal"
	}
	return "max_tokens"
}

func (f *front) spec(ex *rest.Exchange, q request) (spec engi.RunSpec, err error) {
	spec.Agent, spec.Session, spec.Workspace = q.Model, q.Session, q.Workspace
	if q.MaxTokens < 1 {
		return spec, engi.Errorf(engi.Invalid, "max_tokens: it is missing")
	}
	spec.Sampling = engi.Sampling{MaxTokens: q.MaxTokens, Temperature: q.Temperature, TopP: q.TopP, Stop: q.Stop, OneCall: q.ToolChoice.OneCall, Effort: engi.Effort(q.Output.Effort)}
	switch {
	case q.Thinking.Type == "disabled":
		spec.Sampling.Effort = engi.EffortNone
	case q.Thinking.Type == "enabled" && q.Thinking.Budget <= 4096:
		spec.Sampling.Effort = engi.EffortLow
	case q.Thinking.Type == "enabled" && q.Thinking.Budget <= 16_384:
		spec.Sampling.Effort = engi.EffortMedium
	case q.Thinking.Type == "enabled":
		spec.Sampling.Effort = engi.EffortHigh
	case q.Thinking.Type != "" && q.Thinking.Type != "adaptive":
		return spec, engi.Errorf(engi.Invalid, "thinking: there is no type %.40q", q.Thinking.Type).WithRemedy("use enabled, adaptive or disabled")
	}
	if q.Sandbox != "" {
		if spec.Sandbox, err = engi.ParseSandboxID(q.Sandbox); err != nil {
			return spec, err
		}
	}
	switch q.Output.Format.Type {
	case "":
	case "json_schema":
		spec.Output = q.Output.Format.Schema
	default:
		return spec, engi.Errorf(engi.Invalid, "output_config: there is no format %.40q", q.Output.Format.Type).WithRemedy("use json_schema")
	}
	for i, t := range q.Tools {
		if t.Type != "" && t.Type != "custom" {
			return spec, engi.Errorf(engi.Invalid, "tools[%d]: tools of type %.60q are not supported", i, t.Type).WithRemedy("describe it by an input_schema")
		}
		spec.Tools = append(spec.Tools, engi.Tool{Name: t.Name, Description: t.Description, Schema: t.Schema})
	}
	switch q.ToolChoice.Type {
	case "", "auto", "none":
		spec.Choice = q.ToolChoice.Type
	case "any":
		spec.Choice = "required"
	case "tool":
		spec.Choice = q.ToolChoice.Name
	default:
		return spec, engi.Errorf(engi.Invalid, "tool_choice: there is no type %.40q", q.ToolChoice.Type).WithRemedy("use auto, any, tool or none")
	}
	if spec.System, _, err = contentOf(q.System); err != nil {
		return spec, engi.Errorf(engi.Invalid, "system: %w", err)
	}
	for i, m := range q.Messages {
		blocks, err := blocksOf(m.Content)
		if err == nil {
			err = addBlocks(&spec, m.Role, blocks)
		}
		if err != nil {
			return spec, engi.Errorf(engi.Invalid, "messages[%d]: %w", i, err)
		}
	}
	return spec, dialect.Continue(ex, f.agents, &spec, "messages")
}

// addBlocks adds a message. A message of the user may have results before its text.
func addBlocks(spec *engi.RunSpec, role string, blocks []block) error {
	m := engi.Message{Role: engi.Role(role)}
	if role != "user" && role != "assistant" {
		return engi.Errorf(engi.Invalid, "there is no role %.40q", role).WithRemedy("use user and assistant")
	}
	var err error
	m.Text, m.Images, err = readBlocks(blocks, func(b block) error {
		switch b.Type {
		case "tool_use":
			m.Calls = append(m.Calls, engi.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "tool_result":
			text, images, err := contentOf(b.Content)
			if err != nil {
				return err
			}
			dialect.AddResult(spec, engi.ToolResult{Call: b.ToolUseID, Text: text, Images: images, Failed: b.IsError})
		case "thinking", "redacted_thinking":
			// The run with these blocks still has them.
		default:
			return engi.Errorf(engi.Invalid, "a block of type %.40q cannot be read", b.Type).WithRemedy("send text, images, documents, calls and results")
		}
		return nil
	})
	if m.Text != "" || m.Images != nil || m.Calls != nil {
		spec.Messages = append(spec.Messages, m)
	}
	return err
}

// estimate returns the number of tokens of a request with size bytes.
func estimate(size int) int64 { return int64(size/4 + 1) }

// streamMessage answers with events. The texts of all steps form one block. The number of input tokens is an
// estimate until the end, because the model tells it then.
func (f *front) streamMessage(ex *rest.Exchange, q request, input int64, x engi.Run, typed bool) error {
	out := dialect.NewStream(ex, f.agents)
	send := func(kind string, fields map[string]any) bool {
		fields["type"] = kind
		return out.Send(kind, fields)
	}
	index, open := -1, ""
	stop := func() bool {
		if open == "" {
			return true
		}
		open = ""
		return send("content_block_stop", map[string]any{"index": index})
	}
	start := func(kind string, block map[string]any) bool {
		if open == kind && kind != "tool_use" {
			return true
		}
		if !stop() {
			return false
		}
		index++
		open, block["type"] = kind, kind
		return send("content_block_start", map[string]any{"index": index, "content_block": block})
	}
	delta := func(d map[string]any) bool {
		return send("content_block_delta", map[string]any{"index": index, "delta": d})
	}
	say := func(text string) bool {
		return start("text", map[string]any{"text": ""}) && delta(map[string]any{"type": "text_delta", "text": text})
	}
	if !send("message_start", map[string]any{"message": map[string]any{
		"id": string(x.ID), "type": "message", "role": "assistant", "model": q.Model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usageOf(engi.Tokens{Input: input}),
	}}) {
		return nil
	}
	thinks := q.Thinking.Type == "enabled" || q.Thinking.Type == "adaptive"
	end, ok := out.Follow(x, func(e engi.RunUpdate) bool {
		switch {
		case e.Kind == engi.RunText && !typed:
			return say(e.Text)
		case e.Kind == engi.RunThought && thinks:
			return start("thinking", map[string]any{"thinking": "", "signature": ""}) && delta(map[string]any{"type": "thinking_delta", "thinking": e.Text})
		}
		return true
	}, func(p v1.Problem) (string, any) {
		return "error", map[string]any{"type": "error", "error": errorOf(p)}
	})
	if !ok || typed && end.Text != "" && !say(end.Text) {
		return nil
	}
	for i, t := range end.Calls {
		if !start("tool_use", map[string]any{"id": dialect.CallID(end, i), "name": t.Name, "input": map[string]any{}}) || !delta(map[string]any{"type": "input_json_delta", "partial_json": string(arguments(t))}) {
			return nil
		}
	}
	if stop() && send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stopReason(end), "stop_sequence": nil}, "usage": usageOf(end.Tokens)}) {
		send("message_stop", map[string]any{})
	}
	return nil
}
