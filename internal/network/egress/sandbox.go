package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/journal"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// A sandbox is the gateway's state of one sandbox: a link and, while a policy is
// in force, a TCP/IP stack that terminates the sandbox's connections.
type sandbox struct {
	g    *Gateway
	id   engi.SandboxID
	link Link
	log  *journal.Log

	bindings     bindings
	lookupBudget nameBudget
	total        atomic.Int64 // bytes in both directions
	group        *group       // guarded by g.groups.mu

	changeMu sync.Mutex            // held during the opening and shutting of the network
	detached bool                  // the network never opens again; guarded by changeMu
	rules    atomic.Pointer[rules] // rules in force; nil while the network is shut

	lastRules *rules // rules of the last policy, whose limiters the next policy inherits; guarded by changeMu

	mu    sync.Mutex
	stack *netstack          // nil while the network is shut; guarded by mu
	conns map[*conn]struct{} // guarded by mu
}

// rules holds a policy in force and its rate limiters.
type rules struct {
	owner  engi.Owner
	policy *policy.Policy
	limits engi.NetworkLimits
	// Rate limiters; nil means no limit.
	up, down, newConns, lookups *rate.Limiter
}

// A netstack is the gateway's end of a link while a policy is in force.
type netstack struct {
	stack   *stack.Stack
	filter  *packetFilter
	ctx     context.Context // ends when the network shuts
	stop    context.CancelFunc
	workers sync.WaitGroup // goroutines that serve connections
	closed  bool           // no more workers may start; guarded by mu of the sandbox
}

// A conn is an open connection or exchange of datagrams.
type conn struct {
	rules     *rules // rules that allowed the connection
	protocol  string
	address   netip.AddrPort
	names     []string // names for which the address was given out
	host      string   // host claimed by the client; empty if no claim was needed; guarded by mu of the sandbox
	check     policy.Check
	peer      bool // the connection leads to a sandbox of the group
	manyOpen  bool // many other connections were open at the start of this one
	up, down  atomic.Int64
	lastMoved atomic.Int64 // time of the last moved bytes, Unix time in nanoseconds

	mu       sync.Mutex
	aborted  bool     // guarded by mu
	onAborts []func() // guarded by mu
}

