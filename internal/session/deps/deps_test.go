package deps

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][2]string{
		"@linear/sdk": {"@linear/sdk", ""}, "@linear/sdk@39.0.0": {"@linear/sdk", "39.0.0"}, "left-pad@^1.2": {"left-pad", "^1.2"},
		"npm:zod": {"zod", ""}, "zod@latest": {"zod", "latest"}, "jsr:@std/encoding": {"jsr:@std/encoding", ""}, "jsr:@std/encoding@1.0.0": {"jsr:@std/encoding", "1.0.0"},
	} {
		if name, version, err := Parse(text); err != nil || name != want[0] || version != want[1] {
			t.Errorf("%s: %q %q %v", text, name, version, err)
		}
	}
	for _, text := range []string{"", "@", "a b", "a;b", "$(x)", "../x", "a@", "a@$(x)", "a@1 || 2", "@a", "@a/b/c", "http://x", "jsr:std", strings.Repeat("a", 300), "-x"[:1] + "\n"} {
		if name, version, err := Parse(text); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %q %q %v", text, name, version, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"@linear/sdk@1.0.0", "jsr:@std/x", "a@b@c", "@@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, version, err := Parse(text)
		if err != nil {
			return
		}
		// They become part of a shell command.
		if strings.ContainsAny(name+version, " \t\n\"'`$;&|<>()\\{}[]!#") {
			t.Errorf("%q gives %q and %q", text, name, version)
		}
		if strings.HasPrefix(name, "-") {
			t.Errorf("%q is an option", name)
		}
	})
}

// TestNameIsAHash checks that the order of packages does not matter, and that everything else
// does.
func TestNameIsAHash(t *testing.T) {
	a, b := engi.Dependency{Package: "a", Version: "1"}, engi.Dependency{Package: "b", Hosts: []string{"h"}, Secret: "S"}
	one := Name("base", []engi.Dependency{a, b})
	if two := Name("base", []engi.Dependency{b, a}); one != two {
		t.Errorf("%s and %s", one, two)
	}
	other := b
	other.Hosts, other.Secret, other.Docs = nil, "", []string{"https://x.example"}
	if two := Name("base", []engi.Dependency{a, other}); one != two {
		t.Error("hosts, docs or secrets change what is installed")
	}
	newer := a
	newer.Version = "2"
	seen := []string{one}
	for name, n := range map[string]string{
		"version": Name("base", []engi.Dependency{newer, b}), "fewer": Name("base", []engi.Dependency{a}), "base": Name("other", []engi.Dependency{a, b}),
	} {
		if slices.Contains(seen, n) {
			t.Errorf("%s: the same name", name)
		}
		seen = append(seen, n)
	}
	if !recipe.ValidName(one) {
		t.Errorf("%s is no name of a template", one)
	}
}

func TestDefinitionIsOne(t *testing.T) {
	text, err := Definition("base", "https://npm.example.com/x/", []engi.Dependency{{Package: "@acme/sdk", Version: "^1.2"}, {Package: "jsr:@std/encoding"}})
	if err != nil {
		t.Fatal(err)
	}
	def, err := recipe.Parse("deps-1", text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if def.Base != "template:base" || len(def.Commands) != 1 || len(def.Files) != 3 {
		t.Errorf("%+v", def)
	}
	var config struct{ Imports map[string]string }
	for _, f := range def.Files {
		if f.Path == Config {
			if err := json.Unmarshal([]byte(f.Content), &config); err != nil {
				t.Fatal(err)
			}
		}
	}
	if config.Imports["@acme/sdk"] != "npm:@acme/sdk@^1.2" || config.Imports["@acme/sdk/"] != "npm:/@acme/sdk@^1.2/" || config.Imports["@std/encoding"] != "jsr:@std/encoding" {
		t.Errorf("%v", config.Imports)
	}
}

// fakeTemplates are templates whose builds can be slow or fail.
type fakeTemplates struct {
	mu     sync.Mutex
	built  map[string]engi.Template
	builds int
	fail   error
	slow   time.Duration
}

func (s *fakeTemplates) Get(_ context.Context, name string) (engi.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.built[name]; ok {
		return t, nil
	}
	return engi.Template{}, engi.Errorf(engi.NotFound, "there is no such template")
}

func (s *fakeTemplates) List(context.Context) (all []engi.Template, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.built {
		all = append(all, t)
	}
	return all, nil
}

func (s *fakeTemplates) Build(ctx context.Context, name string, definition []byte, progress func(engi.Progress)) (engi.Template, error) {
	progress(engi.Progress{Step: 1, Steps: 2, Name: "install"})
	progress(engi.Progress{Step: 1, Steps: 2, Name: "install", Log: "Download a"})
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return engi.Template{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return engi.Template{}, s.fail
	}
	if _, ok := s.built[name]; !ok {
		s.builds++
		s.built[name] = engi.Template{Name: name, Digest: "sha256:" + name, Built: time.Now()}
	}
	return s.built[name], nil
}

func (s *fakeTemplates) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.built, name)
	return nil
}

