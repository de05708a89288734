package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/engi"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

// A referencePolicy judges rule by rule, as documented, without tables. It uses only the
// closed ranges of testNode.
type referencePolicy struct {
	p           *Policy
	allow, deny []rule
}

func (s *referencePolicy) targets(r *rule, a netip.Addr, names []string) (byAddr, byName bool) {
	for _, n := range names {
		byName = byName || r.host != "" && r.host == n || r.suffix != "" && strings.HasSuffix(n, "."+r.suffix)
	}
	return r.all || r.net.IsValid() && r.net.Contains(a), byName
}

// opensPort reports whether an allow rule opens a port, see [rule.openPorts].
func (s *referencePolicy) opensPort(r *rule, pr proto, port uint16) bool {
	if r.proto&pr == 0 || pr != icmp && (port < r.lo || port > r.hi) {
		return false
	}
	resolver := pr != icmp && (port == portDNS || port == portDoT)
	if resolver && !r.hasPorts {
		return false
	}
	if pr == udp && r.isName() && !r.protoGiven {
		return r.hasPorts && port != portHTTP && port != portHTTPS
	}
	return true
}

func (s *referencePolicy) connect(pr proto, ap netip.AddrPort, names []string) bool {
	if s.p.noNetwork() {
		return false
	}
	a, port := canonicalAddr(ap.Addr()), ap.Port()
	c, closed := s.p.networks.closedRange(a)
	intercepted := false
	for _, n := range names {
		intercepted = intercepted || s.p.Intercepts(n)
	}
	quic := pr == udp && (port == portHTTP || port == portHTTPS)
	for i := range s.allow {
		r := &s.allow[i]
		if !s.opensPort(r, pr, port) {
			continue
		}
		byAddr, _ := s.targets(r, a, nil)
		switch {
		case byAddr && !r.all && r.net.Bits() > 0 && (!closed || s.p.networks.isOpened(a, c)):
			return true
		case byAddr && !closed && (!isResolver(a, pr, port) || r.hasPorts && port != portHTTPS) &&
			!(r.all && quic && (intercepted || s.p.denies && s.p.mode == engi.NetworkOpen)):
			return true
		}
		for _, n := range names {
			if _, byName := s.targets(r, a, []string{n}); byName && (!closed || s.p.networks.isStatic(n, a)) {
				return true
			}
		}
	}
	if pr == tcp && port != portDNS && port != portDoT {
		for _, n := range names {
			if s.p.grants.applies(n) && (!closed || s.p.networks.isStatic(n, a)) {
				return true
			}
		}
	}
	if closed || s.p.mode != engi.NetworkOpen || isResolver(a, pr, port) || quic && (s.p.denies || intercepted) {
		return false
	}
	free := 0
	for _, n := range names {
		denied := false
		for i := range s.deny {
			_, byName := s.targets(&s.deny[i], a, []string{n})
			denied = denied || byName && s.deny[i].proto&pr != 0 && (pr == icmp || port >= s.deny[i].lo && port <= s.deny[i].hi)
		}
		if !denied {
			free++
		}
	}
	if len(names) > 0 && free == 0 {
		return false
	}
	for i := range s.deny {
		if byAddr, _ := s.targets(&s.deny[i], a, nil); byAddr && s.deny[i].proto&pr != 0 && (pr == icmp || port >= s.deny[i].lo && port <= s.deny[i].hi) {
			return false
		}
	}
	return true
}

var (
	someNames = []string{"a.example", "b.a.example", "c.b.a.example", "xa.example", "example", "d.other.net", "static.example.com"}
	someNets  = []string{"93.184.216.34", "93.184.216.0/24", "93.0.0.0/8", "8.0.0.0/6", "10.1.2.0/24", "2a00::/16", "2a00::1", "::/0", "fd12::/32", "192.168.7.7"}
	someAddrs = []string{"93.184.216.34", "93.184.1.1", "8.8.8.8", "10.1.2.3", "10.1.0.9", "10.9.9.9", "2a00::1", "2a00::2", "fd12::1", "::ffff:93.184.216.34",
		"64:ff9b::5db8:d822", "64:ff9b::a01:203", "192.168.7.7", "192.168.1.1", "169.254.169.254", "2606:4700:4700::1111"}
	somePorts = []uint16{22, 53, 79, 80, 81, 443, 444, 853, 8000, 65535}
)

