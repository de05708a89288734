package output_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/app/output"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// corpus returns the texts in testdata by name.
func corpus(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(filepath.Base(f), ".txt")] = string(raw)
	}
	return texts
}

// TestCorpus parses texts of models. The expected result of each is in a file beside
// it, which -update writes.
func TestCorpus(t *testing.T) {
	texts := corpus(t)
	if len(texts) < 60 {
		t.Errorf("%d texts", len(texts))
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			got := show(output.Parse(text))
			golden := filepath.Join("testdata", name+".want")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Error(d)
			}
		})
	}
}

// show formats an output for people.
func show(o output.Output) string {
	var b bytes.Buffer
	section := func(format string, args ...any) { fmt.Fprintf(&b, "--- "+format+"\n", args...) }
	content := func(s string) {
		b.WriteString(s)
		if s != "" && !strings.HasSuffix(s, "\n") {
			b.WriteString("\\ no newline\n")
		}
	}
	if o.Message != "" {
		section("message: %s", o.Message)
	}
	for _, f := range o.Files {
		section("file %s (line %d)", f.Path, f.Line)
		content(f.Content)
	}
	for _, e := range o.Edits {
		from := ""
		if e.From != "" {
			from = ", from " + e.From
		}
		section("edit %s (line %d%s)", e.Path, e.Line, from)
		for _, c := range e.Blocks {
			fmt.Fprintf(&b, "<<<<<<< %d\n", c.Line)
			content(c.Search)
			b.WriteString("=======\n")
			content(c.Replace)
			b.WriteString(">>>>>>>\n")
		}
	}
	for _, r := range o.Removed {
		section("remove %s", r)
	}
	for _, p := range o.Packages {
		section("package %s", p)
	}
	for _, c := range o.Commands {
		section("command %s", c)
	}
	for _, c := range o.Cut {
		section("cut %s", c)
	}
	for _, w := range o.Warnings {
		if w.Path != "" {
			w.Text = w.Path + ": " + w.Text
		}
		section("warning in line %d: %s", w.Line, w.Text)
	}
	return b.String()
}

// sound checks invariants of every output.
func sound(t testing.TB, o output.Output) {
	t.Helper()
	seen := map[string]string{}
	check := func(kind, p string) {
		if p == "" || path.Clean(p) != p || path.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsAny(p, "\x00\n\\") || len(p) > 512 {
			t.Fatalf("%s has the path %q", kind, p)
		}
		for part := range strings.SplitSeq(strings.ToLower(p), "/") {
			if part == ".git" || part == "node_modules" || part == ".." {
				t.Fatalf("%s has the path %q", kind, p)
			}
		}
		if was, ok := seen[p]; ok && !(was == "file" && kind == "edit") && !(was == "edit" && kind == "edit") {
			t.Fatalf("%s is %s and %s", p, was, kind)
		}
		seen[p] = kind
	}
	for _, f := range o.Files {
		check("file", f.Path)
		if len(f.Content) > output.MaxFile || strings.Contains(f.Content, "\x00") || f.Content != "" && !strings.HasSuffix(f.Content, "\n") {
			t.Fatalf("%s has %.100q", f.Path, f.Content)
		}
		if f.Line < 1 {
			t.Fatalf("%s is in line %d", f.Path, f.Line)
		}
	}
	for _, e := range o.Edits {
		check("edit", e.Path)
		if e.From != "" && (path.Clean(e.From) != e.From || path.IsAbs(e.From) || strings.HasPrefix(e.From, "..")) {
			t.Fatalf("%s is from %q", e.Path, e.From)
		}
	}
	for _, r := range o.Removed {
		check("removal", r)
	}
	for _, c := range o.Cut {
		check("cut", c)
	}
	for _, p := range o.Packages {
		if strings.HasPrefix(p, "-") && !strings.HasPrefix(p, "-/") || strings.ContainsAny(p, ": \t\n\"'$;&") || strings.HasPrefix(p, ".") || strings.HasPrefix(p, "/") || strings.Count(p, "/") > 1 {
			t.Fatalf("the package %q", p)
		}
	}
	if len(o.Message) > 200 || strings.Contains(o.Message, "\n") || len(o.Commands) > 50 || len(o.Packages) > 100 || len(o.Warnings) > 101 || len(o.Files)+len(o.Edits) > 1000 {
		t.Fatalf("out of bounds: %.300q", fmt.Sprint(o))
	}
}

