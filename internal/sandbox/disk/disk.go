// Package disk manages templates. A template is a root file system with the settings needed
// to run programs in it. The package builds templates from YAML definitions (a
// Debian suite, an OCI image, an archive, or the node's own programs), stores
// each build under the digest of all its inputs, and removes unused builds. The
// format is documented in docs/templates.md; the built-in definitions are in
// internal/sandbox/disk/builtin.
//
// It does not run sandboxes (see package provider), and does not handle files that a
// sandbox writes (see the provider's overlay). Commands of a definition run in a
// sandbox that a [BuildRunner] opens; package fleet implements this interface.
//
// Several processes may use the same directory: every build has a lock file that
// its users hold shared, so that a root in use is never removed. Locks end with
// their process, however it dies.
package disk

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
)

// Options configures the storage of templates and the resources of builds. Only Dir is
// required.
type Options struct {
	Dir     string       // private directory for builds and the index; created if missing
	Runner  BuildRunner  // runs commands of definitions; nil refuses definitions with commands
	Log     *slog.Logger // nil discards
	CA      []string     // certificate files that builds trust in addition to the node's trust store
	Env     []string     // environment with the node's settings (proxies, mirrors, PATH); nil means os.Environ
	Sources []string     // directories with files that definitions may read; nil means Dir/sources only

	Owners OwnerBuilds // limits of owners' builds from steps

	Aliases map[string]string // templates used instead of images, by image reference, in addition to the default ones
	Mirror  string            // Debian archive for definitions that name none; empty means the node's own sources
	Grace   time.Duration     // time after which Run removes builds without a name; 0 means a day, negative means never
}

// OwnerBuilds configures builds from steps that belong to an owner. Such builds
// get neither the environment nor the logins of the node.
type OwnerBuilds struct {
	// Registry returns the transport that pulls their images and trusts the given authorities,
	// where nil means the system's. If Registry is nil, images are refused.
	Registry func(*x509.CertPool) http.RoundTripper

	Env map[string]string // environment of commands, whose authors can read it

	// Room returns the bytes of disk that an owner's quota leaves for templates
	// and cached steps, or [math.MaxInt64] without a quota. Nil means that no owner has a quota.
	Room func(context.Context, engi.Owner) (int64, error)
	// Refused is called for each build that ended for lack of disk in the quota; may be nil.
	Refused func(owner engi.Owner, quota string)
}

// A BuildRunner opens sandboxes for build steps.
type BuildRunner interface {
	// Open boots a sandbox whose root file system is dir, which it writes to
	// directly, and returns its guest. An empty owner means the node, whose
	// network the sandbox has. Sandboxes of other owners reach at most the hosts allowed to owners.
	// The caller must call the returned function once. It destroys the sandbox and waits
	// until the sandbox is gone.
	Open(ctx context.Context, dir string, owner engi.Owner) (engi.Guest, func() error, error)
}

// Templates builds, finds and removes templates. It implements
// [engi.Templates] and is safe for concurrent use.
type Templates struct {
	o   Options
	dir templateDir

	mu       sync.Mutex
	changed  chan struct{}             // guarded by mu; closed when a name changes
	pins     map[string]*pin           // by digest; guarded by mu
	inflight map[string]*inflightBuild // by digest; guarded by mu

	completions map[string]completion // templates that Run completes, by name; guarded by mu

	holdMu sync.Mutex // held while Hold writes

	overlayProbe sync.Once
	overlays     bool // overlays work on this machine; valid after overlayProbe

	hostMu    sync.Mutex // held while the host template is refreshed
	hostFresh bool       // this process has refreshed the host template; guarded by hostMu
}

var _ engi.Templates = (*Templates)(nil)

// A pin holds the shared lock of a build for n users in this process.
type pin struct {
	lock *os.File
	n    int
}

// Open prepares o.Dir, removes the leftovers of a crash, and returns the templates
// in it. It starts no goroutines, and Templates need not be closed.
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
		o: o, dir: templateDir{o.Dir}, changed: make(chan struct{}),
		pins: map[string]*pin{}, inflight: map[string]*inflightBuild{}, completions: map[string]completion{},
	}
	left, err := t.dir.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if left > 0 {
		o.Log.InfoContext(ctx, "removed unfinished template builds", "count", left)
	}
	return t, nil
}

