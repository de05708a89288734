package app_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/seed"
)

// A reading reads the files of an app in one of the available ways, without naming
// a revision.
type reading func(t testing.TB, s *app.Service, want map[string]string) map[string]string

var readings = map[string]reading{
	"list": func(t testing.TB, s *app.Service, _ map[string]string) map[string]string {
		files, err := s.Files(t.Context(), "ann", "shop", 0)
		return described(t, files, err)
	},
	"file": func(t testing.TB, s *app.Service, want map[string]string) map[string]string {
		all := map[string]string{}
		for p := range want {
			r, err := s.File(t.Context(), "ann", "shop", p, 0)
			if err != nil {
				t.Errorf("%s: %v", p, err)
				continue
			}
			text, err := io.ReadAll(r)
			if err != nil {
				t.Error(err)
			}
			all[p] = sum(string(text))
		}
		return all
	},
	"archive": func(t testing.TB, s *app.Service, _ map[string]string) map[string]string {
		var b bytes.Buffer
		if err := s.Zip(t.Context(), "ann", "shop", 0, &b); err != nil {
			t.Error(err)
			return nil
		}
		in, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, f := range in.File {
			text, err := fs.ReadFile(in, f.Name)
			if err != nil {
				t.Error(err)
			}
			all[f.Name] = sum(string(text))
		}
		return all
	},
	"manifest": func(t testing.TB, s *app.Service, _ map[string]string) map[string]string {
		m, err := s.Manifest(t.Context(), "ann", "shop", 0)
		files := make([]engi.AppFile, len(m.Files))
		for i, f := range m.Files {
			files[i] = f.AppFile
		}
		return described(t, files, err)
	},
}

func described(t testing.TB, files []engi.AppFile, err error) map[string]string {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[f.Path] = f.Digest
	}
	return all
}

func sum(text string) string { return app.Describe("x", []byte(text)).Digest }

func sums(files map[string]string) map[string]string {
	all := map[string]string{}
	for p, text := range files {
		all[p] = sum(text)
	}
	return all
}

// TestReadsAreNeverStale changes an app in every way, also manually in its sandbox, and
// reads it without naming a revision. A reader must get the state at the beginning of the read, or
// a later one. ENGI_CHAOS_SEED repeats a run.
func TestReadsAreNeverStale(t *testing.T) {
	seed := seed.Of(t, "ENGI_CHAOS_SEED", 1)
	steps, done := 60, map[string]int{}
	if testing.Short() {
		steps = 20
	}
	for i := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			w.pace = 100 * time.Millisecond
			h := &stale{t: t, w: w, rng: rand.New(rand.NewPCG(seed, i)), done: done}
			h.s, h.stop = w.begin(t)
			h.app = create(t, h.s, "shop")
			h.want = w.tracked(h.app.Sandbox)
			h.kept = maps.Clone(h.want)
			for range steps {
				h.step()
				if t.Failed() {
					t.Fatalf("in history %d", i)
				}
			}
			h.stop()
			w.end()
		})
	}
	t.Logf("%v", done)
	for _, what := range []string{"write", "write unseen", "remove", "apply", "apply that fails", "rollback", "lose the sandbox", "sleep", "restart the node", "transactions fail"} {
		if done[what] == 0 && !testing.Short() {
			t.Errorf("there was no %s: the test tested less than it says", what)
		}
	}
}

// A stale is an app that changes, with its possible states.
type stale struct {
	t    *testing.T
	w    *fixture
	rng  *rand.Rand
	s    *app.Service
	stop func()
	app  engi.App
	want map[string]string // files in its sandbox
	kept map[string]string // files that must at least be recorded
	n    int
	done map[string]int
}

