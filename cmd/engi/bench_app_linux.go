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
	Limit time.Duration `help:"Maximum time of the benchmark." default:"10m" placeholder:"D"`
}

func (benchApp) Help() string {
	return `Creates an app of the template vite-react, changes it and opens it again. The time of a hot reload
is from the request that writes or applies a file until a page has been notified through the preview
and has loaded the module. If Chromium is installed, it measures from the request for an app until
its page is rendered, and from a written file until the page shows the change. Without Chromium,
pages are fetched with all their modules instead. The reconnection of a page is measured from a
closed socket until the page has a new one and all its modules.

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
