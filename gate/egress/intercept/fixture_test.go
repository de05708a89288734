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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/intercept"
	"github.com/engi-dev/engi/gate/egress/policy"
)

const (
	host   = "api.example.com"
	value  = "sk-live/Zq+8&vX=41?ü<secret>%20"
	plain  = "tok3n0fTheOthers" // fits into every header
	secret = "KEY"
)

// A world is an interceptor between clients and real servers.
type fixture struct {
	t   testing.TB
	i   *intercept.Interceptor
	id  engi.SandboxID
	w   engi.NetworkSetup
	ca  *testCA
	ctx context.Context

	mu      sync.Mutex
	routes  map[string]string // host:port to the address of a server
	secrets map[string]string
	events  []engi.NetworkEvent
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

func newWorld(t testing.TB, p engi.NetworkPolicy, change ...func(*intercept.Options)) *fixture {
	t.Helper()
	w := &fixture{t: t, id: engi.NewSandboxID(), ca: newTestCA(t), routes: map[string]string{}, secrets: map[string]string{secret: value, "TOKEN": plain}}
	o := intercept.Options{
		Reveal: func(_ context.Context, owner engi.Owner, name string) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			v, ok := w.secrets[name]
			if !ok || owner != "ann" {
				return "", engi.Errorf(engi.NotFound, "no such secret")
			}
			return v, nil
		},
		Dial: func(ctx context.Context, id engi.SandboxID, host string, port uint16) (net.Conn, error) {
			w.mu.Lock()
			to, ok := w.routes[host+":"+strconv.Itoa(int(port))]
			w.dials = append(w.dials, host)
			w.mu.Unlock()
			if id != w.id {
				t.Errorf("dialled for %s", id)
			}
			if !ok {
				return nil, engi.Errorf(engi.Denied, "the policy does not allow %s", host)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", to)
		},
		Events: func(e engi.NetworkEvent) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
		Roots: w.ca.pool,
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	if w.i, err = intercept.New(o); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		w.serving.Wait()
		if err := w.i.Close(); err != nil {
			t.Error(err)
		}
	})
	w.open(p)
	return w
}

func (w *fixture) open(p engi.NetworkPolicy) {
	w.t.Helper()
	compiled, err := policy.Compile(p, policy.Node{Default: engi.NetworkRestricted})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.w, err = w.i.Open(w.id, "ann", compiled); err != nil {
		w.t.Fatal(err)
	}
}

// upstream starts a server for a host.
func (w *fixture) upstream(name string, two bool, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = two
	s.TLS = &tls.Config{Certificates: []tls.Certificate{w.ca.leaf(w.t, name)}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	w.t.Cleanup(s.Close)
	w.route(name+":443", s.Listener.Addr().String())
	return s
}

func (w *fixture) route(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes[from] = to
}

// connect returns a connection as the sandbox has it.
func (w *fixture) connect(target intercept.Target) net.Conn {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.serving.Go(func() {
		conn, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		_ = w.i.Serve(w.ctx, conn, target) // events say what went wrong
	})
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *fixture) target() intercept.Target {
	return intercept.Target{Sandbox: w.id, Host: host, Port: 443, TLS: true, Address: netip.MustParseAddrPort("192.0.2.1:443")}
}

func (w *fixture) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(w.w.Authority) {
		w.t.Fatal("the wiring has no authority")
	}
	return pool
}

// dial returns a TLS connection inside.
func (w *fixture) dial(protos ...string) *tls.Conn {
	w.t.Helper()
	conn := tls.Client(w.connect(w.target()), &tls.Config{ServerName: host, RootCAs: w.roots(), NextProtos: protos})
	if err := conn.HandshakeContext(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// client returns a client inside; all that it asks for goes to the host that
// the address names.
func (w *fixture) client(two bool) *http.Client {
	t := &http.Transport{
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			name, port, _ := net.SplitHostPort(address)
			n, _ := strconv.ParseUint(port, 10, 16)
			return w.connect(intercept.Target{Sandbox: w.id, Host: name, Port: uint16(n), TLS: n != 80}), nil
		},
		Protocols: new(http.Protocols),
	}
	if w.w.Authority != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: w.roots()}
	}
	t.Protocols.SetHTTP1(!two)
	t.Protocols.SetHTTP2(two)
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and returns status, header and body.
func (w *fixture) do(c *http.Client, r *http.Request) (*http.Response, string) {
	w.t.Helper()
	res, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res, string(body)
}

func (w *fixture) get(c *http.Client, url string) (*http.Response, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "GET", url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.do(c, r)
}

// seen returns the events so far.
func (w *fixture) seen() []engi.NetworkEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]engi.NetworkEvent(nil), w.events...)
}

// clean fails if a value shows in an event.
func (w *fixture) clean() {
	w.t.Helper()
	for _, e := range w.seen() {
		for _, v := range w.secrets {
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, v) {
				w.t.Errorf("an event has a value: %s", text)
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
