// Package rest serves engi's own HTTP API: /v1, its OpenAPI description, the
// browsable documentation, health and metrics. It converts between wire
// types (package v1) and the types of package engi, authenticates callers,
// and turns kinds of error into problem documents. It does not depend on how
// sandboxes work, and stores nothing. Each [Resource] is built from the services
// that it needs, and the caller of [New] opens the listener.
//
// To add a resource, define its wire types in package v1, and add a file here with a function
// that returns the [Resource] with its routes. The packages below server/compat build
// routes in the format of another server, with [Foreign].
package rest

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Options configures a [Server]. Only Keys is required.
type Options struct {
	Keys engi.Keys // authenticates callers

	Idempotency idempotency.Reservations // stores Idempotency-Keys; nil refuses the keys that services do not store themselves
	Secret      []byte                   // key for the fingerprints of requests, which may have secrets

	Version  string                // version of the build
	Started  time.Time             // zero means now
	Register prometheus.Registerer // registry for this package's own metrics; nil means no metrics
	Log      *slog.Logger          // gets one line per request; nil discards
	MaxBody  int64                 // maximum number of bytes of one request body; 0 means 16 MiB
	MaxHeld  int64                 // maximum number of bytes of all bodies being read, shared by owners; 0 means 4 times MaxBody
	Hosts    []string              // host names without port that requests may name, besides loopback names; "*" accepts any
	Origins  []string              // origins of pages that may use /v1 from browsers; see [httpio.CheckAllowedOrigin]
	Beat     time.Duration         // silence after which a stream sends a heartbeat; 0 means 15 s

	// Leave, when it ends, ends open streams and waits, so that clients
	// reconnect elsewhere or later; the runs that they watch go on. Nil means never.
	// Cancel it before http.Server.Shutdown and before the contexts of requests.
	Leave context.Context
}

// A Server serves the API. It is safe for concurrent use. Its fields are immutable
// after New, except the atomic ones.
type Server struct {
	keys    engi.Keys
	version string

	secret       []byte
	reservations *idempotency.Keys

	started time.Time
	log     *slog.Logger
	meter   *meter
	hosts   []string
	origins []string
	beat    time.Duration
	leave   context.Context
	streams httpio.Limiter // limits streams of processes
	watches httpio.Limiter // limits watches of directories and networks, apart from streams of processes

	maxBody int64
	held    *engi.Shares // bytes of the bodies being read

	mux    *http.ServeMux
	routes []*Route
}

// New returns the API with the given resources. It starts nothing. It panics
// if Options.Keys is missing, and if two routes are the same.
func New(o Options, resources ...Resource) *Server {
	if o.Keys == nil {
		panic("rest: Keys is missing in Options")
	}
	s := &Server{
		keys: o.Keys, reservations: idempotency.NewKeys(o.Idempotency), secret: o.Secret, version: o.Version, started: o.Started, log: o.Log, meter: newMeter(o.Register), origins: o.Origins, beat: o.Beat, leave: o.Leave,
		maxBody: o.MaxBody, mux: http.NewServeMux(),
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
	if s.started.IsZero() {
		s.started = time.Now()
	}
	if s.maxBody <= 0 {
		s.maxBody = 16 << 20
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 4 * s.maxBody
	}
	s.held = engi.NewShares(o.MaxHeld)
	schemas := newDescription("").schemas
	for _, r := range resources {
		s.add(schemas, r)
	}
	// Building the description is slow, and few clients request it.
	s.add(schemas, pages(sync.OnceValue(func() []byte { return describe(o.Version, resources) })))
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { s.stray(w.(*call)) })
	return s
}

// add registers the routes of a resource.
func (s *Server) add(schemas huma.Registry, res Resource) {
	for i := range res.routes {
		route := &res.routes[i]
		if route.Tag == "" {
			route.Tag = res.tag
		}
		if route.missing == nil {
			route.missing = res.missing
		}
		route.reader = newParams(schemas, route.params)
		s.routes = append(s.routes, route)
		s.mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, _ *http.Request) {
			c := w.(*call)
			c.route = route
			err := c.admit()
			if err == nil {
				err = route.missing
			}
			if err == nil {
				err = route.serve(c)
			}
			if err != nil {
				c.fail(err)
			}
		})
	}
}

// Routes returns the routes of this server, for tests that call each of them.
func (s *Server) Routes() []*Route { return s.routes }

// NewServer returns an HTTP server for h with limits against hostile clients:
// HTTP/1.1 and cleartext HTTP/2 on one port, limited headers, and no overall
// deadline, since streams may last. Handlers set a deadline for each step. The
// caller opens the listener.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	leave, left := context.WithCancel(context.Background())
	srv := &http.Server{
		Handler:           httpio.RespondEarly(h, leave),
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// HTTP/2 has no deadlines of its own for unfinished frames.
		HTTP2:          &http.HTTP2Config{SendPingTimeout: time.Minute, PingTimeout: 15 * time.Second, WriteByteTimeout: 2 * time.Minute},
		MaxHeaderBytes: 64 << 10,
	}
	srv.RegisterOnShutdown(left)
	if log != nil {
		srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return srv
}

// stray answers a request that no route matches.
func (s *Server) stray(c *call) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := c.r.Clone(c)
		probe.Method = method
		if _, pattern := s.mux.Handler(probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		c.fail(errNothing(c.r))
		return
	}
	e := httpio.Errorf(http.StatusMethodNotAllowed, "use "+strings.Join(allowed, " or ")+" here",
		"%.20q is not a method of %.200q", c.r.Method, c.r.URL.Path)
	e.Header = http.Header{"Allow": allowed}
	c.fail(e)
}

func errNothing(r *http.Request) error {
	return engi.Errorf(engi.NotFound, "%.200q does not exist", r.URL.Path).WithRemedy("see the list of routes at /docs")
}
