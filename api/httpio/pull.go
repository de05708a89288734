package httpio

import (
	"iter"
	"runtime/debug"

	"github.com/engi-dev/engi"
)

// A Puller is an iterator that runs in a goroutine of its own, so that its
// user can wait for other things too. It is one event ahead at most.
type Puller[T any] struct {
	Events <-chan Pulled[T]
	next   chan struct{} // the event has been used
	quit   chan struct{}
	done   chan struct{}
}

// A Pulled is one step of an iterator.
type Pulled[T any] struct {
	Event T
	Err   error
}

// Pull starts to iterate. The caller stops the puller.
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
			// The event's data may be gone once the iterator goes on.
			select {
			case <-p.next:
			case <-p.quit:
				return
			}
		}
	}()
	return p
}

// Release gives the event back. After an iterator's panic nobody takes it.
func (p *Puller[T]) Release() {
	select {
	case p.next <- struct{}{}:
	case <-p.done:
	}
}

// Stop ends the iteration and waits until its goroutine is gone. The context
// of the iterator must have ended.
func (p *Puller[T]) Stop() {
	close(p.quit)
	<-p.done
}
