package preview

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

// echo responds with what it received.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	json.NewEncoder(w).Encode(map[string]any{
		"host": r.Host, "uri": r.RequestURI, "method": r.Method, "header": r.Header, "proto": r.Proto,
	})
})

type seen struct {
	Host, URI, Method, Proto string
	Header                   http.Header
}

func look(t *testing.T, r *http.Request) seen {
	t.Helper()
	res, body := do(t, r)
	var s seen
	if err := json.Unmarshal([]byte(body), &s); err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %v: %.300s", res.StatusCode, err, body)
	}
	return s
}

func TestTarget(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Domains = []string{"Sbx.Example.com", "other.test."}
		o.Path = "/preview/"
		o.Hosts = []string{"named.test"}
	})
	id := engi.NewSandboxID()
	l := id.Label()
	for _, c := range []struct {
		host, path, header string // names of the target; header is "ID PORT"
		id                 engi.SandboxID
		port               int
		ok                 bool
	}{
		{"3000-" + l + ".sbx.example.com", "/", "", id, 3000, true},
		{"3000-" + l + ".SBX.example.com:8443", "/x", "", id, 3000, true},
		{"3000-" + l + ".other.test.", "/", "", id, 3000, true},
		{"3000-" + l + ".localhost:7777", "/", "", id, 3000, true},
		{"3000-" + l + "-6532622b.localhost", "/", "", id, 3000, true},
		{"3000-" + strings.ToUpper(l) + ".localhost", "/", "", id, 3000, true},
		{"3000-" + l + ".evil.test", "/", "", "", 0, false},
		{"3000-" + l + ".x.localhost", "/", "", "", 0, false},
		{"3000-iabc.localhost", "/", "", "", 3000, true},
		{"0-" + l + ".localhost", "/", "", "", 0, true},
		{"65536-" + l + ".localhost", "/", "", "", 0, true},
		{"api.localhost", "/", "", "", 0, false},
		{"a-b.localhost", "/", "", "", 0, false},
		{"localhost:1", "/", l + " 80", id, 80, true},
		{"127.0.0.1:1", "/", string(id) + " 80", id, 80, true},
		{"[::1]:1", "/", l + "-abc 80", id, 80, true},
		{"sandbox.sbx.example.com", "/", l + " 80", id, 80, true},
		{"api.sbx.example.com", "/", l + " 80", "", 0, false},
		{"named.test", "/", l + " 80", id, 80, true},
		{"evil.test", "/", l + " 80", "", 0, false},
		{"localhost", "/", l + " ", id, 49983, true},
		{"localhost", "/", l + " http", "", 0, true},
		{"localhost", "/", l + " 99999", "", 0, true},
		{"localhost", "/", "nonsense 80", "", 80, true},
		{"localhost", "/preview/" + string(id) + "/80/a/b", "", id, 80, true},
		{"named.test", "/preview/" + l + "/80", "", id, 80, true},
		{"evil.test", "/preview/" + l + "/80/", "", "", 0, false},
		{"localhost", "/preview/" + l, "", "", 0, true},
		{"localhost", "/preview/..%2f/80/", "", "", 80, true},
		{"localhost", "/previews/" + l + "/80/", "", "", 0, false},
		{"localhost", "/v1/sandboxes", "", "", 0, false},
		{"4-" + l + ".localhost", "/preview/" + l + "/80/", l + " 90", id, 4, true},
	} {
		r := httptest.NewRequest("GET", "http://x"+c.path, nil)
		r.Host = c.host
		if id, port, ok := strings.Cut(c.header, " "); ok {
			r.Header.Set("E2b-Sandbox-Id", id)
			r.Header.Set("E2b-Sandbox-Port", port)
		}
		found, ok := f.proxy.find(r)
		id, port := found.id, found.port
		if id != c.id || port != c.port && c.id != "" || ok != c.ok {
			t.Errorf("%s%s (%s): %q %d %t, want %q %d %t", c.host, c.path, c.header, id, port, ok, c.id, c.port, c.ok)
		}
	}
	if got, want := f.proxy.URL(id, 5173), "http://5173-"+l+".sbx.example.com/"; got != want {
		t.Errorf("URL %s, want %s", got, want)
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"3000-abc.localhost", "[::1", "1-.localhost:", "-.localhost", "1-a.b.sbx.test"} {
		f.Add(s, "/preview/a/1/", "x", "1")
	}
	p := New(Options{Sandboxes: new(fixture), Keys: new(fixture).keys, LinkKey: make([]byte, 32), Domains: []string{"sbx.test"}, Path: "/preview"})
	f.Fuzz(func(t *testing.T, host, path, id, port string) {
		r := &http.Request{Host: host, URL: &url.URL{Path: path}, Header: http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {port}}}
		found, ok := p.find(r)
		got, n := found.id, found.port
		if !ok && (got != "" || n != 0) || got != "" && (n < 1 || n > 65535) {
			t.Errorf("%q %d %t", got, n, ok)
		}
		if got != "" {
			if _, err := engi.ParseSandboxID(string(got)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestWhatServicesSee(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(echo)
	r := b.request("POST", "/a%2Fb//c;d?x=1;y=%zz&&engi_token=abc&q", strings.NewReader("hi"))
	for k, v := range map[string]string{
		"Authorization": "Bearer engi_secret", "X-Api-Key": "engi_other", "E2b-Traffic-Access-Token": "tok", "X-Access-Token": strings.Repeat("0a", 32),
		"Cookie": "a=1; engi_preview=zzz;b=\"2 3\"", "Origin": "https://" + b.host(3000), "Referer": "http://" + b.host(3000) + "/p?engi_token=1&z=2",
		"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil", "X-Forwarded-Prefix": "/evil", "Forwarded": "for=6.6.6.6",
		"Connection": "X-Hop", "X-Hop": "1", "Proxy-Authorization": "engi_x", "X-Mine": "kept", "E2b-Sandbox-Id": "kept-by-host-routes",
	} {
		r.Header.Set(k, v)
	}
	s := look(t, r)
	if s.Host != "localhost:3000" || s.Method != "POST" || s.URI != "/a%2Fb//c;d?x=1;y=%zz&&q" {
		t.Errorf("saw %s %s of %s", s.Method, s.URI, s.Host)
	}
	want := map[string]string{
		"Authorization": "", "X-Api-Key": "", "E2b-Traffic-Access-Token": "", "X-Access-Token": "", "Cookie": `a=1; b="2 3"`, "Origin": "http://localhost:3000",
		"Referer": "http://localhost:3000/p?z=2", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost:3000", "X-Forwarded-Proto": "http",
		"X-Forwarded-Prefix": "", "Forwarded": "", "X-Hop": "", "Proxy-Authorization": "", "X-Mine": "kept", "E2b-Sandbox-Id": "kept-by-host-routes",
	}
	got := map[string]string{}
	for k := range want {
		got[k] = s.Header.Get(k)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("headers (-want +got):\n%s", d)
	}

	// A key in a header that engi does not read goes nowhere either.
	secret := "engi_" + strings.Repeat("abcd", 13)
	r = b.request("GET", "/", nil)
	r.Header.Set("X-Forwarded-Authorization", "Bearer "+secret)
	r.Header.Set("Sec-Websocket-Protocol", "chat, "+secret)
	r.Header.Set("Cookie", "a=1; key="+secret)
	if s := look(t, r); s.Header.Get("X-Forwarded-Authorization") != "" || s.Header.Get("Sec-Websocket-Protocol") != "chat" || s.Header.Get("Cookie") != "a=1" {
		t.Errorf("headers %v", s.Header)
	}

	// Credentials and origins that are not engi's are passed on.
	r = b.request("GET", "/", nil)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:engi_secret"))
	r.Header.Set("Authorization", basic)
	if s := look(t, r); s.Header.Get("Authorization") != "" {
		t.Error("a key as the password of Basic went inside")
	}
	r = b.request("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer sk-123")
	r.Header.Set("X-Api-Key", "theirs")
	r.Header.Set("X-Access-Token", "theirs")
	r.Header.Set("Origin", "https://else.where")
	s = look(t, r)
	if s.Header.Get("Authorization") != "Bearer sk-123" || s.Header.Get("X-Api-Key") != "theirs" || s.Header.Get("X-Access-Token") != "theirs" || s.Header.Get("Origin") != "https://else.where" ||
		s.Header.Get("X-Forwarded-Host") != b.host(3000) {
		t.Errorf("headers %v", s.Header)
	}

	b.change(func(s *engi.Sandbox) { s.Ports.Host = "app.example:${PORT}" })
	if s := look(t, b.request("GET", "/", nil)); s.Host != "app.example:3000" {
		t.Errorf("masked host is %q", s.Host)
	}
}

func TestWhatCallersSee(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Path = "/preview" })
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Set-Cookie", "a=1; Domain=sbx.test; Path=/x; HttpOnly")
		h.Add("Set-Cookie", "engi_preview=forged; Path=/")
		h.Add("Set-Cookie", "b=2; domain=.localhost")
		h.Set("Alt-Svc", `h3=":443"`)
		h.Set("Clear-Site-Data", `"*"`)
		h.Set("Location", r.URL.Query().Get("to"))
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.WriteHeader(302)
	}))
	r := b.request("GET", "/?to=http://localhost:3000/in?a=b%23c", nil)
	r.Header.Set("Origin", "http://"+b.host(3000))
	res, _ := do(t, r)
	if d := cmp.Diff([]string{"a=1; Path=/x; HttpOnly", "b=2"}, res.Header["Set-Cookie"]); d != "" {
		t.Errorf("cookies (-want +got):\n%s", d)
	}
	if res.Header.Get("Alt-Svc") != "" || res.Header.Get("Location") != "/in?a=b#c" || res.Header.Get("Access-Control-Allow-Origin") != r.Header.Get("Origin") {
		t.Errorf("headers %v", res.Header)
	}
	for to, want := range map[string]string{
		"/x": "/x", "x": "x", "https://else.where/x": "https://else.where/x", "http://localhost:3000": "/", "//localhost:3000/y": "/y",
		"http://localhost:3000//evil.test": "/.//evil.test", "http://localhost:4000/": "http://localhost:4000/", "mailto:a@b": "mailto:a@b",
	} {
		res, _ := do(t, b.request("GET", "/?to="+url.QueryEscape(to), nil))
		if got := res.Header.Get("Location"); got != want {
			t.Errorf("Location %q became %q, want %q", to, got, want)
		}
	}

	// By path, everything stays below the prefix.
	prefix := "/preview/" + string(b.record.ID) + "/3000"
	r = b.request("GET", prefix+"/d%2Fe/?to=/x", nil)
	r.Host = "localhost"
	res, _ = do(t, r)
	if d := cmp.Diff([]string{"a=1; Path=" + prefix + "/x; HttpOnly", "b=2; Path=" + prefix + "/"}, res.Header["Set-Cookie"]); d != "" {
		t.Errorf("cookies by path (-want +got):\n%s", d)
	}
	if res.Header.Get("Location") != "../x" || res.Header.Get("Clear-Site-Data") != "" || !strings.HasPrefix(res.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("headers by path %v", res.Header)
	}
	r = b.request("GET", prefix+"?q", nil)
	r.Host = "localhost"
	if res, _ := do(t, r); res.StatusCode != 308 || res.Header.Get("Location") != "3000/?q" {
		t.Errorf("without slash: %d %q", res.StatusCode, res.Header.Get("Location"))
	}
	e := f.sandbox(echo)
	r = e.request("GET", "/preview/"+e.record.ID.Label()+"/3000/d%2Fe/f?x", nil)
	r.Host = "127.0.0.1:80"
	if s := look(t, r); s.URI != "/d%2Fe/f?x" || s.Header.Get("X-Forwarded-Prefix") == "" || s.Host != "localhost:3000" {
		t.Errorf("saw %+v", s)
	}
}