func drawRule(t *rapid.T) string {
	target := rapid.OneOf(
		rapid.SampledFrom(someNames),
		rapid.Map(rapid.SampledFrom(someNames), func(n string) string { return "*." + n }),
		rapid.SampledFrom(someNets),
		rapid.Just("*"),
	).Draw(t, "target")
	pr := rapid.SampledFrom([]string{"", "", "tcp://", "udp://", "icmp://"}).Draw(t, "protocol")
	if pr != "icmp://" && rapid.Bool().Draw(t, "ported") {
		lo, hi := rapid.SampledFrom(somePorts).Draw(t, "lo"), rapid.SampledFrom(somePorts).Draw(t, "hi")
		if strings.Contains(target, ":") {
			target = "[" + target + "]"
		}
		target += fmt.Sprintf(":%d-%d", min(lo, hi), max(lo, hi))
	}
	return pr + target
}

// matches compares the tables with the referencePolicy.
func matches(t *rapid.T) {
	p := engi.NetworkPolicy{
		Mode:  rapid.SampledFrom([]engi.Network{engi.NetworkRestricted, engi.NetworkOpen}).Draw(t, "mode"),
		Allow: rapid.SliceOfN(rapid.Custom(drawRule), 0, 12).Draw(t, "allow"),
		Deny:  rapid.SliceOfN(rapid.Custom(drawRule), 0, 4).Draw(t, "deny"),
	}
	if rapid.Bool().Draw(t, "granted") {
		p.Grants = []engi.Grant{{Secret: "s", Hosts: []string{"b.a.example", "*.other.net"}}}
	}
	c, err := Compile(p, testNode)
	if err != nil {
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "has no effect") {
			t.Fatal(err)
		}
		p.Deny = nil
		if c, err = Compile(p, testNode); err != nil {
			t.Fatal(err)
		}
	}
	s := &referencePolicy{p: c}
	for _, text := range p.Allow {
		r, _ := parseRule(text)
		s.allow = append(s.allow, r)
	}
	for _, text := range p.Deny {
		r, _ := parseRule(text)
		s.deny = append(s.deny, r)
	}
	for range 30 {
		pr := rapid.SampledFrom([]string{"tcp", "udp", "icmp"}).Draw(t, "proto")
		ap := netip.AddrPortFrom(netip.MustParseAddr(rapid.SampledFrom(someAddrs).Draw(t, "addr")), rapid.SampledFrom(somePorts).Draw(t, "port"))
		names := rapid.SliceOfN(rapid.SampledFrom(someNames), 0, 2).Draw(t, "names")
		v := c.Connect(pr, ap, names)
		if want := s.connect(protoNamed(pr), ap, names); v.Allowed != want {
			t.Fatalf("%s %s %q: %+v, slow says %t\n%+v", pr, ap, names, v, want, p)
		}
		if v.Reason == "" || v.Allowed && pr != "tcp" && v.Check != CheckNone {
			t.Fatalf("%s %s %q: %+v", pr, ap, names, v)
		}
		// A host that may not be connected to may not be claimed, and a name that is
		// allowed on some port may be looked up.
		for _, n := range names {
			if cl := c.Claim(n, ap, names); pr == "tcp" && cl.Allowed && !v.Allowed {
				t.Fatalf("%s %q: connect %+v, claim %+v\n%+v", ap, n, v, cl, p)
			}
		}
	}
}

func TestMatch(t *testing.T) { rapid.Check(t, matches) }
func FuzzMatch(f *testing.F) { f.Fuzz(rapid.MakeFuzz(matches)) }
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"example.com\n*.example.com:443", "tcp://[2a00::/16]:1-2\n0.0.0.0/0", "10.0.0.0/8:53", "icmp://1.2.3.4", "*.*", "https://a/b", "a:b:c"} {
		f.Add(s, "evil.example\n*:25", "a.example.com")
	}
	f.Fuzz(func(t *testing.T, allow, deny, name string) {
		p := engi.NetworkPolicy{Mode: engi.NetworkOpen, Allow: strings.Split(allow, "\n"), Deny: strings.Split(deny, "\n")}
		c, err := Compile(p, testNode)
		if err != nil {
			if k := engi.KindOf(err); k != engi.Invalid && k != engi.Denied || engi.RemedyOf(err) == "" {
				t.Fatalf("%s: %v, remedy %q", k, err, engi.RemedyOf(err))
			}
			return
		}
		c.Lookup(name)
		for _, a := range someAddrs {
			ap := netip.AddrPortFrom(netip.MustParseAddr(a), 443)
			v := c.Connect("tcp", ap, []string{name})
			if c, closed := c.networks.closedRange(canonicalAddr(ap.Addr())); v.Allowed && closed && (c.exactOnly && !ap.Addr().IsPrivate() || !c.exactOnly && !strings.HasPrefix(a, "10.1.") && !strings.HasPrefix(a, "fd12:") && a != "64:ff9b::a01:203") {
				t.Fatalf("%q opened %s, %s", allow, a, c.name)
			}
			c.Claim(name, ap, []string{name})
		}
	})
}

