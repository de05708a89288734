package arch

import (
	"cmp"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// words maps words that are not used here to the word that each layer uses instead.
var words = map[string]string{
	"studio": "app", "genui": "page", "ui": "page", "interface": "page", "interfaces": "pages",
	"library": "docs", "js": "script", "invocation": "script", "gate": "access or egress",
	"wall": "egress", "broker": "mirror", "mirrors": "registries",
}

// figures lists figures of speech, which a newcomer cannot look up.
var figures = map[string]bool{"desk": true, "room": true, "box": true, "house": true, "world": true, "teller": true}

// TestWords fails where a layer uses another word than the other layers: a
// package, a path of the API, a group of commands, a section of the configuration, a
// type of event, a page of docs.
func TestWords(t *testing.T) {
	look := func(layer, name string) {
		for _, word := range regexp.MustCompile(`[a-z0-9]+`).FindAllString(strings.ToLower(name), -1) {
			if right := words[word]; right != "" {
				t.Errorf("%s %s: the word here is %s, not %s", layer, name, right, word)
			}
			if figures[word] {
				t.Errorf("%s %s: %s is a figure of speech", layer, name, word)
			}
		}
	}
	for pkg, p := range packages(t) {
		if strings.HasPrefix(pkg, "cmd/") {
			continue // these are names of programs
		}
		look("package", pkg)
		look("package", p.name)
	}
	raw, err := os.ReadFile(filepath.Join(root, "internal/server/rest/testdata/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Paths map[string]any }
	if err := json.Unmarshal(raw, &api); err != nil || len(api.Paths) < 100 {
		t.Fatalf("%d paths, %v", len(api.Paths), err)
	}
	for p := range api.Paths {
		look("path", p)
	}
	for _, page := range []struct{ file, layer, pattern string }{
		{"docs/cli.md", "command", `(?m)^## engi ([a-z -]+)$`},
		{"docs/configuration.md", "setting", "(?m)^\\| `([a-z_]+)\\.[a-z_.]+`"},
		{"internal/engi/event.go", "event", `(?m)^\t+Event\w+ += "([a-z_.]+)"`},
	} {
		text, err := os.ReadFile(filepath.Join(root, page.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(page.pattern).FindAllStringSubmatch(string(text), -1)
		if len(found) < 20 {
			t.Errorf("%s has only %d of %s", page.file, len(found), page.layer)
		}
		for _, m := range found {
			look(page.layer, m[1])
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, p := range pages {
		look("page", strings.TrimSuffix(path.Base(p), ".md"))
	}
}

// TestIdioms fails where product code does not use the common form of an idiom.
func TestIdioms(t *testing.T) {
	idioms := map[*regexp.Regexp]string{
		regexp.MustCompile(`(Debug|Info|Warn|Error)(Context)?\(.*"(err|e|cause|reason)", (err|e)\b`): `the key of an error is "error"`,
		regexp.MustCompile(`KindOf\([^\n]*\) [!=]= (engi\.)?\w+`):                                    "kinds are compared by engi.Is",
	}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return cmp.Or(err, fs.SkipDir)
		}
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		for idiom, want := range idioms {
			for _, m := range idiom.FindAll(text, -1) {
				t.Errorf("%s: %s: %s", file, m, want)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFiguresOfSpeech fails where a type or a function is called a desk, a box and so on.
func TestFiguresOfSpeech(t *testing.T) {
	for _, p := range testPackages(t) {
		for _, f := range p.files {
			figureNames(f.tree, func(name *ast.Ident) {
				t.Errorf("%s: %s is a figure of speech: say what it is", p.fset.Position(name.Pos()), name.Name)
			})
		}
	}
	n := 0
	f, err := parser.ParseFile(token.NewFileSet(), "", "package x; type fakeBox int; func newWorld() { room := 1; _ = room }; type boxed int", 0)
	if err != nil {
		t.Fatal(err)
	}
	if figureNames(f, func(*ast.Ident) { n++ }); n != 2 {
		t.Errorf("found %d, want 2", n)
	}
}

var camel = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)

func figureNames(f *ast.File, found func(*ast.Ident)) {
	look := func(name *ast.Ident) {
		for _, word := range camel.FindAllString(name.Name, -1) {
			if figures[strings.ToLower(word)] {
				found(name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			look(d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					look(s.Name)
				}
			}
		}
	}
}
