package cert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func roots(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		t.Fatal("no certificate in " + file)
	}
	return pool
}

// verify checks m's certificate for name in the same way as a client that trusts m's
// authority.
func verify(t *testing.T, m Files, name string) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(m.Cert, m.Key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots(t, m.Authority)})
	return err
}

func TestMake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	m, err := Make(dir, []string{"sbx.example.com"}, false)
	if err != nil || !m.Fresh {
		t.Fatal(m, err)
	}
	for name, good := range map[string]bool{
		"sbx.example.com": true, "3000-abc.sbx.example.com": true, "api.sbx.example.com": true, "3000-abc.sbx.localhost": true, "3000-abc.localhost": false,
		"localhost": true, "127.0.0.1": true, "::1": true, "example.com": false, "a.b.sbx.example.com": false, "127.0.0.2": false,
	} {
		if err := verify(t, m, name); (err == nil) != good {
			t.Errorf("%s: %v, want good %t", name, err, good)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f.Name(), info.Mode())
		}
	}

	// The same authority signs again, so clients need not change anything.
	trusted := roots(t, m.Authority)
	again, err := Make(dir, []string{"sbx.example.com"}, false)
	if err != nil || again.Fresh {
		t.Fatal(again, err)
	}
	pair, err := tls.LoadX509KeyPair(again.Cert, again.Key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: "x.sbx.example.com", Roots: trusted}); err != nil {
		t.Error(err)
	}
	if _, err := Make(dir, []string{"else.test"}, false); !engi.Is(err, engi.Conflict) || !strings.Contains(engi.RemedyOf(err), "--force") {
		t.Errorf("another domain: %v", err)
	}
	forced, err := Make(dir, []string{"else.test"}, true)
	if err != nil || !forced.Fresh || verify(t, forced, "x.else.test") != nil || verify(t, forced, "x.sbx.example.com") == nil {
		t.Errorf("%+v, %v", forced, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca-key.pem"), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(dir, []string{"else.test"}, false); !engi.Is(err, engi.Invalid) {
		t.Errorf("a broken authority: %v", err)
	}
	for _, bad := range []string{"", "*.x.test", "x.test:443", "-a.test", "a..test", "X.test", "127.0.0.1", "a b"} {
		if _, err := Make(dir, []string{bad}, true); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestNamesAreForEveryClient checks that there is no wildcard below a single label. OpenSSL,
// Node.js and Firefox ignore such a wildcard, and rustls refuses the certificate.
func TestNamesAreForEveryClient(t *testing.T) {
	for _, domains := range [][]string{{"localhost"}, {"engi", "sbx.example.com"}, {"sbx.localhost"}, nil} {
		dir := t.TempDir()
		m, err := Make(dir, domains, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range m.Names {
			if strings.HasPrefix(name, "*.") && strings.Count(name, ".") < 2 {
				t.Errorf("%v: the certificate has the name %s", domains, name)
			}
		}
		for _, name := range append([]string{"localhost", "3000-abc.sbx.localhost"}, domains...) {
			if err := verify(t, m, name); err != nil {
				t.Errorf("%v: %s: %v", domains, name, err)
			}
		}
		if again, err := Make(dir, append(domains, "sbx.localhost"), false); err != nil || again.Fresh {
			t.Errorf("%v: the authority does not sign for sbx.localhost: %v", domains, err)
		}
	}
}

// TestAuthorityIsConstrained checks that a stolen key cannot sign for other names.
func TestAuthorityIsConstrained(t *testing.T) {
	dir := t.TempDir()
	m, err := Make(dir, []string{"sbx.example.com"}, false)
	if err != nil {
		t.Fatal(err)
	}
	ca, caKey, err := readAuthority(m.Authority, filepath.Join(dir, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	leaf := template("evil", time.Hour)
	leaf.DNSNames = []string{"bank.example.com"}
	raw, err := x509.CreateCertificate(nil, leaf, ca, ca.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forged.Verify(x509.VerifyOptions{DNSName: "bank.example.com", Roots: roots(t, m.Authority)}); err == nil {
		t.Error("it signs for others")
	}
}

func TestServing(t *testing.T) {
	dir := t.TempDir()
	m, err := Make(dir, []string{"sbx.test"}, false)
	if err != nil {
		t.Fatal(err)
	}
	k, err := Open(Options{Cert: m.Cert, Key: m.Key})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	s.TLS = k.Config()
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	get := func(trust string) (string, string, error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots(t, trust), ServerName: "1-x.sbx.test"}, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get(s.URL)
		if err != nil {
			return "", "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), res.TLS.PeerCertificates[0].SerialNumber.String(), err
	}
	proto, serial, err := get(m.Authority)
	if err != nil || proto != "HTTP/2.0" {
		t.Fatalf("%s, %v", proto, err)
	}
	// Renewed files are picked up without a restart; broken ones are ignored.
	if _, err := Make(dir, []string{"sbx.test"}, false); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.checked = time.Time{}
	k.mu.Unlock()
	_, renewed, err := get(m.Authority)
	if err != nil || renewed == serial {
		t.Errorf("serial %s, was %s, %v", renewed, serial, err)
	}
	if err := os.WriteFile(m.Cert, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.checked = time.Time{}
	k.mu.Unlock()
	if _, still, err := get(m.Authority); err != nil || still != renewed {
		t.Errorf("with a broken file: %s, %v", still, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"nothing":     {},
		"no file":     {Cert: "/nowhere/a", Key: "/nowhere/b"},
		"wildcard":    {ACME: ACME{Names: []string{"*.example.com"}}},
		"address":     {ACME: ACME{Names: []string{"192.0.2.1"}}},
		"one label":   {ACME: ACME{Names: []string{"engi"}}},
		"a localhost": {ACME: ACME{Names: []string{"a.localhost"}}},
		"with port":   {ACME: ACME{Names: []string{"a.example.com:443"}}},
	} {
		if _, err := Open(o); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestACMEConfiguration contacts no authority: it checks the requests that would be sent.
func TestACMEConfiguration(t *testing.T) {
	dir := t.TempDir()
	m, err := Make(dir, []string{"sbx.test"}, false)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 16)
	directory := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path:
		default:
		}
		http.Error(w, "not today", http.StatusServiceUnavailable)
	}))
	defer directory.Close()
	k, err := Open(Options{Cert: m.Cert, Key: m.Key, ACME: ACME{Names: []string{"api.sbx.test"}, Directory: directory.URL + "/dir", Dir: filepath.Join(dir, "acme"), Port: 8443}})
	if err != nil {
		t.Fatal(err)
	}
	c := k.Config()
	if !strings.Contains(strings.Join(c.NextProtos, " "), "acme-tls/1") {
		t.Errorf("protocols %q", c.NextProtos)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for _, name := range []string{"3000-x.sbx.test", "unknown.test", ""} {
		if got, err := c.GetCertificate(&tls.ClientHelloInfo{ServerName: name, Conn: near}); err != nil || got.Leaf.Subject.CommonName != "engi" {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, func() {}) }()
	select {
	case path := <-asked:
		if path != "/dir" {
			t.Errorf("asked for %s", path)
		}
	case <-time.After(time.Minute):
		t.Error("the authority was not asked")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
