package egress

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/journal"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// A room is what the gateway holds for one sandbox: a link, and while a policy
// is in force, a stack that ends the sandbox's connections.
type sandbox struct {
	g    *Gateway
	id   engi.SandboxID
	slot Link
	page *journal.Log

	names  names
	budget budget
	total  atomic.Int64 // bytes both ways
	group  *group       // guarded by g.groups.mu

	change sync.Mutex            // held while the room opens or shuts
	gone   bool                  // guarded by change; it never opens again
	rules  atomic.Pointer[rules] // in force; nil while shut

	mu    sync.Mutex
	side  *side              // guarded by mu; nil while shut
	conns map[*conn]struct{} // guarded by mu
	last  *rules             // guarded by change; rates go on counting where they were
}

// rules are a policy in force.
type rules struct {
	owner  engi.Owner
	policy *policy.Policy
	limits engi.NetworkLimits
	// Nil means no limit.
	up, down, fresh, lookups *rate.Limiter
}

// A side is our end of the link while a policy is in force.
type side struct {
	stack *stack.Stack
	sieve *sieve
	ctx   context.Context // ends when the room shuts
	stop  context.CancelFunc
	work  sync.WaitGroup // of goroutines that serve connections
	over  bool           // guarded by the room's mu
}

// A conn is a connection or an exchange of datagrams that is open.
type conn struct {
	rules    *rules // that allowed it
	protocol string
	address  netip.AddrPort
	names    []string // that the address was given out for
	host     string   // that it claimed; empty if it did not have to
	check    policy.Check
	peer     bool // leads to a sandbox of the group
	many     bool // came when there were many
	up, down atomic.Int64
	last     atomic.Int64 // when bytes moved, in nanoseconds since 1970

	mu     sync.Mutex
	broken bool     // guarded by mu
	breaks []func() // guarded by mu
}

// abort breaks the connection at once. It may be called again.
func (c *conn) abort() {
	c.mu.Lock()
	fs := c.breaks
	c.breaks, c.broken = nil, true
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// onAbort has f called when the connection is to break.
func (c *conn) onAbort(f func()) {
	c.mu.Lock()
	if !c.broken {
		c.breaks = append(c.breaks, f)
		f = nil
	}
	c.mu.Unlock()
	if f != nil {
		f()
	}
}

func limiter(perSecond int64, burst int) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// carry returns the limiter before, if it is of the same rate: a change of
// policy is no way to get another burst.
func carry(before, now *rate.Limiter) *rate.Limiter {
	if before != nil && now != nil && before.Limit() == now.Limit() && before.Burst() == now.Burst() {
		return before
	}
	return now
}

func (r *sandbox) open(owner engi.Owner, p *policy.Policy) (engi.NetworkSetup, error) {
	r.change.Lock()
	defer r.change.Unlock()
	if r.gone {
		return engi.NetworkSetup{}, engi.Errorf(engi.NotFound, "the sandbox is being detached")
	}
	l := r.g.limits(p.Source().Limits)
	set := &rules{owner: owner, policy: p, limits: l,
		up: limiter(l.Up, burstOf(l.Up)), down: limiter(l.Down, burstOf(l.Down)),
		fresh: limiter(int64(l.NewConnections), max(2*l.NewConnections, 1)), lookups: limiter(int64(l.Lookups), max(2*l.Lookups, 1))}
	if r.last != nil {
		set.up, set.down = carry(r.last.up, set.up), carry(r.last.down, set.down)
		set.fresh, set.lookups = carry(r.last.fresh, set.fresh), carry(r.last.lookups, set.lookups)
	}
	source := p.Source()
	if _, err := r.g.groups.join(r, owner, source); err != nil {
		return engi.NetworkSetup{}, err
	}
	w := engi.NetworkSetup{}
	if r.g.over != nil {
		var err error
		if w, err = r.g.over.Open(r.id, owner, source); err != nil {
			return engi.NetworkSetup{}, err
		}
	}
	w.Resolver = Gateway4
	if source.Group != "" {
		w.Search = source.Group + "." + internal
	}
	before := r.rules.Swap(set)
	r.last = set
	if before != nil {
		r.review(set)
		return w, nil
	}
	if err := r.start(); err != nil {
		r.rules.Store(nil)
		r.g.groups.part(r)
		if r.g.over != nil {
			r.g.over.Shut(r.id)
		}
		return engi.NetworkSetup{}, err
	}
	r.g.metrics.rooms.Inc()
	return w, nil
}

// review breaks what a new policy does not allow.
func (r *sandbox) review(now *rules) {
	r.mu.Lock()
	var broken []*conn
	for c := range r.conns {
		if !r.stands(now, c) {
			broken = append(broken, c)
		}
	}
	r.mu.Unlock()
	for _, c := range broken {
		c.abort()
	}
}

func (r *sandbox) stands(now *rules, c *conn) bool {
	if c.rules.owner != now.owner {
		return false
	}
	if c.peer {
		to, _, _ := r.g.groups.peer(r, c.address.Addr())
		return to != nil
	}
	if a, b := c.rules.policy.Proxy(), now.policy.Proxy(); (a == nil) != (b == nil) || a != nil && *a != *b {
		return false
	}
	v := now.policy.Connect(c.protocol, c.address, c.names)
	if !v.Allowed {
		return false
	}
	if v.Check == policy.CheckNone {
		return true
	}
	if c.host == "" {
		// It had to claim nothing, or has not yet; who knows what it is.
		return c.check == v.Check && c.check == policy.CheckAny
	}
	return now.policy.Claim(c.host, c.address, c.names).Allowed
}

// start makes the stack. The caller holds r.change.
func (r *sandbox) start() error {
	link, err := r.slot.Endpoint()
	if err != nil {
		return err
	}
	s := &side{}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.sieve = newSieve(link, r.dropped)
	if s.stack, err = newStack(s.sieve); err != nil {
		s.stop()
		link.Close()
		link.Wait()
		return err
	}
	if err := r.serveDNS(s); err != nil {
		s.end()
		return err
	}
	r.mu.Lock()
	r.side = s
	r.mu.Unlock()
	forward := tcp.NewForwarder(s.stack, 0, maxHandshakes, func(q *tcp.ForwarderRequest) { r.handleTCP(s, q) })
	s.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forward.HandlePacket)
	s.stack.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return r.handleUDP(s, id, pkt)
	})
	s.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return r.handleEcho(s, ipv4.ProtocolNumber, id, pkt)
	})
	s.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return r.handleEcho(s, ipv6.ProtocolNumber, id, pkt)
	})
	s.sieve.begin()
	return nil
}

