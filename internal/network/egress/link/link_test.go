package link_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/network/egress/link"
)

// open returns a pool, or skips the test where links cannot be created.
func open(t testing.TB, o link.Options) *link.Pool {
	t.Helper()
	p, err := link.Open(t.Context(), o)
	if engi.Is(err, engi.Unsupported) {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" && os.Geteuid() == 0 {
			t.Fatalf("no links here: %v (%s)", err, engi.RemedyOf(err))
		}
		t.Skipf("no links here: %v (%s)", err, engi.RemedyOf(err))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func take(t testing.TB, p *link.Pool) egress.Link {
	t.Helper()
	slot, err := p.Take(t.Context(), engi.NewSandboxID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slot.Close() })
	return slot
}

// serve attaches a stack with the gateway's addresses to the host's end.
func serve(t testing.TB, slot egress.Link) *stack.Stack {
	t.Helper()
	end, err := slot.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := s.CreateNIC(1, end); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{egress.Gateway4, egress.Gateway6} {
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{
			Protocol: proto, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix(),
		}, stack.AddressProperties{})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	t.Cleanup(func() {
		// A stack holds a lock that readers of its links need while it waits for them.
		s.RemoveNIC(1)
		end.Wait()
		s.Destroy()
	})
	return s
}

// echo answers on port 7 of the gateway's addresses.
func echo(t testing.TB, s *stack.Stack) {
	t.Helper()
	for _, a := range []netip.Addr{egress.Gateway4, egress.Gateway6} {
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		l, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: 7}, proto)
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
					io.Copy(c, c)
					c.Close()
				}()
			}
		}()
	}
}

// inside dials from a link's namespace with this machine's own stack, like a sandbox
// with its own stack.
func inside(slot egress.Link, addr netip.Addr, port uint16) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go link.Apart(func() {
		var d dialled
		defer func() { done <- d }()
		ns, err := os.Open(slot.Netns())
		if err != nil {
			d.err = err
			return
		}
		defer ns.Close()
		if d.err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); d.err != nil {
			return
		}
		// A socket stays in the namespace in which it was created.
		family := unix.AF_INET
		var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(port), Addr: four(addr)}
		if addr.Is6() {
			family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()}
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			d.err = err
			return
		}
		tv := unix.Timeval{Sec: 10}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
		if d.err = unix.Connect(fd, sa); d.err != nil {
			unix.Close(fd)
			return
		}
		f := os.NewFile(uintptr(fd), "conn")
		defer f.Close()
		d.conn, d.err = net.FileConn(f)
	})
	d := <-done
	return d.conn, d.err
}

func four(a netip.Addr) (b [4]byte) {
	copy(b[:], a.AsSlice())
	return b
}

// chat sends n bytes there and back.
func chat(c net.Conn, n int) error {
	c.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan error, 1)
	go func() {
		buf := make([]byte, 1<<16)
		for i := range buf {
			buf[i] = byte(i * 7)
		}
		for left := n; left > 0; {
			k, err := c.Write(buf[:min(left, len(buf))])
			if err != nil {
				sent <- err
				return
			}
			left -= k
		}
		sent <- nil
	}()
	got := make([]byte, 1<<16)
	for at := 0; at < n; {
		k, err := c.Read(got)
		if err != nil {
			return err
		}
		for i, b := range got[:k] {
			if want := byte((at + i) % (1 << 16) * 7); b != want {
				return fmt.Errorf("byte %d is %d, not %d", at+i, b, want)
			}
		}
		at += k
	}
	return <-sent
}

func TestPackets(t *testing.T) {
	p := open(t, link.Options{})
	slot := take(t, p)
	echo(t, serve(t, slot))
	for _, addr := range []netip.Addr{egress.Gateway4, egress.Gateway6} {
		c, err := inside(slot, addr, 7)
		if errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Logf("%v: this machine has no IPv6", addr)
			continue
		}
		if err != nil {
			t.Fatalf("dial %v: %v", addr, err)
		}
		if err := chat(c, 8<<20); err != nil {
			t.Errorf("%v: %v", addr, err)
		}
		c.Close()
	}
}

func TestSlotsAreApart(t *testing.T) {
	p := open(t, link.Options{})
	a, b := take(t, p), take(t, p)
	echo(t, serve(t, a))
	serve(t, b) // nothing listens there
	if c, err := inside(a, egress.Gateway4, 7); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if c, err := inside(b, egress.Gateway4, 7); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a stranger's port answers: %v", err)
		if err == nil {
			c.Close()
		}
	}
}

