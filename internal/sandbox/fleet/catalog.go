package fleet

import (
	"context"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// A catalog caches the templates by name, so that a claim does not read the
// disk. It pins nothing: the caller that boots from a template pins it.
type catalog struct {
	src Templates

	mu      sync.Mutex
	changed <-chan struct{}          // change channel of src, fetched before known was filled; guarded by mu
	known   map[string]engi.Template // guarded by mu
}

// get returns the current template called name.
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
	known[name] = t // c.known may have been replaced meanwhile
	c.mu.Unlock()
	return t, nil
}

// forget empties the cache, because src does not announce builds by other processes.
func (c *catalog) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = nil
}
