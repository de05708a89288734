package app_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/app"
	edits "github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/app/output"
	"github.com/engi-dev/engi/internal/engi"
)

var update = flag.Bool("update", false, "write the golden file of the corpus anew")

// corpusTexts returns texts of models, by name: the corpus of package output, and
// texts that are too large for a file.
func corpusTexts(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("output/testdata/*.txt")
	if err != nil || len(names) < 60 {
		t.Fatalf("there are %d texts (%v)", len(names), err)
	}
	line := strings.Repeat("x", 63) + "\n"
	texts := map[string]string{
		"2-mib":               file("src/large.css", strings.Repeat(line, output.MaxFile/len(line))),
		"larger-than-2-mib":   file("src/large.css", strings.Repeat(line, output.MaxFile/len(line)+1)),
		"package-that-is-not": file("src/a.ts", "export {}\n") + "<package>nope</package>",
	}
	var many strings.Builder
	for i := range 1100 {
		many.WriteString(file(fmt.Sprintf("src/f%d.ts", i), "export {}\n"))
	}
	texts["more-than-an-app"] = many.String()
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(filepath.Base(name), ".txt")] = string(raw)
	}
	return texts
}

// TestCorpusIsApplied applies texts of models, each to an app with the files that it
// edits. The expected results are in testdata/corpus.want, which -update writes. Afterwards the app must have all
// changes or none; nothing else must have changed in its sandbox; and its page must answer.
func TestCorpusIsApplied(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	var mu sync.Mutex
	ends := map[string]string{}
	t.Run("texts", func(t *testing.T) {
		for name, text := range corpusTexts(t) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				end := applyText(t, text)
				mu.Lock()
				defer mu.Unlock()
				ends[name] = end
			})
		}
	})
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		fmt.Fprintf(&got, "%s: %s\n", name, ends[name])
	}
	const golden = "testdata/corpus.want"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Error(d)
	}
}

// applyText applies a text to an app and describes the result in a line.
func applyText(t *testing.T, text string) string {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	out := output.Parse(text)
	w.change(a.Sandbox, func(b *fakeSandbox) {
		for p, text := range editedBy(t, out) {
			b.put(p, text)
		}
	})
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("seed.txt", "seed\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	before, around := recorded(t, s, "shop", 0), untracked(w, a.Sandbox)
	number := revisionOf(t, s)

	var all []engi.AppUpdate
	var last engi.AppUpdate
	if strings.TrimSpace(text) != "" {
		all, last = apply(t, s, "shop", engi.ApplySpec{Text: text})
	} else {
		err := second(s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: text}))
		last.Error, _ = errors.AsType[*engi.Error](err)
	}
	end := fmt.Sprintf("%s, %d warnings", last.Kind, count(all, engi.AppWarning))
	if last.Error != nil {
		end = fmt.Sprintf("%s, %s", last.Error.Kind, strings.SplitN(last.Error.Text, "\n", 2)[0])
	}
	wantSame(t, w, s, "shop")
	after := recorded(t, s, "shop", 0)
	if last.Kind == engi.AppApplied {
		want := asWritten(t, before, out)
		if len(out.Packages) > 0 || want["package.json"] != before["package.json"] {
			wantManifest(t, want["package.json"], after["package.json"], out.Packages)
		}
		want["package.json"] = after["package.json"]
		if d := cmp.Diff(want, after); d != "" {
			t.Errorf("it is applied (-want +got):\n%s", d)
		}
	} else if d := cmp.Diff(before, after); d != "" || revisionOf(t, s) != number {
		t.Errorf("it ended with %s, and there is revision %d:\n%s", end, revisionOf(t, s), d)
	}
	for _, p := range out.Cut {
		if !slices.ContainsFunc(all, func(u engi.AppUpdate) bool { return u.Kind == engi.AppWarning && u.Path == p }) {
			t.Errorf("nothing was said about %s, which is cut off", p)
		}
		if before[p] != after[p] {
			t.Errorf("%s is cut off, and was written: %q", p, after[p])
		}
	}
	if d := cmp.Diff(around, untracked(w, a.Sandbox)); d != "" {
		t.Errorf("it has changed what is no part of the app:\n%s", d)
	}
	if st, err := s.Status(t.Context(), "ann", "shop"); err != nil || !st.Healthy || st.App.State != engi.AppReady {
		t.Errorf("after it the app is %+v (%v)", st, err)
	}
	return end
}

