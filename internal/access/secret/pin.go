package secret

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

const maxHosts = 64

// parseHosts parses the hosts that a secret is pinned to. It reports Invalid.
func parseHosts(hosts []string) ([]string, error) {
	if len(hosts) > maxHosts {
		return nil, engi.Errorf(engi.Invalid, "hosts: there are %d", len(hosts)).WithRemedy("use %d at most, or *.SUFFIX", maxHosts)
	}
	for i, h := range hosts {
		if _, err := policy.ParseHost(h); err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "hosts[%d]: %w", i, err).WithRemedy("%s", engi.RemedyOf(err))
		}
	}
	return slices.Clone(hosts), nil
}

// Permit reports Denied for a policy of an owner's sandbox that would send a pinned secret to other
// hosts than its own. It ignores secrets that do not exist yet, because the egress gateway
// also checks each request.
func (s *Service) Permit(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error {
	check := func(field, name string, hosts []string) error {
		sec, err := s.Get(ctx, owner.Reach(), name)
		if err != nil && !engi.Is(err, engi.NotFound, engi.Conflict) {
			return err
		}
		if err != nil || len(sec.Hosts) == 0 {
			return nil
		}
		for _, text := range hosts {
			h, err := policy.ParseHost(text)
			if err != nil {
				return nil // other code refuses the policy
			}
			if !slices.ContainsFunc(sec.Hosts, func(pin string) bool {
				x, err := policy.ParseHost(pin)
				return err == nil && x.Includes(h)
			}) {
				return engi.Errorf(engi.Denied, "%s: secret %s may not be sent to %s", field, name, text).
					WithRemedy("it is pinned to %s", strings.Join(sec.Hosts, ", "))
			}
		}
		return nil
	}
	for i, g := range p.Grants {
		if err := check(fmt.Sprintf("grants[%d].hosts", i), g.Secret, g.Hosts); err != nil {
			return err
		}
	}
	for i, r := range p.Headers {
		for _, text := range r.Headers {
			for _, found := range policy.SecretReference.FindAllStringSubmatch(text, -1) {
				if err := check(fmt.Sprintf("headers[%d].host", i), found[1], []string{r.Host}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
