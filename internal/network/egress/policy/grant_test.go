package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// TestGrantsOpenTheirPorts checks that a grant makes hosts reachable over TLS where
// it applies, and that a grant for plain HTTP does not.
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
		if !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestBadGrants checks that invalid grants and header rules are refused.
func TestBadGrants(t *testing.T) {
	for name, p := range map[string]engi.NetworkPolicy{
		"no secret":       {Grants: []engi.Grant{{Hosts: []string{"api.example.com"}}}},
		"no hosts":        {Grants: []engi.Grant{{Secret: "a"}}},
		"address":         {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"192.0.2.1"}}}},
		"IPv6":            {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"[2001:db8::1]"}}}},
		"all":             {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"*"}}}},
		"top level":       {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"*.com"}}}},
		"URL":             {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"https://a.example/path"}}}},
		"scheme":          {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"ftp://a.example"}}}},
		"port":            {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"a.example:99999"}}}},
		"use":             {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: "cookie"}}},
		"header name":     {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantHeader, Name: "X Y"}}},
		"framing":         {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantHeader, Name: "content-length"}}},
		"format":          {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantHeader, Name: "X", Format: "none"}}},
		"format lines":    {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantHeader, Name: "X", Format: "{}\r\nX: y"}}},
		"user":            {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantBasic, Name: "a:b"}}},
		"parameter":       {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantQuery}}},
		"no variable":     {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, As: engi.GrantPlaceholder}}},
		"variable":        {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Env: "A=B"}}},
		"trust":           {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Env: "SSL_CERT_FILE"}}},
		"same variable":   {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Env: "A"}, {Secret: "b", Hosts: []string{"b.example"}, Env: "A"}}},
		"same header":     {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}}, {Secret: "b", Hosts: []string{"api.example.com"}, As: engi.GrantBasic}}},
		"no headers":      {Headers: []engi.HeaderRule{{Host: "api.example.com"}}},
		"rule's host":     {Headers: []engi.HeaderRule{{Host: "a b", Headers: map[string]string{"X": "y"}}}},
		"rule's header":   {Headers: []engi.HeaderRule{{Host: "api.example.com", Headers: map[string]string{"Host": "y"}}}},
		"rule's lines":    {Headers: []engi.HeaderRule{{Host: "api.example.com", Headers: map[string]string{"X": "y\nZ: a"}}}},
		"rule's secret":   {Headers: []engi.HeaderRule{{Host: "api.example.com", Headers: map[string]string{"X": "${secret.A}"}}}},
		"rule's identity": {Headers: []engi.HeaderRule{{Host: "api.example.com", Headers: map[string]string{"X": "${e2b.identity.tokens.A}"}}}},
		"same host":       {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com", "API.example.com."}}}},
		"unused name":     {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Name: "X"}}},
		"unused format":   {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Format: "x{}"}}},
		"secret's name":   {Grants: []engi.Grant{{Secret: "a b", Hosts: []string{"api.example.com"}}}},
		"path":            {Grants: []engi.Grant{{Secret: "a", Hosts: []string{"api.example.com"}, Env: "path"}}},
		"too many":        {Grants: make([]engi.Grant, 257)},
		"too many hosts":  {Grants: []engi.Grant{{Secret: "a", Hosts: make([]string, 1001)}}},
	} {
		p.Mode = engi.NetworkRestricted
		_, err := policy.Compile(p, policy.Node{})
		if !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v (%s)", name, err, engi.RemedyOf(err))
		}
	}
}

func TestParseHost(t *testing.T) {
	for text, want := range map[string]policy.Host{
		"BÜCHER.example.":        {Name: "xn--bcher-kva.example", TLS: true},
		"http://*.A.example":     {Name: "a.example", Below: true, Port: 80},
		"https://a.example:8443": {Name: "a.example", Port: 8443, TLS: true},
	} {
		if h, err := policy.ParseHost(text); err != nil || h != want {
			t.Errorf("%s: %+v, %v", text, h, err)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"api.example.com", "*.example.com:8443", "http://bücher.example", "https://x:0", "1.2.3.4", "a..b", "*.com", "x.1", "[::1]:443", "*.*.a.b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := policy.ParseHost(text)
		if err != nil {
			return
		}
		if h.Name == "" || strings.ContainsAny(h.Name, "*:/@ []%") || h.Name != strings.ToLower(h.Name) || !h.TLS && h.Port == 0 {
			t.Fatalf("%q is %+v", text, h)
		}
		if h.Covers("a."+h.Name, max(h.Port, 1), h.TLS) != h.Below || h.Covers(h.Name, max(h.Port, 1), h.TLS) == h.Below || h.Covers("x"+h.Name, h.Port, h.TLS) {
			t.Fatalf("%q covers what it should not, or the other way", text)
		}
	})
}
