package engi

import (
	"context"
	"sync"
)

// A KeyedSemaphore limits the number of concurrent callers for each key; with one slot
// per key it is a mutex by key. Unused keys take no memory. It is safe
// for concurrent use.
type KeyedSemaphore[K comparable] struct {
	slots int

	mu   sync.Mutex
	keys map[K]*semaphore
}

type semaphore struct {
	taken chan struct{}
	users int // number of callers that have a slot or wait for one; guarded by KeyedSemaphore.mu
}

// NewKeyedSemaphore returns a semaphore with the given number of slots for each key, at least one.
func NewKeyedSemaphore[K comparable](slots int) *KeyedSemaphore[K] {
	return &KeyedSemaphore[K]{slots: max(slots, 1), keys: map[K]*semaphore{}}
}

// Acquire waits for a slot of a key, which the caller releases once. It reports
// Expired if ctx ends first.
func (s *KeyedSemaphore[K]) Acquire(ctx context.Context, key K) (release func(), err error) {
	s.mu.Lock()
	k := s.keys[key]
	if k == nil {
		k = &semaphore{taken: make(chan struct{}, s.slots)}
		s.keys[key] = k
	}
	k.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(s.keys, key)
		}
	}
	select {
	case k.taken <- struct{}{}:
		return func() { <-k.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, Errorf(Expired, "%v", context.Cause(ctx))
	}
}

// Len returns the number of keys in use.
func (s *KeyedSemaphore[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}
