package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/node/config"
)

type psCommand struct {
	All       bool `short:"a" help:"Include ended executions."`
	Sandboxes bool `short:"s" help:"List sandboxes instead of executions." xor:"what"`
	Pools     bool `short:"p" help:"List warm pools instead of executions." xor:"what"`
	Limit     int  `short:"n" help:"Maximum number of results." default:"50" placeholder:"N"`
}

func (psCommand) Help() string { return example("engi ps", "engi ps --all -n 10", "engi ps --pools") }

func (p *psCommand) Run(ctx context.Context, g *globals) error {
	switch {
	case p.Sandboxes:
		sandboxes := table[v1.Sandbox]{"ID\tSTATE\tTIER\tTEMPLATE\tPOOL\tEXECUTION\tCREATED", func(s v1.Sandbox) []any {
			return []any{s.ID, s.State, s.Tier, s.Template, s.Pool, s.ExecutionID, ago(s.CreatedAt)}
		}, nil}
		return sandboxes.list(ctx, g, false, func(d *connection) ([]v1.Sandbox, error) {
			return upTo(p.Limit, d.FindSandboxes(ctx, client.SandboxFilter{}))
		})
	case p.Pools:
		pools := table[v1.Pool]{"TEMPLATE\tLANGUAGE\tTARGET\tREADY\tBOOTING\tUSED\tWAITING", func(p v1.Pool) []any {
			return []any{p.Template, p.Language, p.Target, p.Ready, p.Booting, p.Used, p.Waiting}
		}, nil}
		return pools.list(ctx, g, false, func(d *connection) ([]v1.Pool, error) { return d.Pools(ctx) })
	}
	executions := table[v1.ExecutionSummary]{"ID\tSTATE\tLANGUAGE\tTEMPLATE\tOUTCOME\tCREATED", func(x v1.ExecutionSummary) []any {
		return []any{x.ID, x.State, x.Language, x.Template, outcome(x), ago(x.CreatedAt)}
	}, nil}
	return executions.list(ctx, g, false, func(d *connection) ([]v1.ExecutionSummary, error) {
		states := []string{v1.Running, v1.Queued}
		if p.All {
			states = []string{""}
		}
		found := []v1.ExecutionSummary{}
		for _, s := range states {
			more, err := upTo(p.Limit-len(found), d.Executions(ctx, s))
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
		return found, nil
	})
}

func outcome(x v1.ExecutionSummary) string {
	switch {
	case x.ExitCode != nil && x.Cause != "exited":
		return x.Cause
	case x.ExitCode != nil:
		return fmt.Sprintf("exit code %d after %s", *x.ExitCode, short(x.Duration.Std()))
	case x.Refusal != nil:
		return x.Refusal.Kind
	case x.StartedAt != nil:
		return "running for " + short(time.Since(*x.StartedAt))
	}
	return "-"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// ago returns the time since t as a text for users.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(time.Since(t)) + " ago"
}

func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return config.Duration(d.Round(time.Second)).String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
