package egress

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/intercept"
	"github.com/engi-dev/engi/gate/egress/journal"
	"github.com/engi-dev/engi/gate/egress/policy"
	"github.com/engi-dev/engi/gate/egress/resolve"
)

// Limits of a sandbox where neither its policy nor the operator sets any.
// Bandwidth and total are unlimited then.
const (
	usualConnections = 512
	usualNew         = 200
	usualLookups     = 100
)

// A Gateway is the wall of one node. It is safe for concurrent use.
type Gateway struct {
	o        Options
	log      *slog.Logger
	journal  *journal.Journal
	metrics  *metrics
	resolver *resolve.Resolver
	over     *intercept.Interceptor // nil if there are no secrets
	groups   groups

	mu     sync.Mutex
	rooms  map[engi.SandboxID]*sandbox // guarded by mu
	closed bool                        // guarded by mu
}

var _ engi.NetworkLog = (*Gateway)(nil)

// New returns a Gateway of no sandbox. The caller calls Close.
func New(o Options) (*Gateway, error) {
	if o.Slots == nil || o.Store == nil {
		return nil, engi.Errorf(engi.Invalid, "a gateway needs slots and a store")
	}
	if o.Mode == "" {
		o.Mode = engi.NetworkNone
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Dial = cmp.Or(o.Dial, 15*time.Second)
	o.Idle = cmp.Or(o.Idle, 15*time.Minute)
	o.Flow = cmp.Or(o.Flow, time.Minute)
	o.Claim = cmp.Or(o.Claim, 10*time.Second)
	g := &Gateway{o: o, log: o.Log, rooms: make(map[engi.SandboxID]*sandbox), resolver: resolve.New(o.Resolver)}
	if o.Reveal != nil {
		var err error
		if g.over, err = intercept.New(intercept.Options{
			Key: o.Key, Reveal: o.Reveal, Dial: g.dialHost, Events: g.intercepted, Roots: o.Roots, Idle: o.Idle, Log: o.Log,
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

// Close shuts every sandbox, keeps their links, and waits.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	rooms := g.rooms
	g.rooms = make(map[engi.SandboxID]*sandbox)
	g.mu.Unlock()
	for _, r := range rooms {
		r.leaveForGood()
	}
	var err error
	if g.over != nil {
		err = g.over.Close()
	}
	g.journal.Close()
	return err
}

// node is what policies are compiled for. The host's own addresses are asked
// for anew, because they change.
func (g *Gateway) node() policy.Node {
	n := policy.Node{Default: g.o.Mode, Private: g.o.Private, Hosts: g.o.Hosts}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		g.log.Warn("the addresses of this host are unknown", "error", err)
	}
	n.Own, n.Near = policy.HostNetworks(addrs)
	return n
}

// Check implements fleet's Wall.
func (g *Gateway) Check(p engi.NetworkPolicy) error {
	_, err := g.compile(p)
	return err
}

func (g *Gateway) compile(p engi.NetworkPolicy) (*policy.Policy, error) {
	if len(p.Grants)+len(p.Headers) > 0 {
		if g.over == nil {
			return nil, engi.Errorf(engi.Unsupported, "this node has no secrets to grant").WithRemedy("leave grants and header rules out")
		}
		if err := intercept.Check(p); err != nil {
			return nil, err
		}
	}
	return policy.Compile(p, g.node())
}

// room returns the room of a sandbox; with link, it makes one that is shut.
func (g *Gateway) room(id engi.SandboxID, slot Link) (*sandbox, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, engi.Errorf(engi.Unavailable, "network of %s: this node is closing", id)
	}
	r := g.rooms[id]
	if r == nil && slot != nil {
		r = &sandbox{g: g, id: id, slot: slot, conns: make(map[*conn]struct{}), page: g.journal.Page()}
		g.rooms[id] = r
	}
	return r, nil
}

// Attach implements fleet's Wall.
func (g *Gateway) Attach(ctx context.Context, id engi.SandboxID) (netns string, err error) {
	defer engi.Annotate(&err, "attach %s to the network", id)
	slot, err := g.o.Slots.Take(ctx, id)
	if err != nil {
		return "", err
	}
	if _, err := g.room(id, slot); err != nil {
		slot.Close()
		return "", err
	}
	return slot.Netns(), nil
}

// Open implements fleet's Wall.
func (g *Gateway) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (_ engi.NetworkSetup, err error) {
	defer engi.Annotate(&err, "open the network of %s", id)
	compiled, err := g.compile(p)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	r, err := g.room(id, nil)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	if compiled.Mode() == engi.NetworkNone {
		if r != nil {
			r.shut()
		}
		return engi.NetworkSetup{}, nil
	}
	if r == nil {
		slot, err := g.o.Slots.Find(ctx, id)
		if err != nil {
			return engi.NetworkSetup{}, err
		}
		if r, err = g.room(id, slot); err != nil {
			return engi.NetworkSetup{}, err
		}
	}
	return r.open(owner, compiled)
}

// Shut implements fleet's Wall.
func (g *Gateway) Shut(id engi.SandboxID) {
	if r, err := g.room(id, nil); err == nil && r != nil {
		r.shut()
	}
}

// Detach implements fleet's Wall.
func (g *Gateway) Detach(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "detach %s from the network", id)
	g.mu.Lock()
	r := g.rooms[id]
	delete(g.rooms, id)
	g.mu.Unlock()
	var slot Link
	if r != nil {
		r.leaveForGood()
		slot = r.slot
	} else if slot, err = g.o.Slots.Find(ctx, id); err != nil {
		if engi.KindOf(err) == engi.NotFound {
			return nil
		}
		return err
	}
	return slot.Close()
}

// Adopt implements fleet's Wall.
func (g *Gateway) Adopt(ctx context.Context, ids []engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "adopt the network of %d sandboxes", len(ids))
	g.mu.Lock()
	var gone []*sandbox
	for id, r := range g.rooms {
		if !slices.Contains(ids, id) {
			gone = append(gone, r)
			delete(g.rooms, id)
		}
	}
	g.mu.Unlock()
	for _, r := range gone {
		r.leaveForGood()
	}
	if err := g.o.Slots.Retain(ctx, ids); err != nil {
		return err
	}
	for _, id := range ids {
		slot, err := g.o.Slots.Find(ctx, id)
		if engi.KindOf(err) == engi.NotFound && err != nil {
			continue // it has no network
		}
		if err != nil {
			return err
		}
		if _, err := g.room(id, slot); err != nil {
			return err
		}
	}
	return nil
}

