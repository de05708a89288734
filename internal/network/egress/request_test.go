package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestRequestRulesComeIntoForce opens connections to a host whose requests no rule
// judges, and then adds rules: the connections break, and new ones are judged.
func TestRequestRulesComeIntoForce(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "ok") }))
	defer web.Close()
	to := netip.MustParseAddrPort(web.Listener.Addr().String())
	o := named("example.com")
	o.Roots = x509.NewCertPool()
	o.Roots.AddCert(web.Certificate())
	o.Reveal = func(context.Context, engi.Viewer, string) (string, error) {
		return "", engi.Errorf(engi.NotFound, "no secret")
	}
	f := newFixture(t, o)
	host := fmt.Sprintf("example.com:%d", to.Port())
	p := restricted(host)
	g := f.guest(p)
	if _, err := g.lookup("example.com"); err != nil {
		t.Fatal(err)
	}
	ask := func(c io.ReadWriter, path string) (*http.Response, error) {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host)
		return http.ReadResponse(bufio.NewReader(c), nil)
	}
	raw, err := g.dial(to)
	if err != nil {
		t.Fatal(err)
	}
	raw.SetDeadline(time.Now().Add(time.Minute))
	before := tls.Client(raw, &tls.Config{ServerName: "example.com", RootCAs: o.Roots})
	if res, err := ask(before, "/forbidden"); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	p.Requests = []engi.RequestRule{{Host: "example.com", Methods: []string{"GET"}, Path: "/fine"}}
	wiring := f.open(g, p)
	if res, err := ask(before, "/forbidden"); err == nil {
		t.Errorf("the old connection is answered %s", res.Status)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(wiring.Authority)
	client := g.client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	for path, want := range map[string]int{"/fine": 200, "/forbidden": 403} {
		res, err := client.Get("https://" + host + path)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	f.expect(g, "the refusal, as refusals of connections are", func(e engi.NetworkRecord) bool {
		return e.Kind == engi.NetworkRequest && !e.Allowed && e.Host == "example.com" && strings.Contains(e.Reason, "GET /forbidden")
	})
}

// TestNobodyToAsk checks that policies that ask need an approver.
func TestNobodyToAsk(t *testing.T) {
	o := loopback()
	ask := engi.RequestRule{Action: engi.RequestAsk}
	hosted := ask
	hosted.Host = "example.com"
	for _, p := range []engi.NetworkPolicy{
		{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{hosted}},
		{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "s", Hosts: []string{"example.com"}, Requests: []engi.RequestRule{ask}}}},
	} {
		for _, approver := range []engi.Approver{nil, yes{}} {
			o.Reveal = func(context.Context, engi.Viewer, string) (string, error) { return "", nil }
			o.Approver = approver
			err := newFixture(t, o).g.Check(p)
			if approver == nil && (!engi.Is(err, engi.Unsupported) || engi.RemedyOf(err) == "") || approver != nil && err != nil {
				t.Errorf("%v: %v", approver, err)
			}
		}
	}
}

type yes struct{}

func (yes) Ask(context.Context, engi.HeldRequest) (engi.ApprovalDecision, error) {
	return engi.ApprovalDecision{Allowed: true}, nil
}
