package app_test

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
)

// TestNoReadIsStale changes files at random, often without changing their size, between
// reads of the working copy. Each read must return the current content.
func TestNoReadIsStale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &fixture{left: -1}
		b := &fakeSandbox{files: map[string]node{}, clock: time.Now().Add(-time.Minute)}
		g, c := &fakeGuest{w: w, b: b}, app.WorkingCopy{}
		names := []string{"a", "src/b", "src/c/d", "node_modules/x", ".git/y", "dist/z", "k.db"}
		b.put("keep", "")
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				b.put(rapid.SampledFrom(names).Draw(t, "name"), rapid.SampledFrom([]string{"", "x", "y", "zz"}).Draw(t, "text"))
			},
			"write now": func(t *rapid.T) {
				// The clock is as coarse as those of file systems.
				b.files[appDir+"/"+rapid.SampledFrom(names).Draw(t, "name")] = node{data: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "text"), mode: 0o644, modified: time.Now().Truncate(time.Second)}
			},
			"remove": func(t *rapid.T) { delete(b.files, appDir+"/"+rapid.SampledFrom(names).Draw(t, "name")) },
			"": func(t *rapid.T) {
				got, err := c.Read(t.Context(), g, appDir)
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]app.File{}
				for p, n := range b.files {
					if rest := strings.TrimPrefix(p, appDir+"/"); app.CheckPath(rest) == nil {
						want[rest] = app.Describe(rest, []byte(n.data))
					}
				}
				if !maps.Equal(want, got) {
					t.Fatalf("read %v, there is %v", got, want)
				}
			},
		})
	})
}

// TestSettledFilesAreNotRead checks that files that have not changed for long are read only once.
func TestSettledFilesAreNotRead(t *testing.T) {
	w := &fixture{left: -1}
	b := &fakeSandbox{files: map[string]node{}, clock: time.Now().Add(-time.Minute)}
	b.put("a", "1")
	b.put("src/b", "2")
	c := app.WorkingCopy{}
	for range 4 {
		if _, err := c.Read(t.Context(), &fakeGuest{w: w, b: b}, appDir); err != nil {
			t.Fatal(err)
		}
	}
	// The first read has no earlier state.
	if r, n := c.Ratio(); r != 1 || n != 3 {
		t.Errorf("%v of the files needed not be read, in %d readings", r, n)
	}
}

// TestTreesHaveBounds reads a tree that exceeds the limits of an app.
func TestTreesHaveBounds(t *testing.T) {
	for what, fill := range map[string]func(b *fakeSandbox){
		"files": func(b *fakeSandbox) {
			for i := range 1001 {
				b.put(fmt.Sprintf("d%d/f%d", i%20, i), "")
			}
		},
		"bytes": func(b *fakeSandbox) {
			for i := range 20 {
				b.put(fmt.Sprint(i), strings.Repeat("x", 2<<20))
			}
		},
		"a file": func(b *fakeSandbox) { b.put("a", strings.Repeat("x", 2<<20+1)) },
	} {
		b := &fakeSandbox{files: map[string]node{}, clock: time.Now()}
		fill(b)
		c := app.WorkingCopy{}
		if _, err := c.Read(t.Context(), &fakeGuest{w: &fixture{left: -1}, b: b}, appDir); !engi.Is(err, engi.Exhausted) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDiffsApply makes the program patch compute the new text from the old one and their diff.
func TestDiffsApply(t *testing.T) {
	patch, err := exec.LookPath("patch")
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n", "long line\n"}), 0, 30)
		old := strings.Join(lines.Draw(t, "old"), "") + rapid.SampledFrom([]string{"", "end"}).Draw(t, "end")
		now := strings.Join(lines.Draw(t, "now"), "") + rapid.SampledFrom([]string{"", "end"}).Draw(t, "new end")
		diff := app.Diff(old, now)
		if got := applied(t, old, diff); got != now {
			t.Fatalf("%q with\n%s\nis %q, not %q", old, diff, got, now)
		}
	})
	if err != nil {
		return // our own check has reported it
	}
	dir := t.TempDir()
	old, now := strings.Repeat("a\nb\nc\n", 20), strings.Repeat("a\nb\nc\n", 3)+"x\n"+strings.Repeat("a\nb\nc\n", 16)+"y"
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(patch, "-p1", "-s")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(app.Diff(old, now))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != now {
		t.Errorf("patch made %q of it (%v)", got, err)
	}
}

// applied applies a unified diff that fits exactly.
func applied(t *rapid.T, old, diff string) string {
	lines := strings.SplitAfter(old, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	var out []string
	at := 0
	for _, hunk := range strings.Split(diff, "\n@@ -")[1:] {
		var from, n int
		head, body, _ := strings.Cut(hunk, "\n")
		if _, err := fmt.Sscanf(head, "%d,%d", &from, &n); err != nil {
			if _, err := fmt.Sscanf(head, "%d", &from); err != nil {
				t.Fatal(err)
			}
			n = 1
		}
		if n > 0 {
			from--
		}
		out = append(out, lines[at:from]...)
		at = from
		all := strings.SplitAfter(body, "\n")
		for i, l := range all {
			if l == "" || l[0] == '\\' {
				continue
			}
			text := l[1:]
			if i+1 < len(all) && strings.HasPrefix(all[i+1], "\\") {
				text = strings.TrimSuffix(text, "\n")
			} else if !strings.HasSuffix(text, "\n") {
				text += "\n" // the cut removed it
			}
			if l[0] != '+' {
				if at >= len(lines) || lines[at] != text {
					t.Fatalf("line %d is not %q in %q", at, text, lines)
				}
				at++
			}
			if l[0] != '-' {
				out = append(out, text)
			}
		}
	}
	return strings.Join(append(out, lines[at:]...), "")
}

// TestCommitsAreGits makes git read the objects of a revision, and commit the same files
// with the same ID.
func TestCommitsAreGits(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	files := map[string]string{"a": "1\n", "a-b/c": "", "a/b": "", "a.b": "x", "src/deep/er/f.ts": "text\r\n", "z": "\x00\xff"}
	delete(files, "a")
	r := engi.Revision{Message: "Add a thing", Actor: "run <x>\n", Created: time.Unix(1790000000, 0)}
	id, objects, err := app.GitCommit(r, "", files)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=run x", "GIT_AUTHOR_EMAIL=app@engi.invalid", "GIT_AUTHOR_DATE=1790000000 +0000",
			"GIT_COMMITTER_NAME=run x", "GIT_COMMITTER_EMAIL=app@engi.invalid", "GIT_COMMITTER_DATE=1790000000 +0000", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	for p, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("-c", "core.autocrlf=false", "add", ".")
	git("commit", "-q", "-m", r.Message)
	if got := git("rev-parse", "HEAD"); got != id {
		t.Errorf("git's commit is %s, ours %s:\n%s", got, id, git("cat-file", "-p", "HEAD"))
	}
	for _, id := range slices.Sorted(maps.Keys(objects)) {
		z, err := zlib.NewReader(bytes.NewReader(objects[id]))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := strings.Cut(string(raw), " ")
		if git("cat-file", "-t", id) != kind {
			t.Errorf("git has no %s %s", kind, id)
		}
	}
}
