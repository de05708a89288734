// Package journal writes down what the wall decides, without ever making a
// decision wait. Events go through one bounded queue and in batches to a
// store. What one sandbox repeats is said once and counted, and how much of the
// log one sandbox can fill in a second is bounded, so that a flood of refusals
// pushes nothing out that was of interest.
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/engi-dev/engi"
)

// A Store keeps events; see egress.Store.
type Store interface {
	Append(ctx context.Context, events []engi.NetworkEvent) error
	Events(ctx context.Context, owner engi.Owner, id engi.SandboxID, seq int64, limit int) ([]engi.NetworkEvent, error)
}

const (
	queued   = 8192 // events that wait for the store
	batch    = 512  // events that the store gets at once
	linger   = 20 * time.Millisecond
	repeated = 10 * time.Second // how long the same is said once
	distinct = 256              // different things that one sandbox may repeat at once
	perSec   = 100              // events of one sandbox
	burst    = 1000             // and at once
)

// A Journal is the log of all sandboxes. It is safe for concurrent use.
type Journal struct {
	store Store
	log   *slog.Logger
	queue chan entry
	lost  atomic.Int64 // events that found the queue full
	done  sync.WaitGroup
	stop  context.CancelFunc

	mu      sync.Mutex
	waiters map[engi.SandboxID]map[chan struct{}]bool // guarded by mu
	closed  bool                                      // guarded by mu
}

type entry struct {
	event engi.NetworkEvent
	flush chan struct{} // closed when everything before is in the store; then there is no event
}

// New returns a Journal that is running.
func New(store Store, log *slog.Logger) *Journal {
	ctx, stop := context.WithCancel(context.Background())
	j := &Journal{store: store, log: log, queue: make(chan entry, queued), stop: stop,
		waiters: make(map[engi.SandboxID]map[chan struct{}]bool)}
	j.done.Go(func() { j.run(ctx) })
	return j
}

// Close writes what is queued and ends the journal.
func (j *Journal) Close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.stop()
	j.done.Wait()
}

// Lost returns how many events were not written.
func (j *Journal) Lost() int64 { return j.lost.Load() }

func (j *Journal) add(e engi.NetworkEvent) {
	select {
	case j.queue <- entry{event: e}:
	default:
		j.lost.Add(1)
	}
}

func (j *Journal) run(ctx context.Context) {
	var events []engi.NetworkEvent
	var told int64
	write := func() {
		if n := j.lost.Load(); n > told && len(events) > 0 {
			last := events[len(events)-1]
			events = append(events, engi.NetworkEvent{Time: time.Now(), Sandbox: last.Sandbox, Owner: last.Owner, Kind: engi.NetworkLimit,
				Reason: fmt.Sprintf("%d events of this node were not written, because there were too many at once", n-told)})
			told = n
		}
		j.write(events)
		events = events[:0]
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			for {
				select {
				case e := <-j.queue:
					if e.flush != nil {
						write()
						close(e.flush)
					} else {
						events = append(events, e.event)
					}
				default:
					write()
					return
				}
			}
		case e := <-j.queue:
			if e.flush != nil {
				write()
				close(e.flush)
				continue
			}
			if events = append(events, e.event); len(events) == 1 {
				timer.Reset(linger)
			}
			if len(events) >= batch {
				write()
			}
		case <-timer.C:
			write()
		}
	}
}