func TestRoutesByHeader(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(echo)
	r := b.request("GET", "/h", nil)
	r.Host = "localhost"
	r.Header.Set("E2b-Sandbox-Id", b.record.ID.Label())
	r.Header.Set("E2b-Sandbox-Port", "3000")
	if s := look(t, r); s.URI != "/h" || s.Header.Get("E2b-Sandbox-Id") != "" || s.Header.Get("E2b-Sandbox-Port") != "" {
		t.Errorf("saw %+v", s)
	}
}

func TestSpecialPorts(t *testing.T) {
	var got engi.SandboxID
	var path string
	f := newFixture(t, func(o *Options) {
		o.Path = "/preview"
		o.Special = map[int]http.Handler{49983: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, _, _ = TargetOf(r.Context())
			path = r.URL.Path
		})}
	})
	b := f.sandbox(nil)
	r := b.request("GET", "/health", nil)
	r.Host = b.host(49983)
	if res, _ := do(t, r); res.StatusCode != 200 || got != b.record.ID || path != "/health" {
		t.Errorf("%d %s %s", res.StatusCode, got, path)
	}
	r = b.request("GET", "/preview/"+b.record.ID.Label()+"/49983/files", nil)
	r.Host = "localhost"
	if res, _ := do(t, r); res.StatusCode != 200 || path != "/files" {
		t.Errorf("%d %s", res.StatusCode, path)
	}
}

