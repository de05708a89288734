package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// testNode is a node that opens one private network, one loopback and one own address.
var testNode = Node{
	Private: parseNetworks("10.1.0.0/16", "127.0.0.1/32", "192.168.7.7/32", "fd12::/16"),
	Own:     parseNetworks("192.168.7.7/32", "192.168.7.8/32", "8.9.9.9/32", "10.1.0.9/32"),
	Near:    parseNetworks("2a02:908::/64", "10.1.0.0/16", "198.51.100.0/24"),
	Hosts: map[string][]netip.Addr{
		"Mirror.Corp.Internal": parseAddrs("10.200.0.1", "fd99::1"),
		"static.example.com":   parseAddrs("192.168.1.1"),
	},
}

func must(t testing.TB, p engi.NetworkPolicy) *Policy {
	t.Helper()
	c, err := Compile(p, testNode)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func restricted(allow ...string) engi.NetworkPolicy {
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: allow}
}

func open(deny ...string) engi.NetworkPolicy {
	return engi.NetworkPolicy{Mode: engi.NetworkOpen, Deny: deny}
}

// TestPackages checks that rules for packages open exactly the hosts of registries, which the
// node serves unless another rule or a grant names them.
func TestPackages(t *testing.T) {
	node := testNode
	node.Packages = map[string][]string{"npm": {"registry.example.com", "other.example.com"}, "go": {"go.example.com"}}
	compiled := func(p engi.NetworkPolicy) *Policy {
		t.Helper()
		c, err := Compile(p, node)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	granted := restricted("packages")
	granted.Grants = []engi.Grant{{Secret: "key", Hosts: []string{"registry.example.com"}}}
	openToo := open()
	openToo.Allow = []string{"packages:go"}
	for _, c := range []struct {
		policy *Policy
		host   string
		rule   string // expected rule; empty means that the node does not serve the host
		lookup bool
	}{
		{compiled(restricted("packages")), "Registry.example.com.", "packages", true},
		{compiled(restricted("packages")), "go.example.com", "packages", true},
		{compiled(restricted("packages")), "x.registry.example.com", "", false},
		{compiled(restricted("packages")), "example.com", "", false},
		{compiled(restricted("packages")), "packages", "", false},
		{compiled(restricted("packages:npm")), "registry.example.com", "packages:npm", true},
		{compiled(restricted("packages:npm")), "go.example.com", "", false},
		{compiled(restricted("packages", "go.example.com")), "go.example.com", "", true},
		{compiled(restricted("go.example.com", "packages:npm")), "other.example.com", "packages:npm", true},
		{compiled(restricted("packages", "*.example.com")), "go.example.com", "packages", true},
		{compiled(granted), "registry.example.com", "", true},
		{compiled(granted), "other.example.com", "packages", true},
		{compiled(openToo), "go.example.com", "packages:go", true},
		{compiled(openToo), "registry.example.com", "", true},
		{compiled(restricted("example.org")), "go.example.com", "", false},
	} {
		rule, ok := c.policy.Packages(c.host)
		if rule != c.rule || ok != (c.rule != "") {
			t.Errorf("%v: Packages(%s) = %q, %v", c.policy.Source(), c.host, rule, ok)
		}
		if v := c.policy.Lookup(c.host); v.Allowed != c.lookup {
			t.Errorf("%v: Lookup(%s) = %+v", c.policy.Source(), c.host, v)
		}
	}
	for text, n := range map[string]Node{"packages:x": node, "packages:": node, "packages:443": node, "packages": {}, "packages:npm": {}} {
		if _, err := Compile(restricted(text), n); err == nil || engi.RemedyOf(err) == "" || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Compile(engi.NetworkPolicy{Mode: engi.NetworkOpen, Deny: []string{"packages"}}, node); !engi.Is(err, engi.Invalid) {
		t.Errorf("packages denied: %v", err)
	}
}

func TestConnect(t *testing.T) {
	grants := restricted("plain.example.com")
	grants.Grants = []engi.Grant{{Secret: "key", Hosts: []string{"api.example.com", "*.deep.example.com"}}}
	openGrants := open()
	openGrants.Grants = grants.Grants
	denyAll := open("*")
	denyAll.Allow = []string{"a.example.com"}
	tests := []struct {
		name   string
		policy engi.NetworkPolicy
		proto  string
		to     string
		names  string
		want   string // expected check, or text in the reason of a refusal
	}{
		{"none", engi.NetworkPolicy{}, "tcp", "8.8.4.9:443", "", "mode none"},
		{"isolated", engi.NetworkPolicy{Mode: engi.NetworkIsolated}, "tcp", "8.8.4.9:443", "a.b", "mode isolated"},

		{"open", open(), "tcp", "93.184.216.34:443", "", "none"},
		{"open udp", open(), "udp", "93.184.216.34:443", "", "none"},
		{"open icmp", open(), "icmp", "93.184.216.34:0", "", "none"},
		{"open sctp", open(), "sctp", "93.184.216.34:5", "", "only tcp"},
		{"open port 0", open(), "tcp", "93.184.216.34:0", "", "no port"},
		{"open resolver", open(), "udp", "93.184.216.34:53", "", "another resolver"},
		{"open resolver tcp", open(), "tcp", "93.184.216.34:53", "ns.example.com", "another resolver"},
		{"open dot", open(), "tcp", "93.184.216.34:853", "", "another resolver"},
		{"open doh", open(), "tcp", "8.8.8.8:443", "", "another resolver"},
		{"open doh6", open(), "tcp", "[2606:4700:4700::1111]:443", "", "another resolver"},
		{"open resolver named", engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"9.9.9.9:53"}}, "udp", "9.9.9.9:53", "", "none"},
		{"open private", open(), "tcp", "10.1.2.3:443", "", "private"},
		{"open own private", open(), "tcp", "192.168.7.7:443", "", "host"},
		{"open own public", open(), "tcp", "8.9.9.9:443", "", "host"},
		{"open loopback", open(), "tcp", "127.0.0.1:443", "", "loopback"},
		{"open metadata", open(), "tcp", "169.254.169.254:80", "", "metadata"},
		{"open metadata mapped", open(), "tcp", "[::ffff:169.254.169.254]:80", "", "metadata"},
		{"open metadata nat64", open(), "tcp", "[64:ff9b::a9fe:a9fe]:80", "", "metadata"},
		{"open public nat64", open(), "tcp", "[64:ff9b::5db8:d822]:80", "", "none"},
		{"open metadata azure", open(), "tcp", "168.63.129.16:80", "", "metadata"},
		{"open metadata alibaba", open(), "tcp", "100.100.100.200:80", "", "metadata"},
		{"open metadata aws6", open(), "tcp", "[fd00:ec2::254]:80", "", "metadata"},
		{"open 6to4", open(), "tcp", "[2002:a9fe:a9fe::1]:80", "", "6to4"},
		{"open teredo", open(), "tcp", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]:80", "", "Teredo"},
		{"open compatible", open(), "tcp", "[::10.0.0.1]:80", "", "obsolete"},
		{"open local nat64", open(), "tcp", "[64:ff9b:1::a00:1]:80", "", "local translation"},
		{"open link local", open(), "tcp", "[fe80::1]:80", "", "link-local"},
		{"open zoned", open(), "tcp", "[fe80::1%eth0]:80", "", "link-local"},
		{"open ula", open(), "tcp", "[fd12::1]:80", "", "private"},
		{"open cgnat", open(), "tcp", "100.64.0.1:80", "", "carrier"},
		{"open multicast", open(), "udp", "224.0.0.251:5353", "", "multicast"},
		{"open broadcast", open(), "udp", "255.255.255.255:67", "", "closed"},
		{"open zero", open(), "tcp", "0.0.0.0:80", "", "this network"},
		{"open reserved", open(), "tcp", "240.0.0.1:80", "", "reserved"},
		{"open unspecified", open(), "tcp", "[::]:80", "", "unspecified"},
		{"open v6 outside", open(), "tcp", "[4000::1]:80", "", "reserved"},
		{"open neighbour", open(), "tcp", "[2a02:908::7]:443", "", "network of the host"},
		{"open v6", open(), "tcp", "[2a00:1450:4001:800::200e]:443", "", "none"},
		{"open rebound", open(), "tcp", "10.0.0.1:80", "evil.example.com", "private"},

		{"deny address", open("93.184.216.0/24"), "tcp", "93.184.216.34:443", "", "the address is denied"},
		{"deny mapped", open("93.184.216.0/24"), "tcp", "[::ffff:93.184.216.34]:443", "", "the address is denied"},
		{"deny port", open("*:25"), "tcp", "93.184.216.34:25", "", "denied"},
		{"deny other port", open("*:25"), "tcp", "93.184.216.34:26", "", "none"},
		{"deny name", open("evil.example.com"), "tcp", "93.184.216.34:443", "evil.example.com", "the name is denied"},
		{"deny one name of two", open("evil.example.com"), "tcp", "93.184.216.34:443", "evil.example.com good.example.com", "any"},
		{"deny name, quic", open("evil.example.com"), "udp", "93.184.216.34:443", "good.example.com", "QUIC"},
		{"deny name, other", open("evil.example.com"), "tcp", "93.184.216.34:443", "", "any"},
		{"deny everything", open("0.0.0.0/0"), "tcp", "93.184.216.34:443", "", "denied"},
		{"deny everything is IPv6 too", open("0.0.0.0/0"), "tcp", "[2a00::1]:443", "", "denied"},
		{"deny everything else", denyAll, "tcp", "93.184.216.34:443", "a.example.com", "web"},
		{"allow wins", engi.NetworkPolicy{Mode: engi.NetworkOpen, Deny: []string{"93.184.216.0/24"}, Allow: []string{"93.184.216.34"}}, "tcp", "93.184.216.34:443", "", "none"},
		{"allow in open narrows nothing", engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"github.com"}}, "tcp", "93.184.216.34:22", "github.com", "none"},

		{"restricted name", restricted("a.example.com"), "tcp", "93.184.216.34:443", "a.example.com", "web"},
		{"restricted name, any case", restricted("A.Example.com."), "tcp", "93.184.216.34:443", "a.EXAMPLE.com.", "web"},
		{"restricted name, literal", restricted("a.example.com"), "tcp", "93.184.216.34:443", "", "no allowed name led to it"},
		{"restricted other name", restricted("a.example.com"), "tcp", "93.184.216.34:443", "b.example.com", "no rule names it"},
		{"restricted name, port", restricted("a.example.com:22"), "tcp", "93.184.216.34:22", "a.example.com", "any"},
		{"restricted name, web port", restricted("a.example.com:443"), "tcp", "93.184.216.34:443", "a.example.com", "web"},
		{"restricted name, no port, 22", restricted("a.example.com"), "tcp", "93.184.216.34:22", "a.example.com", "web"},
		{"restricted name, other port", restricted("a.example.com:22"), "tcp", "93.184.216.34:23", "a.example.com", "other ports"},
		{"restricted name, range", restricted("a.example.com:8000-8010"), "tcp", "93.184.216.34:8010", "a.example.com", "any"},
		{"restricted name, past range", restricted("a.example.com:8000-8010"), "tcp", "93.184.216.34:8011", "a.example.com", "other ports"},
		{"restricted name, udp", restricted("a.example.com"), "udp", "93.184.216.34:443", "a.example.com", "udp://"},
		{"restricted name, udp said", restricted("udp://a.example.com"), "udp", "93.184.216.34:443", "a.example.com", "none"},
		{"restricted name, udp port", restricted("a.example.com:123"), "udp", "93.184.216.34:123", "a.example.com", "none"},
		{"restricted name, udp web port", restricted("a.example.com:443"), "udp", "93.184.216.34:443", "a.example.com", "udp://"},
		{"restricted name, only udp", restricted("udp://a.example.com"), "tcp", "93.184.216.34:443", "a.example.com", "another protocol"},
		{"restricted name, icmp", restricted("a.example.com"), "icmp", "93.184.216.34:0", "a.example.com", "icmp://"},
		{"restricted name, icmp said", restricted("icmp://a.example.com"), "icmp", "93.184.216.34:0", "a.example.com", "none"},
		{"restricted name, resolver", restricted("dns.google"), "udp", "8.8.8.8:53", "dns.google", "resolver"},
		{"restricted name, resolver port", restricted("udp://dns.google:53"), "udp", "8.8.8.8:53", "dns.google", "none"},
		{"restricted wildcard", restricted("*.example.com"), "tcp", "93.184.216.34:443", "x.y.example.com", "web"},
		{"restricted wildcard, itself", restricted("*.example.com"), "tcp", "93.184.216.34:443", "example.com", "no rule"},
		{"restricted wildcard, confusion", restricted("*.example.com"), "tcp", "93.184.216.34:443", "evil-example.com example.com.evil.net", "no rule"},
		{"restricted name to private", restricted("a.example.com"), "tcp", "10.0.0.1:443", "a.example.com", "private"},
		{"restricted name to opened", restricted("a.example.com"), "tcp", "10.1.2.3:443", "a.example.com", "private"},
		{"restricted static", restricted("static.example.com"), "tcp", "192.168.1.1:443", "static.example.com", "web"},
		{"restricted static, other name", restricted("a.example.com"), "tcp", "192.168.1.1:443", "a.example.com", "private"},
		{"restricted static, other address", restricted("static.example.com"), "tcp", "192.168.1.2:443", "static.example.com", "private"},
		{"restricted static, literal", restricted("static.example.com"), "tcp", "192.168.1.1:443", "", "private"},

		{"restricted address", restricted("93.184.216.34"), "tcp", "93.184.216.34:443", "", "none"},
		{"restricted network", restricted("93.184.0.0/16"), "udp", "93.184.216.34:443", "", "none"},
		{"restricted network, resolver", restricted("93.184.0.0/16"), "udp", "93.184.216.34:53", "", "resolver"},
		{"restricted network, resolver port", restricted("93.184.0.0/16:53"), "udp", "93.184.216.34:53", "", "none"},
		{"restricted network, port", restricted("93.184.0.0/16:443"), "tcp", "93.184.216.34:80", "", "no rule"},
		{"restricted v6 network", restricted("[2a00::/16]:443"), "tcp", "[2a00::5]:443", "", "none"},
		{"restricted v6 network, v6 all", restricted("::/0"), "tcp", "[2a00::5]:443", "", "none"},
		{"restricted v6 all, v4", restricted("::/0"), "tcp", "93.184.216.34:443", "", "no rule"},
		{"restricted v6 all, private", restricted("::/0"), "tcp", "[fd12::1]:443", "", "private"},
		{"restricted opened", restricted("10.1.2.0/24"), "tcp", "10.1.2.3:443", "", "none"},
		{"restricted opened, own", restricted("10.1.0.0/24"), "tcp", "10.1.0.9:443", "", "host"},
		{"restricted own opened", restricted("192.168.7.7"), "tcp", "192.168.7.7:443", "", "none"},
		{"restricted wide", restricted("8.0.0.0/6"), "tcp", "10.0.0.1:443", "", "private"},
		{"restricted wide, public", restricted("8.0.0.0/6"), "tcp", "9.0.0.1:443", "", "none"},
		{"restricted star", restricted("*"), "tcp", "93.184.216.34:443", "", "none"},
		{"restricted star, private", restricted("*"), "tcp", "10.1.0.1:443", "", "private"},
		{"restricted star, resolver", restricted("*"), "udp", "93.184.216.34:53", "", "resolver"},
		{"restricted star, doh", restricted("*:443"), "tcp", "8.8.8.8:443", "", "no rule"},
		{"restricted star, port", restricted("*:443"), "tcp", "93.184.216.34:80", "", "no rule"},

		{"grant", grants, "tcp", "93.184.216.34:443", "api.example.com", "tls"},
		{"grant below", grants, "tcp", "93.184.216.34:8443", "x.deep.example.com", "tls"},
		{"grant udp", grants, "udp", "93.184.216.34:443", "api.example.com", "no rule"},
		{"grant dot", grants, "tcp", "93.184.216.34:853", "api.example.com", "resolver"},
		{"grant and name", grants, "tcp", "93.184.216.34:443", "api.example.com plain.example.com", "web"},
		{"grant private", grants, "tcp", "10.1.1.1:443", "api.example.com", "private"},
		{"open grant", openGrants, "tcp", "93.184.216.34:443", "api.example.com", "any"},
		{"open grant, quic", openGrants, "udp", "93.184.216.34:443", "api.example.com", "QUIC"},
		{"open grant, ntp", openGrants, "udp", "93.184.216.34:123", "api.example.com", "none"},
		{"open grant, other", openGrants, "tcp", "93.184.216.34:443", "b.example.com", "none"},
	}
	checks := map[Check]string{CheckNone: "none", CheckAny: "any", CheckWeb: "web", CheckTLS: "tls"}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			v := must(t, c.policy).Connect(c.proto, netip.MustParseAddrPort(c.to), strings.Fields(c.names))
			switch {
			case v.Reason == "":
				t.Errorf("no reason: %+v", v)
			case v.Allowed && checks[v.Check] != c.want, !v.Allowed && !strings.Contains(v.Reason, c.want):
				t.Errorf("got %+v (%s), want %s", v, checks[v.Check], c.want)
			}
		})
	}
}

