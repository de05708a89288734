// Package clients tests engi's interfaces for other APIs of language models with
// unchanged third-party clients: each uses an agent as a model, with a tool
// of its own.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

// play is a model that calls the client's tool once, if there is one.
func play(c scripted.Conversation) scripted.Answer {
	switch {
	case c.Last().Text == "Wait.":
		return scripted.Answer{Text: strings.Repeat("so ", 1000), Pace: 100 * time.Millisecond}
	case slices.Contains(c.Tools, "final_answer") && strings.Contains(c.Last().Text, "rain"): // smolagents sends results as a user
		return scripted.Answer{Calls: []scripted.Call{{Name: "final_answer", Arguments: `{"answer":"It is rain."}`}}}
	case c.Last().Text == "Read.":
		return scripted.Answer{Text: fmt.Sprintf("%d document", c.Last().Images)}
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

// run runs a client and compares its output.
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
	env.Slow(t)
	run(t, settings(t, "js/node_modules/openai"), map[string]any{
		"models": []any{"coder", "plain", "explore", "code", "ui", "built-in:words-1"}, "model": "coder",
		"openaiTools": "It is rain.", "openaiStream": "get_weather" + bonn, "openaiUsage": true, "openaiParse": map[string]any{"city": "Bonn"},
		"openai_refused": "400 null invalid_request_error", "openai_missing": "404 model_not_found invalid_request_error", "openai_key": "AuthenticationError invalid_api_key",
		"anthropicTools": "It is rain.", "anthropicStream": "get_weather" + bonn, "anthropicStop": "tool_use", "anthropicCount": true, "anthropic_missing": "404 NotFoundError",
		"responsesTools": "It is rain.", "responsesItems": "It is rain.", "responsesStream": []any{"Let me see.", "get_weather" + bonn}, "responsesAgain": true,
		"responsesEvents": []any{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done",
			"response.content_part.done", "response.output_item.done", "response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
			"response.output_item.done", "response.completed"},
		"responsesParse": map[string]any{"city": "Bonn"}, "responsesGet": "It is rain.", "responsesGone": 404., "responsesCancel": []any{"in_progress", "cancelled"}, "responsesRefused": "400 truncation",
		"embeddings": []any{384., 384.},
		"aiText":     "It is rain.", "aiStream": "Let me see.It is rain.", "aiResponses": "It is rain.", "aiResponsesStream": "Let me see.It is rain.",
		"asked": []any{"Bonn", "Bonn", "Bonn", "Bonn", "Bonn", "Bonn", "Bonn"},
	}, "node", "js/client.mjs")
}

func TestPython(t *testing.T) {
	env.Slow(t)
	run(t, settings(t, "py/.venv/bin/python"), map[string]any{
		"openai_tools": "It is rain.", "openai_parse": "Bonn", "openai_stream": bonn, "openai_key": "invalid_api_key", "anthropic_tools": "It is rain.",
		"responses_tools": "It is rain.", "responses_parse": "Bonn", "responses_stream": bonn, "responses_pdf": "1 document", "embeddings": []any{384., 384.},
		"openai_agents_responses": "It is rain.", "pydantic_ai_responses": "It is rain.",
		"openai_agents": "It is rain.", "pydantic_ai_openai": "It is rain.", "pydantic_ai_anthropic": "It is rain.",
		"asked": []any{"Bonn", "Bonn", "Bonn", "Bonn", "Bonn", "Bonn", "Bonn", "Bonn"},
	}, "py/.venv/bin/python", "py/client.py")
}

// TestFrameworks runs the frameworks that need an older openai.
func TestFrameworks(t *testing.T) {
	env.Slow(t)
	run(t, settings(t, "frameworks/.venv/bin/python"), map[string]any{
		"langchain": "It is rain.", "langchain_responses": "It is rain.", "langchain_stream": "Let me see.", "langchain_typed": "Bonn", "langchain_embeddings": []any{384., 384.},
		"instructor": "Bonn", "litellm": "It is rain.", "litellm_responses": "It is rain.", "smolagents": "It is rain.",
		"asked": []any{"Bonn", "Bonn", "Bonn", "Bonn", "Bonn"},
	}, "frameworks/.venv/bin/python", "frameworks/client.py")
}
