package preview

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// serviceHost returns the Host header that a service receives.
func serviceHost(s engi.Sandbox, port int) string {
	if s.Ports.Host == "" {
		return localhost + ":" + strconv.Itoa(port)
	}
	return strings.ReplaceAll(s.Ports.Host, "${PORT}", strconv.Itoa(port))
}

// rewrite turns a client's request into a request that a service expects on its own
// loopback.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", x.serviceHost, x.serviceHost
	if x.target.prefix != "" {
		u := stripPrefix(out.URL, x.target.prefix)
		out.URL.Path, out.URL.RawPath = u.Path, u.RawPath
		out.Header.Set("X-Forwarded-Prefix", x.target.prefix)
	} else {
		out.Header.Del("X-Forwarded-Prefix")
	}
	// Keep the rest of the query unchanged, since services parse queries differently.
	out.URL.RawQuery = withoutToken(pr.In.URL.RawQuery)
	out.URL.ForceQuery = pr.In.URL.ForceQuery
	// The trailer is filled after the body was read.
	out.Trailer = pr.In.Trailer

	stripCredentials(out.Header, x.target.header)
	pr.SetXForwarded()
	if x.target.prefix != "" && navigation(pr.In) {
		out.Header.Del("Accept-Encoding") // the page is changed
	}
	if origin := out.Header.Get("Origin"); origin != "" && (sameHost(origin, pr.In.Host) || x.target.prefix != "" && origin == opaque) {
		// Services compare Origin with Host or with the forwarded headers, so
		// all of them must agree.
		x.origin = origin
		out.Header.Set("Origin", "http://"+x.serviceHost)
		out.Header.Set("X-Forwarded-Host", x.serviceHost)
		out.Header.Set("X-Forwarded-Proto", "http")
		if origin == opaque && out.Header.Get("Sec-Fetch-Site") != "" {
			out.Header.Set("Sec-Fetch-Site", "same-origin")
		}
	}
	if ref := out.Header.Get("Referer"); ref != "" && sameHost(ref, pr.In.Host) {
		if u, err := url.Parse(ref); err == nil {
			u.Scheme, u.Host, u.User = "http", x.serviceHost, nil
			if x.target.prefix != "" {
				u = stripPrefix(u, x.target.prefix)
			}
			u.RawQuery = withoutToken(u.RawQuery)
			out.Header.Set("Referer", u.String())
		} else {
			out.Header.Del("Referer")
		}
	}
}

// sameHost reports whether a URL is on host, with any scheme: a proxy in front of
// this one may terminate TLS.
func sameHost(address, host string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// modifyResponse translates URLs in a response to the clients' addresses, and restricts
// the response to this preview.
func (p *Proxy) modifyResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	x.responded.Store(true)
	h := res.Header
	h.Del("Alt-Svc") // would lead clients around this proxy
	if loc := h.Get("Location"); loc != "" {
		h.Set("Location", x.location(loc))
	}
	if h.Get("Access-Control-Allow-Origin") == "http://"+x.serviceHost && x.origin != "" {
		h.Set("Access-Control-Allow-Origin", x.origin)
	}
	x.cookies(h)
	if x.target.prefix != "" {
		x.contain(res)
	}

	stream, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	if res.StatusCode == http.StatusSwitchingProtocols || strings.TrimSpace(stream) == "text/event-stream" {
		x.stop = context.AfterFunc(p.o.Leave, func() { x.cancel(errShutdown) })
	}
	if tunnel, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		if !strings.EqualFold(h.Get("Upgrade"), res.Request.Header.Get("Upgrade")) {
			return errors.New("the service switches to a protocol that was not requested")
		}
		x.tunnel = true
		res.Body = &activeTunnel{ReadWriteCloser: tunnel, v: x}
		return nil
	}
	body := &activeBody{ReadCloser: res.Body, idle: x.idle}
	res.Body = body
	if res.ProtoMajor == 1 && res.ContentLength < 0 && len(res.TransferEncoding) == 0 && !res.Uncompressed {
		res.Body = &openEnded{activeBody: body, v: x}
	}
	return nil
}

var errShutdown = errors.New("the server is shutting down")

// location translates a redirect of the service.
func (x *exchange) location(loc string) string {
	u, err := url.Parse(loc)
	if err != nil {
		return loc // the client cannot parse the address either
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, x.serviceHost) || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
			return loc
		}
	} else if u.Scheme != "" || x.target.prefix == "" || !strings.HasPrefix(loc, "/") {
		return loc
	}
	path := u.EscapedPath()
	if x.target.prefix != "" {
		path = x.target.below(path)
	}
	ref := localRef(path, u.RawQuery)
	if x.target.prefix != "" {
		ref = x.target.root(x.in.URL.EscapedPath()) + ref[1:]
	}
	if u.Fragment != "" {
		ref += "#" + u.EscapedFragment()
	}
	return ref
}

// cookies restricts cookies to this preview.
func (x *exchange) cookies(h http.Header) {
	lines := h["Set-Cookie"]
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		parts := strings.Split(line, ";")
		if name, _, _ := strings.Cut(parts[0], "="); strings.TrimSpace(name) == tokenCookie {
			continue
		}
		attrs, pathed := parts[:1], false
		for _, a := range parts[1:] {
			name, value, _ := strings.Cut(a, "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "domain": // without the attribute, the cookie is for this host only
				continue
			case "path":
				if x.target.prefix != "" {
					if pathed {
						continue
					}
					pathed = true
					a = " Path=" + x.target.prefix + "/" + strings.TrimLeft(strings.TrimSpace(value), "/")
				}
			}
			attrs = append(attrs, a)
		}
		if x.target.prefix != "" && !pathed {
			attrs = append(attrs, " Path="+x.target.prefix+"/")
		}
		kept = append(kept, strings.Join(attrs, ";"))
	}
	if h.Del("Set-Cookie"); len(kept) > 0 {
		h["Set-Cookie"] = kept
	}
}

// An openEnded body ends when the service closes the connection, which looks the
// same as the end of the sandbox.
type openEnded struct {
	*activeBody
	v *exchange
}

func (o *openEnded) Read(b []byte) (int, error) {
	n, err := o.activeBody.Read(b)
	if err == io.EOF && !o.v.alive() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// alive reports whether the guest still responds.
func (x *exchange) alive() bool {
	ctx, cancel := context.WithTimeout(x.in.Context(), 5*time.Second)
	defer cancel()
	_, err := x.guest.Stat(ctx, "/")
	return err == nil
}

// An activeTunnel is an upgraded connection that touches the idle timer.
type activeTunnel struct {
	io.ReadWriteCloser
	v *exchange
}

func (t *activeTunnel) Read(b []byte) (int, error) {
	n, err := t.ReadWriteCloser.Read(b)
	if n > 0 {
		t.v.idle.touch()
	}
	if err == io.EOF && !t.v.alive() {
		err = io.ErrUnexpectedEOF // so that the proxy does not wait for the client to close its side
	}
	return n, err
}

func (t *activeTunnel) Write(b []byte) (int, error) {
	n, err := t.ReadWriteCloser.Write(b)
	if n > 0 {
		t.v.idle.touch()
	}
	return n, err
}

// CloseWrite closes the writing side.
func (t *activeTunnel) CloseWrite() error {
	if half, ok := t.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return t.Close()
}
