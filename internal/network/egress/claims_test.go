package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

func named(names ...string) egress.Options {
	o := loopback()
	o.Hosts = make(map[string][]netip.Addr)
	for _, n := range names {
		o.Hosts[n] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}
	return o
}

// TestTLSClaims makes clients claim hosts in TLS.
func TestTLSClaims(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "secure") }))
	defer web.Close()
	to := netip.MustParseAddrPort(web.Listener.Addr().String())
	f := newFixture(t, named("example.com", "hidden.test"))
	g := f.guest(restricted(fmt.Sprintf("example.com:%d", to.Port())))
	if _, err := g.lookup("example.com"); err != nil {
		t.Fatal(err)
	}
	shake := func(name string) error {
		c, err := g.dial(to)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		return tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}
	if err := shake("example.com"); err != nil {
		t.Errorf("the right name: %v", err)
	}
	for _, name := range []string{"hidden.test", "a.example.com", ""} {
		if err := shake(name); err == nil {
			t.Errorf("%q was let through", name)
		}
		f.expect(g, fmt.Sprintf("the claim %q was refused", name), func(e engi.NetworkRecord) bool {
			return e.Kind == engi.NetworkClaim && !e.Allowed && e.Host == name
		})
	}
}

// TestServerSpeaksFirst uses a protocol, on a port other than the web's, in
// which the server greets and the client names no host.
func TestServerSpeaksFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprint(c, "220 hello\r\n")
				io.Copy(c, c)
			}()
		}
	}()
	to := netip.MustParseAddrPort(l.Addr().String())
	f := newFixture(t, named("mail.test"))
	g := f.guest(restricted(fmt.Sprintf("mail.test:%d", to.Port())))
	if _, err := g.lookup("mail.test"); err != nil {
		t.Fatal(err)
	}
	c, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	from := bufio.NewReader(c)
	if line, err := from.ReadString('\n'); err != nil || line != "220 hello\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for i := range 3 {
		fmt.Fprintf(c, "line %d\n", i)
		if line, err := from.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
	}
	// The same server cannot be used to smuggle a request for another host.
	bad, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	bad.SetDeadline(time.Now().Add(time.Minute))
	from = bufio.NewReader(bad)
	from.ReadString('\n')
	fmt.Fprint(bad, "GET / HTTP/1.1\r\nHost: hidden.test\r\n\r\n")
	if line, err := from.ReadString('\n'); err == nil {
		t.Errorf("a request for another host went through: %q", line)
	}
}

func TestEcho(t *testing.T) {
	f := newFixture(t, loopback())
	g := f.guest(restricted("icmp://127.0.0.1"))
	ping := func(to string, wait time.Duration) bool {
		var wq waiter.Queue
		ep, terr := g.s.NewEndpoint(icmp.ProtocolNumber4, ipv4.ProtocolNumber, &wq)
		if terr != nil {
			t.Fatal(terr)
		}
		defer ep.Close()
		if terr := ep.Connect(tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(netip.MustParseAddr(to).AsSlice())}); terr != nil {
			t.Fatal(terr)
		}
		entry, ch := waiter.NewChannelEntry(waiter.ReadableEvents)
		wq.EventRegister(&entry)
		defer wq.EventUnregister(&entry)
		msg := make([]byte, header.ICMPv4MinimumSize+32)
		header.ICMPv4(msg).SetType(header.ICMPv4Echo)
		if _, terr := ep.Write(strings.NewReader(string(msg)), tcpip.WriteOptions{}); terr != nil {
			t.Fatal(terr)
		}
		select {
		case <-ch:
			return true
		case <-time.After(wait):
			return false
		}
	}
	if !ping("10.88.0.1", time.Minute) || !ping("127.0.0.1", time.Minute) {
		t.Error("no answer from who may be reached")
	}
	if ping("192.0.2.1", 300*time.Millisecond) {
		t.Error("an answer from who may not be reached")
	}
	f.expect(g, "an echo request was refused", func(e engi.NetworkRecord) bool { return e.Protocol == "icmp" && !e.Allowed })
}

// socks5 is a proxy that requires a password and connects anywhere.
func socks5(t *testing.T) (at netip.AddrPort, asked chan string) {
	asked = make(chan string, 16)
	return server(t, "127.0.0.1:0", func(c net.Conn) {
		b := make([]byte, 512)
		io.ReadFull(c, b[:2])
		io.ReadFull(c, b[:b[1]])
		c.Write([]byte{5, 2})
		io.ReadFull(c, b[:2])
		user := make([]byte, b[1])
		io.ReadFull(c, user)
		io.ReadFull(c, b[:1])
		pass := make([]byte, b[0])
		io.ReadFull(c, pass)
		if string(user) != "me" || string(pass) != "pass" {
			c.Write([]byte{1, 1})
			return
		}
		c.Write([]byte{1, 0})
		io.ReadFull(c, b[:10])
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[8])<<8|uint16(b[9]))
		asked <- to.String()
		out, err := net.Dial("tcp", to.String())
		if err != nil {
			c.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0})
			return
		}
		defer out.Close()
		c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		go io.Copy(out, c)
		io.Copy(c, out)
	}), asked
}

