package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/engi-dev/engi"
	v1 "github.com/engi-dev/engi/api/v1"
)

type chatCommand struct {
	Message string `arg:"" optional:"" help:"What to say; - reads it from standard input. Without it a conversation begins." placeholder:"MESSAGE"`
	Agent   string `help:"Agent to talk to; 'engi agent list' shows them." placeholder:"NAME"`
	Model   string `help:"Model instead of the agent's, as provider:model." placeholder:"MODEL"`
	Sandbox string `help:"Sandbox that its tools use." placeholder:"ID"`
	Session string `help:"Session that its tools use." placeholder:"SESSION"`
	Resume  string `help:"Continue a conversation." placeholder:"ID"`
}

func (chatCommand) Help() string {
	return `Shows what the agent says, which tools it uses and what programs print, while it happens.
In a conversation an empty line or end of input leaves, and Ctrl-C ends the answer.
Without a configured model the demo model answers, which follows a script.

Examples:
  engi chat
  engi chat 'write a function to parse CSV and show me it works'
  engi chat --agent coder --sandbox sbx_... 'why does the test fail?'`
}

// Run implements the command.
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
	q := v1.RunRequest{Model: c.Model, SandboxID: c.Sandbox, Session: c.Session, ConversationID: c.Resume}
	if c.Message == "-" {
		raw, err := io.ReadAll(io.LimitReader(g.in, 1<<20))
		if err != nil {
			return engi.Errorf(engi.Unavailable, "read standard input: %v", err)
		}
		c.Message = string(raw)
	}
	if c.Message != "" {
		q.Input = c.Message
		_, err := c.say(ctx, g, d, agent, q)
		return err
	}
	in := bufio.NewScanner(g.in)
	in.Buffer(nil, 1<<20)
	for {
		fmt.Fprint(g.err, "> ")
		if !in.Scan() || strings.TrimSpace(in.Text()) == "" {
			fmt.Fprintln(g.err)
			return nil
		}
		q.Input = in.Text()
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

// show prints one event: text on standard output, tool calls on standard error.
func (c *chatCommand) show(g *globals, e v1.AgentUpdate) {
	switch e.Type {
	case "text":
		fmt.Fprint(g.out, e.Text)
	case "again":
		fmt.Fprintln(g.err, "\n(the answer broke off; again)")
	case "call":
		fmt.Fprintf(g.err, "\n[%s] %s\n", e.Call.Name, brief(e.Call.Arguments))
	case "stdout", "stderr":
		fmt.Fprint(g.err, e.Text)
	case "result":
		if e.Result != nil && e.Result.Failed {
			fmt.Fprintf(g.err, "[%s failed]\n", e.Result.Name)
		}
	}
}

// brief returns a tool call for people: code as it is, the rest in one line.
func brief(arguments string) string {
	var a map[string]any
	if json.Unmarshal([]byte(arguments), &a) != nil {
		return arguments
	}
	if code, ok := a["code"].(string); ok {
		return fmt.Sprint(a["language"]) + "\n" + strings.TrimRight(code, "\n")
	}
	raw, err := json.Marshal(a)
	if err != nil {
		return arguments
	}
	return string(raw)
}
