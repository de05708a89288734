package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/workflow"
)

// A Declared function is one without code of its own: it puts an agent to work
// or runs a program, one of the two.
type Declared struct {
	engi.Function
	Owner   engi.Owner // in whose name a clock starts it
	Backoff workflow.Backoff

	// Agent is the name of an agent; Input is the template of what is said to
	// it. Sandbox and Session, templates too, say where its tools work; empty
	// for nowhere. See [View] for what templates see.
	Agent   string
	Input   string
	Sandbox string
	Session string

	// Program runs in a sandbox of its own, which is thrown away, and gets the
	// [View] as JSON on its standard input. What it prints is the run's
	// output. One that does not end with 0 has failed, and is tried again.
	Program  engi.Program
	Template string // template of the sandbox; empty means the node's
}

// A View is what functions that are declared see of a run.
type RunData struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"` // from 1
	Owner   string    `json:"owner"`
	Event   EventData `json:"event"`
}

// An EventView is the event of a run; without ID and name if a clock started
// the run.
type EventData struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	Data    map[string]any `json:"data"`
	Created time.Time      `json:"created"`
}

const (
	maxInput   = 256 << 10 // bytes that a template may say
	maxPrinted = 64 << 10  // bytes of a program's output that are kept
	maxCode    = 1 << 20
)

// Declare returns the function of a declaration. It reports Invalid.
func (s Services) Declare(d Declared) (_ workflow.Function, err error) {
	defer engi.Annotate(&err, "function %.140q", d.Name)
	f := workflow.Function{Function: d.Function, Owner: d.Owner, Backoff: d.Backoff}
	program := len(d.Program.Files) > 0
	switch {
	case program == (d.Agent != ""):
		return f, engi.Errorf(engi.Invalid, "it has to have an agent or a program, one of the two")
	case program:
		if d.Input != "" || d.Sandbox != "" || d.Session != "" {
			return f, engi.Errorf(engi.Invalid, "input, sandbox and session are for agents").WithRemedy("a program reads the event from its standard input")
		}
		if s.Executions == nil {
			return f, engi.Errorf(engi.Unsupported, "this node runs no programs")
		}
		if len(d.Program.Files[0].Data) > maxCode {
			return f, engi.Errorf(engi.Invalid, "its program has %d bytes, %d at most", len(d.Program.Files[0].Data), maxCode)
		}
		f.Run = func(ctx context.Context, r *workflow.Run) (any, error) { return s.runProgram(ctx, r, d) }
		return f, nil
	case s.Agents == nil:
		return f, engi.Errorf(engi.Unsupported, "this node has no agents").WithRemedy("take models.off out of the configuration")
	case d.Sandbox != "" && d.Session != "":
		return f, engi.Errorf(engi.Invalid, "an agent works in a sandbox or in a session, not in both")
	case d.Input == "":
		return f, engi.Errorf(engi.Invalid, "nothing is said to its agent").WithRemedy("give it an input, like {{.Event.Data.question}}")
	}
	says := map[string]*template.Template{}
	for name, text := range map[string]string{"input": d.Input, "sandbox": d.Sandbox, "session": d.Session} {
		if says[name], err = template.New(name).Option("missingkey=error").Parse(text); err != nil {
			return f, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("templates are those of Go's text/template, like {{.Event.Data.question}}")
		}
	}
	f.Run = func(ctx context.Context, r *workflow.Run) (any, error) {
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

func runData(r *workflow.Run) (RunData, error) {
	v := RunData{Run: string(r.ID), Attempt: r.Attempt, Owner: string(r.Owner), Event: EventData{ID: string(r.Event.ID), Name: r.Event.Type, Created: r.Event.Time}}
	return v, r.Data(&v.Event.Data)
}

// bounded takes so many bytes and no more.
type limitedBuffer struct {
	bytes.Buffer
	left int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, engi.Errorf(engi.Invalid, "it says more than %d bytes", maxInput)
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

// printed is what a program has printed, as a run's output.
type programOutput struct {
	Execution engi.ExecutionID `json:"execution_id"`
	Output    any              `json:"output"` // JSON as it is, else text
	Truncated bool             `json:"truncated,omitempty"`
}

// program runs the program of a declaration, once per attempt: the execution
// has a key of the attempt's, so that whoever comes after a crash waits for the
// one that was begun.
func (s Services) runProgram(ctx context.Context, r *workflow.Run, d Declared) (any, error) {
	view, err := runData(r)
	if err != nil {
		return nil, err
	}
	id, err := workflow.Step(ctx, r, fmt.Sprintf("start %d", r.Attempt), func(ctx context.Context) (engi.ExecutionID, error) {
		program := d.Program
		if program.Stdin, err = json.Marshal(view); err != nil {
			return "", engi.Errorf(engi.Invalid, "the event cannot be written down: %v", err)
		}
		x, err := s.Executions.Start(ctx, engi.ExecutionSpec{
			Owner: r.Owner, Program: program, Template: d.Template, Limits: engi.Limits{Timeout: d.Timeout}, Idempotency: fmt.Sprintf("%s/start/%d", r.ID, r.Attempt),
		})
		return x.ID, err
	})
	if err != nil {
		return nil, err
	}
	return workflow.Step(ctx, r, fmt.Sprintf("wait %d", r.Attempt), func(ctx context.Context) (programOutput, error) { return s.waitForExecution(ctx, r, id) })
}

// ended waits for the end of an execution, and ends it when the run is to end.
func (s Services) waitForExecution(ctx context.Context, r *workflow.Run, id engi.ExecutionID) (programOutput, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		select {
		case <-r.Cancelled():
			watched <- s.Executions.Cancel(context.WithoutCancel(ctx), r.Owner, id)
		case <-watching.Done():
			watched <- nil
		}
	}()
	x, err := s.Executions.Wait(ctx, r.Owner, id)
	stop()
	if why := <-watched; why != nil {
		return programOutput{}, why
	}
	if ctx.Err() == context.DeadlineExceeded {
		if err := s.Executions.Cancel(context.WithoutCancel(ctx), r.Owner, id); err != nil {
			return programOutput{}, err
		}
	}
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
	if len(out) > maxPrinted {
		out, p.Truncated = out[:maxPrinted], true
	}
	if json.Valid(out) {
		p.Output = json.RawMessage(out)
	} else {
		p.Output = string(bytes.ToValidUTF8(out, []byte("\uFFFD")))
	}
	return p, nil
}

// failure is the error of a program that did not end with 0. Another attempt
// may find another world.
func failure(id engi.ExecutionID, r engi.Result) error {
	said := bytes.TrimSpace(r.Stderr)
	if len(said) > 500 {
		said = said[len(said)-500:]
		for len(said) > 0 && !utf8.RuneStart(said[0]) {
			said = said[1:]
		}
	}
	how := fmt.Sprintf("ended with %d", r.Exit.Code)
	if r.Exit.Cause != engi.CauseExited {
		how = fmt.Sprintf("was ended for %s", r.Exit.Cause)
	} else if r.Exit.Signal != "" {
		how = "was ended by signal " + r.Exit.Signal
	}
	err := engi.Errorf(engi.Unavailable, "the program of execution %s %s: %s", id, how, bytes.ToValidUTF8(said, []byte("\uFFFD")))
	if remedy := r.Exit.Cause.Remedy(); remedy != "" {
		return err.WithRemedy("%s", remedy)
	}
	return err.WithRemedy("'engi logs %s' shows all that it printed", id)
}
