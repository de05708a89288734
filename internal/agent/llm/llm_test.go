package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
)

// generateObject asks m for a T; see [llm.GenerateJSON]. partial, if not nil, is
// called with the object as far as it has been written.
func generateObject[T any](ctx context.Context, m llm.Model, q llm.Request, partial func(T) error) (T, llm.Reply, error) {
	var zero T
	schema, err := llm.SchemaOf(reflect.TypeFor[T]())
	if err != nil {
		return zero, llm.Reply{}, err
	}
	var out func(llm.Delta) error
	if partial != nil {
		out = func(d llm.Delta) error {
			if d.Object == nil {
				return nil
			}
			raw, err := json.Marshal(d.Object)
			if err != nil {
				return nil
			}
			var v T
			if json.Unmarshal(raw, &v) != nil {
				return nil // an incomplete value may not fit
			}
			return partial(v)
		}
	}
	raw, r, err := llm.GenerateJSON(ctx, m, q, schema, out)
	if err != nil {
		return zero, r, err
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return zero, r, engi.Errorf(engi.Unavailable, "%s: the object does not fit the type: %v", m.Name(), err)
	}
	return v, r, nil
}

// six are the well-known providers.
var six = []string{"openai", "anthropic", "gemini", "ollama", "mistral", "groq"}

func registry(t *testing.T, play func(scripted.Conversation) scripted.Answer, change func(*llm.Options)) (*llm.Registry, *scripted.Server) {
	t.Helper()
	s := &scripted.Server{Play: play}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	opt := llm.Options{Providers: map[string]llm.Provider{}, Client: web.Client(), Backoff: time.Millisecond}
	for _, name := range six {
		opt.Providers[name] = llm.Provider{URL: web.URL + "/" + name, Key: "key-of-" + name}
	}
	if change != nil {
		change(&opt)
	}
	r, err := llm.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func model(t *testing.T, r *llm.Registry, ref string) llm.Model {
	t.Helper()
	m, err := r.Model(ref)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var weather = engi.Tool{Name: "weather", Description: "Tells the weather.", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}

// TestProviders has one program talk to all providers; only the name of the
// model differs.
func TestProviders(t *testing.T) {
	for _, provider := range six {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprint(provider, " streamed ", streamed), func(t *testing.T) {
				r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
					if c.Last().Role == "tool" {
						return scripted.Answer{Text: "It is sunny in Köln, 20 °C."}
					}
					return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{
						{ID: "c1", Name: "weather", Arguments: `{"city":"Köln"}`}, {ID: "c2", Name: "weather", Arguments: `{"city":"Bonn"}`}}}
				}, func(o *llm.Options) { o.Prices = map[string]llm.Price{provider + ":*": {Input: 1, Output: 2}} })
				m := model(t, r, provider+":m1")
				q := llm.Request{System: "You know the weather.", Tools: []engi.Tool{weather}, Messages: []engi.Message{
					{Role: engi.RoleUser, Text: "How is it in Köln?", Images: []engi.Image{{MediaType: "image/png", Data: []byte("\x89PNG")}}}}}
				ask := func() (llm.Reply, string, map[string]string) {
					t.Helper()
					var text strings.Builder
					calls := map[string]string{}
					var out func(llm.Delta) error
					if streamed {
						out = func(d llm.Delta) error {
							text.WriteString(d.Text)
							if d.Call != "" {
								calls[d.Call] += d.Arguments
							}
							return nil
						}
					}
					reply, err := m.Generate(t.Context(), q, out)
					if err != nil {
						t.Fatal(err)
					}
					return reply, text.String(), calls
				}
				reply, text, calls := ask()
				want := []engi.ToolCall{{ID: "c1", Name: "weather", Arguments: `{"city":"Köln"}`}, {ID: "c2", Name: "weather", Arguments: `{"city":"Bonn"}`}}
				got := reply.Message.Calls
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if reply.Stop != llm.StopTools || reply.Message.Text != "Let me see." || reply.Model != provider+":m1" {
					t.Errorf("%+v", reply)
				}
				if reply.Tokens.Input == 0 || reply.Tokens.Output == 0 || reply.Tokens.Cost != reply.Tokens.Input+2*reply.Tokens.Output || reply.Tokens.Calls != 1 {
					t.Errorf("tokens %+v", reply.Tokens)
				}
				if streamed && text != reply.Message.Text {
					t.Errorf("streamed %q", text)
				}
				if streamed && calls["c1"] != want[0].Arguments {
					t.Errorf("streamed calls %q", calls)
				}
				q.Messages = append(q.Messages, reply.Message, engi.Message{Role: engi.RoleTool, Results: []engi.ToolResult{
					{Call: got[0].ID, Name: "weather", Text: "sunny", Images: []engi.Image{{MediaType: "image/png", Data: []byte("\x89PNG")}, {MediaType: "image/png", Data: []byte("\x89PNG2")}}},
					{Call: got[1].ID, Name: "weather", Text: "no such town", Failed: true}}})
				reply, _, _ = ask()
				if reply.Stop != llm.StopEnd || reply.Message.Text != "It is sunny in Köln, 20 °C." {
					t.Errorf("%+v", reply)
				}
				first, second := s.Seen()[0], s.Seen()[1]
				if first.Key != "key-of-"+provider || first.System != "You know the weather." || first.Last().Images != 1 || first.Model != "m1" || first.Stream != streamed {
					t.Errorf("the provider saw %+v", first)
				}
				if n := second.Last().Images; n != 2 {
					t.Errorf("the provider saw %d images of results", n)
				}
				if r := second.Last().Results; len(r) != 2 || !strings.Contains(r[0].Text, "sunny") || !strings.Contains(r[1].Text, "no such town") {
					t.Errorf("the provider saw results %+v", r)
				}
			})
		}
	}
}

