// Package apitest serves the HTTP API with fakes behind it, for tests of the API
// and of its clients. The fakes behave as engi's interfaces promise. Executions
// interpret a language of a few commands; sandboxes have the real guest, running
// in this process, so that their programs run on the host.
package apitest

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/mirror"
	"github.com/engi-dev/engi/internal/operation"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/internal/server/compat/anthropic"
	"github.com/engi-dev/engi/internal/server/compat/openai"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/terminal"
)

// A Fixture is a server with all its services.
type Fixture struct {
	Executions *Executions
	Sandboxes  *Sandboxes
	Templates  *Templates
	Pools      *Pools
	Volumes    *Volumes
	Networks   *Networks
	Operations *operation.Manager
	Approvals  *approval.Manager
	Keys       *key.Keyring
	Clients    engi.ToolClients
	Pages      *Pages
	Apps       *Apps
	Workspaces *Workspaces
	Workflows  engi.Workflows

	Handler *rest.Server
	Admin   string // secret of an admin key
	User    string // secret of a key of owner "ann"
	Other   string // secret of a key of owner "bob"

	db   *store.DB
	dir  string          // directory of db and Operations
	stop func()          // stops Operations
	life context.Context // context of requests that Hold has made
	held sync.WaitGroup
}

// Options holds the options and services of the server, for tests to change.
type Options struct {
	rest.Options

	Executions  engi.Executions
	Bounds      engi.Bounds // of programs
	Sandboxes   engi.Sandboxes
	Lifecycle   engi.Lifecycle
	Snapshots   engi.Snapshots
	Volumes     engi.Volumes
	Secrets     engi.Secrets
	Templates   engi.Templates
	Operations  engi.Operations
	Pools       engi.Pools
	Ports       rest.PortService
	Networks    engi.NetworkLog
	Scripts     engi.Scripts
	Sessions    engi.Sessions
	Pages       engi.Pages
	Apps        engi.Apps
	Workspaces  engi.Workspaces
	Workflows   engi.Workflows
	Terminals   *terminal.Manager
	Agents      engi.Agents
	Embedder    openai.Embedder
	ToolServers engi.ToolServers
	Spending    engi.UsageReporter
	Docs        engi.Docs
	Events      engi.Events
	Functions   engi.Functions
	Webhooks    engi.Webhooks
	SSH         *ssh.Server
	Approvals   engi.Approvals
	Quota       func(engi.Owner) engi.Quota
	Mirror      *mirror.Server
	Metrics     prometheus.Gatherer
	Links       rest.Links
}

// Serve returns the API of o.
func (o *Options) Serve() *rest.Server {
	return rest.New(o.Options,
		rest.Executions(o.Executions),
		rest.Sandboxes(o.Sandboxes, o.Lifecycle, o.Snapshots),
		rest.Processes(o.Sandboxes),
		rest.Files(o.Sandboxes),
		rest.Ports(o.Ports, o.Sandboxes),
		rest.Networks(o.Sandboxes, o.Networks),
		rest.Snapshots(o.Snapshots, o.Lifecycle),
		rest.Volumes(o.Volumes),
		rest.Secrets(o.Secrets),
		rest.Mirror(o.Mirror),
		rest.Scripts(o.Scripts),
		rest.Sessions(o.Sessions),
		rest.Pages(o.Pages),
		rest.Apps(o.Apps, o.Ports, o.Events),
		rest.Workspaces(o.Workspaces, o.Ports),
		rest.Workflows(o.Workflows),
		rest.Terminals(o.Terminals),
		rest.Agents(o.Agents),
		openai.Resource(o.Agents, o.Embedder, o.Started),
		anthropic.Resource(o.Agents),
		rest.ToolServers(o.ToolServers),
		rest.Docs(o.Docs),
		rest.Events(o.Events, o.Functions, o.Workspaces),
		rest.Functions(o.Events, o.Functions),
		rest.Webhooks(o.Webhooks),
		rest.Approvals(o.Approvals, o.Events),
		rest.Templates(o.Templates, o.Operations),
		rest.Operations(o.Operations),
		rest.Node(rest.NodeInfo{Pools: o.Pools, Sessions: o.Sessions, Metrics: o.Metrics, Tier: engi.TierMemory, NotEnforced: []string{"memory"}, Examine: func(context.Context) ([]engi.Check, error) {
			return []engi.Check{{Name: "memory limits", Detail: "this fake has none", Fix: "use a real machine"}}, nil
		}}),
		rest.Pools(o.Pools),
		rest.Usage(rest.Counted{Sandboxes: o.Sandboxes, Snapshots: o.Snapshots, Volumes: o.Volumes, Spending: o.Spending, Quota: o.Quota}),
		rest.Keys(o.Keys),
		rest.SSH(o.SSH),
		rest.Dashboard(o.Links),
	)
}

