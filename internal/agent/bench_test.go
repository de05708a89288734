package agent_test

import (
	"context"
	"net/http"
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

// BenchmarkStep measures engi's part of a step of a run: the request, the tool
// call and the record on disk. The model answers at once, in this process.
func BenchmarkStep(b *testing.B) {
	db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	play := func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: "go on", Calls: []scripted.Call{{Name: "nothing", Arguments: "{}"}}}
	}
	models, err := llm.New(llm.Options{Default: "openai:x", Providers: map[string]llm.Provider{"openai": {URL: "http://model.invalid", Client: &http.Client{Transport: &scripted.Server{Play: play}}}}})
	if err != nil {
		b.Fatal(err)
	}
	nothing, err := tool.New("nothing", "Does nothing.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Result{Text: "done"}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	const steps = 10
	r, err := agent.New(agent.Options{Agents: []engi.AgentSpec{{Name: "a", Tools: []string{"*"}, Steps: steps}}, Models: models.Model, Tools: []tool.Tool{nothing}, Store: store.Agents(db), Results: store.AgentResults(db), Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- r.Run(ctx, func() { close(ready) }) }()
	<-ready
	defer func() { cancel(); <-done }()
	began, n := time.Now(), 0
	for b.Loop() {
		x, err := r.Start(ctx, engi.RunSpec{Owner: "ann", Input: "go"})
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range r.Watch(ctx, "ann", x.ID, 0) {
			if err != nil {
				b.Fatal(err)
			}
		}
		n += steps
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(n), "ms/step")
}