type invoice struct {
	Number string   `json:"number" jsonschema:"as printed"`
	Total  float64  `json:"total"`
	Lines  []string `json:"lines"`
	Note   *string  `json:"note,omitempty"`
}

// TestObjects has a model break the schema twice before it conforms.
func TestObjects(t *testing.T) {
	for _, provider := range six {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprint(provider, " streamed ", streamed), func(t *testing.T) {
				r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
					return scripted.Answer{Object: []string{`{"number": 7}`, `{"number":"7","total":"much","lines":[]}`, `{"number":"7","total":1.5,"lines":["a","b"]}`}[min(c.N, 3)-1]}
				}, nil)
				var partial func(invoice) error
				var parts []invoice
				if streamed {
					partial = func(v invoice) error { parts = append(parts, v); return nil }
				}
				got, reply, err := generateObject(t.Context(), model(t, r, provider+":m1"), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "Read the invoice."}}}, partial)
				if err != nil {
					t.Fatal(err)
				}
				want := invoice{Number: "7", Total: 1.5, Lines: []string{"a", "b"}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if streamed && (len(parts) < 2 || !reflect.DeepEqual(parts[len(parts)-1], want) ||
					!slices.ContainsFunc(parts, func(v invoice) bool { return v.Number == "7" && !reflect.DeepEqual(v, want) })) {
					t.Errorf("the partial objects are %+v", parts)
				}
				if reply.Tokens.Calls < 2 || len(s.Seen()) < 2 {
					t.Errorf("%d requests, tokens %+v", len(s.Seen()), reply.Tokens)
				}
			})
		}
	}
}

// TestSchemas checks that every provider gets types and required names however
// the schema is written, and that answers need not be objects.
func TestSchemas(t *testing.T) {
	list := json.RawMessage(`{"type":["null","array"],"items":{"$ref":"#/$defs/town"},"minItems":1,
		"$defs":{"town":{"type":"object","properties":{"name":{"type":"string"},"twin":{"$ref":"#/$defs/twin"}},"required":["name"]},"twin":{"type":"string"}}}`)
	edit, err := llm.SchemaOf(reflect.TypeFor[struct {
		Path  string `json:"path"`
		Edits []struct {
			Old string `json:"old"`
		} `json:"edits"`
	}]())
	if err != nil {
		t.Fatal(err)
	}
	for _, provider := range six {
		t.Run(provider, func(t *testing.T) {
			r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
				if c.Schema == nil {
					return scripted.Answer{Text: "ok"}
				}
				if provider == "gemini" {
					return scripted.Answer{Object: []string{`[]`, `[{"name":"Bonn"}]`}[min(c.N-1, 1)]}
				}
				return scripted.Answer{Object: []string{`{"answer":[]}`, `{"answer":[{"name":"Bonn"}]}`}[min(c.N-1, 1)]}
			}, nil)
			shape, err := llm.ParseSchema(list)
			if err != nil {
				t.Fatal(err)
			}
			m := model(t, r, provider+":m1")
			q := llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "Towns?"}}}
			for _, out := range []func(llm.Delta) error{nil, func(llm.Delta) error { return nil }} {
				got, _, err := llm.GenerateJSON(t.Context(), m, q, shape, out)
				if err != nil || string(got) != `[{"name":"Bonn"}]` {
					t.Errorf("%s %v", got, err)
				}
			}
			if raw := string(s.Seen()[0].Raw); strings.Contains(raw, "$ref") || !strings.Contains(raw, `"twin"`) {
				t.Errorf("the provider saw %s", raw)
			}
			q.Tools = []engi.Tool{{Name: "edit", Description: "Edits.", Schema: edit.JSON()}}
			if _, err := m.Generate(t.Context(), q, nil); err != nil {
				t.Fatal(err)
			}
			seen := s.Seen()
			raw := strings.ToLower(string(seen[len(seen)-1].Raw))
			if !strings.Contains(raw, `"type":"array"`) || !strings.Contains(raw, `"required":["path","edits"]`) {
				t.Errorf("the provider saw %s", raw)
			}
		})
	}
}

