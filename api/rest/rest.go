// Package rest is engi's own HTTP surface: /v1, its OpenAPI description, the
// browsable documentation, health and metrics. It translates between wire
// types (package v1) and the nouns of the house, checks who is calling, and
// turns kinds of error into problem documents. It decides nothing about
// sandboxes and keeps nothing: node hands it the interfaces it serves and
// listens on its behalf.
package rest

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/gate/preview"
)

// Options are what the surface serves. The first five interfaces are needed;
// the zero value of everything else is useful: what is nil is Unsupported.
type Options struct {
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Pools      engi.Pools
	Keys       engi.Keys

	Lifecycle   engi.Lifecycle
	Snapshots   engi.Snapshots
	Volumes     engi.Volumes
	Secrets     engi.Secrets
	Scripts     engi.Scripts
	Sessions    engi.Sessions
	Agents      engi.Agents
	Spending    engi.UsageReporter // nil: nothing is spent on models
	ToolServers engi.ToolServers   // that agents may use; nil if there are none
	Library     engi.Library
	Functions   engi.Functions
	Events      engi.Events // the log
	Networks    engi.NetworkLog
	Ports       Ports
	Quota       func(engi.Owner) engi.Quota // nil means that nothing is bounded

	Node     Node                  // what GET /v1/node says
	Metrics  prometheus.Gatherer   // served at /metrics; nil means no such route
	Register prometheus.Registerer // takes this package's own metrics; nil means none
	Log      *slog.Logger          // one line per request; nil discards
	MaxBody  int64                 // bytes of one request body; 0 means 16 MiB
	MaxHeld  int64                 // bytes of all bodies being read; 0 means 4 times MaxBody
	MaxCode  int64                 // bytes of one file of a program; 0 leaves it to Executions
	MaxInput int64                 // bytes of all files and standard input; 0 leaves it to Executions
	Hosts    []string              // names besides loopback ones that Host may have, without port; "*" accepts any
	Beat     time.Duration         // silence before a stream says it is alive; 0 means 15 s

	// Leave, when it ends, ends open streams and waits so that clients come
	// back elsewhere or later; the runs they watch go on. Nil means never.
	// End it before http.Server.Shutdown and before contexts of requests.
	Leave context.Context
}

// Ports is what this surface needs to know of the ports of sandboxes.
type Ports interface {
	// Listening returns the ports that something inside listens on, lowest
	// first; Conflict if the sandbox is not awake.
	Listening(ctx context.Context, owner engi.Owner, id engi.SandboxID) ([]preview.Port, error)
	// URL returns where a port is seen from outside.
	URL(id engi.SandboxID, port int) string
	// Sign returns an address that opens a private port until it expires.
	Sign(id engi.SandboxID, port int, good time.Duration) (address string, expires time.Time, err error)
}

// Node says what this server is.
type Node struct {
	Version     string
	Tier        engi.Tier // of the sandboxes it makes
	NotEnforced []string  // limits this machine cannot enforce
	Started     time.Time
}

// A server is the surface. Its fields are immutable after New, but for what
// is atomic.
type server struct {
	executions engi.Executions
	sandboxes  engi.Sandboxes
	templates  engi.Templates
	pools      engi.Pools
	keys       engi.Keys

	lifecycle   engi.Lifecycle // this and the rest may be nil
	snapshots   engi.Snapshots
	volumes     engi.Volumes
	secrets     engi.Secrets
	scripts     engi.Scripts
	sessions    engi.Sessions
	agents      engi.Agents
	spending    engi.UsageReporter
	toolServers engi.ToolServers
	library     engi.Library
	functions   engi.Functions
	log_        engi.Events
	networks    engi.NetworkLog
	ports       Ports
	quota       func(engi.Owner) engi.Quota
	streams     httpio.Limiter // of processes
	watches     httpio.Limiter // of directories: they keep nobody from processes

	node  Node
	log   *slog.Logger
	meter *meter
	hosts []string
	beat  time.Duration
	leave context.Context

	maxBody, maxHeld  int64
	maxCode, maxInput int64        // 0 is no limit of ours
	held              atomic.Int64 // bytes of bodies being read

	mux *http.ServeMux
	api huma.API
}

