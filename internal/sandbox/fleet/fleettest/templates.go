package fleettest

import (
	"context"
	"maps"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// Templates is a fake store of the templates that were set. Use pins a template. It
// is safe for concurrent use.
type Templates struct {
	mu      sync.Mutex
	byName  map[string]engi.Template
	builds  map[string]engi.Template // templates in use, by digest
	pins    map[string]int           // number of users, by digest
	changed chan struct{}
}

var _ fleet.Templates = (*Templates)(nil)

// NewTemplates returns a store of the given templates.
func NewTemplates(ts ...engi.Template) *Templates {
	t := &Templates{byName: map[string]engi.Template{}, builds: map[string]engi.Template{}, pins: map[string]int{}, changed: make(chan struct{})}
	for _, x := range ts {
		t.byName[x.Name] = x
	}
	return t
}

// Set makes the name of x refer to x.
func (t *Templates) Set(x engi.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[x.Name] = x
	t.tell()
}

// Alias makes name, such as a digest, refer to x.
func (t *Templates) Alias(name string, x engi.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[name] = x
	t.tell()
}

// SetQuietly acts like Set by another process: Changed does not announce it.
func (t *Templates) SetQuietly(x engi.Template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[x.Name] = x
}

// Remove removes name.
func (t *Templates) Remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byName, name)
	t.tell()
}

func (t *Templates) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Pins returns the number of users of each digest.
func (t *Templates) Pins() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.pins)
}

// Use implements fleet.Templates.
func (t *Templates) Use(ctx context.Context, nameOrDigest string) (engi.Template, func(), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, ok := t.byName[nameOrDigest]
	for _, y := range t.byName {
		if !ok && y.Digest == nameOrDigest {
			x, ok = y, true
		}
	}
	if !ok {
		x, ok = t.builds[nameOrDigest]
	}
	if !ok {
		return engi.Template{}, nil, engi.Errorf(engi.NotFound, "no template %s", nameOrDigest)
	}
	t.pins[x.Digest]++
	t.builds[x.Digest] = x
	return x, sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.pins[x.Digest]--; t.pins[x.Digest] == 0 {
			delete(t.pins, x.Digest)
			delete(t.builds, x.Digest)
		}
	}), nil
}

// Changed implements fleet.Templates.
func (t *Templates) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}
