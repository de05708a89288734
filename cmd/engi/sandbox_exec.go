package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"time"

	"golang.org/x/term"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type sandboxExec struct {
	ID      string   `arg:"" help:"Sandbox." placeholder:"ID"`
	Command []string `arg:"" optional:"" help:"Program and arguments, after --." placeholder:"COMMAND"`

	Code     string            `short:"c" help:"Run this shell command with /bin/sh instead." placeholder:"LINE"`
	Stdin    bool              `short:"i" help:"Pass standard input to the program even if it is a terminal."`
	Terminal bool              `short:"t" name:"tty" help:"Run the program in a terminal."`
	Detach   bool              `short:"d" help:"Start the program, print its ID, and exit."`
	Env      map[string]string `short:"e" help:"Environment variable of the program; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Dir      string            `short:"w" help:"Working directory (default: the template's, or the home directory of another user)." placeholder:"DIR"`
	User     string            `short:"u" help:"User in the sandbox (default: the template's)." placeholder:"USER"`
	Tag      string            `help:"Tag of the process, by which it can be found." placeholder:"TAG"`
	Timeout  string            `help:"Maximum run time of the program." placeholder:"D"`
}

// execFlags are the flags for a program in a sandbox.
type execFlags struct {
	Command []string `arg:"" optional:"" help:"Program and arguments, after --." placeholder:"COMMAND"`

	Code     string            `short:"c" help:"Run this shell command with /bin/sh instead." placeholder:"LINE"`
	Stdin    bool              `short:"i" help:"Pass standard input to the program even if it is a terminal."`
	Terminal bool              `short:"t" name:"tty" help:"Run the program in a terminal."`
	Env      map[string]string `short:"e" help:"Environment variable of the program; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Timeout  string            `help:"Maximum run time of the program." placeholder:"D"`
}

func (x execFlags) exec() sandboxExec {
	return sandboxExec{Command: x.Command, Code: x.Code, Stdin: x.Stdin, Terminal: x.Terminal, Env: x.Env, Timeout: x.Timeout}
}

func (sandboxExec) Help() string {
	return `The program's output is printed live, standard input is passed on, and engi exits with the program's
exit code; see 'engi run --help' for other exit codes. Ctrl-C interrupts the program. With -it, the
program runs in a terminal, from which Ctrl-] detaches without ending it.

Examples:
  engi sandbox exec $id -- python3 -c 'print(6*7)'
  engi sandbox exec $id -c 'ls | wc -l'
  tar c src | engi sandbox exec $id -- tar xC /workspace
  engi sandbox exec -it $id -- python3
  engi sandbox exec -d --tag server $id -- python3 -m http.server 8080`
}

func (s *sandboxExec) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	q := v1.ProcessRequest{Args: s.Command, Command: s.Code, Env: s.Env, Dir: s.Dir, User: s.User, Tag: s.Tag, Timeout: timeout}
	switch {
	case s.Code != "":
		q.Args, q.Command = append([]string{"/bin/sh", "-c", s.Code, "sh"}, s.Command...), ""
	case len(s.Command) == 0:
		return engi.Errorf(engi.Invalid, "no program is given").WithRemedy("name a program after --, or give a line with -c")
	}
	return g.atServer(ctx, func(d *connection) error {
		if s.Terminal && !s.Detach {
			_, err := g.inTerminal(ctx, d, s.ID, q)
			if errors.Is(err, errDetached) {
				return nil
			}
			return err
		}
		if s.Terminal {
			q.Terminal = &v1.TerminalSize{Cols: 80, Rows: 24}
		}
		q.Stdin, q.Detach = !s.Detach && (s.Stdin || g.piped()), s.Detach
		p, err := d.StartProcess(ctx, s.ID, q)
		if err != nil {
			return err
		}
		if s.Detach {
			if g.JSON {
				return g.printJSON(p.Process)
			}
			fmt.Fprintln(g.out, p.ID)
			return nil
		}
		return g.attend(ctx, p, q.Stdin)
	})
}

// piped reports whether standard input is a pipe or a file.
func (g *globals) piped() bool {
	info, err := g.in.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0)
}

// attend copies input and output until the process ends, and returns its exit
// code. The first signal interrupts the process, the second kills it.
func (g *globals) attend(ctx context.Context, p *client.Process, stdin bool) error {
	watch, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	if stdin {
		// The goroutine is not waited for, because a read of a terminal cannot be interrupted.
		go func() {
			if err := p.Input(watch, g.in); err == nil {
				_ = p.CloseInput(watch) // the process may have ended
			}
		}()
	}
	stop := context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt)
		defer signal.Stop(again)
		_ = p.Signal(watch, "INT")
		select {
		case <-again:
			soon, done := context.WithTimeout(watch, 2*time.Second)
			defer done()
			_ = p.Signal(soon, "KILL")
			giveUp()
		case <-watch.Done():
		}
	})
	defer stop()
	for e, err := range p.Output(watch, 0) {
		if err != nil {
			if ctx.Err() != nil {
				return exitCode(exitCancelled)
			}
			return err
		}
		if g.JSON {
			if err := g.printLine(e); err != nil {
				return err
			}
		} else if err := g.printProcessEvent(e); err != nil {
			_ = p.Signal(watch, "PIPE") // the reader of the output has left
			return exitCode(128 + signalNumber("PIPE"))
		}
		if e.Exit != nil {
			if e.Exit.Cause != string(engi.CauseExited) && !g.JSON {
				g.note("the program was ended: %s", e.Exit.Cause)
			}
			return endLike(*e.Exit)
		}
	}
	return nil
}

