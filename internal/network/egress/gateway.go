package egress

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
	"github.com/engi-dev/engi/internal/network/egress/journal"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/egress/resolve"
)

// Default limits of a sandbox. Bandwidth and total are not limited by default.
const (
	defaultConnections    = 512
	defaultNewConnections = 200
	defaultLookups        = 100
)

// A Gateway is the network boundary of one node's sandboxes. It is safe for concurrent use.
type Gateway struct {
	o           Options
	log         *slog.Logger
	journal     *journal.Journal
	metrics     *metrics
	resolver    *resolve.Resolver
	interceptor *intercept.Interceptor // nil without secrets
	groups      groups

	mu        sync.Mutex
	sandboxes map[engi.SandboxID]*sandbox // guarded by mu
	closed    bool                        // guarded by mu
}

var _ engi.NetworkLog = (*Gateway)(nil)

// New returns a Gateway without sandboxes. The caller closes it.
func New(o Options) (*Gateway, error) {
	if o.Links == nil || o.Store == nil {
		return nil, engi.Errorf(engi.Invalid, "a gateway needs links and a store")
	}
	if o.Mode == "" {
		o.Mode = engi.NetworkNone
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.DialTimeout = cmp.Or(o.DialTimeout, 15*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 15*time.Minute)
	o.DatagramTimeout = cmp.Or(o.DatagramTimeout, time.Minute)
	o.ClaimTimeout = cmp.Or(o.ClaimTimeout, 10*time.Second)
	g := &Gateway{o: o, log: o.Log, sandboxes: make(map[engi.SandboxID]*sandbox), resolver: resolve.New(o.Resolver)}
	if o.Reveal != nil {
		var err error
		if g.interceptor, err = intercept.New(intercept.Options{
			Key: o.Key, Reveal: o.Reveal, Use: o.Use, Approver: o.Approver, Dial: g.dialHost, Events: g.intercepted, Roots: o.Roots, IdleTimeout: o.IdleTimeout, Log: o.Log,
		}); err != nil {
			return nil, err
		}
	}
	g.journal = journal.New(o.Store, o.Log)
	var err error
	if g.metrics, err = newMetrics(o.Metrics, func() float64 { return float64(g.journal.Lost()) }); err != nil {
		g.journal.Close()
		return nil, err
	}
	return g, nil
}

// Close shuts the network of every sandbox and waits until all connections have
// ended. Links stay.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	sandboxes := g.sandboxes
	g.sandboxes = make(map[engi.SandboxID]*sandbox)
	g.mu.Unlock()
	for _, s := range sandboxes {
		s.detach()
	}
	var err error
	if g.interceptor != nil {
		err = g.interceptor.Close()
	}
	g.journal.Close()
	return err
}

// node returns the description of the node for which policies are compiled. It reads the host's addresses each
// time, because they change.
func (g *Gateway) node() policy.Node {
	n := policy.Node{Default: g.o.Mode, Private: g.o.Private, Hosts: g.o.Hosts}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		g.log.Warn("read the addresses of this host", "error", err)
	}
	n.Own, n.Near = policy.HostNetworks(addrs)
	if g.o.Packages != nil && g.interceptor != nil {
		n.Packages = g.o.Packages.Hosts()
	}
	return n
}

// Check returns an error unless a policy can be put in force.
func (g *Gateway) Check(p engi.NetworkPolicy) error {
	_, err := g.compile(p)
	return err
}

func (g *Gateway) compile(p engi.NetworkPolicy) (*policy.Policy, error) {
	if len(p.Grants)+len(p.Headers)+len(p.Requests) > 0 && g.interceptor == nil {
		return nil, engi.Errorf(engi.Unsupported, "this node has no secrets to grant").WithRemedy("leave out grants, header rules and request rules")
	}
	asks := func(r engi.RequestRule) bool { return r.Action.Asks() }
	if g.o.Approver == nil && (slices.ContainsFunc(p.Requests, asks) ||
		slices.ContainsFunc(p.Grants, func(g engi.Grant) bool { return slices.ContainsFunc(g.Requests, asks) })) {
		return nil, engi.Errorf(engi.Unsupported, "a request rule needs approvals, but this node has no approvals").WithRemedy("let the rule allow or deny")
	}
	return policy.Compile(p, g.node())
}

// sandbox returns the state of a sandbox, or nil if there is none. Unless link is
// nil, it creates a missing state, whose network is shut.
func (g *Gateway) sandbox(id engi.SandboxID, link Link) (*sandbox, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, engi.Errorf(engi.Unavailable, "network of %s: this node is closing", id)
	}
	s := g.sandboxes[id]
	if s == nil && link != nil {
		s = &sandbox{g: g, id: id, link: link, conns: make(map[*conn]struct{}), log: g.journal.NewLog()}
		g.sandboxes[id] = s
	}
	return s, nil
}

