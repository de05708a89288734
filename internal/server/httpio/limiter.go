package httpio

import (
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// A Limiter limits the number of streams open at a time, for each sandbox or
// owner and in total. The zero value is ready to use. It is safe for concurrent use.
type Limiter struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// Maximum numbers of streams open at a time.
const (
	maxStreams    = 8192
	maxOwnStreams = 512
)

// Join counts a stream until leave is called. Further calls of leave do nothing. Join reports Exhausted if
// too many are open.
func (c *Limiter) Join(of string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.of[of] >= maxOwnStreams:
		return nil, engi.Errorf(engi.Exhausted, "%d streams of %s are open already", c.of[of], of).
			WithRemedy("close some; %d may be open at the same time", maxOwnStreams)
	case c.all >= maxStreams:
		return nil, engi.Errorf(engi.Exhausted, "%d streams are open on this server already", c.all).
			WithRemedy("try again when other ones have ended").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.all++
	c.of[of]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.of[of]--; c.of[of] == 0 {
			delete(c.of, of)
		}
	}, nil
}
