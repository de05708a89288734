package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
)

type doctorCommand struct {
	Leaks bool `help:"List resources left over from sandboxes that do not exist any more; exit with 1 if there are any."`
	Fix   bool `help:"With --leaks: first remove the leftovers of dead nodes."`
}

func (doctorCommand) Help() string {
	return `Boots one sandbox per tier, and reports the working and the missing parts with the commands that fix
them. Exits with 0 if programs can be run, otherwise with 1. Needs no server and does not disturb a
running one.

Examples:
  engi doctor
  engi doctor --leaks --json
  engi doctor --leaks --fix`
}

func (dr *doctorCommand) Run(ctx context.Context, g *globals) error {
	if dr.Fix && !dr.Leaks {
		return engi.Errorf(engi.Invalid, "--fix needs --leaks")
	}
	if dr.Leaks {
		return dr.leaks(ctx, g)
	}
	c, _, err := g.config()
	if err != nil {
		return err
	}
	d, err := node.Doctor(ctx, c, g.options(nil))
	if err != nil {
		return err
	}
	if g.JSON {
		if err := g.printJSON(diagnosisOf(d)); err != nil {
			return err
		}
	} else {
		printChecks(g, d.Checks)
		for _, t := range d.Tiers {
			works := "works"
			if !t.Works {
				works = "DOES NOT WORK"
			}
			fmt.Fprintf(g.out, "\ntier %s %s\n", t.Tier, works)
			printChecks(g, t.Checks)
			if len(t.NotEnforced) > 0 {
				fmt.Fprintf(g.out, "  not enforced here: %s\n", strings.Join(t.NotEnforced, ", "))
			}
		}
	}
	if !d.Works() {
		return exitCode(exitFailed)
	}
	return nil
}

func printChecks(g *globals, checks []node.Check) {
	for _, c := range checks {
		mark := "ok     "
		if !c.OK {
			mark = "MISSING"
		}
		fmt.Fprintf(g.out, "%s  %-22s %s\n", mark, c.Name, c.Detail)
		if !c.OK && c.Fix != "" {
			fmt.Fprintf(g.out, "         fix: %s\n", c.Fix)
		}
	}
}

type tier struct {
	Tier        string     `json:"tier"`
	Works       bool       `json:"works"`
	Checks      []v1.Check `json:"checks"`
	NotEnforced []string   `json:"not_enforced"`
}

type diagnosis struct {
	Works  bool       `json:"works"`
	Checks []v1.Check `json:"checks"`
	Tiers  []tier     `json:"tiers"`
}

func checksOf(cs []node.Check) []v1.Check {
	all := []v1.Check{}
	for _, c := range cs {
		all = append(all, v1.Check(c))
	}
	return all
}

func diagnosisOf(d node.Diagnosis) diagnosis {
	out := diagnosis{d.Works(), checksOf(d.Checks), []tier{}}
	for _, t := range d.Tiers {
		out.Tiers = append(out.Tiers, tier{string(t.Tier), t.Works, checksOf(t.Checks), append([]string{}, t.NotEnforced...)})
	}
	return out
}

func (dr *doctorCommand) leaks(ctx context.Context, g *globals) error {
	c, _, err := g.config()
	if err != nil {
		return err
	}
	found, served, err := g.look(ctx, c, dr.Fix)
	// While a server runs, sandboxes that are being created or destroyed look
	// like leaks. Those that are still there later are leaks.
	for try := 0; err == nil && served && len(found) > 0 && try < 5; try++ {
		if clock.Sleep(ctx, time.Second) != nil {
			return engi.Errorf(engi.Expired, "look for leaks: %v", context.Cause(ctx))
		}
		var again []node.Leak
		again, served, err = g.look(ctx, c, dr.Fix)
		found = slices.DeleteFunc(found, func(l node.Leak) bool { return !slices.Contains(again, l) })
	}
	if err != nil {
		return err
	}
	type leak struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}
	all := []leak{}
	for _, l := range found {
		all = append(all, leak(l))
	}
	switch {
	case g.JSON:
		if err := g.printJSON(map[string]any{"leaks": all}); err != nil {
			return err
		}
	case len(all) == 0:
		fmt.Fprintln(g.out, "no leaks")
	default:
		for _, l := range all {
			fmt.Fprintf(g.out, "%-10s %s\n", l.Kind, l.Name)
		}
		if !dr.Fix {
			fmt.Fprintln(g.err, "remove them with 'engi doctor --leaks --fix', or start the server, which does it too")
		}
	}
	if len(all) > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

// look lists leaks once; served says whether a server runs.
func (g *globals) look(ctx context.Context, c config.Config, fix bool) (found []node.Leak, served bool, err error) {
	var live []engi.SandboxID
	d, err := g.connect(ctx, serverOnly)
	switch {
	case err == nil:
		defer d.close()
		all, err := d.Sandboxes(ctx)
		if err != nil {
			return nil, true, err
		}
		for _, s := range all {
			live = append(live, engi.SandboxID(s.ID))
		}
		served = true
	case !engi.Is(err, engi.NotFound):
		return nil, false, err
	}
	found, err = node.Leaks(ctx, c, g.options(nil), live, fix)
	return found, served, err
}
