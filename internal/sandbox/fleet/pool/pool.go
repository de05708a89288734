// Package pool schedules warm pools: which caller gets which ready instance, in which
// order callers wait, and which instances to boot and to tear down next. It only keeps
// count. It boots and destroys nothing, and its caller passes the time, so
// that every decision can be tested.
//
// The caller asks for a [Scheduler.Plan] whenever [Scheduler.Wake] delivers or
// the last plan's Again has passed, carries the plan out, and reports back
// with [Scheduler.Booted], [Scheduler.BootFailed] and [Scheduler.TornDown].
package pool

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Key identifies a pool. Instances with the same key are interchangeable.
type Key struct {
	Tier     engi.Tier
	Template string
	Language engi.Language // language whose interpreter is already running; empty means bare
	Size     engi.Size     // limits fixed at boot; zero means the template's
}

// String returns the key as it appears in records, logs and errors.
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

// A Config configures a pool.
type Config struct {
	Target int  // number of ready instances to keep
	Max    int  // maximum number of instances, booting and used ones included; 0 means no limit of its own
	Demand bool // created on demand; removed when idle
}

// Options holds the limits and times that all pools share.
type Options struct {
	Max        int           // maximum number of instances, in any state
	MaxQueue   int           // maximum number of tickets
	Boots      int           // maximum number of concurrent boots
	Teardowns  int           // maximum number of concurrent teardowns
	Grow       int           // maximum number of ready instances of a pool whose arrivals need more than its target; 0 means the target
	Yields     func() bool   // reports whether background boots run with low processor priority and so need not wait for quiet; nil means false
	Quiet      time.Duration // pause of background work after a claim or a release
	Patience   time.Duration // maximum time for which background work is put off
	DemandIdle time.Duration // time that a pool on demand is kept after its last claim
	MaxWait    time.Duration // maximum expected wait, see Join; 0 means no maximum
}

const (
	// A pool's pause after a failed boot doubles, between backoffFirst and backoffMost.
	backoffFirst = 250 * time.Millisecond
	backoffMost  = 30 * time.Second
	// giveUp is the number of consecutive failed boots after which waiting is
	// pointless: until one succeeds, tickets are refused.
	giveUp = 2
	// surplusTime is the time that a pool keeps instances that it no longer needs
	// because arrivals decreased.
	surplusTime = 30 * time.Second
	// lateTime is the time for which arrivals must exceed the capacity before some
	// are refused.
	lateTime = 150 * time.Millisecond
)

// A Scheduler schedules all pools of a node. It is safe for concurrent use.
// None of its methods block.
type Scheduler[I comparable] struct {
	opt  Options
	wake chan struct{}

	mu         sync.Mutex
	pools      map[Key]*pool[I]
	alive      int // number of instances in any state, boots, teardowns and reserved places included
	booting    int // number of boots under way, wanted ones included
	wanted     int
	waiting    int
	shares     *engi.Shares // shares of the places in the queue
	tearing    int
	retired    []retired[I]  // instances waiting for their teardown, oldest first
	lastActive time.Time     // time of the last claim or release
	deferred   time.Time     // time since which background boots are put off; zero if none are
	bootTime   time.Duration // moving average of the boot time
	seq        uint64        // sequence number of the last ticket
	lastBoot   uint64        // ID of the last boot
}

type retired[I any] struct {
	instance I
	since    time.Time
	hurry    bool // tear down without waiting for quiet
}

type pool[I any] struct {
	key         Key
	config      Config
	digest      string          // digest of the current template; empty if unknown
	pastDigests map[string]bool // digests of earlier builds of the template
	unable      bool            // the template cannot run the pool's language, so the pool keeps no instances
	ready       []item[I]
	boots       []*Boot // boots under way, oldest first
	used        int
	arrivals    rate                  // rate of calls of Take
	bootTime    time.Duration         // moving average of the boot time
	goal        int                   // number of ready instances that arrivals need; 0 if the target suffices
	surplus     time.Time             // time since which there are more instances than needed; zero if there are not
	pace        time.Duration         // moving average of the time between two tickets that were served after a wait
	served      time.Time             // time at which the last waiting ticket was served; zero if the queue has been empty since
	late        time.Time             // time since which served tickets had waited too long; zero once no ticket waits
	queue       []*Ticket[I]          // tickets in serving order
	round       uint64                // round of the ticket served last
	rounds      map[engi.Owner]uint64 // round of each owner's last ticket in the queue

	warmed    bool // the pool has had a ready instance
	fails     int  // number of consecutive failed boots
	retryAt   time.Time
	failure   error
	lastClaim time.Time
}

