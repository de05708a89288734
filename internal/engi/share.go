package engi

import "sync"

// Shares divides a limited resource, like the places of a queue, among owners: an
// owner may take more as long as it then has at most three times of what was free,
// so an owner alone gets three quarters, and there is always something left for
// others. This is the dynamic threshold of Choudhury and Hahne, "Dynamic queue
// length thresholds for shared-memory packet switches" (1998). It is safe for
// concurrent use.
type Shares struct {
	most int64

	mu    sync.Mutex
	taken int64
	of    map[Owner]int64
}

// NewShares returns the shares of a resource with the given amount.
func NewShares(most int64) *Shares { return &Shares{most: most, of: map[Owner]int64{}} }

// Take takes n for an owner, and reports false if that is more than the owner may
// have, or more than is free. The caller must Give it back.
func (s *Shares) Take(owner Owner, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fits := s.fitsLocked(owner, n)
	if fits {
		s.addLocked(owner, n)
	}
	return fits
}

// Fits reports whether Take would take n for an owner.
func (s *Shares) Fits(owner Owner, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fitsLocked(owner, n)
}

func (s *Shares) fitsLocked(owner Owner, n int64) bool {
	free := s.most - s.taken
	return n <= free && s.of[owner]+n <= 3*free
}

// Add takes n for an owner even if that exceeds the owner's share.
func (s *Shares) Add(owner Owner, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(owner, n)
}

// Give gives back an amount that an owner has taken.
func (s *Shares) Give(owner Owner, n int64) { s.Add(owner, -n) }

func (s *Shares) addLocked(owner Owner, n int64) {
	s.taken += n
	if s.of[owner] += n; s.of[owner] == 0 {
		delete(s.of, owner)
	}
}

// Of returns the amount that an owner has taken.
func (s *Shares) Of(owner Owner) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[owner]
}
