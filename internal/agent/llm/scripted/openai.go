package scripted

import (
	"encoding/json"
	"hash/fnv"
	"math"
	"net/http"
	"strings"
	"unicode"
)

type openai struct{}

func (openai) parse(body []byte) (Conversation, error) {
	var q struct {
		Model    string
		Stream   bool
		Messages []struct {
			Role      string
			Content   json.RawMessage
			ToolCalls []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
			ToolCallID string `json:"tool_call_id"`
		}
		Tools []struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
			}
		}
		ToolChoice     json.RawMessage `json:"tool_choice"`
		ResponseFormat struct {
			JSONSchema struct{ Schema json.RawMessage } `json:"json_schema"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return Conversation{}, err
	}
	c := Conversation{Dialect: "openai", Model: q.Model, Stream: q.Stream, Schema: q.ResponseFormat.JSONSchema.Schema}
	for _, m := range q.Messages {
		text, images := openaiContent(m.Content)
		switch m.Role {
		case "system", "developer":
			c.System += text
		case "tool":
			r := Result{ID: m.ToolCallID, Text: text}
			if n := len(c.Turns); n > 0 && c.Turns[n-1].Role == "tool" {
				c.Turns[n-1].Results = append(c.Turns[n-1].Results, r)
			} else {
				c.Turns = append(c.Turns, Turn{Role: "tool", Results: []Result{r}})
			}
		default:
			t := Turn{Role: m.Role, Text: text, Images: images}
			for _, call := range m.ToolCalls {
				t.Calls = append(t.Calls, Call{call.ID, call.Function.Name, call.Function.Arguments})
			}
			c.Turns = append(c.Turns, t)
		}
	}
	for _, t := range q.Tools {
		c.Tools = append(c.Tools, t.Function.Name)
	}
	var forced struct{ Function struct{ Name string } }
	if json.Unmarshal(q.ToolChoice, &forced) == nil && forced.Function.Name != "" && len(q.Tools) == 1 {
		c.Schema = q.Tools[0].Function.Parameters
	}
	return c, nil
}

func openaiContent(raw json.RawMessage) (text string, images int) {
	if json.Unmarshal(raw, &text) == nil {
		return text, 0
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return "", 0
	}
	for _, p := range parts {
		if p.Type == "image_url" || p.Type == "file" {
			images++
		}
		text += p.Text
	}
	return text, images
}

// withObject puts the object in the place that the request asks for: a call of the only
// tool, or into the text.
func withObject(c Conversation, a Answer) Answer {
	if a.Object == "" {
		return a
	}
	if len(c.Tools) > 0 {
		a.Calls = []Call{{"call_object", c.Tools[0], a.Object}}
	} else {
		a.Text = a.Object
	}
	return a
}

func openaiUsage(a Answer) object {
	return object{"prompt_tokens": a.Input, "completion_tokens": a.Output, "total_tokens": a.Input + a.Output}
}

func openaiStop(a Answer) string {
	if len(a.Calls) > 0 {
		return "tool_calls"
	}
	return "stop"
}

func (openai) whole(c Conversation, a Answer) any {
	a = withObject(c, a)
	m := object{"role": "assistant", "content": a.Text}
	var calls []object
	for _, t := range a.Calls {
		calls = append(calls, object{"id": t.ID, "type": "function", "function": object{"name": t.Name, "arguments": t.Arguments}})
	}
	if calls != nil {
		m["tool_calls"] = calls
	}
	return object{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": c.Model, "usage": openaiUsage(a),
		"choices": []object{{"index": 0, "message": m, "finish_reason": openaiStop(a)}}}
}

func (openai) pieces(c Conversation, a Answer) []event {
	a = withObject(c, a)
	var all []event
	piece := func(delta object, finish any) {
		all = append(all, event{data: line(object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": c.Model,
			"choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}}})})
	}
	piece(object{"role": "assistant", "content": ""}, nil)
	for _, p := range cut(a.Text) {
		piece(object{"content": p}, nil)
	}
	for i, t := range a.Calls {
		piece(object{"tool_calls": []object{{"index": i, "id": t.ID, "type": "function", "function": object{"name": t.Name, "arguments": ""}}}}, nil)
		for _, p := range cut(t.Arguments) {
			piece(object{"tool_calls": []object{{"index": i, "function": object{"arguments": p}}}}, nil)
		}
	}
	piece(object{}, openaiStop(a))
	all = append(all, event{data: line(object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": c.Model, "choices": []object{}, "usage": openaiUsage(a)})})
	return append(all, event{data: "[DONE]"})
}

func (openai) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write([]byte(line(object{"error": object{"message": text, "type": "scripted", "code": nil, "param": nil}})))
}

// embeddings answers with vectors that are similar for texts that share words.
func embeddings(w http.ResponseWriter, body []byte) {
	var q struct {
		Model string
		Input json.RawMessage
	}
	if err := json.Unmarshal(body, &q); err != nil {
		openai{}.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var texts []string
	var one string
	if json.Unmarshal(q.Input, &one) == nil {
		texts = []string{one}
	} else if err := json.Unmarshal(q.Input, &texts); err != nil {
		openai{}.refuse(w, http.StatusBadRequest, "input is not text")
		return
	}
	data := []object{}
	for i, t := range texts {
		data = append(data, object{"object": "embedding", "index": i, "embedding": vector(t)})
	}
	send(w, object{"object": "list", "model": q.Model, "data": data, "usage": object{"prompt_tokens": len(body) / 4, "total_tokens": len(body) / 4}})
}

func vector(text string) []float64 {
	v := make([]float64, 64)
	v[0] = 0.01 // a text without words needs a direction too
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		h := fnv.New64a()
		h.Write([]byte(word))
		n := h.Sum64()
		v[n%64] += 1 - 2*float64(n>>63)
	}
	var sum float64
	for _, x := range v {
		sum += x * x
	}
	for i := range v {
		v[i] /= math.Sqrt(sum)
	}
	return v
}
