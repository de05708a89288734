package policy_test

import (
	"net/netip"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// TestGrantsOpenTheirPorts holds that a grant opens TLS where it applies, and
// that one for plain HTTP opens nothing by itself.
func TestGrantsOpenTheirPorts(t *testing.T) {
	p, err := policy.Compile(engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"listed.example"}, Grants: []engi.Grant{
		{Secret: "a", Hosts: []string{"any.example", "one.example:8443", "http://plain.example", "http://listed.example"}},
	}}, policy.Node{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		port uint16
		tls  bool
		want bool
	}{
		{"any.example", 443, true, true}, {"any.example", 9443, true, true}, {"any.example", 80, false, false},
		{"one.example", 8443, true, true}, {"one.example", 443, true, false}, {"one.example", 8443, false, false},
		{"plain.example", 80, false, false}, {"plain.example", 443, true, false}, {"listed.example", 80, false, true},
	} {
		ap := netip.AddrPortFrom(netip.MustParseAddr("93.184.215.14"), c.port)
		ok := p.Connect("tcp", ap, []string{c.name}).Allowed
		if ok {
			if c.tls {
				ok = p.ClaimTLS(policy.Hello{ServerName: c.name}, ap, []string{c.name}).Allowed
			} else {
				ok = p.ClaimHTTP(policy.Request{Method: "GET", Host: c.name}, ap, []string{c.name}).Allowed
			}
		}
		if ok != c.want || !p.Intercepts(c.name) {
			t.Errorf("%s:%d with TLS %v: %v", c.name, c.port, c.tls, ok)
		}
	}
	for name, want := range map[string]bool{"any.example": true, "one.example": true, "plain.example": false, "listed.example": true} {
		if p.Lookup(name).Allowed != want {
			t.Errorf("looking up %s", name)
		}
	}
	for _, bad := range []string{"a.example:0", "a.example:x", "ftp://a.example", "http://", "a.example/path", "*:443"} {
		_, err := policy.Compile(engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "a", Hosts: []string{bad}}}}, policy.Node{})
		if engi.KindOf(err) != engi.Invalid || err == nil || engi.RemedyOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
