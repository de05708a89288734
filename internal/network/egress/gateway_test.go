package egress_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/test/seed"
)

func loopback() egress.Options {
	return egress.Options{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")}}
}

func restricted(allow ...string) engi.NetworkPolicy {
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: allow}
}

func TestBytesArrive(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	g := f.guest(restricted("127.0.0.1"))
	c, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data, random := make([]byte, 8<<20), seed.New(t)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	go func() {
		c.Write(data)
		c.CloseWrite()
	}()
	sum := sha256.New()
	n, err := io.Copy(sum, c)
	if err != nil || n != int64(len(data)) {
		t.Fatalf("%d of %d bytes came back: %v", n, len(data), err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("what came back is not what was sent")
	}
	c.Close()
	f.expect(g, "8 MiB were moved each way", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkClose && e.Up == int64(len(data)) && e.Down == int64(len(data)) && e.Address == to
	})
}

func TestRefusedAsOutside(t *testing.T) {
	f := newFixture(t, loopback())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	g := f.guest(restricted("127.0.0.1"))
	for _, to := range []netip.AddrPort{closed, netip.MustParseAddrPort("169.254.169.254:80"), netip.MustParseAddrPort("192.0.2.1:443"),
		netip.MustParseAddrPort("10.88.0.1:22"), netip.MustParseAddrPort("[fd00:e1::1]:80"), netip.MustParseAddrPort("[::ffff:169.254.169.254]:80"), netip.MustParseAddrPort("127.0.0.2:1")} {
		if to.Addr().Is4In6() {
			continue // stacks send no such packets
		}
		began := time.Now()
		c, err := g.dial(to)
		if err == nil {
			c.Close()
			t.Errorf("%s answers", to)
			continue
		}
		if !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s after %v: %v, want refused", to, time.Since(began), err)
		}
		f.expect(g, fmt.Sprint(to, " was decided on"), func(e engi.NetworkRecord) bool {
			return e.Kind == engi.NetworkConnect && e.Address == to && e.Allowed == (to == closed) && e.Reason != ""
		})
	}
}

func TestNothingBeforeOpenAndAfterShut(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	g := f.guest(engi.NetworkPolicy{})
	if g.slot.opened != 0 {
		t.Fatal("the link is read although nothing is open")
	}
	f.open(g, restricted("127.0.0.1"))
	c, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	f.g.Shut(g.id)
	if g.slot.ours != nil {
		t.Error("the link is open after Shut")
	}
	f.g.Shut(g.id)
	// Connections from before the new policy are reset at their next packet.
	f.open(g, restricted("127.0.0.1"))
	c.SetReadDeadline(time.Now().Add(time.Minute))
	_, werr := c.Write([]byte("more"))
	if _, err := io.ReadAll(c); !strings.Contains(fmt.Sprint(werr, err), "reset") {
		t.Errorf("a stale connection reports %v and %v, want reset", werr, err)
	}
	again, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := f.g.Detach(t.Context(), g.id); err != nil {
		t.Fatal(err)
	}
	if !g.slot.removed {
		t.Error("the link is there after Detach")
	}
	if err := f.g.Detach(t.Context(), g.id); err != nil {
		t.Errorf("Detach again: %v", err)
	}
}

func TestPolicyChange(t *testing.T) {
	f := newFixture(t, loopback())
	a, b := echo(t, "127.0.0.1:0"), echo(t, "127.0.0.1:0")
	g := f.guest(restricted(a.String(), b.String()))
	ca, err := g.dial(a)
	if err != nil {
		t.Fatal(err)
	}
	cb, err := g.dial(b)
	if err != nil {
		t.Fatal(err)
	}
	talk := func(c net.Conn) error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	for _, c := range []net.Conn{ca, cb} {
		if err := talk(c); err != nil {
			t.Fatal(err)
		}
	}
	f.open(g, restricted(b.String()))
	if err := talk(ca); err == nil {
		t.Error("a connection that is not allowed any more lives")
	}
	if err := talk(cb); err != nil {
		t.Errorf("a connection that is still allowed broke: %v", err)
	}
	if c, err := g.dial(a); err == nil {
		c.Close()
		t.Error("a connection is made that is not allowed any more")
	}
}