func TestAnswersWithoutService(t *testing.T) {
	f := newFixture(t, nil)
	open := f.sandbox(echo)
	label := open.record.ID.Label()
	dead := f.sandbox(echo)
	dead.end()
	warm := f.sandbox(echo)
	warm.change(func(s *engi.Sandbox) { s.State, s.Owner, s.Pool = engi.Ready, "", "p" })
	used := f.sandbox(echo)
	used.change(func(s *engi.Sandbox) { s.Execution = engi.NewExecutionID() })
	asleep := f.sandbox(echo)
	asleep.refusal = engi.Errorf(engi.Conflict, "it is being written to disk")
	full := f.sandbox(echo)
	full.refusal = engi.Errorf(engi.Exhausted, "no memory to wake it").WithRetry(engi.Retry{AfterMillis: 1500})
	down := f.sandbox(echo)
	down.refusal = engi.Errorf(engi.Unavailable, "later")
	missing := engi.NewSandboxID().Label()
	for _, c := range []struct {
		name, host string
		status     int
		want       string
	}{
		{"unknown", "3000-" + missing + ".sbx.test", 502, `{"sandboxId":"` + missing + `","message":"The sandbox was not found","code":502}`},
		{"malformed", "3000-iabc.localhost", 502, `{"sandboxId":"iabc","message":"The sandbox was not found","code":502}`},
		{"dead", dead.host(3000), 502, "not found"}, {"warm", warm.host(3000), 502, "not found"}, {"of an execution", used.host(3000), 502, "not found"},
		{"closed port", open.host(3001), 502, `{"sandboxId":"` + label + `","message":"The sandbox is running but port is not open","port":3001,"code":502}`},
		{"asleep", asleep.host(3000), 409, `"code":409`}, {"full", full.host(3000), 429, `"code":429`}, {"down", down.host(3000), 503, `"code":503`},
	} {
		r := open.request("GET", "/", nil)
		r.Host = c.host
		res, body := do(t, r)
		if res.StatusCode != c.status || !strings.Contains(body, c.want) || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, body)
		}
		if strings.HasPrefix(c.want, "{") && strings.TrimSpace(body) != c.want {
			t.Errorf("%s: %s, want %s", c.name, body, c.want)
		}
		r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
		if res, body := do(t, r); res.StatusCode != c.status || !strings.HasPrefix(body, "<!doctype html>") || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
			t.Errorf("%s as a page: %d %s", c.name, res.StatusCode, body)
		}
	}
	r := open.request("GET", "/", nil)
	r.Host = full.host(1)
	if res, _ := do(t, r); res.Header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
	}
	r.Host = `3000-"><script>.localhost`
	rec := httptest.NewRecorder()
	r.Header.Set("Accept", "text/html")
	f.proxy.ServeHTTP(rec, r)
	if rec.Code != 502 || strings.Contains(rec.Body.String(), "<script>") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestHostileServices(t *testing.T) {
	f := newFixture(t, nil)
	for name, text := range map[string]string{
		"no HTTP":         "SSH-2.0-OpenSSH\r\n",
		"silence":         "",
		"huge header":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 200<<10) + "\r\n\r\n",
		"endless headers": "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 50_000),
		"two lengths":     "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"unasked upgrade": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	} {
		b := f.sandbox(nil)
		b.raw(func(c net.Conn) {
			defer c.Close()
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, text)
		})
		res, body := do(t, b.request("POST", "/", strings.NewReader("x")))
		if res.StatusCode != 502 || !strings.Contains(body, `"code":502`) {
			t.Errorf("%s: %d %.200s", name, res.StatusCode, body)
		}
	}
	// The second of two responses is delivered to no client.
	b := f.sandbox(nil)
	b.raw(func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for n := 0; ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%dHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", n)
		}
	})
	for range 5 {
		if _, body := do(t, b.request("GET", "/", nil)); body != "0" {
			t.Errorf("got %q", body)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestSmuggling sends requests whose end parsers could find in different places,
// byte by byte.
func TestSmuggling(t *testing.T) {
	f := newFixture(t, nil)
	var mu sync.Mutex // requests of clients that have left may still be served
	var uris []string
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		uris = append(uris, r.RequestURI)
	}))
	host := b.host(3000)
	do(t, b.request("GET", "/plain", nil))
	for name, text := range map[string]string{
		"length and chunks":  "POST /1 HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n",
		"two lengths":        "POST /2 HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n",
		"odd coding":         "POST /3 HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
		"space before colon": "POST /4 HTTP/1.1\r\nHost: " + host + "\r\nContent-Length : 40\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n",
		"two hosts":          "GET /5 HTTP/1.1\r\nHost: " + host + "\r\nHost: evil\r\n\r\n",
		"bare line feeds":    "GET /6 HTTP/1.1\nHost: " + host + "\nX: a\n\nGET /smuggled HTTP/1.1\nHost: evil\n\n",
		"newline in target":  "GET /7 HTTP/1.1\r\nHost: " + host + "\r\nX: a\rGET /smuggled HTTP/1.1\r\n\r\n",
		"h2c":                "GET /8 HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"absolute form":      "GET http://" + host + "/9 HTTP/1.1\r\nHost: evil\r\n\r\n",
	} {
		c, err := net.Dial("tcp", f.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, text)
		c.(*net.TCPConn).CloseWrite()
		c.SetDeadline(time.Now().Add(time.Minute))
		answer, err := io.ReadAll(c)
		c.Close()
		if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "h2c" && bytes.Contains(answer, []byte("101 ")) {
			t.Errorf("%s: %s", name, answer)
		}
	}
	f.http.CloseClientConnections()
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(uris, "/smuggled") {
		t.Errorf("a request was smuggled: %q", uris)
	}
	if !slices.Contains(uris, "/plain") {
		t.Errorf("nothing arrives: %q", uris)
	}
}

