package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/engi-dev/engi/cmd/engi/bench"
	"github.com/engi-dev/engi/cmd/engi/program"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/priority"
)

type benchCommand struct {
	Claim     benchClaim     `cmd:"" help:"Measure the time to get a warm sandbox."`
	Exec      benchExec      `cmd:"" help:"Measure a whole request with a fresh warm sandbox, over HTTP."`
	Burst     benchBurst     `cmd:"" help:"Measure N concurrent requests on a pool of N warm sandboxes."`
	Sustain   benchSustain   `cmd:"" help:"Measure latency against the rate of requests, compared with other ways to run code."`
	Boot      benchBoot      `cmd:"" help:"Measure a whole request without warm sandboxes."`
	Density   benchDensity   `cmd:"" help:"Measure the memory of an idle warm sandbox."`
	Replenish benchReplenish `cmd:"" help:"Measure how many sandboxes per second refill an empty pool."`
	Sandbox   benchSandbox   `cmd:"" help:"Measure sandboxes: create, start a program, pause, hibernate, resume and copy; and file transfers."`
	Terminal  benchTerminal  `cmd:"" help:"Measure the time from a key press to its echo, in many terminals at once."`
	Script    benchScript    `cmd:"" help:"Measure the time of a small script over HTTP, and scripts per second."`
	Net       benchNet       `cmd:"" help:"Measure network throughput and latency of sandboxes, compared with the kernel's."`
	App       benchApp       `cmd:"" help:"Measure apps: create, apply files, hot reload, open again."`
	Agent     benchAgent     `cmd:"" help:"Measure engi's share of an agent's step, and searches of docs."`
	Compare   benchCompare   `cmd:"" help:"Run the same program with engi and with other tools, and print ratios."`
}

func (benchCommand) Help() string {
	return `Each benchmark starts its own node, with HTTP on loopback; a running server is not used, but shares
the machine. Times are in milliseconds.

Examples:
  engi bench exec --lang python --n 200
  engi bench burst --n 100 --json
  engi bench compare --lang python`
}

// benchFlags are the flags of all benchmarks.
type benchFlags struct {
	N           int           `help:"Samples." placeholder:"N"`
	Concurrency int           `help:"Number of concurrent requests; 1 waits for an idle node before each request." default:"1" placeholder:"C"`
	Lang        string        `short:"l" help:"Language." placeholder:"LANG"`
	Template    string        `short:"t" help:"Template." placeholder:"NAME"`
	Limit       time.Duration `help:"Maximum time of the benchmark." default:"30m" placeholder:"D"`
	Spans       string        `help:"Write the start and end of each request to FILE, in nanoseconds of the monotonic clock, for profilers." type:"path" placeholder:"FILE"`

	lang   engi.Language
	refuse bool // refuse requests when the queue is full, as the node's configuration says
}

// prepare sets defaults and checks the flags.
func (b *benchFlags) prepare(n int, lang engi.Language) (err error) {
	if b.N == 0 {
		b.N = n
	}
	if b.lang = lang; b.Lang != "" {
		if b.lang, err = program.Language(b.Lang); err != nil {
			return err
		}
	}
	if b.N < 1 || b.N > 100_000 || b.Concurrency < 1 || b.Concurrency > 10_000 {
		return engi.Errorf(engi.Invalid, "--n %d --concurrency %d cannot be measured", b.N, b.Concurrency)
	}
	return nil
}

// benched starts a private node with a configuration that change adjusts. ctx ends after limit.
// The caller calls end.
func (g *globals) benched(ctx context.Context, limit time.Duration, change func(*config.Config)) (_ context.Context, p *node.Private, end func(), err error) {
	c, _, err := g.config()
	if err != nil {
		return nil, nil, nil, err
	}
	change(&c)
	ctx, cancel := context.WithTimeout(ctx, limit)
	if p, err = g.openPrivate(ctx, c); err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return ctx, p, func() { g.closePrivate(p); cancel() }, nil
}

