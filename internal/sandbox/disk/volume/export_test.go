package volume

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
)

// SetListed bounds listings to n entries. Call it before the manager is used.
func (m *Manager) SetListed(n int) { m.maxListed = n }

// Growth returns the remaining growth of all volumes, both as kept in memory and as measured for
// each volume.
func (m *Manager) Growth(ctx context.Context) (told, is int64, err error) {
	all, err := m.o.Store.List(ctx, engi.Everyone, Filter{})
	for _, r := range all {
		is += max(0, r.Capacity-m.allocated(r))
	}
	return m.growth(), is, err
}
