package agents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent"
	"github.com/engi-dev/engi/agent/budget"
	"github.com/engi-dev/engi/agent/llm/scripted"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/node/agents"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/store"
)

// TestSwitch switches the provider with one value of the configuration: an
// agent that uses a tool, streams and answers in a form does the same with all
// six.
func TestSwitch(t *testing.T) {
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		switch {
		case c.Schema != nil:
			return scripted.Answer{Object: `{"lines":2}`}
		case c.Last().Role == "tool":
			return scripted.Answer{Text: "Two lines."}
		}
		return scripted.Answer{Text: "I read on.", Calls: []scripted.Call{{Name: "read_result", Arguments: `{"call":"none"}`}}}
	}}
	web := httptest.NewServer(model)
	defer web.Close()
	var text strings.Builder
	providers := []string{"openai", "anthropic", "gemini", "ollama", "mistral", "groq"}
	for _, p := range providers {
		fmt.Fprintf(&text, "[providers.%s]\nurl = %q\napi_key_env = \"KEY_OF_%s\"\n", p, web.URL+"/"+p, strings.ToUpper(p))
		t.Setenv("KEY_OF_"+strings.ToUpper(p), "key-of-"+p)
	}
	text.WriteString("[[agents]]\nname = \"zoe\"\ntools = [\"read_result\"]\n[[agents]]\nname = \"al\"\n")
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range providers {
		t.Run(p, func(t *testing.T) {
			c, _, err := config.Load(config.From{File: file, Env: []string{"HOME=" + t.TempDir(), "ENGI_MODELS_DEFAULT=" + p + ":m1"}})
			if err != nil {
				t.Fatal(err)
			}
			db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			log := slog.New(slog.DiscardHandler)
			ledger := budget.New(budget.Options{Store: store.Spending(db), Limit: func(engi.Owner) budget.Limit { return budget.Limit{} }, Log: log})
			models, err := agents.Models(c, ledger, log)
			if err != nil {
				t.Fatal(err)
			}
			o, err := agents.Open(c, agents.Options{Models: models, Ledger: ledger, Places: tool.Services{Sandboxes: struct{ engi.Sandboxes }{}}, DB: db, Log: log})
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
			if all := o.Agents(); len(all) < 2 || all[0].Name != "zoe" {
				t.Errorf("the default does not come first in %+v", all)
			}
			type count struct {
				Lines int `json:"lines"`
			}
			before := len(model.Seen())
			got, r, err := agent.Ask[count](t.Context(), o, engi.RunSpec{Owner: "ann", Input: "How many lines?"}, nil)
			if err != nil || got.Lines != 2 || r.Model != p+":m1" || r.Steps != 3 {
				t.Fatalf("%+v %+v %v", got, r, err)
			}
			told := ""
			for e, err := range o.Watch(t.Context(), "ann", r.ID, 0) {
				if err != nil {
					t.Fatal(err)
				}
				told += e.Text
			}
			if !strings.Contains(told, "I read on.") {
				t.Errorf("it was told %q", told)
			}
			for _, c := range model.Seen()[before:] {
				if c.Key != "key-of-"+p || c.Model != "m1" || !json.Valid(c.Raw) {
					t.Errorf("the provider saw %+v", c)
				}
			}
		})
	}
}
