// Package pool decides about warm pools: who gets which ready sandbox, who
// waits in which order, what to boot and what to destroy next. It is pure
// bookkeeping: it starts nothing, destroys nothing, and learns the time from
// its caller, so that every decision can be tested.
//
// Whoever uses it asks for a [Pools.Plan] each time [Pools.Wake] says so or
// the plan's time has come, carries it out, and reports back with
// [Pools.Booted], [Pools.Failed] and [Pools.Gone].
package pool

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// A Key names a pool: sandboxes of one key can stand in for each other.
type Key struct {
	Tier     engi.Tier
	Template string
	Language engi.Language // empty is bare
	Size     engi.Size     // of what cannot change after the boot; zero is the template's
}

// String returns the key as records and people see it.
func (k Key) String() string {
	s := k.Template + "/" + string(k.Language)
	if k.Language == "" {
		s = k.Template + "/bare"
	}
	if k.Size != (engi.Size{}) {
		s += "/sized"
	}
	return s
}

// A Config is what a pool is meant to be.
type Config struct {
	Target int  // warm members wanted
	Max    int  // members at most, in whatever state; 0 means no limit of its own
	Demand bool // came to be because somebody asked; goes when nobody asks any more
}

// Options are the limits of a whole stock and the pace of its work.
type Options struct {
	Max        int           // members at most, in whatever state
	MaxQueue   int           // tickets at most
	Boots      int           // boots at the same time
	Quiet      time.Duration // how long after a claim or an end background work waits
	Patience   time.Duration // how long background work waits at most
	Downs      int           // teardowns at the same time
	DemandIdle time.Duration // how long a pool on demand is kept after it was last used
}

// backoff bounds how long a pool pauses after a failed boot.
const (
	backoffFirst = 250 * time.Millisecond
	backoffMost  = 30 * time.Second
	// giveUp is the number of failed boots in a row after which waiting
	// makes no sense: tickets are refused, claims without a ready member
	// too, until a boot works again.
	giveUp = 2
)

// Pools keep the books of all pools. It is safe for concurrent use.
type Pools[M comparable] struct {
	opt  Options
	wake chan struct{}

	mu       sync.Mutex
	pools    map[Key]*pool[M]
	alive    int // members in whatever state, boots and teardowns included
	booting  int
	waiting  int
	downing  int
	down     []retired[M]  // wait for their teardown, oldest first
	active   time.Time     // of the last claim or end
	deferred time.Time     // since when background boots wait for quiet; zero if none does
	pace     time.Duration // how long boots take, the last ones counting most
	seq      uint64
}

type retired[M any] struct {
	member M
	since  time.Time
	now    bool // never wait for quiet
}

type pool[M any] struct {
	key    Key
	cfg    Config
	digest string          // of the template as it is now; empty is unknown
	past   map[string]bool // digests that the template had before
	unable bool            // the template cannot run the pool's language: it keeps nothing
	ready  []item[M]
	boots  int
	used   int
	queue  []*Ticket[M] // in the order of service
	round  uint64       // of the ticket served last
	rounds map[engi.Owner]uint64

	warmed  bool // had a ready member
	fails   int  // boots that failed in a row
	pause   time.Time
	failure error
	touched time.Time // last claim
}

type item[M any] struct {
	member M
	digest string
}

// A Ticket is a place in a pool's queue.
type Ticket[M any] struct {
	owner engi.Owner
	round uint64
	seq   uint64
	got   chan Handover[M]
	pool  *pool[M]
}

// A Handover ends a wait: with a member, or with the reason why there will be
// none.
type Handover[M any] struct {
	Member M
	Err    error
	Fresh  bool // it was booted while its taker waited
}

// C delivers the handover, once.
func (t *Ticket[M]) C() <-chan Handover[M] { return t.got }

// A Boot is an order to boot a member.
type Boot struct {
	Key     Key
	Ordered time.Time
}

// A Plan is what to do now.
type Plan[M any] struct {
	Boots []Boot
	Downs []M
	Again time.Duration // ask again after that; 0 means only when woken
}

// New returns an empty stock.
func New[M comparable](o Options) *Pools[M] {
	return &Pools[M]{opt: o, wake: make(chan struct{}, 1), pools: map[Key]*pool[M]{}}
}

// Wake delivers when the last plan may be out of date.
func (s *Pools[M]) Wake() <-chan struct{} { return s.wake }