// New returns a fixture, which the caller must close. change, if it is not nil,
// modifies the default options.
func New(change func(*Options)) *Fixture {
	w := &Fixture{
		Executions: NewExecutions(),
		Templates:  NewTemplates(),
		Pools:      &Pools{},
	}
	var err error
	if w.dir, err = os.MkdirTemp("", "engi-apitest-*"); err != nil {
		panic(err)
	}
	if w.db, err = storetest.Create(w.dir); err != nil {
		panic(err)
	}
	w.Keys, w.Clients = key.New(store.Keys(w.db)), store.ToolClients(w.db)
	if w.Approvals, err = approval.Open(context.Background(), approval.Options{Store: store.Approvals(w.db), Seed: make([]byte, 32)}); err != nil {
		panic(err)
	}
	functions, webhooks, stopFunctions := functions(w.db, w.Approvals)
	w.Sandboxes = NewSandboxes(w.Executions)
	w.Volumes, w.Networks, w.Pages = &Volumes{}, NewNetworks(w.Sandboxes), &Pages{}
	w.Workspaces = &Workspaces{Sandboxes: w.Sandboxes}
	w.Workflows = newWorkflows(w.db, w.Workspaces)
	w.Apps = &Apps{Log: store.Events(w.db), Workspaces: w.Workspaces}
	mirror, err := mirror.New(mirror.Options{Dir: filepath.Join(w.dir, "packages"), Offline: true})
	if err != nil {
		panic(err)
	}
	sshServer, err := ssh.Open(ssh.Options{
		Settings: ssh.DefaultSettings(), Store: store.SSHKeys(w.db), Callers: w.Keys, Places: place.Resolver{Sandboxes: w.Sandboxes}, Lifecycle: w.Sandboxes.Lifecycle(),
		Events: store.Events(w.db), HostKey: filepath.Join(w.dir, "ssh"),
	})
	if err != nil {
		panic(err)
	}
	reg := prometheus.NewRegistry()
	o := Options{
		Options:    rest.Options{Keys: w.Keys, Idempotency: store.Idempotency(w.db), Secret: []byte("of fingerprints"), Register: reg, Version: "0.0.0-test", Started: time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)},
		Executions: w.Executions, Sandboxes: w.Sandboxes, Lifecycle: w.Sandboxes.Lifecycle(), Snapshots: w.Sandboxes.Snapshots(), Volumes: w.Volumes,
		Secrets: &Secrets{}, Templates: w.Templates, Pools: w.Pools, Ports: ports{w.Sandboxes}, Networks: w.Networks, Scripts: scripts{}, Sessions: &Sessions{Sandboxes: w.Sandboxes, Workspaces: w.Workspaces},
		Pages: w.Pages, Apps: w.Apps, Workspaces: w.Workspaces, Workflows: w.Workflows, Agents: &Agents{}, Embedder: embedder{}, ToolServers: &Agents{}, Docs: &Docs{}, Events: store.Events(w.db), Functions: functions, Webhooks: webhooks, SSH: sshServer, Approvals: w.Approvals, Mirror: mirror, Metrics: reg, Links: signin.New(store.SignIns(w.db), w.Keys),
		Quota: func(engi.Owner) engi.Quota { return engi.Quota{Sandboxes: 100, Volumes: 10} },
	}
	if change != nil {
		change(&o)
	}
	w.Pages.Sessions, w.Executions.bounds = o.Sessions, o.Bounds
	if o.Terminals == nil {
		o.Terminals = terminal.New(terminal.Options{Places: place.Resolver{Sessions: o.Sessions, Sandboxes: o.Sandboxes}, Templates: o.Templates, Store: store.Terminals(w.db)})
	}
	w.Operations = operation.New(context.Background(), operation.Options{
		Store: store.Operations(w.db), Dir: filepath.Join(w.dir, "operations"),
		Work: map[string]operation.Work{engi.OperationBuildTemplate: operation.BuildTemplate(o.Templates)},
	})
	if o.Operations == nil {
		o.Operations = w.Operations
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.life = ctx
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Operations.Run(ctx, func() {}); err != nil && ctx.Err() == nil {
			panic(err)
		}
	})
	w.stop = func() {
		cancel()
		w.held.Wait()
		running.Wait()
		stopFunctions()
		mirror.Close()
		sshServer.Close()
	}
	if l, ok := o.Docs.(*Docs); ok && l.Sessions == nil {
		l.Sessions = o.Sessions
	}
	w.Handler = o.Serve()
	w.Admin = w.key(engi.Key{Admin: true, Name: "root"})
	w.User = w.key(engi.Key{Owner: "ann"})
	w.Other = w.key(engi.Key{Owner: "bob"})
	return w
}

func (w *Fixture) key(k engi.Key) string {
	_, secret, err := w.Keys.Create(context.Background(), k)
	if err != nil {
		panic(err) // the keys above are valid
	}
	return secret
}

// Close stops all services and waits for their end.
func (w *Fixture) Close() {
	w.Executions.Close()
	w.Sandboxes.Close()
	w.Volumes.close()
	w.stop()
	w.db.Close()
	os.RemoveAll(w.dir)
}

