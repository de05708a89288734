package request

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Request holds the parts of a request's head that rules judge.
type Request struct {
	Method string // method; WebSocket for a request that opens a WebSocket
	Path   string // decoded path, for matching
}

const maxRequestPath = 8 << 10

// Read reads the head of a request for a judgement. It reports Denied if servers could
// read the head differently: as another method, another path or another body.
func Read(r *http.Request) (Request, error) {
	q := Request{Method: r.Method}
	deny := func(remedy, format string, args ...any) (Request, error) {
		return q, engi.Errorf(engi.Denied, format, args...).WithRemedy("%s", remedy)
	}
	if !plainMethod(r.Method) || r.Method == WebSocket {
		return deny("write the method in upper case", "servers could read the method %q as another", clip.Text(r.Method, maxShown))
	}
	for name, values := range r.Header {
		canonical := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		switch {
		case overriding[canonical]:
			return deny("leave it out, and send the request that is meant", "header %s could make another request of this one", clip.Text(name, maxShown))
		case strings.Contains(name, "_") && framing[canonical]:
			return deny("leave it out", "servers could read header %s as another", clip.Text(name, maxShown))
		case framing[canonical] && len(values) > 1:
			return deny("send it once", "header %s comes twice", name)
		}
	}
	for _, list := range r.Header["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if framing[strings.ToLower(strings.TrimSpace(name))] {
				return deny("leave it out", "header Connection takes %s away", clip.Text(strings.TrimSpace(name), maxShown))
			}
		}
	}
	if up := r.Header["Upgrade"]; len(up) > 0 {
		if len(up) > 1 || !strings.EqualFold(up[0], "websocket") || r.Method != "GET" {
			return deny("send requests without Upgrade", "what follows an upgrade could not be judged")
		}
		q.Method = WebSocket
	}
	target := r.RequestURI
	if scheme, _, ok := strings.Cut(target, "://"); r.URL.Opaque != "" || !strings.HasPrefix(target, "/") &&
		(!ok || !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http")) {
		return deny("begin it with /", "the target of the request is not a path")
	}
	for part := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(key)
		if err != nil || !utf8.ValidString(plain) {
			return deny("encode it as URLs are", "the query is not encoded well")
		}
		if plain = strings.ReplaceAll(strings.ToLower(plain), "_", "-"); overriding[plain] || overridingQuery[plain] {
			return deny("leave it out, and send the request that is meant", "query parameter %q could make another request of this one", clip.Text(key, maxShown))
		}
	}
	var problem string
	if q.Path, problem = canonicalPath(r.URL.EscapedPath()); problem != "" {
		return deny("write the path as the rule does", "servers could read the path differently: it %s", problem)
	}
	return q, nil
}

// plainMethod reports whether servers cannot take a method for another.
func plainMethod(m string) bool {
	return m != "" && len(m) <= 32 && strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") == "" && m[0] != '-'
}

// overriding lists headers, and query parameters, by which servers or their
// middleware take a request for one with another method, path or host.
var overriding = setOf("x-http-method-override", "x-http-method", "x-method-override", "x-original-method", "x-forwarded-method",
	"x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri", "x-forwarded-path", "x-forwarded-prefix", "x-override-url",
	"x-script-name", "x-forwarded-host", "x-host", "x-forwarded-server", "x-original-host", "forwarded")

// overridingQuery lists more query parameters with this effect.
var overridingQuery = setOf("-method", "$method", "$httpmethod", "-httpmethod", "$httpheaders", "$ct", "$req")

// framing lists headers that determine the reading of a body.
var framing = setOf("content-type", "content-encoding", "content-length", "transfer-encoding")

func setOf(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// CheckJSON reports Denied unless the header declares the body as plain JSON.
func CheckJSON(h http.Header) error {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return engi.Errorf(engi.Denied, "the body is encoded as %q and cannot be judged", clip.Text(e, maxShown)).WithRemedy("send it without Content-Encoding")
	}
	kind, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset := parameters["charset"]
	delete(parameters, "charset")
	if err != nil || kind != "application/json" || len(parameters) > 0 || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return engi.Errorf(engi.Denied, "the body is judged as JSON, but its Content-Type is %q", clip.Text(h.Get("Content-Type"), maxShown)).
			WithRemedy("send JSON as application/json in UTF-8")
	}
	return nil
}

// canonicalPath decodes an escaped path.
func canonicalPath(escaped string) (path, problem string) {
	if len(escaped) > maxRequestPath {
		return "", "is too long"
	}
	path = escaped
	if strings.Contains(escaped, "%") {
		var err error
		if path, err = url.PathUnescape(escaped); err != nil {
			return "", "is not encoded well"
		}
	}
	if strings.Count(path, "/") != strings.Count(escaped, "/") {
		return "", "has an encoded slash"
	}
	return path, checkPath(path)
}

// checkPath returns the reason for which servers could read a decoded path differently; empty if there is none.
func checkPath(path string) (problem string) {
	if !strings.HasPrefix(path, "/") {
		return "does not begin with /"
	}
	for i := 0; i < len(path); {
		c, n := rune(path[i]), 1
		if c >= utf8.RuneSelf {
			c, n = utf8.DecodeRuneInString(path[i:])
		}
		switch {
		case c == utf8.RuneError:
			return "is not valid UTF-8"
		case c < ' ' || c == 0x7f:
			return "has a control character"
		case c < utf8.RuneSelf && strings.IndexByte("\\;%?#", byte(c)) >= 0:
			return "has a " + string(c) + " in it, maybe encoded"
		case c >= utf8.RuneSelf && !unicode.In(c, unicode.L, unicode.M, unicode.N):
			return "has a character other than a letter or a digit beyond ASCII"
		}
		i += n
	}
	for segment := range strings.SplitSeq(path[1:], "/") {
		switch {
		case segment == "":
		case segment[len(segment)-1] == '.':
			return "has a segment that ends in a dot"
		case segment[len(segment)-1] == ' ':
			return "has a segment that ends in a space"
		}
	}
	switch {
	case strings.Contains(path, "//"):
		return "has an empty segment"
	case !norm.NFKC.IsNormalString(path):
		return "has characters that some take for others"
	}
	return ""
}

// loose returns a path in lower case, since some servers ignore case.
func loose(path string) string { return strings.ToLower(strings.ToUpper(path)) }

// matchPath matches a path with a pattern, both valid.
func matchPath(pattern, path string) bool {
	prefix, below := strings.CutSuffix(pattern, "**")
	if below && !strings.Contains(prefix, "*") {
		return strings.HasPrefix(path, prefix)
	}
	if !strings.Contains(pattern, "*") {
		return pattern == path
	}
	for {
		if below && pattern == "/**" {
			return strings.HasPrefix(path, "/")
		}
		p, moreP, okP := strings.Cut(pattern[1:], "/")
		s, moreS, okS := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !strings.HasPrefix(path, "/") || !glob(p, s) || okP != okS {
			return false
		}
		if !okP {
			return true
		}
		pattern, path = "/"+moreP, "/"+moreS
	}
}

// glob matches text with a pattern in which * stands for any text, even an empty one.
func glob(pattern, text string) bool {
	head, rest, ok := strings.Cut(pattern, "*")
	if !ok {
		return pattern == text
	}
	if !strings.HasPrefix(text, head) {
		return false
	}
	text = text[len(head):]
	for {
		part, more, ok := strings.Cut(rest, "*")
		if !ok {
			return strings.HasSuffix(text, part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], more
	}
}