func TestObjectNeverConforms(t *testing.T) {
	r, s := registry(t, func(scripted.Conversation) scripted.Answer { return scripted.Answer{Object: `{"number": [`} }, nil)
	_, reply, err := generateObject[invoice](t.Context(), model(t, r, "openai:m"), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "x"}}}, nil)
	if !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "4 attempts") {
		t.Errorf("%v", err)
	}
	if len(s.Seen()) != 4 || reply.Tokens.Calls != 4 {
		t.Errorf("%d requests, %+v", len(s.Seen()), reply.Tokens)
	}
}

func TestRetriesAndFallbacks(t *testing.T) {
	var mu sync.Mutex
	var spent []llm.Call
	options := func(o *llm.Options) {
		o.Fallbacks = map[string][]string{"openai:a": {"anthropic:b"}}
		o.OnCall = func(c llm.Call) { mu.Lock(); spent = append(spent, c); mu.Unlock() }
	}
	hello := llm.Request{Owner: "ann", Messages: []engi.Message{{Role: engi.RoleUser, Text: "hello"}}}

	t.Run("retry", func(t *testing.T) {
		r, _ := registry(t, func(c scripted.Conversation) scripted.Answer {
			if c.N < 3 {
				return scripted.Answer{Status: 503, Text: "busy"}
			}
			return scripted.Answer{Text: "hi"}
		}, options)
		reply, err := model(t, r, "openai:a").Generate(t.Context(), hello, nil)
		if err != nil || reply.Message.Text != "hi" || reply.Tokens.Calls != 3 {
			t.Errorf("%+v %v", reply, err)
		}
	})
	t.Run("fallback", func(t *testing.T) {
		r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
			if c.Model == "a" {
				return scripted.Answer{Status: 429, Text: "slow down", RetryAfter: 3600}
			}
			return scripted.Answer{Text: "hi"}
		}, options)
		reply, err := model(t, r, "openai:a").Generate(t.Context(), hello, nil)
		if err != nil || reply.Model != "anthropic:b" || len(s.Seen()) != 2 {
			t.Errorf("%+v %v, %d requests", reply, err, len(s.Seen()))
		}
	})
	t.Run("a stream that breaks off", func(t *testing.T) {
		r, _ := registry(t, func(c scripted.Conversation) scripted.Answer {
			if c.N == 1 {
				return scripted.Answer{Text: strings.Repeat("half of it ", 20), Cut: 5}
			}
			return scripted.Answer{Text: "all of it"}
		}, options)
		var text string
		reply, err := model(t, r, "anthropic:b").Generate(t.Context(), hello, func(d llm.Delta) error {
			if d.Reset {
				text = ""
			}
			text += d.Text
			return nil
		})
		if err != nil || text != "all of it" || reply.Message.Text != text {
			t.Errorf("%q %+v %v", text, reply, err)
		}
	})
	t.Run("a refused key", func(t *testing.T) {
		r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
			return scripted.Answer{Status: 401, Text: "who are you"}
		}, nil)
		_, err := model(t, r, "groq:x").Generate(t.Context(), hello, nil)
		if !engi.Is(err, engi.Denied) || len(s.Seen()) != 1 || strings.Contains(err.Error(), "key-of") {
			t.Errorf("%v after %d requests", err, len(s.Seen()))
		}
	})
	t.Run("refused", func(t *testing.T) {
		r, s := registry(t, func(c scripted.Conversation) scripted.Answer {
			return scripted.Answer{Status: 400, Text: "bad\nrequest\x00"}
		}, options)
		_, err := model(t, r, "openai:a").Generate(t.Context(), hello, nil)
		if !engi.Is(err, engi.Invalid) || len(s.Seen()) != 1 || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%v after %d requests", err, len(s.Seen()))
		}
	})
	mu.Lock()
	defer mu.Unlock()
	if len(spent) == 0 || spent[0].Owner != "ann" || spent[0].Err == nil {
		t.Errorf("spent %+v", spent)
	}
}

