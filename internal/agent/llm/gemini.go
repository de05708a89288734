package llm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// geminiFormat is the format of Gemini's contents.
type geminiFormat struct{}

func (geminiFormat) authorize(h http.Header, key string) {
	if key != "" {
		h.Set("X-Goog-Api-Key", key)
	}
}

func (geminiFormat) request(c *call, stream bool) (string, any) {
	contents := []obj{}
	made := map[string]obj{} // calls by ID
	for i, m := range c.messages {
		role, content := "user", []obj{}
		if m.Role == engi.RoleAssistant {
			role = "model"
		}
		first := true // the next call is the first one
		for _, p := range parts(m) {
			o := obj{}
			switch {
			case p.Call != "":
				t := callOf(m, p.Call)
				made[t.ID] = obj{"id": t.ID, "name": t.Name}
				o["functionCall"] = obj{"id": t.ID, "name": t.Name, "args": json.RawMessage(t.Arguments)}
				if first && i >= c.turn && m.Signed == nil && geminiVersion(c.model) >= 3 {
					// Another model wrote the answer. Gemini refuses calls without
					// any signature.
					p.Signature = geminiUnsigned
				}
				first = false
			case p.Thought != "":
				o["text"], o["thought"] = p.Thought, true
			default:
				o["text"] = p.Text
			}
			if p.Signature != "" {
				o["thoughtSignature"] = p.Signature
			}
			content = append(content, o)
		}
		for _, img := range m.Images {
			content = append(content, obj{"inlineData": obj{"mimeType": img.MediaType, "data": encode(img.Data)}})
		}
		for _, r := range m.Results {
			o := obj{"response": obj{"result": r.Text}, "id": r.Call, "name": r.Name}
			if r.Failed {
				o["response"] = obj{"error": r.Text}
			}
			maps.Copy(o, made[r.Call])
			content = append(content, obj{"functionResponse": o})
		}
		if len(content) > 0 {
			contents = append(contents, obj{"role": role, "parts": content})
		}
	}
	body := obj{"contents": contents}
	if c.q.System != "" {
		// Gemma does not support a system instruction.
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
	if c.q.TopP != nil {
		options["topP"] = *c.q.TopP
	}
	if c.q.Stop != nil {
		options["stopSequences"] = c.q.Stop
	}
	if thinking := geminiThinking(c.model, c.q.Effort); thinking != nil {
		options["thinkingConfig"] = thinking
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

// geminiUnsigned is the signature that Gemini documents for calls that it did
// not write.
const geminiUnsigned = "skip_thought_signature_validator"

// geminiVersion returns the version of a Gemini, 2.5 for gemini-2.5-pro; 0 if
// the name contains none.
func geminiVersion(model string) (version float64) {
	_, name, _ := strings.Cut(strings.ToLower(model), "gemini-")
	if n, err := fmt.Sscanf(name, "%f", &version); n != 1 || err != nil {
		return 0
	}
	return version
}

// geminiThinking returns the setting for the effort of reasoning; nil for the model's
// default.
func geminiThinking(model string, effort engi.Effort) obj {
	flash := strings.Contains(model, "flash")
	switch version := geminiVersion(model); {
	case effort == "" || version < 2.5:
		return nil
	case version < 3:
		budget := map[engi.Effort]int{engi.EffortNone: 0, engi.EffortLow: 1024, engi.EffortMedium: 8192, engi.EffortHigh: 24_576}[effort]
		if !flash {
			budget = max(budget, 128) // the model accepts no lower budget
		}
		return obj{"thinkingBudget": budget, "includeThoughts": budget > 0}
	case effort == engi.EffortNone && flash:
		return obj{"thinkingLevel": "minimal"}
	case effort == engi.EffortNone:
		effort = engi.EffortLow
	case effort == engi.EffortMedium && !flash && version < 3.1:
		effort = engi.EffortHigh // there is no level between
	}
	return obj{"thinkingLevel": effort, "includeThoughts": true}
}

// The keywords of JSON schemas that Gemini supports, for arguments and for answers.
var (
	geminiParameters = []string{"type", "description", "properties", "required", "items", "enum"}
	geminiAnswers    = append(geminiParameters[:len(geminiParameters):len(geminiParameters)],
		"format", "minimum", "maximum", "minItems", "maxItems", "anyOf", "additionalProperties")
)

// geminiSchema keeps only the given keys of a schema, at all levels.
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
			// Gemini supports enum only for strings.
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
		out["type"] = typeName("string") // a type is required
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
				Signature    string `json:"thoughtSignature"`
				FunctionCall *struct {
					ID, Name string
					Args     json.RawMessage
				}
			}
		}
		FinishReason, FinishMessage string
	}
	PromptFeedback struct{ BlockReason, BlockReasonMessage string }
	UsageMetadata  *geminiUsage
}

