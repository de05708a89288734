package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
)

type benchNet struct {
	benchFlags
	Seconds float64 `help:"Length of each transfer." default:"5" placeholder:"S"`
}

func (benchNet) Help() string {
	return `Measures throughput in both directions and round-trip times from a sandbox through the gateway, and
compares them with the same program in a sandbox and outside of one, whose packets the kernel
forwards over veth devices to the same server. The benchmark uses its own namespaces and addresses
(198.18.77.0/29). Needs root and the program ip.

Examples:
  engi bench net
  engi bench net --seconds 10 --json`
}

func (b *benchNet) Run(ctx context.Context, g *globals) (err error) {
	if err := b.prepare(1000, engi.Python); err != nil {
		return err
	}
	if b.lang != engi.Python || b.Seconds <= 0 || b.Seconds > 600 {
		return engi.Errorf(engi.Invalid, "the network is measured by a Python program, for at most 600 seconds")
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	rig, err := bench.OpenNet(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.Close()) }()
	c, _, err := g.config()
	if err != nil {
		return err
	}
	c.Network.Private = append(c.Network.Private, bench.NetServer.String())
	c.Network.Max, c.Network.Limits.NewConnections = "open", 100_000
	c.Pools = []config.Pool{{Template: b.Template, Language: string(b.lang), Target: 1}}
	p, err := g.openPrivate(ctx, c)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	if err := (bench.Rig{Pools: p.Pools()}).WaitFull(ctx); err != nil {
		return err
	}
	n := bench.Net{Bench: "net"}
	args := []string{bench.NetServer.String(), strconv.Itoa(int(rig.Port)), strconv.Itoa(b.N), fmt.Sprint(b.Seconds)}
	own, err := b.gateway(ctx, p, args)
	if err != nil {
		return err
	}
	n.Template = own.Template
	n.Paths = append(n.Paths, bench.ParsePath("sandbox, gateway", own.Result.Stdout))
	others, err := b.forwarded(ctx, g, p, rig, own.Template, args)
	if err != nil {
		return err
	}
	n.Paths = append(n.Paths, others...)
	n.Compare()
	n.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(n)
	}
	var rows [][]string
	for _, q := range n.Paths {
		rows = append(rows, []string{q.Name, fmt.Sprintf("%.0f", q.UpMbps), fmt.Sprintf("%.0f", q.DownMbps), fmt.Sprintf("%.3f", q.RoundTrip.P50),
			fmt.Sprintf("%.3f", q.RoundTrip.P99), fmt.Sprintf("%.3f", q.Connect.P50), orDash(cmp.Or(q.Skipped, q.Failure))})
	}
	g.table("HOW\tUP Mbit/s\tDOWN Mbit/s\tROUND TRIP P50 ms\tP99\tCONNECT P50 ms\tREMARK", rows)
	fmt.Fprintf(g.out, "gateway to kernel, both in a sandbox: up %.3f, down %.3f, round trip %+.3f ms\n", n.RatioUp, n.RatioDown, n.AddedMs)
	printHost(g, n.Host)
	return nil
}

// gateway runs the program in a sandbox that may reach the server.
func (b *benchNet) gateway(ctx context.Context, p *node.Private, args []string) (v1.Execution, error) {
	req := v1.ExecutionRequest{Language: string(b.lang), Code: bench.NetProgram, Template: b.Template, Args: args,
		Timeout: v1.Duration(time.Duration(2*b.Seconds)*time.Second + 2*time.Minute), Output: 4 << 20,
		Network: &v1.NetworkChoice{Mode: v1.NetworkRestricted, Allow: []string{"tcp://" + bench.NetServer.String()}}}
	x, err := bench.Post(p.Endpoint().URL, p.AdminKey())(ctx, req)
	if err == nil && (x.Result == nil || x.Result.ExitCode != 0) {
		err = engi.Errorf(engi.Internal, "the program failed in the sandbox: %+v", x.Result)
	}
	return x, err
}

// forwarded runs the program with the same interpreter but without the gateway: in a
// sandbox, and without one.
func (b *benchNet) forwarded(ctx context.Context, g *globals, p *node.Private, rig *bench.NetRig, template string, args []string) ([]bench.Path, error) {
	t, err := p.Templates().Get(ctx, template)
	if err != nil {
		return nil, err
	}
	c, _, err := g.config()
	if err != nil {
		return nil, err
	}
	programs, err := node.FindPrograms(ctx, c)
	if err != nil {
		return nil, err
	}
	args = append([]string{t.Languages[b.lang].Path, "-c", bench.NetProgram}, args...)
	path := func(name, out string, err error) bench.Path {
		if err != nil {
			return bench.Path{Name: name, Failure: err.Error()}
		}
		return bench.ParsePath(name, out)
	}
	out, err := rig.Forwarded(ctx, t.Root, args)
	bare := path("no sandbox, kernel forwarding", out, err)
	out, err = rig.ForwardedSandbox(ctx, programs[0].Path, t.Root, args) // the last step, because it keeps the addresses
	return []bench.Path{path("sandbox, kernel forwarding", out, err), bare}, nil
}
