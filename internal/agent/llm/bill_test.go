package llm_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// A twin is a provider as strict as the real ones: it refuses conversations in
// which calls lack results, or answers lack the signatures that it gave them.
// It fails at random, and keeps a bill of what it has counted in its answers.
type twin struct {
	mu      sync.Mutex
	rand    *rand.Rand
	bill    engi.Tokens // of what the client was told
	untold  int         // answers that were cut before their count
	refused []string    // why conversations were
	n       int
}

type twinPart struct {
	Type, Text, Signature, ID, ToolUseID string
	ThoughtSignature                     string
	FunctionCall, FunctionResponse       *struct{ ID, Name string }
}

func (t *twin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var q struct {
		Stream   bool
		Messages []struct {
			Role             string
			Content          json.RawMessage
			ReasoningContent string                `json:"reasoning_content"`
			ToolCalls        []struct{ ID string } `json:"tool_calls"`
			ToolCallID       string                `json:"tool_call_id"`
		}
		Contents []struct {
			Role  string
			Parts []twinPart
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		panic(err)
	}
	open := map[string]bool{} // calls without results
	refuse := func(format string, args ...any) { t.refused = append(t.refused, fmt.Sprintf(format, args...)) }
	stream := q.Stream || strings.Contains(r.URL.Path, ":stream")
	format := "gemini"
	for i, c := range q.Contents {
		for _, p := range c.Parts {
			if f := p.FunctionCall; f != nil {
				if open[f.ID] = true; p.ThoughtSignature != "sign-"+f.ID {
					refuse("call %s of turn %d is not signed: %q", f.ID, i, p.ThoughtSignature)
				}
			}
			if f := p.FunctionResponse; f != nil {
				delete(open, f.ID)
			}
		}
	}
	for i, m := range q.Messages {
		format = "openai"
		for _, c := range m.ToolCalls {
			if open[c.ID] = true; m.ReasoningContent != "thought of "+c.ID {
				refuse("call %s of message %d lacks its reasoning_content", c.ID, i)
			}
		}
		delete(open, m.ToolCallID)
		var parts []map[string]any
		if json.Unmarshal(m.Content, &parts) != nil {
			continue
		}
		thought := ""
		for _, p := range parts {
			switch p["type"] {
			case "thinking":
				thought, _ = p["signature"].(string)
			case "tool_use":
				if open[p["id"].(string)] = true; thought != "sign-"+p["id"].(string) {
					refuse("call %s of message %d lacks its thinking: %q", p["id"], i, thought)
				}
			case "tool_result":
				delete(open, p["tool_use_id"].(string))
			}
		}
	}
	if strings.HasSuffix(r.URL.Path, "/messages") {
		format = "anthropic"
	}
	if len(open) > 0 {
		refuse("calls %v have no result", open)
	}
	t.n++
	switch t.rand.IntN(10) {
	case 0:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case 1:
		w.WriteHeader(529)
		return
	}
	in, cached, out, thoughts := t.rand.Int64N(900)+100, t.rand.Int64N(50), t.rand.Int64N(80)+20, t.rand.Int64N(20)
	id := fmt.Sprint("c", t.n)
	var events []string
	counts := 0 // events after which everything is counted
	switch format {
	case "gemini":
		part := fmt.Sprintf(`{"functionCall":{"id":%q,"name":"weather","args":{"city":"Bonn"}},"thoughtSignature":%q}`, id, "sign-"+id)
		usage := fmt.Sprintf(`{"promptTokenCount":%d,"cachedContentTokenCount":%d,"candidatesTokenCount":%d,"thoughtsTokenCount":%d,"totalTokenCount":%d}`, in+cached, cached, out-thoughts, thoughts, in+cached+out)
		events = []string{fmt.Sprintf(`{"candidates":[{"content":{"parts":[%s]}}],"usageMetadata":%s}`, part, usage), fmt.Sprintf(`{"candidates":[{"finishReason":"STOP"}],"usageMetadata":%s}`, usage)}
		counts = 1
		if !stream {
			events = []string{fmt.Sprintf(`{"candidates":[{"content":{"parts":[%s]},"finishReason":"STOP"}],"usageMetadata":%s}`, part, usage)}
		}
	case "anthropic":
		thoughts = 0 // not counted apart
		usage := fmt.Sprintf(`{"input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d}`, in, cached, out)
		events = []string{fmt.Sprintf(`{"type":"message_start","message":{"usage":{"input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":1}}}`, in, cached),
			`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"hm"}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sign-` + id + `"}}`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"` + id + `","name":"weather","input":{}}}`, `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
			fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":%d}}`, out), `{"type":"message_stop"}`}
		counts = 6
		if !stream {
			events = []string{fmt.Sprintf(`{"content":[{"type":"thinking","thinking":"hm","signature":%q},{"type":"tool_use","id":%q,"name":"weather","input":{}}],"stop_reason":"tool_use","usage":%s}`, "sign-"+id, id, usage)}
		}
	default:
		message := fmt.Sprintf(`{"reasoning_content":%q,"tool_calls":[{"index":0,"id":%q,"function":{"name":"weather","arguments":"{}"}}]}`, "thought of "+id, id)
		usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}`, in+cached, out, cached, thoughts)
		events = []string{`{"choices":[{"delta":` + message + `}]}`, `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`, `{"choices":[],"usage":` + usage + `}`, "[DONE]"}
		counts = 3
		if !stream {
			events = []string{`{"choices":[{"message":` + message + `,"finish_reason":"tool_calls"}],"usage":` + usage + `}`}
		}
	}
	if !stream {
		fmt.Fprint(w, events[0])
		t.count(in, cached, out, thoughts)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	cut := len(events)
	if t.rand.IntN(4) == 0 {
		cut = t.rand.IntN(len(events))
	}
	for _, e := range events[:cut] {
		fmt.Fprintf(w, "data: %s\r\n\r\n", e)
	}
	if cut >= counts {
		t.count(in, cached, out, thoughts)
	} else {
		t.untold++
	}
	if cut < len(events) {
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func (t *twin) count(in, cached, out, thoughts int64) {
	t.bill = t.bill.Add(engi.Tokens{Input: in, CacheRead: cached, Output: out, Reasoning: thoughts})
}

// TestBill has a thousand conversations with providers that refuse, overload and
// break off. Whatever a provider counted is charged, to the token; what it did
// not come to count is charged by estimate; no conversation is refused.
func TestBill(t *testing.T) {
	for _, ref := range []string{"anthropic:claude-sonnet-4-5", "gemini:gemini-3-pro", "groq:kimi"} {
		t.Run(ref, func(t *testing.T) {
			t.Parallel()
			p := &twin{rand: rand.New(rand.NewPCG(20, 26))}
			web := httptest.NewServer(p)
			defer web.Close()
			name, _, _ := strings.Cut(ref, ":")
			var calls []llm.Call
			r, err := llm.New(llm.Options{Backoff: time.Nanosecond, Providers: map[string]llm.Provider{name: {URL: web.URL}}, Prices: map[string]llm.Price{ref: {Input: 3, Output: 15, CacheRead: 0.3}},
				OnCall: func(c llm.Call) { calls = append(calls, c) }})
			if err != nil {
				t.Fatal(err)
			}
			var charged engi.Tokens
			for n := range 334 {
				q := llm.Request{System: "You know the weather.", Tools: []engi.Tool{weather}, Messages: []engi.Message{{Role: engi.RoleUser, Text: "How is it?"}}}
				for range 3 {
					var out func(llm.Delta) error
					if n%2 == 0 {
						out = func(llm.Delta) error { return nil }
					}
					reply, err := model(t, r, ref).Generate(t.Context(), q, out)
					charged = charged.Add(reply.Tokens)
					if err != nil {
						if !engi.Is(err, engi.Unavailable, engi.Exhausted) {
							t.Fatal(err)
						}
						break
					}
					q.Messages = append(slices.Clone(q.Messages), reply.Message, engi.Message{Role: engi.RoleTool, Results: []engi.ToolResult{{Call: reply.Message.Calls[0].ID, Name: "weather", Text: "rain"}}})
				}
			}
			if len(p.refused) > 0 {
				t.Errorf("%d conversations were refused: %s", len(p.refused), p.refused[0])
			}
			var sum, told engi.Tokens
			untold := 0
			for _, c := range calls {
				sum = sum.Add(c.Tokens)
				if c.Err != nil && strings.Contains(c.Err.Error(), "EOF") && c.Tokens.Output < 20 { // an answer has at least that many
					if c.Tokens.Input == 0 {
						t.Errorf("an attempt that broke off costs nothing: %+v", c)
					}
					untold++
					continue
				}
				told = told.Add(engi.Tokens{Input: c.Tokens.Input, Output: c.Tokens.Output, Reasoning: c.Tokens.Reasoning, CacheRead: c.Tokens.CacheRead})
			}
			if diff := cmp.Diff(p.bill, told); diff != "" {
				t.Errorf("charged other than counted: %s", diff)
			}
			if untold != p.untold || untold == 0 || len(calls) != p.n {
				t.Errorf("%d attempts of %d broke off before their count, for the provider %d of %d", untold, len(calls), p.untold, p.n)
			}
			if diff := cmp.Diff(sum, charged); diff != "" {
				t.Errorf("replies and attempts differ: %s", diff)
			}
		})
	}
}
