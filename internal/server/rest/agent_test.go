package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/apitest"
)

// office is a real one, with a model that follows a script.
func office(t *testing.T, places func() tool.Services, play func(scripted.Conversation) scripted.Answer) *agent.Runner {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	models, err := llm.New(llm.Options{Default: "openai:x", Backoff: time.Millisecond,
		Providers: map[string]llm.Provider{"openai": {URL: "http://model.invalid", Client: &http.Client{Transport: &scripted.Server{Play: play}}}}})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := tool.Builtin(places())
	if err != nil {
		t.Fatal(err)
	}
	o, err := agent.New(agent.Options{
		Agents: []engi.AgentSpec{{Name: "coder", Tools: []string{"*"}}, {Name: "quiet"}}, Models: models.Model, Tools: tools, Store: store.Agents(db), Results: store.AgentResults(db), Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- o.Run(ctx, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func withAgents(t *testing.T, play func(scripted.Conversation) scripted.Answer) (*apitest.Fixture, *httptest.Server) {
	t.Helper()
	return apitest.Serve(t, func(o *apitest.Options) {
		o.Agents = office(t, func() tool.Services { return tool.Services{Executions: o.Executions, Sandboxes: o.Sandboxes} }, play)
	})
}

func runsBash(c scripted.Conversation) scripted.Answer {
	if c.Last().Role == "tool" {
		return scripted.Answer{Text: "It printed hello — see?"}
	}
	return scripted.Answer{Text: "I try.", Calls: []scripted.Call{{ID: "c1", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}}}
}

func TestChat(t *testing.T) {
	w, _ := withAgents(t, runsBash)
	a := read[v1.ChatAnswer](t, ask(t, w, "POST", "/v1/chat", `{"message":"run something"}`), 200)
	if a.Response != "It printed hello — see?" || a.Run.Steps != 2 || a.Run.State != v1.AgentDone || a.ConversationID == "" {
		t.Errorf("%+v", a)
	}
	b := read[v1.ChatAnswer](t, ask(t, w, "POST", "/v1/chat", `{"message":"again","conversation_id":"`+a.ConversationID+`"}`), 200)
	if b.ConversationID != a.ConversationID {
		t.Errorf("%+v", b)
	}
	list := read[v1.List[v1.AgentRun]](t, ask(t, w, "GET", "/v1/runs", ""), 200)
	if len(list.Items) != 2 || list.Items[0].ID != b.Run.ID {
		t.Errorf("%+v", list)
	}
	said := read[v1.List[v1.Message]](t, ask(t, w, "GET", "/v1/runs/"+b.Run.ID+"/messages", ""), 200)
	if len(said.Items) != 8 || !strings.Contains(said.Items[2].Results[0].Text, "hello") {
		t.Errorf("%+v", said)
	}
	for path, body := range map[string]string{
		"/v1/chat":                 `{}`,
		"/v1/agents/coder/runs":    `{"input":"x","sandbox_id":"nope","conversation_id":"y"}`,
		"/v1/chat?x=1":             `{"message":"a"}`,
		"/v1/agents/coder/runs#":   `{"input":"x","messages":[{"role":"root","text":"x"}]}`,
		"/v1/agents/coder/runs##":  `{"input":"x","output":7}`,
		"/v1/agents/coder/runs###": `{"input":"x","model":"nobody:x"}`,
	} {
		path, _, _ = strings.Cut(path, "#")
		refused(t, ask(t, w, "POST", path, body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", "/v1/agents/spy/runs", `{"input":"x"}`), 404, engi.NotFound)
	refused(t, ask(t, w, "GET", "/v1/runs/"+string(engi.NewRunID()), ""), 404, engi.NotFound)
	// Another owner does not see it.
	if rec := ask(t, w, "GET", "/v1/runs/"+a.Run.ID, "", "Authorization", "Bearer "+w.Other); rec.Code != 404 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// spending knows of one owner.
type spending struct{}

func (spending) ModelUsage(_ context.Context, owner engi.Owner, since time.Time) (all []engi.ModelUsage, _ error) {
	x := engi.ModelUsage{Owner: "ann", Day: time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC), Model: "openai:a", Tokens: engi.Tokens{Input: 7, Output: 5, Cost: 1_500_000, Calls: 2}}
	if owner == "" {
		all = append(all, x)
	}
	x.Owner = owner
	return append(all, x), nil
}

func TestSpending(t *testing.T) {
	w, _ := apitest.Serve(t, func(o *apitest.Options) { o.Spending = spending{} })
	u := read[v1.Usage](t, ask(t, w, "GET", "/v1/usage", ""), 200)
	if len(u.Models) != 1 || u.Models[0].Day != "2026-11-22" || u.Models[0].Owner != u.Owner || u.Models[0].Cost != 1.5 || u.Models[0].ModelCalls != 2 {
		t.Errorf("%+v", u)
	}
	if rec := ask(t, w, "GET", "/v1/usage", "", "Authorization", "Bearer "+w.Admin); !strings.Contains(rec.Body.String(), `"ann"`) {
		t.Errorf("the admin sees %s", rec.Body)
	}
}

// TestBudget refuses to begin what an owner cannot pay, and says when to come
// back.
func TestBudget(t *testing.T) {
	w, _ := apitest.Serve(t, func(o *apitest.Options) { o.Agents = &broke{} })
	rec := ask(t, w, "POST", "/v1/chat", `{"message":"x"}`)
	if rec.Header().Get("Retry-After") != "3600" {
		t.Errorf("%v", rec.Header())
	}
	refused(t, rec, 429, engi.Exhausted)
}

type fakeAgents = apitest.Agents

// broke has no money.
type broke struct{ fakeAgents }

func (*broke) Start(context.Context, engi.RunSpec) (engi.Run, error) {
	return engi.Run{}, engi.Errorf(engi.Exhausted, "ann has spent its budget").WithRemedy("wait").WithRetry(engi.Retry{AfterMillis: 3600_000})
}

func TestContext(t *testing.T) {
	var heard string
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		heard = c.Last().Text
		return scripted.Answer{Text: "ok"}
	})
	read[v1.ChatAnswer](t, ask(t, w, "POST", "/v1/chat", `{"context":[{"name":"PAGE","text":"<h1>7</h1>"},{"name":"PAST","text":"6"}],"message":"increment"}`), 200)
	if want := "[PAGE] <h1>7</h1>\n[PAST] 6\n[NOW] increment"; heard != want {
		t.Errorf("the model read %q", heard)
	}
	refused(t, ask(t, w, "POST", "/v1/chat", `{"context":[{"name":"A]","text":"x"}],"message":"x"}`), 400, engi.Invalid)
}

func TestRunsAreStreamedAndComeBackTo(t *testing.T) {
	w, srv := withAgents(t, runsBash)
	get := func(method, path, accept, body string) []v1.AgentUpdate {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.User)
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var all []v1.AgentUpdate
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			text := lines.Text()
			if accept == "text/event-stream" {
				var ok bool
				if text, ok = strings.CutPrefix(text, "data: "); !ok {
					continue
				}
			}
			var e v1.AgentUpdate
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatalf("%v in %q", err, text)
			}
			all = append(all, e)
		}
		return all
	}
	for _, accept := range []string{"application/x-ndjson", "text/event-stream"} {
		all := get("POST", "/v1/agents/coder/runs", accept, `{"input":"run something"}`)
		var kinds []string
		text := ""
		for i, e := range all {
			if i > 0 && e.Offset <= all[i-1].Offset {
				t.Errorf("event %d has offset %d after %d", i, e.Offset, all[i-1].Offset)
			}
			if len(kinds) == 0 || kinds[len(kinds)-1] != e.Type {
				kinds = append(kinds, e.Type)
			}
			if e.Type == "stdout" {
				text += e.Text
			}
		}
		if got := strings.Join(kinds, " "); got != "text call stdout result text done" || text != "hello\n" {
			t.Errorf("%s: %q, printed %q", accept, got, text)
		}
		last := all[len(all)-1].Run
		if last == nil || last.State != v1.AgentDone {
			t.Fatalf("%+v", last)
		}
		if rest := get("GET", "/v1/runs/"+last.ID+"/events?after="+strings.TrimSpace(string(mustJSON(t, all[len(all)-1].Offset))), accept, ""); len(rest) != 0 {
			t.Errorf("%s: after the end there is %+v", accept, rest)
		}
		n := len(all) / 2
		half := all[n].Offset
		again := get("GET", "/v1/runs/"+last.ID+"/events?after="+strings.TrimSpace(string(mustJSON(t, half))), accept, "")
		if len(again) != len(all)-n-1 || again[0].Offset != all[n+1].Offset {
			t.Errorf("%s: %d of %d events after %d", accept, len(again), len(all), half)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestCompletions(t *testing.T) {
	var heard scripted.Conversation
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		heard = c
		return runsBash(c)
	})
	body := `{"model":"coder","temperature":0.3,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"assistant","content":"hello"},
		{"role":"user","content":[{"type":"text","text":"run it"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw=="}}]}]`
	var whole struct {
		Choices []struct {
			Message struct{ Content string }
			Finish  string `json:"finish_reason"`
		}
		Usage struct {
			Total int64 `json:"total_tokens"`
		}
	}
	rec := ask(t, w, "POST", "/v1/chat/completions", body+`}`)
	if err := json.Unmarshal(rec.Body.Bytes(), &whole); err != nil || rec.Code != 200 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if whole.Choices[0].Message.Content != "It printed hello — see?" || whole.Choices[0].Finish != "stop" || whole.Usage.Total == 0 {
		t.Errorf("%s", rec.Body)
	}
	if heard.System != "be brief" || len(heard.Turns) != 5 || heard.Turns[2].Images != 1 {
		t.Errorf("the model heard %+v", heard)
	}
	rec = ask(t, w, "POST", "/v1/chat/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`)
	text := ""
	for line := range strings.SplitSeq(rec.Body.String(), "\n") {
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &chunk); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			for _, c := range chunk.Choices {
				text += c.Delta.Content
			}
		}
	}
	if !strings.HasSuffix(text, "see?") || !strings.Contains(text, "I try.") || !strings.HasSuffix(strings.TrimSpace(rec.Body.String()), "data: [DONE]") || !strings.Contains(rec.Body.String(), `"usage"`) {
		t.Errorf("%q %s", text, rec.Body)
	}
	for _, bad := range []string{`{`, `{"model":"coder"}`, `{"model":"coder","messages":[{"role":"tool","content":"x"}]}`, `{"model":"spy","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"coder","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]}`} {
		rec := ask(t, w, "POST", "/v1/chat/completions", bad)
		if rec.Code < 400 || rec.Code >= 500 || !strings.Contains(rec.Body.String(), `"error":{`) {
			t.Errorf("%s: %d %s", bad, rec.Code, rec.Body)
		}
	}
	if rec := ask(t, w, "GET", "/v1/models", ""); !strings.Contains(rec.Body.String(), `"coder"`) {
		t.Errorf("%s", rec.Body)
	}
}

// TestClientsTools has a client's tools beside the agent's own: the model calls
// one of each at once. The client makes its call, and what the agent's did is in
// the model's next request although the client never saw it.
func TestClientsTools(t *testing.T) {
	var mu sync.Mutex
	var heard []scripted.Conversation
	play := func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, c)
		switch {
		case len(c.Last().Results) > 0:
			return scripted.Answer{Text: "It rains in Bonn."}
		default:
			return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{
				{ID: "own", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}, {ID: "theirs", Name: "get_weather", Arguments: `{"city":"Bonn"}`}}}
		}
	}
	tools := `"tools":[{"type":"function","function":{"name":"get_weather","description":"Tells the weather.","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
	type message struct {
		Content   *string
		ToolCalls []struct {
			ID, Type string
			Index    *int
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	type completion struct {
		Choices []struct {
			Index          int
			Message, Delta message
			Finish         string `json:"finish_reason"`
		}
	}
	for _, streamed := range []bool{false, true} {
		heard = nil
		w, _ := withAgents(t, play)
		body := `{"model":"coder","messages":[{"role":"user","content":"How is it?"}],` + tools
		if streamed {
			body += `,"stream":true`
		}
		rec := ask(t, w, "POST", "/v1/chat/completions", body+"}")
		var got completion
		if streamed {
			var all completion
			for line := range strings.SplitSeq(rec.Body.String(), "\n") {
				if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
					var chunk completion
					if err := json.Unmarshal([]byte(data), &chunk); err != nil {
						t.Fatal(err)
					}
					for _, c := range chunk.Choices {
						if c.Delta.ToolCalls != nil || c.Finish != "" {
							all.Choices = append(all.Choices, c)
						}
					}
				}
			}
			if len(all.Choices) != 2 || all.Choices[0].Delta.ToolCalls[0].Index == nil {
				t.Fatalf("%s", rec.Body)
			}
			got.Choices = all.Choices[1:]
			got.Choices[0].Message = all.Choices[0].Delta
		} else if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		c := got.Choices[0]
		if c.Finish != "tool_calls" || len(c.Message.ToolCalls) != 1 || c.Message.ToolCalls[0].Function.Name != "get_weather" || c.Message.ToolCalls[0].Function.Arguments != `{"city":"Bonn"}` || c.Message.ToolCalls[0].Type != "function" {
			t.Fatalf("%s", rec.Body)
		}
		id := c.Message.ToolCalls[0].ID
		next := fmt.Sprintf(`{"model":"coder","messages":[{"role":"user","content":"How is it?"},
			{"role":"assistant","content":"Let me see.","tool_calls":[{"id":%q,"type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Bonn\"}"}}]},
			{"role":"tool","tool_call_id":%q,"content":"rain"}],%s}`, id, id, tools)
		got = completion{}
		rec = ask(t, w, "POST", "/v1/chat/completions", next)
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != 200 || *got.Choices[0].Message.Content != "It rains in Bonn." || got.Choices[0].Finish != "stop" {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		last := heard[len(heard)-1]
		results := map[string]string{}
		for _, r := range last.Last().Results {
			results[r.ID] = r.Text
		}
		if results["theirs"] != "rain" || !strings.Contains(results["own"], "hello") || len(heard) != 2 {
			t.Errorf("the model was told %v in %d requests", results, len(heard))
		}
		if !slices.Contains(last.Tools, "get_weather") || !slices.Contains(last.Tools, "execute_code") {
			t.Errorf("offered %v", last.Tools)
		}
		// Whoever is not their owner cannot go on from a run's calls, nor see that there are some.
		for who, key := range map[string]string{"another owner": w.Other, "an administrator": w.Admin} {
			rec = ask(t, w, "POST", "/v1/chat/completions", next, "Authorization", "Bearer "+key)
			if rec.Code != 200 || len(heard[len(heard)-1].Last().Results) != 1 {
				t.Errorf("%s: %d %s, the model was told %+v", who, rec.Code, rec.Body, heard[len(heard)-1].Last())
			}
		}
		// A call without a result.
		missing := strings.Replace(next, `{"role":"tool","tool_call_id":"`+id+`","content":"rain"}`, `{"role":"user","content":"Well?"}`, 1)
		if rec := ask(t, w, "POST", "/v1/chat/completions", missing); rec.Code != 400 || !strings.Contains(rec.Body.String(), "has no result") {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
	// The same by our own API.
	w, _ := withAgents(t, play)
	first := read[v1.ChatAnswer](t, ask(t, w, "POST", "/v1/chat", `{"agent":"coder","message":"How is it?","tools":[{"name":"get_weather","schema":{"type":"object"}}]}`), 200)
	if len(first.Run.Calls) != 1 || first.Run.Calls[0].Name != "get_weather" || first.Run.State != v1.AgentDone {
		t.Fatalf("%+v", first)
	}
	for _, results := range []string{`[{"call_id":"other","text":"x"}]`, `[{"call_id":"theirs","text":"x"},{"call_id":"theirs","text":"y"}]`} {
		if rec := ask(t, w, "POST", "/v1/chat", `{"agent":"coder","conversation_id":"`+first.ConversationID+`","results":`+results+`}`); rec.Code != 400 {
			t.Errorf("%s: %d %s", results, rec.Code, rec.Body)
		}
	}
	second := read[v1.ChatAnswer](t, ask(t, w, "POST", "/v1/chat", `{"agent":"coder","conversation_id":"`+first.ConversationID+`","results":[{"call_id":"theirs","text":"rain"}]}`), 200)
	if second.Response != "It rains in Bonn." || len(heard[len(heard)-1].Last().Results) != 2 {
		t.Errorf("%+v", second)
	}
}

// TestCompletionFields sends every field that clients have: it is honoured, or
// refused by its name.
func TestCompletionFields(t *testing.T) {
	var mu sync.Mutex // there may be several answers
	var heard scripted.Conversation
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		heard = c
		return scripted.Answer{Text: "yes", Object: "{}"}
	})
	for fields, want := range map[string]string{ // a part of the model's request; or an error that begins with !
		`"max_tokens":7`:                           `"max_tokens":7`,
		`"max_completion_tokens":9`:                `"max_tokens":9`,
		`"temperature":0.25`:                       `"temperature":0.25`,
		`"top_p":0.5`:                              `"top_p":0.5`,
		`"stop":"END"`:                             `"stop":["END"]`,
		`"stop":["a","b"]`:                         `"stop":["a","b"]`,
		`"response_format":{"type":"json_object"}`: `"name":"answer"`,
		`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`:                                     `"tool_choice":"required"`,
		`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`:                                         `"tool_choice":"none"`,
		`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`:    `"tool_choice":{"function":{"name":"f"}`,
		`"tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false`:                                  `"parallel_tool_calls":false`,
		`"user":"u","metadata":{"a":"b"},"store":false,"logprobs":false,"n":1,"presence_penalty":0,"seed":null,"top_p":null`: `"model"`,
		`"seed":7`:                             `!seed`,
		`"logprobs":true`:                      `!logprobs`,
		`"presence_penalty":0.5`:               `!presence_penalty`,
		`"logit_bias":{"50256":-100}`:          `!logit_bias`,
		`"functions":[{"name":"f"}]`:           `!functions`,
		`"modalities":["text","audio"]`:        `!modalities`,
		`"web_search_options":{}`:              `!web_search_options`,
		`"made_up":1`:                          `!made_up`,
		`"n":9`:                                `!n: 9`,
		`"response_format":{"type":"grammar"}`: `!response_format`,
		`"tools":[{"type":"web_search"}]`:      `!tools[0]`,
		`"tool_choice":"f"`:                    `!the tool to call`,
		`"temperature":3`:                      `!a temperature of 3`,
		`"stop":["a","b","c","d","e"]`:         `!5 texts`,
		`"stop":7`:                             `!stop`,
		`"sandbox":"sbx_x"`:                    `!`,
	} {
		rec := ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","messages":[{"role":"user","content":"hi"}],`+fields+`}`)
		if text, refused := strings.CutPrefix(want, "!"); refused {
			var e struct {
				Error struct{ Message, Type string }
			}
			if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code < 400 || rec.Code >= 500 || !strings.HasPrefix(e.Error.Message, text) {
				t.Errorf("%s: %d %s", fields, rec.Code, rec.Body)
			}
			continue
		}
		if rec.Code != 200 || !strings.Contains(string(heard.Raw), want) {
			t.Errorf("%s: %d %s; the model was asked %s", fields, rec.Code, rec.Body, heard.Raw)
		}
	}
	rec := ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","n":3,"messages":[{"role":"user","content":"hi"}]}`)
	if n := strings.Count(rec.Body.String(), `"finish_reason":"stop"`); n != 3 {
		t.Errorf("%d of 3 answers: %s", n, rec.Body)
	}
	rec = ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","n":2,"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	if text := rec.Body.String(); strings.Count(text, `"finish_reason":"stop"`) != 2 || !strings.Contains(text, `"index":1`) {
		t.Errorf("%s", text)
	}
	if rec := ask(t, w, "GET", "/v1/models/quiet", ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"id":"quiet"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := ask(t, w, "GET", "/v1/models/spy", ""); rec.Code != 404 || !strings.Contains(rec.Body.String(), "model_not_found") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestPlacesOfFronts has each format say where the agent's tools work, if the key may.
func TestPlacesOfFronts(t *testing.T) {
	w, _ := withAgents(t, func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "yes"} })
	_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeAgents}})
	if err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"quiet","messages":[{"role":"user","content":"hi"}],`,
		"/v1/responses":        `{"model":"quiet","input":"hi",`,
		"/v1/messages":         `{"model":"quiet","max_tokens":9,"messages":[{"role":"user","content":"hi"}],`,
	} {
		for _, field := range []string{"session", "workspace"} {
			if rec := ask(t, w, "POST", path, body+`"`+field+`":"desk"}`, "Authorization", "Bearer "+secret); rec.Code != 403 {
				t.Errorf("%s, %s, for a key that may enter no sandbox: %d %s", path, field, rec.Code, rec.Body)
			}
			if rec := ask(t, w, "POST", path, body+`"`+field+`":"desk"}`); rec.Code != 200 {
				t.Errorf("%s, %s: %d %s", path, field, rec.Code, rec.Body)
				continue
			}
			last := read[v1.List[v1.AgentRun]](t, ask(t, w, "GET", "/v1/runs?limit=1", ""), 200).Items[0]
			if got := map[string]string{"session": last.Session, "workspace": last.Workspace}; got[field] != "desk" || got["session"] == got["workspace"] {
				t.Errorf("%s, %s: the run is in %v", path, field, got)
			}
		}
	}
}

// TestMessages speaks Anthropic's format, with a tool of the client's beside the
// agent's own.
func TestMessages(t *testing.T) {
	var mu sync.Mutex
	var heard []scripted.Conversation
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, c)
		if len(c.Last().Results) > 0 {
			return scripted.Answer{Text: "It rains in Bonn."}
		}
		return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{
			{ID: "own", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}, {ID: "theirs", Name: "get_weather", Arguments: `{"city":"Bonn"}`}}}
	})
	const rest = `"max_tokens":500,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"get_weather","input_schema":{"type":"object"}}]`
	first := `{"model":"coder","messages":[{"role":"user","content":[{"type":"text","text":"How is it?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}}]}],` + rest
	type message struct {
		Content []struct {
			Type, Text, ID, Name string
			Input                json.RawMessage
		}
		Stop  string `json:"stop_reason"`
		Usage map[string]int64
	}
	whole := read[message](t, ask(t, w, "POST", "/v1/messages", first+"}"), 200)
	if len(whole.Content) != 2 || whole.Content[0].Text != "Let me see." || whole.Content[1].Name != "get_weather" || string(whole.Content[1].Input) != `{"city":"Bonn"}` || whole.Stop != "tool_use" || whole.Usage["output_tokens"] == 0 {
		t.Fatalf("%+v", whole)
	}
	if h := heard[0]; h.System != "be brief" || h.Last().Images != 1 || !strings.Contains(string(h.Raw), `"max_tokens":500`) {
		t.Errorf("the model heard %s", h.Raw)
	}
	var events []string
	streamed := map[string]string{}
	for line := range strings.SplitSeq(ask(t, w, "POST", "/v1/messages", first+`,"stream":true}`).Body.String(), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok && (len(events) == 0 || events[len(events)-1] != name) {
			events = append(events, name)
		}
		var e struct {
			Block struct{ Type, Name, ID string } `json:"content_block"`
			Delta map[string]any
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			streamed["name"] += e.Block.Name
			for _, k := range []string{"text", "partial_json", "stop_reason"} {
				if v, ok := e.Delta[k].(string); ok {
					streamed[k] += v
				}
			}
		}
	}
	if want := "message_start content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop"; strings.Join(events, " ") != want ||
		streamed["text"] != "Let me see." || streamed["partial_json"] != `{"city":"Bonn"}` || streamed["name"] != "get_weather" || streamed["stop_reason"] != "tool_use" {
		t.Errorf("%v %v", events, streamed)
	}
	id := whole.Content[1].ID
	second := read[message](t, ask(t, w, "POST", "/v1/messages", fmt.Sprintf(`{"model":"coder","messages":[{"role":"user","content":"How is it?"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"Let me see."},{"type":"tool_use","id":%q,"name":"get_weather","input":{"city":"Bonn"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":%q,"content":[{"type":"text","text":"rain"}]},{"type":"text","text":"And?"}]}],`, id, id)+rest+"}"), 200)
	last := heard[len(heard)-1]
	if second.Stop != "tool_use" && second.Stop != "end_turn" || last.Last().Text != "And?" || len(last.Turns[len(last.Turns)-2].Results) != 2 {
		t.Errorf("%+v; the model heard %s", second, last.Raw)
	}
	for fields, want := range map[string]string{
		`"top_k":5`: "top_k", `"mcp_servers":[{"url":"x"}]`: "mcp_servers", `"tools":[{"type":"web_search_20250305","name":"web_search"}]`: "tools[0]",
		`"tool_choice":{"type":"maybe"}`: "tool_choice", `"thinking":{"type":"deep"}`: "thinking", `"max_tokens":0`: "max_tokens",
	} {
		rec := ask(t, w, "POST", "/v1/messages", `{"model":"coder","max_tokens":5,"messages":[{"role":"user","content":"hi"}],`+fields+"}")
		var e struct {
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code != 400 || e.Error.Type != "invalid_request_error" || !strings.HasPrefix(e.Error.Message, want) {
			t.Errorf("%s: %d %s", fields, rec.Code, rec.Body)
		}
	}
	if n := read[map[string]int](t, ask(t, w, "POST", "/v1/messages/count_tokens", first+"}"), 200)["input_tokens"]; n < 50 {
		t.Errorf("%d tokens", n)
	}
}

// TestLeavingEndsCompletions has clients leave in the middle of a stream.
func TestLeavingEndsCompletions(t *testing.T) {
	var words atomic.Int64 // each takes 20 ms
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: strings.Repeat("so ", int(words.Load())), Pace: time.Millisecond * 20}
	})
	web := httptest.NewServer(w.Handler)
	defer web.Close()
	for fields, want := range map[string]string{"": v1.AgentCancelled, `,"background":true`: v1.AgentDone} {
		words.Store(100_000)
		if want == v1.AgentDone {
			words.Store(100)
		}
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", web.URL+"/v1/chat/completions", strings.NewReader(`{"model":"quiet","stream":true,"messages":[{"role":"user","content":"hi"}]`+fields+`}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.User)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var chunk struct{ ID string }
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk); err != nil {
			t.Fatal(err)
		}
		leave()
		resp.Body.Close()
		state := ""
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			state = read[v1.AgentRun](t, ask(t, w, "GET", "/v1/runs/"+chunk.ID, ""), 200).State
			if state == want {
				break
			}
		}
		if state != want {
			t.Errorf("%q: the run is %s, not %s", fields, state, want)
		}
		ask(t, w, "DELETE", "/v1/runs/"+chunk.ID, "")
	}
}