func TestTrailersAndContinue(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%d %s", n, r.Trailer.Get("X-End"))
		w.Header().Set("X-Sum", "late")
	}))
	r := b.request("POST", "/", io.MultiReader(strings.NewReader("abc")))
	r.ContentLength = -1
	r.Trailer = http.Header{"X-End": {"done"}}
	res, body := do(t, r)
	if body != "3 done" || res.Trailer.Get("X-Sum") != "late" {
		t.Errorf("%q, trailer %v", body, res.Trailer)
	}

	refuse := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(413) }))
	for want, b := range map[int]*fakeSandbox{200: b, 413: refuse} {
		read := false
		r := b.request("PUT", "/", readerFunc(func([]byte) (int, error) { read = true; return 0, io.EOF }))
		r.ContentLength = -1
		r.Header.Set("Expect", "100-continue")
		continued := false
		tr := &http.Transport{ExpectContinueTimeout: 20 * time.Second}
		defer tr.CloseIdleConnections()
		res, err := tr.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }})))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || read != (want == 200) || continued != read {
			t.Errorf("status %d, body read %t, continue %t; want %d", res.StatusCode, read, continued, want)
		}
	}

	hints := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(103)
	}))
	var early int
	r = hints.request("GET", "/", nil)
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { early = code; return nil }}))
	if do(t, r); early != 103 {
		t.Errorf("early hint %d", early)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestLargeBodiesBothWays(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body) // the service responds while it reads
	}))
	const size = 64 << 20
	for _, second := range []bool{false, true} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(!second)
		tr.Protocols.SetUnencryptedHTTP2(second)
		defer tr.CloseIdleConnections()
		up, down := sha256.New(), sha256.New()
		r := b.request("POST", "/", io.TeeReader(io.LimitReader(zeros{}, size), up))
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(down, res.Body)
		res.Body.Close()
		if err != nil || n != size || !bytes.Equal(up.Sum(nil), down.Sum(nil)) {
			t.Errorf("HTTP/2 %t: %d bytes, %v", second, n, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(i * 7)
	}
	return len(b), nil
}

