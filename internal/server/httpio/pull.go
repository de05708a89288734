package httpio

import (
	"iter"
	"runtime/debug"

	"github.com/engi-dev/engi/internal/engi"
)

// A Puller runs an iterator in a goroutine, so that a select can receive its
// events. It is at most one event ahead.
type Puller[T any] struct {
	Events <-chan Pulled[T]
	next   chan struct{} // receives a value when an event was released
	quit   chan struct{}
	done   chan struct{}
}

// A Pulled is one step of an iterator.
type Pulled[T any] struct {
	Event T
	Err   error
}

// Pull starts the iteration. The caller must call Stop, and Release after each
// event.
func Pull[T any](seq iter.Seq2[T, error]) *Puller[T] {
	events := make(chan Pulled[T])
	p := &Puller[T]{events, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(p.done)
		defer close(events)
		defer func() {
			if v := recover(); v != nil {
				select {
				case events <- Pulled[T]{Err: engi.Errorf(engi.Internal, "panic: %v\n%s", v, debug.Stack())}:
				case <-p.quit:
				}
			}
		}()
		for e, err := range seq {
			select {
			case events <- Pulled[T]{e, err}:
			case <-p.quit:
				return
			}
			// The event's data may become invalid when the iterator continues.
			select {
			case <-p.next:
			case <-p.quit:
				return
			}
		}
	}()
	return p
}

// Release lets the iterator continue. The event must not be used after that.
func (p *Puller[T]) Release() {
	select {
	case p.next <- struct{}{}:
	case <-p.done:
	}
}

// Stop ends the iteration and waits for its goroutine. The context of the iterator
// must have ended.
func (p *Puller[T]) Stop() {
	close(p.quit)
	<-p.done
}