// prefix checks that a file in the output of a text's beginning equals the file in the output of
// the whole text, or a file that no longer counts there.
func prefix(t testing.TB, text string, n int, whole output.Output) {
	t.Helper()
	part := output.Parse(text[:n])
	sound(t, part)
	if last := strings.TrimSpace(text[strings.LastIndexByte(text[:n], '\n')+1 : n]); strings.HasPrefix(last, "```") || strings.HasPrefix(last, "~~~") {
		return // it ends a fence, unless more text follows
	}
	for _, f := range part.Files {
		i := slices.IndexFunc(whole.Files, func(w output.File) bool { return w.Path == f.Path && w.Line == f.Line })
		if i >= 0 {
			if whole.Files[i].Content != f.Content {
				t.Fatalf("%s is at first\n%q\nand then\n%q", f.Path, f.Content, whole.Files[i].Content)
			}
			continue
		}
		later := func(w output.File) bool {
			return w.Path == f.Path && w.Line > f.Line || strings.HasPrefix(w.Path, f.Path+"/")
		}
		if slices.ContainsFunc(whole.Files, later) || slices.Contains(whole.Removed, f.Path) || slices.Contains(whole.Cut, f.Path) ||
			slices.ContainsFunc(whole.Edits, func(e output.Edit) bool { return e.Path == f.Path || strings.HasPrefix(e.Path, f.Path+"/") }) {
			continue
		}
		t.Fatalf("%s of line %d is gone", f.Path, f.Line)
	}
}

// TestCuts cuts each text of the corpus at every byte, or at many.
func TestCuts(t *testing.T) {
	for name, text := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			whole := output.Parse(text)
			sound(t, whole)
			step := max(1, len(text)/1500)
			for n := 0; n < len(text); n += step {
				prefix(t, text, n, whole)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	line := "export const value = 'something of some length'\n"
	tests := map[string]struct {
		text               string
		files, cut, warned int
	}{
		"a file of 2 MiB":         {"<file path=\"a.js\">\n" + strings.Repeat(line, output.MaxFile/len(line)) + "</file>\n", 1, 0, 0},
		"a larger one":            {"<file path=\"a.js\">\n" + strings.Repeat(line, output.MaxFile/len(line)+1) + "</file>\n<file path=\"b.js\">\nb\n</file>\n", 1, 0, 1},
		"more than a text has":    {"<file path=\"a.js\">\n" + strings.Repeat(line, output.MaxText/len(line)+1) + "</file>\n", 0, 1, 1},
		"more files than an app":  {manyFiles(1200), 1000, 0, 1},
		"a file and no directory": {"<file path=\"src\">x</file><file path=\"src/a.js\">x</file>", 1, 0, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := output.Parse(tt.text)
			sound(t, o)
			if len(o.Files) != tt.files || len(o.Cut) != tt.cut || len(o.Warnings) != tt.warned {
				t.Errorf("%d files, %d cut, %v", len(o.Files), len(o.Cut), o.Warnings)
			}
		})
	}
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "<file path=\"../%d\">x</file><package>p%d</package><command>echo %d</command>\n", i, i, i)
	}
	o := output.Parse(b.String())
	sound(t, o)
	if len(o.Packages) != 100 || len(o.Commands) != 50 || len(o.Warnings) != 101 {
		t.Errorf("%d packages, %d commands, %d warnings", len(o.Packages), len(o.Commands), len(o.Warnings))
	}
}

func manyFiles(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "<file path=\"src/f%d.js\">\nexport default %d\n</file>\n", i, i)
	}
	return b.String()
}