func TestHTTP2TowardsServices(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(echo)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	second := &http.Client{Transport: tr}
	for header, want := range map[string]string{"": "HTTP/1.1", "Content-Type: application/grpc+proto": "HTTP/2.0", "X-Engi-Protocol: h2c": "HTTP/2.0"} {
		r := b.request("POST", "/", strings.NewReader("x"))
		if k, v, ok := strings.Cut(header, ": "); ok {
			r.Header.Set(k, v)
		}
		res, err := second.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var s seen
		err = json.NewDecoder(res.Body).Decode(&s)
		res.Body.Close()
		if err != nil || s.Proto != want || res.ProtoMajor != 2 || s.Header.Get("X-Engi-Protocol") != "" {
			t.Errorf("%q: %s from %+v, %v", header, res.Proto, s, err)
		}
	}
}

// events serves one event, then waits until the client is gone.
func events(entered chan<- struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		http.NewResponseController(w).Flush()
		if entered != nil {
			entered <- struct{}{}
		}
		<-r.Context().Done()
	})
}

func firstEvent(t *testing.T, b *fakeSandbox) (*http.Response, *bufio.Reader) {
	t.Helper()
	res, err := client.Do(b.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	in := bufio.NewReader(res.Body)
	if line, err := in.ReadString('\n'); line != "data: 1\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return res, in
}

func TestEndsOfStreams(t *testing.T) {
	leave, left := context.WithCancel(t.Context())
	f := newFixture(t, func(o *Options) { o.Leave = leave })
	stream := f.sandbox(events(nil))
	_, in := firstEvent(t, stream)
	stream.end()
	if rest, err := io.ReadAll(in); err == nil {
		t.Errorf("a killed sandbox's stream ended as if it were whole, after %q", rest)
	}

	// The body has no length and ends with the connection.
	for _, killed := range []bool{false, true} {
		b := f.sandbox(nil)
		read := make(chan struct{})
		b.raw(func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: 1\nrest")
			<-read
			if killed {
				b.end()
			}
			c.Close()
		})
		_, in := firstEvent(t, b)
		close(read)
		rest, err := io.ReadAll(in)
		if string(rest) != "rest" && !killed || (err != nil) != killed {
			t.Errorf("killed %t: %q, %v", killed, rest, err)
		}
	}

	third := f.sandbox(events(nil))
	_, in = firstEvent(t, third)
	socket := f.sandbox(http.HandlerFunc(echoSocket))
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.http.URL, "http"), &websocket.DialOptions{Host: socket.host(3000)})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	left()
	if _, err := io.ReadAll(in); err == nil {
		t.Error("an event stream outlived the server's leave")
	}
	if _, _, err := ws.Read(t.Context()); err == nil {
		t.Error("a socket outlived the server's leave")
	}
}

func echoSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil) // Accept refuses origins other than Host
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, b); err != nil {
			return
		}
	}
}

func TestWebSocket(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(http.HandlerFunc(echoSocket))
	dial := func(origin string) (*websocket.Conn, error) {
		c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.http.URL, "http"), &websocket.DialOptions{
			Host: b.host(3000), HTTPHeader: http.Header{"Origin": {origin}},
		})
		return c, err
	}
	if c, err := dial("https://evil.test"); err == nil {
		c.CloseNow()
		t.Error("another origin was passed off as the preview's own")
	}
	c, err := dial("http://" + b.host(3000))
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	for _, size := range []int{0, 1, 70_000, 4 << 20} {
		want := bytes.Repeat([]byte("x"), size)
		if err := c.Write(t.Context(), websocket.MessageBinary, want); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	b.end()
	if _, _, err := c.Read(t.Context()); err == nil || websocket.CloseStatus(err) != -1 {
		t.Errorf("a killed sandbox's socket: %v", err)
	}
}

func TestSilenceIsCut(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.IdleTimeout = time.Second })
	b := f.sandbox(events(nil))
	_, in := firstEvent(t, b)
	if _, err := io.ReadAll(in); err == nil {
		t.Error("a silent stream went on")
	}
	mute := f.sandbox(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if res, body := do(t, mute.request("GET", "/", nil)); res.StatusCode != 504 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	// A client that stops reading must not keep its place forever.
	flood := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, zeros{}) }))
	res, err := client.Do(flood.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		f.mu.Lock()
		n := f.entered
		f.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it still does")
		}
	}
	sock := f.sandbox(http.HandlerFunc(echoSocket))
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.http.URL, "http"), &websocket.DialOptions{Host: sock.host(3000)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("a silent socket went on")
	}
}

