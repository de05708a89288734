package intercept

import (
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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// maxOut bounds the headers and the query of a request with secrets in them.
const maxOut = 1 << 20

// An exchange is one request and its answer.
type exchange struct {
	i      *Interceptor
	box    *sandbox
	target Target
	rules  []rule
	values map[string]string
	back   *strings.Replacer // values that placeholders stand for, for redirects
	forms  [][]byte          // of all values: never in a header of the answer
	strip  [][]byte          // of those that are cut out of the body
	header http.Header       // of the request as it leaves
	query  string            // of the request as it leaves
	line   string            // method and path, for events
	noted  sync.Once
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// serve judges a request and sends it on.
func (i *Interceptor) serve(w http.ResponseWriter, r *http.Request, proxy http.Handler) {
	c := r.Context().Value(clientKey{}).(*client)
	if !c.begin() {
		return
	}
	defer c.running.Done()
	box := i.find(c.target.Sandbox)
	x := &exchange{
		i: i, box: box, target: c.target, rules: box.at(c.target.Host, c.target.Port, c.target.TLS),
		values: map[string]string{}, line: r.Method + " " + r.URL.EscapedPath(),
	}
	if status, err := x.judge(r); err != nil {
		w.Header().Set("Connection", "close")
		x.refuse(w, status, err)
		return
	}
	defer box.upstream.busy.Add(-1)
	if box.upstream.busy.Add(1) > maxRequests {
		w.Header().Set("Retry-After", "1")
		x.refuse(w, http.StatusServiceUnavailable, engi.Errorf(engi.Exhausted, "the sandbox waits for answers to %d requests already", maxRequests).
			WithRemedy("read the answers, or send fewer requests at once"))
		return
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if status, err := x.prepare(ctx, r); err != nil {
		x.refuse(w, status, err)
		return
	}
	if r.ProtoMajor == 1 && r.Body != http.NoBody {
		// Answers may begin before the request has ended. Every connection
		// here can do it.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	proxy.ServeHTTP(&answer{ResponseWriter: w, x: x}, r.WithContext(ctx))
}

// judge reports what is wrong with a request, and the status to answer.
func (x *exchange) judge(r *http.Request) (int, error) {
	if x.box == nil || x.target.TLS && len(x.rules) == 0 {
		return http.StatusForbidden, engi.Errorf(engi.Denied, "nothing is granted to %s any more", x.target.Host).WithRemedy("connect again")
	}
	if r.Method == http.MethodConnect {
		return http.StatusMethodNotAllowed, engi.Errorf(engi.Denied, "CONNECT would make a way around the wall").WithRemedy("connect to the host itself")
	}
	hosts := append([]string{r.Host}, r.Header["Host"]...) // the latter may stand beside :authority
	if r.URL.Host != "" {
		hosts = append(hosts, r.URL.Host)
	}
	for _, host := range hosts {
		if !x.target.named(host) {
			return http.StatusMisdirectedRequest, engi.Errorf(engi.Denied, "the request is for %q, the connection is to %s", clean(host, 80), x.target.Host).
				WithRemedy("use a connection of its own for each host")
		}
	}
	return 0, nil
}

// prepare finds out what the request is to look like when it leaves.
func (x *exchange) prepare(ctx context.Context, r *http.Request) (int, error) {
	var pairs []string
	forms, stripped := map[string][][]byte{}, map[string]bool{}
	for _, rule := range x.rules {
		for _, name := range rule.secrets() {
			value, known := x.values[name]
			if !known {
				var err error
				if value, err = x.i.o.Reveal(ctx, x.box.owner, name); err != nil {
					return http.StatusBadGateway, engi.Errorf(engi.KindOf(err), "secret %s cannot be read: %s", name, engi.KindOf(err)).
						WithRemedy("store it again under this name")
				}
				x.values[name] = value
				forms[name] = x.box.upstream.formsOf(name, value)
				x.forms = append(x.forms, forms[name]...)
			}
			if rule.grant.Strip && !stripped[name] {
				stripped[name] = true
				x.strip = append(x.strip, forms[name]...)
			}
		}
		if rule.holder != "" {
			value := x.values[rule.grant.Secret]
			for _, form := range []string{value, url.QueryEscape(value), url.PathEscape(value)} {
				if len(form) >= minForm {
					pairs = append(pairs, form, rule.holder)
				}
			}
		}
	}
	x.back = strings.NewReplacer(pairs...)
	x.header, x.query = passing(r.Header), r.URL.RawQuery
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
				return http.StatusBadGateway, engi.Errorf(engi.Invalid, "header %s would have a line break or another byte that no header may have", name).
					WithRemedy("store the secret without the line break at its end")
			}
		}
	}
	if size > maxOut {
		return http.StatusRequestHeaderFieldsTooLarge, engi.Errorf(engi.Invalid, "the request would have headers and a query of %d bytes, %d at most", size, maxOut).
			WithRemedy("use the placeholder less often")
	}
	if len(x.strip) > 0 {
		// What comes back must be readable here, and whole.
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

// apply puts a rule's secrets into the request that leaves.
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
		x.forms = append(x.forms, []byte(pair))
		if g.Strip {
			x.strip = append(x.strip, []byte(pair))
		}
	case engi.GrantQuery:
		x.query = setQuery(x.query, g.Name, value)
	case engi.GrantPlaceholder:
		return x.replace(r.holder, value)
	default:
		for name, text := range r.headers {
			x.header.Set(name, policy.SecretReference.ReplaceAllStringFunc(text, func(ref string) string {
				return x.values[policy.SecretReference.FindStringSubmatch(ref)[1]]
			}))
		}
	}
	return nil
}

// replace puts a value where its placeholder is.
func (x *exchange) replace(holder, value string) error {
	left := maxOut
	put := func(text, value string) (string, error) {
		n := strings.Count(text, holder)
		if left -= n * len(value); left < 0 {
			return "", engi.Errorf(engi.Invalid, "the request would have headers and a query of more than %d bytes", maxOut).WithRemedy("use the placeholder less often")
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
				if pair, ok := basic(v); ok && strings.Contains(pair, holder) {
					if pair, err = put(pair, value); err != nil {
						return err
					}
					pair = base64.StdEncoding.EncodeToString([]byte(pair))
					x.forms = append(x.forms, []byte(pair))
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

// basic returns the user and password of a header.
func basic(header string) (string, bool) {
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

// setQuery returns a query with one parameter of this name, the last one, and
// leaves everything else as it is.
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

// rewrite makes the request that leaves.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out := p.Out
	out.URL.Scheme = "http"
	if x.target.TLS {
		out.URL.Scheme = "https"
	}
	out.URL.Host = x.target.address()
	out.URL.RawQuery = x.query
	out.URL.User = nil
	out.Host = p.In.Host
	out.Trailer = p.In.Trailer // filled while the body is read
	// What the proxy has kept for an upgrade or trailers; the rest is ours,
	// without what proxies say about themselves.
	for _, name := range []string{"Connection", "Upgrade", "Te"} {
		if v := out.Header[name]; v != nil {
			x.header[name] = v
		}
	}
	out.Header = x.header
}

// passing returns the headers that are for the host, not for the connection.
func passing(h http.Header) http.Header {
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

// answer changes an answer before it enters the sandbox.
func (x *exchange) answer(r *http.Response) error {
	for _, name := range []string{"Location", "Content-Location", "Link", "Refresh"} {
		for n, v := range r.Header[name] {
			r.Header[name][n] = x.back.Replace(v)
		}
	}
	x.hide(r.Header)
	r.Header.Del("Alt-Svc") // would lead to HTTP/3, which does not pass
	if len(x.strip) > 0 && r.Body != nil && r.Body != http.NoBody {
		if err := x.stripBody(r); err != nil {
			return err
		}
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = &trailing{ReadCloser: r.Body, x: x, of: r}
	}
	x.note(r.StatusCode, "")
	return nil
}

// hide masks values in headers.
func (x *exchange) hide(h http.Header) {
	for name, values := range h {
		if name == "Content-Length" || name == "Date" {
			continue // digits by chance
		}
		for n, v := range values {
			values[n] = mask(v, x.forms)
		}
	}
}

// stripBody masks values in a body, or in what an upgraded connection brings.
func (x *exchange) stripBody(r *http.Response) error {
	switch enc := strings.ToLower(strings.Join(r.Header["Content-Encoding"], ",")); enc {
	case "", "identity":
	case "gzip", "x-gzip":
		r.Body = &unzipped{from: r.Body}
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		r.ContentLength = -1
	default:
		return engi.Errorf(engi.Unsupported, "the answer of %s is encoded as %s, which cannot be searched for secrets", x.target.Host, clean(enc, 40)).
			WithRemedy("grant the secret without strip")
	}
	masked := newMaskReader(r.Body, x.strip)
	if w, ok := r.Body.(io.Writer); ok { // of an upgraded connection
		r.Body = &maskedConn{maskReader: masked, Writer: w}
		return nil
	}
	r.Body = masked
	return nil
}

type maskedConn struct {
	*maskReader
	io.Writer
}

// An unzipped body begins to read when it is read.
type unzipped struct {
	from io.ReadCloser
	zip  *gzip.Reader
}

func (u *unzipped) Read(p []byte) (int, error) {
	if u.zip == nil {
		z, err := gzip.NewReader(u.from)
		if err != nil {
			return 0, err
		}
		u.zip = z
	}
	return u.zip.Read(p)
}

func (u *unzipped) Close() error { return u.from.Close() }

// A trailing body masks the trailers, which are there when it is closed.
type trailing struct {
	io.ReadCloser
	x  *exchange
	of *http.Response
}

func (t *trailing) Close() error {
	err := t.ReadCloser.Close()
	t.x.hide(t.of.Trailer)
	return err
}

// An answer writer masks what comes before the answer, like early hints.
type answer struct {
	http.ResponseWriter
	x *exchange
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if status < 200 {
		a.x.hide(a.Header())
	}
	a.ResponseWriter.WriteHeader(status)
}

// fail answers a request whose host gave no answer. The texts of foreign
// errors may have parts of one in them: they stay here.
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
		err = engi.Errorf(engi.Expired, "the client went away before %s answered", host)
	case errors.As(err, &untrusted):
		err = engi.Errorf(engi.Denied, "the certificate of %s is not good: %s", host, untrustedWhy(untrusted.Err)).
			WithRemedy("have the operator add its authority to those that the node trusts")
	case errors.As(err, &timeout) && timeout.Timeout():
		status = http.StatusGatewayTimeout
		err = engi.Errorf(engi.Expired, "%s did not answer in time", host).WithRemedy("try again")
	case errors.Is(err, syscall.ECONNREFUSED):
		err = engi.Errorf(engi.Unavailable, "%s refuses connections to port %d", host, x.target.Port).WithRemedy("try again")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		err = engi.Errorf(engi.Unavailable, "%s ended the connection without an answer", host).WithRemedy("try again")
	default:
		err = engi.Errorf(engi.Unavailable, "%s cannot be reached, or does not speak HTTP over TLS", host).WithRemedy("try again, or have a look at the host")
	}
	x.refuse(w, status, err)
}

func untrustedWhy(err error) string {
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "nobody that the node trusts has signed it"
	case errors.As(err, new(x509.HostnameError)):
		return "it is for another name"
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "it has expired, or is not for servers"
	}
	return "it cannot be verified"
}

// refuse answers instead of the host, and says why.
func (x *exchange) refuse(w http.ResponseWriter, status int, err error) {
	text := mask(clean(err.Error(), 300), x.forms)
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Engi-Error", text)
	x.note(status, text)
	w.WriteHeader(status)
	if remedy := engi.RemedyOf(err); remedy != "" {
		text += "\n" + mask(clean(remedy, 300), x.forms)
	}
	_, _ = io.WriteString(w, "engi: "+text+"\n") // a client that is gone hears nothing
}

// note makes the event of a request, once; refused is empty if it was sent.
func (x *exchange) note(status int, refused string) {
	x.noted.Do(func() {
		if x.box == nil {
			return // the sandbox is shut: nobody is left to tell
		}
		e := x.i.event(x.box, x.target, engi.NetworkRequest)
		e.Allowed = refused == ""
		line := mask(clean(x.line, 200), x.forms)
		var names []string
		for _, r := range x.rules {
			e.Rule = r.describe() // the most exact one
			for _, name := range r.secrets() {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		e.Reason = fmt.Sprintf("%s: %d", line, status)
		switch {
		case refused != "":
			e.Reason += ", " + refused
		case len(names) > 0:
			e.Reason += ", with " + strings.Join(names, ", ")
		}
		x.i.o.Events(e)
	})
}