// rig starts a private node with a pool of target warm sandboxes.
func (b *benchFlags) rig(ctx context.Context, g *globals, target int) (bench.Rig, *node.Private, error) {
	c, _, err := g.config()
	if err != nil {
		return bench.Rig{}, nil, err
	}
	if err := priority.Raise(); err != nil { // like the server
		g.note("the node's priority stays as it is: %v", err)
	}
	c.Pools = nil
	if target > 0 {
		c.Pools = []config.Pool{{Template: b.Template, Language: string(b.lang), Target: target}}
	}
	c.Admission.MaxSandboxes = max(c.Admission.MaxSandboxes, 3*target+16)
	if !b.refuse {
		c.Admission.MaxQueue = max(c.Admission.MaxQueue, 2*b.N)
	}
	p, err := g.openPrivate(ctx, c)
	if err != nil {
		return bench.Rig{}, nil, err
	}
	return bench.Rig{Run: bench.Post(p.Endpoint().URL, p.AdminKey()), Pools: p.Pools()}, p, nil
}

// finish adds the host to a timing and prints it.
func finish(g *globals, t bench.Timing, name string) error {
	t.Bench, t.Host = name, bench.Stamp(version)
	if g.JSON {
		if err := g.printJSON(t); err != nil {
			return err
		}
	} else {
		g.table("BENCH\tLANG\tTEMPLATE\tN\tFAILURES\tCOLD\tP50 ms\tP95\tP99\tMAX", [][]string{{
			name, t.Lang, t.Template, fmt.Sprint(t.N), fmt.Sprint(t.Failures), fmt.Sprint(t.Cold), ms(t.Ms.P50), ms(t.Ms.P95), ms(t.Ms.P99), ms(t.Ms.Max),
		}})
		printHost(g, t.Host)
	}
	return failed(g, t.Failures, t.Failure)
}

func failed(g *globals, n int, first string) error {
	if n == 0 {
		return nil
	}
	g.note("%d failures, the first: %s", n, first)
	return exitCode(exitFailed)
}

func ms(v float64) string { return fmt.Sprintf("%.2f", v) }

func printHost(g *globals, h bench.Host) {
	fmt.Fprintf(g.out, "%d x %s, %d MiB, Linux %s, kvm %t, root %t, load %s, engi %s\n", h.CPUs, h.CPU, h.MemoryMiB, h.Kernel, h.KVM, h.Root, h.Load, h.Engi)
}

// timed runs a benchmark that returns a timing, on a rig.
func (b *benchFlags) timed(ctx context.Context, g *globals, name string, target int, f func(context.Context, bench.Rig) bench.Timing) (err error) {
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	rig, p, err := b.rig(ctx, g, target)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	if b.Spans != "" {
		span, done, e := bench.SpansTo(b.Spans)
		if e != nil {
			return e
		}
		rig.Span = span
		defer func() { err = errors.Join(err, done()) }()
	}
	return finish(g, f(ctx, rig), name)
}

type benchClaim struct{ benchFlags }

func (b *benchClaim) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(100, engi.Bash); err != nil {
		return err
	}
	return b.timed(ctx, g, "claim", 2*b.Concurrency+2, func(ctx context.Context, r bench.Rig) bench.Timing {
		return r.Claim(ctx, bench.Request(b.lang, b.Template), b.N, b.Concurrency)
	})
}

type benchExec struct{ benchFlags }

func (b *benchExec) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(100, engi.Python); err != nil {
		return err
	}
	return b.timed(ctx, g, "exec", 2*b.Concurrency+2, func(ctx context.Context, r bench.Rig) bench.Timing {
		return r.Exec(ctx, bench.Request(b.lang, b.Template), b.N, b.Concurrency)
	})
}

type benchBurst struct{ benchFlags }

func (b *benchBurst) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(100, engi.Python); err != nil {
		return err
	}
	return b.timed(ctx, g, "burst", b.N, func(ctx context.Context, r bench.Rig) bench.Timing {
		return r.Burst(ctx, bench.Request(b.lang, b.Template), b.N)
	})
}

type benchBoot struct{ benchFlags }

func (b *benchBoot) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(30, engi.Bash); err != nil {
		return err
	}
	return b.timed(ctx, g, "boot", 0, func(ctx context.Context, r bench.Rig) bench.Timing {
		req := bench.Request(b.lang, b.Template)
		req.OnEmpty = string(engi.PoolBootSync)
		return r.Exec(ctx, req, b.N, b.Concurrency)
	})
}

type benchReplenish struct{ benchFlags }

