package preview

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxSandboxes = 10_000 // maximum number of sandboxes with state
	maxPorts     = 256    // maximum number of ports of one sandbox with kept connections

	// Many servers close idle connections after 5 s. A request that is sent at
	// that moment cannot always be repeated.
	idleConnTimeout = 4 * time.Second
)

// sandboxConns is the state of one sandbox, or of one published app.
type sandboxConns struct {
	id      string
	started time.Time // start time of the sandbox to which the ports are connected
	limiter *rate.Limiter
	open    int // number of requests in progress
	ports   map[int]*portConns
}

// A sandboxTable holds the most recently used sandboxes. It is guarded by Proxy.mu.
type sandboxTable struct {
	byID  map[string]*list.Element // elements with *sandboxConns
	order *list.List               // most recently used first
}

func newSandboxTable() *sandboxTable {
	return &sandboxTable{map[string]*list.Element{}, list.New()}
}

// acquire counts a request to a sandbox and returns the connections to the port.
// It returns Exhausted if there are too many requests.
func (p *Proxy) acquire(s engi.Sandbox, port int) (leave func(), _ *portConns, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.connsOf(string(s.ID))
	if leave, err = p.admit(c); err != nil {
		return nil, nil, err
	}
	if !c.started.Equal(s.Started) {
		// The sandbox was resumed, so existing connections are broken.
		c.closeIdle()
		c.started = s.Started
	}
	conns := c.ports[port]
	if conns == nil {
		if len(c.ports) >= maxPorts {
			c.closeIdle()
		}
		conns = newPortConns(p.o.MaxHeader)
		c.ports[port] = conns
	}
	return leave, conns, nil
}

// admit counts a request, or returns Exhausted if there are too many. The caller holds p.mu.
func (p *Proxy) admit(c *sandboxConns) (leave func(), err error) {
	if !c.limiter.Allow() {
		return nil, engi.Errorf(engi.Exhausted, "more than %g requests per second", p.o.Rate).
			WithRemedy("slow down").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if c.open >= p.o.MaxOpen {
		return nil, engi.Errorf(engi.Exhausted, "%d requests and connections are open already", c.open).
			WithRemedy("close some").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	c.open++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.open--
	}, nil
}

// connsOf returns the state of a sandbox, and creates it if it does not exist. The caller
// holds p.mu.
func (p *Proxy) connsOf(id string) *sandboxConns {
	if e := p.sandboxes.byID[id]; e != nil {
		p.sandboxes.order.MoveToFront(e)
		return e.Value.(*sandboxConns)
	}
	for e := p.sandboxes.order.Back(); e != nil && len(p.sandboxes.byID) >= maxSandboxes; {
		last := e.Value.(*sandboxConns)
		before := e.Prev()
		if last.open == 0 {
			p.drop(e)
		}
		e = before
	}
	c := &sandboxConns{id: id, limiter: rate.NewLimiter(rate.Limit(p.o.Rate), p.o.Burst), ports: map[int]*portConns{}}
	p.sandboxes.byID[id] = p.sandboxes.order.PushFront(c)
	return c
}

func (p *Proxy) drop(e *list.Element) {
	c := e.Value.(*sandboxConns)
	c.closeIdle()
	p.sandboxes.order.Remove(e)
	delete(p.sandboxes.byID, c.id)
}

// forget drops the state of a sandbox that has ended.
func (p *Proxy) forget(id engi.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.sandboxes.byID[string(id)]; e != nil {
		p.drop(e)
	}
}

// closeIdle closes idle connections; connections in use are closed with their requests.
func (c *sandboxConns) closeIdle() {
	for _, conns := range c.ports {
		conns.http1.CloseIdleConnections()
		conns.http2.CloseIdleConnections()
	}
	clear(c.ports)
}

// portConns holds the connections to one port.
type portConns struct {
	http1 *http.Transport // HTTP/1.1
	http2 *http.Transport // HTTP/2 without TLS
}

func newPortConns(headers int64) *portConns {
	transport := func() *http.Transport {
		return &http.Transport{
			Protocols: new(http.Protocols),
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				x := exchangeOf(ctx)
				return x.guest.Dial(ctx, x.target.port)
			},
			DisableCompression:     true,
			MaxIdleConnsPerHost:    32,
			IdleConnTimeout:        idleConnTimeout,
			MaxResponseHeaderBytes: headers,
			ExpectContinueTimeout:  2 * time.Second,
			ReadBufferSize:         64 << 10,
			WriteBufferSize:        64 << 10,
		}
	}
	conns := &portConns{http1: transport(), http2: transport()}
	conns.http1.Protocols.SetHTTP1(true)
	conns.http2.Protocols.SetUnencryptedHTTP2(true)
	return conns
}

// A portTransport sends each request over the connections of the request's exchange.
type portTransport struct{}

func (portTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	conns := exchangeOf(r.Context()).conns
	if wantsHTTP2(r) {
		return conns.http2.RoundTrip(r)
	}
	return conns.http1.RoundTrip(r)
}

// wantsHTTP2 reports whether to use HTTP/2, which few services support without
// TLS: for gRPC, and if the client asks for it.
func wantsHTTP2(r *http.Request) bool {
	in := exchangeOf(r.Context()).in
	return in.ProtoMajor == 2 && (in.Header.Get(protocolHeader) == "h2c" ||
		strings.HasPrefix(in.Header.Get("Content-Type"), "application/grpc"))
}

// protocolHeader with the value h2c requests HTTP/2 to the service.
const protocolHeader = "X-Engi-Protocol"
