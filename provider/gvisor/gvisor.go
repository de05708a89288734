// Package gvisor is the kind of provider whose machines are gVisor sandboxes:
// each is a user-space kernel in processes of its own, started by runsc, that
// run on when the process that started them dies.
//
// It is not for building root file systems (package disk) and knows nothing
// of what is said to the guest program (package guest).
package gvisor

import (
	"context"
	"log/slog"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
)

// Options say where a Provider finds and keeps things. Runsc, Guest and Dir
// must be set.
type Options struct {
	Runsc      string       // absolute path of a static runsc
	Guest      string       // absolute path of the static guest program
	Dir        string       // private directory of this provider; machines live below it
	Log        *slog.Logger // nil discards
	Cgroups    Cgroups      // zero means CgroupsAuto
	CgroupRoot string       // empty means /sys/fs/cgroup; for tests
	Boots      int          // machines that boot at the same time; 0 means the number of processors
}

// Cgroups says how limits are enforced.
type Cgroups string

const (
	CgroupsAuto Cgroups = "auto" // whatever the host has
	CgroupsV1   Cgroups = "v1"
	CgroupsV2   Cgroups = "v2"
	CgroupsNone Cgroups = "none"
)

// A Provider starts gVisor machines. It is safe for concurrent use.
type Provider struct {
	opt Options
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider on o.Dir. It starts nothing and touches nothing but
// o.Dir.
func New(o Options) (*Provider, error) { return &Provider{opt: o}, nil }

// Tier returns TierGVisor.
func (p *Provider) Tier() engi.Tier { return engi.TierGVisor }

// Start boots a machine.
func (p *Provider) Start(ctx context.Context, spec provider.Spec) (provider.Machine, error) {
	return nil, engi.Errorf(engi.Unavailable, "start %s: not built yet", spec.ID)
}

// Adopt takes over a machine that another process started.
func (p *Provider) Adopt(ctx context.Context, id engi.SandboxID) (provider.Machine, error) {
	return nil, engi.Errorf(engi.NotFound, "adopt %s: no such machine", id)
}

// Found lists machines by their traces.
func (p *Provider) Found(ctx context.Context) ([]engi.SandboxID, error) { return nil, nil }

// Remove destroys a machine that nobody adopted.
func (p *Provider) Remove(ctx context.Context, id engi.SandboxID) error { return nil }
