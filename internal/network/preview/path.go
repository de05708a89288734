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

// opaque is the Origin of pages that are served by path, and of all other pages without an
// origin. Browsers send no Referer and no cookies with their requests, so a request for the root
// of the host does not show its service: such references must be changed
// in the page.
const opaque = "null"

// pathScript changes references that a page makes while it runs.
//
//go:embed path.js
var pathScript string

// maxToken is the maximum length of a tag or a text, in bytes; references after a longer one are left
// unchanged.
const maxToken = 1 << 20

// root returns the root of a service by path, relative to one of its pages. It stays valid if
// a proxy in front adds a prefix to the path.
func (t target) root(escapedPath string) string {
	n := strings.Count(strings.TrimPrefix(escapedPath, t.prefix), "/") - 1
	if n < 1 {
		return "./"
	}
	return strings.Repeat("../", n)
}

// below returns a path of the service without the prefix, which some services add
// themselves.
func (t target) below(path string) string {
	if rest, ok := strings.CutPrefix(path, t.prefix+"/"); ok {
		return "/" + rest
	}
	return path
}

// preflight answers, in place of a service, the preflight request that a browser sends for its page by
// path. It returns false if r is no preflight request.
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

// contain restricts a response by path, because its page shares its host with other sandboxes
// and with the API.
func (x *exchange) contain(res *http.Response) {
	h := res.Header
	// These headers affect the whole origin.
	for _, name := range []string{"Clear-Site-Data", "Service-Worker-Allowed", "Strict-Transport-Security", "Nel", "Report-To", "Reporting-Endpoints"} {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
	h.Add("Vary", "Origin")
	if x.origin == opaque {
		// Any page without an origin may be the service's own. It gets the response that a
		// client without cookies would get.
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
	begun  bool // the script has been inserted into the page
	ready  bytes.Buffer
	err    error // error to return after the bytes in ready
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
	raw := bytes.Clone(p.in.Raw()) // parsing a tag changes its bytes
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

// lead translates a reference to the root of the host. ok is false for other references.
func (p *pathPage) lead(ref string) (_ string, ok bool) {
	ref = strings.TrimSpace(ref)
	if !strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "//") || strings.HasPrefix(ref, `/\`) {
		return "", false
	}
	return p.root + p.target.below(ref)[1:], true
}

// begin inserts the import map and the script, which lead references to the service.
func (p *pathPage) begin() {
	p.begun = true
	fmt.Fprintf(&p.ready, "<script type=\"importmap\">{\"imports\":{\"/\":%q,%q:%q}}</script>\n<script data-root=%q>%s</script>\n", p.root, p.root, p.root, p.root, pathScript)
}
