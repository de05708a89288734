package scripted

import (
	"encoding/json"
	"net/http"
)

type anthropic struct{}

func (anthropic) parse(body []byte) (Conversation, error) {
	var q struct {
		Model    string
		Stream   bool
		System   json.RawMessage
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Name        string
			InputSchema json.RawMessage `json:"input_schema"`
		}
		ToolChoice struct{ Type, Name string } `json:"tool_choice"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return Conversation{}, err
	}
	c := Conversation{Dialect: "anthropic", Model: q.Model, Stream: q.Stream}
	system, err := anthropicBlocks(q.System)
	if err != nil {
		return c, err
	}
	for _, b := range system {
		c.System += b.Text
	}
	for _, m := range q.Messages {
		blocks, err := anthropicBlocks(m.Content)
		if err != nil {
			return c, err
		}
		t := Turn{Role: m.Role}
		for _, b := range blocks {
			switch b.Type {
			case "text":
				t.Text += b.Text
			case "image", "document":
				t.Images++
			case "tool_use":
				t.Calls = append(t.Calls, Call{b.ID, b.Name, string(b.Input)})
			case "tool_result":
				t.Role = "tool"
				r := Result{ID: b.ToolUseID, Failed: b.IsError}
				inner, err := anthropicBlocks(b.Content)
				if err != nil {
					return c, err
				}
				for _, i := range inner {
					r.Text += i.Text
				}
				t.Results = append(t.Results, r)
			}
		}
		c.Turns = append(c.Turns, t)
	}
	for _, t := range q.Tools {
		c.Tools = append(c.Tools, t.Name)
	}
	if q.ToolChoice.Type == "tool" && len(q.Tools) == 1 {
		c.Schema = q.Tools[0].InputSchema
	}
	return c, nil
}

type anthropicBlock struct {
	Type, Text, ID, Name string
	Input                json.RawMessage
	ToolUseID            string `json:"tool_use_id"`
	Content              json.RawMessage
	IsError              bool `json:"is_error"`
}

func anthropicBlocks(raw json.RawMessage) ([]anthropicBlock, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []anthropicBlock{{Type: "text", Text: text}}, nil
	}
	var blocks []anthropicBlock
	err := json.Unmarshal(raw, &blocks)
	return blocks, err
}

func anthropicStop(a Answer) string {
	if len(a.Calls) > 0 {
		return "tool_use"
	}
	return "end_turn"
}

func (anthropic) whole(c Conversation, a Answer) any {
	a = withObject(c, a)
	content := []object{}
	if a.Text != "" {
		content = append(content, object{"type": "text", "text": a.Text})
	}
	for _, t := range a.Calls {
		content = append(content, object{"type": "tool_use", "id": t.ID, "name": t.Name, "input": arguments(t.Arguments)})
	}
	return object{"id": "msg_1", "type": "message", "role": "assistant", "model": c.Model, "content": content,
		"stop_reason": anthropicStop(a), "stop_sequence": nil, "usage": object{"input_tokens": a.Input, "output_tokens": a.Output}}
}

func (anthropic) pieces(c Conversation, a Answer) []event {
	a = withObject(c, a)
	var all []event
	put := func(name string, o object) {
		o["type"] = name
		all = append(all, event{name, line(o)})
	}
	put("message_start", object{"message": object{"id": "msg_1", "type": "message", "role": "assistant", "model": c.Model, "content": []object{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": a.Input, "output_tokens": 1}}})
	index := 0
	block := func(start object, kind, field string, parts []string) {
		put("content_block_start", object{"index": index, "content_block": start})
		for _, p := range parts {
			put("content_block_delta", object{"index": index, "delta": object{"type": kind, field: p}})
		}
		put("content_block_stop", object{"index": index})
		index++
	}
	if a.Text != "" {
		block(object{"type": "text", "text": ""}, "text_delta", "text", cut(a.Text))
	}
	for _, t := range a.Calls {
		block(object{"type": "tool_use", "id": t.ID, "name": t.Name, "input": object{}}, "input_json_delta", "partial_json", cut(t.Arguments))
	}
	put("message_delta", object{"delta": object{"stop_reason": anthropicStop(a), "stop_sequence": nil}, "usage": object{"output_tokens": a.Output}})
	put("message_stop", object{})
	return all
}

func (anthropic) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write([]byte(line(object{"type": "error", "error": object{"type": "scripted", "message": text}})))
}