func TestIdleTimeoutAndCancel(t *testing.T) {
	r, _ := registry(t, func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: "a long text that takes very long", Pace: time.Minute}
	}, func(o *llm.Options) { o.IdleTimeout = 50 * time.Millisecond; o.Attempts = 1 })
	hello := llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "hello"}}}
	_, err := model(t, r, "openai:a").Generate(t.Context(), hello, func(llm.Delta) error { return nil })
	if !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "the provider sent nothing") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, _ = registry(t, func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: strings.Repeat("a long text that takes very long ", 1000), Pace: 20 * time.Millisecond}
	}, nil)
	_, err = model(t, r, "anthropic:a").Generate(ctx, hello, func(llm.Delta) error { cancel(); return nil })
	if !engi.Is(err, engi.Expired) {
		t.Errorf("%v", err)
	}
}

func TestBudget(t *testing.T) {
	r, s := registry(t, func(c scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "hi"} }, func(o *llm.Options) {
		o.Embedding = "openai:e"
		o.CheckBudget = func(_ context.Context, owner engi.Owner) error {
			if owner == "poor" {
				return engi.Errorf(engi.Exhausted, "the budget of %s is used up", owner)
			}
			return nil
		}
	})
	_, err := model(t, r, "openai:a").Generate(t.Context(), llm.Request{Owner: "poor"}, nil)
	if !engi.Is(err, engi.Exhausted) || len(s.Seen()) != 0 {
		t.Errorf("%v after %d requests", err, len(s.Seen()))
	}
	e, err := r.Embedder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Embed(t.Context(), "poor", []string{"a"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("%v", err)
	}
	texts := make([]string, 150)
	for i := range texts {
		texts[i] = fmt.Sprint("text number ", i)
	}
	vs, err := e.Embed(t.Context(), "rich", texts)
	if err != nil || len(vs) != 150 || len(vs[149]) != 64 {
		t.Fatalf("%d vectors: %v", len(vs), err)
	}
}

func TestNames(t *testing.T) {
	r, _ := registry(t, nil, nil)
	for ref, want := range map[string]engi.Kind{"": engi.Unsupported, "gpt": engi.Invalid, ":x": engi.Invalid, "openai:": engi.Invalid, "nobody:x": engi.Invalid} {
		if _, err := r.Model(ref); !engi.Is(err, want) || engi.RemedyOf(err) == "" {
			t.Errorf("Model(%q): %v", ref, err)
		}
	}
	for name, opt := range map[string]llm.Options{
		"no url":       {Providers: map[string]llm.Provider{"mine": {}}},
		"no url ever":  {Providers: map[string]llm.Provider{"mine": {URL: "ftp://x"}}},
		"bad dialect":  {Providers: map[string]llm.Provider{"mine": {URL: "http://x", Dialect: "french"}}},
		"bad default":  {Default: "mine:x"},
		"bad fallback": {Providers: map[string]llm.Provider{"ollama": {}}, Fallbacks: map[string][]string{"ollama:a": {"mine:x"}}},
	} {
		if _, err := llm.New(opt); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShape(t *testing.T) {
	s, err := llm.ParseSchema(json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"],"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{
		`{"a":1}`: true, "```json\n{\"a\":1}\n```": true, `{"a":0}`: false, `{}`: false, `{"a":1,"b":2}`: false, ``: false, `null`: false, `[1]`: false, "```": false,
	} {
		if _, err := s.Check(text); (err == nil) != ok {
			t.Errorf("Check(%q): %v", text, err)
		}
	}
	for _, raw := range []string{``, `7`, `{"type":7}`, `{"$ref":"http://elsewhere/schema"}`, strings.Repeat(" ", 70<<10)} {
		if _, err := llm.ParseSchema(json.RawMessage(raw)); !engi.Is(err, engi.Invalid) {
			t.Errorf("ParseShape(%.40q): %v", raw, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	s, err := llm.SchemaOf(reflect.TypeFor[invoice]())
	if err != nil {
		f.Fatal(err)
	}
	f.Add("```json\n{}\n```")
	f.Add(`{"number":"1","total":1e999,"lines":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		raw, err := s.Check(text)
		if err != nil {
			return
		}
		var v invoice
		if err := json.Unmarshal(raw, &v); err != nil && !strings.Contains(err.Error(), "number") {
			t.Errorf("%q conforms and does not fit: %v", text, err)
		}
	})
}
