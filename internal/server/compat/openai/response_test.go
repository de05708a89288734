package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// A response is one as clients read it.
type response struct {
	ID, Object, Status, Model string
	Output                    []responseItem
	Error                     *struct{ Code, Message string }
	Incomplete                *struct{ Reason string } `json:"incomplete_details"`
	Usage                     *struct {
		Total int64 `json:"total_tokens"`
	}
	Previous     *string `json:"previous_response_id"`
	Instructions *string
	Metadata     map[string]string
	Tools        []map[string]any
}

type responseItem struct {
	Type, ID, Status, Phase, Role, Name, Arguments string
	CallID                                         string                  `json:"call_id"`
	Content                                        []struct{ Text string } `json:"content"`
	Summary                                        []struct{ Text string } `json:"summary"`
}

// said is what a response says, with what it calls, phases in parentheses.
func (r response) said() string {
	var all []string
	for _, item := range r.Output {
		text := item.Name + item.Arguments
		for _, c := range append(item.Content, item.Summary...) {
			text += c.Text
		}
		all = append(all, fmt.Sprintf("%s(%s) %s", item.Type, item.Phase, text))
	}
	return strings.Join(all, "; ")
}

// A responseEvent is an event of a streamed response.
type responseEvent struct {
	Type         string
	Sequence     int `json:"sequence_number"`
	Delta, Text  string
	ItemID       string `json:"item_id"`
	Index        *int   `json:"output_index"`
	ContentIndex *int   `json:"content_index"`
	Item         responseItem
	Response     response
	Message      string
}

func responseEvents(t *testing.T, body string) (all []responseEvent) {
	t.Helper()
	name := ""
	for line := range strings.SplitSeq(body, "\n") {
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = n
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e responseEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Type != name {
			t.Fatalf("%v in event %s %s", err, name, data)
		}
		all = append(all, e)
	}
	return all
}

// accumulate follows a stream as clients do, and returns the last response. Events
// have the order, indexes and IDs that clients insist on.
func accumulate(t *testing.T, all []responseEvent) (last response) {
	t.Helper()
	items, texts := map[int]responseItem{}, map[string]string{}
	done := map[string]responseItem{}
	for i, e := range all {
		if e.Sequence != i {
			t.Errorf("event %d, %s, has sequence number %d", i, e.Type, e.Sequence)
		}
		switch e.Type {
		case "response.output_item.added":
			if *e.Index != len(items) || e.Item.ID == "" || e.Item.Status != "in_progress" {
				t.Errorf("item %d is %+v", *e.Index, e.Item)
			}
			items[*e.Index] = e.Item
		case "response.output_item.done":
			if items[*e.Index].ID != e.Item.ID {
				t.Errorf("item %d is %+v, then %+v", *e.Index, items[*e.Index], e.Item)
			}
			done[e.Item.ID] = e.Item
		case "response.output_text.delta", "response.reasoning_summary_text.delta", "response.function_call_arguments.delta":
			if items[*e.Index].ID != e.ItemID {
				t.Errorf("a piece of %s in item %d, %s", e.ItemID, *e.Index, items[*e.Index].ID)
			}
			texts[e.ItemID] += e.Delta
		case "response.output_text.done":
			if texts[e.ItemID] != e.Text || e.ContentIndex == nil {
				t.Errorf("pieces %q, text %q", texts[e.ItemID], e.Text)
			}
		}
	}
	first, end := all[0], all[len(all)-1]
	if first.Type != "response.created" || all[1].Type != "response.in_progress" || first.Response.Status != "in_progress" || end.Response.ID != first.Response.ID {
		t.Errorf("it begins with %+v and ends with %+v", first, end)
	}
	for _, item := range end.Response.Output {
		if diff := cmp.Diff(done[item.ID], item); diff != "" {
			t.Errorf("an item of the response is not that of its events: %s", diff)
		}
	}
	return end.Response
}

