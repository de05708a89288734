// Package clients tests engi's fronts for other APIs of language models with
// the clients of others, unchanged: each uses an agent as a model, with a tool
// of its own.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/agent/llm/scripted"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/test/env"
)

// play is a model that calls the client's tool once, if there is one.
func play(c scripted.Conversation) scripted.Answer {
	switch {
	case c.Schema != nil:
		return scripted.Answer{Object: `{"city":"Bonn"}`}
	case len(c.Last().Results) > 0:
		return scripted.Answer{Text: "It is " + c.Last().Results[0].Text + "."}
	case slices.Contains(c.Tools, "get_weather"):
		return scripted.Answer{Text: "Let me see.", Calls: []scripted.Call{{Name: "get_weather", Arguments: `{"city":"Bonn"}`}}}
	}
	return scripted.Answer{Text: "Who knows?"}
}

const agents = `
[models]
default = "openai:m1"

[providers.openai]
url = "MODEL"

[[agents]]
name = "coder"

[[agents]]
name = "plain"
`

func settings(t *testing.T, needs string) config.Config {
	t.Helper()
	env.Machine(t)
	if _, err := os.Stat(needs); err != nil {
		env.Need(t, "the packages below "+needs+" (make packages)")
	}
	web := httptest.NewServer(&scripted.Server{Play: play})
	t.Cleanup(web.Close)
	return env.Config(t, strings.ReplaceAll(agents, "MODEL", web.URL+"/v1"))
}

// run runs a client and compares what it prints.
func run(t *testing.T, c config.Config, want map[string]any, name string, args ...string) {
	t.Helper()
	n := env.Run(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append(args, n.Endpoint().URL, n.AdminKey())...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

const bonn = `{"city":"Bonn"}`

func TestJavaScript(t *testing.T) {
	run(t, settings(t, "js/node_modules/openai"), map[string]any{
		"models": []any{"coder", "plain", "explore", "code"}, "model": "coder",
		"openaiTools": "It is rain.", "openaiStream": "get_weather" + bonn, "openaiUsage": true, "openaiParse": map[string]any{"city": "Bonn"},
		"openai_refused": "400 null invalid_request_error", "openai_missing": "404 model_not_found invalid_request_error", "openai_key": "AuthenticationError invalid_api_key",
		"anthropicTools": "It is rain.", "anthropicStream": "get_weather" + bonn, "anthropicStop": "tool_use", "anthropicCount": true, "anthropic_missing": "404 NotFoundError",
		"aiText": "It is rain.", "aiStream": "Let me see.It is rain.",
		"asked": []any{"Bonn", "Bonn", "Bonn", "Bonn"},
	}, "node", "js/client.mjs")
}

func TestPython(t *testing.T) {
	run(t, settings(t, "py/.venv/bin/python"), map[string]any{
		"openai_tools": "It is rain.", "openai_parse": "Bonn", "openai_stream": bonn, "openai_key": "invalid_api_key", "anthropic_tools": "It is rain.",
		"openai_agents": "It is rain.", "pydantic_ai_openai": "It is rain.", "pydantic_ai_anthropic": "It is rain.",
		"asked": []any{"Bonn", "Bonn", "Bonn", "Bonn", "Bonn"},
	}, "py/.venv/bin/python", "py/client.py")
}