// TestCost parses texts of every shape that would take very long if any part
// were read again and again.
func TestCost(t *testing.T) {
	skipCosts(t)
	for _, unit := range []string{
		"<file path=\"a.js\">\n", "<file path=\"a.js\">", "<file ", "<file path=", "<file path=\"", "<file path=\"<file path=\"", "<file a=b ", "</file>", "\"</file>", "<file path=\"a\">\"</file>\n",
		"<file path=\"a.js\">\nx\n</file>\n", "<file path=\"a.js\"><![CDATA[", "]]>", "<package>", "<packages>", "<packages><package>", "<command>", "<commands>\n", "<explanation>", "<think>", "<edit path=\"a\">",
		"```", "```\n", "```js\n", "````\n```\n", "```js a.js\n", "```js a.js\nx\n", "```diff\n", "~~~\n```\n", "`<", "`<file path=\"a\">", "&lt;", "&lt;file path=\"a\"&gt;\n", "&lt;file path=\"a\"&gt;\n&lt;/file",
		"<<<<<<< SEARCH\n", "a.js\n<<<<<<< SEARCH\n", "<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n", "--- a\n+++ b\n", "--- a\n", "+++ a\n", "diff --git a/a b/a\n", "@@ -1 +1 @@\n", "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
		"--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n", "*** Begin Patch\n", "*** Begin Patch\n*** Add File: a\n+a\n", "diff --git a/a b/a\n@@ -1,9999999 +1,9999999 @@\n\n\n\n", "**a.js**\n", "\n", " ", "a", "\\", "\r", "<", "&", "'", "$ npm i a && ",
		"<a>", "<dyad-write path=\"a\">", "<boltAction type=\"file\" filePath=\"a\">", "<boltAction type=\"shell\">", "<boltArtifact title=\"a\">", "<delete path=\"a\">", "<rename from=\"a\" to=\"b\">",
	} {
		t.Run(fmt.Sprintf("%q", unit), func(t *testing.T) {
			text := strings.Repeat(unit, (128<<10)/len(unit))
			for _, s := range []string{text, "```js a.js\n" + text, "<file path=\"a\">\n" + text, "<command>" + text + "</command>", "```diff\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n" + text, "<edit path=\"a\">\n<<<<<<< SEARCH\n" + text} {
				start := cpu()
				o := output.Parse(s)
				if d := cpu() - start; d > patience {
					t.Errorf("%.40q takes %v", s, d)
				}
				sound(t, o)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range corpus(f) {
		f.Add(text, uint16(len(text)/2))
	}
	f.Fuzz(func(t *testing.T, text string, at uint16) {
		whole := output.Parse(text)
		sound(t, whole)
		for _, e := range whole.Edits {
			for _, b := range e.Blocks {
				if len(b.Search)+len(b.Replace) > 2*len(text)+2 {
					t.Fatalf("a block of %d bytes", len(b.Search)+len(b.Replace))
				}
			}
		}
		prefix(t, text, min(int(at), len(text)), whole)
	})
}

// TestEditsHavePlaces applies the edits of the corpus that concern one file.
func TestEditsHavePlaces(t *testing.T) {
	app, err := os.ReadFile("testdata/App.jsx")
	if err != nil {
		t.Fatal(err)
	}
	applied := 0
	for name, text := range corpus(t) {
		if !strings.HasPrefix(name, "edit-app") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			got := string(app)
			for _, e := range output.Parse(text).Edits {
				if e.Path != "src/App.jsx" {
					t.Fatalf("an edit of %s", e.Path)
				}
				if got, err = edit.Apply(got, e.Blocks); err != nil {
					t.Fatal(err)
				}
				applied++
			}
			want, err := os.ReadFile("testdata/App.want.jsx")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Error(d)
			}
		})
	}
	if applied < 8 {
		t.Errorf("%d edits", applied)
	}
}

func BenchmarkParse(b *testing.B) {
	var all strings.Builder
	for _, text := range corpus(b) {
		all.WriteString(text)
	}
	for name, text := range map[string]string{"corpus": all.String(), "files": manyFiles(900)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				output.Parse(text)
			}
		})
	}
}

// patience is more CPU time than any test here takes, even with the
// instrumentation of fuzzing. The defects that it detects take minutes.
const patience = 5 * time.Second

// raceDetector reports whether this build has the race detector.
var raceDetector bool

// skipCosts skips tests that only measure.
func skipCosts(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector takes time, too")
	}
}

// cpu returns the CPU time of the process, which is more reliable than elapsed time
// on a busy machine.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
