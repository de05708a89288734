package secret

import (
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// packagePrefix is the prefix of the names of packages' secrets.
const packagePrefix = "sandbox."

// A Package is a package that the operator installed for code in sessions,
// together with a secret for it. The secret belongs to no owner and is in no list. It
// is sent only to the package's hosts, whatever a policy says.
type Package struct {
	Variable string   // variable of the server's environment with the value; in sandboxes, a variable of the same name has its placeholder
	Hosts    []string // hosts as in [engi.Grant]
	Value    string   // value; if it is empty, policies may grant the secret, but it cannot be revealed
}

// Grant returns the grant that lets a sandbox use the package's secret.
func (p Package) Grant() engi.Grant {
	return engi.Grant{Secret: packagePrefix + p.Variable, Hosts: p.Hosts, As: engi.GrantPlaceholder, Env: p.Variable}
}

// packageValue returns the value of a package's secret by its name.
func (s *Service) packageValue(name string) (string, bool) {
	for _, p := range s.packages {
		if name == packagePrefix+p.Variable && p.Value != "" {
			return p.Value, true
		}
	}
	return "", false
}

// Check reports Denied for policies that would send the secret of a package to
// other hosts than the package's. A policy must pass Check before requests are sent with
// it, since [Service.Reveal] returns secrets of packages to every owner.
func (s *Service) Check(p engi.NetworkPolicy) error {
	for _, g := range p.Grants {
		if !strings.HasPrefix(g.Secret, packagePrefix) {
			continue
		}
		meant := func(p Package) bool {
			return g.Secret == packagePrefix+p.Variable && !slices.ContainsFunc(g.Hosts, func(h string) bool { return !slices.Contains(p.Hosts, h) })
		}
		if !slices.ContainsFunc(s.packages, meant) {
			return engi.Errorf(engi.Denied, "secret %s may not be sent to %s", g.Secret, strings.Join(g.Hosts, ", ")).
				WithRemedy("it belongs to a package of [[sandbox.dependencies]] and goes to that package's hosts only")
		}
	}
	for _, h := range p.Headers {
		for _, v := range h.Headers {
			if strings.Contains(v, "secrets."+packagePrefix) {
				return engi.Errorf(engi.Denied, "a header names the secret of a package").WithRemedy("use a secret of your own")
			}
		}
	}
	return nil
}