func (s *Pools[M]) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Ensure makes sure there is a pool for key. An existing one keeps its
// configuration, except that cfg replaces that of a pool on demand.
func (s *Pools[M]) Ensure(key Key, cfg Config, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(key, cfg, digest, now)
}

func (s *Pools[M]) ensureLocked(key Key, cfg Config, digest string, now time.Time) *pool[M] {
	p := s.pools[key]
	switch {
	case p == nil:
		p = &pool[M]{key: key, cfg: cfg, rounds: map[engi.Owner]uint64{}, touched: now, digest: digest}
		s.pools[key] = p
		s.stir()
	case p.cfg.Demand && p.cfg != cfg:
		p.cfg = cfg
		s.stir()
	}
	return p
}

// Config returns the configuration of key's pool and whether there is one.
func (s *Pools[M]) Config(key Key) (Config, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return Config{}, false
	}
	return p.cfg, true
}

// Keeps reports whether key's pool exists on demand and keeps members.
func (s *Pools[M]) Keeps(key Key) bool {
	cfg, ok := s.Config(key)
	return ok && cfg.Demand && cfg.Target > 0
}

// DemandPools counts the pools that exist on demand and keep members.
func (s *Pools[M]) DemandPools() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		if p.cfg.Demand && p.cfg.Target > 0 {
			n++
		}
	}
	return n
}

// Take returns a ready member of key's pool; the caller owns it. Nobody who
// waits is overtaken: while there is a queue no member is ready.
func (s *Pools[M]) Take(key Key, now time.Time) (m M, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return m, false
	}
	s.active, p.touched = now, now
	s.stir()
	if len(p.ready) == 0 {
		return m, false
	}
	at := 0 // the oldest, but rather one of the current template
	for i, it := range p.ready {
		if it.digest == p.digest {
			at = i
			break
		}
	}
	m = p.ready[at].member
	p.ready = slices.Delete(p.ready, at, at+1)
	p.used++
	return m, true
}

// Return gives back a member that was taken and not used.
func (s *Pools[M]) Return(key Key, m M, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	p.used--
	s.offerLocked(p, m, digest, false)
}

// Join queues for a member of key's pool, which it makes like Ensure. It
// reports Exhausted when the queue is full and Unavailable while boots of the
// pool fail.
func (s *Pools[M]) Join(key Key, cfg Config, digest string, owner engi.Owner, now time.Time) (*Ticket[M], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ensureLocked(key, cfg, digest, now)
	if p.fails >= giveUp && now.Before(p.pause) {
		return nil, p.refusal(now)
	}
	if s.waiting >= s.opt.MaxQueue {
		return nil, engi.Errorf(engi.Exhausted, "%d executions wait for a sandbox already", s.waiting).
			WithRemedy("wait and try again, or let the node's administrator raise the queue's limit or the pool").
			WithRetry(s.retryLocked(len(p.queue) + 1))
	}
	s.seq++
	t := &Ticket[M]{owner: owner, seq: s.seq, got: make(chan Handover[M], 1), pool: p}
	// Owners take turns: an owner's next ticket is served a round after the
	// one before, so who brings many waits behind who brings few.
	t.round = max(p.round, p.rounds[owner]) + 1
	p.rounds[owner] = t.round
	at, _ := slices.BinarySearchFunc(p.queue, t, func(a, b *Ticket[M]) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.seq, b.seq))
	})
	p.queue = slices.Insert(p.queue, at, t)
	s.waiting++
	s.active, p.touched = now, now
	if len(p.ready) > 0 { // it became ready after the caller's Take
		it := p.ready[0]
		p.ready = slices.Delete(p.ready, 0, 1)
		p.used++
		s.serveLocked(p, Handover[M]{Member: it.member})
	}
	s.stir()
	return t, nil
}

// Leave gives up a ticket. If it was served meanwhile, the handover is
// returned and the caller owns its member.
func (s *Pools[M]) Leave(t *Ticket[M]) (h Handover[M], served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(t.pool.queue, t); i >= 0 {
		t.pool.queue = slices.Delete(t.pool.queue, i, i+1)
		s.waiting--
		s.forgetRoundsLocked(t.pool)
		s.stir()
		return h, false
	}
	select {
	case h = <-t.got:
		return h, true
	default:
		return h, false // taken through C before
	}
}

// Retry returns when somebody at the given place of a queue, from 1, may hope
// for a member.
func (s *Pools[M]) Retry(place int) engi.Retry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retryLocked(place)
}

