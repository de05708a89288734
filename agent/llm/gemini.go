package llm

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/engi-dev/engi"
)

// geminiFormat is Gemini's contents.
type geminiFormat struct{}

func (geminiFormat) authorize(h http.Header, key string) {
	if key != "" {
		h.Set("X-Goog-Api-Key", key)
	}
}

func (geminiFormat) request(c *call, stream bool) (string, any) {
	names := map[string]string{} // of tools, by call
	contents := []obj{}
	for _, m := range c.messages {
		role, parts := "user", []obj{}
		if m.Role == engi.RoleAssistant {
			role = "model"
		}
		if m.Text != "" {
			parts = append(parts, obj{"text": m.Text})
		}
		for _, img := range m.Images {
			parts = append(parts, obj{"inlineData": obj{"mimeType": img.MediaType, "data": encode(img.Data)}})
		}
		for _, t := range m.Calls {
			names[t.ID] = t.Name
			parts = append(parts, obj{"functionCall": obj{"id": t.ID, "name": t.Name, "args": json.RawMessage(t.Arguments)}})
		}
		for _, r := range m.Results {
			name := r.Name
			if n, ok := names[r.Call]; ok {
				name = n
			}
			parts = append(parts, obj{"functionResponse": obj{"id": r.Call, "name": name, "response": obj{"result": r.Text}}})
		}
		if len(parts) > 0 {
			contents = append(contents, obj{"role": role, "parts": parts})
		}
	}
	body := obj{"contents": contents}
	if c.q.System != "" {
		// Gemma knows no system instruction.
		if strings.HasPrefix(strings.ToLower(c.model), "gemma-") && len(contents) > 0 && contents[0]["role"] == "user" {
			contents[0]["parts"] = append([]obj{{"text": c.q.System + "\n\n"}}, contents[0]["parts"].([]obj)...)
		} else {
			body["systemInstruction"] = obj{"role": "user", "parts": []obj{{"text": c.q.System}}}
		}
	}
	options := obj{}
	if c.q.MaxTokens > 0 {
		options["maxOutputTokens"] = c.q.MaxTokens
	}
	if c.q.Temperature != nil {
		options["temperature"] = *c.q.Temperature
	}
	if c.object != nil {
		options["responseMimeType"] = "application/json"
		options["responseJsonSchema"] = geminiSchema(c.object, geminiAnswers, func(t string) string { return t })
	}
	if len(options) > 0 {
		body["generationConfig"] = options
	}
	var tools []obj
	for _, t := range c.tools {
		parameters := geminiSchema(t.input, geminiParameters, strings.ToUpper)
		parameters["type"] = "OBJECT"
		tools = append(tools, obj{"name": t.name, "description": t.description, "parameters": parameters})
	}
	if tools != nil {
		body["tools"] = []obj{{"functionDeclarations": tools}}
		config := obj{}
		switch choice := c.q.Choice; choice {
		case "":
		case ChoiceAuto, ChoiceNone:
			config["mode"] = strings.ToUpper(string(choice))
		case ChoiceRequired:
			config["mode"] = "ANY"
		default:
			config["mode"], config["allowedFunctionNames"] = "ANY", []Choice{choice}
		}
		if len(config) > 0 {
			body["toolConfig"] = obj{"functionCallingConfig": config}
		}
	}
	path := "/v1beta/"
	if !strings.Contains(c.model, "/") {
		path += "models/"
	}
	if stream {
		return path + c.model + ":streamGenerateContent?alt=sse", body
	}
	return path + c.model + ":generateContent", body
}

// What Gemini understands of JSON schemas, of arguments and of answers.
var (
	geminiParameters = []string{"type", "description", "properties", "required", "items", "enum"}
	geminiAnswers    = append(geminiParameters[:len(geminiParameters):len(geminiParameters)],
		"format", "minimum", "maximum", "minItems", "maxItems", "anyOf", "additionalProperties")
)

