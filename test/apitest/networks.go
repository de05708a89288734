package apitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// Networks is a fake network log, which tests write with Add. It is safe for
// concurrent use.
type Networks struct {
	s *Sandboxes

	mu      sync.Mutex
	events  map[engi.SandboxID][]engi.NetworkRecord // guarded by mu
	changed chan struct{}                           // closed and replaced by Add; guarded by mu
}

var _ engi.NetworkLog = (*Networks)(nil)

// NewNetworks returns an empty log.
func NewNetworks(s *Sandboxes) *Networks {
	return &Networks{s: s, events: map[engi.SandboxID][]engi.NetworkRecord{}, changed: make(chan struct{})}
}

// Add appends events. It sets their sandbox, owner and time.
func (n *Networks) Add(ctx context.Context, id engi.SandboxID, events ...engi.NetworkRecord) error {
	b, err := n.s.Get(ctx, engi.Everyone, id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range events {
		e.Sandbox, e.Owner, e.Time, e.Seq = id, b.Owner, time.Now().UTC(), int64(len(n.events[id])+1)
		n.events[id] = append(n.events[id], e)
	}
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

// Events returns the events after seq.
func (n *Networks) Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int, wait bool) ([]engi.NetworkRecord, error) {
	if limit == 0 {
		limit = 1000
	}
	if _, err := n.s.Get(ctx, viewer, id); err != nil {
		return nil, err
	}
	for {
		n.mu.Lock()
		changed, all := n.changed, n.events[id]
		n.mu.Unlock()
		list := slices.Clone(all[min(seq, int64(len(all))):])
		if list = list[:min(limit, len(list))]; len(list) > 0 || !wait {
			return list, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// checkNetwork validates a policy as on a node without a network configuration.
func checkNetwork(p engi.NetworkPolicy) error {
	_, err := policy.Compile(p, policy.Node{})
	return err
}