// TestClose closes a link under its stack and opens it again.
func TestClose(t *testing.T) {
	p := open(t, link.Options{})
	slot := take(t, p)
	for range 3 {
		end, err := slot.Endpoint()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := slot.Endpoint(); !engi.Is(err, engi.Conflict) {
			t.Errorf("opened twice: %v", err)
		}
		n := stack.New(stack.Options{NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol}})
		if err := n.CreateNIC(1, end); err != nil {
			t.Fatal(err)
		}
		end.Close()
		end.Close()
		end.Wait()
		n.Destroy()
	}
	echo(t, serve(t, slot))
	c, err := inside(slot, egress.Gateway4, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := chat(c, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := slot.Close(); err != nil {
		t.Fatal(err)
	}
	if err := slot.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := slot.Endpoint(); !engi.Is(err, engi.Unavailable) {
		t.Errorf("opened after its end: %v", err)
	}
}

// threads returns the number of threads of this process.
func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestManyLinks checks that many busy links do not need a thread each.
func TestManyLinks(t *testing.T) {
	const many = 100 // number of links; ENGI_TEST_LINKS overrides it
	n := many
	if s := os.Getenv("ENGI_TEST_LINKS"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t, link.Options{Spare: 2})
	slots := make([]egress.Link, n)
	began := time.Now()
	for i := range slots {
		slots[i] = take(t, p)
		echo(t, serve(t, slots[i]))
	}
	t.Logf("%d links made in %v", n, time.Since(began))
	for i := 0; i < n; i += max(1, n/20) {
		c, err := inside(slots[i], egress.Gateway4, 7)
		if err != nil {
			t.Fatal(err)
		}
		if err := chat(c, 1<<20); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	if got := threads(t); got > 64 {
		t.Errorf("%d links take %d threads", n, got)
	}
	t.Logf("%d links: %d threads, %d goroutines", n, threads(t), runtime.NumGoroutine())
}

// TestFoundAgain finds the link of a sandbox that an earlier process started.
func TestFoundAgain(t *testing.T) {
	before := open(t, link.Options{})
	slot := take(t, before)
	id := slot.(*link.Link).ID()
	// An open file keeps the namespace in place of a sandbox.
	ns, err := os.Open(slot.Netns())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	held := fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
	end, err := slot.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}

	stranger := engi.NewSandboxID()
	after := open(t, link.Options{Locate: func(ctx context.Context, of engi.SandboxID) (string, error) {
		switch of {
		case id:
			return held, nil
		case stranger:
			return "/proc/self/ns/net", nil // the host's
		}
		return "", engi.Errorf(engi.NotFound, "it does not run")
	}})
	found, err := after.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := after.Find(t.Context(), id); err != nil || again != found {
		t.Errorf("found again: %v, %v", again, err)
	}
	echo(t, serve(t, found))
	c, err := inside(found, egress.Gateway4, 7)
	if err != nil {
		t.Fatal(err)
	}
	if err := chat(c, 1<<20); err != nil {
		t.Error(err)
	}
	c.Close()
	for _, id := range []engi.SandboxID{stranger, engi.NewSandboxID()} {
		if _, err := after.Find(t.Context(), id); !engi.Is(err, engi.NotFound) {
			t.Errorf("found what is no link of ours: %v", err)
		}
	}
	if err := after.Retain(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := found.Endpoint(); err == nil {
		t.Error("a link that was not retained is there")
	}
	if _, err := after.Take(t.Context(), id); err != nil {
		t.Errorf("a new link for the same sandbox: %v", err)
	}
}

// TestNoThreadStaysAway checks the namespace of every thread after links were created.
func TestNoThreadStaysAway(t *testing.T) {
	p := open(t, link.Options{Spare: 3})
	for range 10 {
		slot := take(t, p)
		serve(t, slot)
		slot.Close()
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var strays []string
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		all, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		strays = nil
		for _, path := range all {
			if ns, err := os.Readlink(path); err == nil && ns != own {
				strays = append(strays, path+" "+ns)
			}
		}
		if len(strays) == 0 {
			return
		}
	}
	t.Errorf("threads in other namespaces: %v", strays)
}
