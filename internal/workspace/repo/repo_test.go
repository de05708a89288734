package repo_test

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// A shelf holds objects by hash.
type shelf map[string]repo.Object

func (s shelf) object(_ context.Context, hash string) (repo.Object, error) {
	o, ok := s[hash]
	if !ok {
		return o, engi.Errorf(engi.NotFound, "no object %s", hash)
	}
	return o, nil
}

func (s shelf) blob(t *testing.T, path, text string, mode uint32) repo.File {
	t.Helper()
	o, err := repo.New(repo.Blob, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s[o.Hash] = o
	return repo.File{Path: path, Mode: mode, Hash: o.Hash}
}

func anything(string) error { return nil }

// TestGitReadsCommits makes git itself check the objects and read the history.
func TestGitReadsCommits(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs git (make setup)")
		}
		t.Skip("needs git (make setup)")
	}
	s, files := shelf{}, repo.Files{}
	var v repo.Version
	for i, f := range []repo.File{s.blob(t, "a-b", "1", 0o644), s.blob(t, "a/b/ä", "2", 0o755), s.blob(t, "a.b", "", 0o644), s.blob(t, "a/b/ä", "3\n", 0o644)} {
		files[f.Path] = f
		next, objects, err := v.Next(files, repo.Note{Message: "Step\n\nmore", Actor: " <evil>\n. ", Time: time.Unix(int64(1e9+i), 0)})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			s[o.Hash] = o
		}
		got, err := repo.Read(t.Context(), s.object, next.Commit, anything)
		if d := cmp.Diff(files, got.Files); d != "" || err != nil {
			t.Error(d, err)
		}
		if again, objects, err := got.Next(files, repo.Note{}); err != nil || len(objects) != 1 {
			t.Errorf("the same files again have %d new objects, %v (%s)", len(objects), err, again.Commit)
		}
		v = got
	}
	if f, err := repo.Find(t.Context(), s.object, v.Commit, "a/b/ä"); err != nil || f != files["a/b/ä"] {
		t.Error(f, err)
	}
	for _, p := range []string{"a", "a/b/c", "a-b/x", "x"} {
		if _, err := repo.Find(t.Context(), s.object, v.Commit, p); !engi.Is(err, engi.NotFound) {
			t.Errorf("%s: %v", p, err)
		}
	}
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		c := exec.Command("git", append([]string{"-C", dir, "-c", "core.quotePath=false"}, args...)...)
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	for hash, o := range s {
		content, err := o.Content()
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, string(o.Kind))
		if err := os.WriteFile(p, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := git("hash-object", "-w", "-t", string(o.Kind), p); got != hash {
			t.Errorf("git calls a %s %s, not %s", o.Kind, got, hash)
		}
	}
	git("fsck", "--strict", "--no-dangling")
	if got := git("ls-tree", "-r", "--name-only", v.Commit); got != "a-b\na.b\na/b/ä" {
		t.Error(got)
	}
	if got := git("rev-list", "--count", v.Commit); got != "4" {
		t.Error(got)
	}
}

// TestHostileTrees reads trees that other programs may have created.
func TestHostileTrees(t *testing.T) {
	raw := func(s shelf, kind repo.Kind, content string) string {
		o, err := repo.New(kind, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		s[o.Hash] = o
		return o.Hash
	}
	entry := func(mode, name, hash string) string {
		b, err := hex.DecodeString(hash)
		if err != nil {
			t.Fatal(err)
		}
		return mode + " " + name + "\x00" + string(b)
	}
	refuse := func(p string) error {
		if strings.Contains(p, "..") || strings.Contains(p, ".git") {
			return engi.Errorf(engi.Invalid, "no")
		}
		return nil
	}
	for name, c := range map[string]struct {
		tree func(s shelf) string
		kind engi.Kind
	}{
		"link":      {func(s shelf) string { return entry("120000", "l", raw(s, repo.Blob, "/etc")) }, engi.Invalid},
		"submodule": {func(s shelf) string { return entry("160000", "l", raw(s, repo.Blob, "x")) }, engi.Invalid},
		"dots":      {func(s shelf) string { return entry("40000", "..", raw(s, repo.Tree, "")) }, engi.Invalid},
		"dots below": {func(s shelf) string {
			return entry("40000", "a", raw(s, repo.Tree, entry("40000", "b", raw(s, repo.Tree, entry("100644", "..", raw(s, repo.Blob, "x"))))))
		}, engi.Invalid},
		"dot below": {func(s shelf) string {
			return entry("40000", "a", raw(s, repo.Tree, entry("40000", ".", raw(s, repo.Tree, entry("100644", "f", raw(s, repo.Blob, "x"))))))
		}, engi.Invalid},
		"no name": {func(s shelf) string {
			return entry("40000", "a", raw(s, repo.Tree, entry("40000", "", raw(s, repo.Tree, entry("100644", "f", raw(s, repo.Blob, "x"))))))
		}, engi.Invalid},
		"git":        {func(s shelf) string { return entry("100644", ".git", raw(s, repo.Blob, "x")) }, engi.Invalid},
		"slash":      {func(s shelf) string { return entry("100644", "a/b", raw(s, repo.Blob, "x")) }, engi.Invalid},
		"twice":      {func(s shelf) string { return strings.Repeat(entry("100644", "a", raw(s, repo.Blob, "x")), 2) }, engi.Invalid},
		"no tree":    {func(s shelf) string { return entry("40000", "a", raw(s, repo.Blob, "x")) }, engi.Internal},
		"missing":    {func(s shelf) string { return entry("40000", "a", strings.Repeat("ab", 20)) }, engi.NotFound},
		"cut":        {func(s shelf) string { return "100644 a" }, engi.Invalid},
		"many files": {func(s shelf) string { return bomb(s, raw, entry, entry("100644", "f", raw(s, repo.Blob, "x"))) }, engi.Exhausted},
		"many dirs":  {func(s shelf) string { return bomb(s, raw, entry, "") }, engi.Exhausted},
	} {
		s := shelf{}
		root := raw(s, repo.Tree, c.tree(s))
		commit := raw(s, repo.Commit, "tree "+root+"\nauthor a <a@a> 1 +0000\ncommitter a <a@a> 1 +0000\n\nm\n")
		if _, err := repo.Read(t.Context(), s.object, commit, refuse); !engi.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

// bomb returns a tree of few objects that expands to very many directories.
func bomb(s shelf, raw func(shelf, repo.Kind, string) string, entry func(mode, name, hash string) string, leaf string) string {
	tree := leaf
	for range 20 {
		hash := raw(s, repo.Tree, tree)
		tree = entry("40000", "a", hash) + entry("40000", "b", hash)
	}
	return tree
}