// abort breaks the connection at once. It may be called repeatedly.
func (c *conn) abort() {
	c.mu.Lock()
	fs := c.onAborts
	c.onAborts, c.aborted = nil, true
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// onAbort registers f for abort, or calls f at once if abort was
// called before.
func (c *conn) onAbort(f func()) {
	c.mu.Lock()
	if !c.aborted {
		c.onAborts = append(c.onAborts, f)
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

// keepLimiter returns the old limiter before if it has the same rate as now, so that
// a sandbox gets no new burst with each change of its policy.
func keepLimiter(before, now *rate.Limiter) *rate.Limiter {
	if before != nil && now != nil && before.Limit() == now.Limit() && before.Burst() == now.Burst() {
		return before
	}
	return now
}

// open puts a policy in force. If there was a policy before, the connections that p
// does not allow are closed.
func (s *sandbox) open(owner engi.Owner, p *policy.Policy) (engi.NetworkSetup, error) {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	if s.detached {
		return engi.NetworkSetup{}, engi.Errorf(engi.NotFound, "the sandbox is being detached")
	}
	l := s.g.limits(p.Source().Limits)
	set := &rules{owner: owner, policy: p, limits: l,
		up: limiter(l.Up, burstOf(l.Up)), down: limiter(l.Down, burstOf(l.Down)),
		newConns: limiter(int64(l.NewConnections), max(2*l.NewConnections, 1)), lookups: limiter(int64(l.Lookups), max(2*l.Lookups, 1))}
	if s.lastRules != nil {
		set.up, set.down = keepLimiter(s.lastRules.up, set.up), keepLimiter(s.lastRules.down, set.down)
		set.newConns, set.lookups = keepLimiter(s.lastRules.newConns, set.newConns), keepLimiter(s.lastRules.lookups, set.lookups)
	}
	source := p.Source()
	if _, err := s.g.groups.join(s, owner, source); err != nil {
		return engi.NetworkSetup{}, err
	}
	w := engi.NetworkSetup{}
	if s.g.interceptor != nil {
		var err error
		if w, err = s.g.interceptor.Open(s.id, owner, p); err != nil {
			return engi.NetworkSetup{}, err
		}
	}
	w.Resolver = Gateway4
	if source.Group != "" {
		w.Search = source.Group + "." + internal
	}
	before := s.rules.Swap(set)
	s.lastRules = set
	if before != nil {
		s.recheck(set)
		return w, nil
	}
	if err := s.startStack(); err != nil {
		s.rules.Store(nil)
		s.g.groups.leave(s)
		if s.g.interceptor != nil {
			s.g.interceptor.Shut(s.id)
		}
		return engi.NetworkSetup{}, err
	}
	s.g.metrics.sandboxes.Inc()
	return w, nil
}

// recheck aborts connections that a new policy does not allow.
func (s *sandbox) recheck(now *rules) {
	s.mu.Lock()
	var broken []*conn
	for c := range s.conns {
		if !s.stillAllowed(now, c) {
			broken = append(broken, c)
		}
	}
	s.mu.Unlock()
	for _, c := range broken {
		c.abort()
	}
}

// stillAllowed judges an open connection by a new policy. The caller holds s.mu.
func (s *sandbox) stillAllowed(now *rules, c *conn) bool {
	if c.rules.owner != now.owner {
		return false
	}
	if c.peer {
		to, _, _ := s.g.groups.peer(s, c.address.Addr())
		return to != nil
	}
	if isGateway(c.address.Addr()) {
		_, ok := now.policy.Packages(c.host)
		return ok || c.host == ""
	}
	if a, b := c.rules.policy.Proxy(), now.policy.Proxy(); (a == nil) != (b == nil) || a != nil && *a != *b {
		return false
	}
	v := now.policy.Connect(c.protocol, c.address, c.names)
	if !v.Allowed {
		return false
	}
	judged := func(n string) bool { return now.policy.Judges(n) && !c.rules.policy.Judges(n) }
	if c.protocol == "tcp" && (judged(c.host) || slices.ContainsFunc(c.names, judged)) {
		return false // the requests on the connection could not be judged
	}
	if v.Check == policy.CheckNone {
		return true
	}
	if c.host == "" {
		// The client did not have to claim a host, or has not claimed one yet.
		return c.check == v.Check && c.check == policy.CheckAny
	}
	return now.policy.Claim(c.host, c.address, c.names).Allowed
}

// startStack creates the TCP/IP stack. The caller holds s.changeMu.
func (s *sandbox) startStack() error {
	link, err := s.link.Endpoint()
	if err != nil {
		return err
	}
	n := &netstack{}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.filter = newPacketFilter(link, s.logDropped)
	if n.stack, err = newStack(n.filter); err != nil {
		n.stop()
		link.Close()
		link.Wait()
		return err
	}
	if err := s.serveDNS(n); err != nil {
		n.close()
		return err
	}
	s.mu.Lock()
	s.stack = n
	s.mu.Unlock()
	forward := tcp.NewForwarder(n.stack, 0, maxHandshakes, func(q *tcp.ForwarderRequest) { s.handleTCP(n, q) })
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, forward.HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return s.handleUDP(n, id, pkt)
	})
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return s.handleEcho(n, ipv4.ProtocolNumber, id, pkt)
	})
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return s.handleEcho(n, ipv6.ProtocolNumber, id, pkt)
	})
	n.filter.enable()
	return nil
}

// shut closes all connections, removes the stack and waits until both are
// gone.
func (s *sandbox) shut() {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	if s.rules.Swap(nil) == nil {
		return
	}
	s.g.groups.leave(s)
	if s.g.interceptor != nil {
		s.g.interceptor.Shut(s.id)
	}
	s.mu.Lock()
	n := s.stack
	s.stack = nil
	n.closed = true
	var all []*conn
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	n.stop()
	for _, c := range all {
		c.abort()
	}
	n.close()
	s.g.metrics.sandboxes.Dec()
}

// detach shuts the network so that it never opens again.
func (s *sandbox) detach() {
	s.changeMu.Lock()
	s.detached = true
	s.changeMu.Unlock()
	s.shut()
	s.log.Close()
}

// close removes the stack and waits for the end of all its connections.
func (n *netstack) close() {
	n.stop()
	n.filter.disable() // no more packets enter
	done := make(chan struct{})
	go func() { n.workers.Wait(); close(done) }()
	// Abort connections repeatedly, because handshakes that begin late would wait for the sandbox.
	for over := false; !over; {
		for _, e := range n.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			over = true
		case <-time.After(2 * time.Millisecond):
		}
	}
	n.stack.Close()
	for _, e := range n.stack.CleanupEndpoints() {
		e.Abort()
	}
	n.stack.RemoveNIC(nicID) // closes the link
	n.filter.Child().Wait()
	n.stack.Wait()
}

