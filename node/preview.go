package node

import (
	"context"
	"net"
	"net/http"
	"path/filepath"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/compat/e2b"
	"github.com/engi-dev/engi/gate/cert"
	"github.com/engi-dev/engi/gate/preview"
	"github.com/engi-dev/engi/gate/secret"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/store"
)

// openSecrets opens what keeps secrets.
func (n *Node) openSecrets(ctx context.Context) (err error) {
	n.secrets, err = secret.Open(ctx, store.Secrets(n.db), n.secretOptions())
	return err
}

// openGates opens what leads to ports of sandboxes.
func (n *Node) openGates(keys engi.Keys, leave context.Context) {
	c := n.config.Preview
	scheme, domain, port := n.outside()
	path := ""
	if c.Path {
		path = "/preview"
	}
	// E2B's surface is opened after this and serves two of the ports.
	inside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.e2b.Inside().ServeHTTP(w, r) })
	n.previews = preview.New(preview.Options{
		Sandboxes: n.fleet.Sandboxes(), Keys: keys, LinkKey: n.secrets.Derive("links to ports"),
		Domains: append([]string{domain}, c.Domains...), Hosts: n.config.ServedHosts(), Path: path, Private: c.Private,
		Scheme: scheme, Port: port, Rate: c.Rate, Log: n.log.With("room", "preview"), Leave: leave,
		Special: map[int]http.Handler{e2b.AgentPort: inside, e2b.InterpreterPort: inside},
		Allow:   func(r *http.Request, s engi.Sandbox, port int) error { return n.e2b.Allow(r, s, port) },
	})
}

// outside is how names of ports are reached.
func (n *Node) outside() (scheme, domain, port string) {
	c := n.config.Preview
	domain, port = c.Name()
	if c.Scheme != "" { // a proxy is in front
		return c.Scheme, domain, port
	}
	scheme, served := n.front.Outside()
	if port == "" {
		port = served
	}
	return scheme, domain, port
}

// domain is what names of sandboxes end in, as E2B's clients want it.
func (n *Node) domain() string {
	scheme, domain, port := n.outside()
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return domain
	}
	return net.JoinHostPort(domain, port)
}

// hosts are the names that the API answers to.
func (n *Node) hosts() []string {
	all := n.config.ServedHosts()
	domain, _ := n.config.Preview.Name()
	for _, d := range append([]string{domain}, n.config.Preview.Domains...) {
		all = append(all, d, "api."+d, "sandbox."+d)
	}
	return append(all, n.config.TLS.ACMENames...)
}

// dispatch shares the node's addresses among its surfaces.
func (n *Node) dispatch(leave context.Context, rest, tools http.Handler) http.Handler {
	control, calls := n.e2b.Control(), n.workflows.Calls(leave)
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

// InitTLS makes certificates for the configured domains and more of them, in
// a directory that it chooses if dir is empty.
func InitTLS(dataDir, dir string, domains []string, anew bool) (cert.Files, error) {
	if dir == "" {
		dir = filepath.Join(dataDir, "tls")
	}
	return cert.Make(dir, domains, anew)
}