// connectProxy is a proxy for CONNECT.
func connectProxy(t *testing.T) (at netip.AddrPort, asked chan string) {
	asked = make(chan string, 16)
	return server(t, "127.0.0.1:0", func(c net.Conn) {
		q, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		if q.Method != "CONNECT" || q.Header.Get("Proxy-Authorization") != "Basic bWU6cGFzcw==" {
			fmt.Fprint(c, "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
			return
		}
		asked <- q.RequestURI
		out, err := net.Dial("tcp", q.RequestURI)
		if err != nil {
			fmt.Fprint(c, "HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n")
			return
		}
		defer out.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		go io.Copy(out, c)
		io.Copy(c, out)
	}), asked
}

func TestUpstreamProxy(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	for scheme, start := range map[string]func(*testing.T) (netip.AddrPort, chan string){"socks5": socks5, "http": connectProxy} {
		at, asked := start(t)
		p := restricted("127.0.0.1")
		p.Proxy = &engi.UpstreamProxy{Address: fmt.Sprintf("%s://%s", scheme, at), User: "me", Password: "pass"}
		g := f.guest(p)
		c, err := g.dial(to)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		fmt.Fprint(c, "hello")
		c.CloseWrite()
		c.SetReadDeadline(time.Now().Add(time.Minute))
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("%s: %q, %v", scheme, b, err)
		}
		c.Close()
		if got := <-asked; got != to.String() {
			t.Errorf("%s was asked for %s", scheme, got)
		}
		udp := g.dialUDP(to)
		udp.Write([]byte("x"))
		f.expect(g, "datagrams do not go through a proxy", func(e engi.NetworkRecord) bool {
			return e.Protocol == "udp" && !e.Allowed && strings.Contains(e.Reason, "proxy")
		})
		wrong := restricted("127.0.0.1")
		wrong.Proxy = &engi.UpstreamProxy{Address: p.Proxy.Address, User: "me", Password: "other"}
		if c, err := f.guest(wrong).dial(to); err == nil {
			c.Close()
			t.Errorf("%s: a wrong password works", scheme)
		}
	}
}

// TestIntercepted checks that a secret is put into a request.
func TestIntercepted(t *testing.T) {
	got := make(chan string, 4)
	web := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		fmt.Fprint(rw, "ok")
	}))
	defer web.Close()
	to := netip.MustParseAddrPort(web.Listener.Addr().String())
	o := named("example.com")
	o.Roots = x509.NewCertPool()
	o.Roots.AddCert(web.Certificate())
	o.Reveal = func(_ context.Context, who engi.Viewer, name string) (string, error) {
		if who != owner.Viewer() || name != "token" {
			return "", engi.Errorf(engi.NotFound, "no secret %s", name)
		}
		return "s3cret", nil
	}
	f := newFixture(t, o)
	g := f.guest(engi.NetworkPolicy{})
	wiring := f.open(g, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{
		{Secret: "token", Hosts: []string{fmt.Sprintf("example.com:%d", to.Port())}, As: engi.GrantBearer}}})
	if len(wiring.Authority) == 0 || wiring.Resolver != egress.Gateway4 {
		t.Fatalf("wiring %+v", wiring)
	}
	block, _ := pem.Decode(wiring.Authority)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	client := g.client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	resp, err := client.Get(fmt.Sprintf("https://example.com:%d/", to.Port()))
	if err != nil {
		for _, e := range f.events(g) {
			t.Logf("%+v", e)
		}
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); string(b) != "ok" {
		t.Errorf("%q", b)
	}
	if auth := <-got; auth != "Bearer s3cret" {
		t.Errorf("the server saw %q", auth)
	}
	f.expect(g, "a request was intercepted", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkRequest && e.Allowed && e.Host == "example.com"
	})
	for _, e := range f.events(g) {
		if strings.Contains(fmt.Sprintf("%+v", e), "s3cret") {
			t.Errorf("the log holds the secret: %+v", e)
		}
	}
}

// TestMemory measures the memory of an idle sandbox with network.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	f := newFixture(t, loopback())
	const n = 100
	var guests []*guest
	for range n {
		f.next++
		id := engi.SandboxID(fmt.Sprintf("sbx_%d", f.next))
		if _, err := f.g.Attach(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		guests = append(guests, &guest{t: t, id: id, slot: f.links.m[id]})
	}
	used := func() (bytes uint64, goroutines int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine()
	}
	before, some := used()
	for _, g := range guests {
		f.open(g, restricted("127.0.0.1"))
	}
	after, more := used()
	each, each2 := int64(after-before)/n, (more-some)/n
	t.Logf("%d KiB and %d goroutines each", each>>10, each2)
	if each > 1<<20 {
		t.Errorf("an idle sandbox with network costs %d bytes", each)
	}
	for _, g := range guests {
		f.g.Shut(g.id)
	}
	if _, left := used(); left > some+5 {
		t.Errorf("%d goroutines after Shut, %d before Open", left, some)
	}
}
