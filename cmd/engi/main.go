// Command engi runs code in sandboxes. It is the server, the command line for local
// and remote servers, and, if no server runs, a node for the duration of one
// command. There is a file for each command; package node assembles the node.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// Variables that the build sets.
var (
	version = "unknown"
	commit  = "unknown"
)

// Exit codes. Those of "engi run" are in docs/cli.md; a program's own exit code
// takes precedence.
const (
	exitFailed    = 1   // engi could not perform the command
	exitUsage     = 2   // the command line is invalid
	exitLimit     = 123 // run: a limit other than time and memory ended the program
	exitTimeout   = 124 // run: the program ran too long
	exitEngi      = 125 // run: engi failed, not the program
	exitCancelled = 130 // run: cancelled
	exitMemory    = 137 // run: the program used too much memory
)

// An exitCode ends engi without a message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// globals are the flags of all commands.
type globals struct {
	JSON    bool     `help:"Print JSON." group:"Everywhere"`
	URL     string   `help:"URL of the server (ENGI_URL; default: the server of the data directory)." placeholder:"URL" group:"Everywhere"`
	Key     string   `help:"API key; prefer the environment variable ENGI_KEY, which other users cannot see." placeholder:"KEY" group:"Everywhere"`
	DataDir string   `help:"Data directory of the node (ENGI_DATA_DIR)." placeholder:"DIR" group:"Everywhere"`
	Config  string   `help:"Configuration file (ENGI_CONFIG; default: config.toml in the data directory or /etc/engi)." placeholder:"FILE" group:"Everywhere"`
	Set     []string `help:"Set one configuration key, like limits.memory=1GiB; may be repeated." placeholder:"KEY=VALUE" sep:"none" group:"Everywhere"`
	Verbose bool     `short:"v" help:"Print more details on standard error." group:"Everywhere"`

	in       *os.File
	out, err io.Writer
}

type commands struct {
	globals

	Run       runCommand       `cmd:"" help:"Run a program in a sandbox."`
	Script    scriptCommand    `cmd:"" help:"Run a small JavaScript or TypeScript program within milliseconds."`
	Serve     serveCommand     `cmd:"" help:"Serve the API."`
	Status    statusCommand    `cmd:"" help:"Show the server's address and whether it is ready."`
	Stop      stopCommand      `cmd:"" help:"Stop the server. Sandboxes keep running."`
	Open      openCommand      `cmd:"" help:"Open the dashboard in a browser."`
	Ps        psCommand        `cmd:"" help:"List executions, sandboxes or pools."`
	Logs      logsCommand      `cmd:"" help:"Print the output of an execution."`
	Cancel    cancelCommand    `cmd:"" help:"Cancel executions."`
	Shell     shellCommand     `cmd:"" help:"Open a terminal in a new sandbox."`
	Sandbox   sandboxCommand   `cmd:"" help:"Create and use sandboxes."`
	Net       netCommand       `cmd:"" help:"Manage the network access of sandboxes, and its log."`
	Mirror    mirrorCommand    `cmd:"" help:"Manage the cache of public package registries."`
	Session   sessionCommand   `cmd:"" help:"Run code in long-lived sessions, with packages and persistent files."`
	App       appCommand       `cmd:"" help:"Create web applications from the text of models, and roll them back."`
	Workspace workspaceCommand `cmd:"" help:"Manage shared files with a history, databases and other services."`
	Workflow  workflowCommand  `cmd:"" help:"Have work in a workspace reviewed, revised, and approved or rejected."`
	Page      pageCommand      `cmd:"" help:"Use the pages that a model writes in sessions."`
	Terminal  terminalCommand  `cmd:"" help:"Use, share and record terminals of sessions and sandboxes."`
	Chat      chatCommand      `cmd:"" help:"Chat with an agent that runs code."`
	Agent     agentCommand     `cmd:"" help:"Show agents and their runs."`
	Events    eventsCommand    `cmd:"" help:"Show and send events, and show the durable functions that they start."`
	Webhook   webhookCommand   `cmd:"" help:"Send events to URLs."`
	Approvals approvalsCommand `cmd:"" help:"Decide on requests of sandboxes that wait for approval."`
	Mcp       mcpCommand       `cmd:"" name:"mcp" help:"Serve sandboxes to agents of other programs (MCP), or list the MCP servers that this node's agents use."`
	Docs      docsCommand      `cmd:"" help:"Manage the documentation that agents search."`
	Volume    volumeCommand    `cmd:"" help:"Manage directories that outlive sandboxes."`
	Snapshot  snapshotCommand  `cmd:"" help:"Manage snapshots of sandboxes."`
	Secret    secretCommand    `cmd:"" help:"Manage secrets, whose values never enter a sandbox."`
	Template  templateCommand  `cmd:"" help:"Build and manage templates."`
	Operation operationCommand `cmd:"" help:"Watch and cancel background work."`
	Key       keyCommand       `cmd:"" name:"key" help:"Create, list and revoke API keys."`
	SSH       sshCommand       `cmd:"" name:"ssh" help:"Open a shell or run a command in a session, sandbox or workspace over SSH."`
	SSHConfig sshConfigCommand `cmd:"" name:"ssh-config" help:"Configure ssh, scp, rsync, git and editors to find sessions and sandboxes."`
	SSHKey    sshKeyCommand    `cmd:"" name:"ssh-key" help:"Add, list and delete public keys for SSH."`
	TLS       tlsCommand       `cmd:"" name:"tls" help:"Create certificates for HTTPS."`
	Doctor    doctorCommand    `cmd:"" help:"Check whether this machine can run sandboxes."`
	Attack    attackCommand    `cmd:"" help:"Attack a node as hostile programs and tenants would, and report which defences held."`
	Bench     benchCommand     `cmd:"" help:"Run benchmarks."`
	Config    configCommand    `cmd:"" name:"config" help:"Show and check the configuration."`
	Version   versionCommand   `cmd:"" help:"Print versions and digests."`
}