func TestNames(t *testing.T) {
	z, server := upstream(t)
	o := loopback()
	o.Resolver = []netip.AddrPort{server}
	o.Hosts = map[string][]netip.Addr{"web.test": {netip.MustParseAddr("127.0.0.1")}, "hidden.test": {netip.MustParseAddr("127.0.0.1")}}
	f := newFixture(t, o)
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Host) }))
	defer web.Close()
	to := netip.MustParseAddrPort(web.Listener.Addr().String())
	g := f.guest(restricted("web.test", "*.example.com"))

	// Before the name is resolved, its address is not allowed.
	if c, err := g.dial(to); err == nil {
		c.Close()
		t.Fatal("an address answers that no name was resolved to")
	}
	get := func(url, host string) (string, error) {
		q, _ := http.NewRequest("GET", url, nil)
		q.Host = host
		q.Close = true
		resp, err := g.client().Do(q)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	url := fmt.Sprintf("http://web.test:%d/", to.Port())
	if body, err := get(url, ""); err != nil || body != fmt.Sprintf("web.test:%d", to.Port()) {
		t.Fatalf("GET: %q, %v", body, err)
	}
	if body, err := get(url, "hidden.test"); err == nil {
		t.Errorf("another Host got %q", body)
	}
	f.expect(g, "another host was claimed", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkClaim && !e.Allowed && e.Host == "hidden.test"
	})
	// The second request of a connection is judged as well.
	c, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: web.test:%d\r\n\r\nGET /x HTTP/1.1\r\nHost: hidden.test:%d\r\n\r\n", to.Port(), to.Port())
	c.SetReadDeadline(time.Now().Add(time.Minute))
	all, _ := io.ReadAll(c)
	if n := strings.Count(string(all), "200 OK"); n != 1 || strings.Contains(string(all), "hidden.test") {
		t.Errorf("two requests, one for another host: %q", all)
	}
	for _, name := range []string{"hidden.test", "nowhere.example.org", "example.com", "metadata.google.internal"} {
		if addrs, err := g.lookup(name); err == nil {
			t.Errorf("%s is %v", name, addrs)
		}
		f.expect(g, name+" was refused", func(e engi.NetworkRecord) bool {
			return e.Kind == engi.NetworkLookup && !e.Allowed && e.Host == name && e.Reason != ""
		})
	}
	// A rebinding: the second answer is a private address, mixed with a public one.
	z.set("a.example.com", "198.51.100.7")
	z.set("b.example.com", "169.254.169.254", "10.0.0.1", "127.0.0.1", "::1", "198.51.100.8")
	if addrs, err := g.lookup("b.example.com"); err != nil || len(addrs) != 1 || addrs[0].Unmap().String() != "198.51.100.8" {
		// Documentation networks are not public for any policy.
		if err == nil {
			t.Errorf("b.example.com is %v", addrs)
		}
	}
	f.expect(g, "the metadata address was left out", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkLookup && !e.Allowed && e.Address.Addr().String() == "169.254.169.254"
	})
	z.mu.Lock()
	n := z.asked["nowhere.example.org"]
	z.mu.Unlock()
	if n != 0 {
		t.Errorf("a name that is not allowed was asked for outside %d times", n)
	}
}

func TestDNSOverTCP(t *testing.T) {
	o := loopback()
	o.Hosts = map[string][]netip.Addr{"web.test": {netip.MustParseAddr("127.0.0.1")}}
	f := newFixture(t, o)
	g := f.guest(restricted("web.test"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addrs, err := g.resolver("tcp").LookupNetIP(ctx, "ip4", "web.test.")
	if err != nil || len(addrs) != 1 {
		t.Fatalf("%v, %v", addrs, err)
	}
	for _, to := range []string{"8.8.8.8:53", "1.1.1.1:853"} {
		if c, err := g.dial(netip.MustParseAddrPort(to)); err == nil {
			c.Close()
			t.Errorf("%s answers", to)
		}
	}
}

func TestTunnel(t *testing.T) {
	z, server := upstream(t)
	o := loopback()
	o.Resolver = []netip.AddrPort{server}
	o.Limits.Lookups = -1
	f := newFixture(t, o)
	g := f.guest(restricted("*.example.com"))
	z.set("www.example.com", "93.184.216.34")
	for i := range 300 {
		g.lookup(fmt.Sprintf("%s%04d.example.com", strings.Repeat("x", 50), i))
	}
	f.expect(g, "the tunnel was cut", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkLimit && strings.Contains(e.Reason, "DNS")
	})
	z.mu.Lock()
	n := 0
	for name, times := range z.asked {
		if strings.HasPrefix(name, "xxx") && times > 0 {
			n++
		}
	}
	z.mu.Unlock()
	if n == 0 || n > 200 {
		t.Errorf("%d names got out", n)
	}
}

func TestUDP(t *testing.T) {
	f := newFixture(t, loopback())
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			l.WriteTo(buf[:n], from)
		}
	}()
	to := netip.MustParseAddrPort(l.LocalAddr().String())
	g := f.guest(restricted("udp://127.0.0.1"))
	c := g.dialUDP(to)
	for _, size := range []int{0, 1, 1400, 30000} {
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := c.Read(make([]byte, 64<<10)); err != nil || n != size {
			t.Errorf("%d bytes of %d came back: %v", n, size, err)
		}
	}
	bad := g.dialUDP(netip.MustParseAddrPort("192.0.2.1:4000"))
	bad.Write([]byte("x"))
	f.expect(g, "a datagram was refused", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkConnect && e.Protocol == "udp" && !e.Allowed && e.Address.Port() == 4000
	})
}

