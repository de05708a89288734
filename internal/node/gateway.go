package node

import (
	"cmp"
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/network/egress/link"
	"github.com/engi-dev/engi/internal/network/mirror"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/store"
)

// A gateway is the egress gateway with the node's defaults and limits applied to
// every policy. It implements [fleet.Egress] and internal/network/fetch's Egress and is safe
// for concurrent use.
type gateway struct {
	*egress.Gateway
	links   *link.Pool
	secrets *secret.Service
	config  config.Network

	mu     sync.Mutex
	opened map[engi.SandboxID]bool // sandboxes that had a network at any time
}

// openGateway opens the egress gateway of sandboxes. If the host or the
// provider does not support it, it logs the reason, and sandboxes have no network.
func (n *Node) openGateway(ctx context.Context, metrics prometheus.Registerer) error {
	if engi.Network(n.config.Network.Max) == engi.NetworkNone {
		return nil
	}
	w, err := n.newGateway(ctx, metrics)
	switch {
	case err == nil:
		n.gateway = w
		n.closers.Add(func() {
			if err := w.Close(); err != nil {
				n.log.Error("close the network of sandboxes", "error", err)
			}
		})
		return nil
	case engi.Is(err, engi.Unsupported):
		n.log.Warn("sandboxes have no network", "why", err, "remedy", engi.RemedyOf(err))
		return nil
	}
	return err
}

func (n *Node) newGateway(ctx context.Context, metrics prometheus.Registerer) (_ *gateway, err error) {
	networked, ok := n.provider.(provider.Networked)
	if !ok {
		return nil, engi.Errorf(engi.Unsupported, "machines of the %s tier have no links", n.provider.Tier())
	}
	c, log := n.config.Network, n.log.With("component", "egress")
	w := &gateway{secrets: n.secrets, config: c, opened: map[engi.SandboxID]bool{}}
	o := n.config.Mirror.Options()
	o.Dir, o.Log = filepath.Join(n.config.DataDir, "mirror"), n.log.With("component", "mirror")
	if n.mirror, err = mirror.New(o); err != nil {
		return nil, err
	}
	n.closers.Add(n.mirror.Close)
	if w.links, err = link.Open(ctx, link.Options{Spare: c.Spare, Locate: networked.Netns, Log: log}); err != nil {
		return nil, err
	}
	w.Gateway, err = egress.New(egress.Options{
		Links: w.links, Store: store.Egress(n.db, c.Events, time.Duration(c.KeepAge)), Private: c.PrivatePrefixes(), Hosts: c.StaticHosts(), Resolver: c.Resolvers(),
		Limits: c.Limits.Limits(), Packages: n.mirror, Reveal: n.secrets.Reveal, Use: n.secrets.Use, Approver: n.approvals, Key: n.secrets.Derive("certificates and placeholders"),
		Metrics: metrics, Log: log,
	})
	if err != nil {
		w.links.Close()
		return nil, err
	}
	return w, nil
}

// Close closes the gateway and the pool of links. The links of running
// sandboxes stay, for the next node to adopt.
func (w *gateway) Close() error {
	err := w.Gateway.Close()
	return cmp.Or(err, w.links.Close())
}

// complete fills in the node's default for an empty policy and refuses a policy that the
// node does not allow. Every policy passes through it.
func (w *gateway) complete(p engi.NetworkPolicy) (engi.NetworkPolicy, error) {
	if err := w.secrets.Check(p); err != nil {
		return p, err
	}
	if err := w.config.Limits.Bound(p.Limits); err != nil {
		return p, err
	}
	if p.Mode == "" {
		d := w.config.Default()
		if p.Mode = d.Mode; len(p.Allow) == 0 {
			p.Allow = d.Allow
		}
		return p, nil
	}
	if !w.config.Allows(p.Mode) {
		return p, engi.Errorf(engi.Denied, "sandboxes of this node may have no network of mode %s", p.Mode).
			WithRemedy("use %s or a narrower mode; the operator may raise network.max", w.config.Max)
	}
	return p, nil
}

// Check implements [fleet.Egress].
func (w *gateway) Check(p engi.NetworkPolicy) error {
	p, err := w.complete(p)
	if err != nil || p.Mode == engi.NetworkNone && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers)+len(p.Requests) == 0 && p.Proxy == nil && p.Group == "" {
		return err
	}
	return w.Gateway.Check(p)
}

// checkNetwork reports the reason why sandboxes may not have a policy.
func (n *Node) checkNetwork(p engi.NetworkPolicy) error {
	if n.gateway == nil {
		return nil // the fleet reports that there is no network
	}
	return n.gateway.Check(p)
}

// Permit implements [fleet.Egress].
func (w *gateway) Permit(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error {
	return cmp.Or(w.Check(p), w.secrets.Permit(ctx, owner, p))
}

// Open implements [fleet.Egress].
func (w *gateway) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error) {
	p, err := w.complete(p)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	w.mu.Lock()
	was := w.opened[id]
	if p.Mode != engi.NetworkNone {
		w.opened[id] = true
	}
	w.mu.Unlock()
	if p.Mode == engi.NetworkNone && !was {
		return engi.NetworkSetup{}, nil // the usual case when a sandbox is claimed
	}
	return w.Gateway.Open(ctx, id, owner, p)
}

// Transport returns a transport whose requests for an owner are checked like those of a sandbox with
// the policy. It does not insert secrets.
func (w *gateway) Transport(owner engi.Owner, p engi.NetworkPolicy) (http.RoundTripper, error) {
	p, err := w.complete(p)
	if err != nil {
		return nil, err
	}
	return w.Gateway.Transport(owner, p)
}

// Detach implements [fleet.Egress].
func (w *gateway) Detach(ctx context.Context, id engi.SandboxID) error {
	w.mu.Lock()
	delete(w.opened, id)
	w.mu.Unlock()
	return w.Gateway.Detach(ctx, id)
}

// probeLinks reports whether network links can be created on this host, and the time
// for one.
func probeLinks(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	p, err := link.Open(ctx, link.Options{})
	if err != nil {
		return 0, err
	}
	return time.Since(began), p.Close()
}

// fleetEgress returns n.gateway as an interface, which is nil if n.gateway is nil.
func (n *Node) fleetEgress() fleet.Egress {
	if n.gateway == nil {
		return nil
	}
	return n.gateway
}

// NetworkLog returns the log of sandboxes' connections; nil if
// sandboxes have no network.
func (n *Node) NetworkLog() engi.NetworkLog {
	if n.gateway == nil {
		return nil
	}
	return n.gateway
}
