package pool

import (
	"cmp"
	"slices"
	"time"
)

// Plan decides what to do now and books it: each Boot must be answered with
// Booted or Failed, each of Downs with Gone.
func (s *Pools[M]) Plan(now time.Time) Plan[M] {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := plan[M]{Pools: s, now: now, quiet: now.Sub(s.active) >= s.opt.Quiet}
	w.thin()
	w.serve()
	w.teardown()
	w.fill()
	w.forget()
	return w.Plan
}

// plan is a Plan in the making.
type plan[M comparable] struct {
	Plan[M]
	*Pools[M]
	now   time.Time
	quiet bool // nobody came or went lately: background work disturbs nobody
	short bool // somebody waits for room in the stock
}

// again makes the plan's caller ask again at t.
func (w *plan[M]) again(t time.Time) {
	d := max(t.Sub(w.now), time.Millisecond)
	if w.Again == 0 || d < w.Again {
		w.Again = d
	}
}

// current counts p's ready members of the template as it is now.
func (p *pool[M]) current() (n int) {
	for _, it := range p.ready {
		if it.digest == p.digest {
			n++
		}
	}
	return n
}

// size counts p's members, those in teardown excepted.
func (p *pool[M]) size() int { return len(p.ready) + p.boots + p.used }

// thin retires ready members nobody needs: of an old template once there are
// enough of the new one, beyond the target, or idle in a pool on demand.
func (w *plan[M]) thin() {
	for _, p := range w.pools {
		target := p.target()
		if p.cfg.Demand {
			if idle := w.now.Sub(p.touched); idle >= w.opt.DemandIdle {
				target = 0
			} else if len(p.ready) > 0 {
				w.again(p.touched.Add(w.opt.DemandIdle))
			}
		}
		current := p.current()
		olds := len(p.ready) - current
		for i := len(p.ready) - 1; i >= 0; i-- {
			old := p.ready[i].digest != p.digest
			switch {
			// Known old ones beyond the target would take the room that the
			// new ones need.
			case old && (p.digest == "" || current >= target || p.past[p.ready[i].digest] && olds > target):
				olds--
			case !old && current > target:
				current--
			default:
				continue
			}
			w.downLocked(p.ready[i].member, w.now, false)
			p.ready = slices.Delete(p.ready, i, i+1)
		}
	}
}

// serve orders boots for those who wait, oldest pool's front first.
func (w *plan[M]) serve() {
	var want []*pool[M]
	for _, p := range w.pools {
		if len(p.queue) > p.boots {
			want = append(want, p)
		}
	}
	slices.SortFunc(want, func(a, b *pool[M]) int { return cmp.Compare(a.queue[0].seq, b.queue[0].seq) })
	// In turns, so that one pool's long queue does not take every boot.
	for progress := true; progress; {
		progress = false
		for _, p := range want {
			if len(p.queue) > p.boots && w.boot(p, true) {
				progress = true
			}
		}
	}
}

// boot orders one boot for p if the limits allow it. For somebody who waits
// it makes room.
func (w *plan[M]) boot(p *pool[M], wanted bool) bool {
	switch {
	case w.booting >= w.opt.Boots:
		return false
	case w.now.Before(p.pause):
		w.again(p.pause)
		return false
	case p.cfg.Max > 0 && p.size() >= p.cfg.Max:
		return false
	case w.alive >= w.opt.Max:
		if wanted && !w.short {
			w.short = true
			w.evict(p)
		}
		return false
	}
	w.alive++
	w.booting++
	p.boots++
	w.Boots = append(w.Boots, Boot{p.key, w.now})
	return true
}

// evict retires one ready member of the pool that can spare one most easily:
// one on demand before a configured one, then the fullest. If a teardown is
// under way already, the room it makes will do.
func (w *plan[M]) evict(taker *pool[M]) {
	if w.downing+len(w.down) == 0 {
		w.take(taker)
	}
}

