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

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxHeader  = 128 << 10 // bytes; maximum size of the header of a request
	maxStreams = 100       // maximum number of streams of one HTTP/2 connection
)

// newServer returns the server of all sandboxes' connections.
func (i *Interceptor) newServer() *http.Server {
	quiet := log.New(io.Discard, "", 0) // events record the errors, without secret values
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { exchangeOf(r.In).rewrite(r) },
		Transport:      roundTripper(func(r *http.Request) (*http.Response, error) { return exchangeOf(r).sandbox.upstream.RoundTrip(r) }),
		FlushInterval:  -1,
		ErrorLog:       quiet,
		BufferPool:     new(buffers),
		ModifyResponse: func(r *http.Response) error { return exchangeOf(r.Request).modifyResponse(r) },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { exchangeOf(r).fail(w, err) },
	}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { i.serve(w, r, proxy) }),
		ReadHeaderTimeout: i.o.HeaderTimeout,
		IdleTimeout:       i.o.HeaderTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          quiet,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if t, ok := conn.(*tls.Conn); ok {
				conn = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	return s
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type connKey struct{}

// A sandboxConn is a connection of a sandbox. It closes itself if it is idle for
// too long.
type sandboxConn struct {
	net.Conn
	target Target
	idle   time.Duration
	timer  *time.Timer
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	closing  bool // guarded by mu
	requests sync.WaitGroup
}

func (c *sandboxConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

func (c *sandboxConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

func (c *sandboxConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.timer.Stop()
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}

// CloseWrite closes the writing side of an upgraded connection.
func (c *sandboxConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// addRequest counts a request. It returns false if the connection is closing.
func (c *sandboxConn) addRequest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.requests.Add(1)
	}
	return !c.closing
}

// wait refuses further requests and returns when the last request has ended.
func (c *sandboxConn) wait() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.requests.Wait()
}

// A oneConnListener is a listener with a single connection.
type oneConnListener struct {
	conn   chan net.Conn
	closed <-chan struct{}
	addr   net.Addr
}

func (l *oneConnListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	default:
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConnListener) Close() error   { return nil }
func (l *oneConnListener) Addr() net.Addr { return l.addr }

// Serve serves a connection of a sandbox until the connection or ctx ends, and closes it.
// Reads from conn must return all bytes that the client sent, including those read to
// learn the claimed host. Serve waits for all requests. It reports Conflict if the
// sandbox is not open or has no rules for a target with TLS, and Denied if the
// client aborts the handshake, like clients that do not trust the authority.
func (i *Interceptor) Serve(ctx context.Context, conn net.Conn, t Target) (err error) {
	defer engi.Annotate(&err, "serve %s for %s", t.Host, t.Sandbox)
	c := &sandboxConn{Conn: conn, target: t, idle: i.o.IdleTimeout, closed: make(chan struct{})}
	c.timer = time.AfterFunc(c.idle, func() { c.Close() })
	defer c.wait()
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	s := i.sandbox(t.Sandbox)
	if s == nil || t.TLS && (s.authority == nil || t.Handler == nil && !s.judges(t.Host) && len(s.rulesFor(t.Host, t.Port, true)) == 0) {
		return engi.Errorf(engi.Conflict, "no host is granted").WithRemedy("connect again: the policy has changed")
	}
	served := net.Conn(c)
	if t.TLS {
		secure := tls.Server(c, s.tlsConfig(t))
		in, cancel := context.WithTimeout(ctx, i.o.HandshakeTimeout)
		err := secure.HandshakeContext(in)
		cancel()
		if err != nil {
			return i.handshakeFailed(ctx, s, t, err)
		}
		served = secure
	}
	l := &oneConnListener{conn: make(chan net.Conn, 1), closed: c.closed, addr: c.LocalAddr()}
	l.conn <- served
	if err := i.server.Serve(l); errors.Is(err, http.ErrServerClosed) {
		return engi.Errorf(engi.Unavailable, "this node is closing")
	}
	return nil
}

// tlsConfig returns the configuration for a client that claimed a target.
func (s *sandbox) tlsConfig(t Target) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true, // each configuration is for one connection
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name := strings.TrimSuffix(strings.ToLower(hello.ServerName), "."); name != t.Host {
				return nil, engi.Errorf(engi.Denied, "the client asks for %.80q", name)
			}
			return s.authority.leaf(t.Host)
		},
	}
}

// handshakeFailed logs a failed handshake and returns an error for it.
func (i *Interceptor) handshakeFailed(ctx context.Context, s *sandbox, t Target, err error) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "the connection was closed during the TLS handshake")
	}
	reason := "the client aborted the TLS handshake"
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert from the client
		reason = "the client aborted the TLS handshake: " + printable(op.Err.Error(), 100)
	case engi.Is(err, engi.Denied):
		reason = err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		reason = "the TLS handshake took too long"
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	default:
		reason = "the TLS handshake failed: " + printable(err.Error(), 200)
	}
	e := i.event(s, t, engi.NetworkClaim)
	e.Reason = reason
	i.o.Events(e)
	return engi.Errorf(engi.Denied, "%s", reason).
		WithRemedy("make the program trust the certificates in %s or the one in %s", BundlePath, AuthorityPath)
}

// event returns an event with the common fields set.
func (i *Interceptor) event(s *sandbox, t Target, kind engi.NetworkRecordKind) engi.NetworkRecord {
	return engi.NetworkRecord{
		Time: time.Now(), Sandbox: s.id, Owner: s.owner, Kind: kind, Protocol: "tcp", Host: t.Host, Address: t.Address,
	}
}

// printable shortens untrusted text and replaces characters that do not fit on a line.
func printable(text string, size int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return '?'
		}
		return r
	}, clip.Text(text, size))
}

const copySize = 32 << 10

// buffers is a pool for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[copySize]byte); ok {
		return p[:]
	}
	return make([]byte, copySize)
}

func (b *buffers) Put(p []byte) {
	clear(p) // the buffer may contain secrets
	b.pool.Put((*[copySize]byte)(p))
}
