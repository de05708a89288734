package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/node"
)

type tlsCommand struct {
	Init tlsInit `cmd:"" help:"Create a certificate for the preview domains, signed by a private authority."`
}

type tlsInit struct {
	Domains []string `arg:"" optional:"" help:"Additional domains, beside the configured ones." placeholder:"DOMAIN"`
	Dir     string   `help:"Directory for the files (default: tls in the data directory)." placeholder:"DIR" type:"path"`
	Force   bool     `help:"Replace the certificate authority; clients must then trust the new one."`
}

func (tlsInit) Help() string {
	return `Every port of a sandbox has a host name of its own, so HTTPS needs a certificate for all names below
a domain. This command creates one for networks that no public certificate authority knows. The new
authority can sign for the given domains only; keep ca-key.pem private anyway. Repeat the command
before the certificate expires: a running server loads the new one.

Examples:
  engi tls init sbx.localhost
  engi tls init sbx.internal.example
  engi tls init sbx.test && engi serve --set preview.domain=sbx.test --set tls.listen=0.0.0.0:443 \
    --tls-cert ~/.local/share/engi/tls/cert.pem --tls-key ~/.local/share/engi/tls/key.pem`
}

func (t *tlsInit) Run(g *globals) error {
	c, _, err := g.config()
	if err != nil {
		return err
	}
	domain, _ := c.Preview.Name()
	domains := []string{domain}
	for _, d := range append(c.Preview.Domains, t.Domains...) {
		if d = strings.TrimPrefix(strings.ToLower(d), "*."); !slices.Contains(domains, d) {
			domains = append(domains, d)
		}
	}
	made, err := node.InitTLS(c.DataDir, t.Dir, domains, t.Force)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.printJSON(made)
	}
	verb := "The authority is the one that was there: whoever trusts it need do nothing."
	if made.Fresh {
		verb = "The authority is new: tell clients to trust it, see below."
	}
	fmt.Fprintf(g.out, `Made a certificate for %s.
It is good until %s. %s

Serve with it, in config.toml:
  [tls]
  cert = %q
  key = %q
  listen = "0.0.0.0:443"   # beside http on the loopback address

Trust the authority %s where clients run:
  Node.js, E2B's clients   export NODE_EXTRA_CA_CERTS=%s
  Python                   export SSL_CERT_FILE=%s
  curl                     curl --cacert %s
  Debian, Ubuntu           sudo cp %s /usr/local/share/ca-certificates/engi.crt && sudo update-ca-certificates
  Chromium, Firefox        Settings, Certificates, Authorities, Import
`, strings.Join(made.Names, ", "), made.Expires.Format(time.DateOnly), verb, made.Cert, made.Key,
		made.Authority, made.Authority, made.Authority, made.Authority, made.Authority)
	if !strings.Contains(domain, ".") {
		g.note("clients take no certificate for names right below %s, where previews are: set preview.domain to sbx.localhost, which this one is good for, or to a domain of two parts", domain)
	}
	return nil
}
