package egress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

// registries serves one host over TLS and one over plain HTTP.
type registries struct{ served chan string }

func (registries) Hosts() map[string][]string {
	return map[string][]string{"npm": {"registry.example.com"}, "debian": {"deb.example.com"}}
}

func (r registries) Serve(owner engi.Owner, w http.ResponseWriter, q *http.Request) {
	r.served <- string(owner) + " " + q.Method + " " + q.Host + q.URL.Path
	if q.Method != http.MethodGet {
		w.Header().Set("X-Engi-Error", "read-only")
		w.WriteHeader(http.StatusForbidden)
		return
	}
	fmt.Fprint(w, "from the node")
}

// TestPackages checks that the gateway serves registries itself, over TLS and in plain
// HTTP, dials no host for them, and serves nothing else under their address.
func TestPackages(t *testing.T) {
	r := registries{make(chan string, 16)}
	zone, resolver := upstream(t)
	o := egress.Options{Resolver: []netip.AddrPort{resolver}, Packages: r, Reveal: func(context.Context, engi.Viewer, string) (string, error) {
		return "", engi.Errorf(engi.NotFound, "no secrets")
	}}
	f := newFixture(t, o)
	g := f.guest(engi.NetworkPolicy{})
	allowed := restricted("packages")
	setup := f.open(g, allowed)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(setup.Authority) || setup.Env["PIP_CERT"] == "" {
		t.Fatalf("the sandbox is told of no authority: %+v", setup)
	}
	client := g.client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	client.Transport.(*http.Transport).DisableKeepAlives = true
	for _, c := range []struct{ method, url, want string }{
		{"GET", "https://registry.example.com/a", "own_1 GET registry.example.com/a"},
		{"GET", "http://deb.example.com/debian/x", "own_1 GET deb.example.com/debian/x"},
		{"PUT", "https://registry.example.com/a", "own_1 PUT registry.example.com/a"},
	} {
		q, err := http.NewRequest(c.method, c.url, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(q)
		if err != nil {
			t.Fatalf("%s: %v", c.url, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := <-r.served; err != nil || got != c.want || c.method == "GET" && string(body) != "from the node" {
			t.Errorf("%s: served %q, answer %q, %v", c.url, got, body, err)
		}
	}
	f.expect(g, "a request was served", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkRequest && e.Allowed && e.Rule == "packages" && e.Host == "registry.example.com" && e.Reason == "GET /a: 200"
	})
	f.expect(g, "a request was refused with its reason", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkRequest && !e.Allowed && e.Rule == "packages" && e.Reason == "PUT /a: 403, read-only"
	})
	zone.mu.Lock()
	if len(zone.asked) != 0 {
		t.Errorf("the resolver was asked for %v", zone.asked)
	}
	zone.mu.Unlock()

	gateway := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(egress.Gateway4, port) }
	for _, name := range []string{"evil.example.com", "gateway", ""} {
		conn, err := g.dial(gateway(443))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		if err := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake(); err == nil {
			t.Errorf("%q is served", name)
		}
		conn.Close()
	}
	conn, err := g.dial(gateway(80))
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: deb.example.com\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	conn.Close()
	if got := <-r.served; got != "own_1 GET deb.example.com/" || !strings.Contains(string(answer), "421 ") || len(r.served) != 0 {
		t.Errorf("a second host on one connection: %q, %s", got, answer)
	}
	if c, err := g.dial(gateway(22)); err == nil {
		c.Close()
		t.Error("the gateway serves other ports")
	}

	// A connection ends with the policy that allowed it; without packages the
	// gateway serves none.
	kept, err := g.dial(gateway(443))
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(kept, &tls.Config{ServerName: "registry.example.com", RootCAs: roots})
	kept.SetDeadline(time.Now().Add(time.Minute))
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	f.open(g, restricted("example.org"))
	if n, err := secure.Read(make([]byte, 1)); err == nil {
		t.Errorf("the connection lives on: %d", n)
	}
	if c, err := g.dial(gateway(443)); err == nil {
		c.Close()
		t.Error("registries are served without a rule")
	}
	// Requests that the node makes for an owner do not bypass the mirror.
	transport, err := f.g.Transport(owner, allowed)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := (&http.Client{Transport: transport}).Get("https://registry.example.com/a"); err == nil {
		resp.Body.Close()
		t.Error("the node itself reaches the registry")
	}
	// Without a mirror there is no such rule.
	if err := newFixture(t, egress.Options{}).g.Check(allowed); !engi.Is(err, engi.Unsupported) || engi.RemedyOf(err) == "" {
		t.Errorf("without a mirror: %v", err)
	}
}