func TestGroup(t *testing.T) {
	f := newFixture(t, loopback())
	in := func(group, name string) *guest {
		return f.guest(engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: group, Name: name})
	}
	a, b, stranger := in("shop", "web"), in("shop", "db"), in("other", "spy")
	l, err := listenInside(b, 5432)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		from <- c.RemoteAddr().String()
		io.Copy(c, c)
		c.Close()
	}()
	addrs, err := a.lookup("db.shop.internal")
	if err != nil || len(addrs) != 1 || !egress.Peers.Contains(addrs[0].Unmap()) {
		t.Fatalf("db.shop.internal is %v, %v", addrs, err)
	}
	to := netip.AddrPortFrom(addrs[0].Unmap(), 5432)
	c, err := a.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "hello")
	c.CloseWrite()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
		t.Errorf("the peer says %q, %v", b, err)
	}
	own, err := b.lookup("web.shop.internal")
	if err != nil || !strings.HasPrefix(<-from, own[0].Unmap().String()+":") {
		t.Errorf("the peer sees another address than %v: %v", own, err)
	}
	if addrs, err := stranger.lookup("db.shop.internal"); err == nil {
		t.Errorf("a stranger resolves %v", addrs)
	}
	if c, err := stranger.dial(to); err == nil {
		c.Close()
		t.Error("a stranger connects")
	}
	if _, err := f.g.Open(t.Context(), stranger.id, owner, engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "shop", Name: "db"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("a name that is taken: %v", err)
	}
	unnamed := in("shop", "")
	if addrs, err := a.lookup(unnamed.id.Label() + ".shop.internal"); err != nil || len(addrs) != 1 {
		t.Errorf("a sandbox by its label is %v, %v", addrs, err)
	}
	// The same group of another owner is another group.
	if _, err := f.g.Open(t.Context(), stranger.id, "own_2", engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "shop", Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if addrs, err := stranger.lookup("db.shop.internal"); err == nil {
		t.Errorf("another owner resolves %v", addrs)
	}
}

// TestWorkspaceNames uses two groups of one owner with the same names in them, and a
// third group with the name of the domain.
func TestWorkspaceNames(t *testing.T) {
	f := newFixture(t, egress.Options{})
	in := func(group, name string) *guest {
		return f.guest(engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: group, Name: name})
	}
	groups := []string{"ws-one", "ws-two", "workspace"}
	seen := map[netip.Addr]string{}
	for _, group := range groups {
		a, _ := in(group, "workspace"), in(group, "postgres")
		short, err := a.lookup("postgres." + group + ".internal")
		if err != nil || len(short) != 1 {
			t.Fatalf("postgres in %s is %v, %v", group, short, err)
		}
		for _, name := range []string{"postgres.workspace.internal", "POSTGRES.Workspace.Internal"} {
			if got, err := a.lookup(name); err != nil || !slices.Equal(got, short) {
				t.Errorf("%s is %v in %s, %v; want %v", name, got, group, err, short)
			}
		}
		if other, dup := seen[short[0]]; dup {
			t.Errorf("%s and %s have the address %v", group, other, short[0])
		}
		seen[short[0]] = group
	}
	only := in("ws-one", "redis")
	lone := f.guest(engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"example.com"}})
	for _, name := range []string{"mysql.workspace.internal", "workspace.internal", "redis.postgres.workspace.internal", "postgres.ws-two.internal", "ws-two.workspace.internal"} {
		if got, err := only.lookup(name); err == nil {
			t.Errorf("%s is %v", name, got)
		}
	}
	if got, err := in("ws-two", "web").lookup("redis.workspace.internal"); err == nil {
		t.Errorf("the redis of another workspace is %v", got)
	}
	if got, err := lone.lookup("redis.workspace.internal"); err == nil {
		t.Errorf("a sandbox without a group finds %v", got)
	}
}

func TestLimits(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	p := restricted("127.0.0.1")
	p.Limits = engi.NetworkLimits{Connections: 3, NewConnections: 1000, Total: 1 << 20}
	g := f.guest(p)
	var open []net.Conn
	for range 3 {
		c, err := g.dial(to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	if c, err := g.dial(to); err == nil {
		c.Close()
		t.Error("a fourth connection of three")
	}
	f.expect(g, "too many connections", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkLimit && strings.Contains(e.Reason, "connections open") && strings.Contains(e.Reason, "limits.connections")
	})
	go open[0].Write(make([]byte, 2<<20))
	if n, _ := io.Copy(io.Discard, open[0]); n > 1<<20 {
		t.Errorf("%d bytes came back through a total of 1 MiB", n)
	}
	open[1].Close()
	if c, err := g.dial(to); err == nil {
		c.Close()
		t.Error("a connection after the total is used up")
	}

	p.Limits = engi.NetworkLimits{Up: 256 << 10}
	slow := f.guest(p)
	c, err := slow.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	go c.Write(make([]byte, 256<<10))
	if _, err := io.CopyN(io.Discard, c, 256<<10); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("256 KiB at 256 KiB per second took %v", took)
	}
}

