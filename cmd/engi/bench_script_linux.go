package main

import (
	"context"
	"fmt"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/cmd/engi/bench"
)

type benchScript struct {
	N           int           `help:"Samples." default:"2000" placeholder:"N"`
	Concurrency int           `help:"Scripts at the same time." default:"1" placeholder:"C"`
	TS          bool          `name:"ts" help:"Send TypeScript."`
	Limit       time.Duration `help:"Longest time of the benchmark." default:"10m" placeholder:"D"`
}

// Run implements the command.
func (b *benchScript) Run(ctx context.Context, g *globals) error {
	if b.N < 1 || b.N > 1_000_000 || b.Concurrency < 1 || b.Concurrency > 1000 {
		return engi.Errorf(engi.Invalid, "--n %d --concurrency %d cannot be measured", b.N, b.Concurrency)
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	c, _, err := g.config()
	if err != nil {
		return err
	}
	c.Pools = nil
	p, err := g.openPrivate(ctx, c)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	lang := engi.JavaScript
	if b.TS {
		lang = engi.TypeScript
	}
	run := bench.PostScript(p.Endpoint().URL, p.AdminKey())
	bench.Scripts(ctx, run, lang, min(b.N, 50*b.Concurrency), b.Concurrency) // helpers start
	t := bench.Scripts(ctx, run, lang, b.N, b.Concurrency)
	t.Bench, t.Host = "script", bench.Stamp(version)
	if g.JSON {
		if err := g.printJSON(t); err != nil {
			return err
		}
	} else {
		g.table("BENCH\tLANG\tN\tFAILURES\tP50 ms\tP95\tP99\tMAX\tPER SECOND", [][]string{{
			t.Bench, t.Lang, fmt.Sprint(t.N), fmt.Sprint(t.Failures), ms(t.Ms.P50), ms(t.Ms.P95), ms(t.Ms.P99), ms(t.Ms.Max), fmt.Sprintf("%.0f", t.PerSecond),
		}})
		printHost(g, t.Host)
	}
	return failed(g, t.Failures, t.Failure)
}
