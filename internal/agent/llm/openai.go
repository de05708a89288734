package llm

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// An obj is a JSON object to be encoded.
type obj = map[string]any

// openaiFormat is the format of OpenAI's chat completions, which others offer too.
type openaiFormat struct {
	compatible bool // another provider, whose models may have any name
}

func (openaiFormat) authorize(h http.Header, key string) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

func (f openaiFormat) request(c *call, stream bool) (string, any) {
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
	if c.q.TopP != nil && !reasons {
		body["top_p"] = *c.q.TopP
	}
	if c.q.Stop != nil {
		body["stop"] = c.q.Stop
	}
	if c.q.Effort != "" && (reasons || f.compatible) {
		body["reasoning_effort"] = c.q.Effort
		if c.q.Effort == engi.EffortNone && reasons {
			body["reasoning_effort"] = openaiLeast(c.model)
		}
	}
	if c.object != nil {
		body["response_format"] = obj{"type": "json_schema", "json_schema": obj{"name": cmp.Or(c.q.ObjectName, "answer"), "schema": c.object, "strict": false}}
	}
	messages := []obj{}
	if strings.TrimSpace(c.q.System) != "" {
		messages = append(messages, obj{"role": "system", "content": c.q.System})
	}
	for i, m := range c.messages {
		switch m.Role {
		case engi.RoleUser:
			messages = append(messages, obj{"role": "user", "content": openaiContent(m)})
		case engi.RoleAssistant:
			o := obj{"role": "assistant"}
			if m.Text != "" {
				o["content"] = m.Text
			}
			var calls []obj
			var thought strings.Builder
			var details []json.RawMessage
			for _, p := range parts(m) {
				thought.WriteString(p.Thought)
				if p.Data != "" {
					details = append(details, json.RawMessage(p.Data))
				}
				if p.Call == "" {
					continue
				}
				t := callOf(m, p.Call)
				call := obj{"id": t.ID, "type": "function", "function": obj{"name": t.Name, "arguments": t.Arguments}}
				if p.Signature != "" {
					call["extra_content"] = json.RawMessage(p.Signature)
				}
				calls = append(calls, call)
			}
			if calls != nil {
				o["tool_calls"] = calls
				// Models that reason between calls need the thoughts of the
				// current turn back; some refuse thoughts of earlier turns.
				if i >= c.turn {
					switch { // details include the thoughts
					case details != nil:
						o["reasoning_details"] = details
					case thought.Len() > 0:
						o["reasoning_content"] = thought.String()
					}
				}
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
		if c.q.OneCall {
			body["parallel_tool_calls"] = false
		}
		openaiChoice(body, c.q.Choice, func(name Choice) obj { return obj{"type": "function", "function": obj{"name": name}} })
	}
	return "/chat/completions", body
}

// openaiChoice sets the tool choice; function returns the form for one tool.
func openaiChoice(body obj, choice Choice, function func(name Choice) obj) {
	switch choice {
	case "":
	case ChoiceAuto, ChoiceNone, ChoiceRequired:
		body["tool_choice"] = choice
	default:
		body["tool_choice"] = function(choice)
	}
}

// openaiReasons reports whether a model reasons before it answers: such models
// accept no temperature, and their token limit has another name.
func openaiReasons(model string) bool {
	model = strings.ToLower(model)
	for _, family := range []string{"o1", "o3", "o4", "oss"} {
		if strings.HasPrefix(model, family) || strings.Contains(model, "-"+family) {
			return true
		}
	}
	return strings.Contains(model, "gpt-5")
}

// openaiObjects reports whether a model accepts a schema for its answer.
func openaiObjects(model string) bool {
	model = strings.ToLower(model)
	return !strings.HasPrefix(model, "gpt-3.5") && !strings.HasPrefix(model, "gpt-4-") && model != "gpt-4"
}

// openaiLeast returns the smallest effort that one of OpenAI's models accepts.
func openaiLeast(model string) string {
	_, version, _ := strings.Cut(strings.ToLower(model), "gpt-5")
	switch {
	case strings.HasPrefix(version, "."):
		return "none"
	case strings.Contains(strings.ToLower(model), "gpt-5"):
		return "minimal"
	}
	return "low"
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
		if img.MediaType == engi.PDF {
			parts = append(parts, obj{"type": "file", "file": obj{"filename": fileName(img), "file_data": dataURL(img)}})
			continue
		}
		parts = append(parts, obj{"type": "image_url", "image_url": obj{"url": dataURL(img)}})
	}
	return parts
}

func dataURL(img engi.Image) string { return "data:" + img.MediaType + ";base64," + encode(img.Data) }

// fileName returns the name of a document, because OpenAI refuses one without a name.
func fileName(img engi.Image) string { return cmp.Or(img.Name, "document.pdf") }

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
		Cached            int64 `json:"cached_tokens"`           // Moonshot
		CacheHits         int64 `json:"prompt_cache_hit_tokens"` // DeepSeek
		Total             int64 `json:"total_tokens"`
		CompletionDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	}
}

type openaiMessage struct {
	Content          openaiText
	Refusal          string
	Reasoning        openaiText
	ReasoningContent openaiText        `json:"reasoning_content"`
	Details          []json.RawMessage `json:"reasoning_details"`
	ToolCalls        []openaiCall      `json:"tool_calls"`
}

type openaiCall struct {
	Index    *int
	ID       string
	Function struct {
		Name      string
		Arguments openaiText
	}
	Extra json.RawMessage `json:"extra_content"` // Gemini's signatures
}

