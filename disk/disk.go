// Package disk keeps what sandboxes start from: templates, which are root file
// systems with the facts needed to run programs in them. It builds them from
// YAML definitions (a Debian suite, an OCI image, an archive, or the node's own
// programs), stores each build under the digest of everything it was made from,
// and removes builds nobody needs.
//
// It is not for running sandboxes (package provider) nor for what a sandbox
// writes (the provider's overlay). Commands of a definition run in a sandbox
// that a [Workshop] opens; fleet supplies one.
package disk

import (
	"context"
	"log/slog"

	"github.com/engi-dev/engi"
)

// Options say where templates live and what builds may use. Only Dir is
// needed.
type Options struct {
	Dir      string       // private directory for definitions, builds and the index; made if missing
	Workshop Workshop     // runs commands of definitions; nil refuses definitions that have any
	Log      *slog.Logger // nil discards
	CA       []string     // files of certificates that builds trust beside the usual ones; nil means the node's own trust store
	Env      []string     // environment the node's settings are read from (proxies, mirrors); nil means os.Environ
}

// A Workshop opens sandboxes for build steps.
type Workshop interface {
	// Open boots a sandbox whose root file system is dir, written in place,
	// with the node's network, and returns its guest. The function destroys
	// the sandbox and waits until it is gone; the caller calls it once.
	Open(ctx context.Context, dir string) (engi.Guest, func() error, error)
}

// Templates builds, finds and removes templates. It implements
// [engi.Templates] and is safe for concurrent use.
type Templates struct {
	o Options
}

var _ engi.Templates = (*Templates)(nil)

// Open prepares o.Dir, removes what a crash left there, and returns the
// templates in it. Nothing runs in the background, so nothing must be closed.
func Open(ctx context.Context, o Options) (*Templates, error) {
	return &Templates{o: o}, nil
}

var errNotBuilt = engi.Errorf(engi.Unavailable, "templates are not ready yet")

// Get implements [engi.Templates].
func (t *Templates) Get(ctx context.Context, name string) (engi.Template, error) {
	return engi.Template{}, errNotBuilt
}

// List implements [engi.Templates].
func (t *Templates) List(ctx context.Context) ([]engi.Template, error) { return nil, nil }

// Build implements [engi.Templates].
func (t *Templates) Build(ctx context.Context, name string, definition []byte, progress func(engi.BuildEvent)) (engi.Template, error) {
	return engi.Template{}, errNotBuilt
}

// Remove implements [engi.Templates].
func (t *Templates) Remove(ctx context.Context, name string) error { return errNotBuilt }

// Prune implements [engi.Templates].
func (t *Templates) Prune(ctx context.Context) (int64, error) { return 0, nil }

// Use is Get for somebody who starts sandboxes: until release is called (it may
// be called twice), the build is neither removed nor pruned. Pins are of this
// process only; after a restart, whoever re-adopts sandboxes uses their
// templates again, by digest, before anything is pruned.
func (t *Templates) Use(ctx context.Context, nameOrDigest string) (_ engi.Template, release func(), err error) {
	return engi.Template{}, func() {}, errNotBuilt
}

// Changed returns a channel that is closed when next a name comes to mean
// another build, or none. Call it before Get, wait on it after.
func (t *Templates) Changed() <-chan struct{} { return nil }
