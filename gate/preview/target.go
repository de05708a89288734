package preview

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi"
)

const localhost = "localhost"

// A target is what a request asks for.
type target struct {
	id     engi.SandboxID // empty if label is not one
	label  string         // as the caller wrote it
	port   int
	prefix string // path below which the service is seen; empty unless routed by path
	bare   bool   // routed by path, and the slash after the prefix is missing
	header bool   // routed by header
}

// find reports which port of which sandbox a request is for: it looks for a
// name in Host, then in the path, then in headers. ok is false if the request
// is not for any; the ID is empty if it is for one that cannot exist.
func (p *Proxy) find(r *http.Request) (t target, ok bool) {
	host := plainHost(r.Host)
	if t, ok := p.byName(host); ok {
		return t, true
	}
	if t, ok := p.pathed(r, host); ok {
		return t, true
	}
	id, number := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port")
	if id == "" || !(isIP(host) || p.shared(host)) {
		return target{}, false
	}
	if number == "" {
		number = strconv.Itoa(guestPort)
	}
	port, ok := portOf(number)
	if !ok {
		return target{label: id, header: true}, true
	}
	return target{id: sandboxOf(id), label: id, port: port, header: true}, true
}

// shared reports whether host is one that all sandboxes share.
func (p *Proxy) shared(host string) bool {
	return slices.Contains(p.domains, strings.TrimPrefix(host, "sandbox.")) || slices.Contains(p.hosts, host) || slices.Contains(p.hosts, "*")
}

// byName reads a host name below one of our domains.
func (p *Proxy) byName(host string) (target, bool) {
	first, domain, ok := strings.Cut(host, ".")
	if !ok || !slices.Contains(p.domains, domain) {
		return target{}, false
	}
	return named(first)
}

// named reads PORT-LABEL. Clients of E2B before version 2 add one more part,
// which means nothing here.
func named(first string) (target, bool) {
	number, label, ok := strings.Cut(first, "-")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return target{}, false
	}
	port, ok := portOf(number)
	if !ok {
		return target{label: label}, true
	}
	return target{id: sandboxOf(label), label: label, port: port}, true
}

// pathed reads /BASE/SANDBOX/PORT/.
func (p *Proxy) pathed(r *http.Request, host string) (target, bool) {
	if p.o.Path == "" || !p.answersTo(host) {
		return target{}, false
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), p.o.Path+"/")
	if !ok {
		return target{}, false
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return target{label: parts[0]}, true
	}
	t := target{label: parts[0], bare: len(parts) == 2, prefix: p.o.Path + "/" + parts[0] + "/" + parts[1]}
	if port, ok := portOf(parts[1]); ok {
		t.id, t.port = sandboxOf(parts[0]), port
	}
	return t, true
}

// answersTo reports whether a request for host may be routed by path. A web
// page can point a name of its own at our address, but not one of these.
func (p *Proxy) answersTo(host string) bool {
	if isIP(host) || slices.Contains(p.hosts, host) || slices.Contains(p.hosts, "*") {
		return true
	}
	return slices.ContainsFunc(p.domains, func(d string) bool { return host == d || strings.HasSuffix(host, "."+d) })
}

// sandboxOf reads an ID or its label, as the different surfaces write it;
// empty if it is neither.
func sandboxOf(s string) engi.SandboxID {
	if id, err := engi.ParseSandboxID(s); err == nil {
		return id
	}
	label, _, _ := strings.Cut(s, "-")
	id, err := engi.SandboxOfLabel(label)
	if err != nil {
		return ""
	}
	return id
}

func portOf(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0
}

// plainHost is a host without port, brackets and final dot, in lower case.
func plainHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// URL returns the address of a port: its own host name below the first
// domain.
func (p *Proxy) URL(id engi.SandboxID, port int) string {
	u := url.URL{Scheme: p.o.Scheme, Host: strconv.Itoa(port) + "-" + id.Label() + "." + p.domains[0], Path: "/"}
	if p.o.Port != "" && !(p.o.Port == "80" && p.o.Scheme == "http" || p.o.Port == "443" && p.o.Scheme == "https") {
		u.Host += ":" + p.o.Port
	}
	return u.String()
}

// stripped is u without the prefix of a route.
func stripped(u *url.URL, prefix string) *url.URL {
	c := *u
	raw := strings.TrimPrefix(u.EscapedPath(), prefix)
	if path, err := url.PathUnescape(raw); err == nil {
		c.Path, c.RawPath = path, raw
	}
	return &c
}

// local is a reference to a path on the origin it is answered from, whatever
// the path begins with.
func local(escapedPath, rawQuery string) string {
	if !strings.HasPrefix(escapedPath, "/") {
		escapedPath = "/" + escapedPath
	}
	// Two slashes, or what browsers take for them, would begin a host name.
	if len(escapedPath) > 1 && (escapedPath[1] == '/' || escapedPath[1] == '\\') {
		escapedPath = "/." + escapedPath
	}
	if rawQuery != "" {
		escapedPath += "?" + rawQuery
	}
	return escapedPath
}