// step performs one change and reads the app.
func (h *stale) step() {
	t, w := h.t, h.w
	h.n++
	text := fmt.Sprintf("export default %06d\n", h.n)
	acts := []struct {
		name string
		do   func()
	}{
		{"write", func() {
			p := fmt.Sprintf("src/H%d.tsx", h.rng.IntN(5))
			w.change(h.app.Sandbox, func(b *fakeSandbox) { b.put(p, text) })
			h.want[p] = text
		}},
		{"write unseen", func() { // with the same size and time as before
			w.change(h.app.Sandbox, func(b *fakeSandbox) {
				for p, old := range h.want {
					if len(old) == len(text) {
						n := b.files[appDir+"/"+p]
						b.clock = b.clock.Add(time.Nanosecond)
						n.data, n.changed = text, b.clock
						b.files[appDir+"/"+p], h.want[p] = n, text
						return
					}
				}
			})
		}},
		{"write all at once", func() {
			w.change(h.app.Sandbox, func(b *fakeSandbox) {
				for i := range 5 {
					p := fmt.Sprintf("src/H%d.tsx", i)
					b.put(p, text)
					h.want[p] = text
				}
			})
		}},
		{"remove", func() {
			p := fmt.Sprintf("src/H%d.tsx", h.rng.IntN(5))
			w.change(h.app.Sandbox, func(b *fakeSandbox) { delete(b.files, appDir+"/"+p) })
			delete(h.want, p)
		}},
		{"apply", func() {
			p := fmt.Sprintf("src/H%d.tsx", h.rng.IntN(5))
			if _, last := apply(t, h.s, "shop", engi.ApplySpec{Text: file(p, text)}); last.Kind != engi.AppApplied {
				t.Errorf("it ended with %+v", last)
			}
			h.want[p] = text
			h.kept = maps.Clone(h.want)
		}},
		{"apply that fails", func() {
			if _, last := apply(t, h.s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "BROKEN\n") + file("src/H0.tsx", text)}); last.Kind != engi.AppApplyFailed {
				t.Errorf("it ended with %+v", last)
			}
			h.kept = maps.Clone(h.want)
		}},
		{"rollback", func() {
			if _, err := h.s.Rollback(t.Context(), "ann", "shop", 1); err != nil {
				t.Error(err)
			}
			h.want = recorded(t, h.s, "shop", 1)
			h.kept = maps.Clone(h.want)
		}},
		{"lose the sandbox", func() {
			w.mu.Lock()
			w.lose(w.boxes[h.app.Sandbox])
			w.mu.Unlock()
			h.want = maps.Clone(h.kept) // manual changes that were not read are lost with the sandbox
			h.read("lost, before it is opened")
			h.open()
		}},
		{"sleep", func() {
			time.Sleep(5 * time.Second) // background work would resume it
			w.change(h.app.Sandbox, func(b *fakeSandbox) { b.State = engi.Hibernated })
			entered := w.entered()
			want := h.want
			h.want = h.kept
			h.read("asleep")
			if h.want = want; w.entered() != entered {
				t.Error("a reader has woken it")
			}
			h.open()
		}},
		{"restart the node", func() {
			h.stop()
			h.s, h.stop = w.begin(t)
			h.open()
		}},
		{"transactions fail", func() { // while manual changes are recorded
			w.change(h.app.Sandbox, func(b *fakeSandbox) { b.put("src/H3.tsx", text) })
			h.want["src/H3.tsx"] = text
			w.mu.Lock()
			n := 3
			w.fault = func(op string, b *fakeSandbox) error {
				if op == "change" {
					if n--; n >= 0 {
						return engi.Errorf(engi.Unavailable, "the disk is full")
					}
				}
				return nil
			}
			w.mu.Unlock()
		}},
		{"read while it is applied", func() {
			before := sums(h.want)
			h.want["src/H1.tsx"], h.want["src/H2.tsx"] = text, text
			after := sums(h.want)
			var work sync.WaitGroup
			over := make(chan struct{})
			for range 3 {
				work.Go(func() {
					seen := before
					for {
						got := readings["list"](t, h.s, nil)
						if !maps.Equal(got, before) && !maps.Equal(got, after) || maps.Equal(seen, after) && !maps.Equal(got, after) {
							t.Errorf("a reader sees what is between: %v", got)
							return
						}
						seen = got
						select {
						case <-over:
							return
						case <-time.After(7 * time.Millisecond):
						}
					}
				})
			}
			_, last := apply(t, h.s, "shop", engi.ApplySpec{Text: file("src/H1.tsx", text) + "<package>p1</package>" + file("src/H2.tsx", text)})
			close(over)
			work.Wait()
			if last.Kind != engi.AppApplied {
				t.Errorf("it ended with %+v", last)
			}
			h.want["package.json"] = w.tracked(h.app.Sandbox)["package.json"]
			h.kept = maps.Clone(h.want)
		}},
	}
	act := acts[h.rng.IntN(len(acts))]
	if act.name == "read while it is applied" {
		h.want["package.json"] = `{"dependencies":{"p1":"^1.0.0","react":"19"}}` // it is present from the beginning
		w.change(h.app.Sandbox, func(b *fakeSandbox) { b.put("package.json", h.want["package.json"]) })
		h.read("before it is applied")
	}
	h.done[act.name]++
	act.do()
	time.Sleep(time.Duration(h.rng.IntN(3000)) * time.Millisecond)
	if h.rng.IntN(3) > 0 || act.name == "transactions fail" {
		h.read(act.name)
	}
	w.mu.Lock()
	w.fault = nil
	w.mu.Unlock()
}

