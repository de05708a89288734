package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
)

// The wire format of OpenAI's chat completions, in front of agents: model is
// an agent's name, and what its tools do happens here and is not seen. Clients
// send fields that we do not know; they are ignored, as theirs ignore ours.

// completions are the routes of that format.
func completions(a *agents) []Route {
	return []Route{
		raw(Route{
			Pattern: "POST /v1/chat/completions", ID: "create-chat-completion", Summary: "Complete a chat, as OpenAI's clients ask for it", Access: writes(engi.ScopeAgents), Objects: Owned,
			Text:    "model is the name of an agent. What its tools do happens here; the answer has its words only. Point a chat program's base URL at /v1 and its key at yours.",
			Creates: "a repeated key returns the first answer instead of asking again",
			Answers: []answer{jsonOf[map[string]any](http.StatusOK, nil)},
		}, a.completion),
		fetch(Route{
			Pattern: "GET /v1/models", ID: "list-models", Summary: "List agents, as OpenAI's clients ask for models", Text: "See /v1/agents.", Access: reads(engi.ScopeAgents), Objects: Shared,
		}, func(c *call, _ *none) (map[string]any, error) {
			all := []any{}
			for _, x := range a.service.Agents() {
				all = append(all, map[string]any{"id": x.Name, "object": "model", "created": c.s.started.Unix(), "owned_by": "engi"})
			}
			return map[string]any{"object": "list", "data": all}, nil
		}),
	}
}

type completionRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	ResponseFormat struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type completionPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL string `json:"url"`
	} `json:"image_url"`
}

// completion answers in the other format, errors included.
func (a *agents) completion(c *call, _ *none, _ none) error {
	err := a.complete(c)
	if err == nil {
		return nil
	}
	p := c.describe(err)
	kind := "invalid_request_error"
	if p.Status >= 500 {
		kind = "server_error"
	}
	text := p.Detail
	if p.Remedy != "" {
		text += " (" + p.Remedy + ")"
	}
	return c.reply(p.Status, map[string]any{"error": map[string]any{"message": text, "type": kind, "code": p.Kind, "param": nil}})
}

func (a *agents) complete(c *call) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	defer c.s.held.Add(-int64(len(body)))
	var q completionRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return engi.Errorf(engi.Invalid, "the body is no request for a completion: %v", err)
	}
	spec, err := completionSpec(q)
	if err != nil {
		return err
	}
	x, err := a.launch(c, spec)
	if err != nil {
		return err
	}
	if q.Stream {
		return a.streamCompletion(c, q, x)
	}
	if x, err = a.end(c, x); err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]any{
		"id": string(x.ID), "object": "chat.completion", "created": x.Created.Unix(), "model": q.Model, "usage": completionUsage(x),
		"choices": []any{map[string]any{"index": 0, "finish_reason": completionStop(x), "message": map[string]any{"role": "assistant", "content": x.Text}}},
	})
}

// completionSpec translates a request: the last thing its user says is the
// input, the rest came before.
func completionSpec(q completionRequest) (spec engi.RunSpec, err error) {
	spec.Agent = q.Model
	if q.ResponseFormat.Type == "json_schema" {
		spec.Output = q.ResponseFormat.JSONSchema.Schema
	}
	for i, m := range q.Messages {
		text, images, err := completionContent(m.Content)
		if err != nil {
			return spec, engi.Errorf(engi.Invalid, "messages[%d]: %w", i, err)
		}
		switch m.Role {
		case "system", "developer":
			spec.System = strings.TrimSpace(spec.System + "\n\n" + text)
		case "user":
			spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleUser, Text: text, Images: images})
		case "assistant":
			spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleAssistant, Text: text})
		default:
			return spec, engi.Errorf(engi.Invalid, "messages[%d] is by %.40q", i, m.Role).WithRemedy("send system, user and assistant messages; agents use their own tools")
		}
	}
	last := len(spec.Messages) - 1
	if last < 0 || spec.Messages[last].Role != engi.RoleUser {
		return spec, engi.Errorf(engi.Invalid, "the last message is not by the user")
	}
	spec.Input, spec.Images, spec.Messages = spec.Messages[last].Text, spec.Messages[last].Images, spec.Messages[:last]
	return spec, nil
}