// TestRunsMayDoWhatTheirKeyMay begins runs with keys of several scopes, on every
// route that begins some, and looks at what the model is offered and can do.
func TestRunsMayDoWhatTheirKeyMay(t *testing.T) {
	var mu sync.Mutex
	var offered []string
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		offered = c.Tools
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: "done"}
		}
		return scripted.Answer{Calls: []scripted.Call{ // whether it is offered or not
			{ID: "c1", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`},
			{ID: "c2", Name: "run_command", Arguments: `{"command":"echo hello"}`},
			{ID: "c3", Name: "write_file", Arguments: `{"path":"/workspace/f","content":"x"}`},
		}}
	})
	sandbox := strings.TrimPrefix(aSandbox(t, w), "/v1/sandboxes/")
	for _, c := range []struct {
		scopes []engi.Scope
		runs   bool // may run code in sandboxes of their own
		enters bool // may name a sandbox
	}{
		{nil, true, true},
		{[]engi.Scope{engi.ScopeAgents}, false, false},
		{[]engi.Scope{engi.ScopeAgents, engi.ScopeRead}, false, false},
		{[]engi.Scope{engi.ScopeAgents, engi.ScopeExecutions}, true, false},
		{[]engi.Scope{engi.ScopeAgents, engi.ScopeSandboxes}, false, true},
	} {
		_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: c.scopes})
		if err != nil {
			t.Fatal(err)
		}
		count := func() int {
			all, err := w.Executions.List(t.Context(), "ann", engi.ExecutionFilter{})
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		for path, body := range map[string]string{
			"/v1/chat":              `{"message":"go"}`,
			"/v1/agents/coder/runs": `{"input":"go"}`,
			"/v1/chat/completions":  `{"model":"coder","messages":[{"role":"user","content":"go"}]}`,
		} {
			before := count()
			rec := ask(t, w, "POST", path, body, "Authorization", "Bearer "+secret)
			if rec.Code >= 300 {
				t.Fatalf("%v %s: %d %s", c.scopes, path, rec.Code, rec.Body)
			}
			if rec.Code == 202 {
				ask(t, w, "GET", "/v1/runs/"+read[v1.AgentRun](t, rec, 202).ID+"/events", "") // to its end
			}
			mu.Lock()
			if got := slices.Contains(offered, "execute_code"); got != c.runs || slices.Contains(offered, "run_command") {
				t.Errorf("%v %s: offered %v", c.scopes, path, offered)
			}
			mu.Unlock()
			if ran := count() > before; ran != c.runs {
				t.Errorf("%v %s: ran code: %t", c.scopes, path, ran)
			}
		}
		for path, body := range map[string]string{
			"/v1/chat":               `{"message":"go","sandbox_id":"` + sandbox + `"}`,
			"/v1/agents/coder/runs":  `{"input":"go","sandbox_id":"` + sandbox + `"}`,
			"/v1/agents/coder/runs#": `{"input":"go","session":"any"}`,
		} {
			path, named, _ := strings.Cut(path, "#")
			rec := ask(t, w, "POST", path, body, "Authorization", "Bearer "+secret)
			if denied := rec.Code == 403; denied == c.enters || !denied && named == "" && path != "/v1/chat" && rec.Code != 202 {
				t.Errorf("%v %s %s: %d %s", c.scopes, path, body, rec.Code, rec.Body)
			}
			if rec.Code == 202 {
				ask(t, w, "GET", "/v1/runs/"+read[v1.AgentRun](t, rec, 202).ID+"/events", "")
			}
			mu.Lock()
			if rec.Code < 300 && !(slices.Contains(offered, "run_command") && slices.Contains(offered, "write_file") && slices.Contains(offered, "execute_code") == c.runs) {
				t.Errorf("%v %s: offered %v", c.scopes, path, offered)
			}
			mu.Unlock()
		}
	}
}

// TestTypedAnswersAreNothingElse streams typed answers of agents with tools, whose
// models say more than that.
func TestTypedAnswersAreNothingElse(t *testing.T) {
	w, _ := withAgents(t, func(c scripted.Conversation) scripted.Answer {
		if len(c.Last().Results) > 0 {
			return scripted.Answer{Text: `{"city":"Bonn"}`}
		}
		return scripted.Answer{Text: "I look.", Calls: []scripted.Call{{ID: "c", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}}}
	})
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"coder","stream":true,"messages":[{"role":"user","content":"where?"}],"response_format":{"type":"json_schema","json_schema":{"name":"place","schema":` + schema + `}}}`,
		"/v1/messages":         `{"model":"coder","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"where?"}],"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}}`,
	} {
		text := ""
		for line := range strings.SplitSeq(ask(t, w, "POST", path, body).Body.String(), "\n") {
			var e struct {
				Choices []struct{ Delta struct{ Content string } }
				Delta   struct{ Text string }
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Fatalf("%v in %s", err, data)
				}
				text += e.Delta.Text
				for _, c := range e.Choices {
					text += c.Delta.Content
				}
			}
		}
		if text != `{"city":"Bonn"}` {
			t.Errorf("%s streams %q", path, text)
		}
	}
}
