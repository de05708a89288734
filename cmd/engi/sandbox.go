package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type sandboxCommand struct {
	Create    sandboxCreate          `cmd:"" help:"Create a sandbox and print its ID."`
	List      sandboxList            `cmd:"" aliases:"ls" help:"List sandboxes."`
	Get       showCommand            `cmd:"" help:"Show a sandbox."`
	Exec      sandboxExec            `cmd:"" help:"Run a program in a sandbox."`
	Shell     sandboxShell           `cmd:"" help:"Open a terminal in a sandbox, or reattach to it."`
	Cp        sandboxCopy            `cmd:"" name:"cp" help:"Copy files and directories into a sandbox or out of it."`
	Logs      sandboxLogs            `cmd:"" help:"Print the output of a process in a sandbox."`
	Processes sandboxProcesses       `cmd:"" aliases:"top" help:"List the processes of a sandbox."`
	Ports     sandboxPorts           `cmd:"" help:"List the listening ports of a sandbox and their URLs."`
	Metrics   sandboxMetrics         `cmd:"" help:"Show the resource usage of a sandbox."`
	Pause     actCommand[sandboxIDs] `cmd:"" help:"Pause sandboxes, and keep them in memory."`
	Hibernate sandboxHibernate       `cmd:"" help:"Hibernate sandboxes to disk."`
	Resume    sandboxResume          `cmd:"" help:"Resume sandboxes."`
	Snapshot  sandboxSnapshot        `cmd:"" help:"Take a snapshot of a sandbox."`
	Fork      sandboxFork            `cmd:"" help:"Copy a running sandbox."`
	Extend    sandboxExtend          `cmd:"" help:"Extend the deadline of sandboxes."`
	Kill      actCommand[sandboxIDs] `cmd:"" aliases:"rm" help:"Destroy sandboxes."`
}

var sandboxCommands = sandboxCommand{
	Get:   shows(example("engi sandbox get sbx_u2dmwmlezjgprkqrgppgcz2mgu --json"), (*globals).showSandbox, (*client.Client).Sandbox),
	Pause: acts[sandboxIDs](example("engi sandbox pause sbx_u2dmwmlezjgprkqrgppgcz2mgu"), (*client.Client).PauseSandbox, sandboxState),
	Kill:  ends[sandboxIDs](example("engi sandbox kill sbx_u2dmwmlezjgprkqrgppgcz2mgu"), "killed", (*client.Client).StopSandbox),
}

// sandboxFlags are the flags for a new sandbox.
type sandboxFlags struct {
	Snapshot    string            `help:"Start from this snapshot." placeholder:"NAME"`
	Memory      string            `help:"Memory, like 512MiB." placeholder:"SIZE"`
	VCPUs       float64           `name:"vcpus" help:"Processor time, in processors; 0.5 is half of one." placeholder:"N"`
	Disk        string            `help:"Disk space, like 1GiB." placeholder:"SIZE"`
	Pids        int               `name:"processes" help:"Maximum number of processes and threads." placeholder:"N"`
	Env         map[string]string `short:"e" help:"Environment variable of every program in the sandbox; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Meta        map[string]string `short:"m" help:"Label, as KEY=VALUE; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Volume      []string          `help:"Mount a volume; may be repeated." placeholder:"NAME:PATH" sep:"none"`
	Timeout     string            `help:"Time until the deadline, like 10m." placeholder:"D"`
	IdleTimeout string            `help:"Maximum time without requests." placeholder:"D"`
	MaxDuration string            `help:"Maximum time awake, whatever the extensions." placeholder:"D"`
	OnTimeout   string            `help:"Action at the deadline or after the idle timeout: kill or hibernate." enum:"kill,hibernate," default:"" placeholder:"WHAT"`
	AutoResume  bool              `help:"Resume the sandbox on requests."`
	Private     bool              `help:"Make ports private: only the owner and holders of links can reach them."`
	networkFlags
}