func (b *benchReplenish) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(24, engi.Python); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	rig, p, err := b.rig(ctx, g, b.N)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	r := rig.Replenish(ctx, bench.Request(b.lang, b.Template), b.N)
	r.Bench, r.Host = "replenish", bench.Stamp(version)
	if g.JSON {
		if err := g.printJSON(r); err != nil {
			return err
		}
	} else {
		g.table("BENCH\tLANG\tTEMPLATE\tN\tSECONDS\tPER SECOND", [][]string{{"replenish", r.Lang, r.Template, fmt.Sprint(r.N), fmt.Sprint(r.Seconds), fmt.Sprint(r.PerSecond)}})
		printHost(g, r.Host)
	}
	return failed(g, r.Failures, r.Failure)
}

type benchDensity struct {
	benchFlags
	Bare bool `help:"Measure sandboxes without an interpreter."`
}

func (b *benchDensity) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(20, engi.Python); err != nil {
		return err
	}
	if b.Bare {
		b.lang = ""
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	rig, p, err := b.rig(ctx, g, b.N)
	if err != nil {
		return err
	}
	defer g.closePrivate(p)
	if err := rig.WaitFull(ctx); err != nil {
		return err
	}
	time.Sleep(time.Second) // wait until the garbage of the start is collected
	bytes, processes, err := bench.Shares(p.Endpoint().DataDir)
	if err != nil {
		return err
	}
	d := bench.Density{Bench: "density", Lang: string(b.lang), Template: rig.Pools.Pools(ctx)[0].Template, N: b.N, Host: bench.Stamp(version)}
	d.MiBPerSandbox = math.Round(float64(bytes)/float64(b.N)/(1<<20)*100) / 100
	d.Processes = math.Round(float64(processes)/float64(b.N)*10) / 10
	if processes < b.N {
		return engi.Errorf(engi.Internal, "found only %d processes of %d sandboxes", processes, b.N)
	}
	if g.JSON {
		return g.printJSON(d)
	}
	g.table("BENCH\tLANG\tTEMPLATE\tN\tMiB PER SANDBOX\tPROCESSES", [][]string{{"density", orDash(d.Lang), d.Template, fmt.Sprint(d.N), ms(d.MiBPerSandbox), fmt.Sprint(d.Processes)}})
	printHost(g, d.Host)
	return nil
}

type benchCompare struct {
	benchFlags
	Burst int `help:"Number of concurrent runs; 0 skips them." default:"100" placeholder:"N"`
}

func (b *benchCompare) Run(ctx context.Context, g *globals) error {
	if err := b.prepare(20, engi.Python); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	if b.Burst < 0 || b.Burst > 10_000 {
		return engi.Errorf(engi.Invalid, "--burst %d cannot be measured", b.Burst)
	}
	rig, p, err := b.rig(ctx, g, 4)
	if err != nil {
		return err
	}
	closeFirst := sync.OnceFunc(func() { g.closePrivate(p) })
	defer closeFirst()
	warm := rig.Exec(ctx, bench.Request(b.lang, b.Template), b.N, 1)
	c := bench.Comparison{Bench: "compare", Lang: string(b.lang), Template: warm.Template}
	c.Rivals = append(c.Rivals, bench.FromTiming("engi warm", warm))

	// A node without pools, so that no pool refills while the others run.
	cold, q, err := b.rig(ctx, g, 0)
	if err != nil {
		return err
	}
	req := bench.Request(b.lang, b.Template)
	req.OnEmpty = string(engi.PoolBootSync)
	c.Rivals = append(c.Rivals, bench.FromTiming("engi boot_sync", cold.Exec(ctx, req, b.N, 1)))
	g.closePrivate(q)

	rivals, err := b.rivals(ctx, g, p, warm.Template)
	if err != nil {
		return err
	}
	defer rivals.remove()
	closeFirst()
	for _, r := range rivals.all {
		if r.skipped != "" {
			c.Rivals = append(c.Rivals, bench.Skip(r.name, r.skipped))
		} else {
			c.Rivals = append(c.Rivals, bench.Command(ctx, r.name, b.N, r.command))
		}
	}
	if b.Burst > 0 {
		if c.Bursts, err = b.bursts(ctx, g, rivals.all); err != nil {
			return err
		}
	}
	c.Compare()
	c.Host = bench.Stamp(version)
	if g.JSON {
		return g.printJSON(c)
	}
	table := func(how string, rivals []bench.Rival) {
		var rows [][]string
		for _, r := range rivals {
			remark := orDash(cmp.Or(r.Skipped, r.Failure))
			rows = append(rows, []string{r.Name, fmt.Sprint(r.N), ms(r.Ms.P50), ms(r.Ms.P99), ms(r.Ms.Max), fmt.Sprintf("%.2f", r.Ratio), remark})
		}
		g.table(how+"\tN\tP50 ms\tP99\tMAX\tRATIO\tREMARK", rows)
	}
	table("ONE BY ONE", c.Rivals)
	if len(c.Bursts) > 0 {
		fmt.Fprintln(g.out)
		table("ALL AT ONCE", c.Bursts)
	}
	printHost(g, c.Host)
	return nil
}

