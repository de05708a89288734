package intercept

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/http/httpguts"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/mask"
)

// maxRewritten is the maximum size of the header and the query of a request, in bytes,
// after secrets are inserted.
const maxRewritten = 1 << 20

// An exchange is one request and its response.
type exchange struct {
	i            *Interceptor
	sandbox      *sandbox
	target       Target
	rules        []rule
	values       map[string]string
	forced       map[string]bool   // names of secrets that are masked in the body even if the grant does not require it
	placeholders *strings.Replacer // replaces values by their placeholders in redirects
	allForms     [][]byte          // forms of all values; masked in headers of the response
	stripForms   [][]byte          // forms of the values that are also masked in the body
	header       http.Header       // part of the request to the host
	query        string            // part of the request to the host
	requestLine  string            // method and path, for events
	judged       bool              // request rules apply to the request
	verdict      policy.RequestVerdict
	approved     bool   // an approver has approved the request
	held         bool   // the body was read into body
	body         []byte // body of the request; nil once it was sent
	releasing    sync.Mutex
	logged       sync.Once
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// serve checks a request and forwards it to the host.
func (i *Interceptor) serve(w http.ResponseWriter, r *http.Request, proxy http.Handler) {
	c := r.Context().Value(connKey{}).(*sandboxConn)
	if !c.addRequest() {
		return
	}
	defer c.requests.Done()
	s := i.sandbox(c.target.Sandbox)
	x := &exchange{
		i: i, sandbox: s, target: c.target, rules: s.rulesFor(c.target.Host, c.target.Port, c.target.TLS),
		values: map[string]string{}, forced: map[string]bool{}, requestLine: r.Method + " " + r.URL.EscapedPath(),
	}
	if status, err := x.check(r); err != nil {
		w.Header().Set("Connection", "close")
		x.refuse(w, status, err)
		return
	}
	defer s.upstream.requests.Add(-1)
	if s.upstream.requests.Add(1) > maxRequests {
		w.Header().Set("Retry-After", "1")
		x.refuse(w, http.StatusServiceUnavailable, engi.Errorf(engi.Exhausted, "the sandbox has %d requests in progress already", maxRequests).
			WithRemedy("read the responses, or send fewer requests at once"))
		return
	}
	if x.target.Handler != nil {
		x.target.Handler.ServeHTTP(w, r)
		return
	}
	defer x.letGo()
	if status, err := x.judge(w, r); err != nil {
		x.refuse(w, status, err)
		return
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if status, err := x.prepare(ctx, r); err != nil {
		x.refuse(w, status, err)
		return
	}
	if r.ProtoMajor == 1 && r.Body != http.NoBody {
		// Responses may begin before the end of the request. All connections
		// in this package support this.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	proxy.ServeHTTP(&responseWriter{ResponseWriter: w, x: x}, r.WithContext(ctx))
}

// check returns an error for a malformed request, with the status of the response.
func (x *exchange) check(r *http.Request) (int, error) {
	if x.sandbox == nil || x.target.TLS && x.target.Handler == nil && len(x.rules) == 0 && !x.sandbox.judges(x.target.Host) {
		return http.StatusForbidden, engi.Errorf(engi.Denied, "%s has no granted hosts any more", x.target.Host).WithRemedy("connect again")
	}
	if r.Method == http.MethodConnect {
		return http.StatusMethodNotAllowed, engi.Errorf(engi.Denied, "CONNECT would bypass the network policy").WithRemedy("connect to the host itself")
	}
	hosts := append([]string{r.Host}, r.Header["Host"]...) // HTTP/2 may have Host besides :authority
	if r.URL.Host != "" {
		hosts = append(hosts, r.URL.Host)
	}
	for _, host := range hosts {
		if !x.target.matches(host) {
			return http.StatusMisdirectedRequest, engi.Errorf(engi.Denied, "the request is for %q, the connection is to %s", printable(host, 80), x.target.Host).
				WithRemedy("use a separate connection for each host")
		}
	}
	return 0, nil
}

// prepare reveals the secrets and determines the header and query of the request to
// the host.
func (x *exchange) prepare(ctx context.Context, r *http.Request) (int, error) {
	var pairs []string
	forms, stripped := map[string][][]byte{}, map[string]bool{}
	for _, rule := range x.rules {
		for _, name := range rule.secrets() {
			if _, known := x.values[name]; !known {
				value, hosts, strip, err := x.i.o.Use(ctx, x.sandbox.owner.Reach(), name)
				if err == nil && !x.target.pinned(hosts) {
					return http.StatusForbidden, engi.Errorf(engi.Denied, "secret %s may not be sent to %s", name, x.target.Host).
						WithRemedy("it is pinned to %s", strings.Join(hosts, ", "))
				}
				if err != nil {
					return http.StatusBadGateway, engi.Errorf(engi.KindOf(err), "secret %s cannot be read: %s", name, engi.KindOf(err)).
						WithRemedy("store a secret under this name")
				}
				x.values[name] = value
				forms[name] = x.sandbox.upstream.formsOf(name, value)
				x.allForms = append(x.allForms, forms[name]...)
				x.forced[name] = strip
			}
			if (rule.grant.Strip || x.forced[name]) && !stripped[name] {
				stripped[name] = true
				x.stripForms = append(x.stripForms, forms[name]...)
			}
		}
		if rule.placeholder != "" {
			value := x.values[rule.grant.Secret]
			for _, form := range []string{value, url.QueryEscape(value), url.PathEscape(value)} {
				if len(form) >= mask.MinLength {
					pairs = append(pairs, form, rule.placeholder)
				}
			}
		}
	}
	x.placeholders = strings.NewReplacer(pairs...)
	x.header, x.query = endToEndHeaders(r.Header), r.URL.RawQuery
	if x.held {
		x.header.Del("Expect")
	}
	for _, rule := range x.rules {
		if err := x.apply(rule); err != nil {
			return http.StatusBadGateway, err
		}
	}
	size := len(x.query)
	for name, values := range x.header {
		for _, v := range values {
			size += len(name) + len(v)
			if !httpguts.ValidHeaderFieldValue(v) {
				return http.StatusBadGateway, engi.Errorf(engi.Invalid, "header %s would contain a line break or another invalid byte", name).
					WithRemedy("store the secret without the line break at its end")
			}
		}
	}
	if size > maxRewritten {
		return http.StatusRequestHeaderFieldsTooLarge, engi.Errorf(engi.Invalid, "header and query of the request would have %d bytes, more than %d", size, maxRewritten).
			WithRemedy("use the placeholder less often")
	}
	if len(x.stripForms) > 0 {
		// The response must be readable and complete to be masked.
		x.header.Set("Accept-Encoding", "identity")
		if x.header["Grpc-Accept-Encoding"] != nil {
			x.header.Set("Grpc-Accept-Encoding", "identity")
		}
		for _, name := range []string{"Range", "If-Range", "Sec-Websocket-Extensions"} {
			x.header.Del(name)
		}
	}
	return 0, nil
}

// apply applies a rule to header and query.
func (x *exchange) apply(r rule) error {
	g, value := r.grant, x.values[r.grant.Secret]
	switch g.As {
	case engi.GrantHeader:
		x.header.Set(g.Name, strings.ReplaceAll(g.Format, "{}", value))
	case engi.GrantBearer:
		x.header.Set("Authorization", "Bearer "+value)
	case engi.GrantBasic:
		pair := base64.StdEncoding.EncodeToString([]byte(g.Name + ":" + value))
		x.header.Set("Authorization", "Basic "+pair)
		x.allForms = append(x.allForms, []byte(pair))
		if g.Strip || x.forced[g.Secret] {
			x.stripForms = append(x.stripForms, []byte(pair))
		}
	case engi.GrantQuery:
		x.query = setQuery(x.query, g.Name, value)
	case engi.GrantPlaceholder:
		return x.replace(r.placeholder, value)
	default:
		for name, text := range r.headers {
			x.header.Set(name, policy.SecretReference.ReplaceAllStringFunc(text, func(ref string) string {
				return x.values[policy.SecretReference.FindStringSubmatch(ref)[1]]
			}))
		}
	}
	return nil
}

// replace replaces a placeholder by the value.
func (x *exchange) replace(holder, value string) error {
	left := maxRewritten
	put := func(text, value string) (string, error) {
		n := strings.Count(text, holder)
		if left -= n * len(value); left < 0 {
			return "", engi.Errorf(engi.Invalid, "header and query of the request would have more than %d bytes", maxRewritten).WithRemedy("use the placeholder less often")
		}
		if n == 0 {
			return text, nil
		}
		return strings.ReplaceAll(text, holder, value), nil
	}
	var err error
	if x.query, err = put(x.query, url.QueryEscape(value)); err != nil {
		return err
	}
	for name, values := range x.header {
		for i, v := range values {
			if name == "Authorization" {
				if pair, ok := basicPair(v); ok && strings.Contains(pair, holder) {
					if pair, err = put(pair, value); err != nil {
						return err
					}
					pair = base64.StdEncoding.EncodeToString([]byte(pair))
					x.allForms = append(x.allForms, []byte(pair))
					values[i] = "Basic " + pair
					continue
				}
			}
			if values[i], err = put(v, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// basicPair returns USER:PASSWORD of Basic credentials.
func basicPair(header string) (string, bool) {
	scheme, text, ok := strings.Cut(strings.TrimSpace(header), " ")
	if !ok || !strings.EqualFold(scheme, "basic") {
		return "", false
	}
	text = strings.TrimSpace(text)
	pair, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		pair, err = base64.RawStdEncoding.DecodeString(text)
	}
	return string(pair), err == nil
}

// setQuery returns a query with a single parameter of this name, at the end, and
// everything else unchanged.
func setQuery(query, name, value string) string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(key)
		if part != "" && (err != nil || plain != name) {
			kept = append(kept, part)
		}
	}
	return strings.Join(append(kept, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}

// rewrite prepares the request to the host.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out := p.Out
	out.URL.Scheme = "http"
	if x.target.TLS {
		out.URL.Scheme = "https"
	}
	out.URL.Host = x.target.urlHost()
	out.URL.RawQuery = x.query
	out.URL.User = nil
	out.Host = p.In.Host
	out.Trailer = p.In.Trailer // filled while the body is read
	if x.judged {
		out.Trailer = nil // servers may take trailers for headers, and these were not judged
	}
	// Of the proxy's headers, keep only those needed for upgrades and trailers, and none
	// that proxies add about themselves.
	for _, name := range []string{"Connection", "Upgrade", "Te"} {
		if v := out.Header[name]; v != nil {
			x.header[name] = v
		}
	}
	out.Header = x.header
}

// endToEndHeaders returns the headers that do not belong to the connection itself.
func endToEndHeaders(h http.Header) http.Header {
	h = h.Clone()
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{
		"Connection", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Keep-Alive",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", "Host",
	} {
		delete(h, name)
	}
	return h
}

// modifyResponse masks secrets in a response.
func (x *exchange) modifyResponse(r *http.Response) error {
	for _, name := range []string{"Location", "Content-Location", "Link", "Refresh"} {
		for n, v := range r.Header[name] {
			r.Header[name][n] = x.placeholders.Replace(v)
		}
	}
	x.maskHeaders(r.Header)
	x.maskHeaders(r.Trailer) // only the names are known so far
	r.Header.Del("Alt-Svc")  // the header could lead to HTTP/3, which is not supported
	if len(x.stripForms) > 0 && r.Body != nil && r.Body != http.NoBody {
		if err := x.stripBody(r); err != nil {
			return err
		}
	} else {
		x.log(r.StatusCode, "")
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = &trailerBody{ReadCloser: r.Body, x: x, of: r}
	}
	return nil
}

// maskHeaders masks values in headers, and removes headers whose names contain one.
func (x *exchange) maskHeaders(h http.Header) {
	if len(x.allForms) == 0 {
		return
	}
	for name, values := range h {
		for n, v := range values {
			if values[n] = mask.Text(v, x.allForms); values[n] != v && name == "Content-Length" {
				delete(h, name) // masked digits in a length would break the response
			}
		}
		// Header names have a canonical case, so compare in lower case.
		low := []byte(strings.ToLower(name))
		if slices.ContainsFunc(x.allForms, func(f []byte) bool { return len(f) <= len(low) && bytes.Contains(low, bytes.ToLower(f)) }) {
			delete(h, name)
		}
	}
}

// stripBody masks values in a body, or in the data that an upgraded connection receives.
func (x *exchange) stripBody(r *http.Response) error {
	switch enc := strings.ToLower(strings.Join(r.Header["Content-Encoding"], ",")); enc {
	case "", "identity":
	case "gzip", "x-gzip":
		r.Body = &gunzipBody{from: r.Body}
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		r.ContentLength = -1
	default:
		return engi.Errorf(engi.Unsupported, "the response of %s is encoded as %s, which cannot be searched for secrets", x.target.Host, printable(enc, 40)).
			WithRemedy("grant the secret without strip")
	}
	if w, ok := r.Body.(io.Writer); ok { // an upgraded connection
		r.Body = &maskedConn{Reader: mask.NewReader(r.Body, x.stripForms), Writer: w}
		x.log(r.StatusCode, "")
		return nil
	}
	r.Body = mask.NewReader(&sniffedBody{ReadCloser: r.Body, x: x, status: r.StatusCode}, x.stripForms)
	return nil
}

// A sniffedBody fails if the body is compressed without a header for it. It reads nothing
// before the first Read, because the header of a stream must not wait for the body, and
// holds back only the bytes needed for the check.
type sniffedBody struct {
	io.ReadCloser
	x      *exchange
	status int
	head   []byte // bytes read, but not yet returned
	err    error  // error read together with the end of head
	plain  bool
}

func (b *sniffedBody) Read(p []byte) (int, error) {
	for !b.plain {
		part := make([]byte, sniffSize-len(b.head))
		var n int
		n, b.err = b.ReadCloser.Read(part)
		b.head = append(b.head, part[:n]...)
		how, more := compression(b.head)
		if how != "" {
			b.head = nil
			err := engi.Errorf(engi.Unsupported, "the response of %s is compressed as %s without declaring it: it cannot be searched for secrets", b.x.target.Host, how).
				WithRemedy("grant the secret without strip")
			b.x.log(b.status, err.Error())
			return 0, err
		}
		b.plain = !more || b.err != nil
	}
	b.x.log(b.status, "")
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (b *sniffedBody) Close() error {
	b.x.log(b.status, "") // logs the request if the body was never read
	return b.ReadCloser.Close()
}

// sniffSize is the number of bytes that tell compressed data from text.
const sniffSize = 32

// compression returns the compression of a body that begins with head. more reports
// that more bytes of the head are needed. Brotli and deflate without zlib's header
// cannot be recognized.
func compression(head []byte) (how string, more bool) {
	for _, c := range []struct{ how, magic string }{{"gzip", "\x1f\x8b"}, {"zstd", "\x28\xb5\x2f\xfd"}, {"deflate", "x\x01"}, {"deflate", "x\x9c"}, {"deflate", "x\xda"}, {"deflate", "x^"}} {
		switch {
		case bytes.HasPrefix(head, []byte(c.magic)):
			if c.magic != "x^" || slices.ContainsFunc(head, func(b byte) bool { return b >= 0x80 || b < ' ' && !bytes.ContainsRune([]byte("\t\r\n"), rune(b)) }) {
				return c.how, false
			}
			return "", len(head) < sniffSize // the body may be text
		case bytes.HasPrefix([]byte(c.magic), head):
			more = true
		}
	}
	return "", more
}

type maskedConn struct {
	*mask.Reader
	io.Writer
}

// A gunzipBody decompresses a body. It reads nothing before the first Read.
type gunzipBody struct {
	from io.ReadCloser
	zip  *gzip.Reader
}

func (u *gunzipBody) Read(p []byte) (int, error) {
	if u.zip == nil {
		z, err := gzip.NewReader(u.from)
		if err != nil {
			return 0, err
		}
		u.zip = z
	}
	return u.zip.Read(p)
}

func (u *gunzipBody) Close() error { return u.from.Close() }

// A trailerBody masks the trailers, which are complete at its Close.
type trailerBody struct {
	io.ReadCloser
	x  *exchange
	of *http.Response
}

func (t *trailerBody) Close() error {
	err := t.ReadCloser.Close()
	t.x.maskHeaders(t.of.Trailer)
	return err
}

// A responseWriter masks informational responses, like early hints.
type responseWriter struct {
	http.ResponseWriter
	x *exchange
}

func (a *responseWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *responseWriter) WriteHeader(status int) {
	if status == http.StatusContinue {
		return // the server sends this response when the body is read, perhaps earlier
	}
	if status < 200 {
		a.x.maskHeaders(a.Header())
	}
	a.ResponseWriter.WriteHeader(status)
}

// fail responds to a request for which the host sent no response. Texts of foreign errors are not
// passed on, since they may contain parts of secrets.
func (x *exchange) fail(w http.ResponseWriter, err error) {
	status, host := http.StatusBadGateway, x.target.Host
	var untrusted *tls.CertificateVerificationError
	var timeout net.Error
	switch known, ok := errors.AsType[*engi.Error](err); {
	case ok && known.Kind == engi.Denied:
		status, err = http.StatusForbidden, known
	case ok && known.Kind == engi.Expired:
		status, err = http.StatusGatewayTimeout, known
	case ok:
		err = known
	case errors.Is(err, context.Canceled):
		err = engi.Errorf(engi.Expired, "the client closed the connection before %s answered", host)
	case errors.As(err, &untrusted):
		err = engi.Errorf(engi.Denied, "the certificate of %s is not valid: %s", host, untrustedReason(untrusted.Err)).
			WithRemedy("have the operator add its authority to those that the node trusts")
	case errors.As(err, &timeout) && timeout.Timeout():
		status = http.StatusGatewayTimeout
		err = engi.Errorf(engi.Expired, "%s did not answer in time", host).WithRemedy("try again")
	case errors.Is(err, syscall.ECONNREFUSED):
		err = engi.Errorf(engi.Unavailable, "%s refuses connections to port %d", host, x.target.Port).WithRemedy("try again")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		err = engi.Errorf(engi.Unavailable, "%s closed the connection without an answer", host).WithRemedy("try again")
	default:
		err = engi.Errorf(engi.Unavailable, "%s cannot be reached, or does not speak HTTP over TLS", host).WithRemedy("try again, or check the host")
	}
	x.refuse(w, status, err)
}

func untrustedReason(err error) string {
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "it is not signed by an authority that the node trusts"
	case errors.As(err, new(x509.HostnameError)):
		return "it is for another name"
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "it has expired or is not for servers"
	}
	return "it cannot be verified"
}

// refuse responds in place of the host, with the reason of the refusal.
func (x *exchange) refuse(w http.ResponseWriter, status int, err error) {
	text := mask.Text(printable(err.Error(), 300), x.allForms)
	x.log(status, text)
	header := text
	if remedy := engi.RemedyOf(err); remedy != "" {
		remedy = mask.Text(printable(remedy, 300), x.allForms)
		header += "; " + remedy
		text += "\n" + remedy
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Engi-Error", header)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "engi: "+text+"\n") // fails if the client has disconnected
}

// log logs the request, only once. refused is the reason of a refusal; empty if the request was sent.
func (x *exchange) log(status int, refused string) {
	x.logged.Do(func() {
		if x.sandbox == nil {
			return // the sandbox's network is shut
		}
		e := x.i.event(x.sandbox, x.target, engi.NetworkRequest)
		e.Allowed = refused == ""
		line := mask.Text(printable(x.requestLine, 200), x.allForms)
		var names []string
		for _, r := range x.rules {
			e.Rule = r.describe() // the most specific rule is last
			for _, name := range r.secrets() {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		if x.judged {
			e.Rule = ""
			if r := x.verdict.Rule; r != nil {
				e.Rule = r.String()
				if x.verdict.Grant != "" {
					e.Rule = "grant " + x.verdict.Grant + ": " + e.Rule
				}
			}
		}
		e.Reason = fmt.Sprintf("%s: %d", line, status)
		if x.approved {
			e.Reason += ", approved"
		}
		switch {
		case refused != "":
			e.Reason += ", " + refused
		case len(names) > 0:
			e.Reason += ", with " + strings.Join(names, ", ")
		}
		x.i.o.Events(e)
	})
}
