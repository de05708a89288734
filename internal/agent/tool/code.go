package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

type executeCodeArgs struct {
	Language string `json:"language" jsonschema:"python, javascript, typescript, go or bash" enum:"python,javascript,typescript,go,bash"`
	Code     string `json:"code" jsonschema:"a complete program; files it writes to the working directory are returned"`
	Timeout  int    `json:"timeout_seconds,omitempty" jsonschema:"default: 30"`
}

type runCodeArgs struct {
	Code        string `json:"code" jsonschema:"TypeScript; the value of the last expression is the result; files in /workspace are kept"`
	Description string `json:"description,omitempty" jsonschema:"purpose of the code, in a few words"`
}

type runCommandArgs struct {
	Command string `json:"command" jsonschema:"a command line for bash"`
	Dir     string `json:"dir,omitempty" jsonschema:"absolute path; default: the working directory"`
	Timeout int    `json:"timeout_seconds,omitempty" jsonschema:"default: 60, at most 600"`
}

const (
	maxTimeout = 600 // maximum timeout in seconds
	maxImages  = 4
	maxImage   = 4 << 20 // maximum bytes of an image
	maxOutput  = 1 << 20 // maximum bytes of stdout, and of stderr
	// claimTimeout is the maximum wait of a call for a sandbox.
	claimTimeout = 30 * time.Second
)

func codeTools(s Services) ([]Tool, error) {
	var all []Tool
	if s.Executions != nil {
		t, err := Returning[report](New("execute_code", "Runs a program in a fresh sandbox and returns its output, its exit code and the files it wrote.",
			func(ctx context.Context, c *Call, a executeCodeArgs) (Result, error) { return s.executeCode(ctx, c, a) }))
		if err != nil {
			return nil, err
		}
		t.Repeatable = true // only the result leaves the sandbox of a call
		all = append(all, t)
	}
	if s.Sessions != nil {
		t, err := Returning[codeResult](New("run_code", "Runs TypeScript in the session's sandbox and returns the value of the last expression and the output. Files in /workspace are kept between calls.",
			func(ctx context.Context, c *Call, a runCodeArgs) (Result, error) { return s.runCode(ctx, c, a) }))
		if err != nil {
			return nil, err
		}
		t.Needs, t.Prompt = NeedSession, s.codePrompt
		all = append(all, t)
	}
	if s.Sandboxes != nil || s.Sessions != nil {
		t, err := Returning[report](New("run_command", "Runs a shell command in the sandbox and returns its output and exit code.",
			func(ctx context.Context, c *Call, a runCommandArgs) (Result, error) { return s.runCommand(ctx, c, a) }))
		if err != nil {
			return nil, err
		}
		t.Needs = NeedGuest
		all = append(all, t)
	}
	return all, nil
}

func parseTimeout(n, def int) (time.Duration, error) {
	if n < 0 || n > maxTimeout {
		return 0, engi.Errorf(engi.Invalid, "a timeout of %d seconds is not between 1 and %d", n, maxTimeout)
	}
	if n == 0 {
		n = def
	}
	return time.Duration(n) * time.Second, nil
}

