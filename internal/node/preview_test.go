package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// TestNamesAndTLS asks one node by all its names, over https and http at the
// same time.
func TestNamesAndTLS(t *testing.T) {
	c, o := fakeNode(t)
	made, err := InitTLS(c.DataDir, t.TempDir(), []string{"sbx.test"}, false)
	if err != nil {
		t.Fatal(err)
	}
	c.TLS.Cert, c.TLS.Key, c.TLS.Listen, c.Preview.Domain = made.Cert, made.Key, "127.0.0.1:0", "sbx.test"
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)

	plain := n.Endpoint().URL
	if !strings.HasPrefix(plain, "http://") {
		t.Fatal(plain)
	}
	own := client.New(plain, n.AdminKey())
	s, err := own.CreateSandbox(t.Context(), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	label := strings.TrimPrefix(s.ID, "sbx_")
	service, err := net.Listen("tcp", "127.0.0.1:0") // fake sandboxes share the network of the host
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(service, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Host+" "+r.Header.Get("X-Forwarded-Proto"))
	}))
	defer service.Close()
	_, servicePort, _ := net.SplitHostPort(service.Addr().String())

	pem, err := os.ReadFile(made.Authority)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	_, port := n.listener.Public()
	secure := net.JoinHostPort("127.0.0.1", port)
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasSuffix(addr, ":443") {
				addr = secure
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}
	defer tr.CloseIdleConnections()
	h := &http.Client{Transport: tr}
	for _, x := range []struct {
		url, header string
		code        int
		want        string
	}{
		{"https://api.sbx.test/v1/node", "Authorization: Bearer " + n.AdminKey(), 200, `"version":"test"`},
		{"https://api.sbx.test/sandboxes", "X-API-Key: " + n.AdminKey(), 200, label},
		{"https://sbx.test/v1/sandboxes/" + s.ID, "Authorization: Bearer " + n.AdminKey(), 200, s.ID},
		{"https://" + servicePort + "-" + label + ".sbx.test/", "", 200, "localhost:" + servicePort + " https"},
		{"https://sandbox.sbx.test/", "E2b-Sandbox-Id: " + label + " " + servicePort, 200, "localhost:" + servicePort},
		{"https://1-" + label + ".sbx.test/", "", 502, "port is not open"},
		{"https://1-iabc.sbx.test/", "", 502, "The sandbox was not found"},
		{"https://49983-" + label + ".sbx.test/health", "", 204, ""},
		{plain + "/v1/node", "Authorization: Bearer " + n.AdminKey(), 200, `"version":"test"`},
		{plain + "/v1/node", "Host: evil.test", 403, "host name"},
		{plain + "/sandboxes", "Host: evil.test", 403, "host name"},
		{plain + "/mcp", "Host: evil.test", 403, "host name"},
		{plain + "/", "E2b-Sandbox-Id: " + label + " " + servicePort, 200, "http"},
		{plain + "/preview/" + s.ID + "/" + servicePort + "/", "", 404, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", x.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if k, v, ok := strings.Cut(x.header, ": "); ok {
			if id, port, ok := strings.Cut(v, " "); ok && k == "E2b-Sandbox-Id" {
				r.Header.Set("E2b-Sandbox-Port", port)
				v = id
			}
			if r.Header.Set(k, v); k == "Host" {
				r.Host = v
			}
		}
		res, err := h.Do(r)
		if err != nil {
			t.Errorf("%s: %v", x.url, err)
			continue
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != x.code || !bytes.Contains(body, []byte(x.want)) {
			t.Errorf("%s: %d %.300s, %v; want %d with %q", x.url, res.StatusCode, body, err, x.code, x.want)
		}
		if strings.HasPrefix(x.url, "https") && res.ProtoMajor != 2 {
			t.Errorf("%s: %s", x.url, res.Proto)
		}
	}

	// What is handed out leads back.
	link, err := own.LinkPort(t.Context(), s.ID, 1234, 0)
	if want := "https://1234-" + label + ".sbx.test:" + port + "/?engi_token="; err != nil || !strings.HasPrefix(link.URL, want) {
		t.Errorf("link %s, %v; want %s…", link.URL, err, want)
	}
	if got := n.domain(); got != "sbx.test:"+port {
		t.Errorf("domain for E2B's clients %s", got)
	}

	// Secrets are behind the API and encrypted.
	sec, err := own.CreateSecret(t.Context(), v1.SecretRequest{Name: "KEY", Value: "hidden-value"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(sec); err != nil || bytes.Contains(b, []byte("hidden-value")) {
		t.Errorf("%s, %v", b, err)
	}
	if got, err := n.secrets.Reveal(t.Context(), engi.Everyone, string(sec.ID)); err != nil || got != "hidden-value" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAddressesBehindAProxy(t *testing.T) {
	c, o := fakeNode(t)
	c.Preview.Domain, c.Preview.Scheme = "sbx.example.com", "https"
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if got := n.previews.URL("sbx_abc", 80); got != "https://80-abc.sbx.example.com/" || n.domain() != "sbx.example.com" {
		t.Errorf("%s, domain %s", got, n.domain())
	}
	c, o = fakeNode(t)
	c.Preview.Domain = "localhost:8443"
	m, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got := m.domain(); got != "localhost:8443" {
		t.Errorf("domain %s", got)
	}
}

// TestPagesReachOnlyTheAPI has a page of an origin that may use the API ask what else
// there is.
func TestPagesReachOnlyTheAPI(t *testing.T) {
	c, o := fakeNode(t)
	c.CORS.Origins = []string{"https://app.example", "http://localhost:3000"}
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	for _, origin := range c.CORS.Origins {
		for target, allowed := range map[string]bool{
			"localhost/v1/responses": true, "localhost/sandboxes": false, "localhost/mcp": false, "localhost/docs": false, "localhost/healthz": false,
			"8080-sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa.localhost/v1/responses": false, "49983-sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa.localhost/v1/responses": false,
		} {
			for _, method := range []string{"OPTIONS", "GET"} {
				r := httptest.NewRequestWithContext(t.Context(), method, "http://"+target, nil)
				r.Header.Set("Origin", origin)
				r.Header.Set("Access-Control-Request-Method", "POST")
				w := httptest.NewRecorder()
				n.handler.ServeHTTP(w, r)
				if got := w.Header().Get("Access-Control-Allow-Origin"); (got == origin) != allowed || method == "OPTIONS" && allowed != (w.Code == 204) {
					t.Errorf("%s %s from %s: %d %v", method, target, origin, w.Code, w.Header())
				}
			}
		}
	}
}
