package egress

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// handleTCP serves a connection that the sandbox opens. The handshake completes
// only after the gateway has reached the destination.
func (s *sandbox) handleTCP(n *netstack, q *tcp.ForwarderRequest) {
	if !s.addWorker(n) {
		q.Complete(false)
		return
	}
	defer n.workers.Done()
	set := s.rules.Load()
	if set == nil {
		q.Complete(false)
		return
	}
	id := q.ID()
	to := netip.AddrPortFrom(addrOf(id.LocalAddress), id.LocalPort)
	c := &conn{rules: set, protocol: "tcp", address: to}
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	c.onAbort(cancel)
	if reason := s.admit(set, c); reason != "" {
		q.Complete(true)
		s.logLimit(set, "tcp", to, reason)
		return
	}
	defer s.release(c)
	switch {
	case isGateway(to.Addr()) && to.Port() == 53:
		if in := s.accept(q, c); in != nil {
			defer in.abort()
			s.serveDNSConn(ctx, set, in)
		}
	case to.Addr() == Gateway4 && set.policy.HasPackages() && (to.Port() == 80 || to.Port() == 443):
		s.handlePackages(ctx, q, c)
	case isGateway(to.Addr()):
		q.Complete(true)
		s.logEvent(set, engi.NetworkRecord{Kind: engi.NetworkConnect, Protocol: "tcp", Address: to, Reason: "the gateway serves nothing but DNS"})
	case Peers.Contains(to.Addr()):
		s.handlePeer(ctx, q, c)
	default:
		s.handleOutbound(ctx, q, c)
	}
}

// A sandboxConn is the sandbox's end of a connection.
type sandboxConn struct {
	*gonet.TCPConn
	ep     *tcp.Endpoint
	wq     *waiter.Queue
	closed bool // used only by the goroutine that serves the connection
}

// abort resets the connection unless it is already closed.
func (in *sandboxConn) abort() {
	if !in.closed {
		in.closed = true
		in.ep.Abort()
		in.TCPConn.Close()
	}
}

// accept completes the sandbox's handshake. It returns nil if the sandbox does not
// continue the handshake. Afterwards, c.abort resets the connection.
func (s *sandbox) accept(q *tcp.ForwarderRequest, c *conn) *sandboxConn {
	in := &sandboxConn{wq: new(waiter.Queue)}
	c.onAbort(func() { in.wq.Notify(waiter.WritableEvents) }) // ends the wait for the handshake
	ep, err := q.CreateEndpoint(in.wq)
	q.Complete(false)
	if err != nil {
		return nil
	}
	in.ep = ep.(*tcp.Endpoint)
	o := in.ep.SocketOptions()
	o.SetKeepAlive(true)
	if c.manyOpen {
		o.SetReceiveBufferSize(bufferMany, true)
		o.SetSendBufferSize(bufferMany, true)
	}
	o.SetDelayOption(false)
	for _, opt := range []tcpip.SettableSocketOption{
		new(tcpip.KeepaliveIdleOption(keepAlive.Idle)), new(tcpip.KeepaliveIntervalOption(keepAlive.Interval)),
	} {
		_ = in.ep.SetSockOpt(opt) // if this fails, the idle timeout still applies
	}
	_ = in.ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepAlive.Count)
	in.TCPConn = gonet.NewTCPConn(in.wq, in.ep)
	c.onAbort(in.ep.Abort)
	return in
}

// handlePeer connects to another sandbox of the group.
func (s *sandbox) handlePeer(ctx context.Context, q *tcp.ForwarderRequest, c *conn) {
	e := engi.NetworkRecord{Kind: engi.NetworkConnect, Protocol: "tcp", Address: c.address}
	peer, name, from := s.g.groups.peer(s, c.address.Addr())
	if peer == nil {
		q.Complete(true)
		e.Reason = "no sandbox of the group has this address"
		s.logEvent(c.rules, e)
		return
	}
	c.peer = true
	e.Host, e.Allowed, e.Rule = name, true, "group"
	dialing, cancel := context.WithTimeout(ctx, s.g.o.DialTimeout)
	out, err := peer.dialTCP(dialing, from, c.address.Port())
	cancel()
	if err != nil {
		q.Complete(true)
		e.Reason = err.Error()
		s.logEvent(c.rules, e)
		return
	}
	s.logEvent(c.rules, e)
	defer out.Close()
	in := s.accept(q, c)
	if in == nil {
		return
	}
	s.splice(ctx, c, in, out, nil)
	s.logClose(c, name)
}