func main() {
	enter(os.Args[1:])
	os.Exit(engiMain(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// engiMain runs the program and returns its exit code.
func engiMain(args []string, in *os.File, out, errOut io.Writer) int {
	var c commands
	c.in, c.out, c.err = in, out, errOut
	done := -1
	parser, err := newParser(&c, out, errOut, func(code int) { done = code })
	if err != nil {
		fmt.Fprintln(errOut, "engi:", err) // unreachable: the commands are fixed
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	k, err := parser.Parse(args)
	if done >= 0 { // the help was printed
		return done
	}
	ours := exitFailed
	if len(args) > 0 && (args[0] == "run" || args[0] == "shell" || args[0] == "ssh") ||
		len(args) > 1 && (args[0] == "sandbox" || args[0] == "box") && (args[1] == "exec" || args[1] == "shell") {
		ours = exitEngi // other codes belong to the program
	}
	if err != nil {
		fmt.Fprintf(errOut, "engi: %v\n", err)
		var p *kong.ParseError
		if errors.As(err, &p) && p.Context.Selected() != nil {
			fmt.Fprintf(errOut, "See 'engi %s --help'.\n", p.Context.Selected().Path())
		} else {
			fmt.Fprintln(errOut, "See 'engi --help'.")
		}
		if ours == exitEngi {
			return exitEngi
		}
		return exitUsage
	}
	// A closed pipe must not kill this process before sandboxes are destroyed:
	// the write fails, and the command cleans up.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	err = k.Run(&c.globals)
	// A joined error hides the remedy, and kong joins even a single error.
	if many, ok := err.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) == 1 {
		err = many.Unwrap()[0]
	}
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	c.complain(err)
	return ours
}

func newParser(c *commands, out, errOut io.Writer, exit func(int)) (*kong.Kong, error) {
	// These commands have functions in their fields.
	c.Agent, c.App, c.Docs, c.Events, c.Key, c.Mcp, c.Operation = agentCommands, appCommands, docsCommands, eventsCommands, keyCommands, mcpCommands, operationCommands
	c.Sandbox, c.Secret, c.Session, c.Snapshot, c.SSHKey, c.Volume, c.Webhook = sandboxCommands, secretCommands, sessionCommands, snapshotCommands, sshKeyCommands, volumeCommands, webhookCommands
	c.Workspace = workspaceCommands
	c.Workflow = workflowCommands
	return kong.New(c, kong.Name("engi"),
		kong.Description("engi runs the code that language models write, in sandboxes on your own machine."),
		kong.Writers(out, errOut), kong.Exit(exit), kong.ShortUsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 100}),
		kong.ExplicitGroups([]kong.Group{{Key: "Everywhere", Title: "Flags of every command:"}}),
	)
}

// complain prints an error and its remedy.
func (g *globals) complain(err error) {
	text, remedy, kind := err.Error(), engi.RemedyOf(err), engi.KindOf(err).String()
	if e, ok := errors.AsType[*client.Error](err); ok {
		text, remedy, kind = err.Error(), e.Remedy, e.Kind
	}
	if g.JSON {
		json.NewEncoder(g.err).Encode(map[string]string{"error": text, "kind": kind, "remedy": remedy})
		return
	}
	fmt.Fprintf(g.err, "engi: %s\n", text)
	if remedy != "" {
		fmt.Fprintf(g.err, "  %s\n", remedy)
	}
}

// printEvent prints an event of an execution: its output to the same stream, or
// the event as a line of JSON.
func (g *globals) printEvent(e v1.ExecutionUpdate) error {
	if g.JSON {
		return json.NewEncoder(g.out).Encode(e)
	}
	to := g.out
	switch e.Type {
	case v1.EventStderr:
		to = g.err
	case v1.EventStdout:
	default:
		return nil
	}
	data := []byte(e.Data)
	if e.DataBase64 != nil {
		data = e.DataBase64
	}
	_, err := to.Write(data)
	return err
}

// printLine prints v as one line of JSON.
func (g *globals) printLine(v any) error { return json.NewEncoder(g.out).Encode(v) }

// note prints a message for users, which is not part of the output.
func (g *globals) note(format string, args ...any) {
	fmt.Fprintf(g.err, "engi: "+format+"\n", args...)
}

// printJSON prints v, indented.
func (g *globals) printJSON(v any) error {
	e := json.NewEncoder(g.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the number of columns of terminal w; 0 if it is not a terminal.
func width(w any) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			return columns
		}
	}
	return 0
}
