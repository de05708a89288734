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

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// Templates builds and finds templates; see [engi.Templates].
type Templates interface {
	Get(ctx context.Context, name string) (engi.Template, error)
	List(ctx context.Context) ([]engi.Template, error)
	Build(ctx context.Context, name string, definition []byte, progress func(engi.Progress)) (engi.Template, error)
	Remove(ctx context.Context, name string) error
}

// Options configures a [Manager]. Templates and Base are required.
type Options struct {
	Templates Templates
	Base      string // template with Deno on top of which packages are installed
	Packages  []engi.Dependency
	Registry  string        // npm registry; empty means that of the node's environment, or the public one
	File      string        // file that stores the name of the last served template; empty stores nothing
	Log       *slog.Logger  // nil discards
	Retry     time.Duration // pause after a failed build, doubled each time; 0 means 30 s
}

const (
	maxLog          = 200 // maximum number of lines of a build that are kept
	keepOld         = 8   // number of old templates that are kept
	maxRetry        = 30 * time.Minute
	cleanupInterval = 10 * time.Minute // interval of the removal of old templates
)

// A Manager keeps packages installed. It is safe for concurrent use.
type Manager struct {
	opt    Options
	wanted string // wanted template; Base if there are no packages

	mu       sync.Mutex
	status   engi.Dependencies // guarded by mu
	buildErr error             // guarded by mu; error of the last build
	changed  chan struct{}     // guarded by mu; closed when the state changes
}

// A None provides no packages: sessions get the template with this name.
type None string

// Template returns the name of the template.
func (n None) Template(context.Context) (name, config string, err error) { return string(n), "", nil }

// Status returns that nothing has to be installed.
func (None) Status() engi.Dependencies { return engi.Dependencies{State: engi.DependenciesReady} }

// Run waits until ctx ends.
func (None) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

// New returns a manager that serves existing templates. Run builds missing templates.
func New(ctx context.Context, opt Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "session dependencies")
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Retry = cmp.Or(opt.Retry, 30*time.Second)
	opt.Packages = sorted(opt.Packages)
	m := &Manager{opt: opt, wanted: opt.Base, changed: make(chan struct{})}
	if len(opt.Packages) > 0 {
		m.wanted = Name(opt.Base, opt.Packages)
	}
	m.status = engi.Dependencies{State: engi.DependenciesBuilding, Packages: opt.Packages, Wanted: m.wanted}
	t, err := opt.Templates.Get(ctx, m.wanted)
	if err == nil {
		m.setTemplate(t, engi.DependenciesReady)
		m.saveTemplate(ctx) // the template serves already, before Run checks it
		return m, nil
	}
	if !engi.Is(err, engi.NotFound, engi.Unavailable) {
		return nil, err
	}
	if last := m.savedTemplate(); last != "" {
		if t, err := opt.Templates.Get(ctx, last); err == nil {
			m.setTemplate(t, engi.DependenciesBuilding)
		}
	}
	return m, nil
}

