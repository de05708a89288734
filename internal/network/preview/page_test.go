package preview

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// pages is a fake Apps with one app.
type pages struct {
	app   engi.App
	files map[string]string
}

func (p *pages) Get(_ context.Context, _ engi.Viewer, app string) (engi.App, error) {
	if app != string(p.app.ID) {
		return engi.App{}, engi.Errorf(engi.NotFound, "no app")
	}
	return p.app, nil
}

func (p *pages) Published(_ context.Context, _ engi.Viewer, _, name string, packed bool) (engi.PublishedFile, error) {
	text, ok := p.files[name]
	if !ok {
		return engi.PublishedFile{}, engi.Errorf(engi.NotFound, "no file")
	}
	f := engi.PublishedFile{Path: name, Digest: name + "-plain", Fixed: strings.HasPrefix(name, "assets/")}
	if packed && strings.HasSuffix(name, ".js") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		z.Close()
		text, f.Gzip, f.Digest = b.String(), true, name+"-gzip"
	}
	f.Size, f.Content = int64(len(text)), strings.NewReader(text)
	return f, nil
}

func newPages(t *testing.T, change func(*Options)) (*fixture, *pages) {
	p := &pages{app: engi.App{ID: engi.NewAppID(), Owner: "ann", Published: engi.Publication{Revision: 2}}, files: map[string]string{
		"index.html": "<h1>first</h1>", "assets/index-Ab3.js": strings.Repeat("console.log(1)\n", 100), "docs/index.html": "docs", "x.bin": "0123456789", ".well-known/a": "a",
	}}
	return newFixture(t, func(o *Options) {
		o.Apps = p
		if change != nil {
			change(o)
		}
	}), p
}

// ask requests a path of the page with headers, given as names and values.
func (p *pages) ask(t *testing.T, f *fixture, method, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.http.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "app-" + p.app.ID.Label() + ".sbx.test"
	r.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return do(t, r)
}

// TestPortsOfApps: an app's port keeps its address when another sandbox replaces
// the app's sandbox.
func TestPortsOfApps(t *testing.T) {
	f, p := newPages(t, nil)
	get := func() (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.http.URL+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(f.proxy.AppURL(p.app.ID, 3000))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = u.Host
		res, body := do(t, r)
		return res.StatusCode, body
	}
	if status, _ := get(); status != http.StatusBadGateway {
		t.Errorf("without a sandbox: %d", status)
	}
	for _, text := range []string{"old", "new"} {
		b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }))
		p.app.Sandbox = b.record.ID
		if status, body := get(); status != http.StatusOK || body != text {
			t.Errorf("the %s sandbox: %d %s", text, status, body)
		}
		b.change(func(s *engi.Sandbox) { s.Ports.Private = true })
		if status, _ := get(); status != http.StatusForbidden {
			t.Errorf("of one that is private: %d", status)
		}
	}
	p.app.State = engi.AppStarting // starting in its new sandbox
	if status, body := get(); status != http.StatusServiceUnavailable || !strings.Contains(body, appStarts) {
		t.Errorf("of an app that starts: %d %s", status, body)
	}
	if res, _ := p.ask(t, f, "GET", "/"); res.StatusCode != http.StatusOK {
		t.Errorf("what it has published: %d", res.StatusCode)
	}
	page := httptest.NewRequest(http.MethodGet, f.proxy.AppURL(p.app.ID, 3000), nil)
	page.Header.Set("Accept", "text/html")
	shown := httptest.NewRecorder()
	f.proxy.ServeHTTP(shown, page)
	if h := shown.Header(); shown.Code != http.StatusServiceUnavailable || h.Get("Refresh") != "1" || h.Get("Retry-After") != "1" {
		t.Errorf("a page of an app that starts: %d %v", shown.Code, h)
	}
	p.app.State = engi.AppReady
	if status, _ := get(); status != http.StatusForbidden {
		t.Errorf("of an app that has started: %d", status)
	}
	for host, want := range map[string]string{"3000-app-x.sbx.test": "", "app-3000-" + p.app.ID.Label() + ".sbx.test": "", "3000-app-" + p.app.ID.Label() + ".sbx.test": string(p.app.ID)} {
		if found, _ := f.proxy.find(&http.Request{Host: host, URL: &url.URL{Path: "/"}}); string(found.of) != want || found.id != "" {
			t.Errorf("%s is for %+v", host, found)
		}
	}
	p.app.ID = engi.NewAppID()
	f.proxy.o.Apps = &pages{}
	if status, _ := get(); status != http.StatusBadGateway {
		t.Errorf("of an app that is not there: %d", status)
	}
}

