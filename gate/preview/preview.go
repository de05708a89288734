// Package preview brings requests from outside to services that listen inside
// sandboxes. A service has a host name of its own, PORT-LABEL.DOMAIN, or, if
// the node's owner wants that, a path; E2B's clients may name it in headers.
//
// Both sides are strangers to each other and to us. Requests lose every
// credential of engi before they enter a sandbox, and services see themselves
// as what they are on their own loopback, so that development servers accept
// them. Answers cannot set cookies for other previews, nor speak for the
// origin of others. Package preview does not serve the dialects of programs
// inside sandboxes (see Options.Special), and it does not listen itself.
package preview

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi"
)

// Options are what a Proxy serves. Sandboxes, Keys and LinkKey are needed;
// the zero value of everything else is useful.
type Options struct {
	Sandboxes engi.Sandboxes
	Keys      engi.Keys // recognize owners of private sandboxes
	LinkKey   []byte    // signs links; 32 bytes

	Domains []string // names are made below the first; localhost is always one more
	Hosts   []string // further names under which paths and headers lead to sandboxes; "*" is any
	Path    string   // base of routes by path, like "/preview"; empty means none
	Scheme  string   // of addresses that are handed out: http (the default) or https
	Port    string   // of addresses that are handed out; empty means the scheme's own
	Private bool     // treat every sandbox as private, whatever its policy

	// Special serves ports that belong to a dialect instead of a service.
	// Its handlers find their sandbox with [SandboxOf]; neither privacy nor
	// limits apply to them.
	Special map[int]http.Handler
	// Allow lets requests into a private sandbox that carry neither its
	// owner's key nor a signed link, if it returns nil. Nil refuses them.
	Allow func(r *http.Request, s engi.Sandbox, port int) error

	Rate    float64       // requests per second and sandbox; 0 means 500
	Burst   int           // requests at once on top of Rate; 0 means 4 times Rate
	Open    int           // requests and connections open at once per sandbox; 0 means 1024
	Idle    time.Duration // silence after which a request or connection is cut; 0 means 10 minutes
	Headers int64         // bytes of an answer's headers; 0 means 64 KiB

	Log *slog.Logger // nil discards
	// Leave, when it ends, cuts event streams and upgraded connections, which
	// would otherwise keep a server from shutting down. Nil means never.
	Leave context.Context
}

// A Proxy is the way in. It is safe for concurrent use.
type Proxy struct {
	o       Options
	domains []string // lower case, localhost among them
	hosts   []string
	log     *slog.Logger
	proxy   *httputil.ReverseProxy

	mu    sync.Mutex
	rooms *sandboxTable // guarded by mu
}

var _ http.Handler = (*Proxy)(nil)

// New returns a Proxy. It starts nothing. It panics if one of the needed
// options is missing.
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
	if o.Open <= 0 {
		o.Open = 1024
	}
	if o.Idle <= 0 {
		o.Idle = 10 * time.Minute
	}
	if o.Headers <= 0 {
		o.Headers = 64 << 10
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
	p := &Proxy{o: o, log: o.Log, rooms: newRooms()}
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
		Rewrite: rewrite, Transport: doors{}, FlushInterval: -1, BufferPool: &buffers, ModifyResponse: p.answered,
		ErrorHandler: p.broke, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// A visit is one request on its way in. It belongs to the goroutine that
// serves it, but for what is atomic and for silence.
type visit struct {
	target  target
	sandbox engi.Sandbox
	in      *http.Request
	guest   engi.Guest
	door    *door
	as      string // what the service sees as Host
	origin  string // the caller's Origin if it was replaced
	silence *silence
	began   atomic.Bool // the service has answered
	tunnel  bool        // and the connection is the two sides' own
	cancel  context.CancelCauseFunc
	stop    func() bool // no longer cut at Leave; nil if it never was
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

type targetKey struct{}

// TargetOf returns what a request to a special port is for.
func TargetOf(ctx context.Context) (id engi.SandboxID, port int, ok bool) {
	t, ok := ctx.Value(targetKey{}).(target)
	return t.id, t.port, ok
}

// Handler returns what serves r, or nil if r is not for a port of a sandbox.
func (p *Proxy) Handler(r *http.Request) http.Handler {
	t, ok := p.find(r)
	if !ok {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveTarget(w, r, t) })
}

// ServeHTTP sends a request to the port that it is for.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := p.find(r)
	if !ok {
		p.refuse(w, r, target{}, http.StatusNotFound, "This address names no sandbox")
		return
	}
	p.serveTarget(w, r, t)
}

