package openai_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/apitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestCompletions(t *testing.T) {
	var heard scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		heard = c
		return apitest.RunBash(c)
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
	rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", body+`}`)
	if err := json.Unmarshal(rec.Body.Bytes(), &whole); err != nil || rec.Code != 200 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if whole.Choices[0].Message.Content != "It printed hello — see?" || whole.Choices[0].Finish != "stop" || whole.Usage.Total == 0 {
		t.Errorf("%s", rec.Body)
	}
	if heard.System != "be brief" || len(heard.Turns) != 5 || heard.Turns[2].Images != 1 {
		t.Errorf("the model heard %+v", heard)
	}
	rec = apitest.Ask(t, w, "POST", "/v1/chat/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`)
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
		rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", bad)
		if rec.Code < 400 || rec.Code >= 500 || !strings.Contains(rec.Body.String(), `"error":{`) {
			t.Errorf("%s: %d %s", bad, rec.Code, rec.Body)
		}
	}
	if rec := apitest.Ask(t, w, "GET", "/v1/models", ""); !strings.Contains(rec.Body.String(), `"coder"`) {
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
		w, _ := apitest.ServeAgents(t, play)
		body := `{"model":"coder","messages":[{"role":"user","content":"How is it?"}],` + tools
		if streamed {
			body += `,"stream":true`
		}
		rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", body+"}")
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
		rec = apitest.Ask(t, w, "POST", "/v1/chat/completions", next)
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
			rec = apitest.Ask(t, w, "POST", "/v1/chat/completions", next, "Authorization", "Bearer "+key)
			if rec.Code != 200 || len(heard[len(heard)-1].Last().Results) != 1 {
				t.Errorf("%s: %d %s, the model was told %+v", who, rec.Code, rec.Body, heard[len(heard)-1].Last())
			}
		}
		// A call without a result.
		missing := strings.Replace(next, `{"role":"tool","tool_call_id":"`+id+`","content":"rain"}`, `{"role":"user","content":"Well?"}`, 1)
		if rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", missing); rec.Code != 400 || !strings.Contains(rec.Body.String(), "has no result") {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
	// The same by our own API.
	w, _ := apitest.ServeAgents(t, play)
	first := apitest.Read[v1.ChatAnswer](t, apitest.Ask(t, w, "POST", "/v1/chat", `{"agent":"coder","message":"How is it?","tools":[{"name":"get_weather","schema":{"type":"object"}}]}`), 200)
	if len(first.Run.Calls) != 1 || first.Run.Calls[0].Name != "get_weather" || first.Run.State != v1.AgentDone {
		t.Fatalf("%+v", first)
	}
	for _, results := range []string{`[{"call_id":"other","text":"x"}]`, `[{"call_id":"theirs","text":"x"},{"call_id":"theirs","text":"y"}]`} {
		if rec := apitest.Ask(t, w, "POST", "/v1/chat", `{"agent":"coder","conversation_id":"`+first.ConversationID+`","results":`+results+`}`); rec.Code != 400 {
			t.Errorf("%s: %d %s", results, rec.Code, rec.Body)
		}
	}
	second := apitest.Read[v1.ChatAnswer](t, apitest.Ask(t, w, "POST", "/v1/chat", `{"agent":"coder","conversation_id":"`+first.ConversationID+`","results":[{"call_id":"theirs","text":"rain"}]}`), 200)
	if second.Response != "It rains in Bonn." || len(heard[len(heard)-1].Last().Results) != 2 {
		t.Errorf("%+v", second)
	}
}

// TestCompletionFields sends every field that clients have: it is honoured, or
// refused by its name.
func TestCompletionFields(t *testing.T) {
	var mu sync.Mutex // there may be several answers
	var heard scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
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
		`"stop":["a","b","c","d","e"]`:         `!there are 5 stop sequences`,
		`"stop":7`:                             `!stop`,
		`"sandbox":"sbx_x"`:                    `!`,
	} {
		rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","messages":[{"role":"user","content":"hi"}],`+fields+`}`)
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
	rec := apitest.Ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","n":3,"messages":[{"role":"user","content":"hi"}]}`)
	if n := strings.Count(rec.Body.String(), `"finish_reason":"stop"`); n != 3 {
		t.Errorf("%d of 3 answers: %s", n, rec.Body)
	}
	rec = apitest.Ask(t, w, "POST", "/v1/chat/completions", `{"model":"quiet","n":2,"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	if text := rec.Body.String(); strings.Count(text, `"finish_reason":"stop"`) != 2 || !strings.Contains(text, `"index":1`) {
		t.Errorf("%s", text)
	}
	if rec := apitest.Ask(t, w, "GET", "/v1/models/quiet", ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"id":"quiet"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if rec := apitest.Ask(t, w, "GET", "/v1/models/spy", ""); rec.Code != 404 || !strings.Contains(rec.Body.String(), "model_not_found") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestLeavingEndsCompletions has clients leave in the middle of a stream.
func TestLeavingEndsCompletions(t *testing.T) {
	var words atomic.Int64 // each takes 20 ms
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
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
			state = apitest.Read[v1.AgentRun](t, apitest.Ask(t, w, "GET", "/v1/runs/"+chunk.ID, ""), 200).State
			if state == want {
				break
			}
		}
		if state != want {
			t.Errorf("%q: the run is %s, not %s", fields, state, want)
		}
		apitest.Ask(t, w, "DELETE", "/v1/runs/"+chunk.ID, "")
	}
}
