package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// An Egress connects sandboxes to the hosts that their policies allow, and to
// no others. It is safe for concurrent use.
type Egress interface {
	// Check returns Invalid for an invalid policy, and Denied for
	// a policy that exceeds the bounds set by the node's operator.
	Check(p engi.NetworkPolicy) error
	// Permit is Check for an owner's sandbox: it also returns Denied for a policy
	// that sends secrets to hosts for which they are not meant.
	Permit(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error
	// Attach makes a network link for a machine that is about to start, and
	// returns the network namespace that has the machine's end. Nothing is
	// reachable yet.
	Attach(ctx context.Context, id engi.SandboxID) (netns string, err error)
	// Open replaces the policy in force, and returns the network setup for
	// the guest. It breaks connections that p does not allow.
	Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error)
	// Detach removes the link of a destroyed machine. It may be repeated;
	// an unknown ID is no error.
	Detach(ctx context.Context, id engi.SandboxID) error
	// Adopt takes over the links of the given machines, which another process
	// attached, blocks all their traffic, and removes all other links.
	Adopt(ctx context.Context, ids []engi.SandboxID) error
}

// networkTime is the maximum time for sending a guest its network setup.
const networkTime = 10 * time.Second

// checkNetwork returns the reason why this node rejects a policy, or nil.
func (h *shared) checkNetwork(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error {
	if h.opt.Egress != nil {
		return h.opt.Egress.Permit(ctx, owner, p)
	}
	if opens(p) {
		return engi.Errorf(engi.Unsupported, "this node has no gateway for network mode %s", p.Mode).
			WithRemedy("use network mode none; 'engi doctor' shows what the node lacks")
	}
	return nil
}

// opens reports whether a policy requests any network.
func opens(p engi.NetworkPolicy) bool { return p.Mode != "" && p.Mode != engi.NetworkNone }

// attach makes a network link for a machine that is about to start, and
// returns the namespace in which the machine starts. Every machine gets a link, those of pools
// too, so that claims need not wait for one. Nothing is reachable until
// openNetwork.
func (h *shared) attach(ctx context.Context, id engi.SandboxID) (netns string, err error) {
	if h.opt.Egress == nil {
		return "", nil
	}
	return h.opt.Egress.Attach(ctx, id)
}

// detach removes the link of a destroyed machine.
func (h *shared) detach(id engi.SandboxID) {
	if h.opt.Egress == nil {
		return
	}
	ctx, cancel := h.cleanup()
	defer cancel()
	if err := h.opt.Egress.Detach(ctx, id); err != nil {
		h.log.Error("remove the link of a sandbox", "sandbox", id, "error", err)
	}
}

// openNetwork puts a policy in force and returns the network setup for the guest;
// nil without an egress gateway.
func (h *shared) openNetwork(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (*wire.NetworkSetup, error) {
	if h.opt.Egress == nil {
		return nil, nil
	}
	w, err := h.opt.Egress.Open(ctx, id, owner, p)
	if err != nil {
		return nil, err
	}
	return wireNetwork(w), nil
}

func wireNetwork(w engi.NetworkSetup) *wire.NetworkSetup {
	setup := &wire.NetworkSetup{Search: w.Search, Authority: w.Authority, Env: w.Env}
	if w.Resolver.IsValid() {
		setup.Resolver = w.Resolver.String()
	}
	return setup
}

// applyNetwork puts a sandbox's changed policy in force, and reports whether it is
// in force now. A hibernated sandbox gets it when it resumes.
func (s *sandboxes) applyNetwork(ctx context.Context, sb *sandbox) (inForce bool, err error) {
	inst := sb.instance()
	if inst == nil || s.opt.Egress == nil {
		return true, nil
	}
	rec := sb.record()
	setup, err := s.openNetwork(ctx, sb.id, sb.owner, rec.Network)
	if err != nil {
		return false, err
	}
	if rec.State != engi.Running {
		inst.setNetworkStale(true)
		return true, nil
	}
	return true, s.tellGuest(ctx, inst, setup)
}

// tellGuest sends a guest its changed network setup.
func (s *sandboxes) tellGuest(ctx context.Context, inst *instance, setup *wire.NetworkSetup) error {
	inst.setNetworkStale(true)
	g := inst.client()
	if g == nil {
		return engi.Errorf(engi.Unavailable, "sandbox %s does not answer", inst.rec.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, networkTime)
	defer cancel()
	if err := g.Setup(ctx, wire.Setup{Network: setup}); err != nil {
		return engi.Errorf(engi.KindOf(err), "the policy is in force, but the sandbox could not be told: %w", err).
			WithRemedy("set it again")
	}
	inst.setNetworkStale(false)
	return nil
}

// refreshNetwork sends the guest of a resumed sandbox the network setup if it
// changed during the pause.
func (s *sandboxes) refreshNetwork(ctx context.Context, sb *sandbox) error {
	inst := sb.instance()
	if s.opt.Egress == nil || !inst.isNetworkStale() {
		return nil
	}
	setup, err := s.openNetwork(ctx, sb.id, sb.owner, sb.record().Network)
	if err != nil {
		return err
	}
	return s.tellGuest(ctx, inst, setup)
}
