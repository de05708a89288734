package script

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// A pool manages helpers. Fresh helpers can serve any owner. A helper that has served an owner
// serves no other owner, and is kept for helperIdleTime for further scripts of that owner.
type pool struct {
	o     Options
	empty string

	mu      sync.Mutex
	ctx     context.Context // context of run; nil while run is not running
	fresh   []*helper
	idle    []*helper // idle helpers with an owner, the longest idle first
	alive   int       // number of helpers, including those that are being started
	waiting []chan struct{}
	work    sync.WaitGroup
}

const (
	// helperIdleTime is the time that an idle helper with an owner is kept.
	helperIdleTime = 30 * time.Second
	// maxRuns is the maximum number of programs that a helper runs.
	maxRuns = 10_000
	// acquireTimeout is the maximum time that a script waits for a helper.
	acquireTimeout = 2 * time.Second
	// maxWaiting is the maximum number of waiting scripts.
	maxWaiting = 1024
)

func newPool(o Options, empty string) *pool { return &pool{o: o, empty: empty} }

var errClosed = engi.Errorf(engi.Unavailable, "the node does not accept scripts now").WithRemedy("it is starting or stopping: try again in a moment")

// run keeps helpers warm until ctx ends.
func (p *pool) run(ctx context.Context, ready func()) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	p.refill()
	ready()
	for range clock.Later(ctx, helperIdleTime/4) {
		p.retire(time.Now().Add(-helperIdleTime))
	}
	p.mu.Lock()
	p.ctx = nil
	idle := append(p.fresh, p.idle...)
	p.fresh, p.idle = nil, nil
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
	if p.ctx == nil {
		return
	}
	for n := len(p.fresh); n < p.o.Warm && p.alive < p.o.Max; n++ {
		p.alive++
		ctx := p.ctx
		p.work.Go(func() {
			h, err := start(ctx, p.o.Helper, p.empty, p.o.Limits.wire(0).Frame())
			if err != nil {
				if ctx.Err() == nil {
					p.o.Log.Error("start script helper", "error", err)
				}
				p.release()
				return
			}
			p.add(h)
		})
	}
}

// add makes a helper available, or ends it if the pool is closed.
func (p *pool) add(h *helper) {
	p.mu.Lock()
	if p.ctx == nil {
		p.mu.Unlock()
		h.kill()
		p.release()
		return
	}
	if h.runs == 0 {
		p.fresh = append(p.fresh, h)
	} else {
		h.idleSince = time.Now()
		p.idle = append(p.idle, h)
	}
	p.wake()
	p.mu.Unlock()
}

// wake wakes one waiting script. The caller holds p.mu.
func (p *pool) wake() {
	if len(p.waiting) > 0 {
		close(p.waiting[0])
		p.waiting = p.waiting[1:]
	}
}

// release reports that a helper has ended.
func (p *pool) release() {
	p.mu.Lock()
	p.alive--
	p.wake()
	p.mu.Unlock()
}

// retire ends helpers that have been idle since before, and removes those that have
// died.
func (p *pool) retire(before time.Time) {
	p.mu.Lock()
	var old []*helper
	p.idle = slices.DeleteFunc(p.idle, func(h *helper) bool {
		if !h.isDead() && !h.idleSince.Before(before) {
			return false
		}
		old = append(old, h)
		return true
	})
	p.mu.Unlock()
	for _, h := range old {
		h.kill()
		p.release()
	}
}

// acquire returns a helper that no other owner has used. It returns Exhausted if
// none becomes free in time.
func (p *pool) acquire(ctx context.Context, owner engi.Owner) (*helper, error) {
	deadline := time.NewTimer(acquireTimeout)
	defer deadline.Stop()
	for {
		h, wait, err := p.tryAcquire(ctx, owner)
		if h != nil || err != nil {
			return h, err
		}
		select {
		case <-wait:
		case <-deadline.C:
			p.stopWaiting(wait)
			return nil, engi.Errorf(engi.Exhausted, "all %d script helpers are busy", p.o.Max).WithRetry(engi.Retry{AfterMillis: 1000})
		case <-ctx.Done():
			p.stopWaiting(wait)
			return nil, engi.Errorf(engi.Expired, "wait for a script helper: %v", context.Cause(ctx))
		}
	}
}

// stopWaiting removes wait from the queue. If wait was woken already, the next script is
// woken instead.
func (p *pool) stopWaiting(wait chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, wait); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return
	}
	p.wake()
}

// tryAcquire returns a helper, and starts one if necessary, or returns a channel to wait on
// if no helper is free.
func (p *pool) tryAcquire(ctx context.Context, owner engi.Owner) (*helper, chan struct{}, error) {
	p.mu.Lock()
	if p.ctx == nil {
		p.mu.Unlock()
		return nil, nil, errClosed
	}
	for i := len(p.idle) - 1; i >= 0; i-- {
		if h := p.idle[i]; h.owner == owner && !h.isDead() {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
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
		if len(p.idle) == 0 {
			if len(p.waiting) >= maxWaiting {
				p.mu.Unlock()
				return nil, nil, engi.Errorf(engi.Exhausted, "%d scripts wait for a helper", maxWaiting).WithRetry(engi.Retry{AfterMillis: 1000})
			}
			wait := make(chan struct{})
			p.waiting = append(p.waiting, wait)
			p.mu.Unlock()
			return nil, wait, nil
		}
		evicted = p.idle[0]
		p.idle = p.idle[1:]
	} else {
		p.alive++
	}
	p.mu.Unlock()
	if evicted != nil {
		evicted.kill()
	}
	h, err := start(ctx, p.o.Helper, p.empty, p.o.Limits.wire(0).Frame())
	if err != nil {
		p.release()
		return nil, nil, err
	}
	h.owner = owner
	return h, nil, nil
}

// giveBack returns a helper to the pool.
func (p *pool) giveBack(h *helper, healthy bool) {
	if healthy && h.runs < maxRuns {
		p.add(h)
		return
	}
	h.kill()
	p.release()
	p.refill()
}
