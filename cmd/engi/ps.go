package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type psCommand struct {
	All       bool `short:"a" help:"Ended executions too."`
	Sandboxes bool `short:"s" help:"Sandboxes instead of executions." xor:"what"`
	Pools     bool `short:"p" help:"Warm pools instead of executions." xor:"what"`
	Limit     int  `short:"n" help:"At most this many." default:"50" placeholder:"N"`
}

func (psCommand) Help() string {
	return `Examples:
  engi ps
  engi ps --all -n 10
  engi ps --pools`
}

// Run implements the command.
func (p *psCommand) Run(ctx context.Context, g *globals) error {
	d, err := g.connect(ctx, serverOnly)
	if err != nil {
		return err
	}
	defer d.close()
	switch {
	case p.Sandboxes:
		return p.sandboxes(ctx, g, d)
	case p.Pools:
		return p.pools(ctx, g, d)
	}
	return p.executions(ctx, g, d)
}

func (p *psCommand) executions(ctx context.Context, g *globals, d *localNode) error {
	states := []string{v1.Running, v1.Queued}
	if p.All {
		states = []string{""}
	}
	found := []v1.ExecutionSummary{}
	for _, s := range states {
		for x, err := range d.Executions(ctx, s) {
			if err != nil {
				return err
			}
			if len(found) == p.Limit {
				break
			}
			found = append(found, x)
		}
	}
	if g.JSON {
		return g.printJSON(found)
	}
	var rows [][]string
	for _, x := range found {
		rows = append(rows, []string{x.ID, x.State, x.Language, x.Template, outcome(x), ago(x.CreatedAt)})
	}
	g.table("ID\tSTATE\tLANGUAGE\tTEMPLATE\tOUTCOME\tCREATED", rows)
	return nil
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

func (p *psCommand) sandboxes(ctx context.Context, g *globals, d *localNode) error {
	found, err := d.Sandboxes(ctx)
	if err != nil {
		return err
	}
	if len(found) > p.Limit {
		found = found[:p.Limit]
	}
	if g.JSON {
		return g.printJSON(found)
	}
	var rows [][]string
	for _, s := range found {
		rows = append(rows, []string{s.ID, s.State, s.Tier, s.Template, orDash(s.Pool), orDash(s.ExecutionID), ago(s.CreatedAt)})
	}
	g.table("ID\tSTATE\tTIER\tTEMPLATE\tPOOL\tEXECUTION\tCREATED", rows)
	return nil
}

func (p *psCommand) pools(ctx context.Context, g *globals, d *localNode) error {
	found, err := d.Pools(ctx)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.printJSON(found)
	}
	var rows [][]string
	for _, p := range found {
		rows = append(rows, []string{p.Template, orDash(p.Language), fmt.Sprint(p.Target), fmt.Sprint(p.Ready), fmt.Sprint(p.Booting), fmt.Sprint(p.Used), fmt.Sprint(p.Waiting)})
	}
	g.table("TEMPLATE\tLANGUAGE\tTARGET\tREADY\tBOOTING\tUSED\tWAITING", rows)
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// ago says how long something is past, for people.
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
		return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
