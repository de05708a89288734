// Package node assembles a server from a configuration: it opens the services
// in order, serves HTTP, and closes the services in reverse order. A node owns its data
// directory; its sandboxes outlive it.
//
// Logic belongs in the packages that node uses. Only cmd/engi and end-to-end
// tests import it.
package node

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/budget"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/remote"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/inngest"
	"github.com/engi-dev/engi/internal/network/mirror"
	"github.com/engi-dev/engi/internal/network/preview"
	"github.com/engi-dev/engi/internal/node/bundle"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/node/listener"
	"github.com/engi-dev/engi/internal/operation"
	"github.com/engi-dev/engi/internal/page"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
	"github.com/engi-dev/engi/internal/sandbox/script"
	"github.com/engi-dev/engi/internal/server/compat/anthropic"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/server/compat/openai"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/terminal"
	"github.com/engi-dev/engi/internal/undo"
	"github.com/engi-dev/engi/internal/webhook"
	"github.com/engi-dev/engi/internal/workspace"
)

// Options holds the options of a node besides its configuration. The zero value means
// an ordinary server.
type Options struct {
	Version   string            // version of this build
	Log       *slog.Logger      // nil discards
	Provider  provider.Provider // replaces gVisor, for tests
	Ephemeral bool              // destroy all sandboxes when Run ends
}

// A Node is one server. It is safe for concurrent use.
type Node struct {
	config     config.Config
	log        *slog.Logger
	version    string
	started    time.Time
	programs   []bundle.Program
	provider   provider.Provider
	templates  *disk.Templates
	snapshots  *snapshot.Registry
	volumes    *volume.Manager
	runner     *fleet.BuildRunner
	db         *store.DB
	fleet      *fleet.Manager
	script     *script.Runner // nil if scripts are not served
	sessions   *sessions
	apps       *app.Service
	workspaces *workspace.Service
	models     *llm.Registry // nil if agents are off
	docs       *docs.Index   // nil if docs are off
	embedder   docs.Embedder
	agents     *agent.Runner // nil if the service is off
	pages      *page.Service // nil if agents are off
	budget     *budget.Tracker
	functions  *function.Runner // nil if the service is off
	inngest    *inngest.Engine  // nil if functions run on the node itself
	webhooks   *webhook.Manager // nil if functions are off
	refusals   *store.Refusals
	remote     *remote.Remote // tool servers of agents
	services   tool.Services  // services for tools
	operations *operation.Manager
	listener   *listener.Listener
	secrets    *secret.Service
	approvals  *approval.Manager
	gateway    *gateway // nil if sandboxes have no network
	mirror     *mirror.Server
	previews   *preview.Proxy
	signIns    *signin.Manager
	e2b        *e2b.Server
	ssh        *ssh.Server
	handler    http.Handler
	leave      context.CancelFunc // ends streams, so that the server can stop
	secret     string             // secret of the admin key
	closers    undo.Stack
}

