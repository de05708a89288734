package pool

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Plan returns the work to do now and counts it as begun: each of Boots must be
// reported with Booted or BootFailed, each of Teardowns with TornDown.
func (s *Scheduler[I]) Plan(now time.Time) Plan[I] {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := plan[I]{Scheduler: s, now: now, quiet: now.Sub(s.lastActive) >= s.opt.Quiet}
	w.grow()
	w.trim()
	w.serve()
	w.teardown()
	w.fill()
	w.forget()
	return w.Plan
}

// plan is a Plan under construction.
type plan[I comparable] struct {
	Plan[I]
	*Scheduler[I]
	now     time.Time
	quiet   bool // no recent claim or release, so background work disturbs no caller
	crowded bool // a ticket waits because the node is full
}

// again makes the caller ask for a new plan at t.
func (w *plan[I]) again(t time.Time) {
	d := max(t.Sub(w.now), time.Millisecond)
	if w.Again == 0 || d < w.Again {
		w.Again = d
	}
}

// current counts p's ready instances of the current template.
func (p *pool[I]) current() (n int) {
	for _, it := range p.ready {
		if it.digest == p.digest {
			n++
		}
	}
	return n
}

// size counts p's instances, except those being torn down.
func (p *pool[I]) size() int { return len(p.ready) + len(p.boots) + p.used }

// grow sets the number of instances that pools need for arrivals: the mean number of arrivals during one
// boot, plus twice the square root of the mean. Arrivals seldom exceed this number
// if they come independently of each other (A. K. Erlang, "On the rational
// determination of the number of circuits", 1924).
func (w *plan[I]) grow() {
	for _, p := range w.pools {
		p.goal = 0
		// A boot is useless if no further request comes.
		if p.config.Target == 0 || w.now.Sub(p.lastClaim) > p.bootTime+w.opt.Quiet {
			continue
		}
		taken := p.arrivals.perSecond(w.now) * p.bootTime.Seconds()
		if goal := int(math.Ceil(taken + 2*math.Sqrt(taken))); goal > p.config.Target {
			p.goal = min(goal, w.opt.Grow)
		}
	}
}

// trim retires ready instances that are not needed: those of an old template once
// there are enough instances of the new one, those beyond the target, and those of pools
// on demand that have been idle.
func (w *plan[I]) trim() {
	for _, p := range w.pools {
		target := p.target()
		if p.config.Demand {
			if idle := w.now.Sub(p.lastClaim); idle >= w.opt.DemandIdle {
				target = 0
			} else if len(p.ready) > 0 {
				w.again(p.lastClaim.Add(w.opt.DemandIdle))
			}
		}
		current := p.current()
		if current <= target {
			p.surplus = time.Time{}
		}
		olds := len(p.ready) - current
		for i := len(p.ready) - 1; i >= 0; i-- {
			old := p.ready[i].digest != p.digest
			switch {
			// The decrease of arrivals may be short.
			case !old && current > target && target > 0 && w.keepsSurplus(p):
				continue
			// Old instances beyond the target take up places that new ones need.
			case old && (p.digest == "" || current >= target || p.pastDigests[p.ready[i].digest] && olds > target):
				olds--
			case !old && current > target:
				current--
			default:
				continue
			}
			w.retireLocked(p.ready[i].instance, w.now, false)
			p.ready = slices.Delete(p.ready, i, i+1)
		}
	}
}

// keepsSurplus reports whether p keeps its instances beyond the target for now.
func (w *plan[I]) keepsSurplus(p *pool[I]) bool {
	if p.surplus.IsZero() {
		p.surplus = w.now
	}
	if w.now.Sub(p.surplus) >= surplusTime || len(p.ready) > w.opt.Grow {
		return false
	}
	w.again(p.surplus.Add(surplusTime))
	return true
}

// serve orders boots for queued tickets, oldest first. It first assigns the boots under way that
// have no ticket.
func (w *plan[I]) serve() {
	var want []*pool[I]
	for _, p := range w.pools {
		for i := 0; i < min(len(p.boots), len(p.queue)); i++ {
			if b := p.boots[i]; !b.Wanted {
				b.Wanted = true
				w.wanted++
				w.Wanted = append(w.Wanted, b.ID)
			}
		}
		if len(p.queue) > len(p.boots) {
			want = append(want, p)
		}
	}
	slices.SortFunc(want, func(a, b *pool[I]) int { return cmp.Compare(a.queue[0].seq, b.queue[0].seq) })
	// Pools take turns, so that one long queue does not get every boot.
	for progress := true; progress; {
		progress = false
		for _, p := range want {
			if len(p.queue) > len(p.boots) && w.boot(p, true) {
				progress = true
			}
		}
	}
}

// boot orders one boot for p if the limits allow it. If the boot is for a
// ticket and the node is full, it makes room.
func (w *plan[I]) boot(p *pool[I], wanted bool) bool {
	switch {
	// Boots without a waiting caller do not delay boots with one.
	case wanted && w.wanted >= w.opt.Boots, !wanted && w.booting >= w.opt.Boots:
		return false
	case w.now.Before(p.retryAt):
		w.again(p.retryAt)
		return false
	case p.config.Max > 0 && p.size() >= p.config.Max:
		return false
	case w.alive >= w.opt.Max:
		if wanted && !w.crowded {
			w.crowded = true
			// A teardown under way will make room, too.
			if w.tearing+len(w.retired) == 0 {
				w.evict(p)
			}
		}
		return false
	}
	w.alive++
	w.booting++
	if wanted {
		w.wanted++
	}
	w.lastBoot++
	b := Boot{Key: p.key, Ordered: w.now, Wanted: wanted, ID: w.lastBoot}
	if n := len(p.boots); wanted && n < len(p.queue) {
		b.Owner = p.queue[n].owner
	}
	p.boots = append(p.boots, &b)
	w.Boots = append(w.Boots, b)
	return true
}