func (m *Manager) setTemplate(t engi.Template, state engi.DependencyState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Template, m.status.Digest, m.status.Built, m.status.State = t.Name, t.Digest, t.Built, state
	if state == engi.DependenciesReady {
		m.status.Step, m.status.Error, m.status.Remedy, m.buildErr = "", "", "", nil
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// last returns the template that was served last; empty if it is unknown.
func (m *Manager) savedTemplate() string {
	if m.opt.File == "" {
		return ""
	}
	name, err := os.ReadFile(m.opt.File)
	if err != nil || len(name) > 128 {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// remember stores the name of the current template. Without it, a node whose configuration has
// changed has no template until the new packages are installed.
func (m *Manager) saveTemplate(ctx context.Context) {
	if m.opt.File == "" || m.savedTemplate() == m.wanted {
		return
	}
	if err := atomicfile.Write(m.opt.File, []byte(m.wanted+"\n"), 0o600); err != nil {
		m.opt.Log.WarnContext(ctx, "remember the packages of sessions", "error", err)
	}
}

// Status returns the state of the installation.
func (m *Manager) Status() engi.Dependencies {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Log = append([]string(nil), s.Log...)
	return s
}

// Template returns the current template of sessions, by digest, and the path of its
// deno.json, which is empty if it has no packages. It waits while the first template is
// being built, and reports Unavailable with the reason if the build failed.
func (m *Manager) Template(ctx context.Context) (name, config string, err error) {
	for {
		m.mu.Lock()
		s, failure, changed := m.status, m.buildErr, m.changed
		m.mu.Unlock()
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
				WithRemedy("'engi session deps' shows the progress; try again").WithRetry(engi.Retry{AfterMillis: 10_000})
		}
	}
}

// Run builds the wanted template, with retries, and then removes older ones, until
// ctx ends.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	pause := m.opt.Retry
	for ctx.Err() == nil {
		if err := m.build(ctx); err != nil && ctx.Err() == nil {
			m.opt.Log.ErrorContext(ctx, "install the packages of sessions", "template", m.wanted, "again_in", pause, "error", err, "remedy", engi.RemedyOf(err))
			if clock.Sleep(ctx, pause) != nil {
				return nil
			}
			pause = min(2*pause, maxRetry)
			continue
		}
		m.removeOld(ctx)
		for clock.Sleep(ctx, cleanupInterval) == nil {
			m.removeOld(ctx)
		}
	}
	return nil
}

func (m *Manager) build(ctx context.Context) (err error) {
	began := time.Now()
	var definition []byte
	if len(m.opt.Packages) > 0 {
		if definition, err = Definition(m.opt.Base, m.opt.Registry, m.opt.Packages); err != nil {
			return err
		}
	}
	m.mu.Lock()
	if m.status.State == engi.DependenciesFailed {
		m.status.State = engi.DependenciesBuilding
	}
	m.status.Log = nil
	m.mu.Unlock()
	t, err := m.opt.Templates.Build(ctx, m.wanted, definition, m.progress)
	if err != nil {
		m.mu.Lock()
		m.buildErr = err
		m.status.Error, m.status.Remedy, m.status.Step = err.Error(), engi.RemedyOf(err), ""
		if m.status.Template != m.wanted {
			m.status.State = engi.DependenciesFailed
		}
		close(m.changed)
		m.changed = make(chan struct{})
		m.mu.Unlock()
		return err
	}
	m.setTemplate(t, engi.DependenciesReady)
	m.saveTemplate(ctx)
	m.opt.Log.InfoContext(ctx, "the packages of sessions are installed", "template", m.wanted, "packages", len(m.opt.Packages), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// progress adds a line to the log of a build.
func (m *Manager) progress(e engi.Progress) {
	m.mu.Lock()
	step := e.Name
	fresh := step != m.status.Step && step != ""
	if fresh {
		m.status.Step = step
	}
	if e.Log != "" {
		if len(m.status.Log) >= maxLog {
			m.status.Log = append([]string(nil), m.status.Log[len(m.status.Log)-maxLog+1:]...)
		}
		m.status.Log = append(m.status.Log, e.Log)
	}
	m.mu.Unlock()
	if fresh {
		m.opt.Log.Info("installing the packages of sessions", "step", e.Step, "of", e.Steps, "name", step)
	}
}

// tidy removes older templates except the last keepOld ones, because the configuration may
// be changed back and nodes may share templates. Templates in use are kept until the
// next time.
func (m *Manager) removeOld(ctx context.Context) {
	all, err := m.opt.Templates.List(ctx)
	if err != nil {
		m.opt.Log.ErrorContext(ctx, "look for older packages of sessions", "error", err)
		return
	}
	all = slices.DeleteFunc(all, func(t engi.Template) bool {
		return !strings.HasPrefix(t.Name, prefix) || t.Name == m.wanted || t.Digest == ""
	})
	slices.SortFunc(all, func(a, b engi.Template) int { return b.Built.Compare(a.Built) })
	for _, t := range all[min(len(all), keepOld):] {
		switch err := m.opt.Templates.Remove(ctx, t.Name); {
		case err == nil:
			m.opt.Log.InfoContext(ctx, "removed packages of sessions that are not wanted any more", "template", t.Name)
		case !engi.Is(err, engi.Conflict, engi.NotFound) && ctx.Err() == nil:
			m.opt.Log.WarnContext(ctx, "remove older packages of sessions", "template", t.Name, "error", err)
		}
	}
}
