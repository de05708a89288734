package fleet

import (
	"context"
	"slices"

	"github.com/engi-dev/engi"
)

// A Wall connects sandboxes to what their policies let them reach, and to
// nothing else. It is safe for concurrent use.
type Wall interface {
	// Check reports Invalid for a policy that makes no sense, Forbidden for
	// one that asks for more than the node's operator opened.
	Check(p engi.NetworkPolicy) error
	// Attach gives a machine that is going to start its end of a link and
	// returns the network namespace that has it. Nothing is reachable yet.
	Attach(ctx context.Context, id engi.SandboxID) (netns string, err error)
	// Open puts a policy in force, instead of the one before, and returns
	// what the sandbox needs inside. Connections that p does not allow break.
	Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.Wiring, error)
	// Shut makes nothing reachable, and keeps the link.
	Shut(id engi.SandboxID)
	// Detach removes the link of a machine that is gone. It may be repeated,
	// and is no error for an unknown ID.
	Detach(ctx context.Context, id engi.SandboxID) error
	// Adopt takes over the links of these machines, which another process
	// attached, with nothing reachable, and removes all others.
	Adopt(ctx context.Context, ids []engi.SandboxID) error
}

// checkNetwork reports what is wrong with a policy, for this node.
func (m *Manager) checkNetwork(p engi.NetworkPolicy) error {
	if p.Mode != "" && !slices.Contains(engi.Networks(), p.Mode) {
		return engi.Errorf(engi.Invalid, "unknown network mode %.40q", p.Mode).WithRemedy("use none, isolated, restricted or open")
	}
	if n := len(p.Allow) + len(p.Deny); n > maxRules {
		return engi.Errorf(engi.Invalid, "a network policy has %d rules, %d at most", n, maxRules)
	}
	for _, list := range [][]string{p.Allow, p.Deny} {
		for _, rule := range list {
			if rule == "" || len(rule) > maxKeyed || !validText(rule) {
				return engi.Errorf(engi.Invalid, "network rule %.80q is no name, address or network", rule)
			}
		}
	}
	return nil
}
