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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/intercept"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// handleTCP serves a connection that the sandbox wants to make. The sandbox
// hears that it is made when it is made outside.
func (r *sandbox) handleTCP(s *side, q *tcp.ForwarderRequest) {
	if !r.begin(s) {
		q.Complete(false)
		return
	}
	defer s.work.Done()
	set := r.rules.Load()
	if set == nil {
		q.Complete(false)
		return
	}
	id := q.ID()
	to := netip.AddrPortFrom(addrOf(id.LocalAddress), id.LocalPort)
	c := &conn{rules: set, protocol: "tcp", address: to}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	c.onAbort(cancel)
	if reason := r.admit(set, c); reason != "" {
		q.Complete(true)
		r.limited(set, "tcp", to, reason)
		return
	}
	defer r.leave(c)
	switch {
	case isGateway(to.Addr()) && to.Port() == 53:
		if in := r.accept(q, c); in != nil {
			defer in.abort()
			r.serveDNSOver(ctx, set, in)
		}
	case isGateway(to.Addr()):
		q.Complete(true)
		r.event(set, engi.NetworkEvent{Kind: engi.NetworkConnect, Protocol: "tcp", Address: to, Reason: "the gateway serves nothing but DNS"})
	case Peers.Contains(to.Addr()):
		r.handlePeer(ctx, q, c)
	default:
		r.handleOut(ctx, q, c)
	}
}

// An inside is the sandbox's end of a connection.
type inside struct {
	*gonet.TCPConn
	ep   *tcp.Endpoint
	wq   *waiter.Queue
	done bool // closed; only who serves it looks
}

// abort ends it with a reset, if it is not closed yet.
func (in *inside) abort() {
	if !in.done {
		in.done = true
		in.ep.Abort()
		in.TCPConn.Close()
	}
}

// accept answers the sandbox's SYN. It returns nil if the sandbox does not go
// on with it. From then on c.abort breaks the connection.
func (r *sandbox) accept(q *tcp.ForwarderRequest, c *conn) *inside {
	in := &inside{wq: new(waiter.Queue)}
	c.onAbort(func() { in.wq.Notify(waiter.WritableEvents) }) // ends the wait for the handshake
	ep, err := q.CreateEndpoint(in.wq)
	q.Complete(false)
	if err != nil {
		return nil
	}
	in.ep = ep.(*tcp.Endpoint)
	o := in.ep.SocketOptions()
	o.SetKeepAlive(true)
	if c.many {
		o.SetReceiveBufferSize(bufferMany, true)
		o.SetSendBufferSize(bufferMany, true)
	}
	o.SetDelayOption(false)
	for _, opt := range []tcpip.SettableSocketOption{
		new(tcpip.KeepaliveIdleOption(keepAlive.Idle)), new(tcpip.KeepaliveIntervalOption(keepAlive.Interval)),
	} {
		_ = in.ep.SetSockOpt(opt) // a silent sandbox is noticed by idleness at the latest
	}
	_ = in.ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepAlive.Count)
	in.TCPConn = gonet.NewTCPConn(in.wq, in.ep)
	c.onAbort(in.ep.Abort)
	return in
}

// handlePeer connects to another sandbox of the group.
func (r *sandbox) handlePeer(ctx context.Context, q *tcp.ForwarderRequest, c *conn) {
	e := engi.NetworkEvent{Kind: engi.NetworkConnect, Protocol: "tcp", Address: c.address}
	peer, name, from := r.g.groups.peer(r, c.address.Addr())
	if peer == nil {
		q.Complete(true)
		e.Reason = "no sandbox of the group has this address"
		r.event(c.rules, e)
		return
	}
	c.peer = true
	e.Host, e.Allowed, e.Rule = name, true, "group"
	dialing, cancel := context.WithTimeout(ctx, r.g.o.Dial)
	out, err := peer.enter(dialing, from, c.address.Port())
	cancel()
	if err != nil {
		q.Complete(true)
		e.Reason = err.Error()
		r.event(c.rules, e)
		return
	}
	r.event(c.rules, e)
	defer out.Close()
	in := r.accept(q, c)
	if in == nil {
		return
	}
	r.splice(ctx, c, in, out, nil)
	r.ended(c, name)
}

