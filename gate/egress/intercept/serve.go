package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

const (
	maxHeader  = 128 << 10 // of a request
	maxStreams = 100       // of one connection of HTTP/2
)

// newServer returns the server of all sandboxes' connections.
func (i *Interceptor) newServer() *http.Server {
	quiet := log.New(io.Discard, "", 0) // events say what matters, without values
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { exchangeOf(r.In).rewrite(r) },
		Transport:      roundTripper(func(r *http.Request) (*http.Response, error) { return exchangeOf(r).box.upstream.RoundTrip(r) }),
		FlushInterval:  -1,
		ErrorLog:       quiet,
		BufferPool:     new(buffers),
		ModifyResponse: func(r *http.Response) error { return exchangeOf(r.Request).answer(r) },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { exchangeOf(r).fail(w, err) },
	}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { i.serve(w, r, proxy) }),
		ReadHeaderTimeout: i.o.Header,
		IdleTimeout:       i.o.Header,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          quiet,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if t, ok := conn.(*tls.Conn); ok {
				conn = t.NetConn()
			}
			return context.WithValue(ctx, clientKey{}, conn)
		},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	return s
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type clientKey struct{}

// A client is a connection of a sandbox. It ends itself when nothing went
// either way for a while.
type client struct {
	net.Conn
	target Target
	idle   time.Duration
	timer  *time.Timer
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	over    bool // guarded by mu
	running sync.WaitGroup
}

func (c *client) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

func (c *client) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

func (c *client) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.timer.Stop()
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}

// CloseWrite lets an upgraded connection end one way first.
func (c *client) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// begin counts a request; false if the connection is over.
func (c *client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.running.Add(1)
	}
	return !c.over
}

// wait returns when the last request has ended.
func (c *client) wait() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.running.Wait()
}

// A single is a listener with one connection.
type single struct {
	conn   chan net.Conn
	closed <-chan struct{}
	addr   net.Addr
}

func (l *single) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	default:
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return l.addr }

// Serve serves a connection of a sandbox until it ends, or ctx does, and
// closes it. What the gateway has read of it to learn the claim must come out
// of it again. Serve returns when nothing of the connection is left. It
// reports Conflict if the sandbox is not open, or nothing is granted at a
// target with TLS (any more), and Denied if the client ends the handshake, as
// those do that do not trust the authority.
func (i *Interceptor) Serve(ctx context.Context, conn net.Conn, t Target) (err error) {
	defer engi.Annotate(&err, "serve %s for %s", t.Host, t.Sandbox)
	c := &client{Conn: conn, target: t, idle: i.o.Idle, closed: make(chan struct{})}
	c.timer = time.AfterFunc(c.idle, func() { c.Close() })
	defer c.wait()
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	box := i.find(t.Sandbox)
	if box == nil || t.TLS && len(box.at(t.Host, t.Port, true)) == 0 {
		return engi.Errorf(engi.Conflict, "nothing is granted there").WithRemedy("connect again: the policy has changed")
	}
	served := net.Conn(c)
	if t.TLS {
		secure := tls.Server(c, box.tls(t))
		in, cancel := context.WithTimeout(ctx, i.o.Handshake)
		err := secure.HandshakeContext(in)
		cancel()
		if err != nil {
			return i.broken(ctx, box, t, err)
		}
		served = secure
	}
	l := &single{conn: make(chan net.Conn, 1), closed: c.closed, addr: c.LocalAddr()}
	l.conn <- served
	if err := i.server.Serve(l); errors.Is(err, http.ErrServerClosed) {
		return engi.Errorf(engi.Unavailable, "this node is closing")
	}
	return nil
}

// tls returns the configuration for a client that claimed a target.
func (s *sandbox) tls(t Target) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true, // each configuration serves one connection
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name := strings.TrimSuffix(strings.ToLower(hello.ServerName), "."); name != t.Host {
				return nil, engi.Errorf(engi.Denied, "the client asks for %.80q", name)
			}
			return s.ca.leaf(t.Host)
		},
	}
}

// broken makes an event of a handshake that failed.
func (i *Interceptor) broken(ctx context.Context, s *sandbox, t Target, err error) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "the connection was ended in the TLS handshake")
	}
	reason := "the client ended the TLS handshake"
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "remote error": // an alert
		reason = "the client ended the TLS handshake: " + clean(op.Err.Error(), 100)
	case engi.KindOf(err) == engi.Denied:
		reason = err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		reason = "the TLS handshake took too long"
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	default:
		reason = "the TLS handshake broke off: " + clean(err.Error(), 200)
	}
	e := i.event(s, t, engi.NetworkClaim)
	e.Reason = reason
	i.o.Events(e)
	return engi.Errorf(engi.Denied, "%s", reason).
		WithRemedy("make the program trust the certificates in %s, or the one in %s", BundlePath, AuthorityPath)
}

// event returns an event of a sandbox to fill.
func (i *Interceptor) event(s *sandbox, t Target, kind engi.NetworkEventKind) engi.NetworkEvent {
	return engi.NetworkEvent{
		Time: time.Now(), Sandbox: s.id, Owner: s.owner, Kind: kind, Protocol: "tcp", Host: t.Host, Address: t.Address,
	}
}

// clean makes a text from outside fit for a line of a log.
func clean(text string, size int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > size {
		text = strings.ToValidUTF8(text[:size], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return '?'
		}
		return r
	}, text)
}

// buffers are what bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[readSize]byte); ok {
		return p[:]
	}
	return make([]byte, readSize)
}

func (b *buffers) Put(p []byte) {
	clear(p) // some came from upstream
	b.pool.Put((*[readSize]byte)(p))
}
