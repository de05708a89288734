package llm

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/engi-dev/engi"
)

// An obj is a JSON object that is being written.
type obj = map[string]any

// openaiFormat is OpenAI's chat completions, as others offer them too.
type openaiFormat struct{}

func (openaiFormat) authorize(h http.Header, key string) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

func (openaiFormat) request(c *call, stream bool) (string, any) {
	body := obj{"model": c.model}
	if stream {
		body["stream"] = true
		body["stream_options"] = obj{"include_usage": true}
	}
	reasons := openaiReasons(c.model)
	if c.q.MaxTokens > 0 {
		if reasons {
			body["max_completion_tokens"] = c.q.MaxTokens
		} else {
			body["max_tokens"] = c.q.MaxTokens
		}
	}
	if c.q.Temperature != nil && !reasons && !strings.Contains(c.model, "search-preview") {
		body["temperature"] = *c.q.Temperature
	}
	messages := []obj{}
	if strings.TrimSpace(c.q.System) != "" {
		messages = append(messages, obj{"role": "system", "content": c.q.System})
	}
	for _, m := range c.messages {
		switch m.Role {
		case engi.RoleUser:
			messages = append(messages, obj{"role": "user", "content": openaiContent(m)})
		case engi.RoleAssistant:
			o := obj{"role": "assistant"}
			if m.Text != "" {
				o["content"] = m.Text
			}
			var calls []obj
			for _, t := range m.Calls {
				calls = append(calls, obj{"id": t.ID, "type": "function", "function": obj{"name": t.Name, "arguments": t.Arguments}})
			}
			if calls != nil {
				o["tool_calls"] = calls
			}
			messages = append(messages, o)
		case engi.RoleTool:
			for _, r := range m.Results {
				messages = append(messages, obj{"role": "tool", "tool_call_id": r.Call, "content": r.Text})
			}
		}
	}
	body["messages"] = messages
	var tools []obj
	for _, t := range c.tools {
		tools = append(tools, obj{"type": "function", "function": obj{
			"name": t.name, "description": t.description, "parameters": t.input, "strict": false,
		}})
	}
	if tools != nil {
		body["tools"] = tools
		switch choice := c.q.Choice; choice {
		case "":
		case ChoiceAuto, ChoiceNone, ChoiceRequired:
			body["tool_choice"] = choice
		default:
			body["tool_choice"] = obj{"type": "function", "function": obj{"name": choice}}
		}
	}
	return "/chat/completions", body
}

// openaiReasons reports whether a model thinks before it answers: such models
// take no temperature, and their limit of tokens has another name.
func openaiReasons(model string) bool {
	model = strings.ToLower(model)
	for _, family := range []string{"o1", "o3", "o4", "oss"} {
		if strings.HasPrefix(model, family) || strings.Contains(model, "-"+family) {
			return true
		}
	}
	return strings.Contains(model, "gpt-5")
}

func openaiContent(m engi.Message) any {
	if len(m.Images) == 0 {
		return m.Text
	}
	var parts []obj
	if m.Text != "" {
		parts = append(parts, obj{"type": "text", "text": m.Text})
	}
	for _, img := range m.Images {
		parts = append(parts, obj{"type": "image_url", "image_url": obj{"url": "data:" + img.MediaType + ";base64," + encode(img.Data)}})
	}
	return parts
}

// openaiAnswer is a whole answer, or an event of a stream.
type openaiAnswer struct {
	Error   json.RawMessage
	Choices []struct {
		Message, Delta openaiMessage
		FinishReason   string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt        int64 `json:"prompt_tokens"`
		Completion    int64 `json:"completion_tokens"`
		PromptDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		CompletionDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	}
}

type openaiMessage struct {
	Content          openaiText
	Reasoning        openaiText
	ReasoningContent openaiText `json:"reasoning_content"`
	ToolCalls        []struct {
		Index    *int
		ID       string
		Function struct {
			Name      string
			Arguments openaiText
		}
	} `json:"tool_calls"`
}

// openaiText is a text, or what others send in its place: parts with texts and
// thoughts, or an object where its JSON belongs.
type openaiText struct{ text, thought string }

func (t *openaiText) UnmarshalJSON(raw []byte) error {
	*t = openaiText{}
	if string(raw) == "null" || json.Unmarshal(raw, &t.text) == nil {
		return nil
	}
	var parts []struct {
		Text     string
		Thinking openaiParts
	}
	if json.Unmarshal(raw, &parts) == nil {
		for _, p := range parts {
			t.text += p.Text
			t.thought += string(p.Thinking)
		}
		return nil
	}
	t.text = string(raw)
	return nil
}

// openaiParts is the text of a list of parts.
type openaiParts string

func (p *openaiParts) UnmarshalJSON(raw []byte) error {
	var t openaiText
	err := t.UnmarshalJSON(raw)
	*p = openaiParts(t.text)
	return err
}

var openaiStops = map[string]Stop{
	"stop": StopEnd, "length": StopLength, "content_filter": StopFilter, "tool_calls": StopTools, "function_call": StopTools,
	"insufficient_system_resource": stopFailed, "error": stopFailed,
}

func (f openaiFormat) whole(raw []byte, a *answer) error {
	var o openaiAnswer
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	if len(o.Choices) == 0 {
		return a.failed(raw)
	}
	if o.Choices[0].FinishReason == "" {
		o.Choices[0].FinishReason = "stop"
	}
	return f.read(o, a)
}

func (f openaiFormat) event(raw []byte, a *answer) error {
	a.unsaid = true // some servers leave the reason out
	if string(raw) == "[DONE]" {
		a.done = true
		return nil
	}
	var o openaiAnswer
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	if len(o.Error) > 0 && string(o.Error) != "null" {
		return a.failed(raw)
	}
	return f.read(o, a)
}

func (openaiFormat) read(o openaiAnswer, a *answer) error {
	if u := o.Usage; u != nil && u.Prompt+u.Completion > 0 {
		cached := max(u.PromptDetails.Cached, 0)
		a.tokens = engi.Tokens{
			Input: max(u.Prompt-cached, 0), Output: max(u.Completion, 0),
			Reasoning: max(u.CompletionDetails.Reasoning, 0), CacheRead: cached,
		}
	}
	if len(o.Choices) == 0 {
		return nil
	}
	choice := o.Choices[0]
	for _, m := range []openaiMessage{choice.Message, choice.Delta} {
		thought := m.ReasoningContent.text
		if thought == "" {
			thought = m.Reasoning.text
		}
		if err := a.think(thought + m.Content.thought); err != nil {
			return err
		}
		if err := a.say(m.Content.text); err != nil {
			return err
		}
		for i, t := range m.ToolCalls {
			number := i
			if t.Index != nil {
				number = *t.Index
			}
			if a.find(number) == nil && t.Function.Name == "" {
				continue // Ollama sends empty ones
			}
			if err := a.call(number, t.ID, t.Function.Name, t.Function.Arguments.text); err != nil {
				return err
			}
		}
	}
	if choice.FinishReason != "" {
		a.stop = stopOf(openaiStops, choice.FinishReason)
	}
	return nil
}
