package egress_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

const mtu = 65000

// A fakeLink is a link in this process: a goroutine delivers the packets that one end sends at
// the other end.
type fakeLink struct {
	t     testing.TB
	guest *channel.Endpoint

	mu      sync.Mutex
	ours    *channel.Endpoint // the gateway's endpoint; nil while closed
	opened  int
	removed bool
	work    sync.WaitGroup
	stop    context.CancelFunc
}

func newFakeLink(t testing.TB) *fakeLink {
	s := &fakeLink{t: t, guest: channel.New(1024, mtu, "")}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.work.Go(func() {
		for {
			pkt := s.guest.ReadContext(ctx)
			if pkt == nil {
				return
			}
			s.mu.Lock()
			to := s.ours
			s.mu.Unlock()
			if to != nil {
				keepLimiter(pkt, to)
			}
			pkt.DecRef()
		}
	})
	return s
}

func keepLimiter(pkt *stack.PacketBuffer, to *channel.Endpoint) {
	v := pkt.ToView()
	fresh := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
	to.InjectInbound(pkt.NetworkProtocolNumber, fresh)
	fresh.DecRef()
}

func (s *fakeLink) Netns() string { return "/test" }

// An end is the gateway's end of a fakeLink.
type end struct {
	*channel.Endpoint
	slot *fakeLink
	stop context.CancelFunc
	done chan struct{}
	once sync.Once
}

func (l *end) Close() {
	l.once.Do(func() {
		l.slot.mu.Lock()
		l.slot.ours = nil
		l.slot.mu.Unlock()
		l.stop()
		l.Endpoint.Close()
	})
}

func (l *end) Wait() { <-l.done }

func (s *fakeLink) Endpoint() (stack.LinkEndpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ours != nil {
		return nil, fmt.Errorf("opened twice")
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &end{Endpoint: channel.New(1024, mtu, ""), slot: s, stop: stop, done: make(chan struct{})}
	s.ours = l.Endpoint
	s.opened++
	go func() {
		defer close(l.done)
		for {
			pkt := l.ReadContext(ctx)
			if pkt == nil {
				return
			}
			keepLimiter(pkt, s.guest)
			pkt.DecRef()
		}
	}()
	return l, nil
}

func (s *fakeLink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = true
	return nil
}

type links struct {
	t  testing.TB
	mu sync.Mutex
	m  map[engi.SandboxID]*fakeLink
}

func (s *links) Take(_ context.Context, id engi.SandboxID) (egress.Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[id] == nil {
		s.m[id] = newFakeLink(s.t)
	}
	return s.m[id], nil
}

func (s *links) Find(_ context.Context, id engi.SandboxID) (egress.Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[id] == nil || s.m[id].removed {
		return nil, engi.Errorf(engi.NotFound, "no fakeLink of %s", id)
	}
	return s.m[id], nil
}

func (s *links) Retain(_ context.Context, ids []engi.SandboxID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.m {
		if !slices.Contains(ids, id) {
			l.removed = true
		}
	}
	return nil
}

func (s *links) Close() error { return nil }

// A guest is a sandbox: a stack with the sandbox's addresses.
type guest struct {
	t    testing.TB
	s    *stack.Stack
	id   engi.SandboxID
	slot *fakeLink
}

// A fixture is a gateway with guests.
type fixture struct {
	t     testing.TB
	g     *egress.Gateway
	o     egress.Options
	links *links
	store egress.Store
	next  int
}

const owner engi.Owner = "own_1"

func newFixture(t testing.TB, o egress.Options) *fixture {
	f := &fixture{t: t, links: &links{t: t, m: make(map[engi.SandboxID]*fakeLink)}, store: store.Egress(storetest.Open(t), 0, 0)}
	o.Links, o.Store = f.links, f.store
	if o.Resolver == nil {
		o.Resolver = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
	}
	f.o = o
	g, err := egress.New(o)
	if err != nil {
		t.Fatal(err)
	}
	f.g = g
	t.Cleanup(func() {
		if err := f.g.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range f.links.m {
			s.stop()
			s.work.Wait()
		}
	})
	return f
}

func (f *fixture) guest(p engi.NetworkPolicy) *guest {
	f.t.Helper()
	f.next++
	id := engi.SandboxID(fmt.Sprintf("sbx_%d", f.next))
	if _, err := f.g.Attach(f.t.Context(), id); err != nil {
		f.t.Fatal(err)
	}
	g := &guest{t: f.t, id: id, slot: f.links.m[id]}
	g.s = guestStack(f.t, g.slot.guest)
	if p.Mode != "" {
		f.open(g, p)
	}
	return g
}

func (f *fixture) open(g *guest, p engi.NetworkPolicy) engi.NetworkSetup {
	f.t.Helper()
	wiring, err := f.g.Open(f.t.Context(), g.id, owner, p)
	if err != nil {
		f.t.Fatalf("Open: %v", err)
	}
	return wiring
}

func guestStack(t testing.TB, link stack.LinkEndpoint) *stack.Stack {
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
			ipv6.NewProtocolWithOptions(ipv6.Options{AllowExternalLoopbackTraffic: true}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	if err := s.CreateNIC(1, link); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Prefix{netip.PrefixFrom(egress.Sandbox4, 30), netip.PrefixFrom(egress.Sandbox6, 126)} {
		proto := ipv4.ProtocolNumber
		if a.Addr().Is6() {
			proto = ipv6.ProtocolNumber
		}
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFromSlice(a.Addr().AsSlice()), PrefixLen: a.Bits()}}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	t.Cleanup(func() { s.Close() })
	return s
}

func full(ap netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	proto := ipv6.ProtocolNumber
	if ap.Addr().Is4() {
		proto = ipv4.ProtocolNumber
	}
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(ap.Addr().AsSlice()), Port: ap.Port()}, proto
}

