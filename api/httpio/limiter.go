package httpio

import (
	"sync"

	"github.com/engi-dev/engi"
)

// A Limiter limits how many streams are open at a time, for each sandbox and in
// total. The zero value is ready to use. It is safe for concurrent use.
type Limiter struct {
	mu  sync.Mutex
	all int
	of  map[engi.SandboxID]int
}

// The most streams that may be open at a time.
const (
	maxStreams        = 8192
	maxSandboxStreams = 512
)

// Join counts a stream, until leave is called, once. It reports Exhausted if
// too many are open.
func (c *Limiter) Join(id engi.SandboxID) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.of[id] >= maxSandboxStreams:
		return nil, engi.Errorf(engi.Exhausted, "%d streams of %s are open already", c.of[id], id).
			WithRemedy("close some; %d may be open at the same time", maxSandboxStreams)
	case c.all >= maxStreams:
		return nil, engi.Errorf(engi.Exhausted, "%d streams are open on this server already", c.all).
			WithRemedy("try again when others have ended").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if c.of == nil {
		c.of = map[engi.SandboxID]int{}
	}
	c.all++
	c.of[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.of[id]--; c.of[id] == 0 {
			delete(c.of, id)
		}
	}, nil
}
