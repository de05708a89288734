package llm

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// anthropicFormat is the format of Anthropic's messages.
type anthropicFormat struct{}

// anthropicLimit returns the maximum length of a model's answer when the caller names none:
// the format requires a number. Newer models than the last one here allow more, but
// some servers use the format for models that allow less; see
// [anthropicTooMany].
func anthropicLimit(model string) int {
	model = strings.ToLower(model)
	for _, old := range []string{"claude-2", "claude-instant", "claude-3-opus", "claude-3-sonnet", "claude-3-haiku"} {
		if strings.Contains(model, old) {
			return 4096
		}
	}
	if strings.Contains(model, "claude-3-5") {
		return 8192
	}
	return 32_000
}

// anthropicTooMany matches the error for a limit that is too high for the
// model, and captures the model's limit.
var anthropicTooMany = regexp.MustCompile(`max_tokens: \d+ > (\d{1,9})\b`)

// anthropicVersion returns the version of a Claude, 4.6 for claude-opus-4-6;
// 0 if the name contains none.
func anthropicVersion(model string) float64 {
	m := anthropicName.FindStringSubmatch(strings.ToLower(model))
	if m == nil {
		return 0
	}
	v, err := strconv.ParseFloat(m[1]+"."+cmp.Or(m[2], "0"), 64)
	if err != nil {
		return 0
	}
	return v
}

var anthropicName = regexp.MustCompile(`claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2})(?:\D|$))?`)

// think sets the effort of reasoning. A model that must call a tool
// cannot reason first.
func (anthropicFormat) think(c *call, body obj) {
	version := anthropicVersion(c.model)
	budget := map[engi.Effort]int{engi.EffortLow: 2048, engi.EffortMedium: 8192, engi.EffortHigh: 24_576}[c.q.Effort]
	forced := c.q.Choice != "" && c.q.Choice != ChoiceAuto && c.q.Choice != ChoiceNone
	if budget == 0 || forced || version < 4 && !strings.Contains(c.model, "claude-3-7") {
		return
	}
	if version >= 4.6 {
		body["thinking"], body["output_config"] = obj{"type": "adaptive"}, obj{"effort": c.q.Effort}
	} else {
		// The budget counts against the limit of the answer.
		if budget = min(budget, body["max_tokens"].(int)/2); budget < 1024 {
			return
		}
		body["thinking"] = obj{"type": "enabled", "budget_tokens": budget}
	}
	delete(body, "temperature")
	delete(body, "top_p")
}

func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func (anthropicFormat) authorize(h http.Header, key string) {
	h.Set("Anthropic-Version", "2023-06-01")
	if key != "" {
		h.Set("X-Api-Key", key)
	}
}

func (anthropicFormat) request(c *call, stream bool) (string, any) {
	body := obj{"model": c.model, "max_tokens": anthropicLimit(c.model)}
	if stream {
		body["stream"] = true
	}
	if c.q.MaxTokens > 0 {
		body["max_tokens"] = c.q.MaxTokens
	}
	if c.q.Temperature != nil {
		body["temperature"] = *c.q.Temperature
	}
	if c.q.TopP != nil && c.q.Temperature == nil { // the provider refuses both at once
		body["top_p"] = *c.q.TopP
	}
	if c.q.Stop != nil {
		body["stop_sequences"] = c.q.Stop
	}
	anthropicFormat{}.think(c, body)
	if c.q.System != "" {
		body["system"] = []obj{{"type": "text", "text": c.q.System}}
	}
	// User and assistant take turns, and results are part of the user's messages.
	messages := []obj{}
	var role string
	var blocks []obj
	flush := func() {
		if len(blocks) > 0 {
			messages = append(messages, obj{"role": role, "content": blocks})
		}
		blocks = nil
	}
	for _, m := range c.messages {
		next := "user"
		if m.Role == engi.RoleAssistant {
			next = "assistant"
		}
		if next != role {
			flush()
			role = next
		}
		for _, p := range parts(m) {
			switch {
			case p.Data != "":
				blocks = append(blocks, obj{"type": "redacted_thinking", "data": p.Data})
			case p.Thought != "" || p.Signature != "":
				blocks = append(blocks, obj{"type": "thinking", "thinking": p.Thought, "signature": p.Signature})
			case strings.TrimSpace(p.Text) != "": // the provider refuses blank texts
				blocks = append(blocks, obj{"type": "text", "text": p.Text})
			case p.Call != "":
				t := callOf(m, p.Call)
				blocks = append(blocks, obj{"type": "tool_use", "id": t.ID, "name": t.Name, "input": json.RawMessage(t.Arguments)})
			}
		}
		for _, img := range m.Images {
			block := obj{"type": "image", "source": obj{"type": "base64", "media_type": img.MediaType, "data": encode(img.Data)}}
			if img.MediaType == engi.PDF {
				block["type"] = "document"
				if img.Name != "" {
					block["title"] = img.Name
				}
			}
			blocks = append(blocks, block)
		}
		for _, r := range m.Results {
			o := obj{"type": "tool_result", "tool_use_id": r.Call}
			if r.Text != "" {
				o["content"] = []obj{{"type": "text", "text": r.Text}}
			}
			if r.Failed {
				o["is_error"] = true
			}
			blocks = append(blocks, o)
		}
	}
	flush()
	body["messages"] = messages
	var tools []obj
	for _, t := range c.tools {
		// The provider refuses other keywords at the top of a schema.
		input := obj{"type": "object", "properties": obj{}}
		for _, key := range []string{"properties", "required"} {
			if v, ok := t.input[key]; ok {
				input[key] = v
			}
		}
		tools = append(tools, obj{"name": t.name, "description": t.description, "input_schema": input})
	}
	if tools != nil {
		// The next step sends the conversation again with the results. The part up to the end
		// of the prompt is the same in all runs, and the part up to the last message in all
		// later steps.
		prefix := tools
		if system, ok := body["system"].([]obj); ok {
			prefix = system
		}
		prefix[len(prefix)-1]["cache_control"] = obj{"type": "ephemeral"}
		if n := len(messages); n > 0 {
			content := messages[n-1]["content"].([]obj)
			content[len(content)-1]["cache_control"] = obj{"type": "ephemeral"}
		}
		body["tools"] = tools
		switch choice := c.q.Choice; choice {
		case "":
		case ChoiceAuto, ChoiceNone:
			body["tool_choice"] = obj{"type": choice}
		case ChoiceRequired:
			body["tool_choice"] = obj{"type": "any"}
		default:
			body["tool_choice"] = obj{"type": "tool", "name": choice}
		}
	}
	return "/v1/messages", body
}

