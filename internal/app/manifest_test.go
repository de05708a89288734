package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/seed"
)

// anew returns the manifest of a revision, computed from all its files.
func anew(t *testing.T, s *app.Service, number int64) project.Manifest {
	t.Helper()
	files, err := s.Files(t.Context(), "ann", "shop", number)
	if err != nil {
		t.Fatal(err)
	}
	b := project.NewBuilder()
	for _, f := range files {
		r, err := s.File(t.Context(), "ann", "shop", f.Path, number)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Update(f.Path, string(text))
	}
	return b.Manifest()
}

// as converts x to a type that has the same fields, or fewer.
func as[T any](t *testing.T, x any) (y T) {
	t.Helper()
	raw, err := json.Marshal(x)
	if err == nil {
		err = json.Unmarshal(raw, &y)
	}
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// TestManifest requests manifests of revisions in any order while an app changes at
// random. Each must equal a manifest that is computed from scratch.
func TestManifest(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	texts := []string{
		"import { Card } from './Card'\nexport const Page = () => <Card />\n", "export const Card = () => <b />\nexport default Card\n",
		"import './App.css'\nimport x from 'left-pad'\nexport * from './Card'\n", "export const = broken\n", "",
	}
	paths := []string{"src/A.tsx", "src/Card.tsx", "src/deep/er.ts", "src/App.css", "notes.md"}
	last := int64(1)
	check := func(number int64) {
		got, err := s.Manifest(t.Context(), "ann", "shop", number)
		if err != nil {
			t.Fatal(err)
		}
		want := anew(t, s, number)
		if d := cmp.Diff(want.Components, as[[]project.Component](t, got.Components), cmpopts.EquateEmpty()); d != "" || got.Entry != want.Entry || got.Revision != number || got.App != a.ID || got.Truncated {
			t.Fatalf("revision %d: %+v\n%s", number, got, d)
		}
		if d := cmp.Diff(want.Files, as[[]project.FileInfo](t, got.Files), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("the files of revision %d (-anew +kept):\n%s", number, d)
		}
		if d := cmp.Diff(want.Routes, as[[]project.Route](t, got.Routes), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("the routes of revision %d:\n%s", number, d)
		}
		if d := cmp.Diff(want.Problems, as[[]project.Problem](t, got.Problems), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("the problems of revision %d:\n%s", number, d)
		}
		if d := cmp.Diff([]any{want.Styles, want.Packages}, []any{got.Styles, got.Packages}, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("revision %d:\n%s", number, d)
		}
	}
	random := seed.New(t)
	for range 12 {
		p, text := paths[random.IntN(len(paths))], texts[random.IntN(len(texts))]
		if random.IntN(4) == 0 {
			text = fmt.Sprintf(`<file path="%s" action="delete"/>`, p)
		} else {
			text = file(p, text)
		}
		if _, u := apply(t, s, "shop", engi.ApplySpec{Text: text}); u.Kind == engi.AppApplied {
			last = u.Revision
		}
		check(1 + random.Int64N(last))
		check(last)
	}
	got, err := s.Manifest(t.Context(), "ann", "shop", 0)
	if err != nil || got.Revision != last || got.Entry != "src/main.tsx" {
		t.Fatalf("the last one is %+v (%v)", got, err)
	}
	for _, f := range got.Files {
		if f.Since < 1 || f.Since > last || f.Digest == "" {
			t.Errorf("%+v", f)
		}
	}
	if _, err := s.Manifest(t.Context(), "bob", string(a.ID), 0); !engi.Is(err, engi.NotFound) {
		t.Errorf("another owner: %v", err)
	}
	if _, err := s.Manifest(t.Context(), "ann", "shop", last+1); !engi.Is(err, engi.NotFound) {
		t.Errorf("a revision that is not there: %v", err)
	}
}

// TestManifestIsBounded requests the manifest of an app whose files have too many imports.
func TestManifestIsBounded(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	var imports, text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&imports, "import './x%d'\n", i)
	}
	for i := range 25 {
		text.WriteString(file(fmt.Sprintf("lib/m%d.js", i), imports.String()))
	}
	if _, u := apply(t, s, "shop", engi.ApplySpec{Text: text.String()}); u.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", u)
	}
	got, err := s.Manifest(t.Context(), "ann", "shop", 0)
	if err != nil || !got.Truncated || len(got.Files) != 30 {
		t.Fatalf("%d files, truncated: %v (%v)", len(got.Files), got.Truncated, err)
	}
	n := 0
	for _, f := range got.Files {
		n += len(f.Imports)
	}
	if n < 15_000 || n > 20_000 {
		t.Errorf("it has %d imports", n)
	}
}