// enter connects to a port of the room's own sandbox, for a peer.
func (r *sandbox) enter(ctx context.Context, from netip.Addr, port uint16) (net.Conn, error) {
	r.mu.Lock()
	s := r.side
	if s != nil {
		s.work.Add(1)
	}
	r.mu.Unlock()
	if s == nil {
		return nil, engi.Errorf(engi.Unavailable, "the network of %s is shut", r.id)
	}
	defer s.work.Done()
	local, _ := fullAddr(netip.AddrPortFrom(from, 0))
	remote, proto := fullAddr(netip.AddrPortFrom(Inside4, port))
	c, err := gonet.DialTCPWithBind(ctx, s.stack, local, remote, proto)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "the sandbox does not answer there: %v", err)
	}
	return c, nil
}

// handleOut connects to an address outside.
func (r *sandbox) handleOut(ctx context.Context, q *tcp.ForwarderRequest, c *conn) {
	set := c.rules
	c.names = r.names.of(c.address.Addr())
	v := set.policy.Connect("tcp", c.address, c.names)
	c.check = v.Check
	e := engi.NetworkEvent{Kind: engi.NetworkConnect, Allowed: v.Allowed, Protocol: "tcp", Address: c.address, Rule: v.Rule, Reason: v.Reason}
	if len(c.names) == 1 {
		e.Host = c.names[0]
	}
	if !v.Allowed {
		q.Complete(true)
		r.event(set, e)
		return
	}
	out, err := r.g.out(ctx, set.policy, c.address)
	if err != nil {
		// A host that says no is there, and one that is silent stays silent.
		q.Complete(reset(err))
		e.Reason = dialReason(err)
		e.Allowed = !isRefusal(err)
		r.event(set, e)
		return
	}
	r.event(set, e)
	defer out.Close()
	in := r.accept(q, c)
	if in == nil {
		return
	}
	defer in.abort()
	stop := context.AfterFunc(ctx, in.ep.Abort)
	defer stop()
	r.mu.Lock()
	stands := r.rules.Load() == set || r.rules.Load() != nil && r.stands(r.rules.Load(), c)
	r.mu.Unlock()
	if !stands {
		return // the policy changed while we dialed
	}
	if v.Check == policy.CheckNone {
		r.splice(ctx, c, in, out, nil)
		r.ended(c, e.Host)
		return
	}
	r.serveClaimed(ctx, c, in, out)
}

// claim is what the first bytes of a connection said.
type claim struct {
	protocol policy.Protocol
	host     string
	verdict  policy.Verdict
	bytes    []byte // read so far; they go on if the verdict is good
}

