package llm_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
)

// TestWire reads answers as the providers document them; see testdata/wire.
func TestWire(t *testing.T) {
	for _, provider := range six {
		for _, kind := range []string{"json", "sse"} {
			t.Run(provider+" "+kind, func(t *testing.T) {
				answer, err := os.ReadFile(filepath.Join("testdata", "wire", provider+"."+kind))
				if err != nil {
					t.Fatal(err)
				}
				media := map[string]string{"json": "application/json", "sse": "text/event-stream"}[kind]
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", media)
					w.Write(answer)
				}))
				defer web.Close()
				r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{provider: {URL: web.URL, Key: "k"}}})
				if err != nil {
					t.Fatal(err)
				}
				var streamed strings.Builder
				var out func(llm.Delta) error
				if kind == "sse" {
					out = func(d llm.Delta) error { streamed.WriteString(d.Text + d.Arguments); return nil }
				}
				q := llm.Request{Tools: []engi.Tool{weather}, Messages: []engi.Message{{Role: engi.RoleUser, Text: "How is it in Köln?"}}}
				reply, err := model(t, r, provider+":m").Generate(t.Context(), q, out)
				if err != nil {
					t.Fatal(err)
				}
				reply.Took = 0
				if len(reply.Message.Calls) == 1 && provider == "gemini" {
					reply.Message.Calls[0].ID = "call_abc123" // the format has none
				}
				want := llm.Reply{Model: provider + ":m", Stop: llm.StopTools, Tokens: engi.Tokens{Input: 82, Output: 17, Calls: 1}, Message: engi.Message{
					Role: engi.RoleAssistant, Text: "Let me see.", Calls: []engi.ToolCall{{ID: "call_abc123", Name: "weather", Arguments: `{"city":"Köln"}`}}}}
				if diff := cmp.Diff(want, reply); diff != "" {
					t.Error(diff)
				}
				if kind == "sse" && streamed.String() != `Let me see.{"city":"Köln"}` {
					t.Errorf("streamed %q", streamed.String())
				}
			})
		}
	}
}