// Serve returns a fixture that listens until the end of t, and its server.
func Serve(t testing.TB, change func(*Options)) (*Fixture, *httptest.Server) {
	w := New(change)
	srv := httptest.NewUnstartedServer(w.Handler)
	srv.Config = rest.NewServer(w.Handler, nil)
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		w.Close()
	})
	return w, srv
}

// Templates is a fake with the templates "host" and "base" that builds any definition.
type Templates struct {
	mu  sync.Mutex
	all []engi.Template
}

var _ engi.Templates = (*Templates)(nil)

// NewTemplates returns the fake.
func NewTemplates() *Templates {
	built := time.Date(2026, 11, 20, 19, 0, 0, 0, time.UTC)
	python := map[engi.Language]engi.Interpreter{engi.Python: {Path: "/usr/bin/python3", Warm: true}}
	return &Templates{all: []engi.Template{
		{Name: "base", Digest: "sha256:ba5e", Root: "/secret/place", User: "user", Home: "/home/user", WorkDir: "/workspace", Shell: "/bin/bash",
			Env: map[string]string{"LANG": "C.UTF-8"}, Ports: []int{8080}, Size: engi.Size{VCPUs: 1, Memory: 512 << 20}, Languages: python, Built: built, Bytes: 1 << 30},
		{Name: "host", Digest: "sha256:4057", Root: "/", WorkDir: "/workspace", Shell: "/bin/sh", Languages: python, Built: built},
		{Name: "unbuilt"},
	}}
}

// Add adds a template.
func (t *Templates) Add(x engi.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, x)
}

// Get returns a built template by name or digest.
func (t *Templates) Get(ctx context.Context, name string) (engi.Template, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.all {
		if x.Name == name || x.Digest == name {
			if x.Digest == "" {
				return x, engi.Errorf(engi.Unavailable, "template %q is not built yet", name).WithRemedy("run 'engi template build %s'", name)
			}
			return x, nil
		}
	}
	return engi.Template{}, engi.Errorf(engi.NotFound, "no template %q", name)
}

// List returns all templates.
func (t *Templates) List(ctx context.Context) ([]engi.Template, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]engi.Template{}, t.all...), nil
}

// Build takes three steps. The definition "bad" fails after the first step, "slow"
// takes until ctx ends.
func (t *Templates) Build(ctx context.Context, name string, definition []byte, progress func(engi.Progress)) (engi.Template, error) {
	if definition == nil {
		return t.Get(ctx, name)
	}
	for i, step := range []string{"fetch", "unpack", "seal"} {
		progress(engi.Progress{Step: i + 1, Steps: 3, Name: step})
		progress(engi.Progress{Step: i + 1, Steps: 3, Name: step, Log: "log of " + step, Done: 1, Total: 1})
		switch string(definition) {
		case "bad":
			return engi.Template{}, engi.Errorf(engi.Invalid, "template %s: step fetch: no such suite", name)
		case "slow":
			<-ctx.Done()
			return engi.Template{}, engi.Errorf(engi.Expired, "build %s: %v", name, context.Cause(ctx))
		}
	}
	x := engi.Template{Name: name, Digest: "sha256:f4e5", WorkDir: "/workspace", Built: time.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, x)
	return x, nil
}

// Remove deletes a template; "base" is in use.
func (t *Templates) Remove(ctx context.Context, name string) error {
	if name == "base" {
		return engi.Errorf(engi.Conflict, "template base is in use")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, x := range t.all {
		if x.Name == name {
			t.all = append(t.all[:i:i], t.all[i+1:]...)
			return nil
		}
	}
	return engi.Errorf(engi.NotFound, "no template %q", name)
}

// Prune returns a mebibyte as the size that it freed.
func (t *Templates) Prune(ctx context.Context) (int64, error) { return 1 << 20, nil }

// Pools is a fake with one pool, which is warm unless SetCold made it cold.
type Pools struct {
	mu   sync.Mutex
	cold bool
}

var _ engi.Pools = (*Pools)(nil)

// SetCold makes the pool cold, or warm again.
func (p *Pools) SetCold(cold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cold = cold
}

// Pools returns the pool.
func (p *Pools) Pools(ctx context.Context) []engi.PoolStatus {
	return []engi.PoolStatus{{Template: "base", Digest: "sha256:ba5e", Language: engi.Python, Target: 4, Max: 16, Ready: 3, Booting: 1, Used: 2}}
}

// Warm returns nil unless the pool is cold.
func (p *Pools) Warm(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cold {
		return engi.Errorf(engi.Unavailable, "pool base/python has no members yet")
	}
	return nil
}

// scripts is a fake whose scripts all return 42.
type scripts struct{}

func (scripts) Run(ctx context.Context, spec engi.ScriptSpec) (engi.ScriptResult, error) {
	return engi.ScriptResult{OK: true, Value: []byte("42"), Duration: time.Millisecond, Environment: engi.ScriptEnvironment{Engine: "none", Tier: engi.TierMemory}}, nil
}

func (scripts) APIs() []engi.ScriptAPI { return nil }

func (scripts) Declarations() string { return "" }