// request returns the request according to the flags.
func (f *sandboxFlags) request(template string) (q v1.SandboxRequest, err error) {
	q = v1.SandboxRequest{
		Template: template, Snapshot: f.Snapshot, VCPUs: f.VCPUs, Processes: f.Pids, Env: f.Env, Metadata: f.Meta,
		Lifetime: v1.Lifetime{OnTimeout: f.OnTimeout, AutoResume: f.AutoResume},
	}
	for _, d := range []struct {
		name, text string
		to         *v1.Duration
	}{{"--timeout", f.Timeout, &q.Timeout}, {"--idle-timeout", f.IdleTimeout, &q.IdleTimeout}, {"--max-duration", f.MaxDuration, &q.MaxDuration}} {
		if *d.to, err = duration(d.name, d.text); err != nil {
			return q, err
		}
	}
	if q.Memory, err = size("--memory", f.Memory); err != nil {
		return q, err
	}
	if q.Disk, err = size("--disk", f.Disk); err != nil {
		return q, err
	}
	for _, v := range f.Volume {
		name, path, ok := strings.Cut(v, ":")
		if !ok {
			return q, engi.Errorf(engi.Invalid, "--volume %q has no ':'", v).WithRemedy("write it like --volume data:/data")
		}
		q.Volumes = append(q.Volumes, v1.VolumeMount{Volume: name, Path: path})
	}
	if q.Network, err = f.policy(); err != nil {
		return q, err
	}
	if f.Private {
		q.Ports = &v1.PortPolicy{Private: true}
	}
	return q, nil
}

type sandboxCreate struct {
	Template string `arg:"" optional:"" help:"Template (default: the node's default template)." placeholder:"TEMPLATE"`
	sandboxFlags
}

func (sandboxCreate) Help() string {
	return `Prints only the ID on standard output.

Examples:
  engi sandbox create
  id=$(engi sandbox create base --memory 1GiB --timeout 1h)
  engi sandbox create --idle-timeout 5m --on-timeout hibernate --auto-resume
  engi sandbox create --snapshot ready --volume data:/data -m task=42
  engi sandbox create --allow registry.example.com --secret github@api.github.com
  engi sandbox create --net open --deny 203.0.113.0/24`
}

func (s *sandboxCreate) Run(ctx context.Context, g *globals) error {
	q, err := s.request(s.Template)
	if err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.Sandbox, error) { return d.CreateSandbox(ctx, q) }, func(x v1.Sandbox) string { return x.ID })
}

