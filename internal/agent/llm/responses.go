package llm

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// responsesFormat is the format of OpenAI's responses. The provider stores nothing:
// thoughts are received and sent back encrypted.
type responsesFormat struct{}

func (responsesFormat) authorize(h http.Header, key string) { openaiFormat{}.authorize(h, key) }

func (responsesFormat) request(c *call, stream bool) (string, any) {
	items := []obj{}
	for _, m := range c.messages {
		switch m.Role {
		case engi.RoleUser:
			content := []obj{}
			if m.Text != "" || len(m.Images) == 0 {
				content = append(content, obj{"type": "input_text", "text": m.Text})
			}
			for _, img := range m.Images {
				if img.MediaType == engi.PDF {
					content = append(content, obj{"type": "input_file", "filename": fileName(img), "file_data": dataURL(img)})
					continue
				}
				content = append(content, obj{"type": "input_image", "image_url": dataURL(img)})
			}
			items = append(items, obj{"type": "message", "role": "user", "content": content})
		case engi.RoleAssistant:
			for _, p := range parts(m) {
				switch {
				case p.Data != "":
					summary := []obj{}
					if p.Thought != "" {
						summary = append(summary, obj{"type": "summary_text", "text": p.Thought})
					}
					items = append(items, obj{"type": "reasoning", "id": p.Signature, "encrypted_content": p.Data, "summary": summary})
				case p.Text != "":
					item := obj{"type": "message", "role": "assistant", "content": []obj{{"type": "output_text", "text": p.Text}}}
					if p.Signature != "" { // models that send a phase for each text need it back
						item["phase"] = p.Signature
					}
					items = append(items, item)
				case p.Call != "":
					t := callOf(m, p.Call)
					items = append(items, obj{"type": "function_call", "call_id": t.ID, "name": t.Name, "arguments": t.Arguments})
				}
			}
		case engi.RoleTool:
			for _, r := range m.Results {
				items = append(items, obj{"type": "function_call_output", "call_id": r.Call, "output": r.Text})
			}
		}
	}
	body := obj{"model": c.model, "input": items, "store": false}
	if stream {
		body["stream"] = true
	}
	if c.q.System != "" {
		body["instructions"] = c.q.System
	}
	if c.q.MaxTokens > 0 {
		body["max_output_tokens"] = c.q.MaxTokens
	}
	if openaiReasons(c.model) {
		body["include"] = []string{"reasoning.encrypted_content"}
		reasoning := obj{"summary": "auto"}
		switch c.q.Effort {
		case "":
		case engi.EffortNone:
			reasoning["effort"] = openaiLeast(c.model)
		default:
			reasoning["effort"] = c.q.Effort
		}
		body["reasoning"] = reasoning
	} else {
		if c.q.Temperature != nil {
			body["temperature"] = *c.q.Temperature
		}
		if c.q.TopP != nil {
			body["top_p"] = *c.q.TopP
		}
	}
	if c.object != nil {
		body["text"] = obj{"format": obj{"type": "json_schema", "name": cmp.Or(c.q.ObjectName, "answer"), "schema": c.object, "strict": false}}
	}
	var tools []obj
	for _, t := range c.tools {
		tools = append(tools, obj{"type": "function", "name": t.name, "description": t.description, "parameters": t.input, "strict": false})
	}
	if tools != nil {
		body["tools"] = tools
		if c.q.OneCall {
			body["parallel_tool_calls"] = false
		}
		openaiChoice(body, c.q.Choice, func(name Choice) obj { return obj{"type": "function", "name": name} })
	}
	return "/responses", body
}

type responsesItem struct {
	Type, ID, Name, Arguments, Phase string
	CallID                           string `json:"call_id"`
	Encrypted                        string `json:"encrypted_content"`
	Summary                          []struct{ Text string }
	Content                          []struct{ Type, Text, Refusal string }
}

// responsesAnswer is a whole answer, which also ends a stream.
type responsesAnswer struct {
	Status     string
	Error      json.RawMessage
	Incomplete struct{ Reason string } `json:"incomplete_details"`
	Output     []responsesItem
	Usage      *struct {
		Input        int64 `json:"input_tokens"`
		Output       int64 `json:"output_tokens"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	}
}

var responsesStops = map[string]Stop{"max_output_tokens": StopLength, "content_filter": StopFilter}

// end sets the counts and the state.
func (o responsesAnswer) end(a *answer, raw []byte) error {
	if u := o.Usage; u != nil {
		a.tokens = engi.Tokens{Input: max(u.Input-u.InputDetails.Cached, 0), CacheRead: u.InputDetails.Cached, Output: u.Output, Reasoning: u.OutputDetails.Reasoning}
	}
	switch {
	case o.Status == "failed" || o.Status == "cancelled":
		return a.failed(raw)
	case o.Status == "incomplete":
		a.end(responsesStops, o.Incomplete.Reason)
	case a.refused:
		a.stop, a.reason = StopFilter, "refusal"
	default:
		a.stop = StopEnd
	}
	a.done = true
	return nil
}

func (responsesFormat) whole(raw []byte, a *answer) error {
	var o responsesAnswer
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	if o.Status == "" {
		return a.failed(raw)
	}
	for i, item := range o.Output {
		var thoughts []string
		for _, s := range item.Summary {
			thoughts = append(thoughts, s.Text)
		}
		if err := a.think(strings.Join(thoughts, "\n\n")); err != nil {
			return err
		}
		for _, c := range item.Content {
			a.refused = a.refused || c.Refusal != ""
			if item.Type != "message" {
				continue
			}
			if err := a.say(c.Text + c.Refusal); err != nil {
				return err
			}
		}
		if err := item.done(i, a); err != nil {
			return err
		}
	}
	return o.end(a, raw)
}

// done reads the fields that only a complete item has.
func (item responsesItem) done(number int, a *answer) error {
	switch item.Type {
	case "reasoning":
		if item.Encrypted != "" {
			return a.seal(item.Encrypted, item.ID)
		}
	case "message":
		return a.sign(textPart, item.Phase)
	case "function_call":
		c := a.find(number)
		if c == nil {
			return a.call(number, item.CallID, item.Name, item.Arguments)
		}
		if c.text.Len() == 0 {
			return a.argue(c, item.Arguments)
		}
	}
	return nil
}

func (responsesFormat) event(raw []byte, a *answer) error {
	var e struct {
		Type, Delta string
		Index       int `json:"output_index"`
		Item        responsesItem
		Response    responsesAnswer
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return a.unreadable(err)
	}
	switch e.Type {
	case "response.output_text.delta":
		return a.say(e.Delta)
	case "response.refusal.delta":
		a.refused = true
		return a.say(e.Delta)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return a.think(e.Delta)
	case "response.reasoning_summary_part.added":
		if n := len(a.parts); n > 0 && a.parts[n-1].kind == thoughtPart && a.parts[n-1].data == "" {
			return a.think("\n\n")
		}
	case "response.output_item.added":
		if e.Item.Type == "function_call" {
			return a.call(e.Index, e.Item.CallID, e.Item.Name, "")
		}
	case "response.function_call_arguments.delta":
		if c := a.find(e.Index); c != nil {
			return a.argue(c, e.Delta)
		}
	case "response.output_item.done":
		return e.Item.done(e.Index, a)
	case "response.completed", "response.incomplete":
		return e.Response.end(a, raw)
	case "response.failed":
		inner, err := json.Marshal(map[string]json.RawMessage{"error": e.Response.Error})
		if err != nil {
			inner = raw
		}
		return a.failed(inner)
	case "error":
		return a.failed(raw)
	}
	return nil
}
