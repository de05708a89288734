package builtin_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/builtin"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/memory"
	"github.com/engi-dev/engi/test/apitest"
)

type fixture struct {
	*functiontest.Runner
	agents     *apitest.Agents
	executions *apitest.Executions
}

// serve runs a Runner with the built-in functions and the declared ones.
func serve(t *testing.T, declared ...builtin.Declared) *fixture {
	t.Helper()
	fix := &fixture{agents: &apitest.Agents{}, executions: apitest.NewExecutions()}
	t.Cleanup(fix.executions.Close)
	services := builtin.Services{Sandboxes: apitest.NewSandboxes(fix.executions), Templates: apitest.NewTemplates(), Agents: fix.agents, Executions: fix.executions}
	functions := builtin.Functions(services)
	for _, d := range declared {
		f, err := services.Declare(d)
		if err != nil {
			t.Fatal(err)
		}
		functions = append(functions, f)
	}
	e := &memory.Engine{}
	fix.Runner = functiontest.Open(t, func() function.Engine { return e }, functions...)
	return fix
}

func bash(code string) engi.Program {
	return engi.Program{Language: engi.Bash, Files: []engi.SourceFile{{Path: "main.sh", Data: []byte(code)}}, Entry: "main.sh"}
}

// TestCancelEndsTheWork cancels functions that run an agent and a program.
func TestCancelEndsTheWork(t *testing.T) {
	f := serve(t,
		builtin.Declared{Function: engi.Function{Name: "think", Event: "think"}, Agent: "echo", Input: "wait"},
		builtin.Declared{Function: engi.Function{Name: "sleep", Event: "sleep"}, Program: bash("sleep 1h\n")},
	)
	agent := func() bool {
		runs, err := f.agents.List(t.Context(), "anna", 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(runs) == 1 && runs[0].State == engi.RunRunning
	}
	program := func() bool {
		all, err := f.executions.List(t.Context(), "anna", engi.ExecutionFilter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Result == nil
	}
	for name, works := range map[string]func() bool{"think": agent, "sleep": program} {
		id := f.Send("anna", name, `{}`)
		for deadline := time.Now().Add(time.Minute); !works(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it started nothing", name)
			}
		}
		if err := f.Cancel(t.Context(), "anna", id); err != nil {
			t.Fatal(err)
		}
		f.Await(id, engi.FunctionCancelled)
		if works() {
			t.Errorf("%s: what it started goes on", name)
		}
	}
}

func TestDeclared(t *testing.T) {
	f := serve(t,
		builtin.Declared{Function: engi.Function{Name: "say", Event: "say"}, Agent: "echo", Input: "look at {{.Event.Data.title}} for {{.Owner}}"},
		builtin.Declared{Function: engi.Function{Name: "print", Event: "print"}, Program: bash("cat\n")},
		builtin.Declared{Function: engi.Function{Name: "fail", Event: "fail"}, Program: bash("exit 3\n")},
	)
	run := f.Await(f.Send("anna", "say", `{"title":"a bug"}`), engi.FunctionDone)
	if !strings.Contains(string(run.Output), "look at a bug for anna") {
		t.Errorf("the agent's function returns %s", run.Output)
	}
	run = f.Await(f.Send("anna", "print", `{"n":7}`), engi.FunctionDone)
	var printed struct {
		Output builtin.RunData `json:"output"`
	}
	if err := json.Unmarshal(run.Output, &printed); err != nil {
		t.Fatalf("%v: %s", err, run.Output)
	}
	if v := printed.Output; v.Owner != "anna" || v.Run != string(run.ID) || v.Attempt != 1 || v.Event.Name != "print" || v.Event.Data["n"] != 7.0 {
		t.Errorf("the program saw %+v", v)
	}
	if run = f.Await(f.Send("anna", "fail", `{}`), engi.FunctionFailed); run.Error == nil || !strings.Contains(run.Error.Text, "exited with 3") {
		t.Errorf("a program that failed: %+v", run.Error)
	}
	// Missing data is not retried.
	if run = f.Await(f.Send("anna", "say", `{}`), engi.FunctionFailed); run.Error.Kind != engi.Invalid || run.Attempt != 1 {
		t.Errorf("without a title: attempt %d, %+v", run.Attempt, run.Error)
	}
}

// TestMissingSandbox runs agents in a sandbox that does not exist.
func TestMissingSandbox(t *testing.T) {
	fix := serve(t)
	for _, f := range []string{builtin.AgentsExplore, builtin.AgentsCode} {
		id := fix.Send("anna", f, `{"prompt":"look","sandbox_id":"`+string(engi.NewSandboxID())+`"}`)
		run := fix.Await(id, engi.FunctionFailed)
		if run.Error.Kind != engi.NotFound || run.Attempt != 1 {
			t.Errorf("%s: attempt %d, %+v", f, run.Attempt, run.Error)
		}
	}
}
