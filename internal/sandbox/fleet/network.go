package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A Wall connects sandboxes to what their policies let them reach, and to
// nothing else. It is safe for concurrent use.
type Wall interface {
	// Check reports Invalid for a policy that makes no sense, and Denied for
	// one that asks for more than the node's operator allows.
	Check(p engi.NetworkPolicy) error
	// Permit is Check for an owner's sandbox: it reports Denied for a policy
	// that sends secrets where they may not go.
	Permit(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error
	// Attach makes a network link for a machine that is about to start, and
	// returns the network namespace that has the machine's end. Nothing is
	// reachable yet.
	Attach(ctx context.Context, id engi.SandboxID) (netns string, err error)
	// Open puts a policy in force, in place of any other, and returns what
	// the guest must be told. It breaks connections that p does not allow.
	Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error)
	// Detach removes the link of a machine that is gone. It may be repeated;
	// an unknown ID is no error.
	Detach(ctx context.Context, id engi.SandboxID) error
	// Adopt takes over the links of these machines, which another process
	// attached, with nothing reachable, and removes all others.
	Adopt(ctx context.Context, ids []engi.SandboxID) error
}

// networkTime bounds how long a guest may take to be told of its network.
const networkTime = 10 * time.Second

// checkNetwork reports why this node does not accept a policy.
func (h *shared) checkNetwork(ctx context.Context, owner engi.Owner, p engi.NetworkPolicy) error {
	if h.opt.Wall != nil {
		return h.opt.Wall.Permit(ctx, owner, p)
	}
	if opens(p) {
		return engi.Errorf(engi.Unsupported, "this node has no gateway for network mode %s", p.Mode).
			WithRemedy("use none; 'engi doctor' says what the node lacks")
	}
	return nil
}

// opens reports whether a policy asks for any network at all.
func opens(p engi.NetworkPolicy) bool { return p.Mode != "" && p.Mode != engi.NetworkNone }

// attach makes a network link for a machine that is about to start, and
// returns the namespace it starts in. Every machine gets one, those of pools
// too, so that claims need not wait for it. Nothing is reachable until
// openNetwork.
func (h *shared) attach(ctx context.Context, id engi.SandboxID) (netns string, err error) {
	if h.opt.Wall == nil {
		return "", nil
	}
	return h.opt.Wall.Attach(ctx, id)
}

// detach removes the link of a machine that is gone.
func (h *shared) detach(id engi.SandboxID) {
	if h.opt.Wall == nil {
		return
	}
	ctx, cancel := h.cleanup()
	defer cancel()
	if err := h.opt.Wall.Detach(ctx, id); err != nil {
		h.log.Error("remove the link of a sandbox", "sandbox", id, "error", err)
	}
}

// openNetwork puts a policy in force and returns what the guest must be told;
// nil without a wall.
func (h *shared) openNetwork(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (*wire.NetworkSetup, error) {
	if h.opt.Wall == nil {
		return nil, nil
	}
	w, err := h.opt.Wall.Open(ctx, id, owner, p)
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

// applyNetwork puts a sandbox's changed policy in force, and reports whether it
// is. A hibernated sandbox gets it when it resumes.
func (s *sandboxes) applyNetwork(ctx context.Context, sb *sandbox) (inForce bool, err error) {
	inst := sb.instance()
	if inst == nil || s.opt.Wall == nil {
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

// tellGuest tells a guest what its network has become.
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

// refreshNetwork tells the guest of a sandbox that was paused what its network
// became in the meantime.
func (s *sandboxes) refreshNetwork(ctx context.Context, sb *sandbox) error {
	inst := sb.instance()
	if s.opt.Wall == nil || !inst.isNetworkStale() {
		return nil
	}
	setup, err := s.openNetwork(ctx, sb.id, sb.owner, sb.record().Network)
	if err != nil {
		return err
	}
	return s.tellGuest(ctx, inst, setup)
}