func (s *Pools[M]) retryLocked(place int) engi.Retry {
	pace := max(s.pace, 50*time.Millisecond)
	after := pace * time.Duration(max(place, 1)) / time.Duration(s.opt.Boots)
	return engi.Retry{AfterMillis: max(after, pace).Milliseconds(), Position: place}
}

// Position returns a ticket's place in its queue from 1, 0 if it was served.
func (s *Pools[M]) Position(t *Ticket[M]) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(t.pool.queue, t) + 1
}

// Booted reports that an ordered boot made m of a template with digest.
func (s *Pools[M]) Booted(b Boot, m M, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.booting--
	took := now.Sub(b.Ordered)
	if s.pace == 0 {
		s.pace = took
	}
	s.pace += (took - s.pace) / 4
	p := s.pools[b.Key]
	p.boots--
	p.fails, p.failure = 0, nil
	s.offerLocked(p, m, digest, true)
}

// Adopt adds a member that lives already, ready or used, to key's pool, which
// it makes like Ensure.
func (s *Pools[M]) Adopt(key Key, cfg Config, m M, digest string, used bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive++
	p := s.ensureLocked(key, cfg, digest, now)
	if used {
		p.used++
		return
	}
	s.offerLocked(p, m, digest, false)
}

// Reserve books a place for a member that its taker makes itself. It makes
// room, if it must, at the cost of a ready member, and reports Exhausted when
// there is none. Follow it with Enroll or Unreserve.
func (s *Pools[M]) Reserve(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = now
	if s.alive-s.downing-len(s.down) >= s.opt.Max {
		w := plan[M]{Pools: s, now: now}
		if !w.take(nil) {
			return engi.Errorf(engi.Exhausted, "the node has %d sandboxes, which is all it may have", s.alive).
				WithRemedy("wait until one ends, hibernate one, or let the node's administrator raise the maximum").
				WithRetry(s.retryLocked(1))
		}
	}
	s.alive++
	s.stir()
	return nil
}

// Unreserve gives up a place that Reserve booked.
func (s *Pools[M]) Unreserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive--
	s.stir()
}

// Enroll adds a member in use to key's pool, which it makes like Ensure, in a
// place that Reserve booked.
func (s *Pools[M]) Enroll(key Key, cfg Config, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(key, cfg, digest, now).used++
}

// offerLocked serves the first in the queue with m, or puts it in the pool.
func (s *Pools[M]) offerLocked(p *pool[M], m M, digest string, fresh bool) {
	p.warmed = true
	if len(p.queue) > 0 {
		p.used++
		s.serveLocked(p, Handover[M]{Member: m, Fresh: fresh})
	} else {
		p.ready = append(p.ready, item[M]{m, digest})
	}
	s.stir()
}

// serveLocked ends the wait of the first in p's queue.
func (s *Pools[M]) serveLocked(p *pool[M], h Handover[M]) {
	t := p.queue[0]
	p.queue = slices.Delete(p.queue, 0, 1)
	p.round = t.round
	s.waiting--
	s.forgetRoundsLocked(p)
	t.got <- h
}

// forgetRoundsLocked forgets who had turns once nobody waits.
func (s *Pools[M]) forgetRoundsLocked(p *pool[M]) {
	if len(p.queue) == 0 {
		clear(p.rounds)
		p.round = 0
	}
}

// Failed reports that an ordered boot failed. After some failures in a row,
// or one that another try cannot mend, all who wait for the pool are refused.
func (s *Pools[M]) Failed(b Boot, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.booting--
	s.alive--
	p := s.pools[b.Key]
	p.boots--
	p.fails++
	p.failure = err
	p.pause = now.Add(min(backoffFirst<<min(p.fails-1, 10), backoffMost))
	switch engi.KindOf(err) {
	case engi.Invalid, engi.NotFound, engi.Unsupported:
		p.fails = max(p.fails, giveUp)
	}
	if p.fails >= giveUp {
		for len(p.queue) > 0 {
			s.serveLocked(p, Handover[M]{Err: p.refusal(now)})
		}
	}
	s.stir()
}

// refusal says that p cannot boot, in the kind of its failure when trying
// again is useless.
func (p *pool[M]) refusal(now time.Time) error {
	kind := engi.KindOf(p.failure)
	switch kind {
	case engi.Invalid, engi.NotFound, engi.Unsupported, engi.Exhausted:
	default:
		kind = engi.Unavailable
	}
	return engi.Errorf(kind, "no sandbox of %s could be booted: %w", p.key, p.failure).
		WithRemedy("%s", engi.RemedyOf(p.failure)).
		WithRetry(engi.Retry{AfterMillis: max(1, p.pause.Sub(now).Milliseconds())})
}