func (j *Journal) write(events []engi.NetworkEvent) {
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := j.store.Append(ctx, events); err != nil {
		j.lost.Add(int64(len(events)))
		j.log.Error("the network log was not written", "events", len(events), "error", err)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range events {
		for c := range j.waiters[e.Sandbox] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// flush waits until everything that was added before is in the store.
func (j *Journal) flush(ctx context.Context) {
	j.mu.Lock()
	closed := j.closed
	j.mu.Unlock()
	if closed {
		return
	}
	e := entry{flush: make(chan struct{})}
	t := time.NewTimer(time.Second) // a store that is slow, or an end that came between
	defer t.Stop()
	select {
	case j.queue <- e:
	case <-ctx.Done():
		return
	case <-t.C:
		return
	}
	select {
	case <-e.flush:
	case <-ctx.Done():
	case <-t.C:
	}
}

// Events implements engi.NetworkLog.
func (j *Journal) Events(ctx context.Context, owner engi.Owner, id engi.SandboxID, seq int64, limit int, wait bool) ([]engi.NetworkEvent, error) {
	if limit <= 0 {
		limit = 1000
	}
	woken := make(chan struct{}, 1)
	if wait {
		j.watch(id, woken)
		defer j.unwatch(id, woken)
	}
	for {
		j.flush(ctx)
		if wait && ctx.Err() != nil {
			return nil, nil
		}
		events, err := j.store.Events(ctx, owner, id, seq, limit)
		if err != nil || len(events) > 0 || !wait {
			if wait && ctx.Err() != nil {
				return nil, nil
			}
			return events, err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (j *Journal) watch(id engi.SandboxID, c chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.waiters[id] == nil {
		j.waiters[id] = make(map[chan struct{}]bool)
	}
	j.waiters[id][c] = true
}

func (j *Journal) unwatch(id engi.SandboxID, c chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiters[id], c)
	if len(j.waiters[id]) == 0 {
		delete(j.waiters, id)
	}
}

// A Log is the part of the journal that is about one sandbox. It is safe for
// concurrent use.
type Log struct {
	journal *Journal
	limit   *rate.Limiter

	mu       sync.Mutex
	same     map[engi.NetworkEvent]*repeats // guarded by mu; keys have no time and no count of bytes
	silenced int                            // guarded by mu; beyond limit
	last     engi.NetworkEvent              // guarded by mu; of those
	timer    *time.Timer                    // guarded by mu; runs while something is repeated
}

type repeats struct {
	more  int
	until time.Time
}

// Log returns a page for a sandbox.
func (j *Journal) Page() *Log {
	return &Log{journal: j, limit: rate.NewLimiter(perSec, burst), same: make(map[engi.NetworkEvent]*repeats)}
}

// Add writes an event down. It does not wait.
func (p *Log) Add(e engi.NetworkEvent) {
	now := time.Now()
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Seq = 0
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Kind != engi.NetworkClose && e.Kind != engi.NetworkRequest {
		key := keyOf(e)
		if r := p.same[key]; r != nil && now.Before(r.until) {
			r.more++
			return
		}
		if len(p.same) < distinct {
			p.same[key] = &repeats{until: now.Add(repeated)}
			p.arm()
		}
	}
	if !p.limit.AllowN(now, 1) {
		p.silenced++
		p.last = e
		p.arm()
		return
	}
	p.journal.add(e)
}

// keyOf makes events equal that say the same.
func keyOf(e engi.NetworkEvent) engi.NetworkEvent {
	e.Time, e.Up, e.Down = time.Time{}, 0, 0
	return e
}

// arm has the page swept later. The caller holds p.mu.
func (p *Log) arm() {
	if p.timer == nil {
		p.timer = time.AfterFunc(repeated, func() { p.sweep(false) })
	}
}

// sweep says how often what was said was repeated.
func (p *Log) sweep(all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	now := time.Now()
	for key, r := range p.same {
		if !all && now.Before(r.until) {
			continue
		}
		delete(p.same, key)
		if r.more > 0 {
			key.Time = now
			key.Reason = fmt.Sprintf("%s (%d times more within %v)", key.Reason, r.more, repeated)
			p.journal.add(key)
		}
	}
	if p.silenced > 0 {
		p.journal.add(engi.NetworkEvent{Time: now, Sandbox: p.last.Sandbox, Owner: p.last.Owner, Kind: engi.NetworkLimit,
			Reason: fmt.Sprintf("%d events more than the log takes from one sandbox were not written", p.silenced)})
		p.silenced = 0
	}
	if !all && len(p.same) > 0 {
		p.arm()
	}
}

// Close says what is left to say.
func (p *Log) Close() {
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.sweep(true)
}
