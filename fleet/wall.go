package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/provider"
)

// A Wall connects sandboxes to what their policies let them reach, and to
// nothing else. It is safe for concurrent use.
type Wall interface {
	// Check reports Invalid for a policy that makes no sense, Denied for
	// one that asks for more than the node's operator opened.
	Check(p engi.NetworkPolicy) error
	// Attach gives a machine that is going to start its end of a link and
	// returns the network namespace that has it. Nothing is reachable yet.
	Attach(ctx context.Context, id engi.SandboxID) (netns string, err error)
	// Open puts a policy in force, instead of the one before, and returns
	// what the sandbox needs inside. Connections that p does not allow break.
	Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error)
	// Shut makes nothing reachable, and keeps the link.
	Shut(id engi.SandboxID)
	// Detach removes the link of a machine that is gone. It may be repeated,
	// and is no error for an unknown ID.
	Detach(ctx context.Context, id engi.SandboxID) error
	// Adopt takes over the links of these machines, which another process
	// attached, with nothing reachable, and removes all others.
	Adopt(ctx context.Context, ids []engi.SandboxID) error
}

// checkNetwork reports what is wrong with a policy, for this node.
func (m *Manager) checkNetwork(p engi.NetworkPolicy) error {
	if p.Mode != "" && !slices.Contains(engi.Networks(), p.Mode) {
		return engi.Errorf(engi.Invalid, "unknown network mode %.40q", p.Mode).WithRemedy("use none, isolated, restricted or open")
	}
	if n := len(p.Allow) + len(p.Deny); n > maxRules {
		return engi.Errorf(engi.Invalid, "a network policy has %d rules, %d at most", n, maxRules)
	}
	for _, list := range [][]string{p.Allow, p.Deny} {
		for _, rule := range list {
			if rule == "" || len(rule) > maxKeyed || !validText(rule) {
				return engi.Errorf(engi.Invalid, "network rule %.80q is no name, address or network", rule)
			}
		}
	}
	if m.opt.Wall != nil {
		return m.opt.Wall.Check(p)
	}
	if opens(p) {
		return engi.Errorf(engi.Unsupported, "this node has no gateway for network mode %s", p.Mode).
			WithRemedy("use none; 'engi doctor' tells what the node lacks")
	}
	return nil
}

// opens reports whether a policy asks for any network at all.
func opens(p engi.NetworkPolicy) bool { return p.Mode != "" && p.Mode != engi.NetworkNone }

// attach gives a machine that is going to start a link, and returns the
// namespace it starts in. Every machine gets one, those that wait in a pool
// too: nothing that a claim waits for is left to do, and nothing is reachable
// until the wall is opened.
func (m *Manager) attach(ctx context.Context, id engi.SandboxID) (netns string, err error) {
	if m.opt.Wall == nil {
		return "", nil
	}
	return m.opt.Wall.Attach(ctx, id)
}

// detach takes the link from a machine that is gone.
func (m *Manager) detach(id engi.SandboxID) {
	if m.opt.Wall == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 10*time.Second)
	defer cancel()
	if err := m.opt.Wall.Detach(ctx, id); err != nil {
		m.log.Error("remove the link of a sandbox", "sandbox", id, "error", err)
	}
}

// remove destroys a machine that nobody adopted, and takes its link.
func (m *Manager) remove(ctx context.Context, p provider.Provider, id engi.SandboxID) error {
	err := p.Remove(ctx, id)
	m.detach(id)
	return err
}

// openWall puts a policy in force and returns what the guest must be told;
// nil without a wall.
func (m *Manager) openWall(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (*wire.NetworkSetup, error) {
	if m.opt.Wall == nil {
		return nil, nil
	}
	w, err := m.opt.Wall.Open(ctx, id, owner, p)
	if err != nil {
		return nil, err
	}
	wiring := &wire.NetworkSetup{Search: w.Search, Authority: w.Authority, Env: w.Env}
	if w.Resolver.IsValid() {
		wiring.Resolver = w.Resolver.String()
	}
	return wiring, nil
}

// enforce puts a box's policy in force after it changed, and reports whether
// it is. A box that sleeps gets it when it wakes.
func (m *Manager) enforce(ctx context.Context, x *sandbox) (inForce bool, err error) {
	b := x.machine()
	if b == nil || m.opt.Wall == nil {
		return true, nil
	}
	rec := x.record()
	wiring, err := m.openWall(ctx, x.id, x.owner, rec.Network)
	if err != nil {
		return false, err
	}
	if rec.State != engi.Running {
		b.setUnwired(true)
		return true, nil
	}
	return true, m.rewire(ctx, b, wiring)
}

// rewire tells a guest what its network has become.
func (m *Manager) rewire(ctx context.Context, b *instance, wiring *wire.NetworkSetup) error {
	b.setUnwired(true)
	g := b.way()
	if g == nil {
		return engi.Errorf(engi.Unavailable, "sandbox %s does not answer", b.rec.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, wireTime)
	defer cancel()
	if err := g.Setup(ctx, wire.Setup{Wiring: wiring}); err != nil {
		return engi.Errorf(engi.KindOf(err), "the policy is in force, but the sandbox was not told: %w", err).
			WithRemedy("set it again")
	}
	b.setUnwired(false)
	return nil
}

// catchUp tells the guest of a box that was frozen what its network became
// meanwhile.
func (m *Manager) catchUp(ctx context.Context, x *sandbox) error {
	b := x.machine()
	if m.opt.Wall == nil || !b.isUnwired() {
		return nil
	}
	wiring, err := m.openWall(ctx, x.id, x.owner, x.record().Network)
	if err != nil {
		return err
	}
	return m.rewire(ctx, b, wiring)
}

// wireTime bounds how long a guest may take to be told of its network.
const wireTime = 10 * time.Second

func (b *instance) setUnwired(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwired = is
}

func (b *instance) isUnwired() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unwired
}

// adoptLinks takes over the links of all machines that may run.
func (m *Manager) adoptLinks(ctx context.Context, recorded []SandboxRecord) error {
	if m.opt.Wall == nil {
		return nil
	}
	var ids []engi.SandboxID
	for _, s := range recorded {
		if s.State != engi.Hibernated {
			ids = append(ids, s.ID)
		}
	}
	return m.opt.Wall.Adopt(ctx, ids)
}

// linked reports whether a machine that waits has a link, if it should.
func (m *Manager) linked(ctx context.Context, s SandboxRecord) bool {
	w, ok := m.providerOf(s.Tier).(provider.Networked)
	if m.opt.Wall == nil || !ok {
		return true
	}
	_, err := w.Netns(ctx, s.ID)
	return err == nil
}
