package fleet

import (
	"context"
	"sync"

	"github.com/engi-dev/engi"
)

// A catalog remembers what template names mean, so that a claim need not ask
// the disk. It pins nothing: whoever boots uses the template itself.
type catalog struct {
	src Templates

	mu      sync.Mutex
	changed <-chan struct{} // of src, from before known was filled
	known   map[string]engi.Template
}

// get returns what name means now.
func (c *catalog) get(ctx context.Context, name string) (engi.Template, error) {
	c.mu.Lock()
	select {
	case <-c.changed:
		c.known = nil
	default:
	}
	if t, ok := c.known[name]; ok {
		c.mu.Unlock()
		return t, nil
	}
	if c.known == nil {
		c.changed = c.src.Changed()
		c.known = map[string]engi.Template{}
	}
	known := c.known
	c.mu.Unlock()

	t, release, err := c.src.Use(ctx, name)
	if err != nil {
		return engi.Template{}, err
	}
	release()
	c.mu.Lock()
	known[name] = t // of the generation that was asked for
	c.mu.Unlock()
	return t, nil
}

// forget makes the next get ask again: another process may have built a
// template, which src does not tell.
func (c *catalog) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = nil
}
