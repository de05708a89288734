// Package preview proxies requests to services that listen in sandboxes. A
// service has its own host name, PORT-LABEL.DOMAIN, or, if the operator configures
// it, a path. A service of an app has PORT-app-LABEL.DOMAIN, for every sandbox of
// the app. E2B's clients may name the sandbox and the port in headers. Published
// pages of apps are served at app-LABEL.DOMAIN.
//
// Neither side is trusted. All credentials for engi are removed from requests,
// and requests appear to be made to the service's own loopback, so that
// development servers accept them. Responses cannot set cookies for other
// previews or affect their origins. Package preview does not serve the protocols
// of E2B's ports (see Options.Special), and it does not listen itself.
package preview

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Options configures a Proxy. Sandboxes, Keys and LinkKey are required; every
// other field has a useful zero value.
type Options struct {
	Sandboxes engi.Sandboxes
	Keys      engi.Keys // authenticates owners of private sandboxes
	LinkKey   []byte    // key that signs links; 32 bytes

	Domains []string // domains of host names; URLs use the first; localhost is always accepted
	Hosts   []string // other host names for routing by path and by header; "*" means any
	Path    string   // base of routes by path, like "/preview"; empty means none
	Scheme  string   // scheme of URLs: http (the default) or https
	Port    string   // port of URLs; empty means the scheme's default
	Private bool     // treat every sandbox and every published page as private, whatever its policy

	Apps       Apps       // published pages; nil means there are none
	Workspaces Workspaces // previews of workspaces; nil means there are none

	// Special holds handlers for ports that are served here instead of by the
	// sandbox. They find the sandbox with [SandboxOf]. Neither access control
	// nor limits apply to them.
	Special map[int]http.Handler
	// Allow is called for requests to a private sandbox that have neither its
	// owner's key nor a signed link. They pass if it returns nil. A nil Allow
	// refuses all of them.
	Allow func(r *http.Request, s engi.Sandbox) error
	// While returns a copy of the context of a request without a key. The copy ends when the
	// permission found by Allow ends, if Allow gave access. A nil While means that it never ends.
	While func(r *http.Request, s engi.Sandbox) (context.Context, context.CancelFunc)

	Rate        float64       // requests per second and sandbox; 0 means 500
	Burst       int           // number of requests beyond Rate at once; 0 means 4 times Rate
	MaxOpen     int           // maximum number of open requests and connections per sandbox; 0 means 1024
	IdleTimeout time.Duration // time without traffic after which a request or connection is closed; 0 means 10 minutes
	MaxHeader   int64         // maximum bytes of a response's header; 0 means 64 KiB

	Log *slog.Logger // nil discards
	// When Leave ends, event streams and upgraded connections are closed. They
	// would keep a server from shutting down. Nil means never.
	Leave context.Context
}

// A Proxy routes requests to services in sandboxes. It is safe for concurrent use.
type Proxy struct {
	o       Options
	domains []string // domains in lower case, including localhost
	hosts   []string
	log     *slog.Logger
	proxy   *httputil.ReverseProxy

	mu        sync.Mutex
	sandboxes *sandboxTable // guarded by mu
}

var _ http.Handler = (*Proxy)(nil)