func (s *fakeTemplates) set(fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func start(t *testing.T, s *fakeTemplates, file string, packages ...string) (m *Manager, stop func()) {
	t.Helper()
	o := Options{Templates: s, Base: "base", File: file}
	for _, p := range packages {
		o.Packages = append(o.Packages, engi.Dependency{Package: p})
	}
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx, func() {}) }()
	return m, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestInstalling checks which template is served: the first build is waited for, later ones run
// while the old template is served, failures have a reason and are retried.
func TestInstalling(t *testing.T) {
	file := filepath.Join(t.TempDir(), "packages")
	synctest.Test(t, func(t *testing.T) {
		s := &fakeTemplates{built: map[string]engi.Template{}, slow: 20 * time.Second}
		k, stop := start(t, s, file, "a")
		synctest.Wait()
		if d := k.Status(); d.State != engi.DependenciesBuilding || d.Step != "install" || !slices.Equal(d.Log, []string{"Download a"}) || d.Template != "" {
			t.Errorf("%+v", d)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, _, err := k.Template(short); !engi.Is(err, engi.Unavailable) || !strings.Contains(engi.RemedyOf(err), "engi session deps") {
			t.Errorf("while it builds: %v", err)
		}
		cancel()
		name, config, err := k.Template(t.Context())
		if err != nil || name != k.Status().Wanted || config != Config || s.builds != 1 {
			t.Errorf("%s %s %v", name, config, err)
		}
		first := name
		stop()

		// Opened again, it builds nothing, and serves at once.
		k, stop = start(t, s, file, "a")
		if d := k.Status(); d.State != engi.DependenciesReady || d.Template != first {
			t.Errorf("%+v", d)
		}
		time.Sleep(time.Minute)
		if s.builds != 1 {
			t.Errorf("%d builds", s.builds)
		}
		stop()

		// With another configuration that cannot be built, the earlier template is served.
		s.set(engi.Errorf(engi.Unavailable, "the registry does not answer").WithRemedy("look at it"))
		k, stop = start(t, s, file, "a", "b")
		if d := k.Status(); d.State != engi.DependenciesBuilding || d.Template != first {
			t.Errorf("%+v", d)
		}
		time.Sleep(21 * time.Second)
		if d := k.Status(); d.State != engi.DependenciesFailed || d.Template != first || !strings.Contains(d.Error, "does not answer") || d.Remedy != "look at it" {
			t.Errorf("%+v", d)
		}
		if name, _, err := k.Template(t.Context()); name != first || err != nil {
			t.Errorf("%s, %v", name, err)
		}
		s.set(nil)
		time.Sleep(time.Minute)
		if d := k.Status(); d.State != engi.DependenciesReady || d.Template == first || d.Error != "" {
			t.Errorf("%+v", d)
		}
		stop()

		// Without an earlier template, the failure is returned.
		s.set(engi.Errorf(engi.Invalid, "no such package"))
		k, stop = start(t, s, filepath.Join(t.TempDir(), "none"), "c")
		if _, _, err := k.Template(t.Context()); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "no such package") {
			t.Errorf("%v", err)
		}
		stop()

		// Without packages, the base is served.
		s.set(nil)
		k, stop = start(t, s, "")
		if name, config, err := k.Template(t.Context()); name != "base" || config != "" || err != nil {
			t.Errorf("%s %s %v", name, config, err)
		}
		stop()
	})
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), prefix) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestOldPackagesGo checks that only a few old templates are kept.
func TestOldPackagesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeTemplates{built: map[string]engi.Template{}}
		for _, p := range strings.Split("abcdefghijklmn", "") {
			time.Sleep(time.Second)
			name := Name("base", []engi.Dependency{{Package: p}})
			s.built[name] = engi.Template{Name: name, Digest: "x", Built: time.Now()}
		}
		s.built["mine"] = engi.Template{Name: "mine", Digest: "x"}
		oldest := Name("base", []engi.Dependency{{Package: "a"}})
		_, stop := start(t, s, "", "a")
		time.Sleep(time.Second)
		stop()
		if len(s.built) != keepOld+2 || s.built[oldest].Name == "" || s.built["mine"].Name == "" {
			t.Errorf("%d are left", len(s.built))
		}
	})
}
