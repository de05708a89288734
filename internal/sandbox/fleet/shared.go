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

// shared is what all parts of a Manager use.
type shared struct {
	opt     Options
	bounds  engi.Bounds // of requests
	log     *slog.Logger
	files   files
	catalog *catalog
	metrics *metrics

	// life ends when the Manager stops following what runs. Run sets it
	// before anything is served.
	life context.Context
	work sync.WaitGroup // all goroutines except the loops of Run

	spawning sync.Mutex  // orders work.Go before work.Wait; held for an instant
	serving  atomic.Bool // changed while spawning is held
}

var (
	errNotServing = engi.Errorf(engi.Unavailable, "the node does not take work now").WithRemedy("it is starting or stopping: try again in a moment")
	errStopping   = engi.Errorf(engi.Unavailable, "the node is stopping; what runs goes on").WithRemedy("ask again when the node is back")
)

// serve says whether requests are accepted.
func (h *shared) serve(yes bool) {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	h.serving.Store(yes)
}

// spawn runs f in a goroutine that Run waits for. It reports false, without
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

// cleanupTime bounds one act of cleaning up.
const cleanupTime = 10 * time.Second

// cleanup returns a context for work that must be done although its caller
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

// size is what sandboxes of t get unless a request says otherwise.
func (h *shared) size(t engi.Template) engi.Size { return t.Size.Or(h.opt.Defaults.Size) }

// notEnforced names the limits that the tier cannot enforce on this host.
func (h *shared) notEnforced(t engi.Tier) []string {
	if e, ok := h.providerOf(t).(provider.Enforcer); ok {
		return e.NotEnforced()
	}
	return nil
}

// removeMachine destroys a machine that nobody has adopted, and its network
// link.
func (h *shared) removeMachine(ctx context.Context, p provider.Provider, id engi.SandboxID) error {
	err := p.Remove(ctx, id)
	h.detach(id)
	return err
}