// New returns the whole surface. It starts nothing and is safe for
// concurrent use. It panics if one of the five interfaces is missing.
func New(o Options) http.Handler {
	if o.Executions == nil || o.Sandboxes == nil || o.Templates == nil || o.Pools == nil || o.Keys == nil {
		panic("rest: an interface is missing in Options")
	}
	s := &server{
		executions: o.Executions, sandboxes: o.Sandboxes, templates: o.Templates, pools: o.Pools, keys: o.Keys,
		lifecycle: o.Lifecycle, snapshots: o.Snapshots, volumes: o.Volumes, secrets: o.Secrets, scripts: o.Scripts, sessions: o.Sessions, agents: o.Agents, spending: o.Spending, toolServers: o.ToolServers, library: o.Library, functions: o.Functions, log_: o.Events, networks: o.Networks, ports: o.Ports, quota: o.Quota,
		node: o.Node, log: o.Log, meter: newMeter(o.Register), beat: o.Beat, leave: o.Leave,
		maxBody: o.MaxBody, maxHeld: o.MaxHeld, maxCode: o.MaxCode, maxInput: o.MaxInput, mux: http.NewServeMux(),
	}
	for _, h := range o.Hosts {
		s.hosts = append(s.hosts, strings.ToLower(strings.TrimSuffix(h, ".")))
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.beat <= 0 {
		s.beat = 15 * time.Second
	}
	if s.leave == nil {
		s.leave = context.Background()
	}
	if s.maxBody <= 0 {
		s.maxBody = 16 << 20
	}
	if s.maxHeld <= 0 {
		s.maxHeld = 4 * s.maxBody
	}
	if s.node.Started.IsZero() {
		s.node.Started = time.Now()
	}

	s.api = huma.NewAPI(s.openAPI(), s)
	s.serveExecutions()
	s.serveSandboxes()
	s.serveNetwork()
	s.serveProcesses()
	s.serveFiles()
	s.serveVolumes()
	s.serveSnapshots()
	s.serveSecrets()
	s.serveUsage()
	s.serveScripts()
	s.serveSessions()
	s.serveAgents()
	s.serveLibrary()
	s.serveEvents()
	s.serveObjects()
	s.serveKeys()
	s.serveHealth()
	if o.Metrics != nil {
		metrics := promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelError)})
		s.route("GET /metrics", metrics.ServeHTTP)
	}
	s.loosen()
	s.serveDocs()
	s.mux.HandleFunc("/", s.stray)
	return s
}