// TestPrivateApps: a link to an app, and the cookie that it sets, outlive sandboxes.
func TestPrivateApps(t *testing.T) {
	f, p := newPages(t, nil)
	old := f.sandbox(echo)
	old.ports[3001] = old.ports[3000]
	old.change(func(s *engi.Sandbox) { s.Ports.Private = true })
	p.app.Sandbox = old.record.ID
	link, expires, err := f.proxy.SignApp(p.app.ID, 3000, time.Hour)
	if err != nil || time.Until(expires) > time.Hour || time.Until(expires) < 59*time.Minute {
		t.Fatal(err, expires)
	}
	u, err := url.Parse(link)
	if err != nil || u.Host != "3000-app-"+p.app.ID.Label()+".sbx.test" {
		t.Fatal(link, err)
	}
	get := func(host, query string, header ...string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.http.URL+"/a?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return do(t, r)
	}
	res, _ := get(u.Host, u.RawQuery, "Accept", "text/html")
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/a" || len(res.Cookies()) != 1 {
		t.Fatalf("a browser with the link: %d %v", res.StatusCode, res.Header)
	}
	cookie := tokenCookie + "=" + res.Cookies()[0].Value
	for _, c := range []struct {
		site, dest string
		framed     bool
	}{{"cross-site", "iframe", true}, {"cross-site", "frame", true}, {"same-site", "iframe", false}, {"cross-site", "document", false}, {"none", "document", false}, {"", "", false}} {
		res, _ := get(u.Host, u.RawQuery, "Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", c.site, "Sec-Fetch-Dest", c.dest)
		if len(res.Cookies()) != 1 {
			t.Fatalf("%+v: %v", c, res.Header)
		}
		if x := res.Cookies()[0]; x.Partitioned != c.framed || x.Secure != c.framed || (x.SameSite == http.SameSiteNoneMode) != c.framed || !x.HttpOnly {
			t.Errorf("%+v: %v", c, x)
		}
	}

	// Links of another app, of ports of sandboxes, of the app's own sandbox, and of its published page.
	other := &pages{app: engi.App{ID: engi.NewAppID(), Owner: "ann"}}
	siblings := f.sandbox(echo)
	siblings.change(func(s *engi.Sandbox) { s.Ports.Private = true })
	signed := func(address string, _ time.Time, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		_, query, _ := strings.Cut(address, "?")
		return query
	}
	wrong := map[string]string{
		"another port":        signed(f.proxy.SignApp(p.app.ID, 3001, time.Hour)),
		"another app":         signed(f.proxy.SignApp(other.app.ID, 3000, time.Hour)),
		"its sandbox":         signed(f.proxy.Sign(old.record.ID, 3000, time.Hour)),
		"what it publishes":   signed(f.proxy.SignPage(p.app.ID, time.Hour)),
		"nothing":             "",
		"one with a bad MAC":  u.RawQuery[:len(u.RawQuery)-4] + "AAAA",
		"one that is too old": tokenParameter + "=" + f.proxy.token(target{of: p.app.ID, port: 3000}, time.Now().Add(-time.Second)),
	}
	for name, query := range wrong {
		if res, body := get(u.Host, query); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "This app is private") {
			t.Errorf("the link of %s opens the app: %d %s", name, res.StatusCode, body)
		}
	}
	if res, _ := get(old.host(3000), u.RawQuery); res.StatusCode != http.StatusForbidden {
		t.Errorf("the link opens the sandbox by its own name: %d", res.StatusCode)
	}
	p.app.Published.Private = true
	if res, _ := p.ask(t, f, "GET", "/?"+u.RawQuery); res.StatusCode != http.StatusForbidden {
		t.Errorf("the link opens what is published: %d", res.StatusCode)
	}

	// Another sandbox replaces the first.
	for _, b := range []*fakeSandbox{old, f.sandbox(echo)} {
		b.change(func(s *engi.Sandbox) { s.Ports.Private = true })
		p.app.Sandbox = b.record.ID
		if private, err := f.proxy.PrivateApp(t.Context(), p.app); err != nil || !private {
			t.Errorf("it is private: %v, %v", private, err)
		}
		if res, body := get(u.Host, u.RawQuery); res.StatusCode != http.StatusOK || strings.Contains(body, tokenParameter) {
			t.Errorf("a program with the link: %d %s", res.StatusCode, body)
		}
		for origin, want := range map[string]int{
			"http://" + u.Host: 200, "http://3001-app-" + p.app.ID.Label() + ".sbx.test": 200,
			"http://3000-app-" + other.app.ID.Label() + ".sbx.test": 403, "http://" + siblings.host(3000): 403, "http://" + old.host(3000): 403,
			"http://app-" + p.app.ID.Label() + ".sbx.test": 403, "https://else.where": 403,
		} {
			if res, body := get(u.Host, "", "Cookie", cookie, "Origin", origin); res.StatusCode != want {
				t.Errorf("the cookie from %s: %d %s", origin, res.StatusCode, body)
			}
		}
		if res, body := get(u.Host, "", "Cookie", cookie); res.StatusCode != http.StatusOK {
			t.Errorf("the cookie: %d %s", res.StatusCode, body)
		}
		b.change(func(s *engi.Sandbox) { s.Ports.Private = false })
		if private, err := f.proxy.PrivateApp(t.Context(), p.app); err != nil || private {
			t.Errorf("it is not private: %v, %v", private, err)
		}
	}
	for _, app := range []engi.App{{}, {Sandbox: engi.NewSandboxID()}} {
		if private, err := f.proxy.PrivateApp(t.Context(), app); err != nil || private {
			t.Errorf("without a sandbox: %v, %v", private, err)
		}
	}
	f.proxy.o.Private = true
	if private, err := f.proxy.PrivateApp(t.Context(), engi.App{}); err != nil || !private {
		t.Errorf("private by the node: %v, %v", private, err)
	}
	for _, c := range []struct {
		port int
		ttl  time.Duration
	}{{0, time.Hour}, {65536, time.Hour}, {3000, 0}, {3000, LongestLink + 1}} {
		if _, _, err := f.proxy.SignApp(p.app.ID, c.port, c.ttl); !engi.Is(err, engi.Invalid) {
			t.Errorf("a link to port %d for %s: %v", c.port, c.ttl, err)
		}
	}
}

