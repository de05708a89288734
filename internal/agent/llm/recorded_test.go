package llm_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestRecorded reads answers of the shape in which providers have sent them, in pieces
// of several sizes, and shows what goes back with the results of their calls; see
// testdata/wire.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/recorded/*.*")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		kind := filepath.Ext(file)
		if kind == ".golden" {
			continue
		}
		recording, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), kind)
		sizes := []int{len(recording)}
		if kind == ".sse" {
			sizes = []int{len(recording), 1, 7}
		}
		for _, size := range sizes {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				got := readRecording(t, name, kind == ".sse", recording, size)
				golden := strings.TrimSuffix(file, kind) + ".golden"
				if *update {
					if err := os.WriteFile(golden, got, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), string(got)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// readRecording has a provider answer with a recording, and returns what was read of
// it and how it goes back.
func readRecording(t *testing.T, name string, streamed bool, recording []byte, size int) []byte {
	t.Helper()
	var sent map[string]json.RawMessage
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", map[bool]string{true: "text/event-stream", false: "application/json"}[streamed])
		for rest := recording; len(rest) > 0; {
			n := min(size, len(rest))
			w.Write(rest[:n])
			w.(http.Flusher).Flush()
			rest = rest[n:]
		}
	}))
	defer web.Close()
	id, _, _ := strings.Cut(name, "-")
	provider := llm.Provider{URL: web.URL, Key: "k", Dialect: map[string]llm.Dialect{"compatible": llm.Compatible, "responses": llm.Responses}[id]}
	r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{id: provider}})
	if err != nil {
		t.Fatal(err)
	}
	m := model(t, r, id+":m")
	var told struct{ Text, Thought, Arguments strings.Builder }
	var out func(llm.Delta) error
	if streamed {
		out = func(d llm.Delta) error {
			told.Text.WriteString(d.Text)
			told.Thought.WriteString(d.Thought)
			told.Arguments.WriteString(d.Arguments)
			return nil
		}
	}
	q := llm.Request{Tools: []engi.Tool{weather}, Messages: []engi.Message{{Role: engi.RoleUser, Text: "How is it in Köln?"}}}
	reply, err := m.Generate(t.Context(), q, out)
	reply.Took = 0
	var b bytes.Buffer
	show := func(head string, v any) {
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %s\n", head, text)
	}
	if err != nil {
		show("error", fmt.Sprintf("%v: %v", engi.KindOf(err), err))
		show("tokens", reply.Tokens)
		return b.Bytes()
	}
	show("stop", strings.TrimSpace(fmt.Sprintf("%s %s", reply.Stop, reply.Reason)))
	show("tokens", reply.Tokens)
	show("text", reply.Message.Text)
	show("thought", reply.Message.Thought)
	show("calls", reply.Message.Calls)
	if streamed && reply.Stop != llm.StopMalformed && (told.Text.String() != reply.Message.Text || told.Thought.String() != reply.Message.Thought) {
		t.Errorf("told %q and %q", told.Text.String(), told.Thought.String())
	}
	if len(reply.Message.Calls) == 0 {
		return b.Bytes()
	}
	results := engi.Message{Role: engi.RoleTool}
	for _, c := range reply.Message.Calls {
		results.Results = append(results.Results, engi.ToolResult{Call: c.ID, Name: c.Name, Text: "rain"})
	}
	q.Messages = append(q.Messages, reply.Message, results)
	if _, err := m.Generate(t.Context(), q, func(llm.Delta) error { return io.EOF }); err == nil {
		t.Error("the second answer was not looked at")
	}
	for _, field := range []string{"messages", "contents", "input"} {
		var turns []any
		if raw := sent[field]; raw != nil {
			if err := json.Unmarshal(raw, &turns); err != nil {
				t.Fatal(err)
			}
			show("back", turns[1:])
		}
	}
	return b.Bytes()
}

// TestErrorsInAnswers classifies errors by the status that they name, wherever they
// come.
func TestErrorsInAnswers(t *testing.T) {
	failed := `{"error":{"message":"Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.","type":"invalid_request_error","code":"tool_use_failed","failed_generation":"<function=weather{\"city\": \"Köln\"}</function>\n"}}`
	for _, test := range []struct {
		name   string
		status int
		body   string
		stop   llm.Stop
		kind   engi.Kind
	}{
		{"what the model wrote cannot be read", 400, failed, llm.StopMalformed, 0},
		{"the same in the middle", 200, "data: " + failed + "\n\n", llm.StopMalformed, 0},
		{"no answer fits the schema", 400, `{"error":{"message":"Failed to generate JSON.","type":"invalid_request_error","code":"json_validate_failed","failed_generation":""}}`, llm.StopMalformed, 0},
		{"the request is wrong", 200, `data: {"error":{"code":400,"message":"messages: text is empty"}}` + "\n\n", "", engi.Invalid},
		{"the key is wrong", 200, `data: {"error":{"code":401,"message":"No auth credentials found"}}` + "\n\n", "", engi.Denied},
		{"too many requests", 200, `data: {"error":{"code":429,"message":"Rate limit exceeded: free-models-per-min"}}` + "\n\n", "", engi.Exhausted},
		{"overloaded", 200, `data: {"error":{"code":502,"message":"Provider returned error"}}` + "\n\n", "", engi.Unavailable},
		{"no status", 200, `data: {"error":{"message":"The server had an error","type":"server_error","code":null}}` + "\n\n", "", engi.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
			}))
			defer web.Close()
			r, err := llm.New(llm.Options{Attempts: 1, Providers: map[string]llm.Provider{"groq": {URL: web.URL, Key: "k"}}})
			if err != nil {
				t.Fatal(err)
			}
			reply, err := model(t, r, "groq:m").Generate(t.Context(), llm.Request{Messages: []engi.Message{{Role: engi.RoleUser, Text: "?"}}}, func(llm.Delta) error { return nil })
			if test.kind != 0 && !engi.Is(err, test.kind) || test.kind == 0 && (err != nil || reply.Stop != test.stop || reply.Reason == "") {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
}