type anthropicBlock struct {
	Type, Text, Thinking, Signature, Data, ID, Name string
	Input                                           json.RawMessage
	PartialJSON                                     string `json:"partial_json"`
}

type anthropicUsage struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`
}

// add adds the counts of an event: those of a stream grow, and not every event has all.
func (u anthropicUsage) add(t *engi.Tokens) {
	t.Input, t.Output = max(t.Input, u.Input), max(t.Output, u.Output)
	t.CacheRead, t.CacheWrite = max(t.CacheRead, u.CacheRead), max(t.CacheWrite, u.CacheWrite)
}

var anthropicStops = map[string]Stop{
	"end_turn": StopEnd, "pause_turn": StopEnd, "stop_sequence": StopEnd, "tool_use": StopTools,
	"max_tokens": StopLength, "model_context_window_exceeded": StopLength,
	"refusal": StopFilter, "content_filtered": StopFilter, "guardrail_intervened": StopFilter,
}

func (anthropicFormat) whole(raw []byte, a *answer) error {
	var o struct {
		Type       string
		Content    []anthropicBlock
		StopReason string `json:"stop_reason"`
		Usage      anthropicUsage
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	if o.Type == "error" {
		return a.failed(raw)
	}
	o.Usage.add(&a.tokens)
	a.end(anthropicStops, o.StopReason)
	for i, b := range o.Content {
		if err := b.read(i, a); err != nil {
			return err
		}
	}
	return nil
}

// read adds the contents of a block to the answer.
func (b anthropicBlock) read(number int, a *answer) error {
	switch b.Type {
	case "text", "text_delta":
		return a.say(b.Text)
	case "thinking", "thinking_delta":
		if err := a.think(b.Thinking); err != nil {
			return err
		}
		return a.sign(thoughtPart, b.Signature)
	case "signature_delta":
		return a.sign(thoughtPart, b.Signature)
	case "redacted_thinking":
		return a.hide(b.Data, "")
	case "tool_use":
		input := string(b.Input)
		if input == "{}" || input == "null" {
			input = "" // the input follows in later events, or is empty
		}
		return a.call(number, b.ID, b.Name, input)
	case "input_json_delta":
		if a.find(number) != nil { // otherwise the provider itself runs the tool
			return a.call(number, "", "", b.PartialJSON)
		}
	}
	return nil
}

func (anthropicFormat) event(raw []byte, a *answer) error {
	var e struct {
		Type    string
		Index   int
		Message struct{ Usage anthropicUsage }
		Block   anthropicBlock `json:"content_block"`
		Delta   struct {
			anthropicBlock
			StopReason string `json:"stop_reason"`
		}
		Usage anthropicUsage
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return a.unreadable(err)
	}
	e.Message.Usage.add(&a.tokens)
	e.Usage.add(&a.tokens)
	switch e.Type {
	case "content_block_start":
		return e.Block.read(e.Index, a)
	case "content_block_delta":
		return e.Delta.read(e.Index, a)
	case "message_delta":
		// The reason counts only when the stream ends properly.
		a.pending = e.Delta.StopReason
	case "message_stop":
		a.end(anthropicStops, a.pending)
		a.done = true
	case "error":
		return a.failed(raw)
	}
	return nil
}