type item[I any] struct {
	instance I
	digest   string
}

// A Ticket is a place in a pool's queue.
type Ticket[I any] struct {
	owner  engi.Owner
	joined time.Time
	round  uint64
	seq    uint64
	got    chan Handover[I]
	pool   *pool[I]
}

// A Handover ends a wait: with an instance, or with an error if there will
// be none.
type Handover[I any] struct {
	Instance I
	Err      error
	Fresh    bool // the instance was booted while the ticket waited
}

// C returns the channel that delivers the handover, once.
func (t *Ticket[I]) C() <-chan Handover[I] { return t.got }

// A Boot is an order to boot an instance.
type Boot struct {
	Key     Key
	Ordered time.Time
	Wanted  bool // a caller waits for the boot; a later plan may list the boot in its Wanted
	ID      uint64
	Owner   engi.Owner // owner that waits, if the boot was wanted when it was ordered
}

// A Plan lists the work to do now.
type Plan[I any] struct {
	Boots     []Boot
	Wanted    []uint64 // IDs of earlier boots for which a caller waits now
	Teardowns []I
	Again     time.Duration // time after which to ask for a new plan; 0 means only when Wake delivers
}

// New returns a scheduler without pools.
func New[I comparable](o Options) *Scheduler[I] {
	return &Scheduler[I]{opt: o, wake: make(chan struct{}, 1), pools: map[Key]*pool[I]{}, shares: engi.NewShares(int64(o.MaxQueue))}
}

// Wake returns a channel that receives when the last plan may be out of date.
func (s *Scheduler[I]) Wake() <-chan struct{} { return s.wake }

func (s *Scheduler[I]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Ensure makes sure there is a pool for key. cfg replaces the configuration of
// an existing pool only if the pool was created on demand.
func (s *Scheduler[I]) Ensure(key Key, cfg Config, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(key, cfg, digest, now)
}

func (s *Scheduler[I]) ensureLocked(key Key, cfg Config, digest string, now time.Time) *pool[I] {
	p := s.pools[key]
	switch {
	case p == nil:
		p = &pool[I]{key: key, config: cfg, rounds: map[engi.Owner]uint64{}, lastClaim: now, digest: digest}
		s.pools[key] = p
		s.signal()
	case p.config.Demand && p.config != cfg:
		p.config = cfg
		s.signal()
	}
	return p
}

// Config returns the configuration of key's pool, if there is one.
func (s *Scheduler[I]) Config(key Key) (Config, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return Config{}, false
	}
	return p.config, true
}

// Keeps reports whether key's pool was created on demand and keeps ready
// instances.
func (s *Scheduler[I]) Keeps(key Key) bool {
	cfg, ok := s.Config(key)
	return ok && cfg.Demand && cfg.Target > 0
}

// DemandPools counts the pools for which Keeps is true.
func (s *Scheduler[I]) DemandPools() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		if p.config.Demand && p.config.Target > 0 {
			n++
		}
	}
	return n
}

// Take returns a ready instance of key's pool, which the caller then owns. It
// overtakes no ticket: while there is a queue, no instance is ready.
func (s *Scheduler[I]) Take(key Key, now time.Time) (inst I, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return inst, false
	}
	s.lastActive, p.lastClaim = now, now
	s.signal()
	p.arrivals.add(now)
	if len(p.ready) == 0 {
		return inst, false
	}
	at := 0 // the oldest, preferably of the current template
	for i, it := range p.ready {
		if it.digest == p.digest {
			at = i
			break
		}
	}
	inst = p.ready[at].instance
	p.ready = slices.Delete(p.ready, at, at+1)
	p.used++
	return inst, true
}

// Return gives back an instance that was taken but not used.
func (s *Scheduler[I]) Return(key Key, inst I, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	p.used--
	s.offerLocked(p, inst, digest, false)
}

