package deps

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// Templates builds and finds templates; see [engi.Templates].
type Templates interface {
	Get(ctx context.Context, name string) (engi.Template, error)
	List(ctx context.Context) ([]engi.Template, error)
	Build(ctx context.Context, name string, definition []byte, progress func(engi.BuildEvent)) (engi.Template, error)
	Remove(ctx context.Context, name string) error
}

// Options say what to install. Templates and Base are needed.
type Options struct {
	Templates Templates
	Base      string // template with Deno that packages are installed on top of
	Packages  []engi.Dependency
	Registry  string        // of npm; empty means that of the node's environment, or the public one
	File      string        // that remembers which template served last; empty remembers nothing
	Log       *slog.Logger  // nil discards
	Retry     time.Duration // pause after a build that failed, which doubles; 0 means 30 s
}

const (
	maxLog    = 200 // lines kept of a build
	keepOld   = 8   // templates that are not wanted any more
	maxRetry  = 30 * time.Minute
	listEvery = 10 * time.Minute // how often templates that nobody wants any more are looked for
)

// A Manager keeps packages installed. It is safe for concurrent use.
type Manager struct {
	o      Options
	wanted string // template; Base if there are no packages

	mu      sync.Mutex
	s       engi.Dependencies // guarded by mu
	failure error             // guarded by mu; of the last build
	changed chan struct{}     // guarded by mu; closed when s changes
}

// New returns a keeper that serves what is there. Run builds.
func New(ctx context.Context, o Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "session dependencies")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Retry = cmp.Or(o.Retry, 30*time.Second)
	o.Packages = sorted(o.Packages)
	k := &Manager{o: o, wanted: o.Base, changed: make(chan struct{})}
	if len(o.Packages) > 0 {
		k.wanted = Name(o.Base, o.Packages)
	}
	k.s = engi.Dependencies{State: engi.DependenciesBuilding, Packages: o.Packages, Wanted: k.wanted}
	t, err := o.Templates.Get(ctx, k.wanted)
	if err == nil {
		k.serve(t, engi.DependenciesReady)
		return k, nil
	}
	if kind := engi.KindOf(err); kind != engi.NotFound && kind != engi.Unavailable {
		return nil, err
	}
	if last := k.last(); last != "" {
		if t, err := o.Templates.Get(ctx, last); err == nil {
			k.serve(t, engi.DependenciesBuilding)
		}
	}
	return k, nil
}