// serveClaimed lets a connection go on when the client has claimed a host that
// fits.
func (r *sandbox) serveClaimed(ctx context.Context, c *conn, in *inside, out net.Conn) {
	var first *claim
	var err error
	if c.check == policy.CheckAny {
		// The server may speak first. What is neither TLS nor HTTP passes.
		var spoke bool
		if first, spoke, err = r.claimWhileServed(ctx, c, in, out); err == nil && first != nil && spoke && first.protocol != policy.Other {
			first.verdict = policy.Verdict{Reason: "the server spoke before the client named its host"}
		}
	} else {
		in.SetReadDeadline(time.Now().Add(r.g.o.Claim))
		first, err = r.claim(c, in)
		in.SetReadDeadline(time.Time{})
	}
	if err != nil || first == nil {
		return
	}
	if first.protocol == policy.Other && first.verdict.Allowed {
		r.splice(ctx, c, in, out, first.bytes)
		r.ended(c, firstOf(c.names))
		return
	}
	r.event(c.rules, engi.NetworkEvent{Kind: engi.NetworkClaim, Allowed: first.verdict.Allowed, Protocol: "tcp", Host: first.host,
		Address: c.address, Rule: first.verdict.Rule, Reason: first.verdict.Reason})
	if !first.verdict.Allowed {
		return // the deferred abort resets
	}
	r.mu.Lock()
	c.host = first.host
	r.mu.Unlock()
	defer func() { r.ended(c, first.host) }()
	switch secure := first.protocol == policy.TLS; {
	case r.g.over != nil && r.g.over.Intercepts(r.id, first.host, c.address.Port(), secure):
		out.Close() // each request is judged, and dialed for, by itself
		served := &counted{Conn: &prefixed{Conn: in, early: first.bytes}, room: r, conn: c, ctx: ctx}
		err := r.g.over.Serve(ctx, served, intercept.Target{Sandbox: r.id, Host: first.host, Port: c.address.Port(), TLS: secure, Address: c.address})
		if err != nil {
			r.g.log.Debug("an intercepted connection ended", "sandbox", r.id, "host", first.host, "error", err)
		}
	case first.protocol == policy.HTTP:
		r.serveHTTP(ctx, c, &prefixed{Conn: in, early: first.bytes}, out)
	default:
		r.splice(ctx, c, in, out, first.bytes)
	}
}

func firstOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return ""
}

// claim reads until it is clear which host the client wants. It returns nil if
// there is nothing to judge: the client has said nothing.
func (r *sandbox) claim(c *conn, in net.Conn) (*claim, error) {
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
				r.event(c.rules, engi.NetworkEvent{Kind: engi.NetworkClaim, Protocol: "tcp", Host: firstOf(c.names), Address: c.address,
					Reason: "the client ended, or fell silent, before it named its host"})
				return nil, err
			}
		}
		k := &claim{protocol: policy.Sniff(buf), bytes: buf}
		switch k.protocol {
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
				k.verdict = unreadable("ClientHello", err)
				return k, nil
			}
			k.host, k.verdict = hello.ServerName, c.rules.policy.ClaimTLS(hello, c.address, c.names)
		case policy.HTTP:
			head, more, err := policy.HTTPHost(buf)
			if err == nil && more > len(buf) && more <= policy.MaxHead {
				need = more
				continue
			}
			if err != nil || more > len(buf) {
				k.verdict = unreadable("HTTP request", err)
				return k, nil
			}
			k.host, k.verdict = head.Host, c.rules.policy.ClaimHTTP(head, c.address, c.names)
		default:
			k.verdict.Allowed = c.check == policy.CheckAny
			if !k.verdict.Allowed {
				k.verdict.Reason = "the client speaks neither TLS nor HTTP, and so names no host"
			}
		}
		return k, nil
	}
}

func unreadable(what string, err error) policy.Verdict {
	if err == nil {
		return policy.Verdict{Reason: "the " + what + " is too long"}
	}
	return policy.Verdict{Reason: "bad " + what + ": " + err.Error()}
}

// claimWhileServed is claim for a connection on which the server may speak
// first. Spoke says whether it did. A nil claim means that the connection has
// ended.
func (r *sandbox) claimWhileServed(ctx context.Context, c *conn, in *inside, out net.Conn) (k *claim, spoke bool, err error) {
	done := make(chan error, 1)
	before := c.down.Load()
	var hushed atomic.Bool
	go func() { done <- r.pumpDown(ctx, c, in, out, hushed.Load) }()
	idle := r.watch(c, r.g.o.Idle, c.abort)
	defer idle()
	k, err = r.claim(c, in)
	hushed.Store(true)
	out.SetReadDeadline(time.Unix(1, 0))
	<-done
	out.SetReadDeadline(time.Time{})
	return k, c.down.Load() != before, err
}

func isRefusal(err error) bool {
	return err != nil && (engi.KindOf(err) == engi.Denied || func() bool { _, ok := err.(refusal); return ok }())
}
