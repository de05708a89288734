package fleet

import (
	"context"

	"github.com/engi-dev/engi"
)

// sandboxes is the Manager as engi.Sandboxes.
type sandboxes struct{ m *Manager }

var _ engi.Sandboxes = sandboxes{}

func (s sandboxes) Get(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Sandbox, error) {
	return engi.Sandbox{}, errNotRunning
}

func (s sandboxes) List(ctx context.Context, owner engi.Owner) ([]engi.Sandbox, error) {
	return nil, errNotRunning
}

func (s sandboxes) Stop(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	return errNotRunning
}
