package egress

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

func packet4(protocol byte, to string, payload int, change func(b []byte)) []byte {
	b := make([]byte, header.IPv4MinimumSize+payload)
	header.IPv4(b).Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: protocol,
		SrcAddr: tcpip.AddrFromSlice(Sandbox4.AsSlice()), DstAddr: tcpip.AddrFromSlice(netip.MustParseAddr(to).AsSlice())})
	if change != nil {
		change(b)
	}
	header.IPv4(b).SetChecksum(0)
	header.IPv4(b).SetChecksum(^header.IPv4(b).CalculateChecksum())
	return b
}

func packet6(protocol byte, to string, payload int) []byte {
	b := make([]byte, header.IPv6MinimumSize+payload)
	header.IPv6(b).Encode(&header.IPv6Fields{PayloadLength: uint16(payload), TransportProtocol: tcpip.TransportProtocolNumber(protocol), HopLimit: 64,
		SrcAddr: tcpip.AddrFromSlice(Sandbox6.AsSlice()), DstAddr: tcpip.AddrFromSlice(netip.MustParseAddr(to).AsSlice())})
	return b
}

func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		b      []byte
		ok     bool
		reason string
	}{
		"tcp":           {b: packet4(6, "192.0.2.1", 20, nil), ok: true},
		"udp":           {b: packet4(17, "192.0.2.1", 8, nil), ok: true},
		"sctp":          {b: packet4(132, "192.0.2.1", 20, nil), reason: otherProtocol},
		"gre":           {b: packet4(47, "192.0.2.1", 20, nil), reason: otherProtocol},
		"first part":    {b: packet4(17, "192.0.2.1", 8, func(b []byte) { b[6] = 0x20 }), reason: fragmentedPacket},
		"last part":     {b: packet4(17, "192.0.2.1", 8, func(b []byte) { b[7] = 1 }), reason: fragmentedPacket},
		"options":       {b: packet4(17, "192.0.2.1", 8, func(b []byte) { b[0] = 0x46 }), reason: packetWithOptions},
		"forged":        {b: packet4(17, "192.0.2.1", 8, func(b []byte) { b[15] = 9 }), reason: forgedPacket},
		"from loopback": {b: packet4(17, "192.0.2.1", 8, func(b []byte) { copy(b[12:], []byte{127, 0, 0, 1}) }), reason: forgedPacket},
		"too long":      {b: packet4(17, "192.0.2.1", 8, func(b []byte) { b[2] = 0xff }), reason: malformedPacket},
		"too short":     {b: packet4(17, "192.0.2.1", 8, nil)[:19], reason: malformedPacket},
		"broadcast":     {b: packet4(17, "255.255.255.255", 8, nil)},
		"multicast":     {b: packet4(17, "224.0.0.251", 8, nil)},
		"redirect":      {b: packet4(1, "192.0.2.1", 8, func(b []byte) { b[20] = 5 })},
		"echo":          {b: packet4(1, "192.0.2.1", 8, func(b []byte) { b[20] = 8 }), ok: true},
		"tcp6":          {b: packet6(6, "2001:db8::1", 20), ok: true},
		"fragment6":     {b: packet6(44, "2001:db8::1", 20), reason: fragmentedPacket},
		"routing6":      {b: packet6(43, "2001:db8::1", 20), reason: packetWithOptions},
		"options6":      {b: packet6(60, "2001:db8::1", 20), reason: otherProtocol},
		"mapped":        {b: packet6(6, "::ffff:169.254.169.254", 20), reason: malformedPacket},
		"tiny": {b: packet4(6, "192.0.2.1", 24, func(b []byte) {
			copy(b[32:], []byte{0x60, 2})
			copy(b[40:], []byte{2, 4, 0, 100})
		}), reason: tinySegments},
		"syn": {b: packet4(6, "192.0.2.1", 24, func(b []byte) {
			copy(b[32:], []byte{0x60, 2})
			copy(b[40:], []byte{2, 4, 5, 180})
		}), ok: true},
		"syn that lies": {b: packet4(6, "192.0.2.1", 24, func(b []byte) { copy(b[32:], []byte{0xf0, 2}) }), reason: malformedPacket},
		"advert6":       {b: packet6(58, "2001:db8::1", 8)},
	} {
		proto := ipv4.ProtocolNumber
		if len(c.b) > 0 && c.b[0]>>4 == 6 {
			proto = ipv6.ProtocolNumber
		}
		if ok, reason := checkPacket(proto, c.b, len(c.b)); ok != c.ok || reason != c.reason {
			t.Errorf("%s: %v %q, want %v %q", name, ok, reason, c.ok, c.reason)
		}
	}
}

