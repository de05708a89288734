package bench

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// TestAgents counts a gap for every step but the first of a run, and a failure
// for runs that do not take all steps.
func TestAgents(t *testing.T) {
	m, err := NewModel()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	models, err := llm.New(llm.Options{Default: "bench:m", Providers: map[string]llm.Provider{"bench": {URL: m.URL + "/v1"}}})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := tool.Builtin(tool.Services{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := agent.New(agent.Options{Agents: []engi.AgentSpec{{Name: "bench", Tools: []string{"*"}}}, Models: models.Model, Tools: tools, Store: store.Agents(db), Results: store.AgentResults(db), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- o.Run(ctx, func() { close(ready) }) }()
	<-ready
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if got := Agents(t.Context(), m, o, 3); got.Steps != 27 || got.Failures != 0 || got.Ms.P50 <= 0 || got.Bare.P50 <= 0 || got.Ratio < 1 {
		t.Errorf("%+v", got)
	}
	m.Close()
	if got := Agents(t.Context(), m, o, 1); got.Failures == 0 || got.Steps != 0 {
		t.Errorf("without a model: %+v", got)
	}
}
