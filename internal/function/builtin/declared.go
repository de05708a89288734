package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"text/template"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// A Declared is a function declared in a configuration: it runs either an agent or
// a program.
type Declared struct {
	engi.Function
	Owner   engi.Owner // owner of the runs that its schedule starts
	Backoff function.Backoff

	// Agent is the name of an agent, and Input the template of its input.
	// Sandbox and Session, also templates, select where its tools work; empty for
	// none. Templates are executed with [RunData].
	Agent   string
	Input   string
	Sandbox string
	Session string

	// Program runs in a fresh sandbox, with [RunData] as JSON on its standard
	// input. Its standard output is the run's output. If it does not exit with
	// 0, the attempt has failed.
	Program  engi.Program
	Template string // template of the program's sandbox; empty means the node's default
}

// RunData is the data of a run for the templates and programs of declared functions.
type RunData struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"` // from 1
	Owner   string    `json:"owner"`
	Event   EventData `json:"event"`
}

// EventData is the event of a run; without ID and name if a schedule started the
// run.
type EventData struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	Data    map[string]any `json:"data"`
	Created time.Time      `json:"created"`
}

const (
	maxInput         = 256 << 10 // maximum bytes of an executed template
	maxProgramOutput = 64 << 10  // maximum bytes of a program's output
	maxCode          = 1 << 20
	// claimTimeout is the time for which a run waits for a sandbox before it retries.
	claimTimeout = 30 * time.Second
)

// Declare returns the function of a declaration. It reports Invalid.
func (s Services) Declare(d Declared) (_ function.Function, err error) {
	defer engi.Annotate(&err, "function %.140q", d.Name)
	f := function.Function{Function: d.Function, Owner: d.Owner, Backoff: d.Backoff}
	program := len(d.Program.Files) > 0
	switch {
	case program == (d.Agent != ""):
		return f, engi.Errorf(engi.Invalid, "it needs either an agent or a program")
	case program:
		if d.Input != "" || d.Sandbox != "" || d.Session != "" {
			return f, engi.Errorf(engi.Invalid, "input, sandbox and session are for agents").WithRemedy("a program reads the event from its standard input")
		}
		if s.Executions == nil {
			return f, engi.Errorf(engi.Unsupported, "this node runs no programs")
		}
		if len(d.Program.Files[0].Data) > maxCode {
			return f, engi.TooLarge("its program has %d bytes, %d at most", len(d.Program.Files[0].Data), maxCode)
		}
		f.Run = func(ctx context.Context, r *function.Run) (any, error) { return s.runProgram(ctx, r, d) }
		return f, nil
	case s.Agents == nil:
		return f, engi.Errorf(engi.Unsupported, "this node has no agents").WithRemedy("remove models.off from the configuration")
	case d.Sandbox != "" && d.Session != "":
		return f, engi.Errorf(engi.Invalid, "an agent works in a sandbox or in a session, not in both")
	case d.Input == "":
		return f, engi.Errorf(engi.Invalid, "its agent has no input").WithRemedy("set its input, such as {{.Event.Data.question}}")
	}
	says := map[string]*template.Template{}
	for name, text := range map[string]string{"input": d.Input, "sandbox": d.Sandbox, "session": d.Session} {
		if says[name], err = template.New(name).Option("missingkey=error").Parse(text); err != nil {
			return f, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("use the syntax of Go's text/template, like {{.Event.Data.question}}")
		}
	}
	f.Run = func(ctx context.Context, r *function.Run) (any, error) {
		view, err := runData(r)
		if err != nil {
			return nil, err
		}
		said := map[string]string{}
		for name, t := range says {
			if said[name], err = render(t, view); err != nil {
				return nil, err
			}
		}
		spec := engi.RunSpec{Agent: d.Agent, Input: said["input"], Session: said["session"]}
		if said["sandbox"] != "" {
			if spec.Sandbox, err = engi.ParseSandboxID(said["sandbox"]); err != nil {
				return nil, err
			}
		}
		return s.runAgent(ctx, r, spec)
	}
	return f, nil
}

func runData(r *function.Run) (RunData, error) {
	v := RunData{Run: string(r.ID), Attempt: r.Attempt, Owner: string(r.Owner), Event: EventData{ID: string(r.Event.ID), Name: r.Event.Type, Created: r.Event.Time}}
	return v, r.Data(&v.Event.Data)
}

