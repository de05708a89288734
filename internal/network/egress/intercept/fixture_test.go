package intercept_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

const (
	host   = "api.example.com"
	value  = "sk-live/Zq+8&vX=41?ü<secret>%20"
	plain  = "tok3n0fTheOthers" // valid in any header
	secret = "KEY"
)

// A fixture is an interceptor between clients and real servers.
type fixture struct {
	t   testing.TB
	i   *intercept.Interceptor
	id  engi.SandboxID
	w   engi.NetworkSetup
	ca  *testCA
	ctx context.Context

	mu      sync.Mutex
	routes  map[string]string // addresses of servers, by host:port
	secrets map[string]string
	events  []engi.NetworkRecord
	dials   []string
	serving sync.WaitGroup
}

type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newTestCA(t testing.TB) *testCA {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	ca := &testCA{cert: cert, key: key, pool: x509.NewCertPool()}
	ca.pool.AddCert(cert)
	return ca
}

func (ca *testCA) leaf(t testing.TB, names ...string) tls.Certificate {
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: ca.key}
}

func newFixture(t testing.TB, p engi.NetworkPolicy, change ...func(*intercept.Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, id: engi.NewSandboxID(), ca: newTestCA(t), routes: map[string]string{}, secrets: map[string]string{secret: value, "TOKEN": plain}}
	o := intercept.Options{
		Reveal: func(_ context.Context, viewer engi.Viewer, name string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			v, ok := f.secrets[name]
			if !ok || viewer != "ann" {
				return "", engi.Errorf(engi.NotFound, "no such secret")
			}
			return v, nil
		},
		Dial: func(ctx context.Context, id engi.SandboxID, host string, port uint16) (net.Conn, error) {
			f.mu.Lock()
			to, ok := f.routes[host+":"+strconv.Itoa(int(port))]
			f.dials = append(f.dials, host)
			f.mu.Unlock()
			if id != f.id {
				t.Errorf("dialled for %s", id)
			}
			if !ok {
				return nil, engi.Errorf(engi.Denied, "the policy does not allow %s", host)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", to)
		},
		Events: func(e engi.NetworkRecord) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		},
		Roots: f.ca.pool,
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	if f.i, err = intercept.New(o); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	f.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		f.serving.Wait()
		if err := f.i.Close(); err != nil {
			t.Error(err)
		}
	})
	f.open(p)
	return f
}

func (f *fixture) open(p engi.NetworkPolicy) {
	f.t.Helper()
	compiled, err := policy.Compile(p, policy.Node{Default: engi.NetworkRestricted})
	if err != nil {
		f.t.Fatal(err)
	}
	if f.w, err = f.i.Open(f.id, "ann", compiled); err != nil {
		f.t.Fatal(err)
	}
}

// upstream starts a server for a host.
func (f *fixture) upstream(name string, two bool, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = two
	s.TLS = &tls.Config{Certificates: []tls.Certificate{f.ca.leaf(f.t, name)}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	f.t.Cleanup(s.Close)
	f.route(name+":443", s.Listener.Addr().String())
	return s
}

func (f *fixture) route(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[from] = to
}

// connect returns a sandbox's connection.
func (f *fixture) connect(target intercept.Target) net.Conn {
	f.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.serving.Go(func() {
		conn, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		_ = f.i.Serve(f.ctx, conn, target) // events record the errors
	})
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

func (f *fixture) target() intercept.Target {
	return intercept.Target{Sandbox: f.id, Host: host, Port: 443, TLS: true, Address: netip.MustParseAddrPort("192.0.2.1:443")}
}

func (f *fixture) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(f.w.Authority) {
		f.t.Fatal("the wiring has no authority")
	}
	return pool
}

// dial returns a TLS connection of the sandbox.
func (f *fixture) dial(protos ...string) *tls.Conn {
	f.t.Helper()
	conn := tls.Client(f.connect(f.target()), &tls.Config{ServerName: host, RootCAs: f.roots(), NextProtos: protos})
	if err := conn.HandshakeContext(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// client returns a client in the sandbox. Its requests go to the host in the URL.
func (f *fixture) client(two bool) *http.Client {
	t := &http.Transport{
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			name, port, _ := net.SplitHostPort(address)
			n, _ := strconv.ParseUint(port, 10, 16)
			return f.connect(intercept.Target{Sandbox: f.id, Host: name, Port: uint16(n), TLS: n != 80}), nil
		},
		Protocols: new(http.Protocols),
	}
	if f.w.Authority != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: f.roots()}
	}
	t.Protocols.SetHTTP1(!two)
	t.Protocols.SetHTTP2(two)
	f.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and returns status, header and body.
func (f *fixture) do(c *http.Client, r *http.Request) (*http.Response, string) {
	f.t.Helper()
	res, err := c.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res, string(body)
}

func (f *fixture) get(c *http.Client, url string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), "GET", url, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.do(c, r)
}

// seen returns the events so far.
func (f *fixture) seen() []engi.NetworkRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]engi.NetworkRecord(nil), f.events...)
}

// clean fails if an event contains a value.
func (f *fixture) clean() {
	f.t.Helper()
	for _, e := range f.seen() {
		for _, v := range f.secrets {
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, v) {
				f.t.Errorf("an event has a value: %s", text)
			}
		}
	}
}

func grant(as engi.GrantUse, more ...func(*engi.Grant)) engi.NetworkPolicy {
	g := engi.Grant{Secret: secret, Hosts: []string{host}, As: as}
	if as == engi.GrantPlaceholder {
		g.Env = "API_KEY"
	}
	for _, m := range more {
		m(&g)
	}
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{g}}
}

func token(g *engi.Grant) { g.Secret = "TOKEN" }
func strip(g *engi.Grant) { g.Strip = true }
