package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestChat(t *testing.T) {
	w, _ := apitest.ServeAgents(t, apitest.RunBash)
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

func (spending) ModelUsage(_ context.Context, viewer engi.Viewer, since time.Time) (all []engi.ModelUsage, _ error) {
	x := engi.ModelUsage{Owner: "ann", Day: time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC), Model: "openai:a", Tokens: engi.Tokens{Input: 7, Output: 5, Cost: 1_500_000, Calls: 2}}
	if viewer == engi.Everyone {
		all = append(all, x)
	}
	x.Owner = viewer.Owner()
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
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
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
	w, srv := apitest.ServeAgents(t, apitest.RunBash)
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

// TestRunsMayDoWhatTheirKeyMay begins runs with keys of several scopes, on every
// route that begins some, and looks at what the model is offered and can do.
func TestRunsMayDoWhatTheirKeyMay(t *testing.T) {
	var mu sync.Mutex
	var offered []string
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
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