// TestResponses speaks OpenAI's responses, with a tool of the client's beside the
// agent's own. What is streamed, what comes whole and what is got later is the same.
func TestResponses(t *testing.T) {
	var mu sync.Mutex
	var heard []scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, c)
		switch last := c.Last(); {
		case last.Text == "And Cologne?":
			return scripted.Answer{Text: "The same."}
		case len(last.Results) == 2:
			return scripted.Answer{Text: "It rains in Bonn."}
		case len(last.Results) == 1:
			return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{
				{ID: "own2", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}, {ID: "theirs", Name: "get_weather", Arguments: `{"city":"Bonn"}`}}}
		}
		return scripted.Answer{Text: "First this.", Calls: []scripted.Call{{ID: "own", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}}}
	})
	const rest = `"model":"coder","instructions":"be brief","metadata":{"a":"b"},"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object"},"strict":true}]`
	const want = `message(commentary) First this.; message(commentary) Let me see.; function_call() get_weather{"city":"Bonn"}`
	whole := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"How is it?"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw=="}]}],`+rest+`}`), 200)
	if whole.said() != want || whole.Status != "completed" || whole.Object != "response" || whole.Model != "coder" || whole.Usage.Total == 0 || !strings.HasPrefix(whole.ID, "resp_") ||
		*whole.Instructions != "be brief" || whole.Metadata["a"] != "b" || whole.Tools[0]["name"] != "get_weather" || whole.Error != nil || whole.Previous != nil {
		t.Fatalf("%+v", whole)
	}
	if heard[0].System != "be brief" || heard[0].Last().Images != 1 {
		t.Errorf("the model heard %s", heard[0].Raw)
	}
	if got := apitest.Read[response](t, apitest.Ask(t, w, "GET", "/v1/responses/"+whole.ID, ""), 200); cmp.Diff(whole, got) != "" {
		t.Errorf("made and got: %s", cmp.Diff(whole, got))
	}
	streamed := accumulate(t, responseEvents(t, apitest.Ask(t, w, "POST", "/v1/responses", `{"stream":true,"input":"How is it?",`+rest+`}`).Body.String()))
	if streamed.said() != want {
		t.Errorf("streamed %+v", streamed)
	}
	again := responseEvents(t, apitest.Ask(t, w, "GET", "/v1/responses/"+streamed.ID+"?stream=true", "").Body.String())
	if diff := cmp.Diff(streamed, accumulate(t, again)); diff != "" {
		t.Errorf("streamed again: %s", diff)
	}
	if late := responseEvents(t, apitest.Ask(t, w, "GET", "/v1/responses/"+streamed.ID+"?stream=true&starting_after=4", "").Body.String()); len(late) != len(again)-5 || late[0].Sequence != 5 {
		t.Errorf("%d of %d events after the fifth", len(late), len(again))
	}

	// The call's result goes on by the response's ID, and by the items alone.
	call := whole.Output[2].CallID
	output := fmt.Sprintf(`{"type":"function_call_output","call_id":%q,"output":"rain"}`, call)
	first := apitest.Read[v1.AgentRun](t, apitest.Ask(t, w, "GET", "/v1/runs/run_"+whole.ID[5:], ""), 200)
	next := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"previous_response_id":"`+whole.ID+`","input":[`+output+`],`+rest+`}`), 200)
	if next.said() != "message(final_answer) It rains in Bonn." || *next.Previous != whole.ID {
		t.Errorf("%+v", next)
	}
	for _, r := range heard[len(heard)-1].Last().Results {
		if r.ID == "theirs" && r.Text != "rain" || r.ID == "own2" && !strings.Contains(r.Text, "hello") {
			t.Errorf("the model was told %+v", r)
		}
	}
	if x := apitest.Read[v1.AgentRun](t, apitest.Ask(t, w, "GET", "/v1/runs/run_"+next.ID[5:], ""), 200); x.ConversationID != first.ConversationID {
		t.Errorf("conversation %s goes on as %s", first.ConversationID, x.ConversationID)
	}
	items := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", fmt.Sprintf(`{"input":[{"role":"user","content":"How is it?"},{"type":"reasoning","id":"rs_1","summary":[]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Let me see."}]},{"type":"function_call","call_id":%q,"name":"get_weather","arguments":"{}"},%s],`, call, output)+rest+`}`), 200)
	if items.said() != "message(final_answer) It rains in Bonn." || len(heard[len(heard)-1].Last().Results) != 2 {
		t.Errorf("%+v", items)
	}
	// So it does by references to items, as clients send them that know what is stored.
	referred := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", fmt.Sprintf(`{"input":[{"role":"user","content":"How is it?"},{"type":"item_reference","id":%q},{"type":"item_reference","id":%q},
		{"type":"function_call","id":%q,"call_id":%q,"name":"get_weather","arguments":"{}"},%s],`, whole.Output[0].ID, whole.Output[1].ID, whole.Output[2].ID, call, output)+rest+`}`), 200)
	if referred.said() != "message(final_answer) It rains in Bonn." || len(heard[len(heard)-1].Last().Results) != 2 {
		t.Errorf("%+v", referred)
	}
	for key, code := range map[string]int{w.Other: 404, w.User: 400} {
		body := `{"input":[{"type":"item_reference","id":"` + whole.Output[0].ID + `"},{"role":"user","content":"x"}],`
		if key == w.User {
			body += `"previous_response_id":"` + whole.ID + `",`
		}
		if rec := apitest.Ask(t, w, "POST", "/v1/responses", body+rest+`}`, "Authorization", "Bearer "+key); rec.Code != code {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
	// A response can go on more than once.
	for range 2 {
		fork := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"previous_response_id":"`+next.ID+`","input":"And Cologne?",`+rest+`}`), 200)
		if n := len(heard[len(heard)-1].Turns); fork.said() != "message(final_answer) The same." || n != 7 {
			t.Errorf("%+v after %d turns", fork, n)
		}
	}
	// A call without a result.
	if rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"previous_response_id":"`+whole.ID+`","input":"Well?",`+rest+`}`); rec.Code != 400 || !strings.Contains(rec.Body.String(), "has no result") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	// Nobody but its owner can go on, nor see that there is one.
	for who, key := range map[string]string{"another owner": w.Other, "an administrator": w.Admin} {
		rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"previous_response_id":"`+next.ID+`","input":"x",`+rest+`}`, "Authorization", "Bearer "+key)
		if rec.Code != 404 || !strings.Contains(rec.Body.String(), `"code":"previous_response_not_found"`) || !strings.Contains(rec.Body.String(), `"param":"previous_response_id"`) {
			t.Errorf("%s: %d %s", who, rec.Code, rec.Body)
		}
	}
	// Runs of other kinds are no responses.
	chat := apitest.Read[v1.ChatAnswer](t, apitest.Ask(t, w, "POST", "/v1/chat", `{"message":"x"}`), 200)
	apitest.Refused(t, apitest.Ask(t, w, "GET", "/v1/responses/resp_"+chat.Run.ID[4:], ""), 404, engi.NotFound)

	deleted := apitest.Read[map[string]any](t, apitest.Ask(t, w, "DELETE", "/v1/responses/"+next.ID, ""), 200)
	if deleted["deleted"] != true || deleted["id"] != next.ID {
		t.Errorf("%v", deleted)
	}
	for path, method := range map[string]string{"/v1/responses/" + next.ID: "GET", "/v1/runs/run_" + next.ID[5:]: "GET", "/v1/runs/run_" + next.ID[5:] + "/messages": "GET", "/v1/responses/" + next.ID + "#": "DELETE"} {
		path, _, _ := strings.Cut(path, "#")
		apitest.Refused(t, apitest.Ask(t, w, method, path, ""), 404, engi.NotFound)
	}
	if rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"previous_response_id":"`+next.ID+`","input":"x",`+rest+`}`); rec.Code != 404 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestResponsesThatAreNotStored leaves nothing of them.
func TestResponsesThatAreNotStored(t *testing.T) {
	w, _ := apitest.ServeAgents(t, func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "yes"} })
	for _, fields := range []string{"", `,"stream":true`} {
		rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","store":false,"input":"hi"`+fields+`}`)
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), "yes") {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		if list := apitest.Read[v1.List[v1.AgentRun]](t, apitest.Ask(t, w, "GET", "/v1/runs", ""), 200); len(list.Items) != 0 {
			t.Errorf("%+v is left", list.Items)
		}
	}
	// What can be asked for again is kept for that, and nothing else.
	for range 2 {
		r := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","store":false,"input":"hi"}`, "Idempotency-Key", "k"), 200)
		apitest.Refused(t, apitest.Ask(t, w, "GET", "/v1/responses/"+r.ID, ""), 404, engi.NotFound)
	}
	if list := apitest.Read[v1.List[v1.AgentRun]](t, apitest.Ask(t, w, "GET", "/v1/runs", ""), 200); len(list.Items) != 1 {
		t.Errorf("%+v", list.Items)
	}
}

