package main

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

type benchSandbox struct {
	benchFlags
	Size string `help:"Bytes of the files that are moved." default:"256MiB" placeholder:"SIZE"`
}

func (benchSandbox) Help() string {
	return `Measures creation with and without a warm sandbox, the start of a program in a running one, pausing,
hibernation of an idle Python and its resumption, snapshots, forks, and file transfers in both
directions, all over HTTP.

Examples:
  engi bench sandbox
  engi bench sandbox --n 40 --size 1GiB --json`
}

func (b *benchSandbox) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(20, engi.Python); err != nil {
		return err
	}
	moved, err := size("--size", b.Size)
	if err != nil {
		return err
	}
	ctx, p, end, err := g.benched(ctx, b.Limit, func(c *config.Config) { c.Pools = []config.Pool{{Template: b.Template, Target: 2}} })
	if err != nil {
		return err
	}
	defer end()
	rig := bench.Rig{Pools: p.Pools()}
	if err := rig.WaitFull(ctx); err != nil {
		return err
	}
	l := bench.Sandboxes(ctx, client.New(p.Endpoint().URL, p.AdminKey()), b.Template, b.N, int64(moved))
	l.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(l)
	}
	var rows [][]string
	failures, first := 0, ""
	for _, act := range append([]string{"create", "create, other size"}, bench.Acts[1:]...) {
		t, ok := l.Times[act]
		if !ok {
			continue
		}
		rows = append(rows, []string{act, fmt.Sprint(t.N), fmt.Sprint(t.Failures), ms(t.Ms.P50), ms(t.Ms.P95), ms(t.Ms.P99), ms(t.Ms.Max)})
		if failures += t.Failures; first == "" {
			first = t.Failure
		}
	}
	g.table("ACT\tN\tFAILURES\tP50 ms\tP95\tP99\tMAX", rows)
	rows = nil
	for _, act := range bench.Moves {
		m := l.Rates[act]
		rows = append(rows, []string{act, fmt.Sprint(m.N), fmt.Sprint(m.Failures), fmt.Sprintf("%.0f", m.MiBPerSecond), fmt.Sprintf("%.0f", m.MiB)})
		if failures += m.Failures; first == "" {
			first = m.Failure
		}
	}
	fmt.Fprintln(g.out)
	g.table("FILES\tN\tFAILURES\tMiB/s\tMiB", rows)
	printHost(g, l.Host)
	return failed(g, failures, first)
}