// Open assembles a node on c.DataDir and listens. It reports Conflict if another
// process holds the directory or the port. The caller must call Run or Close.
func Open(ctx context.Context, c config.Config, o Options) (_ *Node, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{config: c, log: o.Log, version: o.Version, started: time.Now().UTC().Truncate(time.Millisecond)}
	defer func() {
		if err != nil {
			n.closers.Run()
		}
	}()

	release, err := datadir.Hold(c.DataDir)
	if err != nil {
		return nil, err
	}
	n.closers.Add(release)
	if err := os.MkdirAll(c.CacheDir, 0o700); err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err).WithRemedy("choose a directory that you may write to with cache_dir")
	}
	if err := n.listen(ctx); err != nil {
		return nil, err
	}
	if n.provider = o.Provider; n.provider == nil {
		if n.programs, err = FindPrograms(ctx, c); err != nil {
			return nil, err
		}
		n.provider, err = gvisor.New(gvisor.Options{
			Runsc: n.programs[0].Path, Guest: n.programs[1].Path, Dir: machinesDir(c.DataDir),
			Log: n.log.With("component", "provider"), Boots: 2 * c.Admission.Boots, // half of them for pools
		})
		if err != nil {
			return nil, err
		}
	}
	if n.db, err = store.Open(ctx, filepath.Join(c.DataDir, datadir.DatabaseName)); err != nil {
		return nil, err
	}
	n.refusals = store.NewRefusals(n.db)
	n.db.Log = n.log.With("component", "store")
	n.db.Keep = store.EventBounds{Age: time.Duration(c.Events.LogKeep), Count: c.Events.LogCount, Bytes: int64(c.Events.LogBytes)}
	n.closers.Add(func() {
		if err := n.db.Close(); err != nil {
			n.log.Error("close the database", "error", err)
		}
	})
	keys := key.New(store.Keys(n.db))
	if n.secret, err = key.Bootstrap(ctx, keys, filepath.Join(c.DataDir, datadir.KeyName)); err != nil {
		return nil, err
	}
	if err := n.openSecrets(ctx); err != nil {
		return nil, err
	}
	if n.approvals, err = approval.Open(ctx, c.Approvals.Options(store.Approvals(n.db), n.secrets.Derive("signatures of approvals"), n.log)); err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := n.openGateway(ctx, metrics); err != nil {
		return nil, err
	}
	if n.runner, err = fleet.NewBuildRunner(n.provider, engi.Size{}, n.fleetEgress(), engi.Network(c.Network.Max), c.Builds.Allow); err != nil {
		return nil, err
	}
	if err := n.openDisk(ctx); err != nil {
		return nil, err
	}
	name, err := n.defaultTemplate(ctx)
	if err != nil {
		return nil, err
	}
	if n.fleet, err = fleet.Open(ctx, n.fleetOptions(o, metrics, name)); err != nil {
		return nil, err
	}
	n.openWorkspaces()
	// Sessions, which may work in workspaces, come before scripts, which may use them.
	if err := n.openSessions(ctx, metrics, name); err != nil {
		return nil, err
	}
	if err := n.openScripts(ctx); err != nil {
		return nil, err
	}
	n.openStudio(metrics)
	if err := n.openAgents(ctx); err != nil {
		return nil, err
	}
	if err := n.openFunctions(ctx); err != nil {
		return nil, err
	}
	n.operations = operation.New(ctx, operation.Options{
		Store: store.Operations(n.db), Dir: filepath.Join(c.DataDir, "operations"), Log: n.log.With("component", "operations"),
		Work: map[string]operation.Work{engi.OperationBuildTemplate: operation.BuildTemplate(n.templates)},
	})
	leave, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.leave = cancel
	n.closers.Add(cancel)
	var notEnforced []string
	if e, ok := n.provider.(provider.Enforcer); ok {
		notEnforced = e.NotEnforced()
	}
	notEnforced = append(notEnforced, n.volumes.NotEnforced()...)
	n.openPreviews(keys, leave)
	n.signIns = signin.New(store.SignIns(n.db), keys)
	if err := n.openE2B(keys, leave.Done()); err != nil {
		return nil, err
	}
	n.ssh, err = ssh.Open(ssh.Options{
		Settings: c.SSH, Store: store.SSHKeys(n.db), Callers: keys, Places: n.places(), Lifecycle: n.fleet.Lifecycle(),
		Events: n.Events(), HostKey: filepath.Join(c.DataDir, "ssh_host_ed25519_key"), Log: n.log.With("component", "ssh"),
	})
	if err != nil {
		return nil, err
	}
	n.closers.Add(n.ssh.Close)
	tools, err := n.openMCP(keys)
	if err != nil {
		return nil, err
	}
	n.handler = n.dispatch(leave, n.dashboard(keys, n.api(rest.Options{
		Keys: keys, Idempotency: store.Idempotency(n.db), Secret: n.secrets.Derive("fingerprints of requests"), Version: o.Version, Started: n.started, Register: metrics, Log: n.log.With("component", "api"), Leave: leave, Hosts: n.hosts(), Origins: c.CORS.Origins,
		// Base64 in JSON makes the input a third larger.
		MaxBody: int64(c.Admission.MaxInput)*3/2 + 1<<20,
	}, rest.NodeInfo{
		Pools: n.fleet, Sessions: n.Sessions(), Metrics: metrics, Tier: n.provider.Tier(), NotEnforced: notEnforced, Examine: func(ctx context.Context) ([]Check, error) { return Examine(ctx, c) },
	})), tools)
	return n, nil
}