// openaiText is a text, or the value that other servers send in its place: parts with texts and
// thoughts, or an object instead of its JSON text.
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
	"refusal":                      StopFilter,
	"insufficient_system_resource": StopOther, "error": StopMalformed, "malformed_function_call": StopMalformed,
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
	a.unsaid = true // some servers omit the reason
	if string(raw) == "[DONE]" {
		a.done = true
		return nil
	}
	var o openaiAnswer
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	// OpenRouter sends an error without a cause after an answer that was cut off.
	if len(o.Error) > 0 && string(o.Error) != "null" && a.stop == "" {
		return a.failed(raw)
	}
	return f.read(o, a)
}

func (openaiFormat) read(o openaiAnswer, a *answer) error {
	if u := o.Usage; u != nil && u.Prompt+u.Completion > 0 {
		cached := max(u.PromptDetails.Cached, u.Cached, u.CacheHits, 0)
		thoughts := max(u.CompletionDetails.Reasoning, 0)
		a.tokens = engi.Tokens{Input: max(u.Prompt-cached, 0), Output: max(u.Completion, 0), Reasoning: thoughts, CacheRead: cached}
		// xAI counts thoughts separately, and Gemini counts them in the total only.
		if apart := u.Total - u.Prompt - u.Completion; apart > 0 && (thoughts == 0 || thoughts == apart) {
			a.tokens.Output += apart
			a.tokens.Reasoning = apart
		}
	}
	if len(o.Choices) == 0 {
		return nil
	}
	choice := o.Choices[0]
	for _, m := range []openaiMessage{choice.Message, choice.Delta} {
		thought := m.ReasoningContent.text
		a.keep = a.keep || thought != ""
		if thought == "" {
			thought = m.Reasoning.text
		}
		if err := a.think(thought + m.Content.thought); err != nil {
			return err
		}
		for _, d := range m.Details {
			if err := a.detail(d); err != nil {
				return err
			}
		}
		if err := a.say(m.Content.text + m.Refusal); err != nil {
			return err
		}
		a.refused = a.refused || m.Refusal != ""
		for i, t := range m.ToolCalls {
			if err := t.read(i, a); err != nil {
				return err
			}
		}
	}
	if choice.FinishReason != "" {
		a.end(openaiStops, choice.FinishReason)
		if a.refused {
			a.stop, a.reason = StopFilter, "refusal"
		}
	}
	return nil
}

// An openaiDetail is a part of reasoning_details, which arrives in pieces. Fields other
// than texts, such as a signature, are in one of the pieces.
type openaiDetail struct {
	kind, index   string
	fields        map[string]json.RawMessage
	text, summary strings.Builder
}

// detail adds a part of reasoning_details, or a piece of one.
func (a *answer) detail(raw json.RawMessage) error {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields["index"] == nil || fields["data"] != nil {
		return a.hide(string(raw), "")
	}
	var d *openaiDetail
	for _, p := range slices.Backward(a.parts) {
		if p.detail != nil || p.data != "" || p.kind != thoughtPart {
			d = p.detail
			break
		}
	}
	kind, index := string(fields["type"]), string(fields["index"])
	if d == nil || d.kind != kind || d.index != index {
		d = &openaiDetail{kind: kind, index: index, fields: map[string]json.RawMessage{}}
		if err := a.add(&partSoFar{kind: thoughtPart, detail: d}); err != nil {
			return err
		}
	}
	for name, to := range map[string]*strings.Builder{"text": &d.text, "summary": &d.summary} {
		var piece string
		if json.Unmarshal(fields[name], &piece) == nil {
			to.WriteString(piece)
			fields[name] = nil
		}
	}
	for name, value := range fields {
		if _, known := d.fields[name]; !known || value != nil && string(value) != "null" && string(value) != `""` {
			d.fields[name] = value
		}
	}
	return a.count(len(raw))
}

// data returns the part in the form in which it is sent back.
func (d *openaiDetail) data() (string, error) {
	for name, text := range map[string]*strings.Builder{"text": &d.text, "summary": &d.summary} {
		if raw, known := d.fields[name]; known && raw == nil {
			var err error
			if d.fields[name], err = json.Marshal(text.String()); err != nil {
				return "", err
			}
		}
	}
	raw, err := json.Marshal(d.fields)
	return string(raw), err
}

// read adds a call, or a piece of one. In the format, pieces have the index of
// their call. Some servers send none, some send 0 for all calls, and some
// repeat ID and name with each piece.
func (t openaiCall) read(position int, a *answer) error {
	number, name := position, t.Function.Name
	if t.Index != nil {
		number = *t.Index
	}
	c := a.find(number)
	switch {
	case t.ID != "" && c != nil && c.id != t.ID:
		known := a.lastCall(func(c *partSoFar) bool { return c.id == t.ID })
		if known != nil || name != "" {
			c = known
		}
	case t.ID != "": // the number decides, because some servers give several calls the same ID
	case name == "" && t.Index == nil:
		c = a.lastCall(func(*partSoFar) bool { return true })
	case name != "" && c != nil && (name != c.name || json.Valid([]byte(c.text.String()))):
		c = nil // the earlier call is complete
	}
	if c == nil {
		if name == "" {
			return nil // Ollama sends empty calls
		}
		var err error
		if c, err = a.begin(number, t.ID, name); err != nil {
			return err
		}
	}
	if len(t.Extra) > 0 && string(t.Extra) != "null" {
		c.signature = string(t.Extra)
		if err := a.count(len(t.Extra)); err != nil {
			return err
		}
	}
	return a.argue(c, t.Function.Arguments.text)
}