// Get implements [engi.Templates]. It builds the host template if needed, because this is
// cheap.
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
		tmpl, err := t.dir.load(hex)
		if errors.Is(err, fs.ErrNotExist) {
			return tmpl, engi.Errorf(engi.NotFound, "there is no such build").WithRemedy("use the name of a template; 'engi template list' shows them")
		}
		if err == nil {
			tmpl.Owners, err = t.dir.ownersOf(name)
		}
		return tmpl, err
	}
	if !recipe.ValidName(name) {
		return engi.Template{}, unknown()
	}
	entry, err := t.dir.readName(name)
	if err == nil {
		tmpl, err := t.dir.load(strings.TrimPrefix(entry.Digest, digestPrefix))
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
		// The error has no hint to retry: a caller that only looks need not wait.
		return engi.Template{}, engi.Errorf(engi.Unavailable, "%v", t.Incomplete(name)).WithRemedy("run 'engi template build %s', which waits for the build", name)
	}
	return engi.Template{}, engi.Errorf(engi.Unavailable, "it is not built yet").WithRemedy("run 'engi template build %s'", name)
}

func unknown() error { return engi.ErrNoTemplate }

// List implements [engi.Templates], in the order of names.
func (t *Templates) List(ctx context.Context) (_ []engi.Template, err error) {
	defer engi.Annotate(&err, "list templates")
	names, err := t.dir.names()
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
			// If the host template does not work on this machine, the others
			// still work.
			if !engi.Is(err, engi.Unavailable) && name != hostName {
				return nil, err
			}
			tmpl = engi.Template{Name: name}
		}
		list = append(list, tmpl)
	}
	return list, nil
}

// Use is Get for callers that start sandboxes: the build is not removed or pruned
// until release is called, which may be repeated. After a restart, a caller that
// re-adopts sandboxes must call Use for their templates, by digest, before
// builds are pruned.
//
// For a template that is built in parts, Use returns the first part, with Partial
// set, until all parts are built.
func (t *Templates) Use(ctx context.Context, nameOrDigest string) (_ engi.Template, release func(), err error) {
	for range 100 {
		tmpl, err := t.Get(ctx, nameOrDigest)
		if engi.Is(err, engi.Unavailable) {
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
		// The build was removed after Get, or its builder still holds the lock. The
		// name may refer to another build now.
		if clock.Sleep(ctx, 2*time.Millisecond) != nil {
			return tmpl, nil, engi.Errorf(engi.Expired, "use template %s: %v", nameOrDigest, context.Cause(ctx))
		}
	}
	return engi.Template{}, nil, engi.Errorf(engi.Unavailable, "use template %s: it is being replaced repeatedly", nameOrDigest)
}

func (t *Templates) pin(digest string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pins[digest]; p != nil {
		p.n++
		return true, nil
	}
	lock, err := t.dir.lockShared(strings.TrimPrefix(digest, digestPrefix))
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
		t.o.Log.Error("release template", "digest", digest, "error", err)
	}
}

// Hold protects a build from removal as long as the absolute path exists,
// even after the end of this process. A repeated call for the same path has no
// effect. Hold serves users that outlive processes, like snapshots.
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
	t.holdMu.Lock()
	defer t.holdMu.Unlock()
	return t.dir.addHold(strings.TrimPrefix(digest, digestPrefix), path)
}

// gcEvery is the interval at which Run looks for unused builds.
const gcEvery = 10 * time.Minute

// Run completes templates that are built only in part. Until ctx ends,
// it also removes builds without a name, and cached steps, that were not used for
// longer than Options.Grace. Builds in use or held stay. Callers that
// re-adopt sandboxes must call Use for their templates before.
func (t *Templates) Run(ctx context.Context, ready func()) error {
	ready()
	completed := make(chan struct{})
	go func() {
		defer close(completed)
		t.completeStages(ctx)
	}()
	defer func() { <-completed }()
	for range clock.Every(ctx, gcEvery) {
		if err := t.collect(ctx); err != nil && ctx.Err() == nil {
			t.o.Log.ErrorContext(ctx, "remove unused templates", "error", err)
		}
	}
	return nil
}

