package fileops_test

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/fileops"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
)

var size = engi.Size{VCPUs: 2, Memory: 256 << 20, Disk: 256 << 20, Inodes: 20000, Processes: 100, OpenFiles: 1000}

// inProcess returns the guest of a machine in this process.
func inProcess(t testing.TB) *guest.Client {
	host := memory.NewHost(t.TempDir())
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	return enter(t, memory.New(host), t.TempDir())
}

// sandbox returns the guest of a real sandbox without any programs.
func sandbox(t testing.TB) *guest.Client {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	place := func(key, name string) string {
		if v := os.Getenv(key); v != "" {
			return v
		}
		return filepath.Join(bin, name)
	}
	runsc, program := place("ENGI_RUNSC", "runsc"), place("ENGI_GUEST", "engi-guest")
	why := ""
	if os.Geteuid() != 0 {
		why = "sandboxes need root"
	}
	for _, file := range []string{runsc, program} {
		if _, err := os.Stat(file); err != nil {
			why = "run 'make build': " + err.Error()
		}
	}
	if why != "" && os.Getenv("ENGI_TEST_REQUIRE") != "" {
		t.Fatal(why)
	} else if why != "" {
		t.Skip(why)
	}
	p, err := gvisor.New(gvisor.Options{Runsc: runsc, Guest: program, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{".engi", "dev", "etc", "proc", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return enter(t, p, root)
}

func enter(t testing.TB, p provider.Provider, root string) *guest.Client {
	t.Helper()
	m, err := p.Start(t.Context(), provider.Spec{ID: engi.NewSandboxID(), Root: root, Size: size, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := guest.Open(t.Context(), m.Guest, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Setup(t.Context(), wire.Setup{Processes: size.Processes, OpenFiles: size.OpenFiles}); err != nil {
		t.Fatal(err)
	}
	return c
}

func put(t testing.TB, g engi.Guest, name, text string) {
	t.Helper()
	if err := g.Write(t.Context(), name, strings.NewReader(text), engi.WriteOptions{User: "root"}); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, g engi.Guest, name string) string {
	t.Helper()
	c, err := fileops.Read(t.Context(), g, fileops.ReadRequest{Path: name})
	if err != nil {
		t.Fatal(err)
	}
	return c.Text
}

func wantKind(t *testing.T, err error, want engi.Kind, words ...string) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("got %v, want kind %s", err, want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not say %q", err, w)
		}
	}
}

func TestRead(t *testing.T) {
	g := inProcess(t)
	var picture bytes.Buffer
	if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 2, 2))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"/w/five": "one\ntwo\nthree\nfour\nfive\n", "/w/open": "a\nb", "/w/empty": "", "/w/latin": "caf\xe9\n",
		"/w/long": strings.Repeat("é", 3000) + "\nshort\n", "/w/binary": "a\x00b", "/w/picture": picture.String(),
		"/w/elf": "\x7fELF\x02\x01\x01\x00\x00", "/w/crlf": "x\r\ny\r\n",
	} {
		put(t, g, name, text)
	}
	type want struct {
		text               string
		first, last, total int
		truncated          bool
		long               int
	}
	for name, tc := range map[string]struct {
		q    fileops.ReadRequest
		want want
	}{
		"all":            {fileops.ReadRequest{Path: "/w/five"}, want{"one\ntwo\nthree\nfour\nfive\n", 1, 5, 5, false, 0}},
		"a part":         {fileops.ReadRequest{Path: "/w/five", Offset: 2, Limit: 2}, want{"two\nthree\n", 2, 3, 5, true, 0}},
		"numbered":       {fileops.ReadRequest{Path: "/w/five", Offset: 4, Numbered: true}, want{"4\tfour\n5\tfive\n", 4, 5, 5, false, 0}},
		"from the end":   {fileops.ReadRequest{Path: "/w/five", Offset: -2}, want{"four\nfive\n", 4, 5, 5, false, 0}},
		"far too much":   {fileops.ReadRequest{Path: "/w/five", Offset: -99, Limit: 1}, want{"one\n", 1, 1, 5, true, 0}},
		"after the end":  {fileops.ReadRequest{Path: "/w/five", Offset: 9}, want{"", 0, 0, 5, false, 0}},
		"no end of line": {fileops.ReadRequest{Path: "/w/open"}, want{"a\nb", 1, 2, 2, false, 0}},
		"empty":          {fileops.ReadRequest{Path: "/w/empty"}, want{}},
		"no UTF-8":       {fileops.ReadRequest{Path: "/w/latin"}, want{"caf\uFFFD\n", 1, 1, 1, false, 0}},
		"crlf":           {fileops.ReadRequest{Path: "/w/../w/crlf"}, want{"x\r\ny\r\n", 1, 2, 2, false, 0}},
		"long lines":     {fileops.ReadRequest{Path: "/w/long", MaxLine: 5}, want{"éé…\nshort\n", 1, 2, 2, false, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := fileops.Read(t.Context(), g, tc.q)
			if err != nil {
				t.Fatal(err)
			}
			if c.Kind != fileops.Text || len(c.SHA256) != 64 {
				t.Errorf("it is %s with hash %q", c.Kind, c.SHA256)
			}
			got := want{c.Text, c.First, c.Last, c.TotalLines, c.Truncated, c.LongLines}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, mime := range map[string]string{"/w/binary": "application/octet-stream", "/w/elf": "application/octet-stream"} {
		if c, err := fileops.Read(t.Context(), g, fileops.ReadRequest{Path: name}); err != nil || c.Kind != fileops.Binary || c.MIME != mime || c.Size < 3 || c.Text != "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if c, err := fileops.Read(t.Context(), g, fileops.ReadRequest{Path: "/w/picture"}); err != nil || c.Kind != fileops.Image || c.MIME != "image/png" || !bytes.Equal(c.Data, picture.Bytes()) {
		t.Errorf("an image: %+v, %v", c, err)
	}
	put(t, g, "/w/huge", strings.Repeat("x\n", fileops.MaxText/2+1))
	put(t, g, "/w/poster", picture.String()+strings.Repeat("x", fileops.MaxImage))
	for name, kind := range map[string]engi.Kind{"/w/none": engi.NotFound, "/w": engi.Invalid, "w": engi.Invalid, "": engi.Invalid,
		"/w/\x00": engi.Invalid, "/w/huge": engi.Invalid, "/w/poster": engi.Invalid} {
		_, err := fileops.Read(t.Context(), g, fileops.ReadRequest{Path: name})
		wantKind(t, err, kind)
	}
}

func TestGlob(t *testing.T) {
	for name, g := range map[string]*guest.Client{"twin": inProcess(t), "gvisor": nil} {
		t.Run(name, func(t *testing.T) {
			if g == nil {
				g = sandbox(t)
			}
			for _, name := range []string{"/p/a.go", "/p/d/b.go", "/p/d/e/c.go", "/p/.git/x.go", "/p/sub/.git/x.go", "/p/.hidden.go", "/p/d/text"} {
				put(t, g, name, "x")
				time.Sleep(15 * time.Millisecond) // so that times differ
			}
			paths := func(q fileops.GlobRequest) []string {
				t.Helper()
				l, err := fileops.Glob(t.Context(), g, q)
				if err != nil {
					t.Fatal(err)
				}
				all := []string{}
				for _, f := range l.Files {
					all = append(all, f.Path)
				}
				return append(all, fmt.Sprintf("%d %v", l.Total, l.Truncated))
			}
			for _, tc := range []struct {
				q    fileops.GlobRequest
				want []string
			}{
				{fileops.GlobRequest{Pattern: "**/*.go", Dir: "/p"}, []string{"/p/.hidden.go", "/p/d/e/c.go", "/p/d/b.go", "/p/a.go", "4 false"}},
				{fileops.GlobRequest{Pattern: "/p/d/**/*.go"}, []string{"/p/d/e/c.go", "/p/d/b.go", "2 false"}},
				{fileops.GlobRequest{Pattern: "**/*.go", Dir: "/p", Limit: 2}, []string{"/p/.hidden.go", "/p/d/e/c.go", "4 true"}},
				{fileops.GlobRequest{Pattern: "**/x.go", Dir: "/p", All: true}, []string{"/p/sub/.git/x.go", "/p/.git/x.go", "2 false"}},
				{fileops.GlobRequest{Pattern: "d", Dir: "/p"}, []string{"0 false"}},
			} {
				if diff := cmp.Diff(tc.want, paths(tc.q)); diff != "" {
					t.Errorf("%+v: %s", tc.q, diff)
				}
			}
			_, err := fileops.Glob(t.Context(), g, fileops.GlobRequest{Pattern: "*", Dir: "/none"})
			wantKind(t, err, engi.NotFound)
			_, err = fileops.Glob(t.Context(), g, fileops.GlobRequest{Pattern: "*", Dir: "p"})
			wantKind(t, err, engi.Invalid)
		})
	}
}

func TestGrep(t *testing.T) {
	for name, g := range map[string]*guest.Client{"twin": inProcess(t), "gvisor": nil} {
		t.Run(name, func(t *testing.T) {
			if g == nil {
				g = sandbox(t)
			}
			put(t, g, "/p/a.go", "one\nfunc Two() {\n\tthree\n}\nfunc Four()\n")
			put(t, g, "/p/d/b.py", "def func():\r\n    FUNC\r\n")
			put(t, g, "/p/binary", "func\x00")
			put(t, g, "/p/.git/x", "func\n")
			put(t, g, "/p/odd (a|b)", "x (a|b) y\n")
			for range 2 { // with few files, and with many
				type q = fileops.GrepRequest
				for name, tc := range map[string]struct {
					q    q
					want []fileops.Match
				}{
					"plain": {q{Pattern: `func \w+`, Path: "/p"}, []fileops.Match{
						{Path: "/p/a.go", Line: 2, Column: 1, Text: "func Two() {"}, {Path: "/p/a.go", Line: 5, Column: 1, Text: "func Four()"}}},
					"context": {q{Pattern: "func ", Path: "/p", Before: 9, After: 1, Glob: "*.go"}, []fileops.Match{
						{Path: "/p/a.go", Line: 2, Column: 1, Text: "func Two() {", Before: []string{"one"}, After: []string{"\tthree"}},
						{Path: "/p/a.go", Line: 5, Column: 1, Text: "func Four()", Before: []string{"}"}}}},
					"case": {q{Pattern: "func$", IgnoreCase: true, Path: "/p"}, []fileops.Match{
						{Path: "/p/d/b.py", Line: 2, Column: 5, Text: "    FUNC"}}},
					"literal":  {q{Pattern: "(a|b)", Literal: true, Path: "/p"}, []fileops.Match{{Path: "/p/odd (a|b)", Line: 1, Column: 3, Text: "x (a|b) y"}}},
					"one file": {q{Pattern: "o", Path: "/p/a.go", Limit: 1, MaxLine: 2}, []fileops.Match{{Path: "/p/a.go", Line: 1, Column: 1, Text: "on…"}}},
					"below":    {q{Pattern: "def", Path: "/p", Glob: "d/**"}, []fileops.Match{{Path: "/p/d/b.py", Line: 1, Column: 1, Text: "def func():"}}},
					"git":      {q{Pattern: "func", Path: "/p", All: true, Glob: ".git/*"}, []fileops.Match{{Path: "/p/.git/x", Line: 1, Column: 1, Text: "func"}}},
					"nothing":  {q{Pattern: "nowhere", Path: "/p"}, []fileops.Match{}},
				} {
					f, err := fileops.Grep(t.Context(), g, tc.q)
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					if diff := cmp.Diff(tc.want, f.Matches); diff != "" {
						t.Errorf("%s: %s", name, diff)
					}
					if wantCut := name == "one file"; f.Truncated != wantCut {
						t.Errorf("%s: truncated %v", name, f.Truncated)
					}
				}
				for mode, want := range map[fileops.GrepMode][]fileops.Count{
					fileops.GrepCount: {{"/p/a.go", 2}, {"/p/d/b.py", 1}},
					fileops.GrepFiles: {{"/p/a.go", 1}, {"/p/d/b.py", 1}},
				} {
					f, err := fileops.Grep(t.Context(), g, fileops.GrepRequest{Pattern: "func", Path: "/p", Mode: mode})
					if err != nil || f.Skipped != 1 {
						t.Errorf("%s: %d skipped, %v", mode, f.Skipped, err)
					}
					if diff := cmp.Diff(want, f.Files); diff != "" {
						t.Errorf("%s: %s", mode, diff)
					}
				}
				for i := range 60 {
					put(t, g, fmt.Sprintf("/p/many/%d", i), "filler\n")
				}
			}
			for _, q := range []fileops.GrepRequest{{}, {Pattern: "("}, {Pattern: "x", Path: "p"}, {Pattern: "x", Before: -1}, {Pattern: "x", Mode: "y"}, {Pattern: "x", Glob: "["}} {
				_, err := fileops.Grep(t.Context(), g, q)
				wantKind(t, err, engi.Invalid)
			}
			_, err := fileops.Grep(t.Context(), g, fileops.GrepRequest{Pattern: "x", Path: "/none"})
			wantKind(t, err, engi.NotFound)
		})
	}
}

func TestWriteAndEdit(t *testing.T) {
	for name, g := range map[string]*guest.Client{"twin": inProcess(t), "gvisor": nil} {
		t.Run(name, func(t *testing.T) {
			if g == nil {
				g = sandbox(t)
			}
			write := func(q fileops.WriteRequest) (fileops.Written, error) { return fileops.Write(t.Context(), g, q) }
			w, err := write(fileops.WriteRequest{Path: "/w/deep/file", Content: []byte("one\n"), IfHash: fileops.Absent})
			if err != nil || !w.Created || w.Size != 4 || len(w.SHA256) != 64 {
				t.Fatalf("%+v, %v", w, err)
			}
			_, err = write(fileops.WriteRequest{Path: "/w/deep/file", IfHash: fileops.Absent})
			wantKind(t, err, engi.Conflict)
			_, err = write(fileops.WriteRequest{Path: "/w/deep/file", IfHash: strings.Repeat("0", 64)})
			wantKind(t, err, engi.Conflict, w.SHA256)
			_, err = write(fileops.WriteRequest{Path: "/w/other", IfHash: w.SHA256})
			wantKind(t, err, engi.Conflict)
			_, err = write(fileops.WriteRequest{Path: "/w/deep"})
			wantKind(t, err, engi.Invalid)
			_, err = write(fileops.WriteRequest{Path: "/w/huge", Content: make([]byte, fileops.MaxText+1)})
			wantKind(t, err, engi.Invalid)
			w2, err := write(fileops.WriteRequest{Path: "/w/deep/file", Content: []byte("two\n"), IfHash: w.SHA256, Mode: 0o755})
			if err != nil || w2.Created || get(t, g, "/w/deep/file") != "two\n" {
				t.Fatalf("%+v, %v", w2, err)
			}
			if fi, err := g.Stat(t.Context(), "/w/deep/file"); err != nil || fi.Mode.Perm() != 0o755 {
				t.Errorf("mode %v, %v", fi.Mode, err)
			}

			e, err := fileops.Edit(t.Context(), g, fileops.EditRequest{Path: "/w/deep/file", IfHash: w2.SHA256,
				Edits: []fileops.Replacement{{Old: "two", New: "three\nfour"}, {Old: "four", New: "4"}}})
			if err != nil || e.Replaced != 2 || e.First != 1 || get(t, g, "/w/deep/file") != "three\n4\n" {
				t.Errorf("%+v, %v: %q", e, err, get(t, g, "/w/deep/file"))
			}
			if fi, err := g.Stat(t.Context(), "/w/deep/file"); err != nil || fi.Mode.Perm() != 0o755 {
				t.Errorf("after an edit: mode %v, %v", fi.Mode, err)
			}
			_, err = fileops.Edit(t.Context(), g, fileops.EditRequest{Path: "/w/deep/file", IfHash: w2.SHA256, Edits: []fileops.Replacement{{Old: "4", New: "5"}}})
			wantKind(t, err, engi.Conflict, e.SHA256)
			_, err = fileops.Edit(t.Context(), g, fileops.EditRequest{Path: "/w/none", Edits: []fileops.Replacement{{Old: "4", New: "5"}}})
			wantKind(t, err, engi.NotFound)
		})
	}
}

func TestEdit(t *testing.T) {
	g := inProcess(t)
	type edits = []fileops.Replacement
	for name, tc := range map[string]struct {
		text  string
		edits edits
		want  string    // text after the edit
		kind  engi.Kind // kind of the error; Internal means no error
		says  string
	}{
		"one":            {"a\nb\nc\n", edits{{Old: "b", New: "B"}}, "a\nB\nc\n", 0, ""},
		"all":            {"x x\n", edits{{Old: "x", New: "y", All: true}}, "y y\n", 0, ""},
		"removes":        {"a\nb\n", edits{{Old: "a\n", New: ""}}, "b\n", 0, ""},
		"no end of line": {"a\nb", edits{{Old: "b", New: "c"}}, "a\nc", 0, ""},
		"end too much":   {"a\nb", edits{{Old: "b\n", New: "c\n"}}, "a\nc", 0, ""},
		"crlf":           {"a\r\nb\r\nc\r\n", edits{{Old: "a\nb", New: "a\nx\nb"}}, "a\r\nx\r\nb\r\nc\r\n", 0, ""},
		"no UTF-8":       {"caf\xe9\nb\n", edits{{Old: "b", New: "c"}}, "caf\uFFFD\nc\n", 0, ""},
		"missing":        {"func Alpha() {\n\treturn\n}\n", edits{{Old: "func alpha() {", New: ""}}, "", engi.Conflict, "line 1"},
		"not unique":     {"x\ny\nx\n", edits{{Old: "x", New: "z"}}, "", engi.Conflict, "2 times, in lines 1, 3"},
		"second fails":   {"a\nb\n", edits{{Old: "a", New: "A"}, {Old: "q", New: ""}}, "", engi.Conflict, "edit 2"},
		"sees the first": {"a\n", edits{{Old: "a", New: "b"}, {Old: "b", New: "c"}}, "c\n", 0, ""},
		"same":           {"a\n", edits{{Old: "a", New: "a"}}, "", engi.Invalid, "same"},
		"empty":          {"a\n", edits{{Old: "", New: "a"}}, "", engi.Invalid, "empty"},
		"none":           {"a\n", nil, "", engi.Invalid, "0 edits"},
		"binary":         {"a\x00", edits{{Old: "a", New: "b"}}, "", engi.Invalid, "not text"},
		"bomb":           {strings.Repeat("a", 1000), edits{{Old: "a", New: strings.Repeat("b", 1<<20), All: true}}, "", engi.Invalid, "would have"},
	} {
		t.Run(name, func(t *testing.T) {
			put(t, g, "/f", tc.text)
			_, err := fileops.Edit(t.Context(), g, fileops.EditRequest{Path: "/f", Edits: tc.edits})
			if tc.says == "" {
				if got := get(t, g, "/f"); err != nil || got != tc.want {
					t.Errorf("got %q, %v, want %q", got, err, tc.want)
				}
				return
			}
			wantKind(t, err, tc.kind, tc.says)
			if engi.RemedyOf(err) == "" && tc.kind == engi.Conflict {
				t.Error("no remedy")
			}
			var left strings.Builder
			r, err := g.Open(t.Context(), "/f")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			buf := make([]byte, 4096)
			n, _ := r.Read(buf)
			left.Write(buf[:n])
			if left.String() != tc.text {
				t.Errorf("a refused edit left %.100q", left.String())
			}
		})
	}
}

// BenchmarkGrep searches ten thousand files of a real sandbox.
func BenchmarkGrep(b *testing.B) {
	g := sandbox(b)
	for i := range 10_000 {
		put(b, g, fmt.Sprintf("/p/d%d/f%d", i%100, i), strings.Repeat("a line of some words\n", 50))
	}
	put(b, g, "/p/d50/needle", "the needle\n")
	for b.Loop() {
		f, err := fileops.Grep(b.Context(), g, fileops.GrepRequest{Pattern: "needle", Path: "/p"})
		if err != nil || len(f.Matches) != 1 || f.Searched != 10_001 {
			b.Fatalf("%+v, %v", f, err)
		}
	}
}
