package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/store"
	"github.com/engi-dev/engi/studio"
)

// openStudio opens the service of apps that models write. Their sandboxes reach the
// registries of packages and nothing else, unless the node has no network.
func (n *Node) openStudio(metrics prometheus.Registerer) {
	network := engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"packages"}}
	if n.wall == nil || engi.Network(n.config.Network.Max) == engi.NetworkNone || engi.Network(n.config.Network.Max) == engi.NetworkIsolated {
		network = engi.NetworkPolicy{Mode: engi.NetworkNone}
	}
	n.apps = studio.New(studio.Options{
		Store: store.Apps(n.db), Events: store.Events(n.db), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Log: n.log.With("component", "studio"),
		Metrics: metrics, Network: network, MaxAwake: time.Duration(n.config.Sandboxes.Max),
		Lifecycle: n.fleet.Lifecycle(), Health: time.Duration(n.config.Studio.Health), Alerts: n.config.Studio,
	})
}

// Apps keeps apps that models write.
func (n *Node) Apps() engi.Apps { return n.apps }