// Attach gives a sandbox that is about to start a link, and returns the path of
// its network namespace. Its network is shut until Open.
func (g *Gateway) Attach(ctx context.Context, id engi.SandboxID) (netns string, err error) {
	defer engi.Annotate(&err, "attach %s to the network", id)
	link, err := g.o.Links.Take(ctx, id)
	if err != nil {
		return "", err
	}
	if _, err := g.sandbox(id, link); err != nil {
		link.Close()
		return "", err
	}
	return link.Netns(), nil
}

// Open puts a policy in force for a sandbox, in place of the current one if there
// is one. It closes connections that the policy does not allow.
func (g *Gateway) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (_ engi.NetworkSetup, err error) {
	defer engi.Annotate(&err, "open the network of %s", id)
	compiled, err := g.compile(p)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	s, err := g.sandbox(id, nil)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	if compiled.Mode() == engi.NetworkNone {
		if s != nil {
			s.shut()
		}
		return engi.NetworkSetup{}, nil
	}
	if s == nil {
		link, err := g.o.Links.Find(ctx, id)
		if err != nil {
			return engi.NetworkSetup{}, err
		}
		if s, err = g.sandbox(id, link); err != nil {
			return engi.NetworkSetup{}, err
		}
	}
	return s.open(owner, compiled)
}

// Shut closes all connections of a sandbox and allows no new ones until Open.
func (g *Gateway) Shut(id engi.SandboxID) {
	if s, err := g.sandbox(id, nil); err == nil && s != nil {
		s.shut()
	}
}

// Detach removes the link of a sandbox. A missing link is not an error.
func (g *Gateway) Detach(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "detach %s from the network", id)
	g.mu.Lock()
	s := g.sandboxes[id]
	delete(g.sandboxes, id)
	g.mu.Unlock()
	var link Link
	if s != nil {
		s.detach()
		link = s.link
	} else if link, err = g.o.Links.Find(ctx, id); err != nil {
		return engi.Ignore(err, engi.NotFound)
	}
	return link.Close()
}

// Adopt takes over the links of sandboxes that an earlier process started, and
// removes all other links. The networks of the adopted sandboxes are shut until Open.
func (g *Gateway) Adopt(ctx context.Context, ids []engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "adopt the network of %d sandboxes", len(ids))
	g.mu.Lock()
	var gone []*sandbox
	for id, s := range g.sandboxes {
		if !slices.Contains(ids, id) {
			gone = append(gone, s)
			delete(g.sandboxes, id)
		}
	}
	g.mu.Unlock()
	for _, s := range gone {
		s.detach()
	}
	if err := g.o.Links.Retain(ctx, ids); err != nil {
		return err
	}
	for _, id := range ids {
		link, err := g.o.Links.Find(ctx, id)
		if engi.Is(err, engi.NotFound) {
			continue // the sandbox has no network
		}
		if err != nil {
			return err
		}
		if _, err := g.sandbox(id, link); err != nil {
			return err
		}
	}
	return nil
}

// Events implements engi.NetworkLog.
func (g *Gateway) Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int, wait bool) ([]engi.NetworkRecord, error) {
	return g.journal.Events(ctx, viewer, id, seq, limit, wait)
}

// intercepted logs a decision of package intercept.
func (g *Gateway) intercepted(e engi.NetworkRecord) {
	g.metrics.decided(e)
	g.mu.Lock()
	s := g.sandboxes[e.Sandbox]
	g.mu.Unlock()
	if s != nil {
		s.log.Add(e)
	}
}

// limits fills in the fields that a policy leaves zero. Negative fields, which mean no
// limit, become zero.
func (g *Gateway) limits(l engi.NetworkLimits) engi.NetworkLimits {
	o := g.o.Limits
	fill := func(v, node, usual int64) int64 { return max(cmp.Or(v, node, usual), 0) }
	return engi.NetworkLimits{
		Up:             fill(l.Up, o.Up, 0),
		Down:           fill(l.Down, o.Down, 0),
		Connections:    int(fill(int64(l.Connections), int64(o.Connections), defaultConnections)),
		NewConnections: int(fill(int64(l.NewConnections), int64(o.NewConnections), defaultNewConnections)),
		Lookups:        int(fill(int64(l.Lookups), int64(o.Lookups), defaultLookups)),
		Total:          fill(l.Total, o.Total, 0),
	}
}