// Join queues for an instance of key's pool, which it creates like Ensure. It
// returns Exhausted when the queue is full or the owner has used up its share of the queue, and
// Unavailable while the pool's boots fail. Unless the caller is patient, it also
// returns Exhausted if the expected wait exceeds MaxWait and arrivals have exceeded the capacity
// for some time: a short burst may wait completely.
func (s *Scheduler[I]) Join(key Key, cfg Config, digest string, owner engi.Owner, patient bool, now time.Time) (*Ticket[I], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ensureLocked(key, cfg, digest, now)
	if p.fails >= giveUp && now.Before(p.retryAt) {
		return nil, p.refusal(now)
	}
	// Owners take turns: each ticket of an owner is served a round after the
	// one before, so an owner with many tickets cannot starve the others.
	t := &Ticket[I]{owner: owner, joined: now, round: max(p.round, p.rounds[owner]) + 1, seq: s.seq + 1, got: make(chan Handover[I], 1), pool: p}
	at, _ := slices.BinarySearchFunc(p.queue, t, func(a, b *Ticket[I]) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.seq, b.seq))
	})
	// Where boots are slow, a wait of two boot times is accepted, too.
	wait, most := time.Duration(at+1)*p.pace, max(s.opt.MaxWait, 2*p.bootTime)
	if s.opt.MaxWait > 0 && wait > most && at >= 2*s.opt.Boots && !patient {
		if p.late.IsZero() {
			p.late = now
		}
		if now.Sub(p.late) > lateTime {
			return nil, engi.Errorf(engi.Exhausted, "the node cannot run all executions that arrive: the wait for a sandbox would be %v", wait.Round(time.Millisecond)).
				WithRemedy("try again later, or set claim_timeout to wait").
				WithRetry(engi.Retry{AfterMillis: (wait - most).Milliseconds() + 1, Position: at + 1})
		}
	}
	if !s.shares.Take(owner, 1) {
		return nil, engi.Errorf(engi.Exhausted, "%d executions wait for a sandbox already, %d of them yours", s.waiting, s.shares.Of(owner)).
			WithRemedy("wait and try again, or let the node's administrator raise the queue's limit or the pool").
			WithRetry(s.retryLocked(len(p.queue) + 1))
	}
	s.seq++
	p.rounds[owner] = t.round
	p.queue = slices.Insert(p.queue, at, t)
	s.waiting++
	s.lastActive, p.lastClaim = now, now
	if len(p.ready) > 0 { // an instance became ready after the caller's Take
		it := p.ready[0]
		p.ready = slices.Delete(p.ready, 0, 1)
		p.used++
		s.serveLocked(p, Handover[I]{Instance: it.instance})
	}
	s.signal()
	return t, nil
}

// Leave gives up a ticket. If the ticket was served in the meantime, Leave
// returns the handover, and the caller owns its instance.
func (s *Scheduler[I]) Leave(t *Ticket[I]) (h Handover[I], served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(t.pool.queue, t); i >= 0 {
		t.pool.queue = slices.Delete(t.pool.queue, i, i+1)
		s.waiting--
		s.shares.Give(t.owner, 1)
		s.restLocked(t.pool)
		s.signal()
		return h, false
	}
	select {
	case h = <-t.got:
		return h, true
	default:
		return h, false // already received from C
	}
}

// Retry estimates when the caller at the given place of a queue, counted from
// 1, can expect an instance.
func (s *Scheduler[I]) Retry(place int) engi.Retry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retryLocked(place)
}

func (s *Scheduler[I]) retryLocked(place int) engi.Retry {
	pace := max(s.bootTime, 50*time.Millisecond)
	after := pace * time.Duration(max(place, 1)) / time.Duration(s.opt.Boots)
	return engi.Retry{AfterMillis: max(after, pace).Milliseconds(), Position: place}
}

// Position returns a ticket's place in its queue, counted from 1; 0 if it was
// served.
func (s *Scheduler[I]) Position(t *Ticket[I]) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(t.pool.queue, t) + 1
}

// Booted reports that an ordered boot made inst from the template with digest.
func (s *Scheduler[I]) Booted(b Boot, inst I, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.endedLocked(b)
	took := now.Sub(b.Ordered)
	average(&s.bootTime, took, 4)
	average(&p.bootTime, took, 4)
	if p.pace == 0 {
		p.pace = took / time.Duration(s.opt.Boots)
	}
	p.fails, p.failure = 0, nil
	if len(p.queue) > 0 {
		if !p.served.IsZero() {
			average(&p.pace, now.Sub(p.served), 16)
		}
		p.served = now
		if now.Sub(p.queue[0].joined) <= s.opt.MaxWait/2 {
			p.late = time.Time{}
		}
	}
	s.offerLocked(p, inst, digest, true)
}