// dial connects from the sandbox.
func (g *guest) dial(to netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addr, proto := full(to)
	return gonet.DialContextTCP(ctx, g.s, addr, proto)
}

func (g *guest) dialUDP(to netip.AddrPort) *gonet.UDPConn {
	g.t.Helper()
	addr, proto := full(to)
	c, err := gonet.DialUDP(g.s, nil, &addr, proto)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

// resolver returns a resolver that queries the gateway's DNS from the sandbox.
func (g *guest) resolver(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, n, _ string) (net.Conn, error) {
		addr, proto := full(netip.AddrPortFrom(egress.Gateway4, 53))
		if network == "tcp" || strings.HasPrefix(n, "tcp") {
			return gonet.DialContextTCP(ctx, g.s, addr, proto)
		}
		return gonet.DialUDP(g.s, nil, &addr, proto)
	}}
}

func (g *guest) lookup(name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return g.resolver("udp").LookupNetIP(ctx, "ip", name+".")
}

// client returns an HTTP client in the sandbox.
func (g *guest) client() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			a, err := netip.ParseAddr(host)
			if err != nil {
				all, err := g.lookup(host)
				if err != nil {
					return nil, err
				}
				a = all[0].Unmap()
			}
			return g.dial(netip.AddrPortFrom(a, netip.MustParseAddrPort("0.0.0.0:"+port).Port()))
		}}}
}

func (f *fixture) events(g *guest) []engi.NetworkRecord {
	f.t.Helper()
	all, err := f.g.Events(context.Background(), owner.Viewer(), g.id, 0, 0, false)
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// expect fails unless there is an event for which fits returns true.
func (f *fixture) expect(g *guest, what string, fits func(e engi.NetworkRecord) bool) {
	f.t.Helper()
	var all []engi.NetworkRecord
	for until := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if all = f.events(g); slices.ContainsFunc(all, fits) {
			return
		}
		if time.Now().After(until) {
			break
		}
	}
	f.t.Errorf("no event says: %s", what)
	for _, e := range all {
		f.t.Logf("%+v", e)
	}
}

// echo serves on loopback and sends back all data it receives.
func echo(t testing.TB, address string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// A zone holds the answers of an upstream server; names have no dot at the end. It
// may change at any time.
type zone struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr
	asked map[string]int
}

func (z *zone) set(name string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs[name] = nil
	for _, a := range addrs {
		z.addrs[name] = append(z.addrs[name], netip.MustParseAddr(a))
	}
}

// upstream serves a zone on loopback.
func upstream(t testing.TB) (*zone, netip.AddrPort) {
	z := &zone{addrs: make(map[string][]netip.Addr), asked: make(map[string]int)}
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var p dnsmessage.Parser
			h, err := p.Start(buf[:n])
			if err != nil {
				continue
			}
			q, err := p.Question()
			if err != nil {
				continue
			}
			name := strings.TrimSuffix(q.Name.String(), ".")
			z.mu.Lock()
			addrs, ok := z.addrs[name]
			z.asked[name]++
			z.mu.Unlock()
			m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true}, Questions: []dnsmessage.Question{q}}
			if !ok {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range addrs {
				rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0}
				if a.Is4() && q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AResource{A: a.As4()}})
				}
				if a.Is6() && q.Type == dnsmessage.TypeAAAA {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: rh, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			b, err := m.Pack()
			if err == nil {
				c.WriteTo(b, from)
			}
		}
	}()
	return z, netip.MustParseAddrPort(c.LocalAddr().String())
}

func listenInside(g *guest, port uint16) (net.Listener, error) {
	return gonet.ListenTCP(g.s, tcpip.FullAddress{NIC: 1, Port: port}, ipv4.ProtocolNumber)
}

// syn begins a handshake that is never completed.
func (s *fakeLink) syn(to netip.AddrPort, port uint16) {
	b := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	src, dst := tcpip.AddrFromSlice(egress.Sandbox4.AsSlice()), tcpip.AddrFromSlice(to.Addr().AsSlice())
	header.IPv4(b).Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst})
	header.IPv4(b).SetChecksum(^header.IPv4(b).CalculateChecksum())
	seg := header.TCP(b[header.IPv4MinimumSize:])
	seg.Encode(&header.TCPFields{SrcPort: port, DstPort: to.Port(), SeqNum: 7, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 1000})
	seg.SetChecksum(^seg.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, dst, header.TCPMinimumSize)))
	s.inject(b)
}

// inject delivers a raw packet to the gateway.
func (s *fakeLink) inject(b []byte) {
	s.mu.Lock()
	to := s.ours
	s.mu.Unlock()
	if to == nil || len(b) == 0 {
		return
	}
	proto := ipv4.ProtocolNumber
	if b[0]>>4 == 6 {
		proto = ipv6.ProtocolNumber
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	to.InjectInbound(proto, pkt)
	pkt.DecRef()
}
