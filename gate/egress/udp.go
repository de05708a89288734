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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// quiet is for servers whose complaints are about what sandboxes send.
var quiet = log.New(io.Discard, "", 0)

// handleUDP judges the first datagram of an exchange. It runs where packets
// are read and does not wait. False has the sandbox told that nobody listens.
func (r *sandbox) handleUDP(s *side, id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	set := r.rules.Load()
	if set == nil {
		return true
	}
	to := netip.AddrPortFrom(addrOf(id.LocalAddress), id.LocalPort)
	c := &conn{rules: set, protocol: "udp", address: to}
	e := engi.NetworkEvent{Kind: engi.NetworkConnect, Protocol: "udp", Address: to}
	var peer *sandbox
	var from netip.Addr
	switch {
	case isGateway(to.Addr()): // DNS has a socket of its own
		e.Reason = "the gateway serves nothing but DNS"
	case Peers.Contains(to.Addr()):
		c.peer = true
		if peer, e.Host, from = r.g.groups.peer(r, to.Addr()); peer == nil {
			e.Reason = "no sandbox of the group has this address"
		} else {
			e.Allowed, e.Rule = true, "group"
		}
	case set.policy.Proxy() != nil:
		e.Reason = "datagrams cannot go through the upstream proxy"
	default:
		c.names = r.names.of(to.Addr())
		v := set.policy.Connect("udp", to, c.names)
		e.Allowed, e.Rule, e.Reason, e.Host = v.Allowed, v.Rule, v.Reason, firstOf(c.names)
		if v.Allowed && v.Check != policy.CheckNone && v.Check != policy.CheckAny {
			e.Allowed, e.Reason = false, "datagrams name no host that could be checked"
		}
	}
	if !e.Allowed {
		r.event(set, e)
		return false
	}
	if !r.begin(s) {
		return true
	}
	if reason := r.admit(set, c); reason != "" {
		s.work.Done()
		r.limited(set, "udp", to, reason)
		return true
	}
	r.event(set, e)
	wq := new(waiter.Queue)
	clone := pkt.Clone()
	defer clone.DecRef()
	ep, err := udp.NewForwarderRequest(s.stack, id, clone).CreateEndpoint(wq)
	if err != nil {
		r.leave(c)
		s.work.Done()
		return true
	}
	ep.SocketOptions().SetReceiveBufferSize(256<<10, false)
	in := gonet.NewUDPConn(wq, ep)
	go func() {
		defer s.work.Done()
		defer r.leave(c)
		defer in.Close()
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		c.onAbort(cancel)
		var out net.Conn
		var err error
		if peer != nil {
			out, err = peer.enterUDP(from, to.Port())
		} else {
			out, err = r.g.dial(ctx, "udp", to)
		}
		if err != nil {
			e.Allowed, e.Reason = false, dialReason(err)
			r.event(set, e)
			return
		}
		defer out.Close()
		r.exchange(ctx, c, in, ep, wq, out)
		r.ended(c, e.Host)
	}()
	return true
}

// enterUDP opens an exchange with the room's own sandbox, for a peer.
func (r *sandbox) enterUDP(from netip.Addr, port uint16) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.side == nil {
		return nil, engi.Errorf(engi.Unavailable, "the network of %s is shut", r.id)
	}
	local, _ := fullAddr(netip.AddrPortFrom(from, 0))
	remote, proto := fullAddr(netip.AddrPortFrom(Inside4, port))
	c, err := gonet.DialUDP(r.side.stack, &local, &remote, proto)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "the sandbox does not answer there: %v", err)
	}
	return c, nil
}

// exchange copies datagrams both ways until there are none for a while.
func (r *sandbox) exchange(ctx context.Context, c *conn, in *gonet.UDPConn, ep tcpip.Endpoint, wq *waiter.Queue, out net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := func() {
		in.SetDeadline(time.Unix(1, 0))
		out.SetDeadline(time.Unix(1, 0))
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	defer r.watch(c, r.g.o.Flow, cancel)()
	var pump sync.WaitGroup
	pump.Go(func() {
		defer cancel()
		entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
		wq.EventRegister(&entry)
		defer wq.EventUnregister(&entry)
		for r.datagramUp(ctx, c, ep, ready, out) {
		}
	})
	next := reader(out)
	for {
		piece, n, err := next()
		if err != nil && n <= 0 {
			break
		}
		err = r.moved(ctx, c, n, false)
		if err == nil {
			_, err = in.Write(piece[:n])
		}
		pieces.Put(piece)
		if err != nil && ctx.Err() != nil {
			break
		}
	}
	cancel()
	pump.Wait()
}

// datagramUp carries one datagram out of the sandbox, if there is one, and
// else waits. It reports whether there may be more.
func (r *sandbox) datagramUp(ctx context.Context, c *conn, ep tcpip.Endpoint, ready <-chan struct{}, out net.Conn) bool {
	if ep.Readiness(waiter.ReadableEvents) == 0 {
		select {
		case <-ready:
			return true
		case <-ctx.Done():
			return false
		}
	}
	piece := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(piece)
	w := tcpip.SliceWriter(piece[:])
	res, terr := ep.Read(&w, tcpip.ReadOptions{})
	if _, ok := terr.(*tcpip.ErrWouldBlock); ok {
		return true
	}
	if terr != nil {
		return false
	}
	if err := r.moved(ctx, c, res.Count, true); err != nil {
		return false
	}
	out.Write(piece[:res.Count]) // what is lost is lost, as on any network
	return ctx.Err() == nil
}