// Events implements engi.NetworkLog.
func (g *Gateway) Events(ctx context.Context, owner engi.Owner, id engi.SandboxID, seq int64, limit int, wait bool) ([]engi.NetworkEvent, error) {
	return g.journal.Events(ctx, owner, id, seq, limit, wait)
}

// intercepted writes down what package intercept decided.
func (g *Gateway) intercepted(e engi.NetworkEvent) {
	g.metrics.decided(e)
	g.mu.Lock()
	r := g.rooms[e.Sandbox]
	g.mu.Unlock()
	if r != nil {
		r.page.Add(e)
	}
}

// limits fills in what a policy leaves open. Negative fields, which mean no
// limit, become zero.
func (g *Gateway) limits(l engi.NetworkLimits) engi.NetworkLimits {
	o := g.o.Limits
	fill := func(v, node, usual int64) int64 { return max(cmp.Or(v, node, usual), 0) }
	return engi.NetworkLimits{
		Up:             fill(l.Up, o.Up, 0),
		Down:           fill(l.Down, o.Down, 0),
		Connections:    int(fill(int64(l.Connections), int64(o.Connections), usualConnections)),
		NewConnections: int(fill(int64(l.NewConnections), int64(o.NewConnections), usualNew)),
		Lookups:        int(fill(int64(l.Lookups), int64(o.Lookups), usualLookups)),
		Total:          fill(l.Total, o.Total, 0),
	}
}
