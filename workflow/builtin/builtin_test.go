package builtin_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/apitest"
	"github.com/engi-dev/engi/workflow"
	"github.com/engi-dev/engi/workflow/builtin"
	"github.com/engi-dev/engi/workflow/memory"
	"github.com/engi-dev/engi/workflow/workflowtest"
)

type fixture struct {
	*workflowtest.Runner
	agents     *apitest.Agents
	executions *apitest.Executions
}

// serve runs an office with the built-in functions and these.
func serve(t *testing.T, declared ...builtin.Declared) *fixture {
	t.Helper()
	w := &fixture{agents: &apitest.Agents{}, executions: apitest.NewExecutions()}
	t.Cleanup(w.executions.Close)
	rooms := builtin.Services{Sandboxes: apitest.NewSandboxes(w.executions), Templates: apitest.NewTemplates(), Agents: w.agents, Executions: w.executions}
	functions := builtin.Functions(rooms)
	for _, d := range declared {
		f, err := rooms.Declare(d)
		if err != nil {
			t.Fatal(err)
		}
		functions = append(functions, f)
	}
	e := &memory.Engine{}
	w.Runner = workflowtest.Open(t, func() workflow.Engine { return e }, functions...)
	return w
}

func bash(code string) engi.Program {
	return engi.Program{Language: engi.Bash, Files: []engi.SourceFile{{Path: "main.sh", Data: []byte(code)}}, Entry: "main.sh"}
}

// TestCancelEndsTheWork cancels functions while an agent and a program work
// for them.
func TestCancelEndsTheWork(t *testing.T) {
	w := serve(t,
		builtin.Declared{Function: engi.Function{Name: "think", Event: "think"}, Agent: "echo", Input: "wait"},
		builtin.Declared{Function: engi.Function{Name: "sleep", Event: "sleep"}, Program: bash("sleep 1h\n")},
	)
	agent := func() bool {
		runs, err := w.agents.List(t.Context(), "anna", 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(runs) == 1 && runs[0].State == engi.RunRunning
	}
	program := func() bool {
		all, err := w.executions.List(t.Context(), "anna", engi.ExecutionFilter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Result == nil
	}
	for name, works := range map[string]func() bool{"think": agent, "sleep": program} {
		id := w.Send("anna", name, `{}`)
		for deadline := time.Now().Add(30 * time.Second); !works(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: nothing works for it", name)
			}
		}
		if err := w.Cancel(t.Context(), "anna", id); err != nil {
			t.Fatal(err)
		}
		w.Await(id, engi.FunctionCancelled)
		if works() {
			t.Errorf("%s: what worked for it goes on", name)
		}
	}
}

func TestDeclared(t *testing.T) {
	w := serve(t,
		builtin.Declared{Function: engi.Function{Name: "say", Event: "say"}, Agent: "echo", Input: "look at {{.Event.Data.title}} for {{.Owner}}"},
		builtin.Declared{Function: engi.Function{Name: "print", Event: "print"}, Program: bash("cat\n")},
		builtin.Declared{Function: engi.Function{Name: "fail", Event: "fail"}, Program: bash("exit 3\n")},
	)
	run := w.Await(w.Send("anna", "say", `{"title":"a bug"}`), engi.FunctionDone)
	if !strings.Contains(string(run.Output), "look at a bug for anna") {
		t.Errorf("the agent's function returns %s", run.Output)
	}
	run = w.Await(w.Send("anna", "print", `{"n":7}`), engi.FunctionDone)
	var printed struct {
		Output builtin.RunData `json:"output"`
	}
	if err := json.Unmarshal(run.Output, &printed); err != nil {
		t.Fatalf("%v: %s", err, run.Output)
	}
	if v := printed.Output; v.Owner != "anna" || v.Run != string(run.ID) || v.Attempt != 1 || v.Event.Name != "print" || v.Event.Data["n"] != 7.0 {
		t.Errorf("the program saw %+v", v)
	}
	if run = w.Await(w.Send("anna", "fail", `{}`), engi.FunctionFailed); run.Error == nil || !strings.Contains(run.Error.Text, "ended with 3") {
		t.Errorf("a program that failed: %+v", run.Error)
	}
	// What a template misses is an error that no other attempt would mend.
	if run = w.Await(w.Send("anna", "say", `{}`), engi.FunctionFailed); run.Error.Kind != engi.Invalid || run.Attempt != 1 {
		t.Errorf("without a title: attempt %d, %+v", run.Attempt, run.Error)
	}
}

// TestMissingSandbox has an agent's work asked for in a sandbox that is not
// there, or not the owner's.
func TestMissingSandbox(t *testing.T) {
	w := serve(t)
	for _, f := range []string{builtin.AgentsExplore, builtin.AgentsCode} {
		id := w.Send("anna", f, `{"prompt":"look","sandbox_id":"`+string(engi.NewSandboxID())+`"}`)
		run := w.Await(id, engi.FunctionFailed)
		if run.Error.Kind != engi.NotFound || run.Attempt != 1 {
			t.Errorf("%s: attempt %d, %+v", f, run.Attempt, run.Error)
		}
	}
}
