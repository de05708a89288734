package fleet

import (
	"context"

	"github.com/engi-dev/engi"
)

// Reconcile is a round of the background work, for tests that cannot wait.
func (m *Manager) Reconcile(ctx context.Context) { m.reconcile(ctx) }

// SweepFiles is another.
func (m *Manager) SweepFiles(ctx context.Context, before map[engi.ExecutionID]bool) map[engi.ExecutionID]bool {
	return m.sweepFiles(ctx, before)
}

// CheckPath is how paths from outside are judged.
var CheckPath = checkPath

// PinSnapshots is another.
func (m *Manager) PinSnapshots(ctx context.Context) { m.pinSnapshots(ctx) }