func TestLookup(t *testing.T) {
	grant := restricted()
	grant.Grants = []engi.Grant{{Secret: "key", Hosts: []string{"*.api.example.com"}}}
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60)
	tests := []struct {
		name   string
		policy engi.NetworkPolicy
		ask    string
		want   string // expected rule or "allowed", or "!" and text in the reason of a refusal
	}{
		{"none", engi.NetworkPolicy{}, "example.com", "!mode none"},
		{"isolated", engi.NetworkPolicy{Mode: engi.NetworkIsolated}, "example.com", "!mode isolated"},
		{"open", open(), "Example.COM.", "allowed"},
		{"open underscore", open(), "_http._tcp.example.com", "allowed"},
		{"open bad", open(), "exa mple.com", "!characters"},
		{"open number", open(), "0x7f.1", "!number"},
		{"open empty", open(), "", "!empty"},
		{"open root", open(), ".", "!empty"},
		{"open single", open(), "metadata", "!not a public one"},
		{"open metadata", open(), "metadata.google.internal", "!not a public one"},
		{"open localhost", open(), "x.localhost", "!not a public one"},
		{"open static", open(), "mirror.corp.internal", "allowed"},
		{"open doh", open(), "mozilla.cloudflare-dns.com", "!resolver"},
		{"open canary", open(), "use-application-dns.net", "!resolver"},
		{"open doh named", engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"dns.google"}}, "dns.google", "dns.google"},
		{"open long", open(), long + ".example.com", "!too long"},
		{"open denied", open("*.evil.com"), "a.evil.com", "!denied"},
		{"open denied port", open("*.evil.com:22"), "a.evil.com", "allowed"},
		{"open denied all", open("*"), "a.evil.com", "!denied"},
		{"restricted", restricted("a.example.com:443"), "a.example.com", "a.example.com:443"},
		{"restricted other", restricted("a.example.com:443"), "b.example.com", "!no rule"},
		{"restricted network", restricted("93.184.0.0/16"), "b.example.com", "!no rule"},
		{"restricted star", restricted("*:443"), "b.example.com", "*:443"},
		{"restricted star special", restricted("*:443"), "b.internal", "!not a public one"},
		{"restricted special", restricted("b.internal"), "b.internal", "b.internal"},
		{"restricted wild", restricted("*.example.com"), "a.b.example.com", "*.example.com"},
		{"restricted wild, long", restricted("*.example.com"), long + ".example.com", "!too long"},
		{"restricted long", restricted(long + ".example.com"), long + ".example.com", long + ".example.com"},
		{"restricted idna", restricted("bücher.example"), "xn--bcher-kva.example", "bücher.example"},
		{"restricted homograph", restricted("apple.com"), "xn--pple-43d.com", "!no rule"},
		{"grant", grant, "x.api.example.com", "grant key"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			v := must(t, c.policy).Lookup(c.ask)
			reason, refusal := strings.CutPrefix(c.want, "!")
			if v.Allowed == refusal || refusal && !strings.Contains(v.Reason, reason) || !refusal && c.want != "allowed" && v.Rule != c.want {
				t.Errorf("%+v, want %s", v, c.want)
			}
		})
	}
}

