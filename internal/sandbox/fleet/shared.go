package fleet

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// shared holds the state that all parts of a Manager use.
type shared struct {
	opt     Options
	bounds  engi.Bounds // bounds of requests
	log     *slog.Logger
	files   files
	catalog *catalog
	metrics *metrics

	// life ends when the Manager stops following runs and sandboxes. Run sets it
	// before any request is served.
	life context.Context
	work sync.WaitGroup // all goroutines except the loops of Run

	spawning sync.Mutex  // orders work.Go before work.Wait; held briefly
	serving  atomic.Bool // changed while spawning is held
}

var (
	errNotServing = engi.Errorf(engi.Unavailable, "the node does not accept work at the moment").WithRemedy("it is starting or stopping: try again in a moment")
	errStopping   = engi.Errorf(engi.Unavailable, "the node is stopping; running programs continue").WithRemedy("ask again when the node is back")
)

// serve sets whether requests are accepted.
func (h *shared) serve(yes bool) {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	h.serving.Store(yes)
}

// spawn runs f in a goroutine for which Run waits. It returns false, without
// running f, if the node is not serving.
func (h *shared) spawn(f func()) bool {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	if !h.serving.Load() {
		return false
	}
	h.work.Go(f)
	return true
}

// cleanupTime is the maximum time of one cleanup.
const cleanupTime = 10 * time.Second

// cleanup returns a context for work that must be done even if its caller
// has left or the node is stopping.
func (h *shared) cleanup() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(h.life), cleanupTime)
}

// providerOf returns the provider of a tier.
func (h *shared) providerOf(t engi.Tier) provider.Provider {
	for _, p := range h.opt.Providers {
		if p.Tier() == t {
			return p
		}
	}
	return h.opt.Providers[0] // unreachable: tiers of keys and records come from providers
}

// size returns the size of sandboxes of t, unless a request sets another.
func (h *shared) size(t engi.Template) engi.Size { return t.Size.Or(h.opt.Defaults.Size) }

// notEnforced returns the names of the limits that the tier cannot enforce on this host.
func (h *shared) notEnforced(t engi.Tier) []string {
	if e, ok := h.providerOf(t).(provider.Enforcer); ok {
		return e.NotEnforced()
	}
	return nil
}

// removeMachine destroys a machine that was not adopted, and its network
// link.
func (h *shared) removeMachine(ctx context.Context, p provider.Provider, id engi.SandboxID) error {
	err := p.Remove(ctx, id)
	h.detach(id)
	return err
}