// FuzzPackets passes arbitrary packets to a stack with all handlers of a sandbox.
func FuzzPackets(f *testing.F) {
	f.Add(packet4(6, "192.0.2.1", 20, nil))
	f.Add(packet4(17, "10.88.0.1", 40, func(b []byte) { b[23] = 53 }))
	f.Add(packet4(1, "192.0.2.1", 8, func(b []byte) { b[20] = 8 }))
	f.Add(packet4(1, "10.88.0.1", 60, func(b []byte) { b[20] = 3; copy(b[28:], packet4(6, "10.88.0.2", 12, nil)) }))
	f.Add(packet4(17, "192.0.2.1", 8, func(b []byte) { b[6] = 0x20 }))
	f.Add(packet6(6, "2001:db8::1", 20))
	f.Add(packet6(58, "fd00:e1::1", 8))
	f.Add(packet6(0, "ff02::16", 8))
	f.Add(packet6(44, "2001:db8::1", 20))
	link := channel.New(64, 65520, "")
	drops := 0
	s := newPacketFilter(link, func(string) { drops++ })
	st, err := newStack(s)
	if err != nil {
		f.Fatal(err)
	}
	defer st.Destroy()
	st.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		if src := addrOf(id.RemoteAddress); src != Sandbox4 && src != Sandbox6 {
			f.Errorf("a datagram from %v", src)
		}
		return false
	})
	echo := func(proto tcpip.NetworkProtocolNumber) func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		return func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
			answerEcho(st, proto, id, pkt)
			return true
		}
	}
	st.SetTransportProtocolHandler(header.ICMPv4ProtocolNumber, echo(ipv4.ProtocolNumber))
	st.SetTransportProtocolHandler(header.ICMPv6ProtocolNumber, echo(ipv6.ProtocolNumber))
	s.enable()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 65535 {
			return
		}
		for _, proto := range []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber} {
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(append([]byte(nil), b...))})
			link.InjectInbound(proto, pkt)
			pkt.DecRef()
		}
		link.Drain()
	})
}

func question(name string, kind dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func FuzzQuestion(f *testing.F) {
	f.Add(question("example.com.", dnsmessage.TypeA))
	f.Add(question("db.shop.internal.", dnsmessage.TypeAAAA))
	f.Add(question("_443._https.example.com.", dnsmessage.TypeHTTPS))
	f.Add(append(question("example.com.", dnsmessage.TypeTXT), 0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0))
	f.Add([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := parseQuery(b)
		if q == nil {
			return
		}
		if q.size < plainUDP || q.size > maxUDP {
			t.Errorf("an answer may have %d bytes", q.size)
		}
		if strings.ContainsAny(printable(q.name), "\n\r\x00 ") {
			t.Errorf("%q goes into the log", printable(q.name))
		}
		var many []record
		for i := range 40 {
			many = append(many, record{minTTL, &dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i)}}})
		}
		for _, datagram := range []bool{true, false} {
			got := q.reply(dnsmessage.RCodeSuccess, many, datagram)
			var m dnsmessage.Message
			if got == nil || m.Unpack(got) != nil || m.ID != q.id || !m.Response {
				t.Errorf("a bad answer to %q: %x", q.name, got)
			}
			if datagram && len(got) > q.size {
				t.Errorf("%d bytes for who takes %d", len(got), q.size)
			}
		}
	})
}