// geminiSchema keeps only some keys of a schema, at all levels.
func geminiSchema(s obj, keys []string, typeName func(string) string) obj {
	out := obj{}
	for key, v := range s {
		if !slices.Contains(keys, key) {
			continue
		}
		inner, isObject := v.(obj)
		list, isList := v.([]any)
		name, isText := v.(string)
		switch {
		case key == "type" && isText:
			out[key] = typeName(name)
		case key == "properties" && isObject:
			properties := obj{}
			for name, p := range inner {
				if p, ok := p.(obj); ok {
					properties[name] = geminiSchema(p, keys, typeName)
				}
			}
			out[key] = properties
		case key == "enum" && (!isList || slices.ContainsFunc(list, func(v any) bool { _, ok := v.(string); return !ok })):
			// Only of texts.
		case key == "anyOf" && isList:
			var choices []obj
			for _, p := range list {
				if p, ok := p.(obj); ok {
					choices = append(choices, geminiSchema(p, keys, typeName))
				}
			}
			out[key] = choices
		case isObject:
			out[key] = geminiSchema(inner, keys, typeName)
		default:
			out[key] = v
		}
	}
	if _, ok := out["type"]; !ok && out["anyOf"] == nil {
		out["type"] = typeName("string") // there must be one
	}
	return out
}

// geminiAnswer is a whole answer, or an event of a stream.
type geminiAnswer struct {
	Error      json.RawMessage
	Candidates []struct {
		Content struct {
			Parts []struct {
				Text         string
				Thought      bool
				FunctionCall *struct {
					ID, Name string
					Args     json.RawMessage
				}
			}
		}
		FinishReason string
	}
	PromptFeedback struct{ BlockReason string }
	UsageMetadata  *struct {
		Prompt     int64 `json:"promptTokenCount"`
		Candidates int64 `json:"candidatesTokenCount"`
		Thoughts   int64 `json:"thoughtsTokenCount"`
		Cached     int64 `json:"cachedContentTokenCount"`
	}
}

var geminiStops = map[string]Stop{
	"STOP": StopEnd, "MAX_TOKENS": StopLength,
	"SAFETY": StopFilter, "BLOCKLIST": StopFilter, "PROHIBITED_CONTENT": StopFilter, "SPII": StopFilter, "IMAGE_SAFETY": StopFilter,
	"RECITATION": stopFailed, "LANGUAGE": stopFailed, "MALFORMED_FUNCTION_CALL": stopFailed,
}

func (f geminiFormat) whole(raw []byte, a *answer) error {
	if err := f.event(raw, a); err != nil {
		return err
	}
	if a.stop == "" {
		a.stop = StopOther
	}
	return nil
}

func (geminiFormat) event(raw []byte, a *answer) error {
	var o geminiAnswer
	if err := json.Unmarshal(raw, &o); err != nil {
		return a.unreadable(err)
	}
	if len(o.Error) > 0 {
		return a.failed(raw)
	}
	// Each event counts from the beginning.
	if u := o.UsageMetadata; u != nil {
		t := &a.tokens
		t.CacheRead = max(t.CacheRead, u.Cached)
		t.Input = max(t.Input, u.Prompt-u.Cached)
		t.Reasoning = max(t.Reasoning, u.Thoughts)
		t.Output = max(t.Output, u.Candidates+u.Thoughts)
	}
	if o.PromptFeedback.BlockReason != "" {
		a.stop = StopFilter
	}
	if len(o.Candidates) == 0 {
		return nil
	}
	for _, p := range o.Candidates[0].Content.Parts {
		var err error
		switch {
		case p.FunctionCall != nil:
			c := p.FunctionCall
			args := string(c.Args)
			if args == "null" {
				args = ""
			}
			err = a.call(len(a.calls), c.ID, c.Name, args)
		case p.Thought:
			err = a.think(p.Text)
		default:
			err = a.say(p.Text)
		}
		if err != nil {
			return err
		}
	}
	if reason := o.Candidates[0].FinishReason; reason != "" {
		a.stop = stopOf(geminiStops, reason)
	}
	return nil
}