// TestFlood opens and breaks many connections at once, and shuts the network
// meanwhile.
func TestFlood(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	p := restricted("127.0.0.1")
	p.Limits.NewConnections = -1
	g := f.guest(p)
	var work sync.WaitGroup
	var echoed atomic.Int64
	for i := range 60 {
		work.Go(func() {
			c, err := g.dial(to)
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			for j := range 20 {
				if _, err := c.Write(make([]byte, 1000)); err != nil {
					return
				}
				if (i+j)%7 == 0 {
					return
				}
				if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
					return
				}
				echoed.Add(1)
			}
		})
	}
	for end := time.Now().Add(time.Minute); echoed.Load() < 20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("the flood does not begin")
			break
		}
	}
	f.g.Shut(g.id)
	g.s.Close()
	work.Wait()
}

// TestManyConnections moves bytes on more connections than can have large buffers.
func TestManyConnections(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	p := restricted("127.0.0.1")
	p.Limits.NewConnections = -1
	g := f.guest(p)
	var open, work sync.WaitGroup
	open.Add(90)
	for range 90 {
		work.Go(func() {
			c, err := g.dial(to)
			open.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			open.Wait() // all connections exist before bytes move
			go func() {
				c.Write(make([]byte, 200_000))
				c.CloseWrite()
			}()
			c.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := io.Copy(io.Discard, c); n != 200_000 || err != nil {
				t.Errorf("%d bytes came back: %v", n, err)
			}
		})
	}
	work.Wait()
}

// TestHalfOpen shuts while the sandbox leaves handshakes unanswered.
func TestHalfOpen(t *testing.T) {
	f := newFixture(t, loopback())
	to := echo(t, "127.0.0.1:0")
	g := f.guest(restricted("127.0.0.1"))
	for i := range 50 {
		g.slot.syn(to, uint16(10000+i))
	}
	f.expect(g, "the connection was allowed", func(e engi.NetworkRecord) bool { return e.Kind == engi.NetworkConnect && e.Allowed })
	done := make(chan struct{})
	go func() { f.g.Shut(g.id); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("Shut waits for the sandbox")
	}
}

func TestTransport(t *testing.T) {
	o := loopback()
	o.Private = nil
	o.Hosts = map[string][]netip.Addr{"web.test": {netip.MustParseAddr("127.0.0.1")}}
	f := newFixture(t, o)
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if to := r.FormValue("to"); to != "" {
			http.Redirect(rw, r, to, http.StatusFound)
			return
		}
		fmt.Fprint(rw, "hello")
	}))
	defer web.Close()
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	rt, err := f.g.Transport(owner, restricted("web.test"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: rt}
	resp, err := client.Get("http://web.test:" + port)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "hello" {
		t.Errorf("%q", b)
	}
	judged := restricted("web.test")
	judged.Requests = []engi.RequestRule{{Host: "http://web.test"}}
	rt, err = f.g.Transport(owner, judged)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := (&http.Client{Transport: rt}).Get("http://web.test:" + port); !engi.Is(err, engi.Denied) {
		t.Errorf("what request rules judge is answered %v, %v", resp, err)
	}
	for _, to := range []string{"http://127.0.0.1:" + port, "http://169.254.169.254/", "http://[::1]/", "http://other.test/"} {
		resp, err := client.Get("http://web.test:" + port + "/?to=" + to)
		if err == nil {
			resp.Body.Close()
			t.Errorf("a redirect to %s was followed", to)
		}
	}
}

func TestImplementsEgress(t *testing.T) {
	f := newFixture(t, egress.Options{})
	if err := f.g.Check(engi.NetworkPolicy{Mode: "sideways"}); !engi.Is(err, engi.Invalid) {
		t.Errorf("Check: %v", err)
	}
	if err := f.g.Check(restricted("10.0.0.1")); err == nil {
		t.Error("a private address is allowed that nobody opened")
	}
	a, b := f.guest(engi.NetworkPolicy{}), f.guest(engi.NetworkPolicy{})
	if err := f.g.Adopt(t.Context(), []engi.SandboxID{a.id, "sbx_without"}); err != nil {
		t.Fatal(err)
	}
	if a.slot.removed || !b.slot.removed {
		t.Error("Adopt keeps the wrong links")
	}
}
