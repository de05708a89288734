package preview

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi"
)

// pages is a fake of Apps with one app.
type pages struct {
	app   engi.App
	files map[string]string
}

func (p *pages) Get(_ context.Context, _ engi.Owner, app string) (engi.App, error) {
	if app != string(p.app.ID) {
		return engi.App{}, engi.Errorf(engi.NotFound, "no app")
	}
	return p.app, nil
}

func (p *pages) Published(_ context.Context, _ engi.Owner, _, name string, packed bool) (engi.PublishedFile, error) {
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

// ask asks for a path of the page with headers, given as names and values.
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

func TestPublishedPages(t *testing.T) {
	f, p := newPages(t, nil)
	const js = "/assets/index-Ab3.js"
	for _, c := range []struct {
		method, path, header, value string
		status                      int
		want                        string // body, or what it begins with
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

	// What never changes is kept, and compressed for those who want that.
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
