package fleet_test

import (
	"context"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A specRecorder starts nothing, and records the specs of Start.
type specRecorder struct {
	provider.Provider
	links *links
	spec  provider.Spec
	had   []engi.SandboxID // links at the time of Start
}

func (p *specRecorder) Start(_ context.Context, spec provider.Spec) (provider.Machine, error) {
	p.spec, p.had = spec, p.links.have()
	return nil, engi.Errorf(engi.Unavailable, "it starts nothing")
}

// TestOwnersBuildsHaveEgress: no build of an owner has the host's network.
func TestOwnersBuildsHaveEgress(t *testing.T) {
	l := &links{all: map[engi.SandboxID]bool{}}
	for name, test := range map[string]struct {
		egress fleet.Egress
		widest engi.Network
		owner  engi.Owner
		want   provider.HostNetwork
		linked bool
	}{
		"of the node":                            {l.egress(), engi.NetworkOpen, "", provider.Host, false},
		"of an owner":                            {l.egress(), engi.NetworkRestricted, "ann", provider.Loopback, true},
		"of an owner, without an egress gateway": {nil, engi.NetworkOpen, "ann", provider.Loopback, false},
		"of an owner where all are isolated":     {l.egress(), engi.NetworkIsolated, "ann", provider.Loopback, false},
	} {
		p := &specRecorder{links: l}
		b, err := fleet.NewBuildRunner(p, engi.Size{}, test.egress, test.widest, []string{"registry.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.Open(t.Context(), t.TempDir(), test.owner); !engi.Is(err, engi.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if p.spec.Network != test.want || (p.spec.Netns != "") != test.linked || (len(p.had) == 1) != test.linked {
			t.Errorf("a build %s has the network %v, %q and the links %v", name, p.spec.Network, p.spec.Netns, p.had)
		}
		if left := l.have(); len(left) > 0 {
			t.Errorf("a build %s left the links %v", name, left)
		}
	}
	if _, err := fleet.NewBuildRunner(nil, engi.Size{}, l.egress(), engi.NetworkOpen, []string{"forbidden"}); !engi.Is(err, engi.Denied) {
		t.Errorf("a policy that the egress gateway refuses: %v", err)
	}
}