func TestAnswer(t *testing.T) {
	p := must(t, restricted("*.example.com", "10.1.0.0/24", "mirror.corp.internal"))
	for _, c := range []struct {
		name, addr string
		want       bool
	}{
		{"a.example.com", "93.184.216.34", true},
		{"a.example.com", "10.1.0.1", true},
		{"a.example.com", "10.1.0.9", false}, // the host's own
		{"a.example.com", "10.1.1.1", false}, // opened, and no rule names it
		{"a.example.com", "127.0.0.1", false},
		{"a.example.com", "::ffff:169.254.169.254", false},
		{"a.example.com", "::1", false},
		{"mirror.corp.internal", "10.200.0.1", true},
		{"mirror.corp.internal", "fd99::1", true},
		{"a.example.com", "10.200.0.1", false},
	} {
		if v := p.Answer(c.name, netip.MustParseAddr(c.addr)); v.Allowed != c.want || v.Reason == "" {
			t.Errorf("%s %s: %+v, want %t", c.name, c.addr, v, c.want)
		}
	}
}

func TestClaim(t *testing.T) {
	granted := restricted("plain.example.com", "ssh.example.com:8022", "93.184.216.99")
	granted.Grants = []engi.Grant{{Secret: "key", Hosts: []string{"api.example.com"}}}
	openGranted := open()
	openGranted.Grants = granted.Grants
	const at = "93.184.216.34:443"
	tests := []struct {
		name   string
		policy engi.NetworkPolicy
		hello  Hello
		to     string
		names  string
		want   string // text in the reason of a refusal; empty means allowed
	}{
		{"right", restricted("*.example.com"), Hello{ServerName: "a.example.com"}, at, "a.example.com", ""},
		{"mismatch", restricted("*.example.com"), Hello{ServerName: "evil.net"}, at, "a.example.com", "no rule opens"},
		{"fronting between allowed ones", restricted("*.example.com"), Hello{ServerName: "b.example.com"}, at, "a.example.com", "not given out"},
		{"no name", restricted("*.example.com"), Hello{}, at, "a.example.com", "names no host"},
		{"encrypted", restricted("*.example.com"), Hello{ServerName: "a.example.com", ECH: true}, at, "a.example.com", "encrypted"},
		{"DNS over TLS", restricted("*.example.com"), Hello{ServerName: "a.example.com", ALPN: []string{"h2", "dot"}}, at, "a.example.com", "resolver"},
		{"by address", restricted("93.184.216.34"), Hello{ServerName: "evil.net", ECH: true}, at, "", ""},
		{"other port", restricted("a.example.com:8443"), Hello{ServerName: "a.example.com"}, at, "a.example.com", "no rule opens"},
		{"granted", granted, Hello{ServerName: "api.example.com"}, at, "api.example.com", ""},
		{"granted, encrypted", granted, Hello{ServerName: "api.example.com", ECH: true}, at, "api.example.com", ""},
		{"granted, not looked up", granted, Hello{ServerName: "api.example.com"}, at, "plain.example.com", "not given out"},
		{"granted, allowed address", granted, Hello{ServerName: "api.example.com"}, "93.184.216.99:443", "", "not given out"},
		{"open granted, not looked up", openGranted, Hello{ServerName: "api.example.com"}, at, "", "not given out"},
		{"open granted", openGranted, Hello{ServerName: "api.example.com"}, at, "api.example.com", ""},
		{"open granted, other", openGranted, Hello{ServerName: "b.example.com"}, at, "api.example.com", ""},
		{"open denied", open("*.evil.net"), Hello{ServerName: "a.evil.net"}, at, "", "denied"},
		{"open denied, other", open("*.evil.net"), Hello{ServerName: "a.good.net"}, at, "", ""},
		{"open denied, no name", open("*.evil.net"), Hello{}, at, "", ""},
		{"open denied, encrypted", open("*.evil.net"), Hello{ServerName: "a.good.net", ECH: true}, at, "", "encrypted"},
		{"none", engi.NetworkPolicy{}, Hello{ServerName: "a.good.net"}, at, "", "mode none"},
		{"static", restricted("static.example.com"), Hello{ServerName: "static.example.com"}, "192.168.1.1:443", "static.example.com", ""},
		{"private", restricted("a.example.com"), Hello{ServerName: "a.example.com"}, "192.168.1.1:443", "a.example.com", "private"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			p, ap := must(t, c.policy), netip.MustParseAddrPort(c.to)
			v := p.ClaimTLS(c.hello, ap, strings.Fields(c.names))
			if v.Allowed != (c.want == "") || !strings.Contains(v.Reason, c.want) || v.Reason == "" {
				t.Errorf("%+v, want %q", v, c.want)
			}
		})
	}
	http := []struct {
		name string
		req  Request
		to   string
		want string
	}{
		{"right", Request{Method: "GET", Host: "plain.example.com"}, "93.184.216.34:80", ""},
		{"port", Request{Method: "GET", Host: "plain.example.com", Port: 80}, "93.184.216.34:80", ""},
		{"other port", Request{Method: "GET", Host: "plain.example.com", Port: 81}, "93.184.216.34:80", "port"},
		{"connect", Request{Method: "CONNECT", Host: "plain.example.com", Port: 80}, "93.184.216.34:80", "tunnel"},
		{"mismatch", Request{Method: "GET", Host: "evil.net"}, "93.184.216.34:80", "no rule opens"},
		{"address", Request{Method: "GET", Host: "93.184.216.34"}, "93.184.216.34:80", "names an address"},
		{"nothing", Request{Method: "GET"}, "93.184.216.34:80", "names no host"},
		{"grant in the clear", Request{Method: "GET", Host: "api.example.com"}, "93.184.216.34:80", "TLS only"},
		{"by address", Request{Method: "CONNECT", Host: "evil.net"}, "93.184.216.99:80", ""},
	}
	for _, c := range http {
		t.Run("http "+c.name, func(t *testing.T) {
			v := must(t, granted).ClaimHTTP(c.req, netip.MustParseAddrPort(c.to), []string{"plain.example.com", "api.example.com"})
			if v.Allowed != (c.want == "") || !strings.Contains(v.Reason, c.want) {
				t.Errorf("%+v, want %q", v, c.want)
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	many := make([]string, MaxRules+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example.com", i)
	}
	grant := func(g engi.Grant) engi.NetworkPolicy {
		p := restricted()
		p.Grants = []engi.Grant{g}
		return p
	}
	header := func(h engi.HeaderRule) engi.NetworkPolicy {
		p := restricted()
		p.Headers = []engi.HeaderRule{h}
		return p
	}
	proxy := func(u engi.UpstreamProxy) engi.NetworkPolicy {
		p := restricted()
		p.Proxy = &u
		return p
	}
	hosts := []string{"a.example.com"}
	tests := []struct {
		policy engi.NetworkPolicy
		kind   engi.Kind
		text   string
	}{
		{engi.NetworkPolicy{Mode: "loose"}, engi.Invalid, `"loose" does not exist`},
		{engi.NetworkPolicy{Allow: []string{"a.com"}}, engi.Invalid, "mode none does not allow rules in allow"},
		{engi.NetworkPolicy{Mode: engi.NetworkIsolated, Grants: []engi.Grant{{}}}, engi.Invalid, "does not allow grants"},
		{engi.NetworkPolicy{Mode: engi.NetworkNone, Group: "g"}, engi.Invalid, "does not allow the group"},
		{engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "G g"}, engi.Invalid, "cannot be part of a host name"},
		{engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "g", Name: "-a"}, engi.Invalid, "cannot be part of a host name"},
		{restricted(many...), engi.Invalid, "10001 rules"},
		{restricted("a.com", ""), engi.Invalid, "is empty, number 2 of allow"},
		{restricted("  "), engi.Invalid, "is empty"},
		{restricted("a.com b.com"), engi.Invalid, "spaces"},
		{restricted(strings.Repeat("a", 500)), engi.Invalid, "longer than 400"},
		{restricted("https://a.com/x"), engi.Invalid, "is a URL"},
		{restricted("ftp://a.com"), engi.Invalid, `unknown protocol "ftp"`},
		{restricted("TCP://a.com"), engi.Invalid, `unknown protocol "TCP"`},
		{restricted("a.com:0"), engi.Invalid, "bad port"},
		{restricted("a.com:65536"), engi.Invalid, "bad port"},
		{restricted("a.com:90-80"), engi.Invalid, "bad port"},
		{restricted("a.com:+80"), engi.Invalid, "bad port"},
		{restricted("a.com:http"), engi.Invalid, "bad port"},
		{restricted("a.com:"), engi.Invalid, "ends in a colon"},
		{restricted(":80"), engi.Invalid, "has no target"},
		{restricted("icmp://a.com:80"), engi.Invalid, "icmp has none"},
		{restricted("a.*.com"), engi.Invalid, "has a * in the wrong place"},
		{restricted("*a.com"), engi.Invalid, "has a * in the wrong place"},
		{restricted("*.*.com"), engi.Invalid, "has a * in the wrong place"},
		{restricted("*."), engi.Invalid, "is empty"},
		{restricted("a..com"), engi.Invalid, "empty part"},
		{restricted("-a.com"), engi.Invalid, "dash"},
		{restricted("a.com/path"), engi.Invalid, "neither a network nor a host"},
		{restricted("user@a.com"), engi.Invalid, "characters"},
		{restricted(strings.Repeat("a", 64) + ".com"), engi.Invalid, "63"},
		{restricted("xn--a.com"), engi.Invalid, "international"},
		{restricted("127.1"), engi.Invalid, "ends in a number"},
		{restricted("0177.0.0.1"), engi.Invalid, "ends in a number"},
		{restricted("2130706433"), engi.Invalid, "ends in a number"},
		{restricted("0x7f000001"), engi.Invalid, "ends in a number"},
		{restricted("１２７.0.0.1"), engi.Invalid, "ends in a number"},
		{restricted("8.8.8.8/24"), engi.Invalid, "not the start of its network"},
		{restricted("8.8.8.0/33"), engi.Invalid, "neither a network"},
		{restricted("::ffff:0.0.0.0/0"), engi.Invalid, "mixes"},
		{restricted("fe80::1%eth0"), engi.Invalid, "zone"},
		{restricted("[2a00::1"), engi.Invalid, "lacks a ]"},
		{restricted("[8.8.8.8]:80"), engi.Invalid, "brackets"},
		{restricted("[2a00::1]80"), engi.Invalid, "after the ]"},
		{restricted("10.0.0.0/8"), engi.Denied, "did not open it"},
		{restricted("10.2.0.1"), engi.Denied, "private"},
		{restricted("192.168.7.8"), engi.Denied, "address of the host"},
		{restricted("10.1.0.9"), engi.Denied, "address of the host"},
		{restricted("169.254.169.254"), engi.Denied, "metadata"},
		{restricted("::ffff:169.254.169.254"), engi.Denied, "metadata"},
		{restricted("127.0.0.0/8"), engi.Denied, "loopback"},
		{restricted("2a02:908::7"), engi.Denied, "network of the host"},
		{restricted("2a02:908::/80"), engi.Denied, "network of the host"},
		{restricted("fd13::/16"), engi.Denied, "private"},
		{engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"a.com"}, Deny: []string{"A.com."}}, engi.Invalid, "says the opposite"},
		{engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"*.com"}, Deny: []string{"a.com:443"}}, engi.Invalid, "covers it"},
		{engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"8.0.0.0/8"}, Deny: []string{"8.8.8.8"}}, engi.Invalid, "covers it"},
		{engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: []string{"*"}, Deny: []string{"a.com"}}, engi.Invalid, "covers it"},
		{grant(engi.Grant{Hosts: hosts}), engi.Invalid, "names no secret"},
		{grant(engi.Grant{Secret: "s"}), engi.Invalid, "names no hosts"},
		{grant(engi.Grant{Secret: "s", Hosts: []string{"*.com"}}), engi.Invalid, "everybody"},
		{grant(engi.Grant{Secret: "s", Hosts: []string{"*.github.io"}}), engi.Invalid, "everybody"},
		{grant(engi.Grant{Secret: "s", Hosts: []string{"*"}}), engi.Invalid, "neither a name"},
		{grant(engi.Grant{Secret: "s", Hosts: []string{"1.2.3.4"}}), engi.Invalid, "ends in a number"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, As: "cookie"}), engi.Invalid, "unknown use"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, As: engi.GrantHeader}), engi.Invalid, "header"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, As: engi.GrantHeader, Name: "Host"}), engi.Invalid, "header"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, As: engi.GrantQuery}), engi.Invalid, "query"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, As: engi.GrantPlaceholder}), engi.Invalid, "placeholder"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, Format: "token"}), engi.Invalid, "format"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, Env: "1A"}), engi.Invalid, "variable"},
		{grant(engi.Grant{Secret: "s", Hosts: hosts, Env: "A", As: engi.GrantBearer}), engi.Invalid, "leave out"},
		{header(engi.HeaderRule{Host: "a.com"}), engi.Invalid, "sets 0 headers"},
		{header(engi.HeaderRule{Host: "", Headers: map[string]string{"a": "b"}}), engi.Invalid, "bad host"},
		{header(engi.HeaderRule{Host: "a.com", Headers: map[string]string{"a": "b\r\nc: d"}}), engi.Invalid, "bad value"},
		{header(engi.HeaderRule{Host: "a.com", Headers: map[string]string{"a b": "c"}}), engi.Invalid, "bad header"},
		{header(engi.HeaderRule{Host: "a.com", Headers: map[string]string{"Transfer-Encoding": "c"}}), engi.Invalid, "belongs to the connection"},
		{proxy(engi.UpstreamProxy{}), engi.Invalid, "no address"},
		{proxy(engi.UpstreamProxy{Address: "ftp://a.com:1"}), engi.Invalid, "unknown protocol"},
		{proxy(engi.UpstreamProxy{Address: "a.com"}), engi.Invalid, "no port"},
		{proxy(engi.UpstreamProxy{Address: "http://u:p@a.com:1"}), engi.Invalid, "in its address"},
		{proxy(engi.UpstreamProxy{Address: "127.0.0.2:1080"}), engi.Denied, "loopback"},
	}
	for _, c := range tests {
		_, err := Compile(c.policy, testNode)
		switch {
		case err == nil:
			t.Errorf("%.200v: no error, want %q", c.policy, c.text)
		case !engi.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) && !strings.Contains(engi.RemedyOf(err), c.text):
			t.Errorf("got %s: %v\nwant %s: %s", engi.KindOf(err), err, c.kind, c.text)
		case engi.RemedyOf(err) == "" || strings.Contains(engi.RemedyOf(err), "%!"):
			t.Errorf("%v: remedy %q", err, engi.RemedyOf(err))
		}
	}
}
