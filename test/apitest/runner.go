package apitest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// newRunner returns a runner of agents, whose model's answers come from play.
func newRunner(t *testing.T, places tool.Services, play func(scripted.Conversation) scripted.Answer) *agent.Runner {
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
	tools, err := tool.Builtin(places)
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

// ServeAgents is like [Serve], with a real runner of two agents, coder and quiet. Only
// coder has tools. play returns the answers of their model.
func ServeAgents(t *testing.T, play func(scripted.Conversation) scripted.Answer) (*Fixture, *httptest.Server) {
	t.Helper()
	return Serve(t, func(o *Options) {
		o.Agents = newRunner(t, tool.Services{Executions: o.Executions, Sandboxes: o.Sandboxes}, play)
	})
}

// RunBash answers as a model that runs a program and repeats its output.
func RunBash(c scripted.Conversation) scripted.Answer {
	if c.Last().Role == "tool" {
		return scripted.Answer{Text: "It printed hello — see?"}
	}
	return scripted.Answer{Text: "I try.", Calls: []scripted.Call{{ID: "c1", Name: "execute_code", Arguments: `{"language":"bash","code":"echo hello"}`}}}
}