func completionContent(raw json.RawMessage) (text string, images []engi.Image, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var parts []completionPart
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", nil, engi.Errorf(engi.Invalid, "its content is neither text nor a list of parts")
	}
	for _, p := range parts {
		switch p.Type {
		case "text":
			text += p.Text
		case "image_url":
			head, data, ok := strings.Cut(strings.TrimPrefix(p.ImageURL.URL, "data:"), ";base64,")
			if !ok || !strings.HasPrefix(p.ImageURL.URL, "data:") {
				return "", nil, engi.Errorf(engi.Invalid, "an image is not part of the request").WithRemedy("send it as a data: URL in base64; nothing is fetched for you")
			}
			raw, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				return "", nil, engi.Errorf(engi.Invalid, "an image is no base64")
			}
			images = append(images, engi.Image{MediaType: head, Data: raw})
		default:
			return "", nil, engi.Errorf(engi.Invalid, "a part of type %.40q cannot be read", p.Type).WithRemedy("send text and image_url")
		}
	}
	return text, images, nil
}

func completionUsage(x engi.Run) map[string]any {
	in := x.Tokens.Input + x.Tokens.CacheRead + x.Tokens.CacheWrite
	return map[string]any{"prompt_tokens": in, "completion_tokens": x.Tokens.Output, "total_tokens": in + x.Tokens.Output}
}

func completionStop(x engi.Run) string {
	switch x.Reason {
	case "":
		return "stop"
	case "filter":
		return "content_filter"
	}
	return "length"
}

// streamCompletion answers with chunks, which have no names and no IDs.
func (a *agents) streamCompletion(c *call, q completionRequest, x engi.Run) error {
	ctx, cancel := c.waiting()
	source := httpio.Pull(a.service.Watch(ctx, x.Owner, x.ID, 0))
	defer source.Stop()
	defer cancel()
	defer c.gone()
	c.Header().Set("Content-Type", "text/event-stream")
	c.Header().Set("Cache-Control", "no-cache")
	rc := http.NewResponseController(c)
	write := func(text string) bool {
		_, err := httpio.DeadlineWriter{W: c}.Write([]byte(text))
		return err == nil && rc.Flush() == nil
	}
	send := func(v any) bool {
		raw, err := httpio.Marshal(v)
		if err != nil {
			c.logInternal(err)
			return false
		}
		return write(fmt.Sprintf("data: %s\n\n", raw))
	}
	chunk := func(delta map[string]any, finish any) map[string]any {
		return map[string]any{"id": string(x.ID), "object": "chat.completion.chunk", "created": x.Created.Unix(), "model": q.Model,
			"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}}
	}
	failed := func(err error) {
		if p, ok := c.tell(err); ok {
			send(map[string]any{"error": map[string]any{"message": p.Detail, "type": "server_error", "code": p.Kind}})
		}
	}
	if !send(chunk(map[string]any{"role": "assistant", "content": ""}, nil)) {
		return nil
	}
	beat := time.NewTicker(c.s.beat)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if !write(": alive\n\n") {
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return nil
			}
			if e.Err != nil {
				failed(e.Err)
				return nil
			}
			event := e.Event
			source.Release()
			switch event.Kind {
			case engi.RunText:
				if !send(chunk(map[string]any{"content": event.Text}, nil)) {
					return nil
				}
			case engi.RunEnd:
				if event.Run.State == engi.RunFailed {
					failed(event.Run.Error)
					return nil
				}
				if event.Run.Output != nil && !send(chunk(map[string]any{"content": string(event.Run.Output)}, nil)) {
					return nil
				}
				if !send(chunk(map[string]any{}, completionStop(*event.Run))) {
					return nil
				}
				if q.StreamOptions.IncludeUsage {
					last := chunk(nil, nil)
					last["choices"], last["usage"] = []any{}, completionUsage(*event.Run)
					if !send(last) {
						return nil
					}
				}
				write("data: [DONE]\n\n")
				return nil
			}
		}
	}
}
