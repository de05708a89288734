package egress

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// serveHTTP serves plain HTTP request by request, because each request names a host. All requests
// go to the address that the sandbox connected to, over out and further
// connections.
func (s *sandbox) serveHTTP(ctx context.Context, c *conn, in net.Conn, out net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := s.watchIdle(c, s.g.o.IdleTimeout, cancel)
	defer idle()
	first := make(chan net.Conn, 1)
	first <- out
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case conn := <-first:
				return conn, nil
			default:
			}
			set := s.rules.Load()
			if set == nil || !set.policy.Connect("tcp", c.address, c.names).Allowed {
				return nil, engi.Errorf(engi.Denied, "the policy no longer allows it")
			}
			return s.g.connect(ctx, set.policy, c.address)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 1, MaxConnsPerHost: 4, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 256 << 10,
	}
	defer transport.CloseIdleConnections()
	metered := &meteredConn{Conn: in, sandbox: s, conn: c, ctx: ctx}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: discardLog,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", c.address.String(), p.In.Host
			if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") {
				// Another protocol, like HTTP/2, could name other hosts unseen.
				p.Out.Header.Del("Upgrade")
				p.Out.Header.Del("Connection")
				p.Out.Header.Del("Http2-Settings")
			}
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	var running sync.WaitGroup
	handler := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		running.Add(1)
		defer running.Done()
		if !s.allowsRequest(c, q) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, q)
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: s.g.o.IdleTimeout, MaxHeaderBytes: policy.MaxHead, ErrorLog: discardLog}
	l := newOneConnListener(metered)
	stop := context.AfterFunc(ctx, func() { metered.Close(); l.Close() })
	defer stop()
	_ = server.Serve(l) // returns at the end of the connection
	running.Wait()
}

// allowsRequest judges a request of plain HTTP and logs refusals.
func (s *sandbox) allowsRequest(c *conn, q *http.Request) bool {
	set := s.rules.Load()
	if set == nil {
		return false
	}
	asked := policy.Request{Method: q.Method}
	host, port, err := net.SplitHostPort(q.Host)
	if err != nil {
		host, port = q.Host, ""
	}
	v := policy.Verdict{Reason: "the request names no valid host"}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil || port == "" {
		asked.Port = uint16(n)
		if name, err := policy.CheckName(host); err == nil {
			asked.Host = name
			v = set.policy.ClaimHTTP(asked, c.address, c.names)
		} else if a, err := netip.ParseAddr(host); err == nil {
			asked.Host = a.String()
			v = set.policy.ClaimHTTP(asked, c.address, c.names)
		}
	}
	if v.Allowed && s.g.interceptor != nil && s.g.interceptor.Intercepts(s.id, asked.Host, c.address.Port(), false) {
		v = policy.Verdict{Rule: v.Rule, Reason: "a request for a host with grants came over a connection to another host"}
	}
	if !v.Allowed {
		s.logEvent(set, engi.NetworkRecord{Kind: engi.NetworkClaim, Protocol: "tcp", Host: asked.Host, Address: c.address, Rule: v.Rule, Reason: v.Reason})
	}
	return v.Allowed
}

// A oneConnListener is a listener with a single connection. Accept returns it once
// and then blocks until it is closed.
type oneConnListener struct {
	conns  chan net.Conn
	addr   net.Addr
	once   sync.Once
	closed chan struct{}
}

// newOneConnListener returns a listener that closes together with its connection.
func newOneConnListener(c net.Conn) *oneConnListener {
	l := &oneConnListener{conns: make(chan net.Conn, 1), addr: c.LocalAddr(), closed: make(chan struct{})}
	l.conns <- &listenerConn{Conn: c, l: l}
	return l
}

func (l *oneConnListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	default:
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConnListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneConnListener) Addr() net.Addr { return l.addr }

type listenerConn struct {
	net.Conn
	l *oneConnListener
}

func (c *listenerConn) Close() error {
	defer c.l.Close()
	return c.Conn.Close()
}

// CloseWrite closes the writing side.
func (c *listenerConn) CloseWrite() error { return closeWrite(c.Conn) }