// bursts times the same number of runs at the same moment for each rival.
func (b *benchCompare) bursts(ctx context.Context, g *globals, rivals []rival) ([]bench.Rival, error) {
	rig, p, err := b.rig(ctx, g, b.Burst)
	if err != nil {
		return nil, err
	}
	all := []bench.Rival{bench.FromTiming("engi warm", rig.Burst(ctx, bench.Request(b.lang, b.Template), b.Burst))}
	g.closePrivate(p)
	for _, r := range rivals {
		if r.skipped == "" {
			all = append(all, bench.BurstCommand(ctx, r.name, b.Burst, r.command))
		}
	}
	return all, nil
}

// A rival is a way other than engi to run the program.
type rival struct {
	name, skipped string // skipped is the reason why the rival is not available
	command       func(ctx context.Context) *exec.Cmd
}

type rivals struct {
	all    []rival
	remove func() // deletes the remains of the rivals
}

// rivals finds other ways to run the program, on the same root file system if
// possible.
func (b *benchFlags) rivals(ctx context.Context, g *globals, p *node.Private, template string) (rivals, error) {
	none := rivals{remove: func() {}}
	t, err := p.Templates().Get(ctx, template)
	if err != nil {
		return none, err
	}
	args, err := bench.Args(b.lang, t.Languages[b.lang].Path)
	if err != nil {
		none.all = []rival{{name: "others", skipped: err.Error()}}
		return none, nil
	}
	c, _, err := g.config()
	if err != nil {
		return none, err
	}
	programs, err := node.FindPrograms(ctx, c)
	if err != nil {
		return none, err
	}
	tmp, err := os.MkdirTemp("", "engi-bench-")
	if err != nil {
		return none, engi.Errorf(engi.Unavailable, "%v", err)
	}
	if err := bench.Bundle(tmp, t.Root, args); err != nil {
		os.RemoveAll(tmp)
		return none, err
	}
	state := filepath.Join(tmp, "state")
	remove := func() {
		// runsc keeps an empty network namespace here. Mounts in use by a killed
		// runsc disappear when it has ended.
		if points, err := filepath.Glob(filepath.Join(state, "null-netns*")); err == nil {
			for _, point := range points {
				syscall.Unmount(point, syscall.MNT_DETACH)
			}
		}
		os.RemoveAll(tmp)
	}

	installed := func(name, program string, before ...string) rival {
		path, err := exec.LookPath(program)
		if err != nil {
			return rival{name: name, skipped: "not installed"}
		}
		return rival{name: name, command: func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, path, append(before[:len(before):len(before)], args...)...)
		}}
	}
	var n atomic.Int64
	all := []rival{
		{name: "runsc run", command: func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, programs[0].Path, "--root", state, "--platform", "systrap", "--network", "none", "run", "--bundle", tmp, fmt.Sprintf("bench%03d", n.Add(1)))
		}},
		// Root without CAP_SYS_RESOURCE may not raise limits, but podman does
		// unless it is given some.
		installed("podman run", "podman", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--rootfs", t.Root+":O"),
		installed("bwrap", "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", t.Root, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
	}
	// The same interpreter, with as little isolation as possible.
	path, sys := args[0], &syscall.SysProcAttr{Chroot: t.Root}
	if os.Geteuid() != 0 {
		sys = nil
		if path, err = exec.LookPath(filepath.Base(args[0])); err != nil {
			return rivals{append(all, rival{name: "fork+exec", skipped: "this machine has no " + filepath.Base(args[0])}), remove}, nil
		}
	}
	return rivals{append(all, rival{name: "fork+exec", command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, path, args[1:]...)
		cmd.SysProcAttr, cmd.Dir = sys, "/"
		return cmd
	}}), remove}, nil
}