func (t *Templates) collect(ctx context.Context) error {
	if t.o.Grace < 0 {
		return nil
	}
	hexes, err := t.dir.builds()
	if err != nil {
		return err
	}
	for _, hex := range hexes {
		if ctx.Err() != nil {
			return nil
		}
		if _, err := t.dir.held(hex); err != nil { // drops expired holds
			return err
		}
		since, orphan, err := t.dir.orphaned(hex)
		if err != nil {
			return err
		}
		if !orphan || time.Since(since) < t.o.Grace {
			continue
		}
		freed, gone, err := t.dir.remove(hex)
		if err != nil {
			return err
		}
		if gone {
			t.o.Log.InfoContext(ctx, "removed a build without a name", "digest", digestPrefix+hex, "bytes", freed)
		}
	}
	freed, err := t.dir.pruneLayers(ctx, t.o.Grace)
	if freed > 0 {
		t.o.Log.InfoContext(ctx, "removed unused build steps", "bytes", freed)
	}
	return err
}

// Changed returns a channel that is closed when this process next changes the
// build of a name. Call it before Get and wait on the channel afterwards.
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

// Remove implements [engi.Templates]. Built-in definitions remain available. Given a
// digest, it removes a build without names.
func (t *Templates) Remove(ctx context.Context, name string) (err error) {
	defer engi.Annotate(&err, "remove template %s", name)
	tmpl, err := t.find(name)
	if err != nil {
		if engi.Is(err, engi.Unavailable) && t.dir.removeName(name) == nil {
			t.announce()
			return nil // the build was removed already
		}
		return err
	}
	users, err := t.dir.namesOf(tmpl.Digest)
	if err != nil {
		return err
	}
	if name == tmpl.Digest && len(users) > 0 {
		return engi.Errorf(engi.Conflict, "it is the build of %s", strings.Join(users, ", ")).WithRemedy("remove the template by its name")
	}
	if others := slices.DeleteFunc(users, func(u string) bool { return u == name }); len(others) == 0 {
		// Remove the build first: if this fails, nothing has changed.
		_, gone, err := t.dir.remove(strings.TrimPrefix(tmpl.Digest, digestPrefix))
		if err != nil {
			return err
		}
		if !gone {
			return engi.Errorf(engi.Conflict, "sandboxes or snapshots use it").WithRemedy("stop or remove them, and remove the template from the configuration of pools")
		}
	}
	if name != tmpl.Digest {
		if err := t.dir.removeName(name); err != nil {
			return err
		}
	}
	t.announce()
	return nil
}

// Prune implements [engi.Templates].
func (t *Templates) Prune(ctx context.Context) (freed int64, err error) {
	defer engi.Annotate(&err, "prune templates")
	hexes, err := t.dir.builds()
	if err != nil {
		return 0, err
	}
	for _, hex := range hexes {
		if err := ctx.Err(); err != nil {
			return freed, engi.Errorf(engi.Expired, "%v", err)
		}
		users, err := t.dir.namesOf(digestPrefix + hex)
		if err != nil {
			return freed, err
		}
		if len(users) > 0 {
			continue
		}
		bytes, _, err := t.dir.remove(hex)
		if err != nil {
			return freed, err
		}
		freed += bytes
	}
	bytes, err := t.dir.pruneLayers(ctx, 0)
	return freed + bytes, err
}

// refreshHost builds the host template, once in each process, because the node's
// programs may have changed.
func (t *Templates) refreshHost(ctx context.Context) error {
	t.hostMu.Lock()
	defer t.hostMu.Unlock()
	if t.hostFresh {
		return nil
	}
	if _, err := t.Build(ctx, hostName, nil, nil); err != nil {
		return err
	}
	t.hostFresh = true
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

// lookPath finds a program of the node in the PATH of Options.Env.
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
