package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/request"
)

func rules(texts ...string) (list []engi.RequestRule) {
	for _, text := range texts {
		r := engi.RequestRule{}
		for _, a := range []engi.RequestAction{engi.RequestDeny, engi.RequestAsk, engi.RequestAskExact} {
			if rest, ok := strings.CutPrefix(text, string(a)+" "); ok {
				r.Action, text = a, rest
			}
		}
		method, target, _ := strings.Cut(text, " ")
		if method != "*" {
			r.Methods = strings.Split(method, ",")
		}
		scheme := ""
		if rest, ok := strings.CutPrefix(target, "http://"); ok {
			scheme, target = "http://", rest
		}
		host, path, slash := strings.Cut(target, "/")
		r.Host = scheme + host
		if slash {
			r.Path = "/" + path
		}
		list = append(list, r)
	}
	return list
}

// TestRequests checks that the first matching rule decides, that a request without a matching
// rule is refused, and which secrets are sent with a request.
func TestRequests(t *testing.T) {
	p := restricted("api.example.com")
	p.Requests = rules("deny * *.example.com/admin/**", "ask POST api.example.com/pay", "GET,POST *.example.com:8443/a", "GET api.example.com/v1/**", "GET http://api.example.com/plain", "* other.example.org")
	p.Grants = []engi.Grant{
		{Secret: "one", Hosts: []string{"api.example.com"}},
		{Secret: "two", Hosts: []string{"api.example.com", "two.example.net"}, As: engi.GrantHeader, Name: "X-Two", Requests: rules("POST /v2/*", "ask GET /v1/secret", "ask_exact POST /pay", "deny GET /v1/no", "GET /v1/*")},
	}
	for i := range p.Grants[1].Requests {
		p.Grants[1].Requests[i].Host = ""
	}
	c := must(t, p)
	for _, q := range []struct {
		to, method, path string
		want             string // action, rule and secret of its grant, then whether the second secret goes
	}{
		{"api.example.com:443", "GET", "/v1/x", "allow GET api.example.com/v1/** /true"},
		{"api.example.com:443", "GET", "/v1/x/y", "allow GET api.example.com/v1/** /false"},
		{"api.example.com:443", "GET", "/v1/no", "allow GET api.example.com/v1/** /false"},
		{"api.example.com:443", "GET", "/v1/secret", "ask ask GET /v1/secret two/true"},
		{"api.example.com:443", "POST", "/v2/x", "allow POST /v2/* two/true"},
		{"api.example.com:443", "POST", "/v1/x", "deny - /false"},
		{"api.example.com:443", "GET", "/admin/x", "deny deny * *.example.com/admin/** /false"},
		{"api.example.com:443", "POST", "/pay", "ask_exact ask_exact POST /pay two/true"},
		{"api.example.com:8443", "POST", "/a", "allow GET,POST *.example.com:8443/a /false"},
		{"api.example.com:443", "POST", "/a", "deny - /false"},
		{"two.example.net:443", "POST", "/v2/x", "allow POST /v2/* two/true"},
		{"two.example.net:443", "GET", "/v1/no", "deny deny GET /v1/no two/false"},
		{"other.example.org:99", "PUT", "/any/thing", "allow * other.example.org/** /false"},
	} {
		host, port, _ := strings.Cut(q.to, ":")
		var n uint16
		fmt.Sscan(port, &n)
		v, err := c.Request(host, n, true, &request.Judging{Request: request.Request{Method: q.method, Path: q.path}})
		rule := "-"
		if v.Rule != nil {
			rule = v.Rule.String()
		}
		if got := fmt.Sprintf("%s %s %s/%t", v.Action, rule, v.Grant, !v.Withheld[1]); err != nil || got != q.want || v.Withheld[0] {
			t.Errorf("%s %s%s: %s, %v", q.method, q.to, q.path, got, err)
		}
	}
	if v, _ := c.Request("api.example.com", 80, false, &request.Judging{Request: request.Request{Method: "GET", Path: "/plain"}}); v.Action != engi.RequestAllow {
		t.Errorf("plain HTTP: %+v", v)
	}
	if v, _ := c.Request("api.example.com", 80, false, &request.Judging{Request: request.Request{Method: "GET", Path: "/v1/x"}}); v.Action != engi.RequestDeny {
		t.Errorf("plain HTTP: %+v", v)
	}
	if !c.Judges("API.example.com.") || !c.Judges("x.example.com") || c.Judges("example.com") || !c.Judges("two.example.net") || c.Judges("") {
		t.Error("the wrong hosts are judged")
	}
}