// places returns the resolver of sessions, workspaces and sandboxes.
func (n *Node) places() place.Resolver {
	return place.Resolver{Sessions: n.Sessions(), Workspaces: n.Workspaces(), Sandboxes: n.workspaces.Shared(n.fleet.Sandboxes())}
}

// api returns the HTTP API, with one line for each resource.
func (n *Node) api(o rest.Options, about rest.NodeInfo) *rest.Server {
	sandboxes, lifecycle := n.workspaces.Shared(n.fleet.Sandboxes()), n.fleet.Lifecycle()
	return rest.New(o,
		rest.Executions(n.fleet.Executions()),
		rest.Sandboxes(sandboxes, lifecycle, n.snapshots),
		rest.Processes(sandboxes),
		rest.Files(sandboxes),
		rest.Ports(n.previews, sandboxes),
		rest.Networks(sandboxes, n.NetworkLog()),
		rest.Snapshots(n.snapshots, lifecycle),
		rest.Volumes(n.volumes),
		rest.Secrets(n.secrets),
		rest.Mirror(n.mirror),
		rest.Scripts(n.Scripts()),
		rest.Sessions(n.Sessions()),
		rest.Pages(n.Pages()),
		rest.Apps(n.Apps(), n.previews, n.Events()),
		rest.Workspaces(n.Workspaces(), n.previews),
		rest.Terminals(terminal.New(terminal.Options{Places: n.places(), Templates: n.templates, Store: store.Terminals(n.db), Log: n.log.With("component", "terminals")})),
		rest.Agents(n.Agents()),
		openai.Resource(n.Agents(), n.embedder, n.started),
		anthropic.Resource(n.Agents()),
		rest.ToolServers(n.remote),
		rest.Docs(n.Docs()),
		rest.Events(n.Events(), n.Functions(), n.Workspaces()),
		rest.Functions(n.Events(), n.Functions()),
		rest.Webhooks(n.Webhooks()),
		rest.Approvals(n.approvals, n.Events()),
		rest.Templates(n.templates, n.operations),
		rest.Operations(n.operations),
		rest.Node(about),
		rest.Pools(n.fleet),
		rest.Usage(rest.Counted{Sandboxes: sandboxes, Snapshots: n.snapshots, Volumes: n.volumes, Spending: n.budget, Quota: n.config.Quota.Of}),
		rest.Keys(o.Keys),
		rest.SSH(n.ssh),
		rest.Dashboard(n.signIns),
	)
}

// machinesDir returns the directory of the provider's machines. The name is short, since
// the path of a Unix socket below it may have at most 107 bytes.
func machinesDir(dataDir string) string { return filepath.Join(resolve(dataDir), "m") }
func volumesDir(dataDir string) string  { return filepath.Join(dataDir, "volumes") }

