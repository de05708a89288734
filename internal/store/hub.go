package store

import (
	"slices"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// A hub wakes followers of the event log when events for them arrive, and caches the
// newest events, so that followers need not read the database. It is safe for
// concurrent use.
type hub struct {
	mu        sync.Mutex
	last      int64        // Seq of the newest event
	tail      []engi.Event // newest events, without a gap
	bytes     int          // bytes of data in tail
	bySubject map[string]map[*follower]bool
	byViewer  map[engi.Viewer]map[*follower]bool
	others    map[*follower]bool
}

// Limits of the events in memory.
const (
	tailEvents = 4096
	tailBytes  = 8 << 20
)

// A follower waits for events.
type follower struct {
	viewer engi.Viewer
	filter engi.EventFilter
	wake   chan struct{} // has capacity 1
}

func newHub(last int64) *hub {
	return &hub{last: last, bySubject: map[string]map[*follower]bool{}, byViewer: map[engi.Viewer]map[*follower]bool{}, others: map[*follower]bool{}}
}

// publish adds committed events. Callers must hold the only connection for
// writing, so that events come in the order of their commits.
func (h *hub) publish(events []engi.Event) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.last = e.Seq
		h.tail = append(h.tail, e)
		h.bytes += len(e.Data)
		for f := range h.bySubject[e.Subject] {
			f.tell(e)
		}
		for f := range h.byViewer[e.Owner.Viewer()] {
			f.tell(e)
		}
		for f := range h.others {
			f.tell(e)
		}
	}
	drop := 0
	for len(h.tail)-drop > tailEvents || h.bytes > tailBytes {
		h.bytes -= len(h.tail[drop].Data)
		drop++
	}
	clear(h.tail[:drop])
	h.tail = h.tail[drop:]
}

// tell wakes the follower if its viewer sees e and its filter selects e.
func (f *follower) tell(e engi.Event) {
	if !f.viewer.Sees(e.Owner) || !f.filter.Matches(e) {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// follow adds a follower until stop is called. It ignores filter.After.
func (h *hub) follow(viewer engi.Viewer, filter engi.EventFilter) (f *follower, stop func()) {
	filter.After = 0
	f = &follower{viewer: viewer, filter: filter, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case filter.Subject != "":
		join(h.bySubject, filter.Subject, f)
		return f, func() { leave(h, h.bySubject, filter.Subject, f) }
	case viewer != engi.Everyone:
		join(h.byViewer, viewer, f)
		return f, func() { leave(h, h.byViewer, viewer, f) }
	}
	h.others[f] = true
	return f, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.others, f)
	}
}

func join[K comparable](m map[K]map[*follower]bool, key K, f *follower) {
	if m[key] == nil {
		m[key] = map[*follower]bool{}
	}
	m[key][f] = true
}

func leave[K comparable](h *hub, m map[K]map[*follower]bool, key K, f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(m[key], f); len(m[key]) == 0 {
		delete(m, key)
	}
}

// after returns the cached events that viewer sees and f selects, and a Seq up to which no event is
// missing. ok is false if some events since f.After are not cached.
func (h *hub) after(viewer engi.Viewer, f engi.EventFilter) (events []engi.Event, through int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.After >= h.last {
		return nil, f.After, true
	}
	if len(h.tail) == 0 || f.After < h.tail[0].Seq-1 {
		return nil, h.last, false
	}
	for i := len(h.tail) - 1; i >= 0; i-- {
		if h.tail[i].Seq <= f.After {
			break
		}
		if viewer.Sees(h.tail[i].Owner) && f.Matches(h.tail[i]) {
			events = append(events, h.tail[i])
		}
	}
	slices.Reverse(events)
	return events, h.last, true
}
