package gvisor_test

import (
	"io"
	"net/netip"
	"os"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress"
	"github.com/engi-dev/engi/gate/egress/link"
)

// links returns what makes links whose other ends echo, nil where there can be
// none.
func links(t *testing.T) func(t *testing.T) string {
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
	return func(t *testing.T) string {
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

// echo puts a stack at our end of a link that echoes on port 7.
func echo(t testing.TB, slot egress.Slot) {
	t.Helper()
	end, err := slot.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	t.Cleanup(s.Destroy)
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
