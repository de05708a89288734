package dialect_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { http.DefaultClient.CloseIdleConnections() }))
}

// TestPlacesOfFronts has each format say where the agent's tools work, if the key may.
func TestPlacesOfFronts(t *testing.T) {
	w, _ := apitest.ServeAgents(t, func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "yes"} })
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
			if rec := apitest.Ask(t, w, "POST", path, body+`"`+field+`":"desk"}`, "Authorization", "Bearer "+secret); rec.Code != 403 {
				t.Errorf("%s, %s, for a key that may enter no sandbox: %d %s", path, field, rec.Code, rec.Body)
			}
			if rec := apitest.Ask(t, w, "POST", path, body+`"`+field+`":"desk"}`); rec.Code != 200 {
				t.Errorf("%s, %s: %d %s", path, field, rec.Code, rec.Body)
				continue
			}
			last := apitest.Read[v1.List[v1.AgentRun]](t, apitest.Ask(t, w, "GET", "/v1/runs?limit=1", ""), 200).Items[0]
			if got := map[string]string{"session": last.Session, "workspace": last.Workspace}; got[field] != "desk" || got["session"] == got["workspace"] {
				t.Errorf("%s, %s: the run is in %v", path, field, got)
			}
		}
	}
}

// TestTypedAnswersAreNothingElse streams typed answers of agents with tools, whose
// models say more than that.
func TestTypedAnswersAreNothingElse(t *testing.T) {
	w, _ := apitest.ServeAgents(t, func(c scripted.Conversation) scripted.Answer {
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
		for line := range strings.SplitSeq(apitest.Ask(t, w, "POST", path, body).Body.String(), "\n") {
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
