// Package e2b implements E2B's protocol, so that programs for E2B's packages work
// with engi after a change of configuration only: the control plane (sandboxes, snapshots,
// templates, volumes, secrets, events, webhooks), and a proxy to envd and the code
// interpreter in sandboxes.
//
// It translates to the services of package engi. It adds only tokens, which
// are derived from one secret, archives that clients upload for builds, and a
// registry of templates, because E2B's templates have IDs, tags and builds that
// engi's templates lack. docs/e2b.md lists the supported parts.
package e2b

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// EnvdVersion is the version of envd that clients see, by which they choose the features that they
// use. All features of this version are supported.
const EnvdVersion = "0.6.13"

// Ports on which clients expect the guest program, even if another program listens there.
const (
	EnvdPort        = 49983
	InterpreterPort = 49999
)

// Options configures a [Server]. Sandboxes, Templates, Keys, Store, Secret and Dir
// are required; routes of other services that are nil respond with 501.
type Options struct {
	Sandboxes engi.Sandboxes
	Lifecycle engi.Lifecycle
	Snapshots engi.Snapshots
	Volumes   engi.Volumes
	Secrets   engi.Secrets
	Events    engi.Events
	Webhooks  engi.Webhooks // service with the format of [NewWebhookFormat]
	Templates engi.Templates
	Builder   engi.TemplateBuilder
	Keys      engi.Keys
	Store     registry.Store

	// Reservations stores the Idempotency-Keys of requests that create something; nil refuses
	// the keys that services do not store themselves.
	Reservations idempotency.Reservations

	Secret []byte // 32 bytes or more; tokens are derived from it
	Dir    string // directory for uploads; created if missing, and used by this server alone
	Domain string // domain of sandboxes' host names, with a port if needed; may be empty

	// Hosts are the host names, without port, that requests to the control plane may name
	// besides loopback names; "*" accepts any.
	Hosts []string

	// Internet is the widest network mode of sandboxes, and their mode unless
	// the request is for a narrower one; empty means no network.
	Internet engi.Network

	// Rules are the default network rules of sandboxes if Internet is
	// restricted.
	Rules []string

	Log *slog.Logger // nil discards

	// Target returns the sandbox and port of a request; false if it has none. Nil means
	// [Target], which reads host names and headers.
	Target func(*http.Request) (engi.SandboxID, int, bool)

	// Leave, when closed, ends proxied requests, which would otherwise keep
	// a server from shutting down. Nil means never.
	Leave <-chan struct{}

	MaxUpload  int64 // maximum number of bytes of one archive; 0 means 1 GiB
	MaxUploads int64 // maximum number of bytes of all archives; 0 means 8 GiB
	MaxBuilds  int   // maximum number of builds at the same time; 0 means 2

	BuildTime time.Duration // maximum run time of one build; 0 means 2 hours
}

// A Server serves the protocol. It is safe for concurrent use.
type Server struct {
	Options
	control recordingMux
	keys    *idempotency.Keys

	mu      sync.Mutex
	builds  map[string]context.CancelFunc // running builds by ID; guarded by mu
	closed  bool                          // guarded by mu
	work    sync.WaitGroup
	life    context.Context // context of builds; ends with Run
	end     context.CancelFunc
	lines   map[engi.Owner]*line // guarded by mu
	waiting *engi.Shares         // places for builds that run or wait
	slots   chan struct{}        // a running build holds one value
	naming  sync.Mutex           // held while a template is read, changed and stored

	patterns []string // patterns of the control plane's operations; immutable once serving

	requests httpio.Limiter // limits proxied requests
	watches  httpio.Limiter // limits requests that watch directories, apart from other requests
}

// New returns a server. It panics if a required option is missing.
func New(o Options) *Server {
	if o.Sandboxes == nil || o.Templates == nil || o.Keys == nil || o.Store == nil || len(o.Secret) < 32 || o.Dir == "" {
		panic("e2b: something is missing in Options")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Target == nil {
		o.Target = func(r *http.Request) (engi.SandboxID, int, bool) { return Target(r, o.Domain) }
	}
	def(&o.MaxUpload, 1<<30)
	def(&o.MaxUploads, 8<<30)
	def(&o.MaxBuilds, 2)
	if o.BuildTime <= 0 {
		o.BuildTime = 2 * time.Hour
	}
	s := &Server{Options: o, keys: idempotency.NewKeys(o.Reservations), control: recordingMux{ServeMux: http.NewServeMux()}, builds: map[string]context.CancelFunc{}, lines: map[engi.Owner]*line{}, waiting: engi.NewShares(maxWaiting), slots: make(chan struct{}, o.MaxBuilds)}
	s.life, s.end = context.WithCancel(context.Background())
	s.serveSandboxes()
	s.serveSnapshots()
	s.serveTemplates()
	s.serveVolumes()
	s.serveSecrets()
	s.serveEvents()
	s.serveWebhooks()
	s.control.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { respond(w, http.StatusOK, "engi is here") })
	s.control.HandleFunc("/files", s.signedFile)
	s.control.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, engi.Errorf(engi.NotFound, "%.200q does not exist", r.URL.Path))
	})
	return s
}