// FindPrograms returns runsc and the guest program, in this order.
func FindPrograms(ctx context.Context, c config.Config) ([]bundle.Program, error) {
	var all []bundle.Program
	for _, p := range []struct{ name, configured string }{{bundle.Runsc, c.Runsc}, {bundle.Guest, c.Guest}} {
		found, err := bundle.Find(ctx, filepath.Join(c.CacheDir, "programs"), p.name, p.configured)
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	return all, nil
}

// defaultTemplate returns the configured default template. An empty one means
// base if it is built, and otherwise host, which needs no build.
func (n *Node) defaultTemplate(ctx context.Context) (string, error) {
	if n.config.Templates.Default != "" {
		return n.config.Templates.Default, nil
	}
	// A partly built base is sufficient.
	_, release, err := n.templates.Use(ctx, "base")
	switch {
	case err == nil:
		release()
		return "base", nil
	case engi.Is(err, engi.Unavailable, engi.NotFound):
		n.log.Warn("the template base is not built: programs run with this machine's interpreters, read only",
			"default", "host", "remedy", "run 'engi template build base' and restart")
		return "host", nil
	}
	return "", err
}

func (n *Node) fleetOptions(o Options, metrics prometheus.Registerer, template string) fleet.Options {
	c := n.config
	opt := fleet.Options{
		Providers: []provider.Provider{n.provider}, Templates: registryTemplates{n.templates, c.Registries}, Store: store.Fleet(n.db),
		Dir: filepath.Join(c.DataDir, "fleet"), Log: n.log.With("component", "fleet"), Metrics: metrics, Builds: n.runner,
		Snapshots: n.snapshots, Volumes: n.volumes, Template: template, Defaults: c.Limits.Limits(), Max: c.Max.Limits(), OnEmpty: engi.EmptyPool(c.Admission.OnEmpty),
		ClaimTimeout: time.Duration(c.Admission.ClaimTimeout), MaxWait: time.Duration(c.Admission.MaxWait), MaxSandboxes: c.Admission.MaxSandboxes, MaxQueue: c.Admission.MaxQueue,
		MaxCode: int64(c.Admission.MaxCode), MaxInput: int64(c.Admission.MaxInput), Boots: c.Admission.Boots,
		Quota:     c.Quota.Of,
		Refused:   n.refusals.Add,
		Egress:    n.fleetEgress(),
		Spare:     c.Sandboxes.Spare,
		Lifetime:  fleet.Lifetime{Timeout: time.Duration(c.Sandboxes.Timeout), Max: time.Duration(c.Sandboxes.Max)},
		KeepCount: c.Keep.Count, KeepAge: time.Duration(c.Keep.Age), Ephemeral: o.Ephemeral,
	}
	for _, p := range c.Pools {
		opt.Pools = append(opt.Pools, fleet.PoolConfig{
			Template: p.Template, Language: engi.Language(p.Language), Target: p.Target, Max: p.Max,
			OnEmpty: engi.EmptyPool(p.OnEmpty), ClaimTimeout: time.Duration(p.ClaimTimeout),
		})
	}
	return opt
}

// AdminKey returns the secret of the admin key.
func (n *Node) AdminKey() string { return n.secret }

// Executions, and the methods below, return the services of the node for programs in the same process.
func (n *Node) Executions() engi.Executions { return n.fleet.Executions() }
func (n *Node) Sandboxes() engi.Sandboxes   { return n.fleet.Sandboxes() }
func (n *Node) Lifecycle() engi.Lifecycle   { return n.fleet.Lifecycle() }
func (n *Node) Pools() engi.Pools           { return n.fleet }
func (n *Node) Templates() engi.Templates   { return n.templates }
func (n *Node) Volumes() engi.Volumes       { return n.volumes }

// Run runs the node until ctx ends; ready is called once it serves. When Run
// returns, the node is closed. Its sandboxes keep running unless it is ephemeral.
func (n *Node) Run(ctx context.Context, ready func()) error {
	defer n.closers.Run()
	parts := []part{
		{"store", n.db.Run, 5 * time.Second},
		{"fleet", n.fleet.Run, 60 * time.Second},
		{"e2b", n.e2b.Run, 30 * time.Second},
	}
	parts = append(parts, n.diskParts()...)
	parts = append(parts, part{"quotas", n.refusals.Run, 10 * time.Second})
	parts = append(parts, part{"approvals", n.approvals.Run, 10 * time.Second})
	parts = append(parts, part{"operations", n.operations.Run, 60 * time.Second})
	parts = append(parts, part{"sessions", n.sessions.Run, 60 * time.Second})
	parts = append(parts, part{"apps", n.apps.Run, 60 * time.Second}, part{"workspaces", n.workspaces.Run, 60 * time.Second})
	if n.script != nil {
		parts = append(parts, part{"script", n.script.Run, 10 * time.Second})
	}
	if n.docs != nil {
		parts = append(parts, part{"docs", n.docs.Run, 30 * time.Second})
	}
	if n.agents != nil {
		parts = append(parts, part{"agents", n.agents.Run, 30 * time.Second}, part{"pages", n.pages.Run, 30 * time.Second})
	}
	if n.functions != nil {
		parts = append(parts, part{"functions", n.functions.Serve, 30 * time.Second})
	}
	parts = append(parts, part{"ssh", n.ssh.Run, 10 * time.Second}, part{"tls", n.listener.Certificates, 10 * time.Second})
	return runParts(ctx, n.log, ready, append(parts, part{"http", n.serve, 15 * time.Second})...)
}

// Close closes a node that never ran.
func (n *Node) Close() { n.closers.Run() }