// addWorker counts a goroutine that serves a connection of n. It returns false if
// the network has shut.
func (s *sandbox) addWorker(n *netstack) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.closed {
		return false
	}
	n.workers.Add(1)
	return true
}

const usedUp = "the sandbox has used up the bytes that its policy lets it send and receive; raise limits.total of the policy, or use another sandbox"

// admit counts a connection, or returns the reason for which a limit forbids it.
func (s *sandbox) admit(set *rules, c *conn) (reason string) {
	if set.limits.Total > 0 && s.total.Load() >= set.limits.Total {
		return usedUp
	}
	if set.newConns != nil && !set.newConns.Allow() {
		return "the sandbox opens more connections per second than its policy allows; use connections again, or raise limits.new_connections of the policy"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if set.limits.Connections > 0 && len(s.conns) >= set.limits.Connections {
		return "the sandbox has as many connections open as its policy allows; close some, or raise limits.connections of the policy"
	}
	s.conns[c] = struct{}{}
	c.manyOpen = len(s.conns) > manyConns
	s.g.metrics.open.Inc()
	return ""
}

// release removes an admitted connection from the count.
func (s *sandbox) release(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.g.metrics.open.Dec()
}

// logClose logs the end of a connection.
func (s *sandbox) logClose(c *conn, host string) {
	s.logEvent(c.rules, engi.NetworkRecord{Kind: engi.NetworkClose, Allowed: true, Protocol: c.protocol, Host: host,
		Address: c.address, Up: c.up.Load(), Down: c.down.Load()})
}

// account waits for bandwidth and then counts n bytes. It returns an error if ctx
// ends or the total is used up.
func (s *sandbox) account(ctx context.Context, c *conn, n int, up bool) error {
	set := s.rules.Load()
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
	c.lastMoved.Store(time.Now().UnixNano())
	s.g.metrics.bytes.WithLabelValues(direction).Add(float64(n))
	if sum := s.total.Add(int64(n)); set.limits.Total > 0 && sum > set.limits.Total {
		s.logLimit(set, "", c.address, usedUp)
		return engi.Errorf(engi.Exhausted, "the total of bytes is used up")
	}
	return nil
}

func burstOf(perSecond int64) int { return int(min(max(perSecond/8, 64<<10), 4<<20)) }

// logEvent logs a decision.
func (s *sandbox) logEvent(set *rules, e engi.NetworkRecord) {
	e.Time, e.Sandbox, e.Owner = time.Now(), s.id, set.owner
	s.g.metrics.decided(e)
	s.log.Add(e)
}

func (s *sandbox) logLimit(set *rules, protocol string, ap netip.AddrPort, reason string) {
	s.logEvent(set, engi.NetworkRecord{Kind: engi.NetworkLimit, Protocol: protocol, Address: ap, Reason: reason})
}

// logDropped is called for packets that the filter drops.
func (s *sandbox) logDropped(reason string) {
	s.g.metrics.dropped.Inc()
	if set := s.rules.Load(); set != nil {
		s.logLimit(set, "", netip.AddrPort{}, reason+" was dropped")
	}
}

// isGateway reports whether an address is the gateway's address on the link.
func isGateway(a netip.Addr) bool { return a == Gateway4 || a == Gateway6 }

// handleEcho answers echo requests for allowed addresses. No echo request
// leaves the host. It is called by the reader of packets and does not block.
func (s *sandbox) handleEcho(n *netstack, proto tcpip.NetworkProtocolNumber, id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	set := s.rules.Load()
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
		if set.newConns != nil && !set.newConns.Allow() {
			s.logLimit(set, "icmp", netip.AddrPortFrom(to, 0), "the sandbox sends more echo requests per second than its policy allows new connections; send fewer, or raise limits.new_connections of the policy")
			return true
		}
		if peer, _, _ := s.g.groups.peer(s, to); peer == nil {
			v := set.policy.Connect("icmp", netip.AddrPortFrom(to, 0), s.bindings.names(to))
			s.logEvent(set, engi.NetworkRecord{Kind: engi.NetworkConnect, Allowed: v.Allowed, Protocol: "icmp",
				Address: netip.AddrPortFrom(to, 0), Rule: v.Rule, Reason: v.Reason})
			if !v.Allowed {
				return true
			}
		}
	}
	answerEcho(n.stack, proto, id, pkt)
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
	_ = route.WritePacket(params, answer) // links may lose packets
}
