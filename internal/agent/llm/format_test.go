package llm_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// pieces is a stream of deltas with one call each.
func pieces(calls ...string) (body string) {
	for _, c := range calls {
		body += `data: {"choices":[{"delta":{"tool_calls":[` + c + `]}}]}` + "\n\n"
	}
	return body + `data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
}

var bonnAndKöln = llm.Reply{Stop: llm.StopTools, Message: engi.Message{Calls: []engi.ToolCall{{ID: "a", Name: "weather", Arguments: `{"city":"Bonn"}`}, {ID: "b", Name: "weather", Arguments: `{"city":"Köln"}`}}}}

// TestAnswers reads what providers send beside the ordinary.
func TestAnswers(t *testing.T) {
	call := `{"index":0,"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":"}}`
	for _, test := range []struct {
		name, provider, body string
		stream               bool
		want                 llm.Reply
		kind                 engi.Kind
	}{
		{name: "thoughts in parts", provider: "mistral", body: `{"choices":[{"message":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"yes"}]},"finish_reason":"stop"}]}`,
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes", Thought: "hm"}}},
		{name: "thoughts beside", provider: "groq", body: `{"choices":[{"message":{"content":"yes","reasoning":"hm"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":5}}}`,
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes", Thought: "hm"}, Tokens: engi.Tokens{Input: 6, CacheRead: 4, Output: 7, Reasoning: 5}}},
		{name: "cut calls", provider: "openai", stream: true, body: "data: {\"choices\":[{\"delta\":{\"tool_calls\":[" + call + "]},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n",
			want: llm.Reply{Stop: llm.StopLength, Dropped: 1}},
		{name: "no reason, whole call", provider: "ollama", stream: true, body: `data: {"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"weather","arguments":{"city":"Bonn"}}}]}}]}` + "\n\n",
			want: llm.Reply{Stop: llm.StopTools, Message: engi.Message{Calls: []engi.ToolCall{{ID: "c", Name: "weather", Arguments: `{"city":"Bonn"}`}}}}},
		{name: "no reason, half a call", provider: "ollama", stream: true, body: "data: {\"choices\":[{\"delta\":{\"tool_calls\":[" + call + "]}}]}\n\n", kind: engi.Unavailable},
		{name: "calls without index", provider: "groq", stream: true, body: pieces(`{"id":"a","function":{"name":"weather","arguments":"{\"city\":"}}`, `{"function":{"arguments":"\"Bonn\"}"}}`,
			`{"id":"b","function":{"name":"weather","arguments":"{\"city\":"}}`, `{"id":"b","function":{"name":"weather","arguments":"\"Köln\"}"}}`), want: bonnAndKöln},
		{name: "all calls with index 0", provider: "groq", stream: true, body: pieces(`{"index":0,"id":"a","function":{"name":"weather","arguments":""}}`, `{"index":0,"function":{"arguments":"{\"city\":\"Bonn\"}"}}`,
			`{"index":0,"id":"b","function":{"name":"weather","arguments":"{\"city\":"}}`, `{"index":0,"function":{"arguments":"\"Köln\"}"}}`), want: bonnAndKöln},
		{name: "pieces of two calls in turns", provider: "groq", stream: true, body: pieces(`{"index":0,"id":"a","function":{"name":"weather","arguments":"{\"city\":"}}`, `{"index":0,"id":"b","function":{"name":"weather","arguments":"{\"city\":"}}`,
			`{"index":0,"id":"a","function":{"arguments":"\"Bonn\"}"}}`, `{"index":0,"id":"b","function":{"arguments":"\"Köln\"}"}}`), want: bonnAndKöln},
		{name: "calls without index and ID", provider: "groq", stream: true, body: pieces(`{"function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}}`, `{"function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}}`),
			want: llm.Reply{Stop: llm.StopTools, Message: engi.Message{Calls: []engi.ToolCall{{ID: "call_1_0", Name: "weather", Arguments: `{"city":"Bonn"}`}, {ID: "call_1_1", Name: "weather", Arguments: `{"city":"Köln"}`}}}}},
		{name: "whole calls without index", provider: "groq", body: `{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}},{"id":"b","function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":"tool_calls"}]}`, want: bonnAndKöln},
		{name: "a refusal", provider: "openai", stream: true, body: `data: {"choices":[{"delta":{"refusal":"I can't "}}]}` + "\n\n" + `data: {"choices":[{"delta":{"refusal":"do that."},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n",
			want: llm.Reply{Stop: llm.StopFilter, Reason: "refusal", Message: engi.Message{Text: "I can't do that."}}},
		{name: "a refusal", provider: "anthropic", body: `{"content":[],"stop_reason":"refusal","usage":{"input_tokens":3}}`, want: llm.Reply{Stop: llm.StopFilter, Reason: "refusal", Tokens: engi.Tokens{Input: 3}}},
		{name: "a call that is cut", provider: "anthropic", body: `{"content":[{"type":"text","text":"so"},{"type":"tool_use","id":"c","name":"write","input":{}}],"stop_reason":"max_tokens"}`,
			want: llm.Reply{Stop: llm.StopLength, Dropped: 1, Message: engi.Message{Text: "so"}}},
		{name: "a malformed call", provider: "gemini", body: `{"candidates":[{"content":{},"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"Malformed function call: print(default_api.weather("}]}`,
			want: llm.Reply{Stop: llm.StopMalformed, Reason: "MALFORMED_FUNCTION_CALL: Malformed function call: print(default_api.weather("}},
		{name: "recitation", provider: "gemini", stream: true, body: "data: {\"candidates\":[{\"finishReason\":\"RECITATION\"}]}\n\n", want: llm.Reply{Stop: llm.StopFilter, Reason: "RECITATION"}},
		{name: "counts that come late", provider: "gemini", stream: true, body: `data: {"usageMetadata":{"promptTokenCount":100}}` + "\n\n" +
			`data: {"candidates":[{"content":{"parts":[{"text":"yes"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":80,"thoughtsTokenCount":3,"candidatesTokenCount":1,"toolUsePromptTokenCount":5}}` + "\n\n",
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes"}, Tokens: engi.Tokens{Input: 25, CacheRead: 80, Output: 4, Reasoning: 3}}},
		{name: "thoughts counted apart", provider: "groq", body: `{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":37,"completion_tokens_details":{"reasoning_tokens":20}}}`,
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes"}, Tokens: engi.Tokens{Input: 10, Output: 27, Reasoning: 20}}},
		{name: "cache hits", provider: "groq", body: `{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_cache_hit_tokens":6}}`,
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes"}, Tokens: engi.Tokens{Input: 4, CacheRead: 6, Output: 7}}},
		{name: "no choices", provider: "openai", body: `{"choices":[]}`, kind: engi.Unavailable},
		{name: "no JSON", provider: "openai", body: `<html>`, kind: engi.Unavailable},
		{name: "an error in a stream", provider: "openai", stream: true, body: "data: {\"error\":{\"message\":\"overloaded\"}}\n\n", kind: engi.Unavailable},
		{name: "too long in a stream", provider: "openai", stream: true, body: "data: {\"error\":{\"message\":\"maximum context length is 8192 tokens\"}}\n\n", kind: engi.Invalid},
		{name: "thoughts and caches", provider: "anthropic", body: `{"content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"d"},{"type":"text","text":"yes"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":6}}`,
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes", Thought: "hm", Signed: &engi.SignedParts{Model: "anthropic:m", Parts: []engi.MessagePart{{Thought: "hm", Signature: "s"}, {Data: "d"}, {Text: "yes"}}}},
				Tokens: engi.Tokens{Input: 3, Output: 4, CacheRead: 5, CacheWrite: 6}}},
		{name: "a call without arguments", provider: "anthropic", body: `{"content":[{"type":"tool_use","id":"c","name":"now","input":{}}],"stop_reason":"tool_use"}`,
			want: llm.Reply{Stop: llm.StopTools, Message: engi.Message{Calls: []engi.ToolCall{{ID: "c", Name: "now", Arguments: "{}"}}}}},
		{name: "cut off before the end", provider: "anthropic", stream: true, body: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n", kind: engi.Unavailable},
		{name: "overloaded", provider: "anthropic", stream: true, body: "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n", kind: engi.Unavailable},
		{name: "thoughts", provider: "gemini", stream: true, body: `data: {"candidates":[{"content":{"parts":[{"text":"hm","thought":true}]}}],"usageMetadata":{"promptTokenCount":9,"cachedContentTokenCount":2,"thoughtsTokenCount":3}}` + "\r\n\r\n" +
			`data: {"candidates":[{"content":{"parts":[{"text":"yes"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9,"cachedContentTokenCount":2,"thoughtsTokenCount":3,"candidatesTokenCount":1}}` + "\r\n\r\n",
			want: llm.Reply{Stop: llm.StopEnd, Message: engi.Message{Text: "yes", Thought: "hm"}, Tokens: engi.Tokens{Input: 7, CacheRead: 2, Output: 4, Reasoning: 3}}},
		{name: "blocked", provider: "gemini", body: `{"promptFeedback":{"blockReason":"SAFETY"}}`, want: llm.Reply{Stop: llm.StopFilter, Reason: "SAFETY"}},
		{name: "cut off", provider: "gemini", stream: true, body: `data: {"candidates":[{"content":{"parts":[{"text":"yes"}]}}]}` + "\n\n", kind: engi.Unavailable},
	} {
		t.Run(test.provider+" "+test.name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, test.body) }))
			defer web.Close()
			r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{test.provider: {URL: web.URL}}})
			if err != nil {
				t.Fatal(err)
			}
			var out func(llm.Delta) error
			if test.stream {
				out = func(llm.Delta) error { return nil }
			}
			got, err := model(t, r, test.provider+":m").Generate(t.Context(), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, out)
			if test.kind != 0 {
				if !engi.Is(err, test.kind) {
					t.Fatalf("%+v, %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got.Took, test.want.Model, test.want.Message.Role, test.want.Tokens.Calls = 0, test.provider+":m", engi.RoleAssistant, 1
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRefusals gives what providers refuse with its kind.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		want   engi.Kind
	}{
		{400, `{"error":{"message":"maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens"}}`, engi.Invalid},
		{400, `[{"error":{"code":400,"message":"The input token count (9000) exceeds the maximum number of tokens allowed (8192)."}}]`, engi.Invalid},
		{403, `{"error":"go away"}`, engi.Denied},
		{404, `{"message":"no such model"}`, engi.Invalid},
		{408, ``, engi.Unavailable},
		{429, `{"detail":"slower"}`, engi.Exhausted},
		{529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, engi.Unavailable},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(test.status)
			io.WriteString(w, test.body)
		}))
		r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{"openai": {URL: web.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = model(t, r, "openai:m").Generate(t.Context(), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, nil)
		web.Close()
		if !engi.Is(err, test.want) {
			t.Errorf("%d %s: %v", test.status, test.body, err)
		}
		if (test.want == engi.Exhausted || test.want == engi.Unavailable) && engi.RetryOf(err).AfterMillis != 7000 {
			t.Errorf("%d: retry %+v", test.status, engi.RetryOf(err))
		}
		if strings.Contains(test.body, "token") && !strings.Contains(err.Error(), "too long") {
			t.Errorf("%d: %v", test.status, err)
		}
	}
}

// TestRetryAfter reads how long to wait in each form that HTTP has.
func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		header map[string]string
		millis int64
	}{
		{map[string]string{"Retry-After": "2.5"}, 2500},
		{map[string]string{"Retry-After-Ms": "40", "Retry-After": "1"}, 40},
		{map[string]string{"Date": "Sun, 22 Nov 2026 10:00:00 GMT", "Retry-After": "Sun, 22 Nov 2026 10:00:09 GMT"}, 9000},
		{map[string]string{"Date": "Sun, 22 Nov 2026 10:00:00 GMT", "Retry-After": "Sun, 22 Nov 2026 09:00:00 GMT"}, 0},
		{map[string]string{"Date": "Sun, 22 Nov 2026 10:00:00 GMT", "Retry-After": "Mon, 23 Nov 2026 10:00:00 GMT"}, 3600_000},
		{map[string]string{"Retry-After": "soon"}, 0},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for name, v := range test.header {
				w.Header().Set(name, v)
			}
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{"openai": {URL: web.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = model(t, r, "openai:m").Generate(t.Context(), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, nil)
		web.Close()
		if got := engi.RetryOf(err).AfterMillis; got != test.millis {
			t.Errorf("%v: %d ms", test.header, got)
		}
	}
}

// TestRequests looks at the fields of requests that depend on the model.
func TestRequests(t *testing.T) {
	for ref, want := range map[string]map[string]any{
		"openai:gpt-4o":        {"max_tokens": 7.0, "temperature": 0.5},
		"openai:gpt-5-mini":    {"max_completion_tokens": 7.0},
		"openai:o3":            {"max_completion_tokens": 7.0},
		"anthropic:claude":     {"max_tokens": 7.0, "temperature": 0.5},
		"gemini:gemini-2":      {"generationConfig": map[string]any{"maxOutputTokens": 7.0, "temperature": 0.5}},
		"groq:openai/gpt-oss":  {"max_completion_tokens": 7.0},
		"gemini:models/gemini": {},
	} {
		var body map[string]any
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			if strings.Contains(r.URL.Path, "models/models") {
				t.Errorf("%s: %s", ref, r.URL.Path)
			}
			w.WriteHeader(400)
		}))
		name, _, _ := strings.Cut(ref, ":")
		r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{name: {URL: web.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		model(t, r, ref).Generate(t.Context(), llm.Request{MaxTokens: 7, Temperature: new(0.5), Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, nil)
		web.Close()
		for key, v := range want {
			if diff := cmp.Diff(v, body[key]); diff != "" {
				t.Errorf("%s: %s: %s", ref, key, diff)
			}
		}
		if _, ok := want["temperature"]; !ok && body["temperature"] != nil {
			t.Errorf("%s: temperature %v", ref, body["temperature"])
		}
	}
}

// TestEfforts looks at what each generation of models is told about reasoning.
func TestEfforts(t *testing.T) {
	tool := []engi.Tool{weather}
	for _, test := range []struct {
		ref  string
		q    llm.Request
		want string // a part of the request, as JSON
	}{
		{"openai:o3", llm.Request{Effort: engi.EffortHigh}, `{"reasoning_effort":"high"}`},
		{"openai:gpt-5", llm.Request{Effort: engi.EffortNone}, `{"reasoning_effort":"minimal"}`},
		{"openai:gpt-5.1", llm.Request{Effort: engi.EffortNone}, `{"reasoning_effort":"none"}`},
		{"openai:gpt-4o", llm.Request{Effort: engi.EffortHigh}, `{"reasoning_effort":null}`},
		{"groq:qwen", llm.Request{Effort: engi.EffortLow}, `{"reasoning_effort":"low"}`},
		{"anthropic:claude-3-5-haiku-latest", llm.Request{Effort: engi.EffortHigh}, `{"thinking":null,"max_tokens":8192}`},
		{"anthropic:claude-3-haiku-20240307", llm.Request{}, `{"thinking":null,"max_tokens":4096}`},
		{"anthropic:claude-sonnet-4-5", llm.Request{Effort: engi.EffortHigh, Temperature: new(0.5)}, `{"thinking":{"type":"enabled","budget_tokens":16000},"max_tokens":32000,"temperature":null}`},
		{"anthropic:claude-sonnet-4-5", llm.Request{Effort: engi.EffortLow, MaxTokens: 1000}, `{"thinking":null,"max_tokens":1000}`},
		{"anthropic:claude-sonnet-4-5", llm.Request{Effort: engi.EffortLow, Tools: tool, Choice: llm.ChoiceRequired}, `{"thinking":null}`},
		{"anthropic:claude-opus-4-20250514", llm.Request{Effort: engi.EffortMedium}, `{"thinking":{"type":"enabled","budget_tokens":8192}}`},
		{"anthropic:claude-opus-4-6", llm.Request{Effort: engi.EffortMedium}, `{"thinking":{"type":"adaptive"},"output_config":{"effort":"medium"}}`},
		{"gemini:gemini-2.0-flash", llm.Request{Effort: engi.EffortHigh}, `{"generationConfig":null}`},
		{"gemini:gemini-2.5-flash", llm.Request{Effort: engi.EffortNone}, `{"generationConfig":{"thinkingConfig":{"thinkingBudget":0,"includeThoughts":false}}}`},
		{"gemini:gemini-2.5-pro", llm.Request{Effort: engi.EffortNone}, `{"generationConfig":{"thinkingConfig":{"thinkingBudget":128,"includeThoughts":true}}}`},
		{"gemini:gemini-3-pro-preview", llm.Request{Effort: engi.EffortMedium}, `{"generationConfig":{"thinkingConfig":{"thinkingLevel":"high","includeThoughts":true}}}`},
		{"gemini:gemini-3-flash", llm.Request{Effort: engi.EffortNone}, `{"generationConfig":{"thinkingConfig":{"thinkingLevel":"minimal"}}}`},
		// What stays the same is marked for the provider's cache.
		{"anthropic:claude", llm.Request{System: "s"}, `{"system":[{"type":"text","text":"s"}]}`},
		{"anthropic:claude", llm.Request{System: "s", Tools: tool}, `{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],
			"messages":[{"role":"user","content":[{"type":"text","text":"?","cache_control":{"type":"ephemeral"}}]}]}`},
	} {
		var body map[string]any
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			w.WriteHeader(400)
		}))
		name, _, _ := strings.Cut(test.ref, ":")
		r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{name: {URL: web.URL}}})
		if err != nil {
			t.Fatal(err)
		}
		test.q.Messages = []engi.Message{{Role: engi.RoleUser, Text: "?"}}
		if _, err := model(t, r, test.ref).Generate(t.Context(), test.q, nil); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", test.ref, err)
		}
		web.Close()
		var want map[string]any
		if err := json.Unmarshal([]byte(test.want), &want); err != nil {
			t.Fatal(err)
		}
		for key, v := range want {
			if diff := cmp.Diff(v, body[key]); diff != "" {
				t.Errorf("%s %+v: %s: %s", test.ref, test.q, key, diff)
			}
		}
	}
}

// TestLimitsOfModels has a server of Anthropic's format whose model writes less
// than others: the limit that it names is taken, and remembered.
func TestLimitsOfModels(t *testing.T) {
	var asked []int
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		if asked = append(asked, q.MaxTokens); q.MaxTokens > 6000 {
			w.WriteHeader(400)
			io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 32000 > 6000, which is the maximum allowed number of output tokens for small"}}`)
			return
		}
		io.WriteString(w, `{"content":[{"type":"text","text":"yes"}],"stop_reason":"end_turn"}`)
	}))
	defer web.Close()
	r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{"anthropic": {URL: web.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	q := llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}
	for range 2 {
		if _, err := model(t, r, "anthropic:small").Generate(t.Context(), q, nil); err != nil {
			t.Fatal(err)
		}
	}
	q.MaxTokens = 9000 // the caller's own limit is not changed
	if _, err := model(t, r, "anthropic:small").Generate(t.Context(), q, nil); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	if diff := cmp.Diff([]int{32_000, 6000, 6000, 9000}, asked); diff != "" {
		t.Error(diff)
	}
}

