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

	"github.com/engi-dev/engi"
)

const nicID tcpip.NICID = 1

// Bounds of a stack.
const (
	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 1 << 20
	bufferMany    = 32 << 10 // of connections beyond manyConns, so that all of them together stay small
	manyConns     = 64
	minSegment    = 216 // bytes; smaller ones would cost us far more than the sandbox
	maxHandshakes = 256 // connections that are being made at once; further SYNs are lost
)

// A sieve lets packets through to a stack that are worth its time: whole,
// of the only two addresses there are inside, and of protocols that the wall
// knows. So nothing is ever reassembled, routed by options or taken from a
// forged sender. What it drops is no decision about a destination; it only
// reports that it happened.
type sieve struct {
	nested.Endpoint
	dropped func(reason string)

	mu   sync.RWMutex // read while a packet is in the stack
	open bool         // guarded by mu
}

func newSieve(lower stack.LinkEndpoint, dropped func(reason string)) *sieve {
	s := &sieve{dropped: dropped}
	s.Init(lower, s)
	return s
}

// begin lets packets in.
func (s *sieve) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
}

// stop lets no packet in any more; none is inside when it returns. A stack
// that is being taken down with packets in it can come to wait for itself.
func (s *sieve) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (s *sieve) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	head, ok := pkt.Data().PullUp(min(pkt.Data().Size(), header.IPv6MinimumSize+header.TCPHeaderMaximumSize))
	if !ok {
		return
	}
	ok, reason := admit(proto, head, pkt.Data().Size())
	switch {
	case ok:
		s.mu.RLock()
		defer s.mu.RUnlock()
		if s.open {
			s.Endpoint.DeliverNetworkPacket(proto, pkt)
		}
	case reason != "":
		s.dropped(reason)
	}
}

// admit judges a packet by its first bytes and its whole size. A packet that
// is dropped without a reason is one that every system sends by itself.
func admit(proto tcpip.NetworkProtocolNumber, b []byte, size int) (ok bool, reason string) {
	switch proto {
	case ipv4.ProtocolNumber:
		return admit4(b, size)
	case ipv6.ProtocolNumber:
		return admit6(b, size)
	}
	return false, ""
}

const (
	oddPacket   = "a malformed packet"
	oddFragment = "a fragment of a packet"
	oddOptions  = "a packet with IP options"
	oddSource   = "a packet with a forged source address"
	oddSegment  = "a connection in tiny segments"
	oddProtocol = "a packet of another protocol than TCP, UDP and ICMP"
)

func admit4(b []byte, size int) (bool, string) {
	if len(b) < header.IPv4MinimumSize || b[0]>>4 != 4 {
		return false, oddPacket
	}
	whole := int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]&0xf != header.IPv4MinimumSize/4:
		if b[9] == 2 { // IGMP reports carry the router alert option
			return false, ""
		}
		return false, oddOptions
	case whole < header.IPv4MinimumSize || whole > size:
		return false, oddPacket
	case [4]byte(b[12:16]) != Inside4.As4():
		return false, oddSource
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0: // more fragments, or an offset
		return false, oddFragment
	}
	to := netip.AddrFrom4([4]byte(b[16:20]))
	return admitTo(to, b[9], b[header.IPv4MinimumSize:])
}

func admit6(b []byte, size int) (bool, string) {
	if len(b) < header.IPv6MinimumSize || b[0]>>4 != 6 {
		return false, oddPacket
	}
	if int(binary.BigEndian.Uint16(b[4:]))+header.IPv6MinimumSize > size {
		return false, oddPacket
	}
	from, to := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	next, rest := b[6], b[header.IPv6MinimumSize:]
	switch next {
	case 0: // hop by hop options: multicast listener reports
		return false, ""
	case 43:
		return false, oddOptions
	case 44:
		return false, oddFragment
	}
	if from != Inside6 {
		if from.IsLinkLocalUnicast() || from.IsUnspecified() {
			return false, "" // there is nobody to talk to on the link
		}
		return false, oddSource
	}
	if to.Is4In6() {
		return false, oddPacket
	}
	return admitTo(to, next, rest)
}

func admitTo(to netip.Addr, protocol uint8, rest []byte) (bool, string) {
	if to.IsMulticast() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false, ""
	}
	switch tcpip.TransportProtocolNumber(protocol) {
	case header.TCPProtocolNumber:
		return admitTCP(rest)
	case header.UDPProtocolNumber:
		return true, ""
	case header.ICMPv4ProtocolNumber:
		// Echoes, and errors about what we sent.
		return to.Is4() && len(rest) > 0 && (rest[0] == byte(header.ICMPv4Echo) || rest[0] == byte(header.ICMPv4DstUnreachable)), ""
	case header.ICMPv6ProtocolNumber:
		return to.Is6() && len(rest) > 0 && (rest[0] == byte(header.ICMPv6EchoRequest) ||
			rest[0] == byte(header.ICMPv6DstUnreachable) || rest[0] == byte(header.ICMPv6PacketTooBig)), ""
	case 2: // IGMP
		return false, ""
	}
	return false, oddProtocol
}

// admitTCP refuses to begin connections that cut what we send into crumbs.
func admitTCP(b []byte) (bool, string) {
	if len(b) < header.TCPMinimumSize {
		return false, oddPacket
	}
	h := header.TCP(b)
	if !h.Flags().Contains(header.TCPFlagSyn) {
		return true, ""
	}
	if n := int(h.DataOffset()); n < header.TCPMinimumSize || n > len(b) {
		return false, oddPacket
	}
	if mss := header.ParseSynOptions(h.Options(), h.Flags().Contains(header.TCPFlagAck)).MSS; mss < minSegment {
		return false, oddSegment
	}
	return true, ""
}

// newStack returns a stack that takes every packet as meant for it.
func newStack(link stack.LinkEndpoint) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			// Loopback addresses are the policy's to refuse, so that it is seen.
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
			ipv6.NewProtocolWithOptions(ipv6.Options{AllowExternalLoopbackTraffic: true}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{
			tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
		},
	})
	fail := func(act string, err tcpip.Error) (*stack.Stack, error) {
		s.RemoveNIC(nicID) // closes the link, if it is there already
		link.Wait()        // not by the stack, which has a lock then that a reader needs
		s.Destroy()
		return nil, engi.Errorf(engi.Internal, "%s of a network stack: %s", act, err)
	}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	sack := tcpip.TCPSACKEnabled(true)
	linger := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	// There is no way to go: what is late by this much is lost.
	late := tcpip.TCPMinRTOOption(50 * time.Millisecond)
	for _, o := range []tcpip.SettableTransportProtocolOption{&rcv, &snd, &moderate, &sack, &linger, &late} {
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
	// Answers come from every address there is, so both ways lead to the link.
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

// addrOf returns an address of a stack; not valid if it is none.
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