// shut makes nothing reachable, and waits until nothing is left of what was.
func (r *sandbox) shut() {
	r.change.Lock()
	defer r.change.Unlock()
	if r.rules.Swap(nil) == nil {
		return
	}
	r.g.groups.part(r)
	if r.g.over != nil {
		r.g.over.Shut(r.id)
	}
	r.mu.Lock()
	s := r.side
	r.side = nil
	s.over = true
	var all []*conn
	for c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	s.stop()
	for _, c := range all {
		c.abort()
	}
	s.end()
	r.g.metrics.rooms.Dec()
}

// leaveForGood shuts the room so that it never opens again.
func (r *sandbox) leaveForGood() {
	r.change.Lock()
	r.gone = true
	r.change.Unlock()
	r.shut()
	r.page.Close()
}

// end takes the stack down and waits for everything in it.
func (s *side) end() {
	s.stop()
	s.sieve.stop() // no packet enters any more
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	// Handshakes that begin late would wait for the sandbox.
	for over := false; !over; {
		for _, e := range s.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			over = true
		case <-time.After(2 * time.Millisecond):
		}
	}
	s.stack.Close()
	for _, e := range s.stack.CleanupEndpoints() {
		e.Abort()
	}
	s.stack.RemoveNIC(nicID) // closes the link
	s.sieve.Child().Wait()
	s.stack.Wait()
}

// begin counts a goroutine that serves a connection of s. It reports false if
// the room has shut.
func (r *sandbox) begin(s *side) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.over {
		return false
	}
	s.work.Add(1)
	return true
}

