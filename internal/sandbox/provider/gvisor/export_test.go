package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// Crash releases everything that a process releases when it exits, so that another
// provider can take over as after a kill -9. Unlike after a kill, existing machines
// continue to watch their processes.
func (p *Provider) Crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.live {
		if m != nil {
			m.listener.Close()
			m.accepts <- struct{}{}
			if m.firstConn != nil {
				m.firstConn.Close()
				m.firstConn = nil
			}
			<-m.accepts
		}
	}
}

// StopForSave stops the kernel of a machine like Checkpoint does.
func (p *Provider) StopForSave(t testing.TB, m provider.Machine) {
	t.Helper()
	if _, err := m.(*machine).stopForSave(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// MarkStopped performs the steps of Checkpoint before it stops a kernel.
func (p *Provider) MarkStopped(t testing.TB, id engi.SandboxID) {
	t.Helper()
	if err := os.WriteFile(p.dir(id).path(stoppedName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// WriteMemory performs the steps of Checkpoint before it ends a machine.
func (p *Provider) WriteMemory(m provider.Machine, dir string) error {
	return m.(*machine).writeMemory(context.Background(), dir)
}

// The users of machines on the host.
const (
	FirstID = firstID
	IDCount = idCount
)

// Processes returns the processes of a machine on the host, by their role.
func (p *Provider) Processes(m provider.Machine) map[string]int {
	return map[string]int{"kernel": m.(*machine).sandbox.ref.PID, "file server": m.(*machine).gofer.ref.PID}
}

// NoIDs makes machines run without mapped users, as in earlier versions.
func (p *Provider) NoIDs() { p.ids = func() *idMap { return nil } }