// Retire says that a taken member was used; it will be in a plan's Downs.
// With hurry it does not wait for quiet.
func (s *Pools[M]) Retire(key Key, m M, now time.Time, hurry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[key].used--
	s.active = now
	s.downLocked(m, now, hurry)
}

// Lose takes a ready member out, because it died or shall go; it will be in a
// plan's Downs. It reports whether the member was ready.
func (s *Pools[M]) Lose(key Key, m M, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return false
	}
	i := slices.IndexFunc(p.ready, func(it item[M]) bool { return it.member == m })
	if i < 0 {
		return false
	}
	p.ready = slices.Delete(p.ready, i, i+1)
	s.downLocked(m, now, true)
	return true
}

// Hurry makes the teardown of m, if it is retired, wait for nothing.
func (s *Pools[M]) Hurry(m M) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.down {
		if s.down[i].member == m {
			s.down[i].now = true
			s.stir()
		}
	}
}

func (s *Pools[M]) downLocked(m M, now time.Time, hurry bool) {
	s.down = append(s.down, retired[M]{m, now, hurry})
	s.stir()
}

// Dismiss says that a member in use is gone; it will be in no plan.
func (s *Pools[M]) Dismiss(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[key].used--
	s.alive--
	s.stir()
}

// Gone reports that a member of a plan's Downs is gone.
func (s *Pools[M]) Gone(M) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.downing--
	s.alive--
	s.stir()
}

// Templated says what a template is now and which languages it can run; an
// empty digest means there is none. Members of another digest serve until
// enough of the new one are ready; a pool of a language that the template does
// not have keeps no members. It reports whether this was news.
func (s *Pools[M]) Templated(template, digest string, can func(engi.Language) bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		if p.key.Template != template {
			continue
		}
		unable := digest != "" && p.key.Language != "" && !can(p.key.Language)
		if p.digest == digest && p.unable == unable {
			continue
		}
		if p.digest != digest {
			if p.past == nil {
				p.past = map[string]bool{}
			}
			p.past[p.digest] = true
			delete(p.past, digest)
			p.digest = digest
			p.fails, p.failure, p.pause = 0, nil, time.Time{}
		}
		p.unable = unable
		changed = true
		s.stir()
	}
	return changed
}

// Digest returns what the template of key's pool is now, as far as known.
func (s *Pools[M]) Digest(key Key) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pools[key]; p != nil {
		return p.digest
	}
	return ""
}

// target is how many ready members the pool is to keep.
func (p *pool[M]) target() int {
	if p.unable || p.cfg.Demand && p.digest == "" { // nobody configured it, and its template is gone
		return 0
	}
	return p.cfg.Target
}

// Empty takes out all ready members and all who wait, for the end of an
// ephemeral node, and stops keeping pools full. The members will be in
// plans' Downs.
func (s *Pools[M]) Empty(now time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.cfg.Target = 0
		for len(p.queue) > 0 {
			s.serveLocked(p, Handover[M]{Err: why})
		}
		for _, it := range p.ready {
			s.downLocked(it.member, now, true)
		}
		p.ready = nil
	}
	for i := range s.down {
		s.down[i].now = true
	}
	s.stir()
}

// Status returns one line per pool in template and language order.
func (s *Pools[M]) Status() []engi.PoolStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []engi.PoolStatus
	for _, p := range s.pools {
		all = append(all, engi.PoolStatus{
			Template: p.key.Template,
			Digest:   p.digest,
			Language: p.key.Language,
			Target:   p.target(),
			Max:      p.cfg.Max,
			Ready:    len(p.ready),
			Booting:  p.boots,
			Used:     p.used,
			Waiting:  len(p.queue),
		})
	}
	slices.SortFunc(all, func(a, b engi.PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Template, b.Template), cmp.Compare(a.Language, b.Language), cmp.Compare(b.Target, a.Target))
	})
	return all
}

// Cold returns the keys of configured pools that never had a ready member,
// with the last failure of their boots.
func (s *Pools[M]) Cold() map[Key]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cold := map[Key]error{}
	for _, p := range s.pools {
		if !p.cfg.Demand && p.target() > 0 && !p.warmed {
			cold[p.key] = p.failure
		}
	}
	return cold
}

// Counts returns how many members there are in whatever state, and how many
// tickets.
func (s *Pools[M]) Counts() (alive, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive, s.waiting
}