func (s Services) executeCode(ctx context.Context, c *Call, a executeCodeArgs) (Result, error) {
	timeout, err := parseTimeout(a.Timeout, 30)
	if err != nil {
		return Result{}, err
	}
	lang := engi.Language(strings.ToLower(a.Language))
	name := lang.MainFile()
	if name == "" {
		return Result{}, engi.Errorf(engi.Invalid, "language %.40q is not supported", a.Language).WithRemedy("use python, javascript, typescript, go or bash")
	}
	x, err := s.Executions.Start(ctx, engi.ExecutionSpec{
		Owner:   c.Owner,
		Program: engi.Program{Language: lang, Files: []engi.SourceFile{{Path: name, Data: []byte(a.Code)}}, Entry: name},
		Limits:  engi.Limits{Timeout: timeout},
		// A model would retry without a wait.
		ClaimTimeout: claimTimeout,
		// A call that is repeated after a restart finds its execution.
		Idempotency: string(c.Run) + "/" + c.ID,
	})
	if err != nil {
		return Result{}, err
	}
	patient := ctx
	if c.Patience > 0 {
		var cancel context.CancelFunc
		patient, cancel = context.WithTimeout(ctx, c.Patience)
		defer cancel()
	}
	for e, err := range s.Executions.Watch(patient, c.Owner.Viewer(), x.ID, 0) {
		if err != nil {
			if ctx.Err() == nil && patient.Err() != nil {
				return Result{Text: "it goes on as " + string(x.ID), GoesOn: x.ID}, nil
			}
			if ctx.Err() != nil {
				// The run has ended, so its program must end too.
				stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				_ = s.Executions.Cancel(stop, c.Owner.Viewer(), x.ID)
				cancel()
			}
			return Result{}, err
		}
		if e.Type == engi.EventStdout || e.Type == engi.EventStderr {
			stream := engi.Stdout
			if e.Type == engi.EventStderr {
				stream = engi.Stderr
			}
			c.Out(stream, e.Data)
		}
	}
	x, err = s.Executions.Wait(ctx, c.Owner.Viewer(), x.ID)
	if err != nil {
		return Result{}, err
	}
	return s.ExecutionResult(ctx, x)
}

// ExecutionResult returns the result of execute_code for its program, which has
// ended.
func (s Services) ExecutionResult(ctx context.Context, x engi.Execution) (Result, error) {
	if x.Result == nil {
		return Failure(x.Refusal), nil
	}
	r := x.Result
	stdout, stderr, cut := string(r.Stdout), string(r.Stderr), r.StdoutTruncated || r.StderrTruncated
	p := reportOf(stdout, stderr, r.Exit, cut)
	out := Result{Text: programReport(stdout, stderr, r.Exit, cut), Failed: r.Exit.Cause != engi.CauseExited || r.Exit.Code != 0}
	if r.Error != "" {
		out.Text += "\nerror: " + r.Error
	}
	var files strings.Builder
	for _, f := range r.Artifacts {
		at := url.URL{Path: "/v1/executions/" + string(x.ID) + "/artifacts/" + f.Path}
		fmt.Fprintf(&files, "\nfile: %s (%d bytes, %s)", f.Path, f.Size, at.EscapedPath())
		p.Files = append(p.Files, reportFile{f.Path, f.Size, at.EscapedPath()})
		kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(f.Path)), ";")
		if len(out.Images) == maxImages || f.Size > maxImage || !slices.Contains(engi.ImageTypes(), kind) {
			continue
		}
		data, err := s.artifact(ctx, x, f.Path)
		if err != nil {
			return Result{}, err
		}
		out.Images = append(out.Images, engi.Image{MediaType: kind, Data: data})
	}
	out.Text += files.String()
	out.Data = p
	return out, nil
}

func (s Services) artifact(ctx context.Context, x engi.Execution, name string) ([]byte, error) {
	f, err := s.Executions.Artifact(ctx, x.Owner.Viewer(), x.ID, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, maxImage)
}

// A report describes the end of a program, in the form for programs.
type report struct {
	Code      int          `json:"exit_code"`
	Signal    string       `json:"signal,omitempty" jsonschema:"signal that killed the program"`
	Cause     string       `json:"cause,omitempty" jsonschema:"reason of the end, if the program did not end by itself"`
	Stdout    string       `json:"stdout"`
	Stderr    string       `json:"stderr"`
	Truncated bool         `json:"truncated" jsonschema:"some of the output is missing"`
	Files     []reportFile `json:"files,omitempty" jsonschema:"files that the program wrote"`
}

type reportFile struct {
	Path string `json:"path"`
	Size int64  `json:"size" jsonschema:"in bytes"`
	URL  string `json:"url" jsonschema:"URL of the file, below the server's address"`
}

// maxReported is the maximum size in bytes of each output in a report.
const maxReported = 48 << 10

