package fleet

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
)

// Reconcile is one round of the background work.
func (m *Manager) Reconcile(ctx context.Context) { m.reconcile(ctx) }

// SweepFiles is another part of it.
func (m *Manager) SweepFiles(ctx context.Context, before map[engi.ExecutionID]bool) map[engi.ExecutionID]bool {
	return m.executions.sweepFiles(ctx, before)
}

// PinSnapshots is another.
func (m *Manager) PinSnapshots(ctx context.Context) { m.sandboxes.pinSnapshots(ctx) }

// QueueBytes makes room for so many bytes of programs that wait.
func (m *Manager) QueueBytes(n int64) { m.executions.queuedBytes = engi.NewShares(n) }