type geminiUsage struct {
	Prompt     int64 `json:"promptTokenCount"` // includes Cached
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	ToolUse    int64 `json:"toolUsePromptTokenCount"`
}

// add adds the counts of a later event.
func (u *geminiUsage) add(o *geminiUsage) {
	u.Prompt = cmp.Or(max(o.Prompt, 0), u.Prompt)
	u.Candidates = cmp.Or(max(o.Candidates, 0), u.Candidates)
	u.Thoughts = cmp.Or(max(o.Thoughts, 0), u.Thoughts)
	u.Cached = cmp.Or(max(o.Cached, 0), u.Cached)
	u.ToolUse = cmp.Or(max(o.ToolUse, 0), u.ToolUse)
}

// join joins a code and its explanation.
func join(code, text string) string {
	if text == "" {
		return code
	}
	return code + ": " + text
}

var geminiStops = map[string]Stop{
	"STOP": StopEnd, "MAX_TOKENS": StopLength,
	"SAFETY": StopFilter, "BLOCKLIST": StopFilter, "PROHIBITED_CONTENT": StopFilter, "SPII": StopFilter, "IMAGE_SAFETY": StopFilter,
	"RECITATION": StopFilter, "LANGUAGE": StopFilter, "IMAGE_PROHIBITED_CONTENT": StopFilter, "IMAGE_RECITATION": StopFilter,
	"MALFORMED_FUNCTION_CALL": StopMalformed, "UNEXPECTED_TOOL_CALL": StopMalformed, "TOO_MANY_TOOL_CALLS": StopMalformed,
	"MALFORMED_RESPONSE": StopMalformed, "MISSING_THOUGHT_SIGNATURE": StopMalformed,
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
	// Each event counts from the beginning, but may lack counts that another has.
	if u := o.UsageMetadata; u != nil {
		a.gemini.add(u)
		u = &a.gemini
		a.tokens = engi.Tokens{Input: max(u.Prompt+u.ToolUse-u.Cached, 0), CacheRead: u.Cached, Reasoning: u.Thoughts, Output: u.Candidates + u.Thoughts}
	}
	if b := o.PromptFeedback; b.BlockReason != "" {
		a.stop, a.reason = StopFilter, join(b.BlockReason, b.BlockReasonMessage)
	}
	if len(o.Candidates) == 0 {
		return nil
	}
	for _, p := range o.Candidates[0].Content.Parts {
		kind := textPart
		if p.Thought {
			kind = thoughtPart
		}
		if p.Signature != "" {
			a.closePart() // the signature covers only this part
		}
		var err error
		switch {
		case p.FunctionCall != nil:
			kind = callPart
			c := p.FunctionCall
			args := string(c.Args)
			if args == "null" {
				args = ""
			}
			var made *partSoFar
			if made, err = a.begin(a.calls(), c.ID, c.Name); err == nil {
				err = a.argue(made, args)
			}
		case p.Thought:
			err = a.think(p.Text)
		default:
			err = a.say(p.Text)
		}
		if err == nil {
			err = a.sign(kind, p.Signature)
		}
		if err != nil {
			return err
		}
	}
	if c := o.Candidates[0]; c.FinishReason != "" {
		a.end(geminiStops, c.FinishReason)
		a.reason = join(c.FinishReason, c.FinishMessage)
	}
	return nil
}
