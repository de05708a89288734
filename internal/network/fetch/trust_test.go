package fetch

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestTrustedPorts(t *testing.T) {
	o := Options{Trusted: []string{"a.example.com:443", "b.example.com:5000", "c.example.com"}}
	for text, want := range map[string]bool{
		"https://a.example.com/x": true, "https://a.example.com:443": true, "http://a.example.com": false, "https://a.example.com:444": false,
		"https://b.example.com:5000": true, "https://b.example.com": false, "https://c.example.com": true, "https://d.example.com": false,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if o.trusts(u) != want {
			t.Errorf("%s is trusted: %v", text, !want)
		}
	}
}

func TestRoots(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	for _, test := range []struct {
		roots *x509.CertPool
		ok    bool
	}{{roots, true}, {x509.NewCertPool(), false}} {
		c := New(Options{Trusted: []string{strings.TrimPrefix(s.URL, "https://")}, Roots: test.roots})
		resp, err := c.Get(s.URL)
		if (err == nil) != test.ok {
			t.Errorf("with the authority, %v: %v", test.ok, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		c.CloseIdleConnections()
	}
}
