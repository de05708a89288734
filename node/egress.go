package node

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet"
	"github.com/engi-dev/engi/node/wall"
	"github.com/engi-dev/engi/store"
)

// openWall makes the wall around sandboxes, or says why they have no network.
func (n *Node) openWall(ctx context.Context, metrics prometheus.Registerer) error {
	c := n.config.Network
	if engi.Network(c.Max) == engi.NetworkNone {
		return nil // nobody may have any: links would be for nothing
	}
	w, err := wall.Open(ctx, n.config, wall.Options{
		Provider: n.provider, Store: store.Egress(n.db, c.Events, time.Duration(c.KeepAge)), Secrets: n.secrets,
		Metrics: metrics, Log: n.log.With("room", "egress"),
	})
	switch {
	case err == nil:
		n.wall = w
		n.closers.add(func() {
			if err := w.Close(); err != nil {
				n.log.Error("close the wall", "err", err)
			}
		})
		return nil
	case engi.KindOf(err) == engi.Unsupported:
		n.log.Warn("sandboxes have no network", "why", err, "remedy", engi.RemedyOf(err))
		return nil
	}
	return err
}

// fleetWall is the wall as the fleet takes it; nil if there is none.
func (n *Node) fleetWall() fleet.Wall {
	if n.wall == nil {
		return nil
	}
	return n.wall
}

// networkLog is what remembers the wall's decisions; nil if there is none.
func (n *Node) networkLog() engi.NetworkLog {
	if n.wall == nil {
		return nil
	}
	return n.wall
}

// Lifecycle is the front desk of what freezes, saves and copies sandboxes.
func (n *Node) Lifecycle() engi.Lifecycle { return n.fleet.Lifecycle() }