// take retires one ready member of another pool than taker, and reports
// whether there was one.
func (w *plan[M]) take(taker *pool[M]) bool {
	var from *pool[M]
	for _, p := range w.pools {
		if p == taker || len(p.ready) == 0 {
			continue
		}
		if from == nil || p.cfg.Demand && !from.cfg.Demand ||
			p.cfg.Demand == from.cfg.Demand && len(p.ready) > len(from.ready) {
			from = p
		}
	}
	if from == nil {
		return false
	}
	w.downLocked(from.ready[0].member, w.now, true)
	from.ready = slices.Delete(from.ready, 0, 1)
	return true
}

// teardown orders the destruction of what was retired, when it disturbs
// nobody, or waited long enough, or its room is needed.
func (w *plan[M]) teardown() {
	for i := 0; i < len(w.down) && w.downing < w.opt.Downs; {
		d := w.down[i]
		if !d.now && !w.quiet && !w.short && w.now.Sub(d.since) < w.opt.Patience {
			w.again(earlier(w.active.Add(w.opt.Quiet), d.since.Add(w.opt.Patience)))
			i++
			continue
		}
		w.down = slices.Delete(w.down, i, i+1)
		w.downing++
		w.Downs = append(w.Downs, d.member)
	}
}

// fill orders boots that bring pools to their targets, the emptiest first.
func (w *plan[M]) fill() {
	var want []*pool[M]
	for _, p := range w.pools {
		if w.lacks(p) > 0 {
			want = append(want, p)
		}
	}
	if len(want) == 0 {
		w.deferred = time.Time{}
		return
	}
	if w.deferred.IsZero() {
		w.deferred = w.now
	}
	limit := w.opt.Boots
	if !w.quiet {
		if w.now.Sub(w.deferred) < w.opt.Patience {
			w.again(earlier(w.active.Add(w.opt.Quiet), w.deferred.Add(w.opt.Patience)))
			return
		}
		limit = 1 // the other processors are for those who run
	}
	for progress := true; progress && w.booting < limit; {
		progress = false
		slices.SortStableFunc(want, func(a, b *pool[M]) int {
			return cmp.Or(cmp.Compare(a.fill(), b.fill()), cmp.Compare(a.key.String(), b.key.String()))
		})
		for _, p := range want {
			if w.lacks(p) <= 0 || w.booting >= limit {
				continue
			}
			if w.boot(p, false) {
				progress = true
				break // the order may be another now
			}
			w.makeWay(p)
		}
	}
}

// lacks is how many boots p needs for its target beyond those for its queue.
func (w *plan[M]) lacks(p *pool[M]) int {
	if p.cfg.Demand && w.now.Sub(p.touched) >= w.opt.DemandIdle {
		return 0
	}
	// Old members may stay until as many new ones are ready, but never are
	// there more than twice as many as wanted.
	missing := p.target() - p.current()
	room := 2*p.target() - len(p.ready)
	return min(missing, room) + len(p.queue) - p.boots
}

// fill is how full p is, from 0 to 1.
func (p *pool[M]) fill() float64 {
	return float64(p.current()+p.boots) / float64(max(p.target(), 1))
}

// makeWay retires one member of an old template when limits leave no room to
// boot the new one beside it.
func (w *plan[M]) makeWay(p *pool[M]) {
	full := p.cfg.Max > 0 && p.size() >= p.cfg.Max || w.alive >= w.opt.Max && w.downing+len(w.down) == 0
	if !full || w.booting >= w.opt.Boots || w.now.Before(p.pause) {
		return
	}
	i := slices.IndexFunc(p.ready, func(it item[M]) bool { return it.digest != p.digest })
	if i >= 0 {
		w.downLocked(p.ready[i].member, w.now, true)
		p.ready = slices.Delete(p.ready, i, i+1)
	}
}

// forget drops pools on demand that nobody uses and that keep nothing.
func (w *plan[M]) forget() {
	for key, p := range w.pools {
		if !p.cfg.Demand || p.size() > 0 || len(p.queue) > 0 {
			continue
		}
		if p.cfg.Target > 0 && w.now.Sub(p.touched) < w.opt.DemandIdle || w.now.Before(p.pause) {
			w.again(later(p.touched.Add(w.opt.DemandIdle), p.pause))
			continue
		}
		delete(w.pools, key)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
