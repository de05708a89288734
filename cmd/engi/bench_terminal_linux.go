package main

import (
	"context"
	"fmt"
	"time"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

type benchTerminal struct {
	benchFlags
	Terminals  int           `help:"Number of concurrent terminals." default:"200" placeholder:"N"`
	PerSandbox int           `help:"Number of terminals in one sandbox." default:"50" placeholder:"N"`
	Pause      time.Duration `help:"Time between two key presses in one terminal." default:"1s" placeholder:"D"`
}

func (benchTerminal) Help() string {
	return `Types in many terminals at once, and each key press echoes one byte. Measures the time until the
byte returns over a WebSocket, and compares it with a plain terminal of this machine behind the same
library.

Examples:
  engi bench terminal
  engi bench terminal --terminals 20 --pause 100ms --json`
}

func (b *benchTerminal) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(20, engi.Bash); err != nil {
		return err
	}
	if b.Terminals < 1 || b.PerSandbox < 1 || b.PerSandbox > 200 || b.Pause <= 0 {
		return engi.Errorf(engi.Invalid, "%d terminals, %d in a sandbox, a key every %s: that cannot be measured", b.Terminals, b.PerSandbox, b.Pause)
	}
	ctx, p, end, err := g.benched(ctx, b.Limit, func(c *config.Config) { c.Pools = nil })
	if err != nil {
		return err
	}
	defer end()
	k, err := bench.Terminals(ctx, client.New(p.Endpoint().URL, p.AdminKey()), b.Template, b.Terminals, b.PerSandbox, b.N, b.Pause)
	if err != nil {
		return err
	}
	k.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(k)
	}
	var rows [][]string
	failures, first := 0, ""
	for _, name := range []string{"engi", "bare"} {
		t := k.Times[name]
		rows = append(rows, []string{name, fmt.Sprint(k.Terminals), fmt.Sprint(t.N), fmt.Sprint(t.Failures), ms(t.Ms.P50), ms(t.Ms.P95), ms(t.Ms.P99), ms(t.Ms.Max)})
		if failures += t.Failures; first == "" {
			first = t.Failure
		}
	}
	g.table("TERMINAL\tAT ONCE\tKEYS\tFAILURES\tP50 ms\tP95\tP99\tMAX", rows)
	fmt.Fprintf(g.out, "\n%.0f keys per second; ratio to bare: %.1f at p50, %.1f at p99\n", k.PerSecond, k.Ratio50, k.Ratio99)
	printHost(g, k.Host)
	return failed(g, failures, first)
}