func TestPublishedPages(t *testing.T) {
	f, p := newPages(t, nil)
	const js = "/assets/index-Ab3.js"
	for _, c := range []struct {
		method, path, header, value string
		status                      int
		want                        string // body, or the beginning of it
	}{
		{"GET", "/", "", "", 200, "<h1>first</h1>"},
		{"HEAD", "/", "", "", 200, ""},
		{"GET", "/index.html?a=b", "", "", 200, "<h1>first</h1>"},
		{"GET", "/users/7", "", "", 200, "<h1>first</h1>"},
		{"GET", "/users/7/", "Accept", "text/html,*/*;q=0.8", 200, "<h1>first</h1>"},
		{"GET", "/users/7", "Accept", "application/json", 404, `{"message":"There is no such page"`},
		{"GET", "/users/7", "Sec-Fetch-Mode", "cors", 404, ""},
		{"GET", "/users/7.js", "", "", 404, ""},
		{"GET", "/assets/gone-123.js", "Accept", "text/html", 404, "<!doctype html>"},
		{"GET", "/docs", "", "", 302, ""},
		{"GET", "/docs/", "", "", 200, "docs"},
		{"GET", "/.well-known/a", "", "", 200, "a"},
		{"GET", "/../x.bin", "", "", 404, ""},
		{"GET", "/%2e%2e/%2e%2e/etc/passwd", "", "", 404, ""},
		{"GET", "//evil.test/", "", "", 404, ""},
		{"GET", "/a/..%2fx.bin", "", "", 404, ""},
		{"POST", "/", "", "", 405, ""},
		{"GET", "/x.bin", "Range", "bytes=2-4", 206, "234"},
		{"GET", "/x.bin", "Range", "bytes=20-", 416, ""},
		{"GET", "/x.bin", "If-None-Match", `"x.bin-plain"`, 304, ""},
		{"GET", "/x.bin", "If-None-Match", `"other"`, 200, "0123456789"},
		{"GET", js, "Range", "bytes=0-6", 206, "console"},
	} {
		res, body := p.ask(t, f, c.method, c.path, c.header, c.value)
		if res.StatusCode != c.status || !strings.HasPrefix(body, c.want) || c.status == 200 && c.method != "HEAD" && body != c.want && !strings.HasPrefix(c.path, "/assets") {
			t.Errorf("%s %s %s %s: %d %.200s", c.method, c.path, c.header, c.value, res.StatusCode, body)
		}
		if c.status < 300 && (res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("ETag") == "" || res.ContentLength < 0) {
			t.Errorf("%s %s: %v", c.method, c.path, res.Header)
		}
	}
	if res, _ := p.ask(t, f, "GET", "/docs?a=b"); res.Header.Get("Location") != "/docs/?a=b" {
		t.Errorf("moved to %s", res.Header.Get("Location"))
	}

	// Files that never change are kept by clients, and compressed if the client accepts it.
	for accept, zipped := range map[string]bool{"gzip, br": true, "br": false, "gzip;q=0, br": false, "*": true, "identity": false, "GZIP; q=0.5": true} {
		res, body := p.ask(t, f, "GET", js, "Accept-Encoding", accept)
		text := body
		if zipped {
			z, err := gzip.NewReader(strings.NewReader(body))
			if err != nil {
				t.Fatalf("%s: %v", accept, err)
			}
			b, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		h := res.Header
		if (h.Get("Content-Encoding") == "gzip") != zipped || text != p.files[js[1:]] || h.Get("Vary") != "Accept-Encoding" || h.Get("Cache-Control") != "public, max-age=31536000, immutable" ||
			h.Get("Content-Type") != "text/javascript; charset=utf-8" || res.ContentLength != int64(len(body)) || strings.Contains(h.Get("ETag"), "gzip") != zipped {
			t.Errorf("%s: %d of %d bytes, %v", accept, len(body), res.ContentLength, h)
		}
	}
	if res, _ := p.ask(t, f, "GET", "/"); res.Header.Get("Cache-Control") != "public, no-cache" || res.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%v", res.Header)
	}

	p.app.Published = engi.Publication{}
	if res, body := p.ask(t, f, "GET", "/"); res.StatusCode != 404 || !strings.Contains(body, "Nothing is published") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	for _, host := range []string{"app-" + engi.NewAppID().Label() + ".sbx.test", "app-x.sbx.test", "app-.localhost"} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", f.http.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if res, body := do(t, r); res.StatusCode != 404 {
			t.Errorf("%s: %d %s", host, res.StatusCode, body)
		}
	}
}

