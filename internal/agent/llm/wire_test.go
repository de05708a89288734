package llm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// TestWire reads answers as the providers document them; see testdata/wire.
func TestWire(t *testing.T) {
	for _, provider := range six {
		for _, kind := range []string{"json", "sse"} {
			t.Run(provider+" "+kind, func(t *testing.T) {
				answer, err := os.ReadFile(filepath.Join("testdata", "wire", provider+"."+kind))
				if err != nil {
					t.Fatal(err)
				}
				media := map[string]string{"json": "application/json", "sse": "text/event-stream"}[kind]
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", media)
					w.Write(answer)
				}))
				defer web.Close()
				r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{provider: {URL: web.URL, Key: "k"}}})
				if err != nil {
					t.Fatal(err)
				}
				var streamed strings.Builder
				var out func(llm.Delta) error
				if kind == "sse" {
					out = func(d llm.Delta) error { streamed.WriteString(d.Text + d.Arguments); return nil }
				}
				q := llm.Request{Tools: []engi.Tool{weather}, Messages: []engi.Message{{Role: engi.RoleUser, Text: "How is it in Köln?"}}}
				reply, err := model(t, r, provider+":m").Generate(t.Context(), q, out)
				if err != nil {
					t.Fatal(err)
				}
				reply.Took = 0
				if len(reply.Message.Calls) == 1 && provider == "gemini" {
					if s := reply.Message.Signed; s == nil || s.Parts[len(s.Parts)-1].Signature == "" {
						t.Errorf("the signature of the call is lost: %+v", s)
					}
					reply.Message.Signed = nil
					reply.Message.Calls[0].ID = "call_abc123" // the format has none
				}
				want := llm.Reply{Model: provider + ":m", Stop: llm.StopTools, Tokens: engi.Tokens{Input: 82, Output: 17, Calls: 1}, Message: engi.Message{
					Role: engi.RoleAssistant, Text: "Let me see.", Calls: []engi.ToolCall{{ID: "call_abc123", Name: "weather", Arguments: `{"city":"Köln"}`}}}}
				if diff := cmp.Diff(want, reply); diff != "" {
					t.Error(diff)
				}
				if kind == "sse" && streamed.String() != `Let me see.{"city":"Köln"}` {
					t.Errorf("streamed %q", streamed.String())
				}
			})
		}
	}
}

// TestLineEnds streams answers with every end of line that the standard for
// event streams allows, in pieces of every kind. What is read must not depend
// on either.
func TestLineEnds(t *testing.T) {
	for _, provider := range six {
		answer, err := os.ReadFile(filepath.Join("testdata", "wire", provider+".sse"))
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.ReplaceAll(string(answer), "\r\n", "\n")
		n := 0
		mixed := func() string {
			var b strings.Builder
			for _, line := range strings.SplitAfter(plain, "\n") {
				text, ended := strings.CutSuffix(line, "\n")
				b.WriteString(text)
				if ended {
					b.WriteString([]string{"\r", "\r\n", "\n"}[n%3])
					n++
				}
			}
			return b.String()
		}
		for name, text := range map[string]string{
			"LF": plain, "CRLF": strings.ReplaceAll(plain, "\n", "\r\n"), "CR": strings.ReplaceAll(plain, "\n", "\r"), "mixed": mixed(), "BOM": "\ufeff" + plain,
			"comments": strings.ReplaceAll(plain, "data:", ": keep-alive\ndata:"), "no last line": strings.TrimRight(plain, "\n"),
		} {
			for _, size := range []int{1, 2, 7, len(text)} {
				t.Run(fmt.Sprint(provider, name, size), func(t *testing.T) {
					t.Parallel()
					web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Type", "text/event-stream")
						out := http.NewResponseController(w)
						for piece := range slices.Chunk([]byte(text), size) {
							if _, err := w.Write(piece); err != nil {
								return
							}
							out.Flush()
						}
					}))
					defer web.Close()
					r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{provider: {URL: web.URL}}})
					if err != nil {
						t.Fatal(err)
					}
					var streamed strings.Builder
					q := llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "How is it in Köln?"}}}
					reply, err := model(t, r, provider+":m").Generate(t.Context(), q, func(d llm.Delta) error {
						streamed.WriteString(d.Text + d.Arguments)
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					if reply.Stop != llm.StopTools || reply.Tokens.Input != 82 || reply.Tokens.Output != 17 || streamed.String() != `Let me see.{"city":"Köln"}` {
						t.Errorf("%+v, streamed %q", reply, streamed.String())
					}
				})
			}
		}
	}
}

