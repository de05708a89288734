package secret

import (
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// packagePrefix begins the names of packages' secrets.
const packagePrefix = "sandbox."

// A Package is a package that the operator installed for code in sandboxes
// together with a secret for it. The secret is no owner's: no list has it, and
// whatever a policy says, it is sent to the package's hosts only.
type Package struct {
	Variable string   // of the server's environment, which has the value; its placeholder in sandboxes is in a variable of the same name
	Hosts    []string // as in [engi.Grant]
	Value    string   // empty: policies may grant it, but it cannot be revealed
}

// Grant gives a sandbox the use of the package's secret.
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

// Check reports Denied for policies that would let the secret of a package go
// anywhere but to the package's hosts. Nothing may be sent by a policy that was
// not checked, since [Service.Reveal] gives secrets of packages to every owner.
func (s *Service) Check(p engi.NetworkPolicy) error {
	for _, g := range p.Grants {
		if !strings.HasPrefix(g.Secret, packagePrefix) {
			continue
		}
		meant := func(p Package) bool {
			return g.Secret == packagePrefix+p.Variable && !slices.ContainsFunc(g.Hosts, func(h string) bool { return !slices.Contains(p.Hosts, h) })
		}
		if !slices.ContainsFunc(s.packages, meant) {
			return engi.Errorf(engi.Denied, "secret %s may not go to %s", g.Secret, strings.Join(g.Hosts, ", ")).
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
