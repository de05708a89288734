package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

type benchScript struct {
	N           int           `help:"Samples." default:"2000" placeholder:"N"`
	Concurrency int           `help:"Number of concurrent scripts." default:"1" placeholder:"C"`
	TS          bool          `name:"ts" help:"Send TypeScript."`
	Compare     bool          `help:"Compare with goja and Node's vm, each in one process, and with Deno as a process."`
	Goja        string        `help:"Program that times goja, built from test/bench/goja (default: bench-goja beside this program)." type:"path" placeholder:"PATH"`
	Node        string        `help:"Node.js to compare with (default: the one in PATH)." type:"path" placeholder:"PATH"`
	Deno        string        `help:"Deno to compare with (default: the one in PATH)." type:"path" placeholder:"PATH"`
	Limit       time.Duration `help:"Maximum time of the benchmark." default:"10m" placeholder:"D"`
}

func (b *benchScript) Run(ctx context.Context, g *globals) error {
	if b.N < 1 || b.N > 1_000_000 || b.Concurrency < 1 || b.Concurrency > 1000 {
		return engi.Errorf(engi.Invalid, "--n %d --concurrency %d cannot be measured", b.N, b.Concurrency)
	}
	ctx, p, end, err := g.benched(ctx, b.Limit, func(c *config.Config) { c.Pools = nil })
	if err != nil {
		return err
	}
	defer end()
	lang := engi.JavaScript
	if b.TS {
		lang = engi.TypeScript
	}
	run := bench.PostScript(p.Endpoint().URL, p.AdminKey())
	if b.Compare {
		return b.compare(ctx, g, run)
	}
	bench.Scripts(ctx, run, lang, min(b.N, 50*b.Concurrency), b.Concurrency) // starts the helpers
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

// compare times rivals right after engi. They run without HTTP and, except for
// Deno, without isolation.
func (b *benchScript) compare(ctx context.Context, g *globals, run func(context.Context, v1.ScriptRequest) (v1.ScriptResult, error)) error {
	const several = 4
	bench.Scripts(ctx, run, engi.JavaScript, 50*several, several)
	c := bench.Comparison{Bench: "script compare", Lang: string(engi.JavaScript), Rivals: []bench.Rival{
		bench.FromScripts("engi, over HTTP", bench.Scripts(ctx, run, engi.JavaScript, b.N, 1)),
		bench.FromScripts(fmt.Sprintf("engi, %d at once", several), bench.Scripts(ctx, run, engi.JavaScript, b.N, several)),
		bench.FromScripts("engi, TypeScript", bench.Scripts(ctx, run, engi.TypeScript, b.N, 1)),
	}}
	beside := ""
	if self, err := os.Executable(); err == nil {
		beside = filepath.Join(filepath.Dir(self), "bench-goja")
	}
	add := func(name, given, otherwise string, f func(path string) bench.Rival) {
		path, err := exec.LookPath(cmp.Or(given, otherwise))
		if err != nil {
			c.Rivals = append(c.Rivals, bench.Skip(name, "not installed"))
			return
		}
		c.Rivals = append(c.Rivals, f(path))
	}
	add("goja, in one process", b.Goja, beside, func(path string) bench.Rival { return bench.Goja(ctx, "goja, in one process", path, b.N) })
	add("Node vm, in one process", b.Node, "node", func(path string) bench.Rival { return bench.NodeVM(ctx, "Node vm, in one process", path, b.N) })
	tmp, err := os.MkdirTemp("", "engi-bench-")
	if err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer os.RemoveAll(tmp)
	add("Deno, a process each", b.Deno, "deno", func(path string) bench.Rival {
		return bench.DenoProcess(ctx, "Deno, a process each", path, tmp, max(b.N/50, 1))
	})
	c.Compare()
	c.Host = bench.Stamp(version)
	failures, failure := 0, ""
	for _, r := range c.Rivals {
		if r.Failure != "" {
			failures, failure = failures+1, cmp.Or(failure, r.Name+": "+r.Failure)
		}
	}
	if g.JSON {
		if err := g.printJSON(c); err != nil {
			return err
		}
		return failed(g, failures, failure)
	}
	var rows [][]string
	for _, r := range c.Rivals {
		rate := "-"
		if r.PerSecond > 0 {
			rate = fmt.Sprintf("%.0f", r.PerSecond)
		}
		rows = append(rows, []string{r.Name, fmt.Sprint(r.N), fmt.Sprintf("%.3f", r.Ms.P50), fmt.Sprintf("%.3f", r.Ms.P99), rate, fmt.Sprintf("%.2f", r.Ratio), orDash(cmp.Or(r.Skipped, r.Failure))})
	}
	g.table("HOW\tN\tP50 ms\tP99\tPER SECOND\tRATIO\tREMARK", rows)
	printHost(g, c.Host)
	return failed(g, failures, failure)
}
