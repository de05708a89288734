// Package disk keeps what sandboxes start from: templates, which are root file
// systems with the facts needed to run programs in them. It builds them from
// YAML definitions (a Debian suite, an OCI image, an archive, or the node's own
// programs), stores each build under the digest of everything it was made from,
// and removes builds nobody needs. The format is described in
// docs/templates.md, the built-in definitions are in disk/builtin.
//
// It is not for running sandboxes (package provider) nor for what a sandbox
// writes (the provider's overlay). Commands of a definition run in a sandbox
// that a [BuildRunner] opens; fleet supplies one.
//
// Several processes may work on one directory: every build has a lock file that
// its users hold shared, so a root in use is never removed, and a lock ends with
// its process however that dies.
package disk

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/recipe"
)

// Options say where templates live and what builds may use. Only Dir is
// needed.
type Options struct {
	Dir      string       // private directory for builds and the index; made if missing
	Workshop BuildRunner  // runs commands of definitions; nil refuses definitions that have any
	Log      *slog.Logger // nil discards
	CA       []string     // files of certificates that builds trust beside the usual ones; nil means the node's own trust store
	Env      []string     // environment the node's settings are read from (proxies, mirrors, PATH); nil means os.Environ
	Sources  []string     // directories whose files definitions may read; nil means Dir/sources only

	Aliases map[string]string // references of images to the templates that stand for them, beside the usual ones
	Mirror  string            // Debian's archive for definitions that name none; empty means the node's own sources
	Grace   time.Duration     // Run removes builds that have had no name for so long; 0 means a day, less never
}

// A BuildRunner opens sandboxes for build steps.
type BuildRunner interface {
	// Open boots a sandbox whose root file system is dir, written in place,
	// with the node's network, and returns its guest. The function destroys
	// the sandbox and waits until it is gone; the caller calls it once.
	Open(ctx context.Context, dir string) (engi.Guest, func() error, error)
}

// Templates builds, finds and removes templates. It implements
// [engi.Templates] and is safe for concurrent use.
type Templates struct {
	o     Options
	shelf shelf

	mu      sync.Mutex
	changed chan struct{}      // guarded by mu; closed when a name changes
	pins    map[string]*pin    // guarded by mu; by digest
	flights map[string]*flight // guarded by mu; by digest: builds under way

	completions map[string]completion // guarded by mu; by name: what Run builds

	holding sync.Mutex // held while a note of Hold is written

	probe    sync.Once
	overlays bool // valid after probe

	host sync.Mutex // held while the host template is brought up to date
	seen bool       // guarded by host: it was, in this process
}

var _ engi.Templates = (*Templates)(nil)

// A pin holds the lock of one build, shared, for n users in this process.
type pin struct {
	lock *os.File
	n    int
}

// Open prepares o.Dir, removes what a crash left there, and returns the
// templates in it. Nothing runs in the background, so nothing must be closed.
func Open(ctx context.Context, o Options) (_ *Templates, err error) {
	defer engi.Annotate(&err, "open templates in %s", o.Dir)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, engi.Errorf(engi.Invalid, "%v", err)
	}
	if o.Grace == 0 {
		o.Grace = 24 * time.Hour
	}
	if len(o.Sources) == 0 {
		o.Sources = []string{filepath.Join(o.Dir, "sources")}
	}
	t := &Templates{
		o: o, shelf: shelf{o.Dir}, changed: make(chan struct{}),
		pins: map[string]*pin{}, flights: map[string]*flight{}, completions: map[string]completion{},
	}
	left, err := t.shelf.open(ctx)
	if err != nil {
		return nil, err
	}
	if left > 0 {
		o.Log.InfoContext(ctx, "removed unfinished template builds", "count", left)
	}
	return t, nil
}

// Get implements [engi.Templates]. The host template is made on the way: it
// costs nothing.
func (t *Templates) Get(ctx context.Context, name string) (_ engi.Template, err error) {
	defer engi.Annotate(&err, "template %s", name)
	if name == hostName {
		if err := t.refreshHost(ctx); err != nil {
			return engi.Template{}, err
		}
	}
	return t.find(name)
}

