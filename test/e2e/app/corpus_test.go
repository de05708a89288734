package app

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// TestCorpus applies the worst texts of models to an app in a real sandbox.
// Each must end as recorded in the corpus for fakes; see internal/app. The app has
// the whole change or nothing of it, no other file in the sandbox has changed, and its page answers.
func TestCorpus(t *testing.T) {
	env.Slow(t)
	w := &fixture{Server: env.Serve(t, env.ServerOptions{}), t: t}
	w.Run("template", "build", "vite-react")
	var err error
	if w.app, err = w.CreateApp(t.Context(), v1.AppRequest{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 60) + "*/\n"
	around := w.around()
	texts := map[string]struct {
		text string // text to apply; empty means the text of the corpus
		done bool
		has  string // file that exists afterwards
	}{
		"binary":               {done: true, has: "src/ok.js"},
		"path-escapes":         {done: true, has: "ok.js"},
		"cut-in-a-file":        {done: true, has: "src/index.css"},
		"conflicting-packages": {done: true, has: "package.json"},
		"nested-fences":        {done: true, has: "docs/guide.md"},
		"duplicate-files":      {done: true, has: "src/b.js"},
		"windows-line-ends":    {done: true, has: "src/App.jsx"},
		"unicode":              {done: true, has: "src/häuser/Übersicht.jsx"},
		"svg-and-html":         {done: true, has: "public/vite.svg"}, // Vite serves main.tsx for main.jsx
		"no-such-module":       {"<file path=\"index.html\">\n<div id=\"root\"></div><script type=\"module\" src=\"/src/none.js\"></script>\n</file>", false, ""},
		"edit-cut":             {},
		"wrong-fences":         {done: true, has: "src/f.jsx"},
		"2-mib":                {"<file path=\"public/large.css\">\n/*" + strings.Repeat(line[:61]+"\n", 33000) + "*/\n</file>", true, "public/large.css"},
		"larger-than-2-mib":    {"<file path=\"public/larger.css\">\n/*" + strings.Repeat(line[:61]+"\n", 34000) + "*/\n</file>", false, ""},
		"a-link-out":           {"<command>ln -sfn /tmp out</command>\n<file path=\"a.txt\">\na\n</file>", true, "a.txt"},
		"through-the-link":     {"<file path=\"out/x.txt\">\nx\n</file>", false, ""},
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		t.Run(name, func(t *testing.T) {
			w.t = t
			tt := texts[name]
			if tt.text == "" {
				raw, err := os.ReadFile("../../../internal/app/output/testdata/" + name + ".txt")
				if err != nil {
					t.Fatal(err)
				}
				tt.text = string(raw)
			}
			if name == "through-the-link" {
				w.Run("app", "run", w.app.ID, "--", "ln", "-sfn", "/tmp", "out")
			}
			before := w.recorded()
			u := w.apply(tt.text, nil)
			after := w.recorded()
			if (u.Type == v1.AppDone) != tt.done {
				t.Errorf("it ended with %+v, %+v", u, u.Error)
			}
			if _, ok := after[tt.has]; tt.has != "" && !ok {
				t.Errorf("there is no %s", tt.has)
			}
			if d := gocmp.Diff(before, after); !tt.done && d != "" {
				t.Errorf("it has changed:\n%s", d)
			}
			w.wantSame()
			if got := w.around(); got != around {
				t.Errorf("around the app there is\n%s, and was\n%s", got, around)
			}
			if page := w.get("/"); !strings.Contains(page, "<script") {
				t.Errorf("it serves %s", page)
			}
		})
	}
}

// around returns the files outside of the app, in places where a model may try to write.
func (w *fixture) around() string {
	w.t.Helper()
	return w.Run("app", "run", w.app.ID, "--", "sh", "-c", "cat /etc/passwd .git/config; find / /home/user /tmp /etc -maxdepth 1 ! -name '.engi*' ! -name 'node-compile-cache' ! -name '.npm' | sort; ls -A /home/user/.ssh 2>/dev/null; ls .git/hooks 2>/dev/null; true")
}