// read reads the app in one of the ways.
func (h *stale) read(after string) {
	h.t.Helper()
	names := slices.Sorted(maps.Keys(readings))
	how := names[h.rng.IntN(len(names))]
	got, want := readings[how](h.t, h.s, h.want), sums(h.want)
	if d := cmp.Diff(want, got); d != "" {
		h.t.Errorf("step %d, after %s, %s (-there +read):\n%s", h.n, after, how, d)
	}
	h.kept = maps.Clone(h.want)
}

func (h *stale) open() {
	a, err := h.s.Open(h.t.Context(), "ann", "shop")
	if err != nil {
		h.t.Fatal(err)
	}
	h.app = a
}

func (w *fixture) entered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enter
}

// TestReadsWithoutAnAnswer uses a sandbox that does not answer, and one that exceeds the limits. Readers
// must get the recorded files in time. A named revision must be read without the sandbox.
func TestReadsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		a := create(t, s, "shop")
		want := sums(recorded(t, s, "shop", 0))
		check := func(what string, most time.Duration) {
			t.Helper()
			began := time.Now()
			if d := cmp.Diff(want, readings["list"](t, s, nil)); d != "" || time.Since(began) > most {
				t.Errorf("%s, after %v:\n%s", what, time.Since(began), d)
			}
		}
		w.change(a.Sandbox, func(b *fakeSandbox) { b.put("src/large.css", strings.Repeat("x", 3<<20)) })
		check("more than an app may have", time.Second)
		w.change(a.Sandbox, func(b *fakeSandbox) {
			delete(b.files, appDir+"/src/large.css")
			b.put("new.txt", "new\n")
			b.stuck = true
		})
		check("no answer", 6*time.Second)
		entered := w.entered()
		if _, err := s.Files(t.Context(), "ann", "shop", 1); err != nil || w.entered() != entered {
			t.Errorf("a revision that is named needs its sandbox (%v)", err)
		}
		w.change(a.Sandbox, func(b *fakeSandbox) { b.stuck = false })
		want["new.txt"] = sum("new\n")
		check("an answer again", time.Second)
		// A file that is written continually must not fill the history.
		before, began := revisionOf(t, s), time.Now()
		for i := range 100 {
			w.change(a.Sandbox, func(b *fakeSandbox) { b.put("log.txt", fmt.Sprint(i)) })
			want["log.txt"] = sum(fmt.Sprint(i))
			check("a log", 3*time.Second)
		}
		if n, took := revisionOf(t, s)-before, time.Since(began); n > 1+int64(took/(2*time.Second)) {
			t.Errorf("there are %d more revisions after %v", n, took)
		}
		stop()
		w.change(a.Sandbox, func(b *fakeSandbox) { w.lose(b) })
		synctest.Wait()
	})
}
