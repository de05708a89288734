package policy

import "net/netip"

// resolvers lists names of public resolvers with DNS over HTTPS. Their use bypasses
// the gateway's DNS, so a rule for everything does not include them, only a rule that
// names them. No such list is complete: in mode open it stops programs that use them
// by default, and in mode restricted no unnamed host is reachable anyway. The
// last name is looked up by browsers to learn whether they should avoid DNS
// over HTTPS.
var resolvers = setOf(
	"dns.google", "8888.google", "cloudflare-dns.com", "one.one.one.one", "quad9.net", "nextdns.io",
	"opendns.com", "doh.umbrella.com", "dns.adguard.com", "adguard-dns.com", "cleanbrowsing.org",
	"doh.dns.sb", "dns.alidns.com", "doh.pub", "dns.pub", "doh.mullvad.net", "dns.mullvad.net",
	"freedns.controld.com", "dns.controld.com", "doh.li", "dns.switch.ch", "dns.njal.la", "dns0.eu",
	"dns.twnic.tw", "doh.360.cn", "ordns.he.net", "dns.digitale-gesellschaft.ch", "public.dns.iij.jp",
	"doh.libredns.gr", "doh.applied-privacy.net", "doh.ffmuc.net", "doh.tiar.app", "doh.centraleu.pi-dns.com",
	"dnsforge.de", "dns.surfsharkdns.com", "unfiltered.joindns4.eu", "dns.brahma.world",
	"use-application-dns.net",
)

// resolverNets lists the addresses of some public resolvers.
var resolverNets = parseNetworks(
	"1.1.1.0/29", "1.0.0.0/29", "8.8.8.8/32", "8.8.4.4/32", "9.9.9.8/29", "149.112.112.0/24",
	"208.67.222.222/32", "208.67.220.220/32", "94.140.14.0/23", "45.90.28.0/22", "185.228.168.0/23",
	"223.5.5.5/32", "223.6.6.6/32", "119.29.29.29/32", "194.242.2.0/24", "76.76.2.0/24", "193.110.81.0/24",
	"2606:4700:4700::/48", "2001:4860:4860::/48", "2620:fe::/48", "2a10:50c0::/32", "2a07:a8c0::/29", "2620:119:35::/48",
)

func isResolverName(name string) bool {
	if resolvers[name] {
		return true
	}
	for i := range len(name) {
		if name[i] == '.' && resolvers[name[i+1:]] {
			return true
		}
	}
	return false
}

// isResolver reports whether a connection leads to another DNS resolver.
func isResolver(a netip.Addr, pr proto, port uint16) bool {
	switch {
	case pr == icmp:
		return false
	case port == portDNS || port == portDoT:
		return true
	case port != portHTTPS:
		return false
	}
	for _, n := range resolverNets {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// specialSuffixes lists endings of names that are not public: lookups of such names upstream
// would leak them or lead to the host's own network.
var specialSuffixes = setOf("localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp", "home.arpa", "onion", "invalid", "alt")

// isSpecial reports whether a name is allowed only by a rule that names it.
func isSpecial(name string) bool {
	dot := false
	for i := range len(name) {
		if name[i] == '.' {
			dot = true
			if specialSuffixes[name[i+1:]] {
				return true
			}
		}
	}
	return !dot // names without a dot belong to the host's network
}

func setOf(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

func parseNetworks(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParsePrefix(t)
	}
	return all
}
