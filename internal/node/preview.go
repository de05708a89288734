package node

import (
	"context"
	"net"
	"net/http"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/cert"
	"github.com/engi-dev/engi/internal/network/preview"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/server/web"
)

// openPreviews opens the proxy to ports of sandboxes.
func (n *Node) openPreviews(keys engi.Keys, leave context.Context) {
	c := n.config.Preview
	scheme, domain, port := n.publicAddress()
	path := ""
	if c.Path {
		path = "/preview"
	}
	// The E2B server, which is opened later, serves two of the ports.
	guest := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.e2b.Proxy().ServeHTTP(w, r) })
	n.previews = preview.New(preview.Options{
		Sandboxes: n.fleet.Sandboxes(), Keys: keys, LinkKey: n.secrets.Derive("links to ports"),
		Domains: append([]string{domain}, c.Domains...), Hosts: n.config.ServedHosts(), Path: path, Private: c.Private,
		Scheme: scheme, Port: port, Rate: c.Rate, Log: n.log.With("component", "preview"), Leave: leave,
		Apps: n.apps, Workspaces: n.workspaces,
		Special: map[int]http.Handler{e2b.EnvdPort: guest, e2b.InterpreterPort: guest}, Allow: func(r *http.Request, s engi.Sandbox) error { return n.e2b.Allow(r, s) },
		While: func(r *http.Request, s engi.Sandbox) (context.Context, context.CancelFunc) { return n.e2b.While(r, s) },
	})
}

// publicAddress returns the scheme, domain and port of previews' URLs.
func (n *Node) publicAddress() (scheme, domain, port string) {
	c := n.config.Preview
	domain, port = c.Name()
	if c.Scheme != "" { // a proxy is in front of the node
		return c.Scheme, domain, port
	}
	scheme, served := n.listener.Public()
	if port == "" {
		port = served
	}
	return scheme, domain, port
}

// domain returns the domain of sandboxes, with the port if it is not the default,
// in the form that E2B's clients require.
func (n *Node) domain() string {
	scheme, domain, port := n.publicAddress()
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return domain
	}
	return net.JoinHostPort(domain, port)
}

// hosts returns the host names that requests to the API may name.
func (n *Node) hosts() []string {
	all := n.config.ServedHosts()
	domain, _ := n.config.Preview.Name()
	for _, d := range append([]string{domain}, n.config.Preview.Domains...) {
		all = append(all, d, "api."+d, "sandbox."+d)
	}
	return append(all, n.config.TLS.ACMENames...)
}

// dashboard returns the dashboard in front of the API.
func (n *Node) dashboard(keys engi.Keys, api http.Handler) http.Handler {
	_, port := n.listener.Public()
	scheme, _, _ := n.publicAddress()
	return web.New(web.Options{
		API: api, SignIns: n.signIns, Keys: keys, Hosts: n.hosts(), Port: port,
		Frames: []string{scheme + "://*." + n.domain()}, Log: n.log.With("component", "dashboard"),
	})
}

// dispatch routes requests to previews, the E2B and MCP servers, the functions
// that an Inngest server calls, and the dashboard with the API.
func (n *Node) dispatch(leave context.Context, rest, tools http.Handler) http.Handler {
	control, calls := n.e2b.Control(), n.inngestHandler(leave)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch port := n.previews.Handler(r); {
		case port != nil:
			port.ServeHTTP(w, r)
		case e2b.Serves(r.URL.Path):
			control.ServeHTTP(w, r)
		case r.URL.Path == mcpPath:
			tools.ServeHTTP(w, r)
		case calls != nil && r.URL.Path == config.InngestPath:
			calls.ServeHTTP(w, r)
		default:
			rest.ServeHTTP(w, r)
		}
	})
}

// InitTLS makes a certificate for domains in dir; see [cert.Make]. An empty dir means
// tls in the data directory.
func InitTLS(dataDir, dir string, domains []string, anew bool) (cert.Files, error) {
	if dir == "" {
		dir = filepath.Join(dataDir, "tls")
	}
	return cert.Make(dir, domains, anew)
}