func (t *Templates) find(name string) (engi.Template, error) {
	if hex, ok := strings.CutPrefix(name, digestPrefix); ok {
		tmpl, err := t.shelf.load(hex)
		if errors.Is(err, fs.ErrNotExist) {
			return tmpl, engi.Errorf(engi.NotFound, "there is no such build").WithRemedy("use a template's name; 'engi template list' shows them")
		}
		return tmpl, err
	}
	if !recipe.ValidName(name) {
		return engi.Template{}, unknown()
	}
	entry, err := t.shelf.name(name)
	if err == nil {
		tmpl, err := t.shelf.load(strings.TrimPrefix(entry.Digest, digestPrefix))
		if err == nil {
			tmpl.Name, tmpl.Owner = name, entry.Owner
			return tmpl, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return tmpl, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return engi.Template{}, err
	}
	if _, builtin := builtins()[name]; !builtin && err != nil {
		return engi.Template{}, unknown()
	}
	if _, ok := t.partial(name); ok {
		// Without a hint to try again: who only looks need not wait.
		return engi.Template{}, engi.Errorf(engi.Unavailable, "%v", t.Incomplete(name)).WithRemedy("run 'engi template build %s', which waits", name)
	}
	return engi.Template{}, engi.Errorf(engi.Unavailable, "it is not built yet").WithRemedy("run 'engi template build %s'", name)
}

func unknown() error {
	return engi.Errorf(engi.NotFound, "there is no such template").WithRemedy("'engi template list' shows what there is; 'engi template build FILE.yaml' makes one")
}

// List implements [engi.Templates], in the order of names.
func (t *Templates) List(ctx context.Context) (_ []engi.Template, err error) {
	defer engi.Annotate(&err, "list templates")
	names, err := t.shelf.names()
	if err != nil {
		return nil, err
	}
	all := maps.Clone(builtins())
	for _, name := range names {
		all[name] = nil
	}
	var list []engi.Template
	for _, name := range slices.Sorted(maps.Keys(all)) {
		tmpl, err := t.Get(ctx, name)
		if err != nil {
			// A machine whose programs do not do for the host template still
			// has others.
			if engi.KindOf(err) != engi.Unavailable && name != hostName {
				return nil, err
			}
			tmpl = engi.Template{Name: name}
		}
		list = append(list, tmpl)
	}
	return list, nil
}

// Use is Get for somebody who starts sandboxes: until release is called (it may
// be called twice), the build is neither removed nor pruned. Pins are of this
// process only; after a restart, whoever re-adopts sandboxes uses their
// templates again, by digest, before anything is pruned.
//
// Of a template that is built in parts, Use returns the first one, with Partial
// set, until all are there.
func (t *Templates) Use(ctx context.Context, nameOrDigest string) (_ engi.Template, release func(), err error) {
	for range 100 {
		tmpl, err := t.Get(ctx, nameOrDigest)
		if engi.KindOf(err) == engi.Unavailable {
			if first, ok := t.partial(nameOrDigest); ok {
				tmpl, err = first, nil
			}
		}
		if err != nil {
			return tmpl, nil, err
		}
		ok, err := t.pin(tmpl.Digest)
		if err != nil {
			return tmpl, nil, err
		}
		if ok {
			return tmpl, sync.OnceFunc(func() { t.unpin(tmpl.Digest) }), nil
		}
		// Between Get and pin somebody removed it, or its builder has not let
		// go yet: the name may mean another now.
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return tmpl, nil, engi.Errorf(engi.Expired, "use template %s: %v", nameOrDigest, context.Cause(ctx))
		}
	}
	return engi.Template{}, nil, engi.Errorf(engi.Unavailable, "use template %s: it is being replaced all the time", nameOrDigest)
}

func (t *Templates) pin(digest string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pins[digest]; p != nil {
		p.n++
		return true, nil
	}
	lock, err := t.shelf.share(strings.TrimPrefix(digest, digestPrefix))
	if lock == nil || err != nil {
		return false, err
	}
	t.pins[digest] = &pin{lock: lock, n: 1}
	return true, nil
}

func (t *Templates) unpin(digest string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pins[digest]
	if p.n--; p.n > 0 {
		return
	}
	delete(t.pins, digest)
	if err := p.lock.Close(); err != nil {
		t.o.Log.Error("release template", "digest", digest, "err", err)
	}
}

// Hold keeps a build from being removed for as long as path, absolute, exists:
// whoever asks, and whatever runs. A second time for the same path changes
// nothing. It is for what outlives processes, like snapshots.
func (t *Templates) Hold(ctx context.Context, digest, path string) (err error) {
	defer engi.Annotate(&err, "hold template %s for %s", digest, path)
	if !filepath.IsAbs(path) {
		return engi.Errorf(engi.Invalid, "the path is not absolute")
	}
	_, release, err := t.Use(ctx, digest)
	if err != nil {
		return err
	}
	defer release()
	t.holding.Lock()
	defer t.holding.Unlock()
	return t.shelf.hold(strings.TrimPrefix(digest, digestPrefix), path)
}

// gcEvery is how often Run looks for builds nobody needs.
const gcEvery = 10 * time.Minute

