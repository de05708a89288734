package policy

import (
	"net"
	"net/netip"
	"slices"
)

// A class is a closed range of addresses.
type class struct {
	net  netip.Prefix
	name string // completes "is …"
	one  bool   // opened only address by address
}

const (
	ownName      = "an address of the host"
	metadataName = "an address of a metadata service"
	nearName     = "an address on a network of the host"
)

// metadata are the addresses where clouds answer questions about the host,
// credentials among them. The list is longer than link-local: some are
// private, one is public.
var metadata = addresses(
	"169.254.169.254", "169.254.169.253", "169.254.169.123", // AWS, Google, Azure, and most others
	"169.254.170.2", "169.254.170.23", // AWS, containers
	"169.254.42.42", "169.254.0.23", "169.254.10.10", // Scaleway, Tencent
	"100.100.100.200",              // Alibaba
	"168.63.129.16", "192.0.0.192", // Azure, Oracle
	"fd00:ec2::254", "fd00:ec2::253", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe",
)

// closed are the ranges that are no public internet, the specific ones first.
var closed = classes([][2]string{
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
	// What is left outside 2000::/3 is not given out.
	{"::/3", "a reserved address"},
	{"4000::/2", "a reserved address"},
	{"8000::/1", "a reserved address"},
})

// translated is the well-known prefix of NAT64: the IPv4 address at its end is
// where packets go.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// plain returns the address that a counts as: the IPv4 address inside mapped
// and translated ones.
func plain(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is4() {
		a = a.WithZone("")
		if translated.Contains(a) {
			b := a.As16()
			return netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	return a
}

// HostNetworks returns what [Node] has in Own and Near, from the addresses of a
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
		// A very wide network says nothing about who is a neighbour.
		if bits, _ := ipnet.Mask.Size(); ip.Is4() && bits >= 16 || ip.Is6() && bits >= 48 {
			near = append(near, netip.PrefixFrom(ip, bits).Masked())
		}
	}
	return own, near
}

// NotPublic says what an address is if it is not one of the public internet,
// completing "it is …"; empty if it is. Addresses in Private are not excepted.
func (n Node) NotPublic(a netip.Addr) string {
	if !a.IsValid() {
		return "no address"
	}
	g := ground{own: n.Own, near: n.Near}
	c, _ := g.class(plain(a))
	return c.name
}

// A ground is what the operator's Node says about addresses.
type ground struct {
	own    []netip.Prefix
	near   []netip.Prefix
	opened []netip.Prefix
	static map[string][]netip.Addr
}

// class returns the closed class of a plain address; false if it is public.
func (g *ground) class(a netip.Addr) (class, bool) {
	if g.isOwn(a) {
		return class{netip.PrefixFrom(a, a.BitLen()), ownName, true}, true
	}
	if slices.Contains(metadata, a) {
		return class{netip.PrefixFrom(a, a.BitLen()), metadataName, true}, true
	}
	for _, c := range closed {
		if c.net.Contains(a) {
			return c, true
		}
	}
	for _, n := range g.near {
		if n.Contains(a) {
			return class{n, nearName, false}, true
		}
	}
	return class{}, false
}

// classOf returns the closed class that holds all of n.
func (g *ground) classOf(n netip.Prefix) (class, bool) {
	if n.IsSingleIP() {
		return g.class(n.Addr())
	}
	for _, c := range closed {
		if c.net.Bits() <= n.Bits() && c.net.Contains(n.Addr()) {
			return c, true
		}
	}
	for _, near := range g.near {
		if near.Bits() <= n.Bits() && near.Contains(n.Addr()) {
			return class{near, nearName, false}, true
		}
	}
	return class{}, false
}

func (g *ground) isOwn(a netip.Addr) bool {
	for _, n := range g.own {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// isOpened reports whether the operator opened an address of class c.
func (g *ground) isOpened(a netip.Addr, c class) bool {
	for _, n := range g.opened {
		if n.Contains(a) && (!c.one || n.IsSingleIP()) {
			return true
		}
	}
	return false
}

// isStatic reports whether the operator gave name the address a.
func (g *ground) isStatic(name string, a netip.Addr) bool {
	return slices.Contains(g.static[name], a)
}

func addresses(texts ...string) []netip.Addr {
	all := make([]netip.Addr, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParseAddr(t)
	}
	return all
}

func classes(rows [][2]string) []class {
	all := make([]class, len(rows))
	for i, r := range rows {
		all[i] = class{net: netip.MustParsePrefix(r[0]), name: r[1]}
	}
	return all
}
