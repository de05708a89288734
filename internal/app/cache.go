package app

import (
	"container/list"
	"context"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// A cache keeps recently read contents of files. They are found by digest, so its
// contents are never stale. It is safe for concurrent use.
type cache struct {
	most int64 // maximum bytes

	mu    sync.Mutex
	size  int64                        // bytes; guarded by mu, like all fields below
	order *list.List                   // elements are cached; most recently used first
	found map[contentKey]*list.Element // elements of order
}

// A contentKey includes the app, so that a digest reveals nothing about other owners' contents.
type contentKey struct {
	app    engi.AppID
	digest string
}

type cached struct {
	key  contentKey
	data []byte
}

func newCache(most int64) *cache {
	return &cache{most: most, order: list.New(), found: map[contentKey]*list.Element{}}
}

func (c *cache) get(k contentKey) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.found[k]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(cached).data, true
}

func (c *cache) put(k contentKey, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.found[k]; ok || int64(len(data)) > c.most {
		return
	}
	c.found[k] = c.order.PushFront(cached{k, data})
	for c.size += int64(len(data)); c.size > c.most; {
		last := c.order.Back()
		old := c.order.Remove(last).(cached)
		delete(c.found, old.key)
		c.size -= int64(len(old.data))
	}
}

// content returns the content of a file of an app. Callers must not change it.
func (s *Service) content(ctx context.Context, app engi.AppID, digest string) ([]byte, error) {
	k := contentKey{app, digest}
	if data, ok := s.cache.get(k); ok {
		return data, nil
	}
	data, err := s.opt.Store.Content(ctx, app, digest)
	if err == nil {
		s.cache.put(k, data)
	}
	return data, err
}
