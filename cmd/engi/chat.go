package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type chatCommand struct {
	Message   string `arg:"" optional:"" help:"Message; - reads it from standard input. Without a message, an interactive conversation starts." placeholder:"MESSAGE"`
	Agent     string `help:"Agent to talk to; 'engi agent list' shows them." placeholder:"NAME"`
	Model     string `help:"Model instead of the agent's, as provider:model." placeholder:"MODEL"`
	Sandbox   string `help:"Sandbox for the agent's tools." placeholder:"ID"`
	Session   string `help:"Session for the agent's tools." placeholder:"SESSION"`
	Workspace string `help:"Workspace for the agent's tools, which is started if it is stopped." placeholder:"WORKSPACE"`
	Resume    string `help:"Continue a conversation." placeholder:"ID"`

	Confirm []string `help:"Tools whose calls wait for a decision, which you are asked for; * means all." placeholder:"TOOL"`

	lines <-chan string // lines of standard input, after the first question
}

func (chatCommand) Help() string {
	return `Shows the agent's text, its tool calls and the output of programs live. In a conversation, an empty
line or the end of input exits, and Ctrl-C stops the answer. Without a configured model, the
scripted demo model answers.

Examples:
  engi chat
  engi chat 'write a function to parse CSV and show me it works'
  engi chat --agent coder --sandbox sbx_... 'why does the test fail?'
  engi chat --workspace shop 'add a page with our hours'
  engi chat --confirm run_command,write_file 'update the dependencies'`
}

func (c *chatCommand) Run(ctx context.Context, g *globals) error {
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	agent := c.Agent
	if agent == "" {
		all, err := d.Agents(ctx)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return engi.Errorf(engi.Unsupported, "this node has no agents")
		}
		agent = all[0].Name
	}
	q := v1.RunRequest{Model: c.Model, SandboxID: c.Sandbox, Session: c.Session, Workspace: c.Workspace, ConversationID: c.Resume, Confirm: c.Confirm}
	if c.Message == "-" { // questions are not possible
		raw, err := io.ReadAll(io.LimitReader(g.in, 1<<20))
		if err != nil {
			return engi.Errorf(engi.Unavailable, "read standard input: %v", err)
		}
		c.Message = string(raw)
	} else if c.Message != "" && len(c.Confirm) > 0 {
		c.lines = g.lines()
	}
	if c.Message != "" {
		q.Input = c.Message
		_, err := c.say(ctx, g, d, agent, q)
		return err
	}
	c.lines = g.lines()
	for {
		fmt.Fprint(g.err, "> ")
		select {
		case q.Input = <-c.lines: // also empty at the end of input
		case <-ctx.Done():
			q.Input = ""
		}
		if q.Input == "" {
			fmt.Fprintln(g.err)
			return nil
		}
		x, err := c.say(ctx, g, d, agent, q)
		if err != nil {
			return err
		}
		q.ConversationID = x.ConversationID
	}
}

// say sends one message and prints the answer as it arrives.
func (c *chatCommand) say(ctx context.Context, g *globals, d *connection, agent string, q v1.RunRequest) (v1.AgentRun, error) {
	x, err := d.StartRun(ctx, agent, q)
	if err != nil {
		return x, err
	}
	for e, err := range d.WatchRun(ctx, x.ID, 0) {
		if err != nil {
			if ctx.Err() != nil {
				stop := context.WithoutCancel(ctx)
				if err := d.CancelRun(stop, x.ID); err != nil {
					g.note("the run %s goes on: %v", x.ID, err)
				}
			}
			return x, err
		}
		if g.JSON {
			if err := g.printLine(e); err != nil {
				return x, err
			}
		} else {
			c.show(g, e)
		}
		if e.Type == "waiting" {
			if err := c.ask(ctx, g, d, x.ID, *e.Call); err != nil {
				return x, err
			}
		}
		if e.Run != nil {
			x = *e.Run
		}
	}
	if !g.JSON {
		fmt.Fprintln(g.out)
	}
	switch x.State {
	case v1.AgentFailed:
		return x, engi.Errorf(engi.ParseKind(x.Error.Kind), "%s", x.Error.Detail).WithRemedy("%s", x.Error.Remedy)
	case v1.AgentStopped:
		g.note("stopped by a limit: %s", x.Reason)
	}
	return x, nil
}

// ask asks the user for a decision on a call, if input is interactive.
func (c *chatCommand) ask(ctx context.Context, g *globals, d *connection, run string, call v1.ToolCall) error {
	leave := func() error {
		g.note("%s waits for a decision: engi agent allow %s %s", call.Name, run, call.ID)
		return nil
	}
	if c.lines == nil || g.JSON {
		return leave()
	}
	showCall(g, call)
	fmt.Fprint(g.err, "allow? [y, n or why not, Enter to leave it] ")
	var line string
	select {
	case line = <-c.lines:
	case <-ctx.Done():
	}
	if line == "" {
		fmt.Fprintln(g.err)
		return leave()
	}
	answer := v1.CallDecision{Allow: new(strings.EqualFold(line, "y"))}
	if !*answer.Allow && !strings.EqualFold(line, "n") {
		answer.Reason = line
	}
	err := d.DecideCall(ctx, run, call.ID, answer)
	if client.IsKind(err, v1.Conflict) || client.IsKind(err, v1.Denied) {
		g.complain(err)
		return nil // others may decide, or have decided
	}
	return err
}

// show prints one event: text on standard output, tool calls on standard error.
func (c *chatCommand) show(g *globals, e v1.AgentUpdate) {
	switch e.Type {
	case "text":
		fmt.Fprint(g.out, e.Text)
	case "again":
		fmt.Fprintln(g.err, "\n(the answer broke off; again)")
	case "call":
		showCall(g, *e.Call)
	case "stdout", "stderr":
		fmt.Fprint(g.err, e.Text)
	case "result":
		if e.Result != nil && e.Result.Failed {
			fmt.Fprintf(g.err, "[%s failed]\n", e.Result.Name)
		}
	}
}

// showCall prints a call. It escapes control characters of the model.
func showCall(g *globals, call v1.ToolCall) {
	for line := range strings.SplitSeq(fmt.Sprintf("\n[%s] %s", call.Name, brief(call.Arguments)), "\n") {
		fmt.Fprintln(g.err, printable(strings.ReplaceAll(line, "\t", "    ")))
	}
}

// brief returns the arguments of a call for users: code unchanged, the rest in one
// line. It omits nothing, since users decide by it.
func brief(arguments string) string {
	var a map[string]any
	if json.Unmarshal([]byte(arguments), &a) != nil {
		return arguments
	}
	code, isCode := a["code"].(string)
	if isCode {
		delete(a, "code")
	}
	raw, err := json.Marshal(a)
	if err != nil {
		return arguments
	}
	if isCode {
		return string(raw) + "\n" + strings.TrimRight(code, "\n")
	}
	return string(raw)
}
