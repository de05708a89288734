package egress

import (
	"context"
	"io"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// discardLog discards the logs of servers whose errors concern traffic from sandboxes.
var discardLog = log.New(io.Discard, "", 0)

// handleUDP judges the first datagram of an exchange. It is called by the reader of packets
// and does not block. If it returns false, the stack answers that the
// port is closed.
func (s *sandbox) handleUDP(n *netstack, id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	set := s.rules.Load()
	if set == nil {
		return true
	}
	to := netip.AddrPortFrom(addrOf(id.LocalAddress), id.LocalPort)
	c := &conn{rules: set, protocol: "udp", address: to}
	e := engi.NetworkRecord{Kind: engi.NetworkConnect, Protocol: "udp", Address: to}
	var peer *sandbox
	var from netip.Addr
	switch {
	case isGateway(to.Addr()): // DNS is served on a separate socket
		e.Reason = "the gateway serves nothing but DNS"
	case Peers.Contains(to.Addr()):
		c.peer = true
		if peer, e.Host, from = s.g.groups.peer(s, to.Addr()); peer == nil {
			e.Reason = "no sandbox of the group has this address"
		} else {
			e.Allowed, e.Rule = true, "group"
		}
	case set.policy.Proxy() != nil:
		e.Reason = "datagrams cannot go through the upstream proxy"
	default:
		c.names = s.bindings.names(to.Addr())
		v := set.policy.Connect("udp", to, c.names)
		e.Allowed, e.Rule, e.Reason, e.Host = v.Allowed, v.Rule, v.Reason, firstOf(c.names)
		if v.Allowed && v.Check != policy.CheckNone && v.Check != policy.CheckAny {
			e.Allowed, e.Reason = false, "datagrams name no host that could be checked"
		}
	}
	if !e.Allowed {
		s.logEvent(set, e)
		return false
	}
	if !s.addWorker(n) {
		return true
	}
	if reason := s.admit(set, c); reason != "" {
		n.workers.Done()
		s.logLimit(set, "udp", to, reason)
		return true
	}
	s.logEvent(set, e)
	wq := new(waiter.Queue)
	clone := pkt.Clone()
	defer clone.DecRef()
	ep, err := udp.NewForwarderRequest(n.stack, id, clone).CreateEndpoint(wq)
	if err != nil {
		s.release(c)
		n.workers.Done()
		return true
	}
	ep.SocketOptions().SetReceiveBufferSize(256<<10, false)
	in := gonet.NewUDPConn(wq, ep)
	go func() {
		defer n.workers.Done()
		defer s.release(c)
		defer in.Close()
		ctx, cancel := context.WithCancel(n.ctx)
		defer cancel()
		c.onAbort(cancel)
		var out net.Conn
		var err error
		if peer != nil {
			out, err = peer.dialUDP(from, to.Port())
		} else {
			out, err = s.g.dial(ctx, "udp", to)
		}
		if err != nil {
			e.Allowed, e.Reason = false, dialReason(err)
			s.logEvent(set, e)
			return
		}
		defer out.Close()
		s.relay(ctx, c, in, ep, wq, out)
		s.logClose(c, e.Host)
	}()
	return true
}

// dialUDP opens an exchange with the sandbox itself, on behalf of a peer.
func (s *sandbox) dialUDP(from netip.Addr, port uint16) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stack == nil {
		return nil, engi.Errorf(engi.Unavailable, "the network of %s is shut", s.id)
	}
	local, _ := fullAddr(netip.AddrPortFrom(from, 0))
	remote, proto := fullAddr(netip.AddrPortFrom(Sandbox4, port))
	c, err := gonet.DialUDP(s.stack.stack, &local, &remote, proto)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "the sandbox does not answer there: %v", err)
	}
	return c, nil
}

// relay copies datagrams in both directions until none has passed for a while.
func (s *sandbox) relay(ctx context.Context, c *conn, in *gonet.UDPConn, ep tcpip.Endpoint, wq *waiter.Queue, out net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := func() {
		in.SetDeadline(time.Unix(1, 0))
		out.SetDeadline(time.Unix(1, 0))
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	defer s.watchIdle(c, s.g.o.DatagramTimeout, cancel)()
	var pump sync.WaitGroup
	pump.Go(func() {
		defer cancel()
		entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
		wq.EventRegister(&entry)
		defer wq.EventUnregister(&entry)
		for s.relayUp(ctx, c, ep, ready, out) {
		}
	})
	next := bufReader(out)
	for {
		buf, n, err := next()
		if err != nil && n <= 0 {
			break
		}
		err = s.account(ctx, c, n, false)
		if err == nil {
			_, err = in.Write(buf[:n])
		}
		bufPool.Put(buf)
		if err != nil && ctx.Err() != nil {
			break
		}
	}
	cancel()
	pump.Wait()
}

// relayUp sends one datagram of the sandbox if there is one; otherwise it waits. It
// returns false when no more can arrive.
func (s *sandbox) relayUp(ctx context.Context, c *conn, ep tcpip.Endpoint, ready <-chan struct{}, out net.Conn) bool {
	if ep.Readiness(waiter.ReadableEvents) == 0 {
		select {
		case <-ready:
			return true
		case <-ctx.Done():
			return false
		}
	}
	buf := bufPool.Get().(*[bufSize]byte)
	defer bufPool.Put(buf)
	w := tcpip.SliceWriter(buf[:])
	res, terr := ep.Read(&w, tcpip.ReadOptions{})
	if _, ok := terr.(*tcpip.ErrWouldBlock); ok {
		return true
	}
	if terr != nil {
		return false
	}
	if err := s.account(ctx, c, res.Count, true); err != nil {
		return false
	}
	out.Write(buf[:res.Count]) // networks may lose datagrams
	return ctx.Err() == nil
}
