package httpio

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// A Stream answers a request with what a source yields, as events. It is used
// once, by one goroutine. All fields but First and End are needed.
type Stream[E any] struct {
	W    http.ResponseWriter
	Form Format
	Beat time.Duration // silence before a heartbeat

	// Patience is how long an error of the source becomes the answer instead
	// of an event; 0 begins the stream at once, a negative one with the first
	// event or heartbeat.
	Patience time.Duration

	// Each sends what an item becomes. Its error means that the caller is not
	// there.
	Each func(out *EventWriter, e E) (last bool, err error)
	// Mark returns the event of a heartbeat, or of an error.
	Mark func(kind string, p *v1.Problem) any
	// Describe returns what the caller is told of an error; false if nobody
	// is there to be told.
	Describe func(error) (v1.Problem, bool)
	// First, if it is not nil, sends what comes before all items.
	First func(out *EventWriter) error
	// End, if it is not nil, sends what follows when the source has ended
	// without a last item.
	End func(out *EventWriter) error
}

// Serve answers. The source ends with ctx, which cancel ends when the stream
// does. An error is for the caller of a stream that has not begun.
func (s Stream[E]) Serve(ctx context.Context, cancel context.CancelFunc, source iter.Seq2[E, error]) error {
	pulled := Pull(source)
	defer pulled.Stop()
	defer cancel()

	out, begun := NewEventWriter(s.W, s.Form), false
	begin := func() bool {
		if begun {
			return true
		}
		begun = true
		return out.Begin() == nil && (s.First == nil || s.First(out) == nil)
	}
	var soon <-chan time.Time
	switch {
	case s.Patience > 0:
		t := time.NewTimer(s.Patience)
		defer t.Stop()
		soon = t.C
	case s.Patience == 0 && !begin():
		return nil
	}
	beat := time.NewTicker(s.Beat)
	defer beat.Stop()
	for {
		select {
		case <-soon:
			if !begin() {
				return nil
			}
		case <-beat.C:
			if !begin() || out.Beat(s.Mark(v1.EventHeartbeat, nil), s.Beat) != nil {
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
				_ = s.End(out) // the caller may have left
				return nil
			case e.Err != nil:
				if p, ok := s.Describe(e.Err); ok {
					_ = out.Send(v1.EventError, "", s.Mark(v1.EventError, &p)) // the caller may have left
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