func revisionOf(t *testing.T, s *app.Service) int64 {
	t.Helper()
	a, err := s.Get(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	return a.Revision
}

func count(all []engi.AppUpdate, kind engi.AppUpdateKind) (n int) {
	for _, u := range all {
		if u.Kind == kind {
			n++
		}
	}
	return n
}

// editedBy returns possible earlier contents of the files that an output edits or
// removes.
func editedBy(t *testing.T, out output.Output) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, e := range out.Edits {
		p := e.Path
		if e.From != "" {
			p = e.From
		}
		if p == "src/App.jsx" {
			raw, err := os.ReadFile("output/testdata/App.jsx")
			if err != nil {
				t.Fatal(err)
			}
			all[p] = string(raw)
			continue
		}
		if e.From != "" {
			all[p] = "// it was moved\n"
		}
		for _, b := range e.Blocks {
			if b.Search == "" {
				continue // a new file
			}
			all[p] += b.Search + fmt.Sprintf("\n// the end of what is in line %d\n", b.Line)
		}
	}
	for _, p := range out.Removed {
		all[p] = "export {}\n"
	}
	maps.DeleteFunc(all, func(p, _ string) bool { return app.CheckPath(p) != nil })
	return all
}

// asWritten returns the files of an app with an output.
func asWritten(t *testing.T, before map[string]string, out output.Output) map[string]string {
	t.Helper()
	want, written := maps.Clone(before), map[string]bool{}
	for _, f := range out.Files {
		if app.CheckPath(f.Path) != nil {
			continue
		}
		text := f.Content
		if old, ok := before[f.Path]; ok {
			text = edits.Like(old, text)
		}
		want[f.Path], written[f.Path] = text, true
	}
	for _, e := range out.Edits {
		from := e.Path
		if e.From != "" {
			from = e.From
		}
		text, err := edits.Apply(want[from], e.Blocks)
		if err != nil {
			t.Fatal(err)
		}
		delete(want, from)
		want[e.Path], written[e.Path] = text, true
	}
	for _, p := range out.Removed {
		if !written[p] {
			delete(want, p)
		}
	}
	return want
}

// wantManifest checks that a package.json has its written content, with packages.
func wantManifest(t *testing.T, written, got string, packages []string) {
	t.Helper()
	want, have := map[string]any{}, map[string]any{}
	for text, m := range map[string]*map[string]any{written: &want, got: &have} {
		if err := json.Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
	}
	was, _ := want["dependencies"].(map[string]any)
	now, _ := have["dependencies"].(map[string]any)
	asked := map[string]bool{}
	for _, p := range packages {
		if i := strings.LastIndexByte(p, '@'); i > 0 {
			p = p[:i]
		}
		if asked[p] = true; now[p] == nil && !strings.ContainsAny(p, "[=<>") {
			t.Errorf("package.json has no %s: %s", p, got)
		}
	}
	for name, version := range was {
		if now[name] != version && !asked[name] {
			t.Errorf("package.json has %s in version %v, want %v", name, now[name], version)
		}
	}
	delete(want, "dependencies")
	delete(have, "dependencies")
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("package.json is not as it was written:\n%s", d)
	}
}

// untracked returns the files of a sandbox without those of the app, its packages and its
// commits.
func untracked(w *fixture, id engi.SandboxID) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for p, n := range w.boxes[id].files {
		rest, ok := strings.CutPrefix(p, appDir+"/")
		if ok && (app.CheckPath(rest) == nil || strings.HasPrefix(rest, "node_modules/") || strings.HasPrefix(rest, ".git/objects/") || rest == ".git/refs/engi/head") {
			continue
		}
		all[p] = n.data
	}
	return all
}
