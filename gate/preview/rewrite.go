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

	"github.com/engi-dev/engi"
)

// presented is what a service sees as Host.
func presented(s engi.Sandbox, port int) string {
	if s.Ports.Host == "" {
		return localhost + ":" + strconv.Itoa(port)
	}
	return strings.ReplaceAll(s.Ports.Host, "${PORT}", strconv.Itoa(port))
}

// rewrite makes of a caller's request one that a service on its own loopback
// would expect.
func rewrite(pr *httputil.ProxyRequest) {
	v := visitOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", v.as, v.as
	if v.target.prefix != "" {
		u := stripped(out.URL, v.target.prefix)
		out.URL.Path, out.URL.RawPath = u.Path, u.RawPath
		out.Header.Set("X-Forwarded-Prefix", v.target.prefix)
	} else {
		out.Header.Del("X-Forwarded-Prefix")
	}
	// To the letter: services have their own ideas of queries.
	out.URL.RawQuery = withoutToken(pr.In.URL.RawQuery)
	out.URL.ForceQuery = pr.In.URL.ForceQuery
	// The map is filled when the body has been read.
	out.Trailer = pr.In.Trailer

	stripCredentials(out.Header, v.target.header)
	pr.SetXForwarded()
	if origin := out.Header.Get("Origin"); origin != "" && sameHost(origin, pr.In.Host) {
		// A service compares Origin with Host, or with the forwarded pair. It
		// must find all three of one kind.
		v.origin = origin
		out.Header.Set("Origin", "http://"+v.as)
		out.Header.Set("X-Forwarded-Host", v.as)
		out.Header.Set("X-Forwarded-Proto", "http")
	}
	if ref := out.Header.Get("Referer"); ref != "" && sameHost(ref, pr.In.Host) {
		if u, err := url.Parse(ref); err == nil {
			u.Scheme, u.Host, u.User = "http", v.as, nil
			if v.target.prefix != "" {
				u = stripped(u, v.target.prefix)
			}
			u.RawQuery = withoutToken(u.RawQuery)
			out.Header.Set("Referer", u.String())
		} else {
			out.Header.Del("Referer")
		}
	}
}

// sameHost reports whether an address is on host. Its scheme does not count:
// a proxy before us may have taken TLS off.
func sameHost(address, host string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// answered makes of a service's answer one that is true outside, and that
// concerns nobody but this preview.
func (p *Proxy) answered(res *http.Response) error {
	v := visitOf(res.Request.Context())
	v.began.Store(true)
	h := res.Header
	h.Del("Alt-Svc") // leads clients past us
	if loc := h.Get("Location"); loc != "" {
		h.Set("Location", v.location(loc))
	}
	if h.Get("Access-Control-Allow-Origin") == "http://"+v.as && v.origin != "" {
		h.Set("Access-Control-Allow-Origin", v.origin)
	}
	v.cookies(h)
	if v.target.prefix != "" {
		// The page shares its origin with other sandboxes and with the API.
		// These would speak for all of it.
		for _, name := range []string{"Clear-Site-Data", "Service-Worker-Allowed", "Strict-Transport-Security", "Nel", "Report-To", "Reporting-Endpoints"} {
			h.Del(name)
		}
		h.Add("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
	}

	stream, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	if res.StatusCode == http.StatusSwitchingProtocols || strings.TrimSpace(stream) == "text/event-stream" {
		v.stop = context.AfterFunc(p.o.Leave, func() { v.cancel(errLeaving) })
	}
	if tunnel, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		if !strings.EqualFold(h.Get("Upgrade"), res.Request.Header.Get("Upgrade")) {
			return errors.New("it switches to a protocol nobody asked for")
		}
		v.tunnel = true
		res.Body = &heardTunnel{ReadWriteCloser: tunnel, v: v}
		return nil
	}
	body := &heard{ReadCloser: res.Body, silence: v.silence}
	res.Body = body
	if res.ProtoMajor == 1 && res.ContentLength < 0 && len(res.TransferEncoding) == 0 && !res.Uncompressed {
		res.Body = &openEnded{heard: body, v: v}
	}
	return nil
}

var errLeaving = errors.New("this server is going away")

// location translates an address of the service as itself knows it.
func (v *visit) location(loc string) string {
	u, err := url.Parse(loc)
	if err != nil {
		return loc // the caller's client will not know what to do with it either
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, v.as) || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
			return loc
		}
	} else if u.Scheme != "" || v.target.prefix == "" || !strings.HasPrefix(loc, "/") {
		return loc
	}
	ref := local(v.target.prefix+"/"+strings.TrimPrefix(u.EscapedPath(), "/"), u.RawQuery)
	if u.Fragment != "" {
		ref += "#" + u.EscapedFragment()
	}
	return ref
}

// cookies keeps cookies with this preview.
func (v *visit) cookies(h http.Header) {
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
			case "domain": // without it, the cookie is this host's alone
				continue
			case "path":
				if v.target.prefix != "" {
					if pathed {
						continue
					}
					pathed = true
					a = " Path=" + v.target.prefix + "/" + strings.TrimLeft(strings.TrimSpace(value), "/")
				}
			}
			attrs = append(attrs, a)
		}
		if v.target.prefix != "" && !pathed {
			attrs = append(attrs, " Path="+v.target.prefix+"/")
		}
		kept = append(kept, strings.Join(attrs, ";"))
	}
	if h.Del("Set-Cookie"); len(kept) > 0 {
		h["Set-Cookie"] = kept
	}
}

// openEnded is a body that ends when the service closes the connection, which
// looks the same as the end of its sandbox.
type openEnded struct {
	*heard
	v *visit
}

func (o *openEnded) Read(b []byte) (int, error) {
	n, err := o.heard.Read(b)
	if err == io.EOF && !o.v.alive() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// alive reports whether the guest still answers.
func (v *visit) alive() bool {
	ctx, cancel := context.WithTimeout(v.in.Context(), 5*time.Second)
	defer cancel()
	_, err := v.guest.Stat(ctx, "/")
	return err == nil
}

// heardTunnel is an upgraded connection that breaks the silence.
type heardTunnel struct {
	io.ReadWriteCloser
	v *visit
}

func (h *heardTunnel) Read(b []byte) (int, error) {
	n, err := h.ReadWriteCloser.Read(b)
	if n > 0 {
		h.v.silence.hear()
	}
	if err == io.EOF && !h.v.alive() {
		err = io.ErrUnexpectedEOF // and no waiting for the caller to end his half
	}
	return n, err
}

func (h *heardTunnel) Write(b []byte) (int, error) {
	n, err := h.ReadWriteCloser.Write(b)
	if n > 0 {
		h.v.silence.hear()
	}
	return n, err
}

// CloseWrite tells the service that nothing more comes.
func (h *heardTunnel) CloseWrite() error {
	if half, ok := h.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return h.Close()
}