// endedLocked removes an ended boot, and returns its pool.
func (s *Scheduler[I]) endedLocked(b Boot) *pool[I] {
	p := s.pools[b.Key]
	i := slices.IndexFunc(p.boots, func(x *Boot) bool { return x.ID == b.ID })
	s.booting--
	if p.boots[i].Wanted {
		s.wanted--
	}
	p.boots = slices.Delete(p.boots, i, i+1)
	return p
}

// Adopt adds a running instance, ready or used, to key's pool, which it
// creates like Ensure.
func (s *Scheduler[I]) Adopt(key Key, cfg Config, inst I, digest string, used bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive++
	p := s.ensureLocked(key, cfg, digest, now)
	if used {
		p.used++
		return
	}
	s.offerLocked(p, inst, digest, false)
}

// Reserve reserves a place for an instance that the caller boots itself, if necessary
// by retiring a ready one. It returns Exhausted if there is no place. Follow it
// with AddUsed or Unreserve.
func (s *Scheduler[I]) Reserve(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastActive = now
	if s.alive-s.tearing-len(s.retired) >= s.opt.Max {
		w := plan[I]{Scheduler: s, now: now}
		if !w.evict(nil) {
			return engi.Errorf(engi.Exhausted, "the node has %d sandboxes, which is its limit", s.alive).
				WithRemedy("wait until one ends, hibernate one, or let the node's administrator raise the maximum").
				WithRetry(s.retryLocked(1))
		}
	}
	s.alive++
	s.signal()
	return nil
}

// Unreserve gives back the place that Reserve reserved.
func (s *Scheduler[I]) Unreserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive--
	s.signal()
}

// AddUsed adds an instance in use to key's pool, which it creates like Ensure,
// in the place that Reserve reserved.
func (s *Scheduler[I]) AddUsed(key Key, cfg Config, digest string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(key, cfg, digest, now).used++
}

// offerLocked gives inst to the first ticket in the queue, or puts it in the pool.
func (s *Scheduler[I]) offerLocked(p *pool[I], inst I, digest string, fresh bool) {
	p.warmed = true
	if len(p.queue) > 0 {
		p.used++
		s.serveLocked(p, Handover[I]{Instance: inst, Fresh: fresh})
	} else {
		p.ready = append(p.ready, item[I]{inst, digest})
	}
	s.signal()
}

// serveLocked ends the wait of the first ticket in p's queue with h.
func (s *Scheduler[I]) serveLocked(p *pool[I], h Handover[I]) {
	t := p.queue[0]
	p.queue = slices.Delete(p.queue, 0, 1)
	p.round = t.round
	s.waiting--
	s.shares.Give(t.owner, 1)
	s.restLocked(p)
	t.got <- h
}

// restLocked resets the rounds and the waiting times of p when no ticket waits.
func (s *Scheduler[I]) restLocked(p *pool[I]) {
	if len(p.queue) == 0 {
		clear(p.rounds)
		p.round, p.served, p.late = 0, time.Time{}, time.Time{}
	}
}

// BootFailed reports that an ordered boot failed. After giveUp failures in a
// row, or one that a retry cannot fix, all tickets in the pool's queue are
// refused.
func (s *Scheduler[I]) BootFailed(b Boot, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive--
	p := s.endedLocked(b)
	p.fails++
	p.failure = err
	p.retryAt = now.Add(min(backoffFirst<<min(p.fails-1, 10), backoffMost))
	if engi.Is(err, engi.Invalid, engi.NotFound, engi.Unsupported) {
		p.fails = max(p.fails, giveUp)
	}
	if p.fails >= giveUp {
		for len(p.queue) > 0 {
			s.serveLocked(p, Handover[I]{Err: p.refusal(now)})
		}
	}
	s.signal()
}

// refusal is the error for callers while p cannot boot. It has the kind of the
// boot's failure if a retry is pointless.
func (p *pool[I]) refusal(now time.Time) error {
	kind := engi.KindOf(p.failure)
	switch kind {
	case engi.Invalid, engi.NotFound, engi.Unsupported, engi.Exhausted:
	default:
		kind = engi.Unavailable
	}
	return engi.Errorf(kind, "no sandbox of %s could be booted: %w", p.key, p.failure).
		WithRemedy("%s", engi.RemedyOf(p.failure)).
		WithRetry(engi.Retry{AfterMillis: max(1, p.retryAt.Sub(now).Milliseconds())})
}

