package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/cmd/engi/program"
	"github.com/engi-dev/engi/internal/engi"
)

type runCommand struct {
	Program string   `arg:"" optional:"" help:"File or directory to run; - reads the code from standard input." placeholder:"FILE"`
	Args    []string `arg:"" optional:"" help:"Arguments of the program, after --." placeholder:"ARGS"`

	Code     string            `short:"c" help:"Run this code instead of a file." placeholder:"CODE"`
	Lang     string            `short:"l" help:"Language: python, javascript, typescript, go or bash (default: from the file's extension)." placeholder:"LANG"`
	File     []string          `short:"f" help:"Another file or directory for the program; PATH=NAME gives it another name in the sandbox." placeholder:"PATH" sep:"none"`
	Entry    string            `help:"File to run, when a directory is given." placeholder:"PATH"`
	Output   string            `short:"o" help:"Write the program's artifacts below this directory." placeholder:"DIR"`
	Env      map[string]string `short:"e" help:"Environment variable of the program; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Stdin    bool              `negatable:"" default:"true" help:"Pass standard input to the program."`
	Template string            `short:"t" help:"Template (default: the node's default template)." placeholder:"NAME"`
	Tier     string            `help:"Isolation: script runs JavaScript and TypeScript in the script tier, without a sandbox; gvisor and microvm require at least that isolation." placeholder:"TIER"`
	Timeout  string            `help:"Maximum run time of the program, like 30s." placeholder:"D"`
	Memory   string            `help:"Memory of the sandbox, like 512MiB." placeholder:"SIZE"`
	VCPUs    float64           `name:"vcpus" help:"Processor time, in processors; 0.5 is half of one." placeholder:"N"`
	Disk     string            `help:"Disk space, like 1GiB." placeholder:"SIZE"`
	Pids     int               `name:"processes" help:"Maximum number of processes and threads." placeholder:"N"`
	networkFlags
	Detach bool `short:"d" help:"Start the program, print its ID, and exit; needs a running server."`
}

func (runCommand) Help() string {
	return `The program runs in a sandbox that no other program has used. Its output is printed live, and engi
exits with its exit code. If the program does not end by itself, the exit code says why:

  123  a limit on processes, disk or output    130  cancelled
  124  the timeout                             137  the memory limit
  125  engi failed, not the program

Without a running server, engi starts a node for the duration of the command.

Examples:
  engi run hello.py
  engi run -l python -c 'print(6*7)'
  engi run -l typescript -c 'const n: number = await Promise.resolve(6*7); console.log(n)'
  echo data | engi run count.py -- --lines
  engi run --timeout 2s --memory 256MiB -o results/ plot.py
  engi run --allow api.example.com --secret key@api.example.com:header=X-API-Key fetch.py
  engi run --tier script total.js    an answer in a millisecond, without files or network
  engi run -l go ./cmd-dir            a directory with go.mod and several packages
  generate | engi run -l bash -       the code itself from standard input`
}

func (r *runCommand) Run(ctx context.Context, g *globals) error {
	req, err := r.request(g)
	if err != nil {
		return err
	}
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	if engi.Tier(r.Tier) == engi.TierScript {
		return r.script(ctx, g, d, req)
	}
	if r.Detach {
		return r.detach(ctx, g, d, req)
	}
	x, err := r.stream(ctx, g, d, req)
	if err != nil {
		return err
	}
	if x.Result == nil {
		return engi.Errorf(engi.Internal, "execution %s ended without a result", x.ID)
	}
	return r.conclude(ctx, g, d, x)
}

// request reads the inputs of the program.
func (r *runCommand) request(g *globals) (v1.ExecutionRequest, error) {
	if r.Code != "" && r.Program != "" { // with code, the first word is an argument
		r.Args, r.Program = append([]string{r.Program}, r.Args...), ""
	}
	if err := r.tier(); err != nil {
		return v1.ExecutionRequest{}, err
	}
	src := program.Source{Path: r.Program, Code: r.Code, Language: r.Lang, Entry: r.Entry, Extra: r.File,
		Left: func(dir string) {
			g.note("%s is not sent: install packages in a template, or send it with -f %[1]s", dir)
		}}
	switch {
	case r.Code == "" && r.Program == "":
		return v1.ExecutionRequest{}, engi.Errorf(engi.Invalid, "no program is given").WithRemedy("name a file, give code with -c, or - to read it from standard input")
	case r.Program == "-":
		code, err := g.readStdin(maxInput)
		if err != nil {
			return v1.ExecutionRequest{}, err
		}
		if len(code) == 0 {
			return v1.ExecutionRequest{}, engi.Errorf(engi.Invalid, "standard input holds no code")
		}
		src.Path, src.Code = "", string(code)
	}
	req, err := src.Request()
	if err != nil {
		return req, err
	}
	if engi.Tier(r.Tier) != engi.TierScript {
		req.MinTier = r.Tier
	}
	req.Args, req.Env, req.Template, req.VCPUs, req.Processes = r.Args, r.Env, r.Template, r.VCPUs, r.Pids
	if req.Timeout, err = duration("--timeout", r.Timeout); err != nil {
		return req, err
	}
	if req.Memory, err = size("--memory", r.Memory); err != nil {
		return req, err
	}
	if req.Disk, err = size("--disk", r.Disk); err != nil {
		return req, err
	}
	network, err := r.policy()
	if err != nil {
		return req, err
	}
	req.Network = (*v1.NetworkChoice)(network)
	if r.VCPUs < 0 || r.Pids < 0 {
		return req, engi.Errorf(engi.Invalid, "a limit cannot be negative").WithRemedy("leave it out to get the default")
	}
	if r.Program != "-" && r.Stdin && engi.Tier(r.Tier) != engi.TierScript {
		if req.StdinBase64, err = g.pipedStdin(maxInput); err != nil {
			return req, err
		}
	}
	return req, nil
}

const maxInput = 64 << 20

func duration(flag, s string) (v1.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := v1.ParseDuration(s)
	if err != nil {
		return 0, engi.Errorf(engi.Invalid, "%s: %v", flag, err)
	}
	if d == 0 {
		return 0, engi.Errorf(engi.Invalid, "%s: the timeout must be positive", flag)
	}
	return d, nil
}

func size(flag, s string) (v1.Bytes, error) {
	if s == "" {
		return 0, nil
	}
	b, err := v1.ParseBytes(s)
	if err != nil {
		return 0, engi.Errorf(engi.Invalid, "%s: %v", flag, err)
	}
	return b, nil
}

// pipedStdin reads standard input if it is a pipe or a file. It does not read from a
// terminal.
func (g *globals) pipedStdin(limit int64) ([]byte, error) {
	info, err := g.in.Stat()
	if err != nil { // standard input is closed
		return nil, nil
	}
	if m := info.Mode(); !m.IsRegular() && m&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
		return nil, nil
	}
	// If the pipe has no data, the user should know why engi waits.
	hint := time.AfterFunc(3*time.Second, func() {
		g.note("waiting for the end of standard input; use --no-stdin if the program needs none")
	})
	defer hint.Stop()
	return g.readStdin(limit)
}

func (g *globals) readStdin(limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(g.in, limit+1))
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "read standard input: %v", err)
	}
	if int64(len(data)) > limit {
		return nil, engi.Errorf(engi.Invalid, "standard input has more than %d MiB", limit>>20).WithRemedy("pass large data as a file with -f")
	}
	return data, nil
}

func (r *runCommand) detach(ctx context.Context, g *globals, d *connection, req v1.ExecutionRequest) error {
	if d.private {
		return engi.Errorf(engi.Invalid, "--detach needs a running server").WithRemedy("start one with 'engi serve'")
	}
	x, err := d.Start(ctx, req)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.printJSON(x)
	}
	fmt.Fprintln(g.out, x.ID)
	return nil
}

// stream runs the program and prints its output. When ctx ends, it cancels
// the run and waits a moment for the result.
func (r *runCommand) stream(ctx context.Context, g *globals, d *connection, req v1.ExecutionRequest) (x v1.Execution, err error) {
	x, err = d.Start(ctx, req)
	if err != nil {
		return x, err
	}
	watch, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	cancelled := context.AfterFunc(ctx, func() {
		// The first signal cancels the run; a second one ends engi. One
		// signal may arrive twice in different ways.
		time.Sleep(200 * time.Millisecond)
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt)
		defer signal.Stop(again)
		soon, done := context.WithTimeout(watch, 5*time.Second)
		defer done()
		if err := d.Cancel(soon, x.ID); err != nil && watch.Err() == nil {
			g.note("cancel %s: %v", x.ID, err)
		}
		select {
		case <-again:
		case <-soon.Done():
		}
		giveUp()
	})
	defer cancelled()

	for e, err := range d.Watch(watch, x.ID, 0) {
		if err != nil {
			if ctx.Err() != nil {
				return x, exitCode(exitCancelled)
			}
			return x, err
		}
		if e.Execution != nil {
			x = *e.Execution
		}
		if g.JSON {
			continue // the result has the output
		}
		if err := g.printEvent(e); err != nil {
			// The reader of the output has left: exit quietly, like other programs in pipes.
			soon, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer done()
			_ = d.Cancel(soon, x.ID)
			return x, exitCode(128 + signalNumber("PIPE"))
		}
	}
	return x, nil
}

// conclude collects artifacts and converts the result to an exit code.
func (r *runCommand) conclude(ctx context.Context, g *globals, d *connection, x v1.Execution) error {
	res := x.Result
	saved := error(nil)
	if r.Output != "" {
		saved = g.save(context.WithoutCancel(ctx), d, x, r.Output)
	}
	switch {
	case g.JSON:
		if err := g.printJSON(x); err != nil {
			return err
		}
	default:
		r.remark(g, x)
	}
	if saved != nil {
		return saved
	}
	code := exitOf(*res)
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

func (r *runCommand) remark(g *globals, x v1.Execution) {
	res := x.Result
	if res.Cause != string(engi.CauseExited) {
		text := res.Error
		if text == "" {
			text = "the program was ended: " + res.Cause
		}
		g.note("%s", text)
		if res.Remedy != "" && res.Remedy != text {
			fmt.Fprintf(g.err, "  %s\n", res.Remedy)
		}
	}
	if res.ArtifactsLeft > 0 {
		g.note("%d files were over the artifact limits and were not collected", res.ArtifactsLeft)
	}
	if r.Template == "" && x.Template == "host" {
		g.note("ran with this machine's interpreters: the template base is not built ('engi template build base')")
	}
	if g.Verbose {
		g.note("%s %s: %s, exit code %d, ran %s, queued %s, claimed in %s, warm %t, tier %s, template %s",
			x.ID, res.Cause, x.Language, res.ExitCode, res.Duration, res.QueueTime, res.ClaimTime, res.Warm, res.Tier, x.Template)
	}
}

// exitOf returns the exit code for a result.
func exitOf(res v1.Result) int {
	switch engi.Cause(res.Cause) {
	case engi.CauseTimeout:
		return exitTimeout
	case engi.CauseMemory:
		return exitMemory
	case engi.CauseCancelled:
		return exitCancelled
	case engi.CauseSandboxLost:
		return exitEngi
	case engi.CauseProcesses, engi.CauseDisk, engi.CauseOutput:
		// The program may have exited by itself after it reached the limit.
		if res.ExitCode > 0 {
			return res.ExitCode
		}
		return exitLimit
	}
	if res.ExitCode >= 0 {
		return res.ExitCode
	}
	return 128 + signalNumber(res.Signal)
}

// save writes the artifacts of x below dir, each checked against its hash.
func (g *globals) save(ctx context.Context, d *connection, x v1.Execution, dir string) error {
	outputDir, err := program.OpenOutputDir(dir)
	if err != nil {
		return err
	}
	defer outputDir.Close()
	for _, a := range x.Result.Artifacts {
		err := func() error {
			body, err := d.Artifact(ctx, x.ID, a.Path)
			if err != nil {
				return err
			}
			defer body.Close()
			return outputDir.Write(a.Path, fs.FileMode(a.Mode), int64(a.Size), a.SHA256, body)
		}()
		if err != nil {
			return fmt.Errorf("artifact %.200q: %w", a.Path, err)
		}
		if !g.JSON {
			g.note("wrote %s", filepath.Join(dir, filepath.FromSlash(a.Path)))
		}
	}
	return nil
}
