package egress

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/engi-dev/engi/internal/engi"
)

const nicID tcpip.NICID = 1

// Bounds of a stack.
const (
	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 1 << 20
	bufferMany    = 32 << 10 // bytes; buffers of connections beyond manyConns, to bound the total memory
	manyConns     = 64
	minSegment    = 216 // bytes; smaller segments cost the gateway far more than the sandbox
	maxHandshakes = 256 // maximum number of concurrent handshakes; further SYNs are dropped
)

// A packetFilter passes only packets that are whole, come from one of the
// sandbox's two addresses and have a protocol that this package supports. So the
// stack never reassembles packets, handles IP options or sees a forged source.
// A dropped packet is not a decision about a destination and is only counted.
type packetFilter struct {
	nested.Endpoint
	dropped func(reason string)

	mu      sync.RWMutex // held for reading while a packet is in the stack
	enabled bool         // guarded by mu
}

func newPacketFilter(lower stack.LinkEndpoint, dropped func(reason string)) *packetFilter {
	f := &packetFilter{dropped: dropped}
	f.Init(lower, f)
	return f
}

// enable lets packets pass.
func (f *packetFilter) enable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enabled = true
}

// disable stops all packets. When it returns, no packet is in the stack: a stack
// that is removed with packets in it can deadlock.
func (f *packetFilter) disable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enabled = false
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (f *packetFilter) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	head, ok := pkt.Data().PullUp(min(pkt.Data().Size(), header.IPv6MinimumSize+header.TCPHeaderMaximumSize))
	if !ok {
		return
	}
	ok, reason := checkPacket(proto, head, pkt.Data().Size())
	switch {
	case ok:
		f.mu.RLock()
		defer f.mu.RUnlock()
		if f.enabled {
			f.Endpoint.DeliverNetworkPacket(proto, pkt)
		}
	case reason != "":
		f.dropped(reason)
	}
}

// checkPacket judges a packet by its first bytes and its size. Packets that every
// system sends by itself, such as multicast reports, are dropped without reason.
func checkPacket(proto tcpip.NetworkProtocolNumber, b []byte, size int) (ok bool, reason string) {
	switch proto {
	case ipv4.ProtocolNumber:
		return checkIPv4(b, size)
	case ipv6.ProtocolNumber:
		return checkIPv6(b, size)
	}
	return false, ""
}

const (
	malformedPacket   = "a malformed packet"
	fragmentedPacket  = "a fragment of a packet"
	packetWithOptions = "a packet with IP options"
	forgedPacket      = "a packet with a forged source address"
	tinySegments      = "a connection with tiny segments"
	otherProtocol     = "a packet of a protocol other than TCP, UDP and ICMP"
)

func checkIPv4(b []byte, size int) (bool, string) {
	if len(b) < header.IPv4MinimumSize || b[0]>>4 != 4 {
		return false, malformedPacket
	}
	whole := int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]&0xf != header.IPv4MinimumSize/4:
		if b[9] == 2 { // IGMP reports carry the router alert option
			return false, ""
		}
		return false, packetWithOptions
	case whole < header.IPv4MinimumSize || whole > size:
		return false, malformedPacket
	case [4]byte(b[12:16]) != Sandbox4.As4():
		return false, forgedPacket
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0: // a fragment: more fragments follow, or it has an offset
		return false, fragmentedPacket
	}
	to := netip.AddrFrom4([4]byte(b[16:20]))
	return checkTransport(to, b[9], b[header.IPv4MinimumSize:])
}

func checkIPv6(b []byte, size int) (bool, string) {
	if len(b) < header.IPv6MinimumSize || b[0]>>4 != 6 {
		return false, malformedPacket
	}
	if int(binary.BigEndian.Uint16(b[4:]))+header.IPv6MinimumSize > size {
		return false, malformedPacket
	}
	from, to := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	next, rest := b[6], b[header.IPv6MinimumSize:]
	switch next {
	case 0: // hop by hop options: multicast listener reports
		return false, ""
	case 43:
		return false, packetWithOptions
	case 44:
		return false, fragmentedPacket
	}
	if from != Sandbox6 {
		if from.IsLinkLocalUnicast() || from.IsUnspecified() {
			return false, "" // the link has no other hosts
		}
		return false, forgedPacket
	}
	if to.Is4In6() {
		return false, malformedPacket
	}
	return checkTransport(to, next, rest)
}

