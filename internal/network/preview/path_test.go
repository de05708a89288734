package preview

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/engi-dev/engi/internal/engi"
)

// byPath turns r into a request by path, of a browser that opens a page, or of an opaque page if
// mode is not navigate.
func byPath(r *http.Request, mode string) *http.Request {
	r.Host = "127.0.0.1:7777"
	r.Header.Set("Sec-Fetch-Mode", mode)
	if mode != "navigate" {
		r.Header.Set("Origin", "null")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}
	return r
}

func TestPagesByPath(t *testing.T) {
	const page = `<!doctype html><HTML lang="en"><head><title>a / b</title><base href="/">
<script type="module">import x from "/@vite/client"</script></head>
<body data-x="/stay"><a href="//else.where/x">1</a><a href='/x?a=1&amp;b="'>2</a><img src=logo.svg><img src=" /logo.svg"><form action="/">
<a href="/preview/ID/3000/known">3</a><script type="module" src="/src/main.tsx"></script><!-- <a href="/x"> -->`
	const want = `<!doctype html><HTML lang="en"><head>BEGIN<title>a / b</title><base href="../">
<script type="module">import x from "/@vite/client"</script></head>
<body data-x="/stay"><a href="//else.where/x">1</a><a href="../x?a=1&amp;b=&#34;">2</a><img src=logo.svg><img src="../logo.svg"><form action="../">
<a href="../known">3</a><script type="module" src="../src/main.tsx"></script><!-- <a href="/x"> -->`
	f := newFixture(t, func(o *Options) { o.Path = "/preview" })
	var seen http.Header
	kind := "text/html; charset=utf-8"
	var b *fakeSandbox
	b = f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		io.WriteString(w, strings.ReplaceAll(page, "ID", b.record.ID.Label()))
	}))
	at := "/preview/" + b.record.ID.Label() + "/3000/a/b"

	r := byPath(b.request("GET", at, nil), "navigate")
	r.Header.Set("Accept-Encoding", "br")
	res, body := do(t, r)
	head, rest, _ := strings.Cut(body, `<script type="importmap">`)
	begin, after, _ := strings.Cut(rest, "<title>")
	if d := cmp.Diff(want, head+"BEGIN<title>"+after); d != "" {
		t.Errorf("the page (-want +got):\n%s", d)
	}
	if !strings.HasPrefix(begin, `{"imports":{"/":"../","../":"../"}}</script>`+"\n"+`<script data-root="../">`) || seen.Get("Accept-Encoding") != "" {
		t.Errorf("it begins with %s, and the service was asked for %q", begin, seen.Get("Accept-Encoding"))
	}
	if h := res.Header; !strings.HasPrefix(h.Get("Content-Security-Policy"), "sandbox ") || strings.Contains(h.Get("Content-Security-Policy"), "same-origin") || h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers %v", h)
	}

	// The page gets the service's own responses, without cookies.
	res, body = do(t, byPath(b.request("GET", at, nil), "cors"))
	if h := res.Header; h.Get("Access-Control-Allow-Origin") != "null" || h.Get("Access-Control-Allow-Credentials") != "" || h.Get("Vary") != "Origin" {
		t.Errorf("headers %v", h)
	}
	if seen.Get("Origin") != "http://localhost:3000" || seen.Get("Sec-Fetch-Site") != "same-origin" || strings.Contains(body, "importmap") {
		t.Errorf("the service saw %v; it said %.300s", seen, body)
	}
	r = byPath(b.request("OPTIONS", at, nil), "cors")
	r.Header.Set("Access-Control-Request-Method", "PUT")
	r.Header.Set("Access-Control-Request-Headers", "content-type")
	seen = nil
	if res, _ := do(t, r); res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Methods") != "PUT" || res.Header.Get("Access-Control-Allow-Headers") != "content-type" || seen != nil {
		t.Errorf("a preflight: %d %v", res.StatusCode, res.Header)
	}

	// Requests by name do not change, and a page without an origin is foreign.
	r = byPath(b.request("GET", "/", nil), "cors")
	r.Host = b.host(3000)
	if res, _ := do(t, r); seen.Get("Origin") != "null" || seen.Get("Sec-Fetch-Site") != "cross-site" || res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("by name: %v %v", seen, res.Header)
	}
	r = byPath(b.request("GET", "/", nil), "navigate")
	r.Host = b.host(3000)
	if _, body := do(t, r); body != strings.ReplaceAll(page, "ID", b.record.ID.Label()) {
		t.Errorf("by name: %s", body)
	}
	// A page with an origin is foreign by path, too.
	r = byPath(b.request("GET", at, nil), "cors")
	r.Header.Set("Origin", "https://else.where")
	if res, _ := do(t, r); seen.Get("Origin") != "https://else.where" || res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("of another origin: %v %v", seen, res.Header)
	}
	kind = "text/plain"
	if _, body := do(t, byPath(b.request("GET", at, nil), "navigate")); strings.Contains(body, "importmap") {
		t.Error("a text was changed")
	}

	// Pages of private sandboxes have no cookie that would admit their requests.
	b.change(func(s *engi.Sandbox) { s.Ports.Private = true })
	r = byPath(b.request("OPTIONS", at, nil), "cors")
	r.Header.Set("Access-Control-Request-Method", "GET")
	if res, _ := do(t, r); res.StatusCode != 403 || res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a private one: %d %v", res.StatusCode, res.Header)
	}
}