// TestBadRequests checks that rules without a sensible meaning are refused and named.
func TestBadRequests(t *testing.T) {
	grant := engi.Grant{Secret: "key", Hosts: []string{"api.example.com"}}
	with := func(texts ...string) engi.NetworkPolicy {
		p := restricted("api.example.com")
		p.Requests = rules(texts...)
		return p
	}
	ofGrant := func(r engi.RequestRule) engi.NetworkPolicy {
		p := restricted()
		g := grant
		g.Requests = []engi.RequestRule{{Path: "/a"}, r}
		p.Grants = []engi.Grant{g}
		return p
	}
	isolated := with("GET api.example.com")
	isolated.Mode, isolated.Allow = engi.NetworkIsolated, nil
	for name, c := range map[string]struct {
		p    engi.NetworkPolicy
		want string
	}{
		"no host": {with("GET /x"), "host"}, "address": {with("GET 192.0.2.1/x"), "bad name"}, "everybody's": {with("GET *.com/x"), "everybody's"}, "bad method": {with("GET api.example.com", "get api.example.com"), "number 2 of requests"},
		"mode": {isolated, "request rules"}, "twice": {with("GET api.example.com/a", "GET api.example.com/a"), "never reached"}, "covered": {with("* *.example.com", "POST api.example.com/a"), "never reached"},
		"only denied": {with("deny DELETE api.example.com"), "where no rule allows"}, "host in a grant": {ofGrant(engi.RequestRule{Host: "a.example.com"}), "of a grant has the host"},
		"bad in a grant": {ofGrant(engi.RequestRule{Path: "b"}), "number 2 of the grant of key"}, "covered in a grant": {ofGrant(engi.RequestRule{Path: "/a", Methods: []string{"GET"}}), "never reached"},
	} {
		_, err := Compile(c.p, testNode)
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), c.want) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v; %s", name, err, engi.RemedyOf(err))
		}
	}
	many := with("deny DELETE api.example.com/locked")
	for i := range 998 {
		many.Requests = append(many.Requests, rules(fmt.Sprintf("GET api.example.com/%d/*", i))...)
	}
	must(t, many)
	many.Requests = append(many.Requests, rules("GET api.example.com/a", "GET api.example.com/b")...)
	if _, err := Compile(many, testNode); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "more than 1000") {
		t.Error(err)
	}
	wide := restricted()
	for i := range 500 {
		grant.Hosts = append(grant.Hosts, fmt.Sprintf("api%d.example.com", i))
		grant.Requests = append(grant.Requests, engi.RequestRule{Path: fmt.Sprintf("/%d", i)})
	}
	wide.Grants = []engi.Grant{grant}
	if _, err := Compile(wide, testNode); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "20000 hosts") {
		t.Error(err)
	}
	granted := restricted()
	granted.Requests = rules("deny DELETE *.example.com/locked")
	granted.Grants = []engi.Grant{{Secret: "key", Hosts: []string{"api.example.com"}, Requests: []engi.RequestRule{{Path: "/a"}}}}
	must(t, granted)
}