func checkTransport(to netip.Addr, protocol uint8, rest []byte) (bool, string) {
	if to.IsMulticast() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false, ""
	}
	switch tcpip.TransportProtocolNumber(protocol) {
	case header.TCPProtocolNumber:
		return checkTCP(rest)
	case header.UDPProtocolNumber:
		return true, ""
	case header.ICMPv4ProtocolNumber:
		// Pass echoes, and errors about packets that the gateway sent.
		return to.Is4() && len(rest) > 0 && (rest[0] == byte(header.ICMPv4Echo) || rest[0] == byte(header.ICMPv4DstUnreachable)), ""
	case header.ICMPv6ProtocolNumber:
		return to.Is6() && len(rest) > 0 && (rest[0] == byte(header.ICMPv6EchoRequest) ||
			rest[0] == byte(header.ICMPv6DstUnreachable) || rest[0] == byte(header.ICMPv6PacketTooBig)), ""
	case 2: // IGMP
		return false, ""
	}
	return false, otherProtocol
}

// checkTCP refuses connections with a tiny maximum segment size.
func checkTCP(b []byte) (bool, string) {
	if len(b) < header.TCPMinimumSize {
		return false, malformedPacket
	}
	h := header.TCP(b)
	if !h.Flags().Contains(header.TCPFlagSyn) {
		return true, ""
	}
	if n := int(h.DataOffset()); n < header.TCPMinimumSize || n > len(b) {
		return false, malformedPacket
	}
	if mss := header.ParseSynOptions(h.Options(), h.Flags().Contains(header.TCPFlagAck)).MSS; mss < minSegment {
		return false, tinySegments
	}
	return true, ""
}

// newStack returns a stack that accepts packets for any address.
func newStack(link stack.LinkEndpoint) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			// Loopback addresses reach the policy, which refuses them, so that the refusal is logged.
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
			ipv6.NewProtocolWithOptions(ipv6.Options{AllowExternalLoopbackTraffic: true}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{
			tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
		},
	})
	fail := func(act string, err tcpip.Error) (*stack.Stack, error) {
		s.RemoveNIC(nicID) // closes the link if the NIC was added
		link.Wait()        // wait here, since the stack would wait with a lock held that readers need
		s.Destroy()
		return nil, engi.Errorf(engi.Internal, "%s of a network stack: %s", act, err)
	}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	sack := tcpip.TCPSACKEnabled(true)
	linger := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	// The link is within this host, so packets delayed by this much are lost.
	minRTO := tcpip.TCPMinRTOOption(50 * time.Millisecond)
	for _, o := range []tcpip.SettableTransportProtocolOption{&rcv, &snd, &moderate, &sack, &linger, &minRTO} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fail("buffers", err)
		}
	}
	s.SetICMPLimit(100)
	s.SetICMPBurst(50)
	if err := s.CreateNICWithOptions(nicID, link, stack.NICOptions{Name: "sandbox"}); err != nil {
		return fail("link", err)
	}
	for _, a := range []struct {
		proto tcpip.NetworkProtocolNumber
		addr  netip.Addr
		bits  int
	}{{ipv4.ProtocolNumber, Gateway4, 30}, {ipv6.ProtocolNumber, Gateway6, 126}} {
		if err := s.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol:          a.proto,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(a.addr.AsSlice()), PrefixLen: a.bits},
		}, stack.AddressProperties{}); err != nil {
			return fail("address", err)
		}
	}
	// Responses may have any source address, and all responses leave through the link.
	if err := s.SetPromiscuousMode(nicID, true); err != nil {
		return fail("promiscuous mode", err)
	}
	if err := s.SetSpoofing(nicID, true); err != nil {
		return fail("spoofing", err)
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(Gateway4.AsSlice()), PrefixLen: 30}.Subnet(), NIC: nicID},
		{Destination: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(Gateway6.AsSlice()), PrefixLen: 126}.Subnet(), NIC: nicID},
	})
	return s, nil
}

// addrOf converts an address of a stack. The result may be invalid.
func addrOf(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return ip
}

func fullAddr(ap netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	proto := ipv6.ProtocolNumber
	if ap.Addr().Is4() {
		proto = ipv4.ProtocolNumber
	}
	return tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFromSlice(ap.Addr().AsSlice()), Port: ap.Port()}, proto
}

func bufferView(b []byte) *buffer.View { return buffer.NewViewWithData(b) }

func sumOf(b []byte) uint16 { return checksum.Checksum(b, 0) }