// TestSignatures has a model sign its answer in each way that providers have,
// and looks at what goes back with the results of its calls: to the same model
// everything as it was, to another one nothing.
func TestSignatures(t *testing.T) {
	for _, test := range []struct {
		name, ref, answer string
		back              string // in the next request; the answer's part of the conversation
		other             string // to another model of the provider
	}{
		{"Anthropic", "anthropic:claude",
			`{"content":[{"type":"thinking","thinking":"hm","signature":"s1"},{"type":"redacted_thinking","data":"d"},{"type":"text","text":"So."},{"type":"tool_use","id":"c","name":"weather","input":{"city":"Bonn"}}],"stop_reason":"tool_use"}`,
			`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s1"},{"type":"redacted_thinking","data":"d"},{"type":"text","text":"So."},{"type":"tool_use","id":"c","name":"weather","input":{"city":"Bonn"}}]}`,
			`{"role":"assistant","content":[{"type":"text","text":"So."},{"type":"tool_use","id":"c","name":"weather","input":{"city":"Bonn"}}]}`},
		{"Gemini", "gemini:gemini-3-pro",
			`{"candidates":[{"content":{"parts":[{"text":"hm","thought":true},{"text":"So."},{"functionCall":{"id":"c","name":"weather","args":{"city":"Bonn"}},"thoughtSignature":"s1"},{"functionCall":{"id":"e","name":"weather","args":{"city":"Ulm"}}},{"text":"","thoughtSignature":"s2"}]},"finishReason":"STOP"}]}`,
			`{"role":"model","parts":[{"text":"hm","thought":true},{"text":"So."},{"functionCall":{"id":"c","name":"weather","args":{"city":"Bonn"}},"thoughtSignature":"s1"},{"functionCall":{"id":"e","name":"weather","args":{"city":"Ulm"}}},{"text":"","thoughtSignature":"s2"}]}`,
			`{"role":"model","parts":[{"text":"So."},{"functionCall":{"id":"c","name":"weather","args":{"city":"Bonn"}},"thoughtSignature":"skip_thought_signature_validator"},{"functionCall":{"id":"e","name":"weather","args":{"city":"Ulm"}}}]}`},
		{"reasoning_content", "groq:kimi",
			`{"choices":[{"message":{"content":"So.","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}}]},"finish_reason":"tool_calls"}]}`,
			`{"role":"assistant","content":"So.","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}}]}`,
			`{"role":"assistant","content":"So.","tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}}]}`},
		{"reasoning_details", "groq:minimax",
			`{"choices":[{"message":{"content":"So.","reasoning_details":[{"type":"reasoning.encrypted","data":"d"}],"tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"},"extra_content":{"google":{"thought_signature":"s"}}}]},"finish_reason":"tool_calls"}]}`,
			`{"role":"assistant","content":"So.","reasoning_details":[{"type":"reasoning.encrypted","data":"d"}],"tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"},"extra_content":{"google":{"thought_signature":"s"}}}]}`,
			`{"role":"assistant","content":"So.","tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bonn\"}"}}]}`},
		{"Responses", "openai:o4-mini",
			`{"status":"completed","output":[{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"So."}]},{"type":"function_call","id":"fc_1","call_id":"c","name":"weather","arguments":"{\"city\":\"Bonn\"}"}]}`,
			`{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"}`,
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"So."}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var sent map[string]json.RawMessage
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
					t.Error(err)
				}
				io.WriteString(w, test.answer)
			}))
			defer web.Close()
			provider, _, _ := strings.Cut(test.ref, ":")
			r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{provider: {URL: web.URL, Dialect: map[string]llm.Dialect{"Responses": llm.Responses}[test.name]}}})
			if err != nil {
				t.Fatal(err)
			}
			q := llm.Request{Tools: []engi.Tool{weather}, Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}
			reply, err := model(t, r, test.ref).Generate(t.Context(), q, nil)
			if err != nil {
				t.Fatal(err)
			}
			results := engi.Message{Role: engi.RoleTool}
			for _, c := range reply.Message.Calls {
				results.Results = append(results.Results, engi.ToolResult{Call: c.ID, Name: c.Name, Text: "rain"})
			}
			q.Messages = append(q.Messages, reply.Message, results)
			for ref, want := range map[string]string{test.ref: test.back, test.ref + "-2": test.other} {
				if _, err := model(t, r, ref).Generate(t.Context(), q, nil); err != nil {
					t.Fatal(err)
				}
				var turns []any
				raw := sent["messages"]
				for _, other := range []string{"contents", "input"} {
					if raw == nil {
						raw = sent[other]
					}
				}
				if err := json.Unmarshal(raw, &turns); err != nil {
					t.Fatal(err)
				}
				var wanted any
				if err := json.Unmarshal([]byte(want), &wanted); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(wanted, turns[1]); diff != "" {
					t.Errorf("to %s: %s", ref, diff)
				}
			}
		})
	}
}