// Run completes templates of which only the first part is built. Until ctx
// ends, it also removes builds that have had no name for longer than
// Options.Grace and that nobody uses or holds, and steps of builds that were not
// repeated for as long. Whoever re-adopts sandboxes uses their templates before.
func (t *Templates) Run(ctx context.Context, ready func()) error {
	ready()
	completed := make(chan struct{})
	go func() {
		defer close(completed)
		t.completeStages(ctx)
	}()
	defer func() { <-completed }()
	tick := time.NewTicker(gcEvery)
	defer tick.Stop()
	for {
		if err := t.collect(ctx); err != nil && ctx.Err() == nil {
			t.o.Log.ErrorContext(ctx, "remove templates nobody needs", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (t *Templates) collect(ctx context.Context) error {
	if t.o.Grace < 0 {
		return nil
	}
	hexes, err := t.shelf.builds()
	if err != nil {
		return err
	}
	for _, hex := range hexes {
		if ctx.Err() != nil {
			return nil
		}
		if _, err := t.shelf.held(hex); err != nil { // forgets who is gone
			return err
		}
		since, orphan, err := t.shelf.orphaned(hex)
		if err != nil {
			return err
		}
		if !orphan || time.Since(since) < t.o.Grace {
			continue
		}
		freed, gone, err := t.shelf.remove(hex)
		if err != nil {
			return err
		}
		if gone {
			t.o.Log.InfoContext(ctx, "removed a build that had no name", "digest", digestPrefix+hex, "bytes", freed)
		}
	}
	freed, err := t.shelf.pruneLayers(ctx, t.o.Grace)
	if freed > 0 {
		t.o.Log.InfoContext(ctx, "removed steps of builds that were not repeated", "bytes", freed)
	}
	return err
}

// Changed returns a channel that is closed when next a name comes to mean
// another build, or none, by the doing of this process. Call it before Get,
// wait on it after.
func (t *Templates) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *Templates) announce() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}

// Remove implements [engi.Templates]. The definition of a built-in one stays
// known. A digest removes a build that no name refers to.
func (t *Templates) Remove(ctx context.Context, name string) (err error) {
	defer engi.Annotate(&err, "remove template %s", name)
	tmpl, err := t.find(name)
	if err != nil {
		if engi.KindOf(err) == engi.Unavailable && t.shelf.forget(name) == nil {
			t.announce()
			return nil // its build was gone already
		}
		return err
	}
	users, err := t.shelf.users(tmpl.Digest)
	if err != nil {
		return err
	}
	if name == tmpl.Digest && len(users) > 0 {
		return engi.Errorf(engi.Conflict, "it is the build of %s", strings.Join(users, ", ")).WithRemedy("remove the template by its name")
	}
	if others := slices.DeleteFunc(users, func(u string) bool { return u == name }); len(others) == 0 {
		// The build first: when it cannot go, nothing has changed.
		_, gone, err := t.shelf.remove(strings.TrimPrefix(tmpl.Digest, digestPrefix))
		if err != nil {
			return err
		}
		if !gone {
			return engi.Errorf(engi.Conflict, "sandboxes or snapshots use it").WithRemedy("stop or remove them, and take the template out of the pools' configuration")
		}
	}
	if name != tmpl.Digest {
		if err := t.shelf.forget(name); err != nil {
			return err
		}
	}
	t.announce()
	return nil
}

// Prune implements [engi.Templates].
func (t *Templates) Prune(ctx context.Context) (freed int64, err error) {
	defer engi.Annotate(&err, "prune templates")
	hexes, err := t.shelf.builds()
	if err != nil {
		return 0, err
	}
	for _, hex := range hexes {
		if err := ctx.Err(); err != nil {
			return freed, engi.Errorf(engi.Expired, "%v", err)
		}
		users, err := t.shelf.users(digestPrefix + hex)
		if err != nil {
			return freed, err
		}
		if len(users) > 0 {
			continue
		}
		bytes, _, err := t.shelf.remove(hex)
		if err != nil {
			return freed, err
		}
		freed += bytes
	}
	bytes, err := t.shelf.pruneLayers(ctx, 0)
	return freed + bytes, err
}

// refreshHost makes the host template anew, once in each process: the node's
// programs may have changed since the last.
func (t *Templates) refreshHost(ctx context.Context) error {
	t.host.Lock()
	defer t.host.Unlock()
	if t.seen {
		return nil
	}
	if _, err := t.Build(ctx, hostName, nil, nil); err != nil {
		return err
	}
	t.seen = true
	return nil
}

// env returns a variable of the node's settings.
func (t *Templates) env(key string) string {
	for _, kv := range slices.Backward(t.o.Env) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// lookPath finds a program of the node in the PATH of its settings.
func (t *Templates) lookPath(program string) (string, bool) {
	for _, dir := range filepath.SplitList(t.env("PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		at := filepath.Join(dir, program)
		if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return at, true
		}
	}
	return "", false
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