func def[N int | int64](p *N, n N) {
	if *p <= 0 {
		*p = n
	}
}

// roots holds the first elements of the control plane's paths.
var roots = map[string]bool{
	"sandboxes": true, "snapshots": true, "templates": true, "default-templates": true, "volumes": true,
	"volumecontent": true, "secrets": true, "events": true, "teams": true, "health": true, "files": true,
}

// Serves reports whether path belongs to the control plane.
func Serves(path string) bool {
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "v2", "v3":
		first, _, _ = strings.Cut(rest, "/")
		return first == "sandboxes" || first == "templates"
	}
	return roots[first]
}

// A recordingMux stores its patterns.
type recordingMux struct {
	*http.ServeMux
	patterns []string
}

// HandleFunc adds a pattern.
func (m *recordingMux) HandleFunc(pattern string, f http.HandlerFunc) {
	m.patterns = append(m.patterns, pattern)
	m.ServeMux.HandleFunc(pattern, f)
}

// Routes returns the patterns of the control plane, for tests that call each of them.
func (s *Server) Routes() []string { return s.control.patterns }

// Control serves the control plane, which is the paths for which [Serves] is true, under
// the configured host names.
func (s *Server) Control() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := httpio.CheckHost(r, s.Hosts); err != nil {
			fail(w, err)
			return
		}
		r, stop := httpio.TimedBody(w, r)
		defer stop()
		s.control.ServeHTTP(w, r)
	})
}

// Run removes old uploads and orphaned builds until ctx ends, and then cancels
// running builds.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.recover(ctx); err != nil {
		return err
	}
	ready()
	for range clock.Every(ctx, 10*time.Minute) {
		if err := s.sweep(0); err != nil {
			s.Log.Warn("remove old uploads", "error", err)
		}
		if err := s.sweepTemplates(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("remove forgotten builds", "error", err)
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	return nil
}

// A caller is the sender of a request.
type caller struct {
	key    string      // ID of the key
	owner  engi.Owner  // owner of the objects that the caller creates
	viewer engi.Viewer // whose objects the caller sees
	writes bool        // the key may do more than read; only then does the caller get tokens
}

// handle registers pattern for callers with a key.
func (s *Server) handle(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller) error) {
	s.patterns = append(s.patterns, pattern)
	s.control.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		who, err := s.caller(r)
		if err == nil {
			err = f(w, r.WithContext(engi.WithActor(r.Context(), who.key)), who)
		}
		if err != nil {
			s.Log.Debug("refused", "method", r.Method, "path", r.URL.Path, "error", err)
			fail(w, err)
		}
	})
}

