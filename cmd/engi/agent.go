package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type agentCommand struct {
	List   agentList     `cmd:"" aliases:"ls" help:"List agents."`
	Runs   agentRuns     `cmd:"" help:"List runs of agents."`
	Show   agentShow     `cmd:"" help:"Print the transcript of a run."`
	Cancel removeCommand `cmd:"" help:"Cancel runs."`
	Allow  agentAllow    `cmd:"" help:"Allow tool calls that wait for a decision."`
	Deny   agentDeny     `cmd:"" help:"Refuse tool calls that wait for a decision."`
	Usage  agentUsage    `cmd:"" help:"Show the cost of language models."`
}

var agentCommands = agentCommand{
	Cancel: removes(`What their tools started ends, too.

`+example("engi agent cancel run_u2dmwmlezjgprkqrgppgcz2mgu"), "cancelled", (*client.Client).CancelRun),
}

type agentList struct{}

func (agentList) Help() string {
	return `The first agent is the default. Agents come from [[agents]] in the configuration.

Examples:
  engi agent list`
}

func (agentList) Run(ctx context.Context, g *globals) error {
	agents := table[v1.Agent]{"NAME\tMODEL\tTOOLS\tDESCRIPTION", func(a v1.Agent) []any {
		return []any{a.Name, cmp.Or(a.Model, "(default)"), strings.Join(a.Tools, ","), a.Description}
	}, nil}
	return agents.listAt(ctx, g, orPrivate, false, func(d *connection) ([]v1.Agent, error) { return d.Agents(ctx) })
}

type agentRuns struct {
	Limit int `help:"Maximum number of results." default:"20" placeholder:"N"`
}

func (agentRuns) Help() string {
	return `The newest come first.

Examples:
  engi agent runs --limit 5`
}

func (a *agentRuns) Run(ctx context.Context, g *globals) error {
	runs := table[v1.AgentRun]{"RUN\tAGENT\tSTATE\tSTEPS\tTOKENS\tCREATED", func(x v1.AgentRun) []any {
		return []any{x.ID, x.Agent, x.State, x.Steps, x.Usage.InputTokens + x.Usage.OutputTokens, x.CreatedAt.Format(time.DateTime)}
	}, nil}
	return runs.list(ctx, g, false, func(d *connection) ([]v1.AgentRun, error) { return d.Runs(ctx, a.Limit) })
}

type agentShow struct {
	Run_ string `arg:"" name:"run" help:"ID of the run." placeholder:"RUN"`
}

func (agentShow) Help() string {
	return `Prints every message since the beginning of the conversation, with tool calls and their results.

Examples:
  engi agent show run_u2dmwmlezjgprkqrgppgcz2mgu
  engi agent show run_u2dmwmlezjgprkqrgppgcz2mgu --json`
}

func (a *agentShow) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		all, err := d.RunMessages(ctx, a.Run_)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(all)
		}
		for _, m := range all {
			if m.Text != "" {
				fmt.Fprintf(g.out, "%s: %s\n", m.Role, m.Text)
			}
			for _, c := range m.Calls {
				fmt.Fprintf(g.out, "[%s] %s\n", c.Name, brief(c.Arguments))
			}
			for _, r := range m.Results {
				fmt.Fprintf(g.out, "%s\n", strings.TrimRight(r.Text, "\n"))
			}
		}
		return nil
	})
}

// A callAnswer holds the arguments of decisions on tool calls.
type callAnswer struct {
	Run_   string   `arg:"" name:"run" help:"ID of the run." placeholder:"RUN"`
	Calls  []string `arg:"" optional:"" name:"call" help:"IDs of the calls; without any, all waiting calls." placeholder:"CALL"`
	Reason string   `short:"r" help:"Reason, which the model sees." placeholder:"TEXT"`
}

func (x *callAnswer) decide(ctx context.Context, g *globals, allow bool) error {
	return g.atServer(ctx, func(d *connection) error {
		calls := x.Calls
		if len(calls) == 0 {
			run, err := d.AgentRun(ctx, x.Run_)
			if err != nil {
				return err
			}
			for _, c := range run.Waiting {
				calls = append(calls, c.ID)
			}
			if len(calls) == 0 {
				return engi.Errorf(engi.Conflict, "no call of run %s waits for a decision", x.Run_).WithRemedy("'engi agent runs' shows how far it is")
			}
		}
		done := "denied"
		if allow {
			done = "allowed"
		}
		for _, id := range calls {
			if err := d.DecideCall(ctx, x.Run_, id, v1.CallDecision{Allow: &allow, Reason: x.Reason}); err != nil {
				return err
			}
			if g.JSON {
				if err := g.printLine(map[string]any{"call": id, "allowed": allow}); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintln(g.out, id, done)
		}
		return nil
	})
}

type agentAllow struct{ callAnswer }

func (agentAllow) Help() string {
	return `Calls wait if the agent's configuration or the run lists their tools under confirm. Needs an admin
key, or a key that was created with the scope approvals.

Examples:
  engi agent allow run_u2dmwmlezjgprkqrgppgcz2mgu
  engi agent allow run_u2dmwmlezjgprkqrgppgcz2mgu call_1_0`
}

func (x *agentAllow) Run(ctx context.Context, g *globals) error { return x.decide(ctx, g, true) }

type agentDeny struct{ callAnswer }

func (agentDeny) Help() string {
	return `The model sees the refusal and continues. Needs an admin key, or a key that was created with the
scope approvals.

Examples:
  engi agent deny run_u2dmwmlezjgprkqrgppgcz2mgu --reason 'not in production'`
}

func (x *agentDeny) Run(ctx context.Context, g *globals) error { return x.decide(ctx, g, false) }

type agentUsage struct{}

func (agentUsage) Help() string {
	return `Shows the cost by day (UTC) and model, since the first of last month, the newest day first. An admin
sees the cost of all owners. Costs follow the price table of the configuration, in its currency.

Examples:
  engi agent usage
  engi agent usage --json`
}

func (agentUsage) Run(ctx context.Context, g *globals) error {
	usage := table[v1.ModelUsage]{"DAY\tOWNER\tMODEL\tCALLS\tREAD\tWRITTEN\tCOST", func(x v1.ModelUsage) []any {
		return []any{x.Day, x.Owner, x.Model, x.ModelCalls, x.InputTokens + x.CacheReadTokens + x.CacheWriteTokens, x.OutputTokens, fmt.Sprintf("%.4f", x.Cost)}
	}, nil}
	return usage.list(ctx, g, false, func(d *connection) ([]v1.ModelUsage, error) {
		u, err := d.Usage(ctx)
		return append([]v1.ModelUsage{}, u.Models...), err
	})
}