// TestJudgedHosts checks that rules that allow or ask make a host reachable over TLS
// and in no other way, and that only requests pass to a judged host.
func TestJudgedHosts(t *testing.T) {
	web := netip.MustParseAddrPort("93.184.216.34:443")
	plain, other := netip.AddrPortFrom(web.Addr(), 80), netip.AddrPortFrom(web.Addr(), 5432)
	judged := []string{"api.example.com"}
	p := restricted()
	p.Requests = rules("ask GET api.example.com/a", "GET http://plain.example.com")
	c := must(t, p)
	for name, want := range map[string]bool{"api.example.com": true, "plain.example.com": false} {
		if v := c.Lookup(name); v.Allowed != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if v := c.Connect("tcp", web, judged); v.Check != CheckTLS {
		t.Errorf("%+v", v)
	}
	if v := c.ClaimTLS(Hello{ServerName: "api.example.com"}, web, judged); !v.Allowed || v.Rule != "ask GET api.example.com/a" {
		t.Errorf("%+v", v)
	}
	if v := c.ClaimHTTP(Request{Host: "api.example.com"}, plain, judged); v.Allowed {
		t.Errorf("%+v", v)
	}
	for name, allow := range map[string][]string{"name": {"api.example.com", "api.example.com:5432", "udp://api.example.com:443"}, "address": {web.Addr().String(), other.String(), "udp://" + web.String()}, "everything": {"*"}} {
		p := restricted(allow...)
		p.Requests = rules("GET api.example.com/a")
		open := engi.NetworkPolicy{Mode: engi.NetworkOpen, Requests: p.Requests}
		for mode, c := range map[string]*Policy{name: must(t, p), "open, " + name: must(t, open)} {
			for _, to := range []netip.AddrPort{web, plain, other} {
				if v := c.Connect("tcp", to, judged); v.Allowed && v.Check != CheckWeb && v.Check != CheckTLS {
					t.Errorf("%s: %s: %+v", mode, to, v)
				}
			}
			if v := c.Connect("udp", web, judged); v.Allowed {
				t.Errorf("%s: QUIC: %+v", mode, v)
			}
			for host, want := range map[string]bool{"api.example.com": true, "": false, "other.example.com": false, "93.184.216.34": false} {
				if v := c.ClaimTLS(Hello{ServerName: host}, web, judged); v.Allowed != want {
					t.Errorf("%s: TLS for %q: %+v", mode, host, v)
				}
			}
			if v := c.ClaimTLS(Hello{ServerName: "cover.example.com", ECH: true}, web, append(judged, "cover.example.com")); v.Allowed {
				t.Errorf("%s: hidden: %+v", mode, v)
			}
			if v := c.ClaimHTTP(Request{Method: "CONNECT", Host: "api.example.com"}, plain, judged); v.Allowed {
				t.Errorf("%s: CONNECT: %+v", mode, v)
			}
		}
	}
}

// BenchmarkRequests judges a message of 4 KiB by 300 rules of method, path and body,
// of which the last decides: all for one host, or each for its own.
func BenchmarkRequests(b *testing.B) {
	body := []byte(`{"model":"small-1","max_tokens":100,"messages":[` + strings.Repeat(`{"role":"user","content":[{"type":"text","text":"What does the egress gateway cost, and who pays?"}]},`, 40) +
		`{"role":"user","content":"."}],"tools":[{"type":"custom","name":"a","input_schema":{"type":"object"}}]}`)
	for name, host := range map[string]string{"one host": "api.example.com", "each its host": "api%d.example.com"} {
		p := restricted()
		for i := range 300 {
			h := host
			if strings.Contains(h, "%d") {
				h = fmt.Sprintf(h, i)
			}
			r := engi.RequestRule{Host: h, Methods: []string{"POST"}, Path: "/v1/*/messages", Body: []string{
				fmt.Sprintf("max_tokens max %d", i), "mcp_servers absent", `tools[*].type in ["custom"]`, `**.source.type not_in ["url"]`, fmt.Sprintf(`model in ["large-%d", "small-*"]`, i)}}
			if i == 299 {
				r.Body[0] = "max_tokens max 100"
			} else if i >= 100 {
				r.Methods, r.Path = []string{"GET"}, fmt.Sprintf("/v1/%d/**", i)
			}
			p.Requests = append(p.Requests, r)
		}
		c, err := Compile(p, testNode)
		if err != nil {
			b.Fatal(err)
		}
		last := p.Requests[299].Host
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				v, err := c.Request(last, 443, true, &request.Judging{Request: request.Request{Method: "POST", Path: "/v1/x/messages"}, Body: func(int64) ([]byte, error) { return body, nil }})
				if err != nil || v.Action != engi.RequestAllow {
					b.Fatal(v, err)
				}
			}
		})
	}
}
