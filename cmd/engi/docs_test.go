package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// askServer runs engi against a server and returns what it printed.
func askServer(t *testing.T, url, key, input string, args ...string) (code int, out, said string) {
	t.Helper()
	in, err := os.CreateTemp(t.TempDir(), "in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(input); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	var o, e bytes.Buffer
	code = engiMain(append([]string{"--url", url, "--key", key}, args...), in, &o, &e)
	return code, o.String(), e.String()
}

func TestDocsCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	run := func(want int, input string, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, srv.URL, w.User, input, args...)
		if code != want {
			t.Fatalf("engi %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"guide/issues.md": "# Issues\n\n## Open\n\nOpen an issue with\x1b[2J issues.open().\n", "guide/.hidden.md": "x", "guide/.git/a.md": "x", "guide/picture.png": "x",
		"README.MD": "# Acme\n\nAll about acme.\n", "guide/notes.txt": "Close an issue with care.\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _ := run(0, "", "docs", "add", dir, "https://example.com/sdk.md", "-p", "acme")
	if n := strings.Count(out, "doc_"); n != 4 {
		t.Errorf("added %d: %s", n, out)
	}
	run(0, "# From a pipe\n\nPiped.\n", "docs", "add", "-", "-t", "Pipe")
	run(0, "", "docs", "add", dir, "-p", "acme") // again: no second ones
	list, _ := run(0, "", "docs", "list")
	for _, want := range []string{"README.MD", "guide/issues.md", "guide/notes.txt", "sdk.md", "Pipe", "acme", "ann", "ready"} {
		if !strings.Contains(list, want) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	if n := strings.Count(list, "doc_"); n != 5 {
		t.Errorf("%d documents:\n%s", n, list)
	}
	out, said := run(0, "", "docs", "search", "open", "issues", "-n", "1")
	if !strings.HasPrefix(out, "1. acme  guide/issues.md > Open\n") || !strings.Contains(out, "issues.open()") || strings.Contains(out, "\x1b") || !strings.Contains(said, "searched by words and likeness (fake:words); the fake counts words") {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(0, "", "docs", "search", "zebra", "--mode", "keyword"); out != "" || !strings.Contains(said, "nothing found; searched by words") {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "", "docs", "packages"); !strings.Contains(out, "acme") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "docs", "refresh"); strings.Count(out, "doc_") != 1 {
		t.Errorf("refreshed %s", out)
	}
	c := client.New(srv.URL, w.User)
	for _, path := range []string{"/none", t.TempDir()} {
		if _, said := run(1, "", "docs", "add", path); said == "" {
			t.Errorf("%s: nothing said", path)
		}
	}
	if _, said := run(1, "", "docs", "add", "https://denied.example/x", "https://example.com/y"); !strings.Contains(said, "denied.example/x: ") || !strings.Contains(said, "send the text") {
		t.Errorf("%s", said)
	}
	if _, said := run(1, "", "docs", "add", dir, "-t", "T"); !strings.Contains(said, "one title") {
		t.Errorf("%s", said)
	}
	ids, _ := run(0, "", "docs", "list", "-q")
	run(0, "", append([]string{"docs", "remove"}, strings.Fields(ids)...)...)
	if all, err := c.Documents(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left: %v %v", all, err)
	}
}