func TestSlowIsNotSilent(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.IdleTimeout = 4 * time.Second })
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 50 {
			io.WriteString(w, "x")
			http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	}))
	if _, body := do(t, b.request("GET", "/", nil)); body != strings.Repeat("x", 50) {
		t.Errorf("a slow answer was cut to %q", body)
	}
}

func TestLimits(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Rate, o.Burst, o.MaxOpen = 0.001, 3, 2 })
	entered := make(chan struct{}, 8)
	b := f.sandbox(events(entered))
	for range 2 {
		firstEvent(t, b)
		<-entered
	}
	res, body := do(t, b.request("GET", "/", nil))
	if res.StatusCode != 429 || !strings.Contains(body, "open already") || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	res, body = do(t, b.request("GET", "/", nil))
	if res.StatusCode != 429 || !strings.Contains(body, "per second") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if other := f.sandbox(echo); look(t, other.request("GET", "/", nil)).Host == "" {
		t.Error("one sandbox's limit is another's")
	}
}

func TestConnectionsAreKeptAndDropped(t *testing.T) {
	f := newFixture(t, nil)
	b := f.sandbox(echo)
	for range 5 {
		look(t, b.request("GET", "/", nil))
	}
	if b.dials != 1 {
		t.Errorf("%d connections for 5 requests in a row", b.dials)
	}
	b.change(func(s *engi.Sandbox) { s.Started = s.Started.Add(time.Second) })
	look(t, b.request("GET", "/", nil))
	if b.dials != 2 {
		t.Errorf("%d connections: those of a former life are used", b.dials)
	}
	for i := range maxSandboxes + 10 {
		f.proxy.mu.Lock()
		f.proxy.connsOf(fmt.Sprint(i))
		n := len(f.proxy.sandboxes.byID)
		f.proxy.mu.Unlock()
		if n > maxSandboxes {
			t.Fatalf("%d rooms", n)
		}
	}
}