// TestResponsesInTheBackground go on without their client, until they are cancelled.
func TestResponsesInTheBackground(t *testing.T) {
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		if c.Last().Text == "hi" {
			return scripted.Answer{Text: "yes"}
		}
		return scripted.Answer{Text: strings.Repeat("so ", 1000), Pace: 20 * time.Millisecond}
	})
	begun := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","background":true,"input":"long"}`), 200)
	if begun.Status != "in_progress" || len(begun.Output) != 0 || begun.Usage != nil {
		t.Errorf("%+v", begun)
	}
	if got := apitest.Read[response](t, apitest.Ask(t, w, "GET", "/v1/responses/"+begun.ID, ""), 200); got.Status != "in_progress" {
		t.Errorf("%+v", got)
	}
	if rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","input":"x","previous_response_id":"`+begun.ID+`"}`); rec.Code != 409 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	for range 2 {
		if got := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses/"+begun.ID+"/cancel", ""), 200); got.Status != "cancelled" {
			t.Errorf("%+v", got)
		}
	}
	if all := responseEvents(t, apitest.Ask(t, w, "GET", "/v1/responses/"+begun.ID+"?stream=true", "").Body.String()); all[len(all)-1].Type != "response.incomplete" || accumulate(t, all).Status != "cancelled" {
		t.Errorf("%+v", all[len(all)-1])
	}
	quick := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","input":"hi"}`), 200)
	apitest.Refused(t, apitest.Ask(t, w, "POST", "/v1/responses/"+quick.ID+"/cancel", ""), 400, engi.Invalid)
	// A repeated key gets what came of it.
	for _, want := range []string{"in_progress", "completed"} {
		got := apitest.Read[response](t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","background":true,"input":"hi"}`, "Idempotency-Key", "k"), 200)
		if got.Status != want || (want == "completed") != (got.said() == "message(final_answer) yes") {
			t.Errorf("%s: %+v", want, got)
		}
		apitest.Ask(t, w, "GET", "/v1/responses/"+got.ID+"?stream=true", "") // to its end
	}
	// A client that leaves one in the foreground ends it.
	ctx, leave := context.WithCancel(t.Context())
	running := func() []v1.AgentRun {
		all := apitest.Read[v1.List[v1.AgentRun]](t, apitest.Ask(t, w, "GET", "/v1/runs", ""), 200).Items
		return slices.DeleteFunc(all, func(x v1.AgentRun) bool { return x.State != v1.AgentRunning })
	}
	r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/responses", strings.NewReader(`{"model":"quiet","stream":true,"input":"long"}`))
	r.Header.Set("Authorization", "Bearer "+w.User)
	var request sync.WaitGroup
	request.Go(func() { w.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	apitest.Until(t, "the run goes on", func() bool { return len(running()) > 0 })
	leave()
	request.Wait()
	if all := running(); len(all) > 0 {
		t.Errorf("%+v go on", all)
	}
}

// TestResponsesThatEndBadly has providers fail, refuse and stop.
func TestResponsesThatEndBadly(t *testing.T) {
	for name, c := range map[string]struct {
		answer scripted.Answer
		fields string
		end    string // the last event
		whole  int    // the status of the answer that is not streamed
	}{
		"failed":  {scripted.Answer{Status: 400, Text: "no"}, "", "response.failed", 400},
		"limited": {scripted.Answer{Status: 429, Text: "slow down"}, "", "response.failed", 429},
		"cut":     {scripted.Answer{Text: "hello", Cut: 2}, "", "response.failed", 503},
	} {
		w, _ := apitest.ServeAgents(t, func(scripted.Conversation) scripted.Answer { return c.answer })
		all := responseEvents(t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","stream":true,"input":"hi"`+c.fields+`}`).Body.String())
		last := all[len(all)-1]
		if last.Type != c.end || last.Response.Status != "failed" || last.Response.Error == nil || last.Response.Error.Message == "" || (last.Response.Error.Code == "rate_limit_exceeded") != (name == "limited") {
			t.Errorf("%s: %+v", name, last)
		}
		accumulate(t, all)
		if got := apitest.Read[response](t, apitest.Ask(t, w, "GET", "/v1/responses/"+last.Response.ID, ""), 200); got.Status != "failed" || got.Error == nil {
			t.Errorf("%s: %+v", name, got)
		}
		rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","input":"hi"}`)
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code != c.whole || e.Error.Message == "" {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	// An attempt that broke off is not part of the answer, though it was streamed.
	n := 0
	w, _ := apitest.ServeAgents(t, func(scripted.Conversation) scripted.Answer {
		if n++; n == 1 {
			return scripted.Answer{Text: "broken off in the middle", Cut: 2}
		}
		return scripted.Answer{Text: "whole"}
	})
	all := responseEvents(t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","stream":true,"input":"hi"}`).Body.String())
	if end := accumulate(t, all); end.said() != "message(final_answer) whole" {
		t.Errorf("%+v", end)
	}
}

// TestResponseFields sends every field that clients have: it is honoured, or refused
// by its name.
func TestResponseFields(t *testing.T) {
	var heard scripted.Conversation
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		heard = c
		return scripted.Answer{Text: "yes", Object: "{}"}
	})
	const tool = `"tools":[{"type":"function","name":"f"}]`
	for fields, want := range map[string]string{ // a part of the model's request; or the field of an error, after !
		`"max_output_tokens":7`:                                `"max_tokens":7`,
		`"temperature":0.25`:                                   `"temperature":0.25`,
		`"top_p":0.5`:                                          `"top_p":0.5`,
		`"text":{"format":{"type":"json_object"}}`:             `"name":"answer"`,
		tool + `,"tool_choice":"required"`:                     `"tool_choice":"required"`,
		tool + `,"tool_choice":{"type":"function","name":"f"}`: `"tool_choice":{"function":{"name":"f"}`,
		tool + `,"parallel_tool_calls":false`:                  `"parallel_tool_calls":false`,
		`"input":[{"role":"developer","content":"be brief"},{"role":"user","content":"hi"}]`:                                   `be brief`,
		`"user":"u","prompt_cache_key":"k","truncation":"disabled","include":[],"service_tier":"auto","conversation":null`:     `"model"`,
		`"reasoning":{"effort":null,"summary":"auto"},"text":null,"stream_options":{"include_obfuscation":false},"store":true`: `"model"`,
		`"include":["reasoning.encrypted_content"]`:                                                                            `!include`,
		`"conversation":"conv_1"`:                             `!conversation`,
		`"prompt":{"id":"p"}`:                                 `!prompt`,
		`"truncation":"auto"`:                                 `!truncation`,
		`"max_tool_calls":3`:                                  `!max_tool_calls`,
		`"top_logprobs":3`:                                    `!top_logprobs`,
		`"service_tier":"flex"`:                               `!service_tier`,
		`"stop":"x"`:                                          `!stop`,
		`"max_output_tokens":0`:                               `!max_output_tokens`,
		`"stream_options":{"include_obfuscation":true}`:       `!stream_options`,
		`"text":{"verbosity":"low"}`:                          `!text`,
		`"text":{"format":{"type":"grammar"}}`:                `!text`,
		`"reasoning":{"summary":"all"}`:                       `!reasoning`,
		`"background":true,"store":false`:                     `!background`,
		`"tools":[{"type":"web_search"}]`:                     `!tools[0]`,
		`"tool_choice":{"type":"file_search"}`:                `!tool_choice`,
		`"metadata":{"a":"` + strings.Repeat("x", 513) + `"}`: `!metadata`,
		`"input":[]`:                                          `!input`,
		`"input":7`:                                           `!input`,
		`"input":[{"type":"item_reference","id":"msg_1"}]`:    `!input[0]`,
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":"http://x.example/a.png"}]}]`: `!input[0]`,
		`"input":[{"role":"user","content":[{"type":"input_file","file_id":"file_1"}]}]`:                    `!input[0]`,
		`"previous_response_id":"resp_1"`: `!previous_response_id`,
	} {
		rec := apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"quiet","input":"hi",`+fields+`}`)
		if param, refused := strings.CutPrefix(want, "!"); refused {
			var e struct {
				Error struct{ Message, Type, Param string }
			}
			if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || rec.Code < 400 || rec.Code >= 500 || e.Error.Param != param || e.Error.Type != "invalid_request_error" {
				t.Errorf("%s: %d %s", fields, rec.Code, rec.Body)
			}
			continue
		}
		if rec.Code != 200 || !strings.Contains(string(heard.Raw), want) {
			t.Errorf("%s: %d %s; the model was asked %s", fields, rec.Code, rec.Body, heard.Raw)
		}
	}
}

// TestTypedResponses streams a typed answer of an agent with tools, whose model says
// more than that.
func TestTypedResponses(t *testing.T) {
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
		if len(c.Last().Results) > 0 {
			return scripted.Answer{Text: `{"city":"Bonn"}`}
		}
		return scripted.Answer{Text: "I look.", Calls: []scripted.Call{{ID: "c", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}}}
	})
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	r := accumulate(t, responseEvents(t, apitest.Ask(t, w, "POST", "/v1/responses", `{"model":"coder","stream":true,"input":"where?","text":{"format":{"type":"json_schema","name":"place","schema":`+schema+`}}}`).Body.String()))
	if r.said() != `message(final_answer) {"city":"Bonn"}` {
		t.Errorf("%+v", r)
	}
}
