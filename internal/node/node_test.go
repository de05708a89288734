package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
)

// fakeNode returns the configuration and options of a node whose sandboxes are not
// isolated.
func fakeNode(t *testing.T) (config.Config, Options) {
	t.Helper()
	c := config.Defaults()
	c.DataDir, c.CacheDir, c.Listen, c.Pools = filepath.Join(t.TempDir(), "data"), t.TempDir(), "127.0.0.1:0", nil
	c.Templates.Default = "host"
	return c, Options{Version: "test", Provider: memory.New(memory.NewHost(t.TempDir()))}
}

// start runs a node until stop is called, at the latest when the test ends.
func start(t *testing.T, n *Node) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- n.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("Run: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the node is never ready")
	}
	return stop
}

func get(t *testing.T, h *http.Client, url, key string) (int, string, *http.Response) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp
}

func TestNodeServes(t *testing.T) {
	c, o := fakeNode(t)
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), c, o); !engi.Is(err, engi.Conflict) {
		t.Errorf("a second node on the directory: %v, want kind conflict", err)
	}
	taken := c
	taken.DataDir, taken.Listen = filepath.Join(t.TempDir(), "other"), strings.SplitN(n.Endpoint().URL, "//", 2)[1]
	if _, err := Open(t.Context(), taken, o); !engi.Is(err, engi.Conflict) {
		t.Errorf("a second node on the port: %v, want kind conflict", err)
	}
	start(t, n)

	at, key, err := datadir.Discover(c.DataDir)
	if err != nil || at.URL != n.Endpoint().URL || key != n.AdminKey() {
		t.Fatalf("Discover: %+v, %q, %v", at, key, err)
	}
	if info, err := os.Stat(at.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v; want mode 0600", at.KeyFile, info.Mode(), err)
	}
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	for name, h := range map[string]*http.Client{"HTTP/1.1": {}, "HTTP/2.0": {Transport: h2c}} {
		defer h.CloseIdleConnections()
		if code, _, resp := get(t, h, at.URL+"/healthz", ""); code != http.StatusOK || resp.Proto != name {
			t.Errorf("%s: %d over %s", name, code, resp.Proto)
		}
		if code, body, _ := get(t, h, at.URL+"/readyz", ""); code != http.StatusOK {
			t.Errorf("%s: not ready: %d %s", name, code, body)
		}
		if code, _, _ := get(t, h, at.URL+"/v1/node", ""); code != http.StatusUnauthorized {
			t.Errorf("%s: without a key: %d", name, code)
		}
		if code, body, _ := get(t, h, at.URL+"/v1/node", key); code != http.StatusOK || !strings.Contains(body, `"version":"test"`) {
			t.Errorf("%s: %d %s", name, code, body)
		}
		if code, body, _ := get(t, h, at.URL+"/metrics", key); code != http.StatusOK || !strings.Contains(body, "go_goroutines") {
			t.Errorf("%s: metrics: %d %.100s", name, code, body)
		}
	}
}

func TestNodeLetsGoOfEverything(t *testing.T) {
	c, o := fakeNode(t)
	for i := range 3 {
		n, err := Open(t.Context(), c, o)
		if err != nil {
			t.Fatalf("life %d: %v", i, err)
		}
		if i == 0 {
			n.Close() // never run
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := n.Run(ctx, cancel); err != nil {
			t.Fatalf("life %d: %v", i, err)
		}
		if held, err := datadir.IsHeld(c.DataDir); held || err != nil {
			t.Errorf("life %d: still held: %t, %v", i, held, err)
		}
		if _, err := os.Stat(filepath.Join(c.DataDir, datadir.EndpointName)); err == nil {
			t.Errorf("life %d: the endpoint is still named", i)
		}
	}
}

func TestPrivateNodeLeavesNothing(t *testing.T) {
	c, o := fakeNode(t)
	p, err := OpenPrivate(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.Endpoint().DataDir, filepath.Join(c.DataDir, datadir.PrivateName)) {
		t.Errorf("its data is in %s", p.Endpoint().DataDir)
	}
	// Beside it, a server may run, and another private node.
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	if code, _, _ := get(t, http.DefaultClient, p.Endpoint().URL+"/v1/node", p.AdminKey()); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(c.DataDir, datadir.PrivateName)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPrivateNodeThatCannotStartLeavesNothing(t *testing.T) {
	c, o := fakeNode(t)
	c.Templates.Default = "host"
	c.CacheDir = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(c.CacheDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPrivate(t.Context(), c, o); err == nil {
		t.Fatal("it started on a cache directory that is a file")
	}
	if left, _ := os.ReadDir(filepath.Join(c.DataDir, datadir.PrivateName)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestNodeServesTLS(t *testing.T) {
	c, o := fakeNode(t)
	c.TLS = certificate(t)
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	url := n.Endpoint().URL
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("it serves %s", url)
	}
	pool := x509.NewCertPool()
	text, err := os.ReadFile(c.TLS.Cert)
	if err != nil {
		t.Fatal(err)
	}
	pool.AppendCertsFromPEM(text)
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer h.CloseIdleConnections()
	if code, _, resp := get(t, h, url+"/healthz", ""); code != http.StatusOK || resp.Proto != "HTTP/2.0" {
		t.Errorf("%d over %s", code, resp.Proto)
	}

	c.DataDir = filepath.Join(t.TempDir(), "d")
	c.TLS.Key = c.TLS.Cert
	if _, err := Open(t.Context(), c, o); !engi.Is(err, engi.Invalid) {
		t.Errorf("a key that is none: %v, want kind invalid", err)
	}
}

func certificate(t *testing.T) config.TLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "engi"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := config.TLS{Cert: filepath.Join(t.TempDir(), "cert.pem"), Key: filepath.Join(t.TempDir(), "key.pem")}
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestLogForms checks who gets text and who gets JSON.
func TestLogForms(t *testing.T) {
	for _, c := range []struct {
		form     string
		terminal bool
		json     bool
	}{{"auto", true, false}, {"auto", false, true}, {"json", true, true}, {"text", false, false}} {
		var b strings.Builder
		log, err := config.Config{Log: c.form, LogLevel: "info"}.Logger(&b, c.terminal)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("hidden")
		log.Info("hello", "n", 1)
		if isJSON := json.Valid([]byte(b.String())); isJSON != c.json || strings.Contains(b.String(), "hidden") {
			t.Errorf("%s on a terminal %t: %s", c.form, c.terminal, b.String())
		}
	}
	if _, err := (config.Config{LogLevel: "loud"}).Logger(io.Discard, false); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v", err)
	}
}
