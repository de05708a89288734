package httpio

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// A Stream responds to a request with the items of a source as events. It is
// used once, by one goroutine. All fields except Grace, First and End are required.
type Stream[E any] struct {
	W         http.ResponseWriter
	Format    Format
	Heartbeat time.Duration // silence after which a heartbeat is sent

	// Grace is the time that the response waits to start, so that an early error of
	// the source can be its status instead of an event. If it is 0 the response
	// starts at once; if it is negative, with the first event or heartbeat.
	Grace time.Duration

	// Each sends the events for an item. An error means that the client has
	// disconnected.
	Each func(out *EventWriter, e E) (last bool, err error)
	// Marker returns the event for a heartbeat or an error.
	Marker func(kind string, p *v1.Problem) any
	// Describe returns the problem that the client sees for an error; false if it has
	// disconnected.
	Describe func(error) (v1.Problem, bool)
	// First, if not nil, sends events before all items.
	First func(out *EventWriter) error
	// End, if not nil, sends events after all items, unless one was the last
	// event.
	End func(out *EventWriter) error
}

// Serve responds. It returns an error only if the response has not started. Serve
// cancels ctx with cancel at its end, and the source must end when ctx does.
func (s Stream[E]) Serve(ctx context.Context, cancel context.CancelFunc, source iter.Seq2[E, error]) error {
	pulled := Pull(source)
	defer pulled.Stop()
	defer cancel()

	out, begun := NewEventWriter(s.W, s.Format), false
	begin := func() bool {
		if begun {
			return true
		}
		begun = true
		return out.Begin() == nil && (s.First == nil || s.First(out) == nil)
	}
	var soon <-chan time.Time
	switch {
	case s.Grace > 0:
		t := time.NewTimer(s.Grace)
		defer t.Stop()
		soon = t.C
	case s.Grace == 0 && !begin():
		return nil
	}
	beat := time.NewTicker(s.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-soon:
			if !begin() {
				return nil
			}
		case <-beat.C:
			if !begin() || out.Heartbeat(s.Marker(v1.EventHeartbeat, nil), s.Heartbeat) != nil {
				return nil
			}
		case e, ok := <-pulled.Events:
			switch {
			case ok && e.Err != nil && !begun:
				return e.Err
			case !begin():
				return nil
			case !ok && s.End == nil:
				return nil
			case !ok:
				_ = s.End(out) // the client may have disconnected
				return nil
			case e.Err != nil:
				if p, ok := s.Describe(e.Err); ok {
					_ = out.Send(v1.EventError, "", s.Marker(v1.EventError, &p)) // the client may have disconnected
				}
				return nil
			}
			last, err := s.Each(out, e.Event)
			pulled.Release()
			if err != nil || last {
				return nil
			}
		}
	}
}
