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
)

// Options are what the surface serves. The five interfaces are needed; the
// zero value of everything else is useful.
type Options struct {
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Pools      engi.Pools
	Keys       engi.Keys

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

// Node says what this server is.
type Node struct {
	Version     string
	Tier        engi.Tier // of the sandboxes it makes
	NotEnforced []string  // limits this machine cannot enforce
	Started     time.Time
}

const (
	answerTime = 60 * time.Second // to take a whole answer, or one piece of a long one
	eventTime  = 30 * time.Second // to take one event of a stream
	bodyTime   = 60 * time.Second // to send a body, or each MiB of a large one
)

// A server is the surface. Its fields are immutable after New, but for what
// is atomic.
type server struct {
	executions engi.Executions
	sandboxes  engi.Sandboxes
	templates  engi.Templates
	pools      engi.Pools
	keys       engi.Keys

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
	srv := &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	if log != nil {
		srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return srv
}

// access says who may use a route.
type access uint8

const (
	open  access = iota + 1 // anybody
	owner                   // whoever has a key; sees the objects of its owner
	admin                   // admin keys
)

// table is who may use what. A route that is not here cannot be registered.
var table = map[string]access{
	"POST /v1/executions":                         owner,
	"GET /v1/executions":                          owner,
	"GET /v1/executions/{id}":                     owner,
	"DELETE /v1/executions/{id}":                  owner,
	"GET /v1/executions/{id}/events":              owner,
	"GET /v1/executions/{id}/artifacts/{path...}": owner,
	"GET /v1/sandboxes":                           owner,
	"GET /v1/sandboxes/{id}":                      owner,
	"DELETE /v1/sandboxes/{id}":                   owner,
	"GET /v1/templates":                           owner,
	"GET /v1/templates/{name}":                    owner,
	"POST /v1/templates":                          admin,
	"DELETE /v1/templates/{name}":                 admin,
	"POST /v1/templates/prune":                    admin,
	"GET /v1/pools":                               owner,
	"GET /v1/node":                                owner,
	"GET /v1/keys":                                owner,
	"POST /v1/keys":                               admin,
	"DELETE /v1/keys/{id}":                        owner,
	"GET /metrics":                                owner,
	"GET /healthz":                                open,
	"GET /readyz":                                 open,
	"GET /{$}":                                    open,
	"GET /openapi.json":                           open,
	"GET /docs":                                   open,
	"GET /docs/{file}":                            open,
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
		if op.Method == http.MethodPost {
			path.Post.RequestBody = body
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
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
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
	e := refuse(http.StatusMethodNotAllowed, "use "+strings.Join(allowed, " or ")+" here",
		"%.20q is not a method of %.200q", r.Method, r.URL.Path)
	e.header = http.Header{"Allow": allowed}
	s.fail(w, r, e)
}