// TestResponses reads OpenAI's responses, whole and streamed.
func TestResponses(t *testing.T) {
	usage := `"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":30,"output_tokens_details":{"reasoning_tokens":20}}`
	tokens := engi.Tokens{Input: 40, CacheRead: 60, Output: 30, Reasoning: 20, Calls: 1}
	text := `{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Let me see.","annotations":[]}]}`
	fn := `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"weather","arguments":"{\"city\":\"Köln\"}","status":"completed"}`
	thought := `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"}`
	full := llm.Reply{Model: "openai:o3", Stop: llm.StopTools, Tokens: tokens, Message: engi.Message{Role: engi.RoleAssistant, Text: "Let me see.", Thought: "hm",
		Calls:  []engi.ToolCall{{ID: "call_1", Name: "weather", Arguments: `{"city":"Köln"}`}},
		Signed: &engi.SignedParts{Model: "openai:o3", Parts: []engi.MessagePart{{Thought: "hm", Data: "e", Signature: "rs_1"}, {Text: "Let me see."}, {Call: "call_1"}}}}}
	for _, test := range []struct {
		name, body string
		want       llm.Reply
		kind       engi.Kind
	}{
		{"whole", `{"status":"completed","output":[` + thought + "," + text + "," + fn + `],` + usage + `}`, full, 0},
		{"streamed", stream(`{"type":"response.created","response":{"status":"in_progress"}}`,
			`{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}`,
			`{"type":"response.reasoning_summary_part.added","output_index":0}`, `{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"hm"}`,
			`{"type":"response.output_item.done","output_index":0,"item":`+thought+`}`,
			`{"type":"response.output_item.added","output_index":1,"item":{"type":"message","role":"assistant","content":[]}}`,
			`{"type":"response.output_text.delta","output_index":1,"delta":"Let me "}`, `{"type":"response.output_text.delta","output_index":1,"delta":"see."}`,
			`{"type":"response.output_item.done","output_index":1,"item":`+text+`}`,
			`{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"weather","arguments":""}}`,
			`{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"city\":"}`, `{"type":"response.function_call_arguments.delta","output_index":2,"delta":"\"Köln\"}"}`,
			`{"type":"response.output_item.done","output_index":2,"item":`+fn+`}`, `{"type":"response.completed","response":{"status":"completed","output":[],`+usage+`}}`), full, 0},
		{"cut", `{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[` + fn + `]}`, llm.Reply{Model: "openai:o3", Stop: llm.StopLength, Dropped: 1, Tokens: engi.Tokens{Calls: 1}, Message: engi.Message{Role: engi.RoleAssistant}}, 0},
		{"refused", stream(`{"type":"response.refusal.delta","delta":"No."}`, `{"type":"response.completed","response":{"status":"completed"}}`),
			llm.Reply{Model: "openai:o3", Stop: llm.StopFilter, Reason: "refusal", Tokens: engi.Tokens{Calls: 1}, Message: engi.Message{Role: engi.RoleAssistant, Text: "No."}}, 0},
		{"broken off", stream(`{"type":"response.output_text.delta","delta":"Let"}`), llm.Reply{}, engi.Unavailable},
		{"failed", stream(`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"overloaded"}}}`), llm.Reply{}, engi.Unavailable},
		{"error", stream(`{"type":"error","message":"overloaded"}`), llm.Reply{}, engi.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, test.body) }))
			defer web.Close()
			r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{"openai": {URL: web.URL, Dialect: llm.Responses}}})
			if err != nil {
				t.Fatal(err)
			}
			var out func(llm.Delta) error
			var told strings.Builder
			if strings.HasPrefix(test.body, "data:") {
				out = func(d llm.Delta) error { told.WriteString(d.Thought + d.Text + d.Arguments); return nil }
			}
			reply, err := model(t, r, "openai:o3").Generate(t.Context(), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, out)
			if test.kind != 0 {
				if !engi.Is(err, test.kind) || test.name != "broken off" && !strings.Contains(err.Error(), "overloaded") {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			reply.Took = 0
			if diff := cmp.Diff(test.want, reply); diff != "" {
				t.Error(diff)
			}
			if want := test.want.Message.Text; out != nil && !strings.Contains(told.String(), want) {
				t.Errorf("told %q", told.String())
			}
		})
	}
}

// stream returns events as they are sent.
func stream(events ...string) (body string) {
	for _, e := range events {
		body += "data: " + e + "\n\n"
	}
	return body
}
