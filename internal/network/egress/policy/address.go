package policy

import (
	"net"
	"net/netip"
	"slices"
)

// A closedRange is a range of addresses that are not public.
type closedRange struct {
	net       netip.Prefix
	name      string // completes "it is …"
	exactOnly bool   // the operator can open only single addresses of the range
}

const (
	ownAddress      = "an address of the host"
	metadataAddress = "an address of a metadata service"
	nearAddress     = "an address on a network of the host"
)

// metadata lists the addresses of cloud metadata services, which hand out
// credentials of the host. Most addresses are link-local, some private, one is public.
var metadata = parseAddrs(
	"169.254.169.254", "169.254.169.253", "169.254.169.123", // AWS, Google, Azure, and most others
	"169.254.170.2", "169.254.170.23", // AWS, containers
	"169.254.42.42", "169.254.0.23", "169.254.10.10", // Scaleway, Tencent
	"100.100.100.200",              // Alibaba
	"168.63.129.16", "192.0.0.192", // Azure, Oracle
	"fd00:ec2::254", "fd00:ec2::253", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe",
)

// closedRanges lists the ranges that are not public, specific ones first.
var closedRanges = parseRanges([][2]string{
	{"0.0.0.0/8", "an address of this network"},
	{"10.0.0.0/8", "a private address"},
	{"100.64.0.0/10", "a shared (carrier) address"},
	{"127.0.0.0/8", "a loopback address"},
	{"169.254.0.0/16", "a link-local address"},
	{"172.16.0.0/12", "a private address"},
	{"192.0.0.0/24", "a reserved address"},
	{"192.0.2.0/24", "an address for documentation"},
	{"192.88.99.0/24", "a 6to4 relay"},
	{"192.168.0.0/16", "a private address"},
	{"198.18.0.0/15", "an address for benchmarks"},
	{"198.51.100.0/24", "an address for documentation"},
	{"203.0.113.0/24", "an address for documentation"},
	{"224.0.0.0/4", "a multicast address"},
	{"255.255.255.255/32", "the broadcast address"},
	{"224.0.0.0/3", "a reserved address"},

	{"::/128", "the unspecified address"},
	{"::1/128", "a loopback address"},
	{"::/96", "an IPv4 address in an obsolete notation"},
	{"::ffff:0:0:0/96", "an IPv4 address in a translated notation"},
	{"64:ff9b:1::/48", "an address for local translation"},
	{"100::/63", "an address for discarding"},
	{"2001::/32", "a Teredo address"},
	{"2001::/23", "a reserved address"},
	{"2001:db8::/32", "an address for documentation"},
	{"2002::/16", "a 6to4 address"},
	{"3fff::/20", "an address for documentation"},
	{"fc00::/7", "a private address"},
	{"fe80::/10", "a link-local address"},
	{"fec0::/10", "a site-local address"},
	{"ff00::/8", "a multicast address"},
	// The remaining addresses outside 2000::/3 are not allocated.
	{"::/3", "a reserved address"},
	{"4000::/2", "a reserved address"},
	{"8000::/1", "a reserved address"},
})

// nat64 is the well-known prefix of NAT64. Packets go to the IPv4 address at the
// address's end.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// canonicalAddr returns the address by which a is judged: for mapped and translated
// addresses, this is the IPv4 address in them.
func canonicalAddr(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is4() {
		a = a.WithZone("")
		if nat64.Contains(a) {
			b := a.As16()
			return netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	return a
}

// HostNetworks returns the values for Own and Near of a [Node], from the addresses of a
// host's interfaces.
func HostNetworks(addrs []net.Addr) (own, near []netip.Prefix) {
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		own = append(own, netip.PrefixFrom(ip, ip.BitLen()))
		// Skip very wide networks, which do not identify neighbours.
		if bits, _ := ipnet.Mask.Size(); ip.Is4() && bits >= 16 || ip.Is6() && bits >= 48 {
			near = append(near, netip.PrefixFrom(ip, bits).Masked())
		}
	}
	return own, near
}

// NotPublic describes an address that does not belong to the public internet,
// completing "it is …". It returns empty for public addresses. Addresses in Private count as not public.
func (n Node) NotPublic(a netip.Addr) string {
	if !a.IsValid() {
		return "no address"
	}
	g := hostNetworks{own: n.Own, near: n.Near}
	c, _ := g.closedRange(canonicalAddr(a))
	return c.name
}

// hostNetworks holds the addresses and networks of a Node.
type hostNetworks struct {
	own    []netip.Prefix
	near   []netip.Prefix
	opened []netip.Prefix
	static map[string][]netip.Addr
}

// closedRange returns the closed range of a canonical address, or false if
// the address is public.
func (g *hostNetworks) closedRange(a netip.Addr) (closedRange, bool) {
	if g.isOwn(a) {
		return closedRange{netip.PrefixFrom(a, a.BitLen()), ownAddress, true}, true
	}
	if slices.Contains(metadata, a) {
		return closedRange{netip.PrefixFrom(a, a.BitLen()), metadataAddress, true}, true
	}
	for _, c := range closedRanges {
		if c.net.Contains(a) {
			return c, true
		}
	}
	for _, n := range g.near {
		if n.Contains(a) {
			return closedRange{n, nearAddress, false}, true
		}
	}
	return closedRange{}, false
}

// closedRangeOf returns the closed range that contains all of n.
func (g *hostNetworks) closedRangeOf(n netip.Prefix) (closedRange, bool) {
	if n.IsSingleIP() {
		return g.closedRange(n.Addr())
	}
	for _, c := range closedRanges {
		if c.net.Bits() <= n.Bits() && c.net.Contains(n.Addr()) {
			return c, true
		}
	}
	for _, near := range g.near {
		if near.Bits() <= n.Bits() && near.Contains(n.Addr()) {
			return closedRange{near, nearAddress, false}, true
		}
	}
	return closedRange{}, false
}

func (g *hostNetworks) isOwn(a netip.Addr) bool {
	for _, n := range g.own {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// isOpened reports whether the operator opened an address in c.
func (g *hostNetworks) isOpened(a netip.Addr, c closedRange) bool {
	for _, n := range g.opened {
		if n.Contains(a) && (!c.exactOnly || n.IsSingleIP()) {
			return true
		}
	}
	return false
}

// isStatic reports whether the operator configured the address a for name.
func (g *hostNetworks) isStatic(name string, a netip.Addr) bool {
	return slices.Contains(g.static[name], a)
}

func parseAddrs(texts ...string) []netip.Addr {
	all := make([]netip.Addr, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParseAddr(t)
	}
	return all
}

func parseRanges(rows [][2]string) []closedRange {
	all := make([]closedRange, len(rows))
	for i, r := range rows {
		all[i] = closedRange{net: netip.MustParsePrefix(r[0]), name: r[1]}
	}
	return all
}
