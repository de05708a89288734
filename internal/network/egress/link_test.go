package egress_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/network/egress/link"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// wired returns a dialer over a real link: a tap whose other end is in a namespace, with
// this machine's own kernel in the place of a sandbox.
func wired(t testing.TB) (dial func(to netip.AddrPort) (net.Conn, error)) {
	stock, err := link.Open(t.Context(), link.Options{})
	if err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("no links here: %v", err)
	}
	t.Cleanup(func() { stock.Close() })
	o := egress.Options{Private: []netip.Prefix{netip.PrefixFrom(hostAddr(t), 32)}}
	o.Links, o.Store = stock, store.Egress(storetest.Open(t), 0, 0)
	g, err := egress.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	id := engi.NewSandboxID()
	netns, err := g.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Detach(context.Background(), id) })
	p := restricted(hostAddr(t).String())
	p.Limits.NewConnections = -1
	if _, err := g.Open(t.Context(), id, owner, p); err != nil {
		t.Fatal(err)
	}
	return func(to netip.AddrPort) (net.Conn, error) { return dialIn(netns, to) }
}

// dialIn connects from within a namespace.
func dialIn(netns string, to netip.AddrPort) (net.Conn, error) {
	type dialed struct {
		c   net.Conn
		err error
	}
	done := make(chan dialed, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		ns, err := os.Open(netns)
		if err != nil {
			done <- dialed{nil, err}
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- dialed{nil, err}
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- dialed{nil, err}
			return
		}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10})
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
			unix.Close(fd)
			done <- dialed{nil, err}
			return
		}
		f := os.NewFile(uintptr(fd), "conn")
		defer f.Close()
		c, err := net.FileConn(f)
		done <- dialed{c, err}
	}()
	d := <-done
	return d.c, d.err
}

// hostAddr returns an address of the host other than loopback, which the kernel in
// the namespace would take for its own.
func hostAddr(t testing.TB) netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr()
		}
	}
	t.Skip("this host has no IPv4 address but loopback")
	return netip.Addr{}
}

// server calls serve for each connection.
func server(t testing.TB, address string, serve func(net.Conn)) netip.AddrPort {
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
				serve(c)
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func BenchmarkUp(b *testing.B) {
	dial := wired(b)
	got := make(chan struct{})
	to := server(b, hostAddr(b).String()+":0", func(c net.Conn) {
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
		close(got)
	})
	c, err := dial(to)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	piece := make([]byte, 256<<10)
	b.SetBytes(int64(len(piece)))
	for b.Loop() {
		if _, err := c.Write(piece); err != nil {
			b.Fatal(err)
		}
	}
	c.(*net.TCPConn).CloseWrite()
	<-got
}

func BenchmarkDown(b *testing.B) {
	dial := wired(b)
	to := server(b, hostAddr(b).String()+":0", func(c net.Conn) {
		piece := make([]byte, 256<<10)
		for {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	})
	c, err := dial(to)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	piece := make([]byte, 256<<10)
	b.SetBytes(int64(len(piece)))
	for b.Loop() {
		if _, err := io.ReadFull(c, piece); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	dial := wired(b)
	c, err := dial(echo(b, hostAddr(b).String()+":0"))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	one := make([]byte, 1)
	for b.Loop() {
		if _, err := c.Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	dial := wired(b)
	to := echo(b, hostAddr(b).String()+":0")
	for b.Loop() {
		c, err := dial(to)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkHold opens networks and keeps them all, to measure their cost for a
// node.
func BenchmarkHold(b *testing.B) {
	stock, err := link.Open(b.Context(), link.Options{})
	if err != nil {
		b.Skipf("no links here: %v", err)
	}
	defer stock.Close()
	g, err := egress.New(egress.Options{Links: stock, Store: store.Egress(storetest.Open(b), 0, 0)})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := used()
	var ids []engi.SandboxID
	var attach, open time.Duration
	for b.Loop() {
		id := engi.NewSandboxID()
		began := time.Now()
		if _, err := g.Attach(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		attached := time.Now()
		if _, err := g.Open(b.Context(), id, owner, engi.NetworkPolicy{Mode: engi.NetworkOpen}); err != nil {
			b.Fatal(err)
		}
		attach, open = attach+attached.Sub(began), open+time.Since(attached)
		ids = append(ids, id)
	}
	n := float64(len(ids))
	b.ReportMetric(float64(used()-before)/1024/n, "KiB/each")
	b.ReportMetric(float64(attach.Microseconds())/n, "us-attach")
	b.ReportMetric(float64(open.Microseconds())/n, "us-open")
	for _, id := range ids {
		if err := g.Detach(context.Background(), id); err != nil {
			b.Fatal(err)
		}
	}
}
