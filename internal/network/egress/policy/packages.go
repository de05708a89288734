package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	packagesRule  = "packages"
	allEcosystems = "*"
)

// addPackages replaces rules for packages by rules for the hosts of registries.
// A host that another rule names is reached directly, not served by the node.
func (p *Policy) addPackages(rules []rule, hosts map[string][]string) ([]rule, *engi.Error) {
	p.packages = map[string]string{}
	var out []rule
	for _, r := range rules {
		if r.packages == "" {
			out = append(out, r)
			continue
		}
		names := slices.Sorted(maps.Keys(hosts))
		if len(names) == 0 {
			return nil, engi.Errorf(engi.Unsupported, "network rule %q: this node serves no packages", clip.Text(r.text, maxShown)).
				WithRemedy("name the hosts of registries instead, or have the operator turn on [mirror] in the node's configuration")
		}
		if r.packages != allEcosystems {
			if hosts[r.packages] == nil {
				return nil, engi.Errorf(engi.Invalid, "network rule %q names a registry that this node does not mirror", clip.Text(r.text, maxShown)).
					WithRemedy("write packages for all of them, or packages: with one of %s", strings.Join(names, ", "))
			}
			names = []string{r.packages}
		}
		for _, name := range names {
			for _, host := range hosts[name] {
				if p.packages[host] == "" {
					out = append(out, rule{text: r.text, proto: tcp, protoGiven: true, host: host, lo: portHTTP, hi: portHTTPS, hasPorts: true})
					p.packages[host] = r.text
				}
			}
		}
	}
	for _, r := range rules {
		if r.host != "" {
			delete(p.packages, r.host)
		}
	}
	return out, nil
}

// Packages returns the rule by which the node itself serves a host, which is
// the host of a package registry; ok is false for every other host.
func (p *Policy) Packages(host string) (rule string, ok bool) {
	if len(p.packages) == 0 {
		return "", false
	}
	name, problem := canonical(host)
	if problem != "" {
		return "", false
	}
	rule, ok = p.packages[name]
	return rule, ok
}

// HasPackages reports whether the node serves any host itself.
func (p *Policy) HasPackages() bool { return len(p.packages) > 0 }
