package scripted

import (
	"encoding/json"
	"net/http"
	"path"
	"strings"
)

type gemini struct{ path string }

func (g gemini) parse(body []byte) (Conversation, error) {
	type part struct {
		Text         string
		InlineData   json.RawMessage
		FunctionCall *struct {
			ID, Name string
			Args     json.RawMessage
		}
		FunctionResponse *struct {
			ID, Name string
			Response json.RawMessage
		}
	}
	var q struct {
		SystemInstruction struct{ Parts []part }
		Contents          []struct {
			Role  string
			Parts []part
		}
		Tools            []struct{ FunctionDeclarations []struct{ Name string } }
		GenerationConfig struct {
			ResponseSchema     json.RawMessage
			ResponseJsonSchema json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return Conversation{}, err
	}
	name, verb, _ := strings.Cut(path.Base(g.path), ":")
	c := Conversation{Dialect: "gemini", Model: name, Stream: verb == "streamGenerateContent", Schema: q.GenerationConfig.ResponseSchema}
	if c.Schema == nil {
		c.Schema = q.GenerationConfig.ResponseJsonSchema
	}
	for _, p := range q.SystemInstruction.Parts {
		c.System += p.Text
	}
	for _, m := range q.Contents {
		t := Turn{Role: "user"}
		if m.Role == "model" {
			t.Role = "assistant"
		}
		for _, p := range m.Parts {
			t.Text += p.Text
			if p.InlineData != nil {
				t.Images++
			}
			if f := p.FunctionCall; f != nil {
				t.Calls = append(t.Calls, Call{f.ID, f.Name, string(f.Args)})
			}
			if f := p.FunctionResponse; f != nil {
				t.Role = "tool"
				t.Results = append(t.Results, Result{ID: f.ID, Text: string(f.Response)})
			}
		}
		c.Turns = append(c.Turns, t)
	}
	for _, t := range q.Tools {
		for _, f := range t.FunctionDeclarations {
			c.Tools = append(c.Tools, f.Name)
		}
	}
	return c, nil
}

func (g gemini) content(parts []object, finish string, a Answer) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	if finish != "" {
		candidate["finishReason"] = finish
	}
	return object{"candidates": []object{candidate}, "modelVersion": "scripted",
		"usageMetadata": object{"promptTokenCount": a.Input, "candidatesTokenCount": a.Output, "totalTokenCount": a.Input + a.Output}}
}

func (g gemini) calls(a Answer) []object {
	parts := []object{}
	for _, t := range a.Calls {
		parts = append(parts, object{"functionCall": object{"id": t.ID, "name": t.Name, "args": arguments(t.Arguments)}})
	}
	return parts
}

func (g gemini) whole(c Conversation, a Answer) any {
	a = withObject(c, a)
	parts := g.calls(a)
	if a.Text != "" {
		parts = append([]object{{"text": a.Text}}, parts...)
	}
	return g.content(parts, "STOP", a)
}

func (g gemini) pieces(c Conversation, a Answer) []event {
	a = withObject(c, a)
	var all []event
	for _, p := range cut(a.Text) {
		all = append(all, event{data: line(g.content([]object{{"text": p}}, "", a))})
	}
	return append(all, event{data: line(g.content(g.calls(a), "STOP", a))})
}

func (gemini) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write([]byte(line(object{"error": object{"code": status, "message": text, "status": "SCRIPTED"}})))
}
