// Package wall assembles the wall of a node from its configuration: where its
// links come from, what sandboxes without a policy of their own may reach,
// which secrets there are. Only package node uses it.
package wall

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress"
	"github.com/engi-dev/engi/gate/egress/link"
	"github.com/engi-dev/engi/gate/secret"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/provider"
)

// Rooms are those of the node that the wall needs.
type Options struct {
	Provider provider.Provider // whose machines it connects
	Store    egress.Store
	Secrets  *secret.Service
	Metrics  prometheus.Registerer
	Log      *slog.Logger
}

// A Wall is a node's. It is safe for concurrent use.
type Wall struct {
	*egress.Gateway
	links   *link.Pool
	secrets *secret.Service
	config  config.Network

	mu     sync.Mutex
	opened map[engi.SandboxID]bool // may be more than shut
}

// Open makes the wall of c. It reports Unsupported, with a remedy, where there
// can be none. The caller closes it.
func Open(ctx context.Context, c config.Config, r Options) (_ *Wall, err error) {
	wired, ok := r.Provider.(provider.Networked)
	if !ok {
		return nil, engi.Errorf(engi.Unsupported, "machines of the %s tier have no links", r.Provider.Tier())
	}
	w := &Wall{secrets: r.Secrets, config: c.Network, opened: map[engi.SandboxID]bool{}}
	if w.links, err = link.Open(ctx, link.Options{Spare: c.Network.Spare, Locate: wired.Netns, Log: r.Log}); err != nil {
		return nil, err
	}
	w.Gateway, err = egress.New(egress.Options{
		Links: w.links, Store: r.Store, Private: c.Network.PrivatePrefixes(), Hosts: c.Network.StaticHosts(), Resolver: c.Network.Resolvers(),
		Limits: c.Network.Limits.Limits(), Reveal: r.Secrets.Reveal, Key: r.Secrets.Derive("certificates and placeholders"),
		Metrics: r.Metrics, Log: r.Log,
	})
	if err != nil {
		w.links.Close()
		return nil, err
	}
	return w, nil
}

// Close shuts every sandbox and lets go of the links; those of sandboxes that
// run stay, for the next node to adopt.
func (w *Wall) Close() error {
	err := w.Gateway.Close()
	return cmp.Or(err, w.links.Close())
}

// complete fills in what a policy leaves to the node, and refuses what the node
// does not allow. Every policy goes through it.
func (w *Wall) complete(p engi.NetworkPolicy) (engi.NetworkPolicy, error) {
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
			WithRemedy("use %s or a narrower one; the operator may raise network.max", w.config.Max)
	}
	return p, nil
}

// Check implements fleet's Wall.
func (w *Wall) Check(p engi.NetworkPolicy) error {
	p, err := w.complete(p)
	if err != nil || p.Mode == engi.NetworkNone && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers) == 0 && p.Proxy == nil && p.Group == "" {
		return err
	}
	return w.Gateway.Check(p)
}

// Open implements fleet's Wall.
func (w *Wall) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error) {
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
		return engi.NetworkSetup{}, nil // most sandboxes, when they are claimed
	}
	return w.Gateway.Open(ctx, id, owner, p)
}

// Transport carries requests on an owner's behalf as a sandbox with the policy
// would; secrets are not put into them.
func (w *Wall) Transport(owner engi.Owner, p engi.NetworkPolicy) (http.RoundTripper, error) {
	p, err := w.complete(p)
	if err != nil {
		return nil, err
	}
	return w.Gateway.Transport(owner, p)
}

// Detach implements fleet's Wall.
func (w *Wall) Detach(ctx context.Context, id engi.SandboxID) error {
	w.mu.Lock()
	delete(w.opened, id)
	w.mu.Unlock()
	return w.Gateway.Detach(ctx, id)
}

// Probe reports whether links can be made on this host, and how long one took.
func Probe(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	s, err := link.Open(ctx, link.Options{})
	if err != nil {
		return 0, err
	}
	return time.Since(began), s.Close()
}
