package script

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// A pool keeps helpers. Fresh ones wait for whoever comes; one that has
// served an owner serves nobody else, and waits for that owner a while.
type pool struct {
	o     Options
	empty string

	mu      sync.Mutex
	life    context.Context // of run; nil before and after
	fresh   []*helper
	used    []*helper // idle, each with its owner, the longest idle first
	alive   int       // helpers that run, idle or not, and those that start
	waiting []chan struct{}
	work    sync.WaitGroup
}

const (
	// idleTime is how long a helper waits for its owner to come back.
	idleTime = 30 * time.Second
	// maxRuns is how many programs one helper runs.
	maxRuns = 10_000
	// patience is how long a script waits for a helper.
	patience = 2 * time.Second
	// maxWaiting bounds the scripts that wait.
	maxWaiting = 1024
)

func newPool(o Options, empty string) *pool { return &pool{o: o, empty: empty} }

var errClosed = engi.Errorf(engi.Unavailable, "the node does not take scripts now").WithRemedy("it starts or stops: try again in a moment")

// run keeps helpers warm until ctx ends.
func (p *pool) run(ctx context.Context, ready func()) error {
	p.mu.Lock()
	p.life = ctx
	p.mu.Unlock()
	p.refill()
	ready()
	tick := time.NewTicker(idleTime / 4)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			p.retire(time.Now().Add(-idleTime))
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	p.life = nil
	idle := append(p.fresh, p.used...)
	p.fresh, p.used = nil, nil
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = nil
	p.mu.Unlock()
	for _, h := range idle {
		h.kill()
	}
	p.work.Wait()
	return nil
}

// refill starts fresh helpers in the background until enough are warm.
func (p *pool) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		return
	}
	for n := len(p.fresh); n < p.o.Warm && p.alive < p.o.Max; n++ {
		p.alive++
		ctx := p.life
		p.work.Go(func() {
			h, err := start(ctx, p.o.Helper, p.empty, p.o.Limits.wire(0).Frame())
			if err != nil {
				if ctx.Err() == nil {
					p.o.Log.Error("start script helper", "error", err)
				}
				p.gone()
				return
			}
			p.offer(h)
		})
	}
}

// offer makes a helper available, or ends it if the pool is closed.
func (p *pool) offer(h *helper) {
	p.mu.Lock()
	if p.life == nil {
		p.mu.Unlock()
		h.kill()
		p.gone()
		return
	}
	if h.served == 0 {
		p.fresh = append(p.fresh, h)
	} else {
		h.idle = time.Now()
		p.used = append(p.used, h)
	}
	p.wake()
	p.mu.Unlock()
}

// wake lets one that waits look again. p.mu is held.
func (p *pool) wake() {
	if len(p.waiting) > 0 {
		close(p.waiting[0])
		p.waiting = p.waiting[1:]
	}
}

// gone says that a helper is no more.
func (p *pool) gone() {
	p.mu.Lock()
	p.alive--
	p.wake()
	p.mu.Unlock()
}

// retire ends helpers that nobody came back for since before, and forgets
// those that died.
func (p *pool) retire(before time.Time) {
	p.mu.Lock()
	var old []*helper
	p.used = slices.DeleteFunc(p.used, func(h *helper) bool {
		if !h.isDead() && !h.idle.Before(before) {
			return false
		}
		old = append(old, h)
		return true
	})
	p.mu.Unlock()
	for _, h := range old {
		h.kill()
		p.gone()
	}
}

// take returns a helper that owner alone has used. It reports Exhausted if
// none comes free in time.
func (p *pool) take(ctx context.Context, owner engi.Owner) (*helper, error) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		h, wait, err := p.look(ctx, owner)
		if h != nil || err != nil {
			return h, err
		}
		select {
		case <-wait:
		case <-deadline.C:
			p.forget(wait)
			return nil, engi.Errorf(engi.Exhausted, "all %d script helpers are busy", p.o.Max).WithRetry(engi.Retry{AfterMillis: 1000})
		case <-ctx.Done():
			p.forget(wait)
			return nil, engi.Errorf(engi.Expired, "wait for a script helper: %v", context.Cause(ctx))
		}
	}
}

// forget says that nobody waits on wait any more; a call that came too late
// goes to the next.
func (p *pool) forget(wait chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, wait); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return
	}
	p.wake()
}

// look returns a helper, starts one, or returns what to wait for.
func (p *pool) look(ctx context.Context, owner engi.Owner) (*helper, chan struct{}, error) {
	p.mu.Lock()
	if p.life == nil {
		p.mu.Unlock()
		return nil, nil, errClosed
	}
	for i := len(p.used) - 1; i >= 0; i-- {
		if h := p.used[i]; h.owner == owner && !h.isDead() {
			p.used = append(p.used[:i], p.used[i+1:]...)
			p.mu.Unlock()
			return h, nil, nil
		}
	}
	for len(p.fresh) > 0 {
		h := p.fresh[len(p.fresh)-1]
		p.fresh = p.fresh[:len(p.fresh)-1]
		if h.isDead() {
			p.alive--
			continue
		}
		p.mu.Unlock()
		h.owner = owner
		p.refill()
		return h, nil, nil
	}
	var evicted *helper
	if p.alive >= p.o.Max {
		if len(p.used) == 0 {
			if len(p.waiting) >= maxWaiting {
				p.mu.Unlock()
				return nil, nil, engi.Errorf(engi.Exhausted, "%d scripts wait for a helper", maxWaiting).WithRetry(engi.Retry{AfterMillis: 1000})
			}
			wait := make(chan struct{})
			p.waiting = append(p.waiting, wait)
			p.mu.Unlock()
			return nil, wait, nil
		}
		evicted = p.used[0]
		p.used = p.used[1:]
	} else {
		p.alive++
	}
	p.mu.Unlock()
	if evicted != nil {
		evicted.kill()
	}
	h, err := start(ctx, p.o.Helper, p.empty, p.o.Limits.wire(0).Frame())
	if err != nil {
		p.gone()
		return nil, nil, err
	}
	h.owner = owner
	return h, nil, nil
}

// put takes a helper back.
func (p *pool) put(h *helper, healthy bool) {
	if healthy && h.served < maxRuns {
		p.offer(h)
		return
	}
	h.kill()
	p.gone()
	p.refill()
}
