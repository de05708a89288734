package fleet

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
)

// Reconcile runs one round of the reconciler.
func (m *Manager) Reconcile(ctx context.Context) { m.reconcile(ctx) }

// SweepFiles removes the files of unknown executions.
func (m *Manager) SweepFiles(ctx context.Context, before map[engi.ExecutionID]bool) map[engi.ExecutionID]bool {
	return m.executions.sweepFiles(ctx, before)
}

// PinSnapshots pins the templates that snapshots need.
func (m *Manager) PinSnapshots(ctx context.Context) { m.sandboxes.pinSnapshots(ctx) }

// QueueBytes sets the maximum bytes of waiting programs to n.
func (m *Manager) QueueBytes(n int64) { m.executions.queuedBytes = engi.NewShares(n) }
