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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// serveHTTP serves plain HTTP request by request, because each names its host
// anew. All of them go to the address that the sandbox connected to, over out
// and then over connections like it.
func (r *sandbox) serveHTTP(ctx context.Context, c *conn, in net.Conn, out net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := r.watch(c, r.g.o.Idle, cancel)
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
			set := r.rules.Load()
			if set == nil || !set.policy.Connect("tcp", c.address, c.names).Allowed {
				return nil, engi.Errorf(engi.Denied, "the policy does not allow it any more")
			}
			return r.g.out(ctx, set.policy, c.address)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 1, MaxConnsPerHost: 4, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 256 << 10,
	}
	defer transport.CloseIdleConnections()
	served := &counted{Conn: in, room: r, conn: c, ctx: ctx}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", c.address.String(), p.In.Host
			if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") {
				// Another protocol could name other hosts, unseen; HTTP/2 does.
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
		if !r.mayRequest(c, q) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, q)
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: r.g.o.Idle, MaxHeaderBytes: policy.MaxHead, ErrorLog: quiet}
	l := newSingle(served)
	stop := context.AfterFunc(ctx, func() { served.Close(); l.Close() })
	defer stop()
	_ = server.Serve(l) // ends when the connection does
	running.Wait()
}

// mayRequest judges a request of plain HTTP, and writes down what it refuses.
func (r *sandbox) mayRequest(c *conn, q *http.Request) bool {
	set := r.rules.Load()
	if set == nil {
		return false
	}
	asked := policy.Request{Method: q.Method}
	host, port, err := net.SplitHostPort(q.Host)
	if err != nil {
		host, port = q.Host, ""
	}
	v := policy.Verdict{Reason: "the request names no proper host"}
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
	if v.Allowed && r.g.over != nil && r.g.over.Intercepts(r.id, asked.Host, c.address.Port(), false) {
		v = policy.Verdict{Rule: v.Rule, Reason: "a request for a host with grants came over a connection to another host"}
	}
	if !v.Allowed {
		r.event(set, engi.NetworkEvent{Kind: engi.NetworkClaim, Protocol: "tcp", Host: asked.Host, Address: c.address, Rule: v.Rule, Reason: v.Reason})
	}
	return v.Allowed
}

// A single is a listener with one connection. Accept returns it once, and then
// waits until it is closed.
type single struct {
	conns chan net.Conn
	addr  net.Addr
	once  sync.Once
	over  chan struct{}
}

// newSingle returns a listener that closes when its connection does.
func newSingle(c net.Conn) *single {
	l := &single{conns: make(chan net.Conn, 1), addr: c.LocalAddr(), over: make(chan struct{})}
	l.conns <- &lastOf{Conn: c, l: l}
	return l
}

func (l *single) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	default:
	}
	<-l.over
	return nil, net.ErrClosed
}

func (l *single) Close() error   { l.once.Do(func() { close(l.over) }); return nil }
func (l *single) Addr() net.Addr { return l.addr }

type lastOf struct {
	net.Conn
	l *single
}

func (c *lastOf) Close() error {
	defer c.l.Close()
	return c.Conn.Close()
}

// CloseWrite ends one way.
func (c *lastOf) CloseWrite() error { return closeWrite(c.Conn) }