func (p *Proxy) serveTarget(w http.ResponseWriter, r *http.Request, t target) {
	if t.id == "" {
		p.refuse(w, r, t, http.StatusBadGateway, notFound)
		return
	}
	if h := p.o.Special[t.port]; h != nil {
		r = r.WithContext(context.WithValue(r.Context(), targetKey{}, t))
		if t.prefix != "" {
			r.URL = stripped(r.URL, t.prefix)
		}
		h.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodConnect {
		p.refuse(w, r, t, http.StatusMethodNotAllowed, "CONNECT is not offered here")
		return
	}
	if t.bare {
		w.Header().Set("Location", local(t.prefix+"/", r.URL.RawQuery))
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	s, err := p.o.Sandboxes.Get(r.Context(), "", t.id)
	if err != nil && engi.KindOf(err) != engi.NotFound {
		p.fail(w, r, t, err)
		return
	}
	// Sandboxes of pools and of executions are nobody's to visit.
	if err != nil || s.State == engi.Stopped || s.State == engi.Stopping || s.State == engi.Ready || s.Execution != "" {
		p.forget(t.id)
		p.refuse(w, r, t, http.StatusBadGateway, notFound)
		return
	}
	if done := p.admit(w, r, t, s); done {
		return
	}
	leave, door, err := p.enter(s, t.port)
	if err != nil {
		p.fail(w, r, t, err)
		return
	}
	defer leave()
	p.serve(w, r, t, s, door)
}

// serve takes an admitted request inside.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, t target, s engi.Sandbox, d *door) {
	g, release, err := p.o.Sandboxes.Enter(r.Context(), "", t.id)
	if err != nil {
		p.fail(w, r, t, err)
		return
	}
	defer release()

	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	rc := http.NewResponseController(w)
	v := &visit{target: t, sandbox: s, in: r, guest: g, door: d, as: presented(s, t.port), cancel: cancel}
	v.silence = breakSilence(p.o.Idle, func() {
		cancel(errSilence)
		if v.began.Load() {
			// A caller that takes nothing, or sends nothing into a tunnel,
			// keeps us waiting where no context reaches. Writers that know no
			// deadlines are those of tests.
			_ = rc.SetReadDeadline(time.Unix(1, 0))
			_ = rc.SetWriteDeadline(time.Unix(1, 0))
		}
	})
	defer v.silence.stop()
	defer func() {
		if v.stop != nil {
			v.stop()
		}
	}()

	whole := false // else the answer broke off
	in := r.WithContext(context.WithValue(ctx, visitKey{}, v))
	if r.Body != nil && r.Body != http.NoBody {
		// Services may answer while they still read. HTTP/2 always lets them.
		_ = rc.EnableFullDuplex()
		up := &upload{heard: heard{r.Body, v.silence}}
		in.Body = up
		if r.ProtoMajor == 1 {
			defer func() {
				if !whole || v.tunnel {
					up.ended.Store(true)
					return // the connection ends, or is no longer the server's
				}
				up.finish(ctx, rc, r.Header.Get("Expect") != "")
			}()
		}
	}
	if strings.EqualFold(in.Header.Get("Upgrade"), "h2c") {
		// What goes through such a tunnel is a connection of its own, whose
		// requests nobody would look at. Ignoring the wish is allowed.
		in.Header = in.Header.Clone()
		in.Header.Del("Upgrade")
		in.Header.Del("Http2-Settings")
	}
	p.proxy.ServeHTTP(w, in)
	whole = true
}

var errSilence = errors.New("nothing was sent or taken for too long")

// silence acts when nothing has been heard for a time.
type silence struct {
	mu    sync.Mutex
	last  time.Time   // guarded by mu
	timer *time.Timer // guarded by mu
	most  time.Duration
}

func breakSilence(most time.Duration, act func()) *silence {
	s := &silence{most: most, last: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(most, func() {
		s.mu.Lock()
		rest := s.most - time.Since(s.last)
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

func (s *silence) hear() {
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
}

func (s *silence) stop() {
	s.mu.Lock()
	s.timer.Stop()
	s.mu.Unlock()
}

// heard is a body that breaks the silence.
type heard struct {
	io.ReadCloser
	silence *silence
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	if n > 0 {
		h.silence.hear()
	}
	return n, err
}

// uploadGrace is how long a caller may take to send the rest of a body after
// the service has given its whole answer.
const uploadGrace = 10 * time.Second

// upload is the body of a request of HTTP/1. A service may answer before it
// has all of it; the server must not look for the next request while somebody
// still reads.
type upload struct {
	heard
	mu    sync.Mutex // held while somebody reads
	begun bool       // guarded by mu
	ended atomic.Bool
}

func (u *upload) Read(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended.Load() {
		return 0, errEnded
	}
	u.begun = true
	return u.heard.Read(b)
}

var errEnded = errors.New("the request has been answered")

// finish reads what the service did not want, so that the connection can go
// on. A caller that takes too long loses it. One that waits to be asked for
// the body is not asked now: the server closes the connection instead.
func (u *upload) finish(ctx context.Context, rc *http.ResponseController, waits bool) {
	u.ended.Store(true)
	if !u.mu.TryLock() { // somebody waits for the caller
		_ = rc.Flush()
		t := time.AfterFunc(uploadGrace, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })
		u.mu.Lock()
		if !t.Stop() {
			panic(http.ErrAbortHandler)
		}
	}
	defer u.mu.Unlock()
	if waits && !u.begun {
		return
	}
	// Left to the server, this ends in a panic: when it finds the end of a
	// body after the handler in full duplex, it reads the next request twice
	// at once (seen with Go 1.26.8).
	if n, err := u.ReadCloser.Read(make([]byte, 1)); n == 0 && err == io.EOF {
		return
	}
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(uploadGrace))
	if _, err := io.Copy(io.Discard, u.ReadCloser); err != nil || ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	_ = rc.SetReadDeadline(time.Time{})
}

// buffers are lent to copies of bodies.
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