// TestProse finds the value of an answer in what models write around it.
func TestProse(t *testing.T) {
	schema, err := llm.ParseSchema([]byte(`{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"],"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{"sum":3}`, " {\"sum\":3}\n", "```json\n{\"sum\":3}\n```", "```\n{\"sum\":3}\n```",
		"The sum is three:\n\n```json\n{\"sum\":3}\n```\nAnything else?", `Here you are: {"sum":3}. Done.`,
		"I tried {this} and [that], and `{\"sum\":\"3\"}`, but it is {\"sum\":3}", "```python\nprint({1})\n```\n```json\n{\"sum\":3}\n```",
	} {
		if v, err := schema.Check(text); err != nil || string(v) != `{"sum":3}` {
			t.Errorf("%q: %s, %v", text, v, err)
		}
	}
	for text, want := range map[string]string{
		"It is three.": "not JSON", `{"sum":"3"}`: "does not conform", `The sum: {"sum":3.5}`: "does not conform", `{"sum":3`: "not JSON", "": "not JSON",
		`{"sum":3} {"sum":4,`: "", // the first that conforms
	} {
		_, err := schema.Check(text)
		if want == "" && err != nil || want != "" && (!engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	// It takes no longer than it should.
	if _, err := schema.Check(strings.Repeat("[{", 4<<20)); err == nil {
		t.Error("brackets conform")
	}
}