func TestPrivatePages(t *testing.T) {
	f, p := newPages(t, nil)
	p.app.Published.Private = true
	key := func(k engi.Key) string {
		_, secret, err := f.keys.Create(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + secret
	}
	for auth, want := range map[string]int{"": 403, key(engi.Key{Owner: "ann"}): 200, key(engi.Key{Owner: "bob"}): 403, key(engi.Key{Admin: true}): 200} {
		if res, body := p.ask(t, f, "GET", "/", "Authorization", auth); res.StatusCode != want || want == 200 && res.Header.Get("Cache-Control") != "private, no-cache" {
			t.Errorf("%.15s: %d %s %v", auth, res.StatusCode, body, res.Header)
		}
	}
	link, _, err := f.proxy.SignPage(p.app.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link)
	if err != nil || u.Host != "app-"+p.app.ID.Label()+".sbx.test" {
		t.Fatal(link, err)
	}
	if res, _ := p.ask(t, f, "GET", "/?"+u.RawQuery); res.StatusCode != 200 {
		t.Errorf("a program with the link: %d", res.StatusCode)
	}
	res, _ := p.ask(t, f, "GET", "/a?"+u.RawQuery, "Accept", "text/html")
	if res.StatusCode != 303 || res.Header.Get("Location") != "/a" || len(res.Cookies()) != 1 {
		t.Fatalf("a browser with the link: %d %v", res.StatusCode, res.Header)
	}
	cookie := tokenCookie + "=" + res.Cookies()[0].Value
	other := engi.NewAppID()
	for origin, want := range map[string]int{"": 200, "http://" + u.Host: 200, "http://app-" + other.Label() + ".sbx.test": 403, "http://3000-" + engi.NewSandboxID().Label() + ".sbx.test": 403} {
		if res, _ := p.ask(t, f, "GET", "/", "Cookie", cookie, "Origin", origin); res.StatusCode != want {
			t.Errorf("the cookie from %q: %d", origin, res.StatusCode)
		}
	}
	// A link is for one page, and not for a sandbox.
	b := f.sandbox(echo)
	b.change(func(s *engi.Sandbox) { s.Ports.Private = true })
	if res, _ := do(t, b.request("GET", "/?"+u.RawQuery, nil)); res.StatusCode != 403 {
		t.Errorf("the link opens a sandbox: %d", res.StatusCode)
	}
	wrong, _, err := f.proxy.SignPage(other, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if res, _ := p.ask(t, f, "GET", "/?"+wrong[strings.Index(wrong, "?")+1:]); res.StatusCode != 403 {
		t.Errorf("another page's link: %d", res.StatusCode)
	}
	p.app.Published.Private = false
	f.proxy.o.Private = true
	if res, _ := p.ask(t, f, "GET", "/"); res.StatusCode != 403 {
		t.Errorf("private by the node: %d", res.StatusCode)
	}
}

func TestPagesAreLimited(t *testing.T) {
	f, p := newPages(t, func(o *Options) { o.Rate, o.Burst = 0.001, 2 })
	for i, want := range []int{200, 200, 429} {
		if res, _ := p.ask(t, f, "GET", "/"); res.StatusCode != want {
			t.Errorf("request %d: %d", i, res.StatusCode)
		}
	}
}