// dialTCP connects to a port of the sandbox itself, on behalf of a peer.
func (s *sandbox) dialTCP(ctx context.Context, from netip.Addr, port uint16) (net.Conn, error) {
	s.mu.Lock()
	n := s.stack
	if n != nil {
		n.workers.Add(1)
	}
	s.mu.Unlock()
	if n == nil {
		return nil, engi.Errorf(engi.Unavailable, "the network of %s is shut", s.id)
	}
	defer n.workers.Done()
	local, _ := fullAddr(netip.AddrPortFrom(from, 0))
	remote, proto := fullAddr(netip.AddrPortFrom(Sandbox4, port))
	c, err := gonet.DialTCPWithBind(ctx, n.stack, local, remote, proto)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "the sandbox does not answer there: %v", err)
	}
	return c, nil
}

// handleOutbound connects to an address outside the group.
func (s *sandbox) handleOutbound(ctx context.Context, q *tcp.ForwarderRequest, c *conn) {
	set := c.rules
	c.names = s.bindings.names(c.address.Addr())
	v := set.policy.Connect("tcp", c.address, c.names)
	c.check = v.Check
	e := engi.NetworkRecord{Kind: engi.NetworkConnect, Allowed: v.Allowed, Protocol: "tcp", Address: c.address, Rule: v.Rule, Reason: v.Reason}
	if len(c.names) == 1 {
		e.Host = c.names[0]
	}
	if !v.Allowed {
		q.Complete(true)
		s.logEvent(set, e)
		return
	}
	out, err := s.g.connect(ctx, set.policy, c.address)
	if err != nil {
		// A refusal is passed on as a reset, a timeout as a timeout.
		q.Complete(shouldReset(err))
		e.Reason = dialReason(err)
		e.Allowed = !isRefusal(err)
		s.logEvent(set, e)
		return
	}
	s.logEvent(set, e)
	defer out.Close()
	in := s.accept(q, c)
	if in == nil {
		return
	}
	defer in.abort()
	stop := context.AfterFunc(ctx, in.ep.Abort)
	defer stop()
	s.mu.Lock()
	stands := s.rules.Load() == set || s.rules.Load() != nil && s.stillAllowed(s.rules.Load(), c)
	s.mu.Unlock()
	if !stands {
		return // the policy changed meanwhile
	}
	if v.Check == policy.CheckNone {
		s.splice(ctx, c, in, out, nil)
		s.logClose(c, e.Host)
		return
	}
	s.serveClaimed(ctx, c, in, out)
}

// A claim holds the first bytes of a connection and the host named in them.
type claim struct {
	protocol policy.Protocol
	host     string
	verdict  policy.Verdict
	bytes    []byte // bytes read so far; passed on if the verdict allows the claim
}

// serveClaimed serves a connection whose client must first claim a host that the
// policy allows.
func (s *sandbox) serveClaimed(ctx context.Context, c *conn, in *sandboxConn, out net.Conn) {
	var first *claim
	var err error
	if c.check == policy.CheckAny {
		// The server may speak first, and protocols other than TLS and HTTP pass.
		var spoke bool
		if first, spoke, err = s.readClaimWhileForwarding(ctx, c, in, out); err == nil && first != nil && spoke && first.protocol != policy.Other {
			first.verdict = policy.Verdict{Reason: "the server spoke before the client named its host"}
		}
	} else {
		in.SetReadDeadline(time.Now().Add(s.g.o.ClaimTimeout))
		first, err = s.readClaim(c, in)
		in.SetReadDeadline(time.Time{})
	}
	if err != nil || first == nil {
		return
	}
	if first.protocol == policy.Other && first.verdict.Allowed {
		s.splice(ctx, c, in, out, first.bytes)
		s.logClose(c, firstOf(c.names))
		return
	}
	s.logEvent(c.rules, engi.NetworkRecord{Kind: engi.NetworkClaim, Allowed: first.verdict.Allowed, Protocol: "tcp", Host: first.host,
		Address: c.address, Rule: first.verdict.Rule, Reason: first.verdict.Reason})
	if !first.verdict.Allowed {
		return // the deferred abort resets the connection
	}
	s.mu.Lock()
	c.host = first.host
	s.mu.Unlock()
	defer func() { s.logClose(c, first.host) }()
	switch secure := first.protocol == policy.TLS; {
	case s.g.interceptor != nil && s.g.interceptor.Intercepts(s.id, first.host, c.address.Port(), secure):
		out.Close() // the interceptor judges and dials for each request
		metered := &meteredConn{Conn: &prefixedConn{Conn: in, prefix: first.bytes}, sandbox: s, conn: c, ctx: ctx}
		err := s.g.interceptor.Serve(ctx, metered, intercept.Target{Sandbox: s.id, Host: first.host, Port: c.address.Port(), TLS: secure, Address: c.address})
		if err != nil {
			s.g.log.Debug("an intercepted connection ended", "sandbox", s.id, "host", first.host, "error", err)
		}
	case first.protocol == policy.HTTP:
		s.serveHTTP(ctx, c, &prefixedConn{Conn: in, prefix: first.bytes}, out)
	default:
		s.splice(ctx, c, in, out, first.bytes)
	}
}

func firstOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return ""
}

// readClaim reads until the host claimed by the client is known. It returns an
// error if the connection ends earlier.
func (s *sandbox) readClaim(c *conn, in net.Conn) (*claim, error) {
	buf := make([]byte, 0, 2<<10)
	need := 1
	for {
		for len(buf) < need {
			if cap(buf)-len(buf) < 512 {
				buf = append(make([]byte, 0, 2*cap(buf)), buf...)
			}
			n, err := in.Read(buf[len(buf):cap(buf)])
			buf = buf[:len(buf)+n]
			if err != nil && len(buf) < need {
				if len(buf) == 0 && c.check == policy.CheckAny {
					return nil, err
				}
				s.logEvent(c.rules, engi.NetworkRecord{Kind: engi.NetworkClaim, Protocol: "tcp", Host: firstOf(c.names), Address: c.address,
					Reason: "the connection ended or timed out before the client named its host"})
				return nil, err
			}
		}
		got := &claim{protocol: policy.Sniff(buf), bytes: buf}
		switch got.protocol {
		case policy.Undecided:
			need = len(buf) + 1
			continue
		case policy.TLS:
			hello, more, err := policy.ClientHello(buf)
			if err == nil && more > len(buf) && more <= policy.MaxHello {
				need = more
				continue
			}
			if err != nil || more > len(buf) {
				got.verdict = unreadable("ClientHello", err)
				return got, nil
			}
			got.host, got.verdict = hello.ServerName, c.rules.policy.ClaimTLS(hello, c.address, c.names)
		case policy.HTTP:
			head, more, err := policy.HTTPHost(buf)
			if err == nil && more > len(buf) && more <= policy.MaxHead {
				need = more
				continue
			}
			if err != nil || more > len(buf) {
				got.verdict = unreadable("HTTP request", err)
				return got, nil
			}
			got.host, got.verdict = head.Host, c.rules.policy.ClaimHTTP(head, c.address, c.names)
		default:
			got.verdict.Allowed = c.check == policy.CheckAny
			if !got.verdict.Allowed {
				got.verdict.Reason = "the client speaks neither TLS nor HTTP and so names no host"
			}
		}
		return got, nil
	}
}

func unreadable(what string, err error) policy.Verdict {
	if err == nil {
		return policy.Verdict{Reason: "the " + what + " is too long"}
	}
	return policy.Verdict{Reason: "bad " + what + ": " + err.Error()}
}

// readClaimWhileForwarding does the same as readClaim for a connection on which the server may
// speak first. spoke reports whether it did.
func (s *sandbox) readClaimWhileForwarding(ctx context.Context, c *conn, in *sandboxConn, out net.Conn) (got *claim, spoke bool, err error) {
	done := make(chan error, 1)
	before := c.down.Load()
	var paused atomic.Bool
	go func() { done <- s.copyDown(ctx, c, in, out, paused.Load) }()
	idle := s.watchIdle(c, s.g.o.IdleTimeout, c.abort)
	defer idle()
	got, err = s.readClaim(c, in)
	paused.Store(true)
	out.SetReadDeadline(time.Unix(1, 0))
	<-done
	out.SetReadDeadline(time.Time{})
	return got, c.down.Load() != before, err
}

func isRefusal(err error) bool {
	return err != nil && (engi.Is(err, engi.Denied) || func() bool { _, ok := err.(refusal); return ok }())
}
