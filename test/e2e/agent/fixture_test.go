// Package agent tests agents as their users use them: a server in a separate
// process, real sandboxes, and a model that follows a script behind a real
// provider's wire format.
package agent

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

// modelKey is the key that the provider accepts.
const modelKey = "canary-model-key-8d1f0c"

// A fixture is a server and its model.
type fixture struct {
	*env.Server
	model *scripted.Server

	mu   sync.Mutex
	play func(scripted.Conversation) scripted.Answer
}

const agents = `
[models]
default = "anthropic:m1"

[providers.anthropic]
url = "MODEL"
api_key_env = "ENGI_TEST_MODEL_KEY"

[[agents]]
name = "coder"
tools = ["*"]

[[agents]]
name = "explore"
system = "You find things out and change nothing."
tools = ["read_file", "list_files", "glob", "grep"]

[[agents]]
name = "code"
system = "You change files."
tools = ["read_file", "list_files", "glob", "grep", "write_file", "edit_file"]
`

func begin(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{}
	w.model = &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		w.mu.Lock()
		play := w.play
		w.mu.Unlock()
		return play(c)
	}}
	web := httptest.NewServer(w.model)
	t.Cleanup(web.Close)
	w.Server = env.Serve(t, env.ServerOptions{
		Config: strings.Replace(agents, "MODEL", web.URL, 1),
		Env:    []string{"ENGI_TEST_MODEL_KEY=" + modelKey},
		Args:   []string{"--pools", "none", "--set", "log_level=debug"},
	})
	return w
}

func (w *fixture) plays(play func(scripted.Conversation) scripted.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.play = play
}

// sandbox creates a sandbox and runs a line in it.
func (w *fixture) sandbox(t *testing.T, line string) string {
	t.Helper()
	s, err := w.CreateSandbox(t.Context(), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.sh(t, s.ID, line)
	return s.ID
}

func (w *fixture) sh(t *testing.T, sandbox, line string) string {
	t.Helper()
	r, err := w.Exec(t.Context(), sandbox, v1.ProcessRequest{Args: []string{"/bin/bash", "-c", line}})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 {
		t.Fatalf("%s: %+v\n%s%s", line, r.Exit, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// run runs an agent to its end.
func (w *fixture) run(t *testing.T, agent string, q v1.RunRequest) (v1.AgentRun, []v1.AgentUpdate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	x, err := w.StartRun(ctx, agent, q)
	if err != nil {
		t.Fatal(err)
	}
	return w.follow(t, ctx, x.ID)
}

func (w *fixture) follow(t *testing.T, ctx context.Context, id string) (v1.AgentRun, []v1.AgentUpdate) {
	t.Helper()
	var all []v1.AgentUpdate
	for e, err := range w.WatchRun(ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		if e.Run != nil {
			return *e.Run, all
		}
	}
	t.Fatalf("run %s has no end", id)
	return v1.AgentRun{}, nil
}

func call(name string, args map[string]any) scripted.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // the strings are known
	}
	return scripted.Call{Name: name, Arguments: string(raw)}
}

// said counts the model's answers in a conversation.
func said(c scripted.Conversation) (n int) {
	for _, t := range c.Turns {
		if t.Role == "assistant" {
			n++
		}
	}
	return n
}