// A limitedBuffer fails when more than left bytes are written.
type limitedBuffer struct {
	bytes.Buffer
	left int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, engi.Errorf(engi.Invalid, "it has more than %d bytes", maxInput)
	}
	b.left -= len(p)
	return b.Buffer.Write(p)
}

func render(t *template.Template, v RunData) (string, error) {
	out := limitedBuffer{left: maxInput}
	if err := t.Execute(&out, v); err != nil {
		return "", engi.Errorf(engi.Invalid, "%v", err).WithRemedy("send an event with the data that the function's %s asks for", t.Name())
	}
	return out.String(), nil
}

// programOutput is the output of a function that runs a program.
type programOutput struct {
	Execution engi.ExecutionID `json:"execution_id"`
	Output    any              `json:"output"` // JSON if it is valid, otherwise text
	Truncated bool             `json:"truncated,omitempty"`
}

// runProgram runs the program of a declaration, once per attempt. The execution
// has an idempotency key derived from the attempt, so that after a crash it is
// found and waited for.
func (s Services) runProgram(ctx context.Context, r *function.Run, d Declared) (any, error) {
	view, err := runData(r)
	if err != nil {
		return nil, err
	}
	id, err := function.Step(ctx, r, fmt.Sprintf("start %d", r.Attempt), func(ctx context.Context) (engi.ExecutionID, error) {
		program := d.Program
		if program.Stdin, err = json.Marshal(view); err != nil {
			return "", engi.Errorf(engi.Invalid, "encode the event: %v", err)
		}
		x, err := s.Executions.Start(ctx, engi.ExecutionSpec{
			Owner: r.Owner, Program: program, Template: d.Template, Limits: engi.Limits{Timeout: d.Timeout}, ClaimTimeout: claimTimeout, Idempotency: fmt.Sprintf("%s/start/%d", r.ID, r.Attempt),
		})
		return x.ID, err
	})
	if err != nil {
		return nil, err
	}
	return waitOrCancel(ctx, r, fmt.Sprintf("wait %d", r.Attempt), func(ctx context.Context) (programOutput, error) { return s.waitForExecution(ctx, r, id) },
		func(ctx context.Context) error { return s.Executions.Cancel(ctx, r.Owner.Viewer(), id) })
}

// waitForExecution waits for the end of an execution.
func (s Services) waitForExecution(ctx context.Context, r *function.Run, id engi.ExecutionID) (programOutput, error) {
	waiting, stop := untilCancelled(ctx, r)
	defer stop()
	x, err := s.Executions.Wait(waiting, r.Owner.Viewer(), id)
	if err != nil {
		return programOutput{}, err
	}
	if x.Result == nil {
		return programOutput{}, engi.Errorf(engi.Unavailable, "execution %s is %s", id, x.State)
	}
	if e := x.Result.Exit; e.Cause != engi.CauseExited || e.Code != 0 {
		return programOutput{}, failure(id, *x.Result)
	}
	p := programOutput{Execution: id, Truncated: x.Result.StdoutTruncated}
	out := bytes.TrimSpace(x.Result.Stdout)
	if len(out) > maxProgramOutput {
		out, p.Truncated = out[:maxProgramOutput], true
	}
	if json.Valid(out) {
		p.Output = json.RawMessage(out)
	} else {
		p.Output = string(bytes.ToValidUTF8(out, []byte("\uFFFD")))
	}
	return p, nil
}

// failure returns the error of a program that did not exit with 0. The program is retried,
// because circumstances may change.
func failure(id engi.ExecutionID, r engi.Result) error {
	said := clip.Tail(string(bytes.TrimSpace(r.Stderr)), 500)
	how := fmt.Sprintf("exited with %d", r.Exit.Code)
	if r.Exit.Cause != engi.CauseExited {
		how = fmt.Sprintf("was ended: %s", r.Exit.Cause)
	} else if r.Exit.Signal != "" {
		how = "was killed by signal " + r.Exit.Signal
	}
	err := engi.Errorf(engi.Unavailable, "the program of execution %s %s: %s", id, how, said)
	if remedy := r.Exit.Cause.Remedy(); remedy != "" {
		return err.WithRemedy("%s", remedy)
	}
	return err.WithRemedy("'engi logs %s' shows its output", id)
}
