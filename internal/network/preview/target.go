package preview

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

const localhost = "localhost"

// A target is the port of a sandbox, the published page or the preview that a request is for.
type target struct {
	id     engi.SandboxID // parsed from label; empty if label is no such ID
	label  string         // label as the client wrote it
	port   int
	prefix string // path of the service; empty unless routed by path
	bare   bool   // routed by path without the slash after the prefix
	header bool   // routed by header

	page bool       // the request is for the published page of an app
	app  engi.AppID // parsed from label; empty if label is no such ID

	of engi.AppID // app whose sandbox is requested; id is unknown until the request is served; empty if the sandbox itself is named

	workspace bool             // the request is for the preview of a workspace; id and port are unknown until it is served
	site      engi.WorkspaceID // parsed from label; empty if label is no such ID
	service   string           // service of the workspace; empty for the workspace itself
}

// find returns the target of a request: it looks for a
// name in Host, then in the path, then in headers. ok is false if the request
// has no target; the ID is empty if the target cannot exist.
func (p *Proxy) find(r *http.Request) (t target, ok bool) {
	host := plainHost(r.Host)
	if t, ok := p.byName(host); ok {
		return t, true
	}
	if t, ok := p.byPath(r, host); ok {
		return t, true
	}
	id, number := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port")
	if id == "" || !(isIP(host) || p.shared(host)) {
		return target{}, false
	}
	if number == "" {
		number = strconv.Itoa(guestPort)
	}
	port, ok := parsePort(number)
	if !ok {
		return target{label: id, header: true}, true
	}
	return target{id: parseSandbox(id), label: id, port: port, header: true}, true
}

// shared reports whether host is shared by all sandboxes.
func (p *Proxy) shared(host string) bool {
	return slices.Contains(p.domains, strings.TrimPrefix(host, "sandbox.")) || slices.Contains(p.hosts, host) || slices.Contains(p.hosts, "*")
}

// byName parses a host name below one of the proxy's domains.
func (p *Proxy) byName(host string) (target, bool) {
	first, domain, ok := strings.Cut(host, ".")
	if !ok || !slices.Contains(p.domains, domain) {
		return target{}, false
	}
	if label, ok := strings.CutPrefix(first, pagePrefix); ok {
		t := target{page: true, label: label}
		if id, err := engi.AppOfLabel(label); err == nil {
			t.app = id
		}
		return t, true
	}
	if name, ok := strings.CutPrefix(first, workspacePrefix); ok {
		return parseWorkspace(name), true
	}
	return parseName(first)
}

// pagePrefix is the prefix of names of published pages. Names of apps' ports have it
// after the port.
const pagePrefix = "app-"

// parseName parses PORT-LABEL. E2B's clients before version 2 append another part,
// which is ignored.
func parseName(first string) (target, bool) {
	number, label, ok := strings.Cut(first, "-")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return target{}, false
	}
	port, ok := parsePort(number)
	if !ok {
		return target{label: label}, true
	}
	t := target{label: label, port: port}
	t.parse(label)
	return t, true
}

// parse parses the label of a port: the label of a sandbox, or app-LABEL for an
// app, which stays the same for every sandbox of the app.
func (t *target) parse(label string) {
	if app, ok := strings.CutPrefix(label, pagePrefix); ok {
		if id, err := engi.AppOfLabel(app); err == nil {
			t.of = id
		}
		return
	}
	t.id = parseSandbox(label)
}

// byPath parses /BASE/SANDBOX/PORT/.
func (p *Proxy) byPath(r *http.Request, host string) (target, bool) {
	if p.o.Path == "" || !p.servesPaths(host) {
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
	if port, ok := parsePort(parts[1]); ok {
		t.port = port
		t.parse(parts[0])
	}
	return t, true
}

// servesPaths reports whether a request for host may be routed by path. A web page
// can make its own host name resolve to this address, but none of the accepted names.
func (p *Proxy) servesPaths(host string) bool {
	if isIP(host) || slices.Contains(p.hosts, host) || slices.Contains(p.hosts, "*") {
		return true
	}
	return slices.ContainsFunc(p.domains, func(d string) bool { return host == d || strings.HasSuffix(host, "."+d) })
}

// parseSandbox parses an ID or its label, in any of the forms that engi's APIs use;
// it returns an empty ID for other texts.
func parseSandbox(s string) engi.SandboxID {
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

func parsePort(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0
}

// plainHost returns a host without port, brackets and final dot, in lower case.
func plainHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// URL returns the URL of a port, with a host name below the first domain.
func (p *Proxy) URL(id engi.SandboxID, port int) string {
	return p.address(strconv.Itoa(port) + "-" + id.Label())
}

// AppURL returns the URL of a port of an app. The URL stays the same when another sandbox
// replaces the app's sandbox.
func (p *Proxy) AppURL(id engi.AppID, port int) string {
	return p.address(strconv.Itoa(port) + "-" + pagePrefix + id.Label())
}

// PageURL returns the URL of the published page of an app.
func (p *Proxy) PageURL(id engi.AppID) string { return p.address(pagePrefix + id.Label()) }

func (p *Proxy) address(name string) string {
	u := url.URL{Scheme: p.o.Scheme, Host: name + "." + p.domains[0], Path: "/"}
	if p.o.Port != "" && !(p.o.Port == "80" && p.o.Scheme == "http" || p.o.Port == "443" && p.o.Scheme == "https") {
		u.Host += ":" + p.o.Port
	}
	return u.String()
}

// stripPrefix returns u without the prefix of a route.
func stripPrefix(u *url.URL, prefix string) *url.URL {
	c := *u
	raw := strings.TrimPrefix(u.EscapedPath(), prefix)
	if path, err := url.PathUnescape(raw); err == nil {
		c.Path, c.RawPath = path, raw
	}
	return &c
}

// localRef returns a reference to a path on the same origin, for every beginning of the
// path.
func localRef(escapedPath, rawQuery string) string {
	if !strings.HasPrefix(escapedPath, "/") {
		escapedPath = "/" + escapedPath
	}
	// Browsers take two slashes or backslashes for the start of a host name.
	if len(escapedPath) > 1 && (escapedPath[1] == '/' || escapedPath[1] == '\\') {
		escapedPath = "/." + escapedPath
	}
	if rawQuery != "" {
		escapedPath += "?" + rawQuery
	}
	return escapedPath
}
