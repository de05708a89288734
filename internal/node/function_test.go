package node

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

// TestFunctions sends the events that create a sandbox, start agents in it and stop
// it.
func TestFunctions(t *testing.T) {
	note := filepath.Join(t.TempDir(), "note.txt") // fake sandboxes have the files of the host
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		if last := c.Last(); last.Role == "tool" {
			return scripted.Answer{Text: "seen: " + last.Results[0].Text}
		}
		if slices.Contains(c.Tools, "write_file") {
			return scripted.Answer{Calls: []scripted.Call{{Name: "write_file", Arguments: fmt.Sprintf(`{"path":%q,"content":"left by the coder"}`, note)}}}
		}
		if slices.Contains(c.Tools, "run_command") {
			t.Error("the explorer can run commands")
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "read_file", Arguments: fmt.Sprintf(`{"path":%q}`, note)}}}
	}}
	srv := httptest.NewServer(model)
	defer srv.Close()

	c, o := fakeNode(t)
	c.Providers = map[string]config.Provider{"play": {URL: srv.URL}}
	c.Models.Default = "play:m"
	c.Events.Runtimes = map[string]string{"node24": "host"}
	c.Functions = []config.Function{
		{Name: "sum", Event: "numbers", Run: config.Program{Language: "bash", Code: `cat; exit 0`}},
		{Name: "ask", Event: "question", Agent: "explore", Input: "What is in {{.Event.Data.file}}?", Sandbox: "{{.Event.Data.sandbox_id}}"},
	}
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	here := client.New(n.Endpoint().URL, n.AdminKey())
	ctx := t.Context()
	run := func(name string, data any) v1.FunctionRun {
		t.Helper()
		raw, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		e, err := here.SendEvent(ctx, v1.EventRequest{Name: name, Data: raw}, "")
		if err != nil || len(e.RunIDs) != 1 {
			t.Fatalf("%s: %+v %v", name, e, err)
		}
		r, err := here.WaitFunctionRun(ctx, e.RunIDs[0])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	done := func(r v1.FunctionRun, into any) {
		t.Helper()
		if r.State != v1.FunctionDone {
			t.Fatalf("%s is %s: %+v", r.Function, r.State, r.Error)
		}
		if err := json.Unmarshal(r.Output, into); err != nil {
			t.Fatal(err)
		}
	}

	var made struct {
		Sandbox string `json:"sandbox_id"`
	}
	done(run("engi/sandbox/create", map[string]any{"metadata": map[string]string{"who": "test"}, "timeout_seconds": 600}), &made)
	if sandbox, err := here.Sandbox(ctx, made.Sandbox); err != nil || sandbox.State != "running" || sandbox.Metadata["who"] != "test" {
		t.Fatalf("%+v %v", sandbox, err)
	}

	var said struct {
		Run  string `json:"run_id"`
		Text string
	}
	for _, step := range []struct{ event, want string }{{"engi/agents/code", "note.txt"}, {"engi/agents/explore", "left by the coder"}} {
		done(run(step.event, map[string]string{"sandbox_id": made.Sandbox, "prompt": "Go."}), &said)
		if !strings.Contains(said.Text, step.want) || !strings.HasPrefix(said.Run, "run_") {
			t.Errorf("%s says %+v", step.event, said)
		}
	}
	done(run("question", map[string]string{"sandbox_id": made.Sandbox, "file": note}), &said)
	if !strings.Contains(said.Text, "left by the coder") {
		t.Errorf("the declared agent says %q", said.Text)
	}

	var printed struct {
		Output struct{ Event struct{ Data map[string]int } }
	}
	done(run("numbers", map[string]int{"n": 7}), &printed)
	if printed.Output.Event.Data["n"] != 7 {
		t.Errorf("the program says %+v", printed)
	}

	var last struct{ State, End string }
	done(run("engi/sandbox/stop", map[string]string{"sandbox_id": made.Sandbox}), &last)
	if last.State != "stopped" {
		t.Errorf("it stopped as %+v", last)
	}
	// One that is gone will not come back by trying again.
	for _, id := range []string{made.Sandbox, string(engi.NewSandboxID()), "nonsense"} {
		r := run("engi/agents/explore", map[string]string{"sandbox_id": id, "prompt": "Go."})
		if r.State != v1.FunctionFailed || r.Attempt != 1 || r.Error == nil {
			t.Errorf("exploring %s: %+v", id, r)
		}
	}
	echoes, err := here.FunctionRuns(ctx, client.FunctionFilter{Function: "engi/debug/echo"})
	if err != nil || len(echoes) != 2 {
		t.Fatalf("%+v %v", echoes, err)
	}
	for _, e := range echoes {
		r, err := here.WaitFunctionRun(ctx, e.ID)
		if err != nil || !strings.Contains(string(r.Output), made.Sandbox) {
			t.Errorf("%s %v", r.Output, err)
		}
	}
	// Python 3.13 is not built here, and trying again would not build it.
	r := run("engi/sandbox/create", map[string]string{"runtime": "python3.13"})
	if r.State != v1.FunctionFailed || r.Attempt != 1 || r.Error == nil || !strings.Contains(r.Error.Remedy, "engi template build python3.13") {
		t.Errorf("%+v", r)
	}
	if _, err := here.SendEvent(ctx, v1.EventRequest{Name: "engi/sandbox/create", Data: json.RawMessage(`{"runtime":"cobol"}`)}, ""); err == nil {
		t.Error("an unknown runtime is taken")
	}
}