// admit counts a connection, unless limits forbid it; then it says why.
func (r *sandbox) admit(set *rules, c *conn) (reason string) {
	if set.limits.Total > 0 && r.total.Load() >= set.limits.Total {
		return "the sandbox has used up the bytes its policy lets it send and receive"
	}
	if set.fresh != nil && !set.fresh.Allow() {
		return "the sandbox makes more new connections per second than its policy allows"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if set.limits.Connections > 0 && len(r.conns) >= set.limits.Connections {
		return "the sandbox has as many connections open as its policy allows"
	}
	r.conns[c] = struct{}{}
	c.many = len(r.conns) > manyConns
	r.g.metrics.open.Inc()
	return ""
}

// leave is the end of an admitted connection.
func (r *sandbox) leave(c *conn) {
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	r.g.metrics.open.Dec()
}

// ended writes the end of a connection down.
func (r *sandbox) ended(c *conn, host string) {
	r.event(c.rules, engi.NetworkEvent{Kind: engi.NetworkClose, Allowed: true, Protocol: c.protocol, Host: host,
		Address: c.address, Up: c.up.Load(), Down: c.down.Load()})
}

// moved counts bytes, after waiting for the bandwidth to be there. It reports
// an error if ctx ends or the total is used up.
func (r *sandbox) moved(ctx context.Context, c *conn, n int, up bool) error {
	set := r.rules.Load()
	if set == nil {
		return net.ErrClosed
	}
	limit, direction, count := set.down, "down", &c.down
	if up {
		limit, direction, count = set.up, "up", &c.up
	}
	for left := n; left > 0 && limit != nil; {
		part := min(left, limit.Burst())
		if err := limit.WaitN(ctx, part); err != nil {
			return err
		}
		left -= part
	}
	count.Add(int64(n))
	c.last.Store(time.Now().UnixNano())
	r.g.metrics.bytes.WithLabelValues(direction).Add(float64(n))
	if sum := r.total.Add(int64(n)); set.limits.Total > 0 && sum > set.limits.Total {
		r.limited(set, "", c.address, "the sandbox has used up the bytes its policy lets it send and receive")
		return engi.Errorf(engi.Exhausted, "the total of bytes is used up")
	}
	return nil
}

func burstOf(perSecond int64) int { return int(min(max(perSecond/8, 64<<10), 4<<20)) }

// event writes a decision down.
func (r *sandbox) event(set *rules, e engi.NetworkEvent) {
	e.Time, e.Sandbox, e.Owner = time.Now(), r.id, set.owner
	r.g.metrics.decided(e)
	r.page.Add(e)
}

func (r *sandbox) limited(set *rules, protocol string, ap netip.AddrPort, reason string) {
	r.event(set, engi.NetworkEvent{Kind: engi.NetworkLimit, Protocol: protocol, Address: ap, Reason: reason})
}

// dropped hears of packets that no stack was given.
func (r *sandbox) dropped(reason string) {
	r.g.metrics.dropped.Inc()
	if set := r.rules.Load(); set != nil {
		r.limited(set, "", netip.AddrPort{}, reason+" was dropped")
	}
}

// isGateway reports whether an address is ours on the link.
func isGateway(a netip.Addr) bool { return a == Gateway4 || a == Gateway6 }

// handleEcho answers an echo request for an address that may be reached. It
// runs where packets are read and does not wait.
func (r *sandbox) handleEcho(s *side, proto tcpip.NetworkProtocolNumber, id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	set := r.rules.Load()
	head := pkt.TransportHeader().Slice()
	if set == nil || len(head) < header.ICMPv4MinimumSize {
		return true
	}
	if proto == ipv4.ProtocolNumber && header.ICMPv4(head).Type() != header.ICMPv4Echo ||
		proto == ipv6.ProtocolNumber && header.ICMPv6(head).Type() != header.ICMPv6EchoRequest {
		return true
	}
	to := addrOf(id.LocalAddress)
	if !isGateway(to) {
		if set.fresh != nil && !set.fresh.Allow() {
			r.limited(set, "icmp", netip.AddrPortFrom(to, 0), "the sandbox sends more echo requests per second than its policy allows new connections")
			return true
		}
		if peer, _, _ := r.g.groups.peer(r, to); peer == nil {
			v := set.policy.Connect("icmp", netip.AddrPortFrom(to, 0), r.names.of(to))
			r.event(set, engi.NetworkEvent{Kind: engi.NetworkConnect, Allowed: v.Allowed, Protocol: "icmp",
				Address: netip.AddrPortFrom(to, 0), Rule: v.Rule, Reason: v.Reason})
			if !v.Allowed {
				return true
			}
		}
	}
	answerEcho(s.stack, proto, id, pkt)
	return true
}

func answerEcho(s *stack.Stack, proto tcpip.NetworkProtocolNumber, id stack.TransportEndpointID, pkt *stack.PacketBuffer) {
	route, err := s.FindRoute(nicID, id.LocalAddress, id.RemoteAddress, proto, false)
	if err != nil {
		return
	}
	defer route.Release()
	body := stack.PayloadSince(pkt.TransportHeader())
	defer body.Release()
	if body.Size() < header.ICMPv4MinimumSize {
		return
	}
	b := body.AsSlice()
	answer := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: int(route.MaxHeaderLength()) + header.ICMPv6MinimumSize})
	defer answer.DecRef()
	head := answer.TransportHeader().Push(header.ICMPv4MinimumSize)
	copy(head, b)
	data := append([]byte(nil), b[header.ICMPv4MinimumSize:]...)
	answer.Data().AppendView(bufferView(data))
	params := stack.NetworkHeaderParams{TTL: route.DefaultTTL(), TOS: stack.DefaultTOS}
	if proto == ipv4.ProtocolNumber {
		h := header.ICMPv4(head)
		h.SetType(header.ICMPv4EchoReply)
		h.SetChecksum(0)
		h.SetChecksum(header.ICMPv4Checksum(h, sumOf(data)))
		answer.TransportProtocolNumber, params.Protocol = header.ICMPv4ProtocolNumber, header.ICMPv4ProtocolNumber
	} else {
		h := header.ICMPv6(head)
		h.SetType(header.ICMPv6EchoReply)
		h.SetChecksum(0)
		h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: h, Src: route.LocalAddress(), Dst: route.RemoteAddress(),
			PayloadCsum: sumOf(data), PayloadLen: len(data)}))
		answer.TransportProtocolNumber, params.Protocol = header.ICMPv6ProtocolNumber, header.ICMPv6ProtocolNumber
	}
	_ = route.WritePacket(params, answer) // as lossy as any link
}