// New returns a Proxy. It starts no goroutines. It panics if a required option is
// missing.
func New(o Options) *Proxy {
	if o.Sandboxes == nil || o.Keys == nil || len(o.LinkKey) < 32 {
		panic("preview: Sandboxes, Keys or LinkKey is missing in Options")
	}
	if o.Rate <= 0 {
		o.Rate = 500
	}
	if o.Burst <= 0 {
		o.Burst = int(4 * o.Rate)
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 1024
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 10 * time.Minute
	}
	if o.MaxHeader <= 0 {
		o.MaxHeader = 64 << 10
	}
	if o.Scheme == "" {
		o.Scheme = "http"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Leave == nil {
		o.Leave = context.Background()
	}
	o.Path = strings.TrimRight(o.Path, "/")
	p := &Proxy{o: o, log: o.Log, sandboxes: newSandboxTable()}
	for _, d := range o.Domains {
		if d = plainHost(d); d != "" && d != localhost {
			p.domains = append(p.domains, d)
		}
	}
	p.domains = append(p.domains, localhost)
	for _, h := range o.Hosts {
		p.hosts = append(p.hosts, plainHost(h))
	}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: portTransport{}, FlushInterval: -1, BufferPool: &buffers, ModifyResponse: p.modifyResponse,
		ErrorHandler: p.proxyError, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// An exchange is a request that is being proxied. It belongs to the goroutine that
// serves it, except for idle and the atomic fields.
type exchange struct {
	target      target
	sandbox     engi.Sandbox
	in          *http.Request
	guest       engi.Guest
	conns       *portConns
	serviceHost string // Host as the service sees it
	origin      string // the client's Origin if it was replaced
	idle        *idleTimer
	responded   atomic.Bool // the service has responded
	tunnel      bool        // the connection was upgraded
	cancel      context.CancelCauseFunc
	stop        func() bool // detaches from Leave; nil if it was not attached
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

type targetKey struct{}

// TargetOf returns the sandbox and port of a request to a special port.
func TargetOf(ctx context.Context) (id engi.SandboxID, port int, ok bool) {
	t, ok := ctx.Value(targetKey{}).(target)
	return t.id, t.port, ok
}

// Handler returns the handler for r, or nil if r is neither for a port of a sandbox nor for a
// published page.
func (p *Proxy) Handler(r *http.Request) http.Handler {
	t, ok := p.find(r)
	if !ok {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveTarget(w, r, t) })
}

// ServeHTTP sends a request to its port.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := p.find(r)
	if !ok {
		p.refuse(w, r, target{}, http.StatusNotFound, "This address names no sandbox")
		return
	}
	p.serveTarget(w, r, t)
}

func (p *Proxy) serveTarget(w http.ResponseWriter, r *http.Request, t target) {
	if t.page {
		p.servePage(w, r, t)
		return
	}
	var who *access // access rules that the request has passed; nil before
	if t.workspace {
		if t, who = p.workspaceTarget(w, r, t); who == nil {
			return
		}
	}
	if t.of != "" && p.o.Apps != nil {
		a, err := p.o.Apps.Get(r.Context(), engi.Everyone, string(t.of))
		if err != nil && !engi.Is(err, engi.NotFound) {
			p.respondError(w, r, t, err)
			return
		}
		if err == nil && a.State == engi.AppStarting {
			// Without a reload, a page would stay broken that was requested while the server restarts.
			w.Header().Set("Retry-After", "1")
			if wantsHTML(r) {
				w.Header().Set("Refresh", "1")
			}
			p.refuse(w, r, t, http.StatusServiceUnavailable, appStarts)
			return
		}
		if a.Shows(t.port) {
			t.id = a.Sandbox
		}
	}
	if t.id == "" {
		p.refuse(w, r, t, http.StatusBadGateway, notFound)
		return
	}
	if h := p.o.Special[t.port]; h != nil && who == nil {
		r = r.WithContext(context.WithValue(r.Context(), targetKey{}, t))
		if t.prefix != "" {
			r.URL = stripPrefix(r.URL, t.prefix)
		}
		h.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodConnect {
		p.refuse(w, r, t, http.StatusMethodNotAllowed, "the method CONNECT is not supported")
		return
	}
	if t.bare {
		// Relative, as a proxy in front may have removed a part of the path.
		w.Header().Set("Location", strconv.Itoa(t.port)+localRef("/", r.URL.RawQuery))
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	s, err := p.o.Sandboxes.Get(r.Context(), engi.Everyone, t.id)
	if err != nil && !engi.Is(err, engi.NotFound) {
		p.respondError(w, r, t, err)
		return
	}
	// Sandboxes of pools and of executions have no previews.
	if err != nil || s.State == engi.Stopped || s.State == engi.Stopping || s.State == engi.Ready || s.Execution != "" {
		p.forget(t.id)
		gone := notFound
		if t.workspace {
			gone = notStarted
		}
		p.refuse(w, r, t, http.StatusBadGateway, gone)
		return
	}
	if who == nil {
		who = &access{owner: s.Owner, private: s.Ports.Private}
		if p.o.Allow != nil {
			who.allow = func() error { return p.o.Allow(r, s) }
		}
		if p.o.While != nil {
			who.while = func() (context.Context, context.CancelFunc) { return p.o.While(r, s) }
		}
		if done := p.authorize(w, r, t, *who) || preflight(w, r, t); done {
			return
		}
	}
	r, release := p.whileValid(r, *who)
	defer release()
	leave, conns, err := p.acquire(s, t.port)
	if err != nil {
		p.respondError(w, r, t, err)
		return
	}
	defer leave()
	p.serve(w, r, t, s, conns)
}

// serve proxies an authorized request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, t target, s engi.Sandbox, conns *portConns) {
	g, release, err := p.o.Sandboxes.Enter(r.Context(), engi.Everyone, t.id)
	if err != nil {
		p.respondError(w, r, t, err)
		return
	}
	defer release()

	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	rc := http.NewResponseController(w)
	x := &exchange{target: t, sandbox: s, in: r, guest: g, conns: conns, serviceHost: serviceHost(s, t.port), cancel: cancel}
	x.idle = newIdleTimer(p.o.IdleTimeout, func() {
		cancel(errIdle)
		if x.responded.Load() {
			// Reads from and writes to the client do not end with the
			// context, so deadlines end them. Only writers of tests do not support deadlines.
			_ = rc.SetReadDeadline(time.Unix(1, 0))
			_ = rc.SetWriteDeadline(time.Unix(1, 0))
		}
	})
	defer x.idle.stop()
	defer func() {
		if x.stop != nil {
			x.stop()
		}
	}()

	complete := false // the response was not cut short
	in := r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		// Services may respond while they still read, as is usual in HTTP/2.
		_ = rc.EnableFullDuplex()
		up := &uploadBody{activeBody: activeBody{r.Body, x.idle}}
		in.Body = up
		if r.ProtoMajor == 1 {
			defer func() {
				if !complete || x.tunnel {
					up.responded.Store(true)
					return // the connection will be closed or no longer belongs to the server
				}
				up.finish(ctx, rc, r.Header.Get("Expect") != "")
			}()
		}
	}
	if strings.EqualFold(in.Header.Get("Upgrade"), "h2c") {
		// Requests in such a tunnel would not be checked. Servers may ignore
		// the header.
		in.Header = in.Header.Clone()
		in.Header.Del("Upgrade")
		in.Header.Del("Http2-Settings")
	}
	p.proxy.ServeHTTP(w, in)
	complete = true
}

var errIdle = errors.New("the connection was idle for too long")

// An idleTimer calls a function when it has not been touched for some time.
type idleTimer struct {
	mu      sync.Mutex
	last    time.Time   // guarded by mu
	timer   *time.Timer // guarded by mu
	timeout time.Duration
}

func newIdleTimer(most time.Duration, act func()) *idleTimer {
	s := &idleTimer{timeout: most, last: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(most, func() {
		s.mu.Lock()
		rest := s.timeout - time.Since(s.last)
		if rest > 0 {
			s.timer.Reset(rest)
		}
		s.mu.Unlock()
		if rest <= 0 {
			act()
		}
	})
	return s
}

func (s *idleTimer) touch() {
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
}

func (s *idleTimer) stop() {
	s.mu.Lock()
	s.timer.Stop()
	s.mu.Unlock()
}

// An activeBody is a body that touches the idle timer.
type activeBody struct {
	io.ReadCloser
	idle *idleTimer
}

func (h *activeBody) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	if n > 0 {
		h.idle.touch()
	}
	return n, err
}

// uploadGrace is the maximum time for a client to send the rest of a body after the
// response is complete.
const uploadGrace = 10 * time.Second

// An uploadBody is the body of an HTTP/1 request. A service may respond before it
// has read all of it; the server must not read the next request while another goroutine
// still reads the body.
type uploadBody struct {
	activeBody
	mu        sync.Mutex // held during a read
	started   bool       // guarded by mu
	responded atomic.Bool
}

func (u *uploadBody) Read(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.responded.Load() {
		return 0, errResponded
	}
	u.started = true
	return u.activeBody.Read(b)
}

var errResponded = errors.New("the response is complete")

// finish reads the rest of the body, so that the connection can be reused. If the
// client takes too long, the connection is closed. A client that waits for "100
// Continue" gets none: the server closes the connection instead.
func (u *uploadBody) finish(ctx context.Context, rc *http.ResponseController, waits bool) {
	u.responded.Store(true)
	if !u.mu.TryLock() { // a reader is waiting for the client
		_ = rc.Flush()
		t := time.AfterFunc(uploadGrace, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })
		u.mu.Lock()
		if !t.Stop() {
			panic(http.ErrAbortHandler)
		}
	}
	defer u.mu.Unlock()
	if waits && !u.started {
		return
	}
	// The server cannot do this: if it finds the end of a body after the
	// handler returned in full duplex, it reads the next request twice at the
	// same time and panics (seen with Go 1.26.8).
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(uploadGrace))
	if _, err := io.Copy(io.Discard, u.ReadCloser); err != nil || ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	_ = rc.SetReadDeadline(time.Time{})
}

// buffers is a pool for copying bodies.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

const bufferSize = 64 << 10

func (b *bufferPool) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }

func isIP(host string) bool { return net.ParseIP(host) != nil }