// detachKey is Ctrl-], with which the user detaches.
const detachKey = 0x1d

// inTerminal starts a program in a terminal and shows the terminal here until the program ends,
// or until the user detaches: errDetached.
func (g *globals) inTerminal(ctx context.Context, d *connection, sandbox string, q v1.ProcessRequest) (*client.Process, error) {
	cols, rows := g.windowSize()
	q.Terminal = &v1.TerminalSize{Cols: cols, Rows: rows}
	if v := os.Getenv("TERM"); v != "" && q.Env["TERM"] == "" {
		q.Env = withVariable(q.Env, "TERM", v)
	}
	q.Detach = true
	p, err := d.StartProcess(ctx, sandbox, q)
	if err != nil {
		return nil, err
	}
	return p, g.show(ctx, p)
}

func withVariable(env map[string]string, name, value string) map[string]string {
	all := map[string]string{name: value}
	for k, v := range env {
		all[k] = v
	}
	return all
}

func (g *globals) windowSize() (cols, rows int) {
	if c, r, err := term.GetSize(int(g.in.Fd())); err == nil && c > 0 && r > 0 {
		return c, r
	}
	return 80, 24
}

// show connects a process's terminal to this one.
func (g *globals) show(ctx context.Context, p *client.Process) error {
	t, err := p.Terminal(ctx, false)
	if err != nil {
		return err
	}
	return g.view(ctx, &processView{Terminal: t, ctx: context.WithoutCancel(ctx)})
}

// processView shows a process in the terminal that belongs to the process.
type processView struct {
	*client.Terminal
	ctx context.Context // context of writes; the end of a write's context would break the connection
}

func (v *processView) Write(typed []byte) (int, error) {
	return len(typed), v.Terminal.Write(v.ctx, typed)
}
func (v *processView) Resize(cols, rows int)       { _ = v.Terminal.Resize(v.ctx, cols, rows) } // Output notices an error
func (v *processView) Flush(context.Context) error { return nil }

type sandboxShell struct {
	ID   string `arg:"" help:"Sandbox." placeholder:"ID"`
	User string `short:"u" help:"User in the sandbox (default: the template's)." placeholder:"USER"`
	Dir  string `short:"w" help:"Working directory." placeholder:"DIR"`
	New  bool   `help:"Start a new shell even if an earlier one is still running."`
}

func (sandboxShell) Help() string {
	return `Reattaches to the shell that was left with Ctrl-], and prints the output since then. If there is
none, starts a shell.

Examples:
  engi sandbox shell sbx_u2dmwmlezjgprkqrgppgcz2mgu`
}

func (s *sandboxShell) Run(ctx context.Context, g *globals) error {
	return g.shell(ctx, s.ID, s.User, s.Dir, s.New)
}

type shellCommand struct {
	Template string `arg:"" optional:"" help:"Template (default: the node's default template)." placeholder:"TEMPLATE"`
	Keep     bool   `help:"Keep the sandbox when the shell ends."`
	User     string `short:"u" help:"User in the sandbox (default: the template's)." placeholder:"USER"`
	sandboxFlags
}

func (shellCommand) Help() string {
	return `The sandbox is destroyed when its shell exits, unless --keep is given. Ctrl-] detaches and leaves
both running: 'engi sandbox shell ID' reattaches. engi exits with the exit code of the shell.
Without a running server, engi starts a node for the duration of the command.

Examples:
  engi shell
  engi shell python-data --memory 2GiB --volume data:/data
  engi shell --keep --timeout 8h`
}

func (s *shellCommand) Run(ctx context.Context, g *globals) (err error) {
	q, err := s.request(s.Template)
	if err != nil {
		return err
	}
	if q.Timeout == 0 {
		q.Timeout = v1.Duration(time.Hour)
	}
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	b, err := d.CreateSandbox(ctx, q)
	if err != nil {
		return err
	}
	g.note("sandbox %s; Ctrl-] leaves it running", b.ID)
	kept := false
	defer func() {
		if kept || d.private {
			return
		}
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if serr := d.StopSandbox(soon, b.ID); serr != nil && err == nil {
			err = serr
		}
	}()
	t, err := d.CreateTerminal(ctx, b.ID, g.terminalRequest(s.User, ""))
	if err != nil {
		return err
	}
	err = g.attach(ctx, d, b.ID, t.ID, client.AttachOptions{})
	if errors.Is(err, errDetached) && !d.private {
		kept = true
		return g.leave(err, "sandbox", b.ID)
	}
	if errors.Is(err, errDetached) {
		return nil // the node ends with this command, and the sandbox with the node
	}
	if kept = s.Keep; kept && !d.private {
		g.note("kept %s", b.ID)
	}
	return err
}