// evict retires a ready instance of the pool that can spare one most easily,
// other than taker: a pool on demand rather than a configured one, then the
// fullest. It reports whether it retired one.
func (w *plan[I]) evict(taker *pool[I]) bool {
	var from *pool[I]
	for _, p := range w.pools {
		if p == taker || len(p.ready) == 0 {
			continue
		}
		if from == nil || p.config.Demand && !from.config.Demand ||
			p.config.Demand == from.config.Demand && len(p.ready) > len(from.ready) {
			from = p
		}
	}
	if from == nil {
		return false
	}
	w.retireLocked(from.ready[0].instance, w.now, true)
	from.ready = slices.Delete(from.ready, 0, 1)
	return true
}

// teardown orders teardowns of retired instances that disturb no caller,
// have waited long enough, or occupy places that are needed.
func (w *plan[I]) teardown() {
	for i := 0; i < len(w.retired) && w.tearing < w.opt.Teardowns; {
		d := w.retired[i]
		if !d.hurry && !w.quiet && !w.crowded && w.now.Sub(d.since) < w.opt.Patience {
			w.again(earlier(w.lastActive.Add(w.opt.Quiet), d.since.Add(w.opt.Patience)))
			i++
			continue
		}
		w.retired = slices.Delete(w.retired, i, i+1)
		w.tearing++
		w.Teardowns = append(w.Teardowns, d.instance)
	}
}

// fill orders boots that bring pools up to their targets, the emptiest first.
func (w *plan[I]) fill() {
	var want []*pool[I]
	for _, p := range w.pools {
		if w.missing(p) > 0 {
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
	if !w.quiet && (w.opt.Yields == nil || !w.opt.Yields()) {
		if w.now.Sub(w.deferred) < w.opt.Patience {
			w.again(earlier(w.lastActive.Add(w.opt.Quiet), w.deferred.Add(w.opt.Patience)))
			return
		}
		limit = 1 // leave the other processors to running programs
	}
	for progress := true; progress && w.booting < limit; {
		progress = false
		slices.SortStableFunc(want, func(a, b *pool[I]) int {
			return cmp.Or(cmp.Compare(a.fill(), b.fill()), cmp.Compare(a.key.String(), b.key.String()))
		})
		for _, p := range want {
			if w.missing(p) <= 0 || w.booting >= limit {
				continue
			}
			if w.boot(p, false) {
				progress = true
				break // the order may have changed
			}
			w.replaceOld(p)
		}
	}
}

// missing returns the number of further boots that p needs for its target and its queue.
func (w *plan[I]) missing(p *pool[I]) int {
	if p.config.Demand && w.now.Sub(p.lastClaim) >= w.opt.DemandIdle {
		return 0
	}
	// Old instances may stay until new ones are ready, but there are never
	// more than twice the target.
	short := p.target() - p.current()
	room := 2*p.target() - len(p.ready)
	return min(short, room) + len(p.queue) - len(p.boots)
}

// fill returns the fill level of p: 1 means at its target.
func (p *pool[I]) fill() float64 {
	return float64(p.current()+len(p.boots)) / float64(max(p.target(), 1))
}

// replaceOld retires one instance of an old template if the limits leave no
// room to boot a new one beside it.
func (w *plan[I]) replaceOld(p *pool[I]) {
	full := p.config.Max > 0 && p.size() >= p.config.Max || w.alive >= w.opt.Max && w.tearing+len(w.retired) == 0
	if !full || w.booting >= w.opt.Boots || w.now.Before(p.retryAt) {
		return
	}
	i := slices.IndexFunc(p.ready, func(it item[I]) bool { return it.digest != p.digest })
	if i >= 0 {
		w.retireLocked(p.ready[i].instance, w.now, true)
		p.ready = slices.Delete(p.ready, i, i+1)
	}
}

// forget removes pools on demand that are unused and keep no instances.
func (w *plan[I]) forget() {
	for key, p := range w.pools {
		if !p.config.Demand || p.size() > 0 || len(p.queue) > 0 {
			continue
		}
		if p.config.Target > 0 && w.now.Sub(p.lastClaim) < w.opt.DemandIdle || w.now.Before(p.retryAt) {
			w.again(later(p.lastClaim.Add(w.opt.DemandIdle), p.retryAt))
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

// A rate is an estimate of the number of arrivals per second.
type rate struct {
	estimate float64 // estimate at the last arrival
	last     time.Time
}

// rateSpan is the age at which an arrival has the weight 1/e.
const rateSpan = 2 * time.Second

func (r *rate) add(now time.Time) {
	r.estimate = r.perSecond(now) + 1/rateSpan.Seconds()
	r.last = now
}

func (r *rate) perSecond(now time.Time) float64 {
	return r.estimate * math.Exp(-max(now.Sub(r.last), 0).Seconds()/rateSpan.Seconds())
}

// average updates a moving average, in which each value has the weight 1/n.
func average(d *time.Duration, next time.Duration, n time.Duration) {
	if *d == 0 {
		*d = next
	}
	*d += (next - *d) / n
}
