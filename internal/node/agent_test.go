package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

// TestSwitchProvider changes the provider with one value of the configuration:
// an agent that uses a tool, streams and answers in a schema does the same with
// all six.
func TestSwitchProvider(t *testing.T) {
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
	var toml strings.Builder
	providers := []string{"openai", "anthropic", "gemini", "ollama", "mistral", "groq"}
	for _, p := range providers {
		fmt.Fprintf(&toml, "[providers.%s]\nurl = %q\napi_key_env = \"KEY_OF_%s\"\n", p, web.URL+"/"+p, strings.ToUpper(p))
		t.Setenv("KEY_OF_"+strings.ToUpper(p), "key-of-"+p)
	}
	toml.WriteString("[[agents]]\nname = \"zoe\"\ntools = [\"read_result\"]\n[[agents]]\nname = \"al\"\n")
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(toml.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range providers {
		t.Run(p, func(t *testing.T) {
			c, _, err := config.Load(config.From{File: file, Env: []string{"HOME=" + t.TempDir(), "ENGI_MODELS_DEFAULT=" + p + ":m1"}})
			if err != nil {
				t.Fatal(err)
			}
			own, opt := fakeNode(t)
			own.Models, own.Providers, own.Agents = c.Models, c.Providers, c.Agents
			n, err := Open(t.Context(), own, opt)
			if err != nil {
				t.Fatal(err)
			}
			start(t, n)
			agents := n.Agents()
			if all := agents.Agents(); len(all) < 2 || all[0].Name != "zoe" {
				t.Errorf("the default does not come first in %+v", all)
			}
			type count struct {
				Lines int `json:"lines"`
			}
			before := len(model.Seen())
			schema, err := llm.SchemaOf(reflect.TypeFor[count]())
			if err != nil {
				t.Fatal(err)
			}
			r, err := agents.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "How many lines?", Output: schema.JSON()})
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			for e, err := range agents.Watch(t.Context(), "ann", r.ID, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if text += e.Text; e.Kind == engi.RunEnd {
					r = *e.Run
				}
			}
			var got count
			if err := json.Unmarshal(r.Output, &got); err != nil || got.Lines != 2 || r.Model != p+":m1" || r.Steps != 3 {
				t.Fatalf("%+v %+v %v", got, r, err)
			}
			if !strings.Contains(text, "I read on.") {
				t.Errorf("the stream has %q", text)
			}
			for _, c := range model.Seen()[before:] {
				if c.Key != "key-of-"+p || c.Model != "m1" || !json.Valid(c.Raw) {
					t.Errorf("the provider saw %+v", c)
				}
			}
		})
	}
}

// TestToolServersAreJudged: tools are asked for at public addresses only, unless
// the operator says that a server is private.
func TestToolServersAreJudged(t *testing.T) {
	var asked atomic.Int32
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.NotFound(w, r)
	}))
	defer here.Close()
	for _, private := range []bool{false, true} {
		c, o := fakeNode(t)
		c.MCP.Servers = []config.MCPServer{{Name: "here", URL: here.URL, Private: private}}
		n, err := Open(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		start(t, n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, _, err = n.remote.Sources()[0].Open(ctx, tool.Env{})
		cancel()
		if err == nil || private != (asked.Load() > 0) {
			t.Errorf("private %v: asked %d times, %v", private, asked.Load(), err)
		}
	}
}
