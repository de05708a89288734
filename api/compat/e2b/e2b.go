// Package e2b speaks E2B's protocol, so that programs made for E2B's packages
// work against engi by configuration only: the control plane (sandboxes,
// snapshots, templates, volumes, secrets, events, webhooks), and the door to
// the agent and the code interpreter inside sandboxes.
//
// It translates. What happens is the doing of the interfaces it is given; the
// only things of its own are tokens derived from one secret, the archives that
// clients upload for builds, and the registry of templates, because E2B's have
// IDs, tags and builds that engi's have not. docs/e2b.md says what is offered.
package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
)

// AgentVersion is what clients decide by which features they use. All that
// this version has is there.
const AgentVersion = "0.6.13"

// Ports that clients expect services of ours on, whatever listens inside.
const (
	AgentPort       = 49983
	InterpreterPort = 49999
)

// An Options is what the surface serves. Sandboxes, Templates, Keys, Store,
// Secret and Dir are needed; a nil one of the rest means that its part
// answers 501.
type Options struct {
	Sandboxes engi.Sandboxes
	Lifecycle engi.Lifecycle
	Snapshots engi.Snapshots
	Volumes   engi.Volumes
	Secrets   engi.Secrets
	Events    engi.Events
	Webhooks  engi.Webhooks // that have [NewWebhookFormat]
	Templates engi.Templates
	Builder   engi.TemplateBuilder
	Keys      engi.Keys
	Store     Store

	Secret []byte // 32 bytes or more; tokens are derived from it
	Dir    string // for uploads; made if missing, nobody else writes there
	Domain string // what names of sandboxes end in, maybe with a port; may be empty

	// Internet is the widest mode of network that sandboxes get, and get
	// unless they ask for less; empty means none.
	Internet engi.Network

	Log *slog.Logger // nil discards

	// Target says which sandbox and port a request is for; false if it is for
	// none. Nil means what headers and host names say, see [Target].
	Target func(*http.Request) (engi.SandboxID, int, bool)

	// Leave, when it is closed, breaks off what goes on inside sandboxes, which
	// would otherwise keep a server from shutting down. Nil means never.
	Leave <-chan struct{}

	MaxUpload  int64 // bytes of one archive; 0 means 1 GiB
	MaxUploads int64 // bytes of all archives kept; 0 means 8 GiB
	MaxBuilds  int   // at the same time; 0 means 2
}

// A Server serves the protocol. It is safe for concurrent use.
type Server struct {
	Options
	control *http.ServeMux

	mu     sync.Mutex
	builds map[string]context.CancelFunc // running ones by ID; guarded by mu
	closed bool                          // guarded by mu
	work   sync.WaitGroup
	life   context.Context // of builds; ends with Run
	end    context.CancelFunc
	slots  chan struct{} // a build holds one
	naming sync.Mutex    // held while templates are read to be changed

	inner   httpio.Limiter // requests inside
	watches httpio.Limiter // those that watch directories: they keep nobody from the others
}

// New returns a surface; only Run starts something. It panics if a needed
// option is missing.
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
	s := &Server{Options: o, control: http.NewServeMux(), builds: map[string]context.CancelFunc{}, slots: make(chan struct{}, o.MaxBuilds)}
	s.life, s.end = context.WithCancel(context.Background())
	s.serveSandboxes()
	s.serveSnapshots()
	s.serveTemplates()
	s.serveVolumes()
	s.serveSecrets()
	s.serveEvents()
	s.serveWebhooks()
	s.control.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, "engi is here") })
	s.control.HandleFunc("/files", s.signedFile)
	s.control.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, engi.Errorf(engi.NotFound, "there is nothing at %.200q", r.URL.Path))
	})
	return s
}

func def[N int | int64](p *N, n N) {
	if *p <= 0 {
		*p = n
	}
}

// roots are the first elements of the control plane's paths.
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