type sandboxList struct {
	State []string          `short:"s" help:"Only sandboxes in these states, like running,hibernated." placeholder:"STATE"`
	Meta  map[string]string `short:"m" help:"Only sandboxes with this label, as KEY=VALUE; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	All   bool              `short:"a" help:"Include stopped sandboxes, and sandboxes of executions and pools."`
	Limit int               `short:"n" help:"Maximum number of results." default:"100" placeholder:"N"`
	Quiet bool              `short:"q" help:"Print IDs only."`
}

func (sandboxList) Help() string {
	return `Examples:
  engi sandbox list
  engi sandbox list --state hibernated -m task=42
  engi sandbox kill $(engi sandbox list -q)`
}

func (s *sandboxList) Run(ctx context.Context, g *globals) error {
	f := client.SandboxFilter{States: s.State, Metadata: s.Meta, Owned: !s.All}
	if s.All && len(s.State) == 0 {
		for _, state := range engi.States() {
			f.States = append(f.States, string(state))
		}
	}
	sandboxes := table[v1.Sandbox]{"ID\tSTATE\tTEMPLATE\tMEMORY\tDEADLINE\tWORDS\tCREATED", func(x v1.Sandbox) []any {
		return []any{x.ID, x.State, x.Template, x.Size.Memory, until(x.DeadlineAt), words(x.Metadata), ago(x.CreatedAt)}
	}, func(x v1.Sandbox) string { return x.ID }}
	return sandboxes.list(ctx, g, s.Quiet, func(d *connection) ([]v1.Sandbox, error) { return upTo(s.Limit, d.FindSandboxes(ctx, f)) })
}

// upTo returns at most limit items from the beginning of a sequence.
func upTo[T any](limit int, all iter.Seq2[T, error]) ([]T, error) {
	found := []T{}
	for x, err := range all {
		if err != nil || len(found) == limit {
			return found, err
		}
		found = append(found, x)
	}
	return found, nil
}

// until returns the time until t as a text for users.
func until(t *time.Time) string {
	if t == nil {
		return "-"
	}
	if d := time.Until(*t); d > 0 {
		return "in " + short(d)
	}
	return "now"
}

func words(m map[string]string) string {
	var all []string
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return orDash(strings.Join(all, " "))
}

func (g *globals) showSandbox(x v1.Sandbox) {
	var f facts
	f.add("id", "%s", x.ID)
	state := x.State
	if x.Cause != "" {
		state += " (" + x.Cause + ")"
	}
	f.add("state", "%s", state)
	f.add("template", "%s", x.Template)
	f.add("snapshot", "%s", x.SnapshotID)
	f.add("size", "%g vcpus, %s memory, %s disk", x.Size.VCPUs, x.Size.Memory, x.Size.Disk)
	f.add("tier", "%s", x.Tier)
	f.add("created", "%s (%s)", x.CreatedAt.Format(time.RFC3339), ago(x.CreatedAt))
	if x.DeadlineAt != nil {
		f.add("deadline", "%s (%s)", x.DeadlineAt.Format(time.RFC3339), until(x.DeadlineAt))
	}
	if l := x.Lifetime; l != nil {
		f.add("then", "%s", orDash(l.OnTimeout))
		if l.IdleTimeout > 0 {
			f.add("idle", "%s at most", l.IdleTimeout)
		}
		f.add("wakes", "%t", l.AutoResume)
	}
	for _, v := range x.Volumes {
		f.add("volume", "%s at %s", v.Volume, v.Path)
	}
	if n := x.Network; n != nil {
		f.add("network", "%s", n.Mode)
	}
	if len(x.Metadata) > 0 {
		f.add("words", "%s", words(x.Metadata))
	}
	f.print(g)
}

func sandboxState(x v1.Sandbox) string { return x.ID + " " + x.State }

type sandboxHibernate struct {
	IDs      []string `arg:"" name:"id" help:"Sandboxes." placeholder:"ID"`
	DiskOnly bool     `help:"Keep only the disk, not the memory."`
}

func (sandboxHibernate) Help() string {
	return `Processes, memory and files are restored when the sandbox is resumed.

Examples:
  engi sandbox hibernate sbx_u2dmwmlezjgprkqrgppgcz2mgu
  engi sandbox hibernate --disk-only $(engi sandbox list -q --state running)`
}

func (s *sandboxHibernate) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, s.IDs, func(d *connection, id string) (v1.Sandbox, error) { return d.HibernateSandbox(ctx, id, s.DiskOnly) }, sandboxState)
}

type sandboxResume struct {
	IDs     []string `arg:"" name:"id" help:"Sandboxes." placeholder:"ID"`
	Timeout string   `help:"Time until the new deadline (default: as before)." placeholder:"D"`
	Cold    bool     `help:"Boot the sandbox from its disk even if its memory was saved."`
}

func (sandboxResume) Help() string {
	return example("engi sandbox resume sbx_u2dmwmlezjgprkqrgppgcz2mgu --timeout 1h")
}

func (s *sandboxResume) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	return each(ctx, g, s.IDs, func(d *connection, id string) (v1.Sandbox, error) {
		return d.ResumeSandbox(ctx, id, v1.ResumeRequest{Timeout: timeout, Cold: s.Cold})
	}, sandboxState)
}

type sandboxExtend struct {
	IDs     []string `arg:"" name:"id" help:"Sandboxes." placeholder:"ID"`
	Timeout string   `required:"" help:"Time until the new deadline; a later deadline stays." placeholder:"D"`
}

func (sandboxExtend) Help() string {
	return example("engi sandbox extend sbx_u2dmwmlezjgprkqrgppgcz2mgu --timeout 2h")
}

func (s *sandboxExtend) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	return each(ctx, g, s.IDs, func(d *connection, id string) (v1.Sandbox, error) { return d.ExtendSandbox(ctx, id, timeout.Std()) }, sandboxState)
}

type sandboxSnapshot struct {
	ID       string `arg:"" help:"Sandbox." placeholder:"ID"`
	Name     string `arg:"" optional:"" help:"Name of the snapshot; an older snapshot with this name loses it." placeholder:"NAME"`
	DiskOnly bool   `help:"Do not save the memory."`
	TTL      string `help:"Time after which the snapshot is deleted, like 7d (default: never)." placeholder:"D"`
}

func (sandboxSnapshot) Help() string {
	return `The sandbox keeps running. Prints only the snapshot's ID on standard output.

Examples:
  engi sandbox snapshot sbx_u2dmwmlezjgprkqrgppgcz2mgu ready --ttl 7d
  engi sandbox create --snapshot ready`
}

func (s *sandboxSnapshot) Run(ctx context.Context, g *globals) error {
	ttl, err := duration("--ttl", s.TTL)
	if err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.Snapshot, error) {
		return d.SnapshotSandbox(ctx, s.ID, v1.SnapshotRequest{Name: s.Name, DiskOnly: s.DiskOnly, TTL: ttl})
	}, func(x v1.Snapshot) string { return x.ID })
}

type sandboxFork struct {
	ID      string `arg:"" help:"Sandbox." placeholder:"ID"`
	Count   int    `short:"n" help:"Number of copies." default:"1" placeholder:"N"`
	Timeout string `help:"Time until the deadline of each copy (default: the original's)." placeholder:"D"`
}

func (sandboxFork) Help() string {
	return `The sandbox keeps running. Prints only the IDs of the copies on standard output.

Examples:
  engi sandbox fork sbx_u2dmwmlezjgprkqrgppgcz2mgu -n 3`
}

func (s *sandboxFork) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		forks, err := d.ForkSandbox(ctx, s.ID, v1.ForkRequest{Count: s.Count, Timeout: timeout})
		if err != nil {
			return err
		}
		if g.JSON {
			if err := g.printJSON(forks); err != nil {
				return err
			}
		}
		var errs []error
		for _, f := range forks {
			switch {
			case f.Error != nil:
				errs = append(errs, &client.Error{Problem: *f.Error})
			case f.Sandbox != nil && !g.JSON:
				fmt.Fprintln(g.out, f.Sandbox.ID)
			}
		}
		return g.several(errs)
	})
}

type sandboxPorts struct {
	ID   string `arg:"" help:"Sandbox." placeholder:"ID"`
	Link int    `help:"Print a link with which everybody can open this private port." placeholder:"PORT"`
	TTL  string `name:"ttl" help:"Lifetime of the link (default: one hour)." placeholder:"D"`
}

func (sandboxPorts) Help() string {
	return `Examples:
  engi sandbox ports sbx_u2dmwmlezjgprkqrgppgcz2mgu
  engi sandbox ports sbx_u2dmwmlezjgprkqrgppgcz2mgu --link 8080 --ttl 10m`
}

func (s *sandboxPorts) Run(ctx context.Context, g *globals) error {
	ttl, err := duration("--ttl", s.TTL)
	if err != nil {
		return err
	}
	if s.Link != 0 {
		return create(ctx, g, func(d *connection) (v1.Link, error) { return d.LinkPort(ctx, s.ID, s.Link, ttl.Std()) }, func(l v1.Link) string { return l.URL })
	}
	ports := table[v1.Port]{"PORT\tPROGRAM\tURL", func(p v1.Port) []any { return []any{p.Port, p.Process, p.URL} }, nil}
	return ports.list(ctx, g, false, func(d *connection) ([]v1.Port, error) { return d.Ports(ctx, s.ID) })
}

type sandboxMetrics struct {
	ID    string `arg:"" help:"Sandbox." placeholder:"ID"`
	Since string `help:"Time span of the samples (default: all)." placeholder:"D"`
}

func (sandboxMetrics) Help() string {
	return example("engi sandbox metrics sbx_u2dmwmlezjgprkqrgppgcz2mgu --since 10m")
}

func (s *sandboxMetrics) Run(ctx context.Context, g *globals) error {
	since, err := duration("--since", s.Since)
	if err != nil {
		return err
	}
	var from time.Time
	if since > 0 {
		from = time.Now().Add(-since.Std())
	}
	samples := table[v1.Sample]{"TIME\tCPU\tMEMORY\tDISK\tPROCESSES", func(x v1.Sample) []any {
		return []any{
			x.Time.Local().Format(time.TimeOnly), fmt.Sprintf("%.1f%% of %g", x.CPUPercent, x.VCPUs), fmt.Sprintf("%d of %d MiB", x.Memory>>20, x.MemoryLimit>>20),
			fmt.Sprintf("%d of %d MiB", x.DiskUsed>>20, x.DiskCapacity>>20), x.Processes,
		}
	}, nil}
	return samples.list(ctx, g, false, func(d *connection) ([]v1.Sample, error) { return d.SandboxMetrics(ctx, s.ID, from, time.Time{}) })
}

type sandboxProcesses struct {
	ID string `arg:"" help:"Sandbox." placeholder:"ID"`
}

func (sandboxProcesses) Help() string {
	return example("engi sandbox processes sbx_u2dmwmlezjgprkqrgppgcz2mgu")
}

func (s *sandboxProcesses) Run(ctx context.Context, g *globals) error {
	processes := table[v1.Process]{"ID\tPID\tTAG\tSTATE\tSTARTED\tPROGRAM", func(p v1.Process) []any {
		state, began := "ended", ""
		if p.Running {
			state = "running"
		}
		if p.StartedAt != nil {
			began = ago(*p.StartedAt)
		}
		return []any{p.ID, p.PID, p.Tag, state, began, fmt.Sprintf("%.60s", strings.Join(p.Args, " "))}
	}, nil}
	return processes.list(ctx, g, false, func(d *connection) ([]v1.Process, error) { return d.Processes(ctx, s.ID) })
}

type sandboxLogs struct {
	ID      string `arg:"" help:"Sandbox." placeholder:"ID"`
	Process string `arg:"" optional:"" help:"ID or tag of a process (default: the newest)." placeholder:"PROCESS"`
	Follow  bool   `short:"f" help:"Continue until the process ends, and exit with its code."`
	From    int64  `help:"Offset to start at, in bytes of output." placeholder:"N"`
}

func (sandboxLogs) Help() string {
	return `Examples:
  engi sandbox logs sbx_u2dmwmlezjgprkqrgppgcz2mgu
  engi sandbox logs -f sbx_u2dmwmlezjgprkqrgppgcz2mgu server`
}

func (s *sandboxLogs) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		if s.Process == "" {
			all, err := d.Processes(ctx, s.ID)
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return engi.Errorf(engi.NotFound, "no process was started in %s", s.ID)
			}
			s.Process = all[0].ID
		}
		p, err := d.Process(ctx, s.ID, s.Process)
		if err != nil {
			return err
		}
		return printUntilQuiet(ctx, s.Follow, func(ctx context.Context) iter.Seq2[v1.ProcessUpdate, error] { return p.Output(ctx, s.From) }, func(e v1.ProcessUpdate) error {
			if err := g.printProcessEvent(e); err != nil || e.Exit == nil || !s.Follow {
				return err
			}
			return endLike(*e.Exit)
		})
	})
}

// printProcessEvent prints an update of a process.
func (g *globals) printProcessEvent(e v1.ProcessUpdate) error {
	return g.printEvent(v1.ExecutionUpdate{Type: streamName(e.Type), Offset: e.Offset, Data: e.Data, DataBase64: e.DataBase64})
}

// streamName returns the stream for a kind of output of a process.
func streamName(kind string) string {
	if kind == v1.EventTerminal {
		return v1.EventStdout
	}
	return kind
}

// endLike ends a command with the exit of the program that it ran.
func endLike(x v1.Exit) error {
	if code := exitOf(v1.Result{ExitCode: x.ExitCode, Signal: x.Signal, Cause: x.Cause}); code != 0 {
		return exitCode(code)
	}
	return nil
}

var errDetached = errors.New("detached")
