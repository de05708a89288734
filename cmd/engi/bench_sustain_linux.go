package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
)

type benchSustain struct {
	benchFlags
	Rates   string  `help:"Rates of arrivals, in percent of the node's capacity." default:"10,25,50,75,90,100,125,150" placeholder:"LIST"`
	Rate    float64 `help:"Capacity of the node, in requests per second; 0 measures it." placeholder:"R"`
	Seconds float64 `help:"Seconds of arrivals at each rate." default:"20" placeholder:"S"`
	Seed    uint64  `help:"Seed of the times of arrival." default:"1" placeholder:"N"`
	Pool    int     `help:"Number of warm sandboxes of the node." default:"8" placeholder:"N"`
	Alone   bool    `help:"Skip the comparison with other ways to run code."`
}

func (benchSustain) Help() string {
	return `Requests for new sandboxes arrive independently of earlier answers (Poisson), at rates below and
above the node's capacity; then the same program is started at the same times as a bare process,
with bwrap, and with runsc run. Latencies count from the time of arrival. REFUSED counts requests
that the node refused at once with a time to retry. PROCESSOR is the processor time of each finished
request, including the client's; the last line lists its parts, which need control groups. The cost
of warm sandboxes is not included if the node had time to start them before.

Examples:
  engi bench sustain --lang bash
  engi bench sustain --rates 50,100,150 --seconds 10 --json`
}

func (b *benchSustain) Run(ctx context.Context, g *globals) error {
	b.refuse = true
	if err := b.prepare(16*runtime.NumCPU(), engi.Python); err != nil {
		return err
	}
	percents, err := bench.ParsePercents(b.Rates)
	if err != nil {
		return err
	}
	if b.Pool < 1 || b.Pool > 1000 || b.Rate < 0 || b.Rate > 10_000 || b.Seconds <= 0 || b.Seconds > 3600 {
		return engi.Errorf(engi.Invalid, "a pool of %d at %g per second for %g s cannot be measured", b.Pool, b.Rate, b.Seconds)
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	s := bench.Sustained{Bench: "sustain", Lang: string(b.lang), Seed: b.Seed, Seconds: b.Seconds, PerSecond: b.Rate}
	if s.Parts.Boot, s.Parts.Teardown, err = b.bare(ctx, g); err != nil {
		return err
	}
	rig, p, err := b.rig(ctx, g, b.Pool)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	if err := rig.WaitFull(ctx); err != nil {
		return err
	}
	meter := bench.NewMeter(p.Endpoint().DataDir)
	warm, err := meter.Read()
	if err != nil {
		return err
	}
	s.Parts.WarmUp = cents(bench.MillisEach(warm.Group, b.Pool) - s.Parts.Boot)
	if s.PerSecond == 0 {
		perSecond, t := rig.Capacity(ctx, bench.Request(b.lang, b.Template), 2*runtime.NumCPU(), b.N, b.Pool)
		if t.Failures > 0 {
			return engi.Errorf(engi.Unavailable, "%d of %d failed: %s", t.Failures, t.N, t.Failure)
		}
		s.PerSecond = cents(perSecond)
	}
	s.Template = rig.Pools.Pools(ctx)[0].Template
	all := rivals{remove: func() {}}
	if !b.Alone {
		if all, err = b.rivals(ctx, g, p, s.Template); err != nil {
			return err
		}
	}
	defer all.remove()

	var busiest bench.Point
	for _, percent := range percents {
		rate := s.PerSecond * float64(percent) / 100
		at := bench.Arrivals(b.Seed, rate, time.Duration(b.Seconds*float64(time.Second)))
		// measured adds a point, with the processor time used until everything is quiet.
		measured := func(name string, run func() bench.Point) error {
			before, err := meter.Read()
			if err != nil {
				return err
			}
			point := run()
			if err := rig.WaitFull(ctx); err != nil {
				return err
			}
			after, err := meter.Read()
			if err != nil {
				return err
			}
			point.Means, point.Percent, point.Rate = name, percent, cents(rate)
			used := after.Sub(before)
			if name == "engi" {
				if used.Group == 0 { // there are no control groups
					used.Group = used.Children
				}
				point.Processor, point.Node = bench.MillisEach(used.Self+used.Group, point.Done), bench.MillisEach(used.Self, point.Done)
				if point.Percent <= 100 && point.Done > busiest.Done {
					busiest = point
				}
			} else {
				point.Processor = bench.MillisEach(used.Children, point.Done)
			}
			s.Points = append(s.Points, point)
			return ctx.Err()
		}
		if err := measured("engi", func() bench.Point { return rig.Sustain(ctx, bench.Request(b.lang, b.Template), at) }); err != nil {
			return err
		}
		for _, r := range all.all {
			if r.skipped != "" || strings.HasPrefix(r.name, "podman") {
				continue
			}
			if err := measured(r.name, func() bench.Point { return bench.SustainCommand(ctx, at, r.command) }); err != nil {
				return err
			}
		}
	}
	s.Parts.Node = busiest.Node
	s.Parts.Run = cents(busiest.Processor - busiest.Node - s.Parts.Boot - s.Parts.WarmUp - s.Parts.Teardown)
	s.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(s)
	}
	var rows [][]string
	for _, p := range s.Points {
		share := func(n int) string { return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(max(p.N, 1))) }
		rows = append(rows, []string{p.Means, fmt.Sprintf("%d%%", p.Percent), ms(p.Rate), fmt.Sprint(p.N), ms(p.Ms.P50), ms(p.Ms.P95), ms(p.Ms.P99),
			share(p.Cold), share(p.Refused), ms(p.RefusalMs.P99), ms(p.Processor), orDash(p.Failure)})
	}
	g.table("MEANS\tLOAD\tPER SECOND\tN\tP50 ms\tP95\tP99\tCOLD\tREFUSED\tP99 OF THESE\tPROCESSOR ms\tFAILURE", rows)
	fmt.Fprintf(g.out, "%.1f per second; of an execution's processor time, in ms: boot %.1f, warm-up %.1f, run %.1f, teardown %.1f, node and client %.1f\n",
		s.PerSecond, s.Parts.Boot, s.Parts.WarmUp, s.Parts.Run, s.Parts.Teardown, s.Parts.Node)
	printHost(g, s.Host)
	return nil
}

// cents rounds a non-negative value to hundredths.
func cents(v float64) float64 { return max(0, math.Round(v*100)/100) }

// bare measures the cost of booting and removing a sandbox without an interpreter.
func (b *benchSustain) bare(ctx context.Context, g *globals) (boot, teardown float64, err error) {
	bare := b.benchFlags
	bare.lang = ""
	rig, p, err := bare.rig(ctx, g, b.Pool)
	if err != nil {
		return 0, 0, err
	}
	if err := rig.WaitFull(ctx); err != nil {
		g.closePrivate(p)
		return 0, 0, err
	}
	meter := bench.NewMeter(p.Endpoint().DataDir)
	full, err := meter.Read()
	stop := meter.Last()
	g.closePrivate(p)
	if err != nil {
		stop()
		return 0, 0, err
	}
	used := stop().Sub(full)
	return bench.MillisEach(full.Group, b.Pool), bench.MillisEach(used.Self+used.Group, b.Pool), nil
}