func (s *Server) caller(r *http.Request) (caller, error) {
	secret := r.Header.Get("X-API-KEY")
	if secret == "" {
		secret, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if secret == "" {
		return caller{}, engi.Errorf(engi.Anonymous, "the request has no API key: set E2B_API_KEY to a key of this server")
	}
	k, err := s.Keys.Authenticate(r.Context(), plainKey(secret))
	if err != nil {
		return caller{}, err
	}
	if k.Owner == "" && !k.Admin {
		// The empty owner is the node itself.
		return caller{}, engi.Errorf(engi.Internal, "key %s has no owner", k.ID)
	}
	scope := scopeOf(r.URL.Path)
	if err := k.May(scope, r.Method != http.MethodGet); err != nil {
		return caller{}, err
	}
	who := caller{key: k.ID, owner: k.Owner, viewer: k.Owner.Viewer(), writes: k.May(scope, true) == nil}
	if k.Admin {
		who.viewer = engi.Everyone
	}
	return who, nil
}

// Patterns returns the operations of the control plane that need a key.
func (s *Server) Patterns() []string { return s.patterns }

// scopeOf returns the scope that a path of the control plane needs.
func scopeOf(path string) engi.Scope {
	for element := range strings.SplitSeq(path, "/") {
		switch element {
		case "events": // /events/sandboxes, /events/webhooks
			return engi.ScopeEvents
		case "sandboxes", "snapshots":
			return engi.ScopeSandboxes
		case "templates", "default-templates":
			if strings.HasPrefix(path, "/templates/snp_") {
				return engi.ScopeSandboxes
			}
			return engi.ScopeTemplates
		case "volumes":
			return engi.ScopeVolumes
		case "secrets":
			return engi.ScopeSecrets
		case "webhooks":
			return engi.ScopeEvents
		}
	}
	return ""
}

// maxBody is the maximum size of a request to the control plane in bytes.
const maxBody = 4 << 20

// body decodes a request's JSON; an empty body is the same as {}. Unknown fields are
// ignored, because other versions of clients send them.
func body(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := io.ReadAll(httpio.LimitValues(http.MaxBytesReader(w, r.Body, maxBody)))
	if err != nil {
		return httpio.BodyError(err)
	}
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return engi.Errorf(engi.Invalid, "invalid JSON body: %v", err)
	}
	return nil
}

// once calls the work of a request that creates something: only once for each Idempotency-Key,
// if there is one. q is the request's body.
func once[T any](s *Server, r *http.Request, who caller, q any, n idempotency.Creation[T]) (x T, err error) {
	of, err := s.request(r, who, q)
	if err != nil {
		return x, err
	}
	n.Left = func(err error) { s.Log.Error("release an idempotency key", "error", err) }
	return idempotency.Reserved(r.Context(), s.keys, of, n)
}

// request returns the idempotency key and the fingerprint of a request with body q.
func (s *Server) request(r *http.Request, who caller, q any) (idempotency.Request, error) {
	key, err := idempotency.Read(r.Header)
	return idempotency.Request{Owner: who.owner, Key: key, Fingerprint: idempotency.FingerprintOf(r, q, s.Secret)}, err
}

// reply responds with a result, converted by as, unless there is an error.
func reply[T, V any](w http.ResponseWriter, status int, as func(T) V) func(T, error) error {
	return func(x T, err error) error {
		if err != nil {
			return err
		}
		return respond(w, status, as(x))
	}
}

// done responds without content, unless there is an error.
func done(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	return respond(w, http.StatusNoContent, nil)
}

// respond sends v, unless it is nil, with its length: clients fail to parse an
// empty chunked body.
func respond(w http.ResponseWriter, status int, v any) error {
	if v == nil {
		if status != http.StatusNoContent {
			w.Header().Set("Content-Length", "0")
		}
		w.WriteHeader(status)
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode the answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b) // an error means that the client has left
	return nil
}

// fail reports an error in the form that clients expect, with the status in the body. Clients
// retry Exhausted if it has a time. The remedy is a separate field, which they ignore:
// it may name commands and settings of engi that their users do not have. Text for
// these users is part of the message.
func fail(w http.ResponseWriter, err error) {
	status := httpio.StatusOf(err)
	if after := engi.RetryOf(err).AfterMillis; after > 0 && status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.FormatInt((after+999)/1000, 10))
	}
	refusal := map[string]any{"code": status, "message": err.Error()}
	if remedy := engi.RemedyOf(err); remedy != "" {
		refusal["remedy"] = remedy
	}
	respond(w, status, refusal) // encoding cannot fail
}

func refuse(w http.ResponseWriter, status int, text string) {
	respond(w, status, map[string]any{"code": status, "message": text}) // encoding cannot fail
}

// errNone returns the error for a service that this node does not have.
func errNone(part string) error {
	return engi.Errorf(engi.Unsupported, "this node does not support %s", part)
}

// paginate returns the page of the objects after the request's token, and sets the header with
// the token of the next page.
func paginate[T any](w http.ResponseWriter, r *http.Request, all []T, id func(T) string) ([]T, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return nil, err
	}
	if after := r.URL.Query().Get("nextToken"); after != "" {
		for i, v := range all {
			if id(v) == after {
				all = all[i+1:]
				break
			}
		}
	}
	if len(all) > limit {
		all = all[:limit]
		w.Header().Set("X-Next-Token", id(all[limit-1]))
	}
	return all, nil
}

func pageLimit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return 100, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 100 {
		return 0, engi.Errorf(engi.Invalid, "limit %.20q is not between 1 and 100", text)
	}
	return n, nil
}