func reportOf(stdout, stderr string, e engi.Exit, cut bool) report {
	p := report{Code: e.Code, Signal: e.Signal, Truncated: cut || len(stdout) > maxReported || len(stderr) > maxReported}
	if e.Cause != engi.CauseExited {
		p.Cause = string(e.Cause)
	}
	head := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxReported)], "\ufffd") }
	p.Stdout, p.Stderr = head(stdout), head(stderr)
	return p
}

// programReport returns the text that a model sees for a program that has ended.
func programReport(stdout, stderr string, e engi.Exit, cut bool) string {
	var b strings.Builder
	if e.Signal != "" {
		fmt.Fprintf(&b, "killed by signal %s", e.Signal)
	} else {
		fmt.Fprintf(&b, "exit code %d", e.Code)
	}
	if e.Cause != engi.CauseExited && e.Cause != "" {
		fmt.Fprintf(&b, ", ended by %s: %s", e.Cause, e.Cause.Remedy())
	}
	if cut {
		b.WriteString("\n(some of the output is missing)")
	}
	if stdout != "" {
		b.WriteString("\nstdout:\n" + strings.ToValidUTF8(stdout, "\ufffd"))
	}
	if stderr != "" {
		b.WriteString("\nstderr:\n" + strings.ToValidUTF8(stderr, "\ufffd"))
	}
	return b.String()
}

func (s Services) runCode(ctx context.Context, c *Call, a runCodeArgs) (Result, error) {
	r, err := s.Sessions.RunCode(ctx, c.Owner.Viewer(), c.Session, engi.CodeSpec{Code: a.Code}, func(chunk engi.Chunk) { c.Out(chunk.Stream, chunk.Data) })
	if err != nil {
		return Result{}, err
	}
	failure := ""
	if r.Error != nil {
		failure = r.Error.Error()
	}
	answer := codeResult{Success: r.OK, Error: failure, Stdout: r.Stdout, Stderr: r.Stderr}
	if len(r.Value) > 0 {
		answer.Result = r.Value
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return Result{}, engi.Errorf(engi.Internal, "encode the result: %v", err)
	}
	return Result{Text: string(raw), Data: answer, Failed: !r.OK}, nil
}

// A codeResult is the result of code in a session.
type codeResult struct {
	Success bool   `json:"success"`
	Result  any    `json:"result,omitempty" jsonschema:"the value of the last expression"`
	Error   string `json:"error,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	Stderr  string `json:"stderr,omitempty"`
}

func (s Services) runCommand(ctx context.Context, c *Call, a runCommandArgs) (Result, error) {
	timeout, err := parseTimeout(a.Timeout, 60)
	if err != nil {
		return Result{}, err
	}
	g, release, err := s.enterGuest(ctx, c)
	if err != nil {
		return Result{}, err
	}
	defer release()
	proc, err := g.Start(ctx, engi.Command{Args: []string{"/bin/bash", "-c", a.Command}, Dir: a.Dir, Timeout: timeout, Output: maxOutput})
	if err != nil {
		return Result{}, err
	}
	var out [2]strings.Builder
	cut := false
	for chunk, err := range proc.Output(ctx, 0) {
		if err != nil {
			if ctx.Err() != nil {
				stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				_ = proc.Signal(stop, "KILL")
				cancel()
			}
			return Result{}, err
		}
		c.Out(chunk.Stream, chunk.Data)
		b := &out[0]
		if chunk.Stream == engi.Stderr {
			b = &out[1]
		}
		if b.Len()+len(chunk.Data) > maxOutput {
			cut = true
			continue
		}
		b.Write(chunk.Data)
	}
	exit, err := proc.Wait(ctx)
	if err != nil {
		return Result{}, err
	}
	stdout, stderr := out[0].String(), out[1].String()
	return Result{Text: programReport(stdout, stderr, exit, cut), Data: reportOf(stdout, stderr, exit, cut), Failed: exit.Code != 0}, nil
}
