package intercept

import (
	"cmp"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// A rule is a grant or a header rule for one of its hosts.
type rule struct {
	host        policy.Host
	number      int               // number of the grant in the policy
	grant       engi.Grant        // the grant; its Secret is empty for a header rule
	headers     map[string]string // headers set by a header rule
	placeholder string            // placeholder of the grant; empty if it has none
}

// rulesOf returns the rules of a policy, general ones before more specific ones,
// which are applied later and take precedence.
func rulesOf(p *policy.Policy) ([]rule, error) {
	var rules []rule
	add := func(host string, r rule) (err error) {
		r.host, err = policy.ParseHost(host)
		rules = append(rules, r)
		return err
	}
	source := p.Source()
	for n, g := range source.Grants {
		g.As, g.Format = policy.GrantUse(g), cmp.Or(g.Format, "{}")
		for _, host := range g.Hosts {
			if err := add(host, rule{number: n, grant: g}); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range source.Headers {
		if err := add(r.Host, rule{headers: r.Headers}); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(rules, func(a, b rule) int {
		if a.host.Below != b.host.Below {
			if a.host.Below {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(a.host.Name), len(b.host.Name)), cmp.Compare(min(a.host.Port, 1), min(b.host.Port, 1)))
	})
	return rules, nil
}

// secrets returns the names of the secrets that r uses.
func (r rule) secrets() []string {
	if r.grant.Secret != "" {
		return []string{r.grant.Secret}
	}
	var names []string
	for _, v := range r.headers {
		for _, m := range policy.SecretReference.FindAllStringSubmatch(v, -1) {
			if !slices.Contains(names, m[1]) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// describe describes a rule for events.
func (r rule) describe() string {
	if r.grant.Secret != "" {
		return "grant of " + r.grant.Secret + " to " + r.host.String()
	}
	return "headers for " + r.host.String()
}
