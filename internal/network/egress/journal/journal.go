// Package journal logs the decisions of package egress without ever blocking them.
// Events go through one bounded queue and in batches to a store. Repeated events
// of a sandbox are logged once and counted, and the rate of events per sandbox
// is limited, so that a flood of refusals does not displace other events.
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/engi-dev/engi/internal/engi"
)

// A Store keeps events; see egress.Store.
type Store interface {
	Append(ctx context.Context, events []engi.NetworkRecord) error
	Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int) ([]engi.NetworkRecord, error)
}

const (
	queueSize      = 8192 // maximum number of events waiting for the store
	batchSize      = 512  // maximum number of events written at once
	batchDelay     = 20 * time.Millisecond
	repeatInterval = 10 * time.Second // time within which equal events are logged once
	maxRepeats     = 256              // maximum number of different events of one sandbox that are tracked for repeats
	perSecond      = 100              // maximum number of events of one sandbox per second
	burst          = 1000             // maximum number of events of one sandbox at once
)

// A Journal is the log of all sandboxes. It is safe for concurrent use.
type Journal struct {
	store Store
	log   *slog.Logger
	queue chan entry
	lost  atomic.Int64 // number of events dropped because the queue was full or the store failed
	done  sync.WaitGroup
	stop  context.CancelFunc

	mu      sync.Mutex
	waiters map[engi.SandboxID]map[chan struct{}]bool // guarded by mu
	closed  bool                                      // guarded by mu
}

type entry struct {
	event engi.NetworkRecord
	flush chan struct{} // if not nil, the item has no event, and flush is closed once all earlier events are in the store
}

// New returns a running Journal. The caller closes it.
func New(store Store, log *slog.Logger) *Journal {
	ctx, stop := context.WithCancel(context.Background())
	j := &Journal{store: store, log: log, queue: make(chan entry, queueSize), stop: stop,
		waiters: make(map[engi.SandboxID]map[chan struct{}]bool)}
	j.done.Go(func() { j.run(ctx) })
	return j
}

// Close writes the queued events and stops the journal.
func (j *Journal) Close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.stop()
	j.done.Wait()
}

// Lost returns the number of events that were not stored.
func (j *Journal) Lost() int64 { return j.lost.Load() }

func (j *Journal) add(e engi.NetworkRecord) {
	select {
	case j.queue <- entry{event: e}:
	default:
		j.lost.Add(1)
	}
}

func (j *Journal) run(ctx context.Context) {
	var events []engi.NetworkRecord
	var reported int64
	write := func() {
		if n := j.lost.Load(); n > reported && len(events) > 0 {
			last := events[len(events)-1]
			events = append(events, engi.NetworkRecord{Time: time.Now(), Sandbox: last.Sandbox, Owner: last.Owner, Kind: engi.NetworkLimit,
				Reason: fmt.Sprintf("%d events of this node were not logged because there were too many at once", n-reported)})
			reported = n
		}
		j.write(events)
		events = events[:0]
	}
	timer := time.NewTimer(batchDelay)
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
				timer.Reset(batchDelay)
			}
			if len(events) >= batchSize {
				write()
			}
		case <-timer.C:
			write()
		}
	}
}

func (j *Journal) write(events []engi.NetworkRecord) {
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

// flush waits until all events added before are in the store.
func (j *Journal) flush(ctx context.Context) {
	j.mu.Lock()
	closed := j.closed
	j.mu.Unlock()
	if closed {
		return
	}
	e := entry{flush: make(chan struct{})}
	t := time.NewTimer(time.Second) // the store may be slow, or the journal may have stopped
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
func (j *Journal) Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int, wait bool) ([]engi.NetworkRecord, error) {
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
		events, err := j.store.Events(ctx, viewer, id, seq, limit)
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

// A Log adds the events of one sandbox to a journal. It is safe for concurrent
// use.
type Log struct {
	journal *Journal
	limit   *rate.Limiter

	mu         sync.Mutex
	repeats    map[engi.NetworkRecord]*repeats // repeated events, by repeatKey; guarded by mu
	suppressed int                             // number of events beyond the limit; guarded by mu
	last       engi.NetworkRecord              // last event beyond the limit; guarded by mu
	timer      *time.Timer                     // runs while there are repeats to sweep; guarded by mu
}

type repeats struct {
	more  int
	until time.Time
}

// NewLog returns a Log for one sandbox. The caller closes it.
func (j *Journal) NewLog() *Log {
	return &Log{journal: j, limit: rate.NewLimiter(perSecond, burst), repeats: make(map[engi.NetworkRecord]*repeats)}
}

// Add logs an event. It does not block.
func (l *Log) Add(e engi.NetworkRecord) {
	now := time.Now()
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Seq = 0
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind != engi.NetworkClose && e.Kind != engi.NetworkRequest {
		key := repeatKey(e)
		if r := l.repeats[key]; r != nil && now.Before(r.until) {
			r.more++
			return
		}
		if len(l.repeats) < maxRepeats {
			l.repeats[key] = &repeats{until: now.Add(repeatInterval)}
			l.scheduleSweep()
		}
	}
	if !l.limit.AllowN(now, 1) {
		l.suppressed++
		l.last = e
		l.scheduleSweep()
		return
	}
	l.journal.add(e)
}

// repeatKey returns a key that is equal for events that differ only in time and counts.
func repeatKey(e engi.NetworkRecord) engi.NetworkRecord {
	e.Time, e.Up, e.Down = time.Time{}, 0, 0
	return e
}

// scheduleSweep schedules a later call of sweep. The caller holds l.mu.
func (l *Log) scheduleSweep() {
	if l.timer == nil {
		l.timer = time.AfterFunc(repeatInterval, func() { l.sweep(false) })
	}
}

// sweep logs the counts of repeated events, for events whose interval has passed or for
// all.
func (l *Log) sweep(all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	now := time.Now()
	for key, r := range l.repeats {
		if !all && now.Before(r.until) {
			continue
		}
		delete(l.repeats, key)
		if r.more > 0 {
			key.Time = now
			key.Reason = fmt.Sprintf("%s (%d times more within %v)", key.Reason, r.more, repeatInterval)
			l.journal.add(key)
		}
	}
	if l.suppressed > 0 {
		l.journal.add(engi.NetworkRecord{Time: now, Sandbox: l.last.Sandbox, Owner: l.last.Owner, Kind: engi.NetworkLimit,
			Reason: fmt.Sprintf("%d events beyond the rate limit of a sandbox were not logged", l.suppressed)})
		l.suppressed = 0
	}
	if !all && len(l.repeats) > 0 {
		l.scheduleSweep()
	}
}

// Close logs the remaining repeats.
func (l *Log) Close() {
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.sweep(true)
}