// Control serves the control plane: the paths that [Serves] knows.
func (s *Server) Control() http.Handler { return s.control }

// Run removes old uploads and forgotten builds until ctx ends, then ends the
// builds that run.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.recover(ctx); err != nil {
		return err
	}
	ready()
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := s.sweep(0); err != nil {
			s.Log.Warn("remove old uploads", "err", err)
		}
		if err := s.sweepTemplates(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("remove forgotten builds", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	return nil
}

// A caller is who a request is from.
type caller struct {
	key    string     // ID of its key
	owner  engi.Owner // of what it makes
	viewer engi.Owner // whose objects it sees; empty sees all
	writes bool       // and not only looks: else it gets no tokens
}

// handle serves pattern to callers with a key.
func (s *Server) handle(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller) error) {
	s.control.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		who, err := s.caller(r)
		if err == nil {
			err = f(w, r.WithContext(engi.WithActor(r.Context(), who.key)), who)
		}
		if err != nil {
			s.Log.Debug("refused", "method", r.Method, "path", r.URL.Path, "err", err)
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
		return caller{}, engi.Errorf(engi.Anonymous, "this request carries no API key").WithRemedy("set E2B_API_KEY to a key of this engi")
	}
	k, err := s.Keys.Authenticate(r.Context(), plainKey(secret))
	if err != nil {
		return caller{}, err
	}
	if k.Owner == "" && !k.Admin {
		// The empty owner would see everything.
		return caller{}, engi.Errorf(engi.Internal, "key %s has no owner", k.ID)
	}
	scope := scopeOf(r.URL.Path)
	if err := k.May(scope, r.Method != http.MethodGet); err != nil {
		return caller{}, err
	}
	who := caller{key: k.ID, owner: k.Owner, viewer: k.Owner, writes: k.May(scope, true) == nil}
	if k.Admin {
		who.viewer = ""
	}
	return who, nil
}

// scopeOf says what a path of the control plane is about.
func scopeOf(path string) engi.Scope {
	for element := range strings.SplitSeq(path, "/") {
		switch element {
		case "sandboxes", "snapshots":
			return engi.ScopeSandboxes
		case "templates":
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

// maxBody bounds a request of the control plane.
const maxBody = 4 << 20

// body reads a request's JSON; none at all is like {}. Fields that nobody
// here knows are ignored, as clients of other versions send them.
func body(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			return engi.Errorf(engi.Invalid, "the body is over %d bytes", maxBody)
		}
		return engi.Errorf(engi.Unavailable, "read the body: %v", err)
	}
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return engi.Errorf(engi.Invalid, "the body makes no sense: %v", err)
	}
	return nil
}

// answer sends v, if it is not nil, with its length: clients take an empty
// body in chunks for broken JSON.
func answer(w http.ResponseWriter, status int, v any) error {
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
	w.Write(b) // a client that left hears nothing
	return nil
}

// fail says what went wrong as clients expect it: they read the code from the
// body. They repeat what is Exhausted if told when.
func fail(w http.ResponseWriter, err error) {
	status := httpio.Statuses[engi.KindOf(err)]
	if after := engi.RetryOf(err).AfterMillis; after > 0 && status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.FormatInt((after+999)/1000, 10))
	}
	text := err.Error()
	if remedy := engi.RemedyOf(err); remedy != "" && engi.KindOf(err) != engi.NotFound {
		text += ": " + remedy
	}
	refuse(w, status, text)
}

func refuse(w http.ResponseWriter, status int, text string) {
	answer(w, status, map[string]any{"code": status, "message": text}) // two plain fields always encode
}

// errNone answers for a part that this node lacks.
func errNone(part string) *engi.Error {
	return engi.Errorf(engi.Unsupported, "this node offers no %s", part)
}

// page cuts one page out of all, which follows token, and tells the client
// how to get the next.
func page[T any](w http.ResponseWriter, r *http.Request, all []T, id func(T) string) ([]T, error) {
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