// NewServer returns an HTTP server for h with limits fit for strangers:
// HTTP/1.1 and cleartext HTTP/2 on one port, bounded headers, and no overall
// deadline, since streams may last; handlers bound each step themselves. The
// caller makes it listen.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	leave, left := context.WithCancel(context.Background())
	srv := &http.Server{
		Handler:           httpio.Listen(h, leave),
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	srv.RegisterOnShutdown(left)
	if log != nil {
		srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return srv
}

// A rule says who may use a route: whoever has a key that is good for the
// scope, unless all or only admins may. Whose objects callers see is decided
// by their owner.
type rule struct {
	open, admin bool
	scope       engi.Scope // empty is what every key may do
	write       bool       // something may change by it
}

var (
	open      = rule{open: true}
	anyKey    = rule{}
	adminOnly = rule{admin: true, write: true}
)

func reads(s engi.Scope) rule  { return rule{scope: s} }
func writes(s engi.Scope) rule { return rule{scope: s, write: true} }

const (
	execs = engi.ScopeExecutions
	boxes = engi.ScopeSandboxes
	vols  = engi.ScopeVolumes
)

// table is who may use what. A route that is not here cannot be registered.
var table = map[string]rule{
	"POST /v1/executions":                         writes(execs),
	"GET /v1/executions":                          reads(execs),
	"GET /v1/executions/{id}":                     reads(execs),
	"DELETE /v1/executions/{id}":                  writes(execs),
	"GET /v1/executions/{id}/events":              reads(execs),
	"GET /v1/executions/{id}/artifacts/{path...}": reads(execs),

	"POST /v1/sandboxes":                        writes(boxes),
	"GET /v1/sandboxes":                         reads(boxes),
	"GET /v1/sandboxes/{id}":                    reads(boxes),
	"PATCH /v1/sandboxes/{id}":                  writes(boxes),
	"DELETE /v1/sandboxes/{id}":                 writes(boxes),
	"POST /v1/sandboxes/{id}/pause":             writes(boxes),
	"POST /v1/sandboxes/{id}/hibernate":         writes(boxes),
	"POST /v1/sandboxes/{id}/resume":            writes(boxes),
	"POST /v1/sandboxes/{id}/snapshot":          writes(boxes),
	"POST /v1/sandboxes/{id}/fork":              writes(boxes),
	"POST /v1/sandboxes/{id}/extend":            writes(boxes),
	"GET /v1/sandboxes/{id}/metrics":            reads(boxes),
	"GET /v1/sandboxes/{id}/ports":              reads(boxes),
	"GET /v1/sandboxes/{id}/ports/{port}":       reads(boxes),
	"POST /v1/sandboxes/{id}/ports/{port}/link": writes(boxes),
	"GET /v1/sandboxes/{id}/network":            reads(boxes),
	"PUT /v1/sandboxes/{id}/network":            writes(boxes),
	"GET /v1/sandboxes/{id}/network/events":     reads(boxes),

	"POST /v1/sandboxes/{id}/processes":                       writes(boxes),
	"GET /v1/sandboxes/{id}/processes":                        reads(boxes),
	"GET /v1/sandboxes/{id}/processes/{process}":              reads(boxes),
	"GET /v1/sandboxes/{id}/processes/{process}/events":       reads(boxes),
	"POST /v1/sandboxes/{id}/processes/{process}/input":       writes(boxes),
	"POST /v1/sandboxes/{id}/processes/{process}/close-input": writes(boxes),
	"POST /v1/sandboxes/{id}/processes/{process}/signal":      writes(boxes),
	"POST /v1/sandboxes/{id}/processes/{process}/resize":      writes(boxes),
	"GET /v1/sandboxes/{id}/processes/{process}/terminal":     writes(boxes),

	"GET /v1/sandboxes/{id}/files":         reads(boxes),
	"PUT /v1/sandboxes/{id}/files":         writes(boxes),
	"DELETE /v1/sandboxes/{id}/files":      writes(boxes),
	"GET /v1/sandboxes/{id}/files/stat":    reads(boxes),
	"GET /v1/sandboxes/{id}/files/list":    reads(boxes),
	"POST /v1/sandboxes/{id}/files/mkdir":  writes(boxes),
	"POST /v1/sandboxes/{id}/files/move":   writes(boxes),
	"GET /v1/sandboxes/{id}/files/watch":   reads(boxes),
	"GET /v1/sandboxes/{id}/files/archive": reads(boxes),
	"PUT /v1/sandboxes/{id}/files/archive": writes(boxes),

	"GET /v1/snapshots":           reads(boxes),
	"GET /v1/snapshots/{name}":    reads(boxes),
	"DELETE /v1/snapshots/{name}": writes(boxes),

	"POST /v1/volumes":                    writes(vols),
	"GET /v1/volumes":                     reads(vols),
	"GET /v1/volumes/{name}":              reads(vols),
	"DELETE /v1/volumes/{name}":           writes(vols),
	"GET /v1/volumes/{name}/files":        reads(vols),
	"PUT /v1/volumes/{name}/files":        writes(vols),
	"DELETE /v1/volumes/{name}/files":     writes(vols),
	"GET /v1/volumes/{name}/files/stat":   reads(vols),
	"GET /v1/volumes/{name}/files/list":   reads(vols),
	"POST /v1/volumes/{name}/files/mkdir": writes(vols),

	"POST /v1/secrets":          writes(engi.ScopeSecrets),
	"GET /v1/secrets":           reads(engi.ScopeSecrets),
	"GET /v1/secrets/{name}":    reads(engi.ScopeSecrets),
	"PUT /v1/secrets/{name}":    writes(engi.ScopeSecrets),
	"DELETE /v1/secrets/{name}": writes(engi.ScopeSecrets),

	"POST /v1/scripts":     writes(execs),
	"GET /v1/scripts/apis": reads(execs),

	"POST /v1/sessions":               writes(boxes),
	"GET /v1/sessions":                reads(boxes),
	"GET /v1/sessions/{id}":           reads(boxes),
	"DELETE /v1/sessions/{id}":        writes(boxes),
	"POST /v1/sessions/{id}/run_code": writes(boxes),
	"POST /v1/sessions/{id}/release":  writes(boxes),
	"GET /v1/dependencies":            reads(boxes),

	"POST /v1/docs":                  writes(engi.ScopeDocs),
	"GET /v1/docs":                   reads(engi.ScopeDocs),
	"GET /v1/docs/search":            reads(engi.ScopeDocs),
	"GET /v1/docs/packages":          reads(engi.ScopeDocs),
	"POST /v1/docs/refresh":          writes(engi.ScopeDocs),
	"POST /v1/docs/{id}/refresh":     writes(engi.ScopeDocs),
	"GET /v1/docs/{id}":              reads(engi.ScopeDocs),
	"DELETE /v1/docs/{id}":           writes(engi.ScopeDocs),
	"POST /v1/sessions/{id}/modules": writes(engi.ScopeDocs),
	"GET /v1/sessions/{id}/modules":  reads(engi.ScopeDocs),
	"GET /v1/modules":                reads(engi.ScopeDocs),

	"GET /v1/agents":                   reads(engi.ScopeAgents),
	"GET /v1/mcp-servers":              reads(engi.ScopeAgents),
	"POST /v1/agents/{name}/runs":      writes(engi.ScopeAgents),
	"POST /v1/chat":                    writes(engi.ScopeAgents),
	"POST /v1/chat/completions":        writes(engi.ScopeAgents),
	"GET /v1/models":                   reads(engi.ScopeAgents),
	"GET /v1/runs":                     reads(engi.ScopeAgents),
	"GET /v1/runs/{id}":                reads(engi.ScopeAgents),
	"DELETE /v1/runs/{id}":             writes(engi.ScopeAgents),
	"GET /v1/runs/{id}/messages":       reads(engi.ScopeAgents),
	"GET /v1/runs/{id}/events":         reads(engi.ScopeAgents),
	"GET /v1/runs/{id}/results/{call}": reads(engi.ScopeAgents),

	"POST /v1/events":                writes(engi.ScopeEvents),
	"GET /v1/events":                 reads(engi.ScopeEvents),
	"GET /v1/events/{id}":            reads(engi.ScopeEvents),
	"POST /v1/events/{id}/replay":    writes(engi.ScopeEvents),
	"GET /v1/functions":              reads(engi.ScopeEvents),
	"GET /v1/functions/runs":         reads(engi.ScopeEvents),
	"GET /v1/functions/runs/{id}":    reads(engi.ScopeEvents),
	"DELETE /v1/functions/runs/{id}": writes(engi.ScopeEvents),

	"GET /v1/templates":           reads(engi.ScopeTemplates),
	"GET /v1/templates/{name}":    reads(engi.ScopeTemplates),
	"POST /v1/templates":          adminOnly,
	"DELETE /v1/templates/{name}": adminOnly,
	"POST /v1/templates/prune":    adminOnly,

	"GET /v1/keys":         reads(engi.ScopeKeys),
	"POST /v1/keys":        adminOnly,
	"DELETE /v1/keys/{id}": writes(engi.ScopeKeys),

	"GET /v1/usage": anyKey,
	"GET /v1/pools": anyKey,
	"GET /v1/node":  anyKey,
	"GET /metrics":  anyKey,

	"GET /healthz":      open,
	"GET /readyz":       open,
	"GET /{$}":          open,
	"GET /openapi.json": open,
	"GET /docs":         open,
	"GET /docs/{file}":  open,
}

// Routes lists the routes of this surface with what a key needs for them, for
// tests that try them all. Open routes are not in it.
func Routes() map[string]func(engi.Key) error {
	all := map[string]func(engi.Key) error{}
	for pattern, need := range table {
		if !need.open {
			all[pattern] = need.check
		}
	}
	return all
}

// check reports Denied unless k is good for the route.
func (need rule) check(k engi.Key) error {
	if need.admin && !k.Admin {
		return engi.Errorf(engi.Denied, "key %s is not an admin's", k.ID).
			WithRemedy("use an admin key; the first one is in admin.key in the data directory")
	}
	return k.May(need.scope, need.write)
}

// route serves a pattern to those whom the table admits.
func (s *server) route(pattern string, h http.HandlerFunc) {
	need, ok := table[pattern]
	if !ok {
		panic("rest: " + pattern + " is not in the table of access")
	}
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		callOf(r.Context()).route = pattern
		if err := s.admit(r, need); err != nil {
			s.fail(w, r, err)
			return
		}
		h(w, r)
	})
}

