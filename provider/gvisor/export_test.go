package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
)

// Crash lets go of everything that the end of a process lets go of, so that
// another provider can take over as after a kill -9. The handles of before go
// on watching, which the dead do not.
func (p *Provider) Crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.live {
		if m != nil {
			m.listener.Close()
			m.accepts <- struct{}{}
			if m.spare != nil {
				m.spare.Close()
				m.spare = nil
			}
			<-m.accepts
		}
	}
}

// Still stops the kernel of a machine as Checkpoint does.
func (p *Provider) Still(t testing.TB, m provider.Machine) {
	t.Helper()
	if _, err := m.(*machine).still(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// MarkStill does what Checkpoint does before it stops a kernel.
func (p *Provider) MarkStill(t testing.TB, id engi.SandboxID) {
	t.Helper()
	if err := os.WriteFile(p.dir(id).path(stillName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// WriteMemory does what Checkpoint does before it ends a machine.
func (p *Provider) WriteMemory(m provider.Machine, dir string) error {
	return m.(*machine).writeMemory(context.Background(), dir)
}