// large is a policy of MaxRules rules of all kinds.
func large() engi.NetworkPolicy {
	p := engi.NetworkPolicy{Mode: engi.NetworkRestricted}
	for i := range MaxRules / 5 {
		p.Allow = append(p.Allow,
			fmt.Sprintf("host%d.example.com", i),
			fmt.Sprintf("*.zone%d.example.com:443", i),
			fmt.Sprintf("tcp://93.%d.%d.0/%d", i>>8&0xff, i&0xff, 24+i%2),
			fmt.Sprintf("[2a00:%x::/%d]:%d", i, 32+i%90, i+1),
			fmt.Sprintf("many.example.com:%d", 10000+2*i),
		)
	}
	return p
}

func TestLarge(t *testing.T) {
	p := must(t, large())
	for _, c := range []struct {
		to, name string
		want     bool
	}{
		{"1.2.3.4:443", "host1999.example.com", true},
		{"1.2.3.4:443", "a.b.zone1999.example.com", true},
		{"1.2.3.4:80", "a.b.zone1999.example.com", false},
		{"1.2.3.4:443", "host2000.example.com", false},
		{"1.2.3.4:13998", "many.example.com", true},
		{"1.2.3.4:13999", "many.example.com", false},
		{"93.7.206.5:1", "", true},
		{"93.8.0.5:1", "", false},
	} {
		if v := p.Connect("tcp", netip.MustParseAddrPort(c.to), []string{c.name}); v.Allowed != c.want {
			t.Errorf("%s %s: %+v", c.to, c.name, v)
		}
	}
}

// TestNoGarbage checks that the paths of every packet and query do not allocate.
func TestNoGarbage(t *testing.T) {
	p := must(t, large())
	ap := netip.MustParseAddrPort("1.2.3.4:443")
	miss := netip.MustParseAddrPort("[2b00::1]:443")
	names := []string{"a.b.zone77.example.com"}
	for what, f := range map[string]func(){
		"lookup":      func() { p.Lookup("a.b.zone77.example.com") },
		"lookup miss": func() { p.Lookup("nothing.example.org") },
		"connect":     func() { p.Connect("tcp", ap, names) },
		"refused":     func() { p.Connect("udp", miss, nil) },
		"closed":      func() { p.Connect("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 9, 9}), 80), nil) },
		"answer":      func() { p.Answer("a.b.zone77.example.com", ap.Addr()) },
		"claim":       func() { p.Claim("a.b.zone77.example.com", ap, names) },
	} {
		if n := testing.AllocsPerRun(100, f); n > 0 {
			t.Errorf("%s allocates %g times", what, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	p := must(b, large())
	ap4, ap6, miss := netip.MustParseAddrPort("93.7.206.5:80"), netip.MustParseAddrPort("[2a00:7cf::1]:2000"), netip.MustParseAddrPort("[2b00::1]:443")
	names := []string{"a.b.zone77.example.com"}
	for _, c := range []struct {
		name string
		f    func() bool
	}{
		{"lookup", func() bool { return p.Lookup("a.b.zone77.example.com").Allowed }},
		{"lookup-refused", func() bool { return !p.Lookup("some.other.example.org").Allowed }},
		{"connect-name", func() bool { return p.Connect("tcp", netip.MustParseAddrPort("1.2.3.4:443"), names).Allowed }},
		{"connect-ports", func() bool {
			return p.Connect("tcp", netip.MustParseAddrPort("1.2.3.4:13998"), []string{"many.example.com"}).Allowed
		}},
		{"connect-ipv4", func() bool { return p.Connect("tcp", ap4, nil).Allowed }},
		{"connect-ipv6", func() bool { return p.Connect("tcp", ap6, nil).Allowed }},
		{"connect-refused", func() bool { return !p.Connect("tcp", miss, nil).Allowed }},
		{"claim", func() bool {
			return p.Claim("a.b.zone77.example.com", netip.MustParseAddrPort("1.2.3.4:443"), names).Allowed
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !c.f() {
					b.Fatal("wrong")
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	p := large()
	for b.Loop() {
		if _, err := Compile(p, testNode); err != nil {
			b.Fatal(err)
		}
	}
}
