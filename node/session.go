package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/sessions"
	"github.com/engi-dev/engi/store"
)

// openSessions makes sessions, or none where the configuration has none.
func (n *Node) openSessions(ctx context.Context, metrics prometheus.Registerer) (err error) {
	n.sessions, err = sessions.Open(ctx, n.config, sessions.Options{
		Sandboxes: n.fleet.Sandboxes(), Lifecycle: n.fleet.Lifecycle(), Volumes: n.volumes, Templates: n.templates,
		Store: store.Sessions(n.db), Metrics: metrics, Log: n.log.With("room", "session"),
	})
	return err
}

// Sessions is the node's front desk of sessions; nil if it has none.
func (n *Node) Sessions() engi.Sessions {
	if n.sessions == nil {
		return nil
	}
	return n.sessions
}