func TestLongPagesByPath(t *testing.T) {
	for _, c := range []struct{ page, want string }{
		{"<p><a href='/x'>" + strings.Repeat("a", 3*maxToken) + "<a href='/x'>", `<p><a href="./x">` + strings.Repeat("a", 3*maxToken) + "<a href='/x'>"},
		{"<p><a href='/x'>" + strings.Repeat("<b>", maxToken) + "<a href='/x'>", `<p><a href="./x">` + strings.Repeat("<b>", maxToken) + `<a href="./x">`},
		{"<p><a href='/" + strings.Repeat("x", 2*maxToken), "<p><a href='/" + strings.Repeat("x", 2*maxToken)},
	} {
		if got := changed(t, c.page, "/"); got != c.want {
			t.Errorf("%d bytes %.40s became %d, %.40s", len(c.page), c.page, len(got), got)
		}
	}
}

// changed returns a page by path without the inserted beginning.
func changed(t *testing.T, page, at string) string {
	t.Helper()
	to := target{prefix: "/preview/a/1"}
	p := newPathPage(io.NopCloser(strings.NewReader(page)), to, to.prefix+at)
	got, err := io.ReadAll(p)
	if err != nil {
		t.Fatal(err)
	}
	p = newPathPage(nil, to, to.prefix+at)
	p.begin()
	return string(bytes.Replace(got, p.ready.Bytes(), nil, 1))
}

// FuzzPagesByPath: pages without references to the root stay unchanged.
func FuzzPagesByPath(f *testing.F) {
	for _, s := range []string{"<p>a", "<a href='/x'>", "<script>/*</script>", "<plaintext><a href=/>", "<", "<a", "<!", "<a href=", "\x00\r\n<A HREF=x\x00>", "<textarea><a href='/'>", "<svg/href='/'/>"} {
		f.Add(s, "/a/b")
	}
	f.Fuzz(func(t *testing.T, page, at string) {
		got := changed(t, page, "/"+at)
		in, touched := html.NewTokenizer(strings.NewReader(page)), false
		for kind := in.Next(); kind != html.ErrorToken; kind = in.Next() {
			if kind == html.StartTagToken || kind == html.SelfClosingTagToken {
				touched = touched || strings.Contains(fmt.Sprint(in.Token().Attr), "/")
			}
		}
		if !touched && got != page {
			t.Errorf("%q became %q", page, got)
		}
	})
}
