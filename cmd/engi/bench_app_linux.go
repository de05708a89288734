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

type benchApp struct {
	N     int           `help:"Samples." default:"10" placeholder:"N"`
	Limit time.Duration `help:"Longest time of the benchmark." default:"10m" placeholder:"D"`
}

func (benchApp) Help() string {
	return `An app of the template vite-react is created, changed and opened again. A hot reload is the time from
the request that writes a file, or applies one, until a page was told and has the module, through the preview.
If Chromium is installed, it shows the page: from the request for an app until its page is rendered, and from
a file that was written until the page shows it. Without it, pages are fetched with all their modules instead.
A page reconnects when its socket was cut: it gets a new one, and all its modules.

Examples:
  engi bench app
  engi bench app --n 30 --json`
}

func (b *benchApp) Run(ctx context.Context, g *globals) error {
	if b.N < 1 || b.N > 1000 {
		return engi.Errorf(engi.Invalid, "--n %d cannot be measured", b.N)
	}
	ctx, p, end, err := g.benched(ctx, b.Limit, func(c *config.Config) { c.Pools, c.Sandboxes.Spare = nil, max(c.Sandboxes.Spare, 1) })
	if err != nil {
		return err
	}
	defer end()
	browser, err := bench.OpenBrowser(ctx)
	if err != nil {
		return err
	}
	defer browser.Close()
	t, err := bench.Apps(ctx, client.New(p.Endpoint().URL, p.AdminKey()), p.Pools(), p.Endpoint().URL, b.N, browser)
	if err != nil {
		return err
	}
	t.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(t)
	}
	var rows [][]string
	failures, first := 0, ""
	for _, act := range bench.AppActs {
		s, ok := t.Times[act]
		if !ok {
			continue
		}
		rows = append(rows, []string{act, fmt.Sprint(s.N), fmt.Sprint(s.Failures), ms(s.Ms.P50), ms(s.Ms.P95), ms(s.Ms.Max)})
		if failures += s.Failures; first == "" {
			first = s.Failure
		}
	}
	g.table("WHAT\tN\tFAILURES\tP50 ms\tP95\tMAX", rows)
	if t.Browser != "" {
		fmt.Fprintf(g.out, "pages in %s\n", t.Browser)
	} else {
		fmt.Fprintln(g.out, "pages fetched with all their modules, since there is no Chromium")
	}
	printHost(g, t.Host)
	return failed(g, failures, first)
}
