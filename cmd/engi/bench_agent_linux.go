package main

import (
	"context"
	"fmt"
	"time"

	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

type benchAgent struct {
	N      int           `help:"Runs of ten steps." default:"100" placeholder:"N"`
	Chunks int           `help:"Also time searches of docs with this many passages; 0 skips them." default:"0" placeholder:"N"`
	Limit  time.Duration `help:"Maximum time of the benchmark." default:"10m" placeholder:"D"`
}

func (benchAgent) Help() string {
	return `A scripted model on loopback answers at once and calls a tool that does nothing. Measures the time
from the end of the model's answer to the next request, which is engi's share of a step. A client
that only reads the answer and asks again is measured for comparison.

Examples:
  engi bench agent
  engi bench agent --n 200 --chunks 10000 --json`
}

func (b *benchAgent) Run(ctx context.Context, g *globals) error {
	if b.N < 1 || b.N > 100_000 || b.Chunks < 0 || b.Chunks > 1_000_000 {
		return engi.Errorf(engi.Invalid, "--n %d --chunks %d cannot be measured", b.N, b.Chunks)
	}
	m, err := bench.NewModel()
	if err != nil {
		return err
	}
	defer m.Close()
	ctx, p, end, err := g.benched(ctx, b.Limit, func(c *config.Config) {
		c.Pools = nil
		c.Models.Off, c.Models.Default, c.Models.Embedding, c.Models.Fallbacks = false, "bench:m", "", nil
		c.Providers = map[string]config.Provider{"bench": {URL: m.URL + "/v1"}}
		c.Agents = []config.Agent{{Name: "bench", Tools: []string{"read_result"}}}
	})
	if err != nil {
		return err
	}
	defer end()
	bench.Agents(ctx, m, p.Agents(), max(b.N/10, 1)) // opens connections and fills caches
	t := bench.Agents(ctx, m, p.Agents(), b.N)
	if b.Chunks > 0 {
		if t.Search, err = bench.Search(ctx, p.Docs(), b.Chunks, 500); err != nil {
			return err
		}
	}
	t.Bench, t.Host = "agent", bench.Stamp(version)
	if g.JSON {
		if err := g.printJSON(t); err != nil {
			return err
		}
		return failed(g, t.Failures, t.Failure)
	}
	row := func(what string, n int, m bench.Millis, ratio string) []string {
		return []string{what, fmt.Sprint(n), ms(m.P50), ms(m.P95), ms(m.P99), ms(m.Max), ratio}
	}
	rows := [][]string{row("engi, a step", t.Steps, t.Ms, fmt.Sprintf("%.2f", t.Ratio)), row("a bare client", t.Steps, t.Bare, "1")}
	if s := t.Search; s != nil {
		rows = append(rows, row(fmt.Sprintf("a search in %d pieces, %s", s.Chunks, s.Embedder), s.N, s.Ms, "-"))
	}
	g.table("WHAT\tN\tP50 ms\tP95\tP99\tMAX\tRATIO", rows)
	printHost(g, t.Host)
	return failed(g, t.Failures, t.Failure)
}
