package preview

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/engi-dev/engi"
)

const (
	maxRooms = 10_000 // sandboxes that are remembered
	maxDoors = 256    // ports of one sandbox with connections of their own

	// Many servers close connections that rest for 5 s. A request that meets
	// such an end on its way cannot always be repeated.
	restTime = 4 * time.Second
)

// A room is what is remembered of one sandbox.
type sandboxConns struct {
	id      engi.SandboxID
	started time.Time // of the sandbox, when doors were opened
	limiter *rate.Limiter
	open    int // requests inside
	doors   map[int]*door
}

// rooms are the sandboxes that were visited last. Proxy.mu guards it.
type sandboxTable struct {
	known map[engi.SandboxID]*list.Element // of *room
	order *list.List                       // last visited first
}

func newRooms() *sandboxTable { return &sandboxTable{map[engi.SandboxID]*list.Element{}, list.New()} }

// enter counts a request to a sandbox in and returns the connections to the
// port. It reports Exhausted for one too many.
func (p *Proxy) enter(s engi.Sandbox, port int) (leave func(), _ *door, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.room(s.ID)
	if !r.limiter.Allow() {
		return nil, nil, engi.Errorf(engi.Exhausted, "more than %g requests per second", p.o.Rate).
			WithRemedy("slow down").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if r.open >= p.o.Open {
		return nil, nil, engi.Errorf(engi.Exhausted, "%d requests and connections are open already", r.open).
			WithRemedy("close some").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if !r.started.Equal(s.Started) {
		// It has slept: what was connected to its former life is dead.
		r.shut()
		r.started = s.Started
	}
	d := r.doors[port]
	if d == nil {
		if len(r.doors) >= maxDoors {
			r.shut()
		}
		d = newDoor(p.o.Headers)
		r.doors[port] = d
	}
	r.open++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.open--
	}, d, nil
}

// room finds or makes a room. The caller holds p.mu.
func (p *Proxy) room(id engi.SandboxID) *sandboxConns {
	if e := p.rooms.known[id]; e != nil {
		p.rooms.order.MoveToFront(e)
		return e.Value.(*sandboxConns)
	}
	for e := p.rooms.order.Back(); e != nil && len(p.rooms.known) >= maxRooms; {
		last := e.Value.(*sandboxConns)
		before := e.Prev()
		if last.open == 0 {
			p.drop(e)
		}
		e = before
	}
	r := &sandboxConns{id: id, limiter: rate.NewLimiter(rate.Limit(p.o.Rate), p.o.Burst), doors: map[int]*door{}}
	p.rooms.known[id] = p.rooms.order.PushFront(r)
	return r
}

func (p *Proxy) drop(e *list.Element) {
	r := e.Value.(*sandboxConns)
	r.shut()
	p.rooms.order.Remove(e)
	delete(p.rooms.known, r.id)
}

// forget lets go of a sandbox that has ended.
func (p *Proxy) forget(id engi.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.rooms.known[id]; e != nil {
		p.drop(e)
	}
}

// shut closes connections nobody uses; those in use end with their requests.
func (r *sandboxConns) shut() {
	for _, d := range r.doors {
		d.plain.CloseIdleConnections()
		d.second.CloseIdleConnections()
	}
	clear(r.doors)
}

// A door is the connections to one port.
type door struct {
	plain  *http.Transport // HTTP/1.1
	second *http.Transport // HTTP/2 in clear text
}

func newDoor(headers int64) *door {
	transport := func() *http.Transport {
		return &http.Transport{
			Protocols: new(http.Protocols),
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				v := visitOf(ctx)
				return v.guest.Dial(ctx, v.target.port)
			},
			DisableCompression:     true,
			MaxIdleConnsPerHost:    32,
			IdleConnTimeout:        restTime,
			MaxResponseHeaderBytes: headers,
			ExpectContinueTimeout:  2 * time.Second,
			ReadBufferSize:         64 << 10,
			WriteBufferSize:        64 << 10,
		}
	}
	d := &door{plain: transport(), second: transport()}
	d.plain.Protocols.SetHTTP1(true)
	d.second.Protocols.SetUnencryptedHTTP2(true)
	return d
}

// doors sends each request through the door of its visit.
type doors struct{}

func (doors) RoundTrip(r *http.Request) (*http.Response, error) {
	d := visitOf(r.Context()).door
	if wantsHTTP2(r) {
		return d.second.RoundTrip(r)
	}
	return d.plain.RoundTrip(r)
}

// wantsHTTP2 reports whether the service is to be spoken to in HTTP/2, which
// few understand without TLS: those of gRPC, and those the caller says so of.
func wantsHTTP2(r *http.Request) bool {
	in := visitOf(r.Context()).in
	return in.ProtoMajor == 2 && (in.Header.Get(protocolHeader) == "h2c" ||
		strings.HasPrefix(in.Header.Get("Content-Type"), "application/grpc"))
}

// protocolHeader, with the value h2c, asks for HTTP/2 towards the service.
const protocolHeader = "X-Engi-Protocol"
