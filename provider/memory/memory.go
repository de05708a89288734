// Package memory is the twin of the isolating kinds of provider, for tests:
// its machines are guest servers inside this process, reached through pipes.
// It keeps every promise of the seam and isolates nothing, so it must never
// be offered to users.
package memory

import (
	"context"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
)

// A Host is what machines run on. It outlives providers, as a kernel outlives
// daemons: a second New on the same Host finds the machines of the first.
type Host struct{}

// NewHost returns a host whose machines keep their files below dir.
func NewHost(dir string) *Host { return &Host{} }

// A Provider starts machines on a Host. It is safe for concurrent use.
type Provider struct{ host *Host }

var _ provider.Provider = (*Provider)(nil)

// New returns a provider on host.
func New(host *Host) *Provider { return &Provider{host: host} }

// Tier returns TierMemory.
func (p *Provider) Tier() engi.Tier { return engi.TierMemory }

// Start boots a machine.
func (p *Provider) Start(ctx context.Context, spec provider.Spec) (provider.Machine, error) {
	return nil, engi.Errorf(engi.Unavailable, "start %s: not built yet", spec.ID)
}

// Adopt takes over a machine that another provider on the same host started.
func (p *Provider) Adopt(ctx context.Context, id engi.SandboxID) (provider.Machine, error) {
	return nil, engi.Errorf(engi.NotFound, "adopt %s: no such machine", id)
}

// Found lists machines by their traces.
func (p *Provider) Found(ctx context.Context) ([]engi.SandboxID, error) { return nil, nil }

// Remove destroys a machine that nobody adopted.
func (p *Provider) Remove(ctx context.Context, id engi.SandboxID) error { return nil }
