package web

import (
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// site is a dashboard before an API with fakes behind it.
type site struct {
	*apitest.Fixture
	*Server
	signIns *signin.Manager
}

func open(t *testing.T) *site {
	t.Helper()
	var signIns *signin.Manager
	f := apitest.New(func(o *apitest.Options) { signIns = o.Links.(*signin.Manager) })
	t.Cleanup(f.Close)
	return &site{f, New(Options{API: f.Handler, SignIns: signIns, Keys: f.Keys, Port: "7777", Frames: []string{"http://*.localhost:7777"}}), signIns}
}

// ask sends a request as a page of the dashboard does, after change.
func (s *site) ask(method, target, body string, change func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, "http://127.0.0.1:7777"+target, strings.NewReader(body))
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set(header, "1")
	if method != http.MethodGet {
		r.Header.Set("Origin", "http://127.0.0.1:7777")
	}
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

// link returns the path of a link for a key.
func (s *site) link(t *testing.T, secret string) string {
	t.Helper()
	resp := s.ask("POST", "/v1/dashboard/links", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) })
	var l struct{ Path string }
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil || resp.StatusCode != http.StatusCreated || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %v %v", resp.Status, resp.Header, err)
	}
	return l.Path
}

// cookie signs in by a link.
func (s *site) cookie(t *testing.T, secret string) *http.Cookie {
	t.Helper()
	resp := s.ask("GET", s.link(t, secret), "", nil)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/" || len(resp.Cookies()) != 1 {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	return resp.Cookies()[0]
}

func with(c *http.Cookie, more ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.AddCookie(c)
		for i := 0; i < len(more); i += 2 {
			r.Header.Del(more[i])
			if more[i+1] != "" {
				r.Header.Set(more[i], more[i+1])
			}
		}
	}
}

func TestSigningIn(t *testing.T) {
	s := open(t)
	path := s.link(t, s.User)
	for _, early := range []func(*http.Request){
		func(r *http.Request) { r.Method = "HEAD" },
		func(r *http.Request) { r.Header.Set("Sec-Purpose", "prefetch;prerender") },
	} {
		if resp := s.ask("GET", path, "", early); resp.StatusCode != http.StatusBadRequest || len(resp.Cookies()) > 0 {
			t.Errorf("a look at a link: %s", resp.Status)
		}
	}
	resp := s.ask("GET", path, "", nil)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || c.Secure || c.Name != "engi-7777" {
		t.Errorf("the cookie: %+v", c)
	}
	again := s.ask("GET", path, "", nil)
	if again.StatusCode != http.StatusUnauthorized || len(again.Cookies()) > 0 || !strings.HasPrefix(again.Header.Get("Content-Type"), "text/html") {
		t.Errorf("a link used twice: %s %v", again.Status, again.Header)
	}
	var st state
	if err := json.NewDecoder(s.ask("GET", "/dashboard/session", "", with(c)).Body).Decode(&st); err != nil || !st.SignedIn || st.Owner != "ann" || st.Admin {
		t.Errorf("%+v %v", st, err)
	}
	if resp := s.ask("GET", "/v1/keys", "", with(c)); resp.StatusCode != http.StatusOK {
		t.Errorf("with the cookie: %s", resp.Status)
	}
	if resp := s.ask("POST", "/v1/keys", "{}", with(c)); resp.StatusCode != http.StatusForbidden {
		t.Errorf("what ann's key may not do: %s", resp.Status)
	}
	// A key goes before the cookie.
	if resp := s.ask("GET", "/v1/keys", "", with(c, "Authorization", "Bearer nonsense")); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a bad key beside a cookie: %s", resp.Status)
	}
	if resp := s.ask("DELETE", "/dashboard/session", "", with(c)); resp.StatusCode != http.StatusOK || resp.Cookies()[0].MaxAge != -1 {
		t.Errorf("signing out: %s %v", resp.Status, resp.Cookies())
	}
	if resp := s.ask("GET", "/v1/keys", "", with(c)); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the cookie after signing out: %s", resp.Status)
	}
}

