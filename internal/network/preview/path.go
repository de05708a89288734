package preview

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"golang.org/x/net/html"
)

// opaque is the Origin of pages that are served by path, and of all others that have
// none. Browsers send no Referer and no cookies with their requests, so that nothing
// says whose a request for the root of the host is: such references must be changed
// where they are made.
const opaque = "null"

// pathScript changes references that a page makes while it runs.
//
//go:embed path.js
var pathScript string

// maxToken is how long a tag or a text may be; references behind a longer one are left
// as they are.
const maxToken = 1 << 20

// root returns the root of a service by path, relative to one of its pages. It holds
// whatever a proxy in front puts before the path.
func (t target) root(escapedPath string) string {
	n := strings.Count(strings.TrimPrefix(escapedPath, t.prefix), "/") - 1
	if n < 1 {
		return "./"
	}
	return strings.Repeat("../", n)
}

// below returns a path of the service without the prefix, which some services put
// there themselves.
func (t target) below(path string) string {
	if rest, ok := strings.CutPrefix(path, t.prefix+"/"); ok {
		return "/" + rest
	}
	return path
}

// preflight answers for a service what a browser asks before a request of its page by
// path. It returns false if r asks nothing.
func preflight(w http.ResponseWriter, r *http.Request, t target) bool {
	method := r.Header.Get("Access-Control-Request-Method")
	if t.prefix == "" || r.Method != http.MethodOptions || r.Header.Get("Origin") != opaque || method == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", opaque)
	h.Set("Access-Control-Allow-Methods", method)
	if names := r.Header.Get("Access-Control-Request-Headers"); names != "" {
		h.Set("Access-Control-Allow-Headers", names)
	}
	h.Set("Access-Control-Max-Age", "600")
	h.Set("Vary", "Origin")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// contain restricts a response by path, whose page shares its host with other sandboxes
// and with the API.
func (x *exchange) contain(res *http.Response) {
	h := res.Header
	// These apply to the whole origin.
	for _, name := range []string{"Clear-Site-Data", "Service-Worker-Allowed", "Strict-Transport-Security", "Nel", "Report-To", "Reporting-Endpoints"} {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
	h.Add("Vary", "Origin")
	if x.origin == opaque {
		// Any page without an origin may be the service's own. It gets what it
		// would get without a browser, and nothing by cookies.
		h.Set("Access-Control-Allow-Origin", opaque)
		h.Set("Access-Control-Expose-Headers", "*")
		h.Del("Access-Control-Allow-Credentials")
	}
	if kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); kind != "text/html" || h.Get("Content-Encoding") != "" ||
		res.StatusCode == http.StatusPartialContent || x.in.Method != http.MethodGet || !navigation(x.in) {
		return
	}
	h.Del("Content-Length")
	res.ContentLength = -1
	res.Body = newPathPage(res.Body, x.target, x.in.URL.EscapedPath())
}

// A pathPage is a page of a service by path: references to the root of the host lead to
// the root of the service.
type pathPage struct {
	io.Closer
	in     *html.Tokenizer
	body   io.Reader
	target target
	root   string
	begun  bool // the script is in the page
	ready  bytes.Buffer
	err    error // after ready
}

func newPathPage(body io.ReadCloser, t target, escapedPath string) *pathPage {
	p := &pathPage{Closer: body, in: html.NewTokenizer(body), body: body, target: t, root: t.root(escapedPath)}
	p.in.SetMaxBuf(maxToken)
	return p
}

func (p *pathPage) Read(b []byte) (int, error) {
	for p.ready.Len() == 0 && p.err == nil {
		p.next()
	}
	if p.ready.Len() > 0 {
		return p.ready.Read(b)
	}
	if p.err == html.ErrBufferExceeded {
		return p.body.Read(b)
	}
	return 0, p.err
}

// next reads a token.
func (p *pathPage) next() {
	kind := p.in.Next()
	raw := bytes.Clone(p.in.Raw()) // what reads a tag changes it
	if kind == html.ErrorToken {
		p.ready.Write(raw)
		p.ready.Write(p.in.Buffered())
		p.err = p.in.Err()
		return
	}
	if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
		p.ready.Write(raw)
		return
	}
	tag, changed := p.in.Token(), false
	if !p.begun && tag.Data != "html" && tag.Data != "head" {
		p.begin()
	}
	for i, a := range tag.Attr {
		switch a.Key {
		case "src", "href", "action", "formaction", "poster":
			if to, ok := p.lead(a.Val); ok {
				tag.Attr[i].Val, changed = to, true
			}
		}
	}
	if changed {
		raw = []byte(tag.String())
	}
	p.ready.Write(raw)
	if !p.begun && tag.Data == "head" {
		p.begin()
	}
}

// lead translates a reference to the root of the host. ok is false if it is none.
func (p *pathPage) lead(ref string) (_ string, ok bool) {
	ref = strings.TrimSpace(ref)
	if !strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "//") || strings.HasPrefix(ref, `/\`) {
		return "", false
	}
	return p.root + p.target.below(ref)[1:], true
}

// begin has modules and the script find the service.
func (p *pathPage) begin() {
	p.begun = true
	fmt.Fprintf(&p.ready, "<script type=\"importmap\">{\"imports\":{\"/\":%q,%q:%q}}</script>\n<script data-root=%q>%s</script>\n", p.root, p.root, p.root, p.root, pathScript)
}
