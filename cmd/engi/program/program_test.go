package program

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestGuess(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          engi.Language
	}{
		{"a.py", "", engi.Python}, {"A.PY", "", engi.Python}, {"dir.js/a.ts", "", engi.TypeScript}, {"x.mjs", "", engi.JavaScript},
		{"x.go", "#!/bin/bash", engi.Go}, {"x.sh", "", engi.Bash},
		{"x", "#!/usr/bin/env python3\nprint(1)", engi.Python}, {"x", "#!/usr/bin/python3.11 -u\n", engi.Python},
		{"x", "#!/usr/bin/env -S FOO=1 node --flag\n", engi.JavaScript}, {"x", "#! /bin/sh -e", engi.Bash},
		{"x", "#!/usr/bin/env -S deno run", engi.TypeScript}, {"x", "#!/usr/bin/perl python\n", ""}, {"x", "#!", ""}, {"x", "", ""}, {"x.txt", "print(1)", ""},
	} {
		if got := Guess(c.name, []byte(c.content)); got != c.want {
			t.Errorf("Guess(%q, %q) = %q, want %q", c.name, c.content, got, c.want)
		}
	}
}

func FuzzGuess(f *testing.F) {
	f.Add("x", []byte("#!/usr/bin/env -S A=b node"))
	f.Add("a.py", []byte(""))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if l := Guess(name, content); l != "" {
			if _, err := Language(string(l)); err != nil {
				t.Error(err)
			}
		}
	})
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRequest(t *testing.T) {
	dir := tree(t, map[string]string{
		"one.py": "print(1)", "script": "#!/usr/bin/env bash\necho", "data.bin": "\xff\x00", "notes.txt": "x",
		"proj/go.mod": "module x", "proj/main.go": "package main", "proj/util/util.go": "package util", "proj/.git/config": "secret", "proj/node_modules/a.js": "x",
		"mixed/main.py": "", "mixed/main.js": "", "none/readme": "x", "py/app.py": "", "py/lib/m.py": "",
	})
	at := func(p string) string { return filepath.Join(dir, p) }
	type want struct {
		language, entry string
		files           []string
		err             string
	}
	for name, c := range map[string]struct {
		s Source
		w want
	}{
		"file":               {Source{Path: at("one.py")}, want{"python", "one.py", []string{"one.py"}, ""}},
		"file, told":         {Source{Path: at("notes.txt"), Language: "js"}, want{"javascript", "notes.txt", []string{"notes.txt"}, ""}},
		"shebang":            {Source{Path: at("script")}, want{"bash", "script", []string{"script"}, ""}},
		"unknown":            {Source{Path: at("notes.txt")}, want{err: "cannot tell"}},
		"bad language":       {Source{Path: at("one.py"), Language: "cobol"}, want{err: "is not supported"}},
		"code":               {Source{Code: "print(1)", Language: "python"}, want{"python", "", nil, ""}},
		"code with shebang":  {Source{Code: "#!/bin/bash\necho"}, want{"bash", "", nil, ""}},
		"code, no language":  {Source{Code: "print(1)"}, want{err: "cannot tell"}},
		"directory":          {Source{Path: at("proj")}, want{"go", "main.go", []string{"go.mod", "main.go", "util/util.go"}, ""}},
		"directory, other":   {Source{Path: at("py")}, want{"python", "app.py", []string{"app.py", "lib/m.py"}, ""}},
		"directory, entry":   {Source{Path: at("py"), Entry: "./lib/m.py"}, want{"python", "lib/m.py", []string{"app.py", "lib/m.py"}, ""}},
		"two languages":      {Source{Path: at("mixed")}, want{err: "cannot tell"}},
		"two languages, one": {Source{Path: at("mixed"), Language: "javascript"}, want{"javascript", "main.js", []string{"main.js", "main.py"}, ""}},
		"no language there":  {Source{Path: at("none")}, want{err: "cannot tell"}},
		"missing":            {Source{Path: at("nothing.py")}, want{err: "no such file"}},
		"extra":              {Source{Path: at("proj/main.go"), Extra: []string{at("proj/util"), at("proj/go.mod"), at("data.bin")}}, want{"go", "main.go", []string{"main.go", "util/util.go", "go.mod", "data.bin"}, ""}},
		"extra, named":       {Source{Path: at("one.py"), Extra: []string{at("data.bin") + "=in/x.bin"}}, want{"python", "one.py", []string{"one.py", "in/x.bin"}, ""}},
		"extra, upwards":     {Source{Path: at("one.py"), Extra: []string{at("data.bin") + "=../x"}}, want{err: "not a valid name"}},
		"extra, twice":       {Source{Path: at("one.py"), Extra: []string{at("data.bin") + "=one.py"}}, want{err: "two files"}},
		"code with extra":    {Source{Code: "x", Language: "python", Extra: []string{at("data.bin")}}, want{"python", "", []string{"data.bin"}, ""}},
		"a device":           {Source{Path: "/dev/null", Language: "python"}, want{err: "not a regular file"}},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := c.s.Request()
			if c.w.err != "" {
				if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), c.w.err) {
					t.Errorf("error %v, want invalid with %q", err, c.w.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			entry := req.Entry
			for _, f := range req.Files {
				files = append(files, f.Path)
				// A single file's entry is for the request's convenience.
				if (f.Content == "") == (f.ContentBase64 == nil) && f.Path != "app.py" && f.Path != "lib/m.py" && f.Path != "main.py" && f.Path != "main.js" {
					t.Errorf("%s has both contents or none", f.Path)
				}
			}
			got := want{req.Language, entry, files, ""}
			if d := cmp.Diff(c.w, got, cmp.AllowUnexported(want{})); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// TestPackagesThatAreNotSent checks that somebody is told, and that they are sent if
// they are named.
func TestPackagesThatAreNotSent(t *testing.T) {
	dir := tree(t, map[string]string{"main.js": "x", ".git/config": "x", "node_modules/a/index.js": "x", "sub/.venv/lib/b.py": "x"})
	var left []string
	s := Source{Path: dir, Left: func(dir string) { left = append(left, dir) }}
	req, err := s.Request()
	if err != nil || len(req.Files) != 1 {
		t.Fatalf("%d files, %v", len(req.Files), err)
	}
	if d := cmp.Diff([]string{filepath.Join(dir, "node_modules"), filepath.Join(dir, "sub/.venv")}, left); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	s.Extra = []string{left[0]}
	if req, err = s.Request(); err != nil || len(req.Files) != 2 || req.Files[1].Path != "node_modules/a/index.js" {
		t.Errorf("%+v, %v", req.Files, err)
	}
}

func TestOutputDirKeepsHostileFilesIn(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new", "out")
	out, err := OpenOutputDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for link, to := range map[string]string{"up": outside, "file": secret, "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := "evil"
	h := sha256.Sum256([]byte(text))
	sum := hex.EncodeToString(h[:])
	for _, name := range []string{
		"", ".", "..", "../x", "/etc/passwd", "a/../../x", "a//b", "./x", "x/", "up/secret", "up/new/deep", "loop/x", "full",
		"new\nline", "esc\x1b[31m", "nul\x00", "bad\xff", strings.Repeat("n", 300),
	} {
		if err := out.Write(name, 0o644, int64(len(text)), sum, strings.NewReader(text)); err == nil {
			t.Errorf("%.20q was written", name)
		}
	}
	// A link at the very place is replaced, not followed.
	if err := out.Write("file", 0o4777, int64(len(text)), sum, strings.NewReader(text)); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "file")); err != nil || !info.Mode().IsRegular() || info.Mode()&os.ModeSetuid != 0 {
		t.Errorf("file: %v, %v", info.Mode(), err)
	}
	if got, _ := os.ReadFile(secret); string(got) != "untouched" {
		t.Error("a file outside was changed")
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside there are now %v", entries)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".engi-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSandboxChecksContent(t *testing.T) {
	dir := t.TempDir()
	out, err := OpenOutputDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	h := sha256.Sum256([]byte("right"))
	sum := hex.EncodeToString(h[:])
	for name, text := range map[string]string{"other": "wrong", "short": "rig", "long": "right!", "endless": strings.Repeat("right", 1000)} {
		if err := out.Write(name, 0o644, 5, sum, strings.NewReader(text)); !engi.Is(err, engi.Internal) {
			t.Errorf("%s: %v, want kind internal", name, err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	if err := out.Write("sub/dir/ok", 0o400, 5, sum, strings.NewReader("right")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sub/dir/ok")); err != nil || string(got) != "right" {
		t.Errorf("%q, %v", got, err)
	}
}