func TestSigningInWithAKey(t *testing.T) {
	s := open(t)
	resp := s.ask("POST", "/dashboard/session", `{"key":" `+s.Admin+` "}`, func(r *http.Request) {
		r.TLS = &tls.ConnectionState{}
		r.Header.Set("Origin", "https://127.0.0.1:7777")
	})
	if resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 1 {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	if c := resp.Cookies()[0]; !c.Secure || c.Name != "__Host-engi" || c.Path != "/" || c.Domain != "" || !c.HttpOnly {
		t.Errorf("the cookie over HTTPS: %+v", c)
	}
	for body, want := range map[string]int{`{"key":"engi_nonsense"}`: 401, `{}`: 401, `x`: 400, `{"key":"` + strings.Repeat("x", 8<<10) + `"}`: 413} {
		if resp := s.ask("POST", "/dashboard/session", body, nil); resp.StatusCode != want || len(resp.Cookies()) > 0 {
			t.Errorf("%.40s: %s", body, resp.Status)
		}
	}
}

// TestStrangersCannotUseTheCookie sends the cookie as pages of others would have the
// browser do, and reads and writes nothing.
func TestStrangersCannotUseTheCookie(t *testing.T) {
	s := open(t)
	c := s.cookie(t, s.Admin)
	const own = "http://127.0.0.1:7777"
	for name, tc := range map[string]struct {
		headers []string
		writes  bool // only what changes something is refused
	}{
		"another site":                    {[]string{"Sec-Fetch-Site", "cross-site", "Origin", "http://evil.example", header, ""}, false},
		"another site that lies":          {[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://evil.example"}, false},
		"a preview on the same site":      {[]string{"Sec-Fetch-Site", "same-site", "Origin", "http://5173-abc.localhost:7777"}, false},
		"a preview, old browser":          {[]string{"Sec-Fetch-Site", "", "Origin", "http://5173-abc.localhost:7777"}, false},
		"another port":                    {[]string{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:3000"}, false},
		"no origin":                       {[]string{"Sec-Fetch-Site", "cross-site", "Origin", "null"}, false},
		"a sandboxed frame":               {[]string{"Sec-Fetch-Site", "", "Origin", "null"}, false},
		"a link":                          {[]string{"Sec-Fetch-Site", "cross-site", "Origin", "", header, ""}, false},
		"the address bar":                 {[]string{"Sec-Fetch-Site", "none", "Origin", "", header, ""}, false},
		"a plain page of the same host":   {[]string{"Sec-Fetch-Site", "", "Origin", "", header, ""}, false},
		"a page that says where it is":    {[]string{"Sec-Fetch-Site", "", "Origin", "", "Referer", "http://evil.example/x", header, ""}, false},
		"a form of our own origin":        {[]string{header, ""}, true},
		"a form, old browser, our origin": {[]string{"Sec-Fetch-Site", "", "Origin", own, header, ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if resp := s.ask("GET", "/v1/keys", "", with(c, tc.headers...)); (resp.StatusCode != http.StatusOK) == tc.writes {
				t.Errorf("reading: %s", resp.Status)
			}
			for _, path := range []string{"/v1/secrets", "/dashboard/session"} {
				if resp := s.ask("POST", path, `{"name":"x","value":"y","key":"`+s.Admin+`"}`, with(c, tc.headers...)); resp.StatusCode != http.StatusForbidden {
					t.Errorf("POST %s: %s", path, resp.Status)
				}
			}
			if resp := s.ask("DELETE", "/dashboard/session", "", with(c, tc.headers...)); resp.StatusCode != http.StatusForbidden {
				t.Errorf("signing somebody out: %s", resp.Status)
			}
			upgrade := append([]string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}, tc.headers...)
			if resp := s.ask("GET", "/v1/sandboxes/x/processes/y/terminal", "", with(c, upgrade...)); !tc.writes && resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
				t.Errorf("a socket: %s", resp.Status)
			}
		})
	}
	// The controls: our own pages may, also where browsers send less.
	for name, headers := range map[string][]string{
		"a page":              {},
		"a page over HTTP":    {"Sec-Fetch-Site", ""},
		"a link to a file":    {"Sec-Fetch-Site", "same-origin", header, ""},
		"a link over HTTP":    {"Sec-Fetch-Site", "", "Referer", own + "/", header, ""},
		"a socket":            {"Upgrade", "websocket", "Origin", own, header, ""},
		"a request of no one": {"Sec-Fetch-Site", "", "Referer", own + "/"},
	} {
		if resp := s.ask("GET", "/v1/keys", "", with(c, headers...)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if resp := s.ask("POST", "/v1/secrets", `{"name":"x","value":"y"}`, with(c)); resp.StatusCode != http.StatusCreated {
		t.Errorf("our own page: %s", resp.Status)
	}
	if resp := s.ask("GET", "/v1/keys", "", with(c, "Upgrade", "websocket", "Origin", "")); resp.StatusCode == http.StatusOK {
		t.Error("a socket without an origin was let in")
	}
}

func TestRebindingFindsNoDashboard(t *testing.T) {
	s := open(t)
	c := s.cookie(t, s.Admin)
	for _, path := range []string{"/", "/dashboard/session", "/dashboard/frame", "/v1/keys"} {
		resp := s.ask("GET", path, "", func(r *http.Request) {
			r.Host = "rebound.example:7777"
			with(c)(r)
		})
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("GET %s by another name: %s", path, resp.Status)
		}
	}
}

func TestTheSessionEndsWithItsKey(t *testing.T) {
	s := open(t)
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := s.cookie(t, s.User)
	get := func(path string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", u.JoinPath(path).String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/x-ndjson, application/json;q=0.5")
		with(c, header, "1")(r)
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	stream := get("/v1/events")
	if stream.StatusCode != http.StatusOK {
		t.Fatal(stream.Status)
	}
	keys, err := s.Keys.List(t.Context(), "ann", engi.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keys.Revoke(t.Context(), "ann", keys[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Errorf("the stream broke: %v", err)
	}
	if resp := get("/v1/keys"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the key was revoked: %s", resp.Status)
	}
	var st state
	if err := json.NewDecoder(get("/dashboard/session").Body).Decode(&st); err != nil || st.SignedIn {
		t.Errorf("%+v %v", st, err)
	}
}

func TestHeaders(t *testing.T) {
	s := open(t)
	page := s.ask("GET", "/", "", nil)
	policy := page.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "frame-src 'self' http://*.localhost:7777;"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q lacks %q", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || page.Header.Get("X-Frame-Options") != "DENY" || page.Header.Get("X-Content-Type-Options") != "nosniff" || page.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%v", page.Header)
	}
	frame := s.ask("GET", "/dashboard/frame", "", nil).Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(frame, "sandbox allow-scripts; default-src 'none';") || strings.Contains(frame, "allow-same-origin") || strings.Contains(frame, "connect-src") || !strings.Contains(frame, "frame-ancestors 'self'") {
		t.Errorf("the frame's policy: %q", frame)
	}
	for _, path := range []string{"/dashboard/assets/none.js", "/dashboard/assets/..%2f..%2fplaceholder.html", "/dashboard/nothing"} {
		if resp := s.ask("GET", path, "", nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
	}
	// What is not ours is the API's.
	for path, want := range map[string]int{"/docs": 200, "/healthz": 200, "/v1/keys": 401, "/openapi.json": 200, "/nothing": 404} {
		if resp := s.ask("GET", path, "", nil); resp.StatusCode != want {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
	}
}

func TestFiles(t *testing.T) {
	text := strings.Repeat("const x = 1\n", 100)
	var packed strings.Builder
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	z.Close()
	s := open(t)
	s.files = load(fstest.MapFS{
		"dist/app/index.html":            {Data: []byte("<!doctype html>")},
		"dist/app/assets/index-x1.js":    {Data: []byte(text)},
		"dist/app/assets/index-x1.js.gz": {Data: []byte(packed.String())},
		"dist/app/assets/index-x1.js.br": {Data: []byte("brotli")},
		"dist/app/assets/index-x1.css":   {Data: []byte("a{}")},
		"dist/app/ui/element.js":         {Data: []byte("export {}")},
		"dist/placeholder.html":          {Data: []byte("none")},
	})
	get := func(accept, tag string) (*http.Response, string) {
		t.Helper()
		resp := s.ask("GET", "/dashboard/assets/index-x1.js", "", func(r *http.Request) {
			r.Header.Set("Accept-Encoding", accept)
			r.Header.Set("If-None-Match", tag)
		})
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	for accept, want := range map[string][2]string{
		"gzip, deflate, br": {"br", "brotli"}, "gzip": {"gzip", packed.String()}, "br;q=0, gzip;q=0.5": {"gzip", packed.String()}, "": {"", text}, "identity": {"", text},
	} {
		resp, body := get(accept, "")
		if resp.Header.Get("Content-Encoding") != want[0] || body != want[1] || resp.Header.Get("Vary") != "Accept-Encoding" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/javascript") || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%q: %v %.20q", accept, resp.Header, body)
		}
		if again, body := get(accept, resp.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("%q again: %s %q", accept, again.Status, body)
		}
	}
	// Pages of others import it, by the same name for ever.
	h := s.ask("GET", "/dashboard/ui/element.js", "", nil).Header
	if h.Get("Cache-Control") != "no-cache" || h.Get("ETag") == "" || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Cross-Origin-Resource-Policy") != "cross-origin" {
		t.Errorf("the runtime: %v", h)
	}
	if got := s.ask("GET", "/dashboard/assets/index-x1.css", "", nil).Header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("an asset is for pages of %q", got)
	}
	if resp := s.ask("GET", "/dashboard/assets/index-x1.js.gz", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a packed file by its name: %s", resp.Status)
	}
}

func TestThePlaceholderSaysWhatToDo(t *testing.T) {
	files := load(fstest.MapFS{"dist/placeholder.html": {Data: []byte("run make build")}})
	if string(files[""].plain) != "run make build" || len(files) != 1 {
		t.Errorf("%v", files)
	}
	if b, err := dist.ReadFile("dist/placeholder.html"); err != nil || !strings.Contains(string(b), "make build") {
		t.Errorf("%s %v", b, err)
	}
}