// Retire reports that a taken instance was used; a plan will tear it down.
// With hurry, the teardown does not wait for quiet.
func (s *Scheduler[I]) Retire(key Key, inst I, now time.Time, hurry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[key].used--
	s.lastActive = now
	s.retireLocked(inst, now, hurry)
}

// Discard removes a ready instance that died or is no longer wanted; a plan will
// tear it down. It reports whether the instance was ready.
func (s *Scheduler[I]) Discard(key Key, inst I, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		return false
	}
	i := slices.IndexFunc(p.ready, func(it item[I]) bool { return it.instance == inst })
	if i < 0 {
		return false
	}
	p.ready = slices.Delete(p.ready, i, i+1)
	s.retireLocked(inst, now, true)
	return true
}

// Hurry makes the teardown of inst immediate, if it was retired.
func (s *Scheduler[I]) Hurry(inst I) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.retired {
		if s.retired[i].instance == inst {
			s.retired[i].hurry = true
			s.signal()
		}
	}
}

func (s *Scheduler[I]) retireLocked(inst I, now time.Time, hurry bool) {
	s.retired = append(s.retired, retired[I]{inst, now, hurry})
	s.signal()
}

// RemoveUsed reports that an instance in use was destroyed by its user; no
// plan will tear it down.
func (s *Scheduler[I]) RemoveUsed(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[key].used--
	s.alive--
	s.signal()
}

// TornDown reports that one of a plan's Teardowns is done.
func (s *Scheduler[I]) TornDown(I) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tearing--
	s.alive--
	s.signal()
}

// SetTemplate sets the current digest of a template and the languages it can run; an
// empty digest means the template is gone. Instances of another digest serve
// until enough instances of the new one are ready. A pool of a language that the
// template cannot run keeps no instances. SetTemplate reports whether anything
// changed.
func (s *Scheduler[I]) SetTemplate(template, digest string, can func(engi.Language) bool) (changed bool) {
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
			if p.pastDigests == nil {
				p.pastDigests = map[string]bool{}
			}
			p.pastDigests[p.digest] = true
			delete(p.pastDigests, digest)
			p.digest = digest
			p.fails, p.failure, p.retryAt = 0, nil, time.Time{}
		}
		p.unable = unable
		changed = true
		s.signal()
	}
	return changed
}

// Digest returns the current digest of the template of key's pool, empty if
// unknown.
func (s *Scheduler[I]) Digest(key Key) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pools[key]; p != nil {
		return p.digest
	}
	return ""
}

// target returns the number of ready instances that the pool should keep.
func (p *pool[I]) target() int {
	if p.unable || p.config.Demand && p.digest == "" { // the pool is not configured, and its template is gone
		return 0
	}
	return max(p.config.Target, p.goal)
}

// Drain refuses all waiting tickets, stops filling pools, and retires all
// ready instances. Ephemeral nodes call it when they stop.
func (s *Scheduler[I]) Drain(now time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.config.Target = 0
		for len(p.queue) > 0 {
			s.serveLocked(p, Handover[I]{Err: why})
		}
		for _, it := range p.ready {
			s.retireLocked(it.instance, now, true)
		}
		p.ready = nil
	}
	for i := range s.retired {
		s.retired[i].hurry = true
	}
	s.signal()
}

// Status returns all pools, ordered by template and language.
func (s *Scheduler[I]) Status() []engi.PoolStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []engi.PoolStatus
	for _, p := range s.pools {
		all = append(all, engi.PoolStatus{
			Template: p.key.Template,
			Digest:   p.digest,
			Language: p.key.Language,
			Target:   p.target(),
			Max:      p.config.Max,
			Ready:    len(p.ready),
			Booting:  len(p.boots),
			Used:     p.used,
			Waiting:  len(p.queue),
		})
	}
	slices.SortFunc(all, func(a, b engi.PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Template, b.Template), cmp.Compare(a.Language, b.Language), cmp.Compare(b.Target, a.Target))
	})
	return all
}

// Cold returns the configured pools that have never had a ready instance, with
// the last error of their boots.
func (s *Scheduler[I]) Cold() map[Key]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cold := map[Key]error{}
	for _, p := range s.pools {
		if !p.config.Demand && p.target() > 0 && !p.warmed {
			cold[p.key] = p.failure
		}
	}
	return cold
}

// Counts returns the number of instances in any state, and of tickets.
func (s *Scheduler[I]) Counts() (alive, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive, s.waiting
}