func (k *Manager) serve(t engi.Template, state engi.DependencyState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.s.Template, k.s.Digest, k.s.Built, k.s.State = t.Name, t.Digest, t.Built, state
	if state == engi.DependenciesReady {
		k.s.Step, k.s.Error, k.s.Remedy, k.failure = "", "", "", nil
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// last is the template that served last; empty if it is not known.
func (k *Manager) last() string {
	if k.o.File == "" {
		return ""
	}
	name, err := os.ReadFile(k.o.File)
	if err != nil || len(name) > 128 {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// remember writes down what serves now. Without it, a node whose configuration
// changes has nothing to serve until the new packages are there.
func (k *Manager) remember(ctx context.Context) {
	if k.o.File == "" || k.last() == k.wanted {
		return
	}
	tmp := k.o.File + ".new"
	err := os.WriteFile(tmp, []byte(k.wanted+"\n"), 0o600)
	if err == nil {
		err = os.Rename(tmp, k.o.File)
	}
	if err != nil {
		k.o.Log.WarnContext(ctx, "remember the packages of sessions", "error", err)
	}
}

// Status says how the installation is.
func (k *Manager) Status() engi.Dependencies {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.s
	s.Log = append([]string(nil), s.Log...)
	return s
}

// Template returns the template that sessions get now, by digest, and the
// path inside of what Deno is told of its packages; empty if it has none. It
// waits while the first is built, and reports Unavailable, with the reason, if
// that has failed.
func (k *Manager) Template(ctx context.Context) (name, config string, err error) {
	for {
		k.mu.Lock()
		s, failure, changed := k.s, k.failure, k.changed
		k.mu.Unlock()
		if s.Template != "" {
			if strings.HasPrefix(s.Template, prefix) {
				config = Config
			}
			return s.Template, config, nil
		}
		if failure != nil {
			return "", "", engi.Errorf(engi.Unavailable, "the packages of sessions are not installed: %w", failure).
				WithRemedy("'engi session deps' shows the log; %s", engi.RemedyOf(failure)).WithRetry(engi.Retry{AfterMillis: 30_000})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", "", engi.Errorf(engi.Unavailable, "the packages of sessions are still being installed").
				WithRemedy("'engi session deps' shows how far it is; try again").WithRetry(engi.Retry{AfterMillis: 10_000})
		}
	}
}

// Run builds what is wanted, again if that fails, then removes what was wanted
// before, until ctx ends.
func (k *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	pause := k.o.Retry
	for ctx.Err() == nil {
		if err := k.build(ctx); err != nil && ctx.Err() == nil {
			k.o.Log.ErrorContext(ctx, "install the packages of sessions", "template", k.wanted, "again_in", pause, "error", err, "remedy", engi.RemedyOf(err))
			if !sleep(ctx, pause) {
				return nil
			}
			pause = min(2*pause, maxRetry)
			continue
		}
		k.tidy(ctx)
		for sleep(ctx, listEvery) {
			k.tidy(ctx)
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (k *Manager) build(ctx context.Context) (err error) {
	began := time.Now()
	var definition []byte
	if len(k.o.Packages) > 0 {
		if definition, err = Definition(k.o.Base, k.o.Registry, k.o.Packages); err != nil {
			return err
		}
	}
	k.mu.Lock()
	if k.s.State == engi.DependenciesFailed {
		k.s.State = engi.DependenciesBuilding
	}
	k.s.Log = nil
	k.mu.Unlock()
	t, err := k.o.Templates.Build(ctx, k.wanted, definition, k.progress)
	if err != nil {
		k.mu.Lock()
		k.failure = err
		k.s.Error, k.s.Remedy, k.s.Step = err.Error(), engi.RemedyOf(err), ""
		if k.s.Template != k.wanted {
			k.s.State = engi.DependenciesFailed
		}
		close(k.changed)
		k.changed = make(chan struct{})
		k.mu.Unlock()
		return err
	}
	k.serve(t, engi.DependenciesReady)
	k.remember(ctx)
	k.o.Log.InfoContext(ctx, "the packages of sessions are installed", "template", k.wanted, "packages", len(k.o.Packages), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// progress keeps the log of a build.
func (k *Manager) progress(e engi.BuildEvent) {
	k.mu.Lock()
	step := e.Name
	fresh := step != k.s.Step && step != ""
	if fresh {
		k.s.Step = step
	}
	if e.Log != "" {
		if len(k.s.Log) >= maxLog {
			k.s.Log = append([]string(nil), k.s.Log[len(k.s.Log)-maxLog+1:]...)
		}
		k.s.Log = append(k.s.Log, e.Log)
	}
	k.mu.Unlock()
	if fresh {
		k.o.Log.Info("installing the packages of sessions", "step", e.Step, "of", e.Steps, "name", step)
	}
}

// tidy removes templates of packages that were wanted before, but for the last
// ones: somebody may change back, and nodes may share templates. Those in use
// stay, until the next time.
func (k *Manager) tidy(ctx context.Context) {
	all, err := k.o.Templates.List(ctx)
	if err != nil {
		k.o.Log.ErrorContext(ctx, "look for older packages of sessions", "error", err)
		return
	}
	all = slices.DeleteFunc(all, func(t engi.Template) bool {
		return !strings.HasPrefix(t.Name, prefix) || t.Name == k.wanted || t.Digest == ""
	})
	slices.SortFunc(all, func(a, b engi.Template) int { return b.Built.Compare(a.Built) })
	for _, t := range all[min(len(all), keepOld):] {
		switch err := k.o.Templates.Remove(ctx, t.Name); {
		case err == nil:
			k.o.Log.InfoContext(ctx, "removed packages of sessions that are not wanted any more", "template", t.Name)
		case engi.KindOf(err) != engi.Conflict && engi.KindOf(err) != engi.NotFound && ctx.Err() == nil:
			k.o.Log.WarnContext(ctx, "remove older packages of sessions", "template", t.Name, "error", err)
		}
	}
}
