package gvisor_test

import (
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/network/egress/link"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// links returns a function that creates links whose other ends echo, or nil if that
// is not possible here.
func links(t testing.TB) func(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Logf("no links: %v", err)
		return nil
	}
	stock, err := link.Open(t.Context(), link.Options{})
	if err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") != "" && os.Getenv("ENGI_TEST_ROOTLESS") == "" {
			t.Fatal(err)
		}
		t.Logf("no links: %v", err)
		return nil
	}
	t.Cleanup(func() { stock.Close() })
	return func(t testing.TB) string {
		t.Helper()
		slot, err := stock.Take(t.Context(), engi.NewSandboxID())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { slot.Close() })
		echo(t, slot)
		return slot.Netns()
	}
}

// echo starts a network stack at the other end of a link that echoes on port 7.
func echo(t testing.TB, slot egress.Link) {
	t.Helper()
	end, err := slot.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	t.Cleanup(func() {
		// A stack waits for its links while it holds a lock that their readers need.
		s.RemoveNIC(1)
		end.Wait()
		s.Destroy()
	})
	if err := s.CreateNIC(1, end); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	for _, addr := range []netip.Addr{egress.Gateway4, egress.Gateway6} {
		full := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(addr.AsSlice()), Port: 7}
		proto := ipv4.ProtocolNumber
		if addr.Is6() {
			proto = ipv6.ProtocolNumber
		}
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: full.Addr.WithPrefix()}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		l, err := gonet.ListenTCP(s, full, proto)
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

// BenchmarkLink compares machines with and without a link, alternating.
func BenchmarkLink(b *testing.B) {
	p, spec := bench(b)
	stock, err := link.Open(b.Context(), link.Options{Spare: 4})
	if err != nil {
		b.Skip(err)
	}
	defer stock.Close()
	var with, without, takes []time.Duration
	for b.Loop() {
		s := spec()
		t0 := time.Now()
		m, err := p.Start(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		without = append(without, time.Since(t0))
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
		s = spec()
		t0 = time.Now()
		slot, err := stock.Take(b.Context(), s.ID)
		if err != nil {
			b.Fatal(err)
		}
		takes = append(takes, time.Since(t0))
		s.Netns = slot.Netns()
		if m, err = p.Start(b.Context(), s); err != nil {
			b.Fatal(err)
		}
		with = append(with, time.Since(t0))
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
		slot.Close()
	}
	report(b, "without", without)
	report(b, "with", with)
	report(b, "take", takes)
}

// BenchmarkLinkMemory compares the memory of idle machines. The memory of a namespace is
// not accounted to them: see BenchmarkSlots of package link.
func BenchmarkLinkMemory(b *testing.B) {
	p, spec := bench(b)
	stock, err := link.Open(b.Context(), link.Options{})
	if err != nil {
		b.Skip(err)
	}
	defer stock.Close()
	const many = 10
	cost := func(linked bool) float64 {
		var all []provider.Machine
		for range many {
			s := spec()
			if linked {
				slot, err := stock.Take(b.Context(), s.ID)
				if err != nil {
					b.Fatal(err)
				}
				defer slot.Close()
				s.Netns = slot.Netns()
			}
			m, err := p.Start(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, m)
		}
		time.Sleep(2 * time.Second)
		var used int64
		for _, m := range all {
			u, err := m.(provider.Meter).Usage(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			used += u.Memory
			if err := m.Close(); err != nil {
				b.Fatal(err)
			}
		}
		return float64(used) / many / (1 << 20)
	}
	for b.Loop() {
		b.ReportMetric(cost(false), "without-MiB")
		b.ReportMetric(cost(true), "with-MiB")
	}
}