// Handle implements huma.Adapter.
func (s *server) Handle(op *huma.Operation, h func(huma.Context)) {
	path := op.Path
	if rest, ok := op.Metadata["path"].(string); ok {
		path = rest
	}
	s.route(op.Method+" "+path, func(w http.ResponseWriter, r *http.Request) { h(humago.NewContext(op, r, w)) })
}

// handle registers an operation. huma reads and checks the parameters that I
// declares in its tags, and describes them; h does the rest.
func handle[I any](s *server, op huma.Operation, h func(w http.ResponseWriter, r *http.Request, in *I) error) {
	op.RejectUnknownQueryParameters = true
	// What describes a body would make huma read and check it as well.
	body := op.RequestBody
	op.RequestBody = nil
	defer func() {
		path := s.api.OpenAPI().Paths[op.Path]
		switch op.Method {
		case http.MethodPost:
			path.Post.RequestBody = body
		case http.MethodPut:
			path.Put.RequestBody = body
		case http.MethodPatch:
			path.Patch.RequestBody = body
		}
	}()
	huma.Register(s.api, op, func(_ context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			if err := h(w, r, in); err != nil {
				s.fail(w, r, err)
			}
		}}, nil
	})
}

// stray answers what no route matched.
func (s *server) stray(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = method
		if _, pattern := s.mux.Handler(probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		s.fail(w, r, engi.Errorf(engi.NotFound, "there is nothing at %.200q", r.URL.Path).
			WithRemedy("/docs lists what there is"))
		return
	}
	e := httpio.Errorf(http.StatusMethodNotAllowed, "use "+strings.Join(allowed, " or ")+" here",
		"%.20q is not a method of %.200q", r.Method, r.URL.Path)
	e.Header = http.Header{"Allow": allowed}
	s.fail(w, r, e)
}
