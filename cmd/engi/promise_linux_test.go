package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/node/config"
)

var (
	fence    = regexp.MustCompile("(?s)```go\n(.*?)```")
	selector = regexp.MustCompile(`\b([a-z][a-z0-9]*)\.[A-Z]\w*`)
	inline   = regexp.MustCompile("`([a-z][a-z0-9]*)\\.[A-Z][A-Za-z]*`")
	variable = regexp.MustCompile(`\bENGI_[A-Z][A-Z_]*[A-Z]\b`)
)

// pages returns what users read, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"../../README.md", "../../CHANGELOG.md", "../../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			if base := filepath.Base(f); base == "architecture.md" || base == "adding.md" {
				continue // for those who read the code
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all[f] = string(text)
		}
	}
	return all
}

// TestDocsPromiseNoPackages keeps Go packages out of what users read, except
// those that are promised to them.
func TestDocsPromiseNoPackages(t *testing.T) {
	ours := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); strings.HasPrefix(name, ".") && name != ".." || name == "testdata" || name == "node_modules" {
			if path != "../.." {
				return filepath.SkipDir
			}
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		if err != nil || len(files) == 0 {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), files[0], nil, parser.PackageClauseOnly)
		if err == nil {
			ours[strings.TrimSuffix(f.Name.Name, "_test")] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(ours, "client")
	delete(ours, "v1")
	if !ours["fleet"] || !ours["engi"] {
		t.Fatalf("our packages are %v", ours)
	}
	for page, text := range pages(t) {
		var found []string
		for _, block := range fence.FindAllStringSubmatch(text, -1) {
			for _, m := range selector.FindAllStringSubmatch(block[1], -1) {
				if ours[m[1]] {
					found = append(found, m[0])
				}
			}
		}
		for _, m := range inline.FindAllStringSubmatch(text, -1) {
			if ours[m[1]] {
				found = append(found, m[0])
			}
		}
		if len(found) > 0 {
			t.Errorf("%s speaks of Go packages that are not promised: %v", page, found)
		}
	}
}

// TestDocsVariables lets pages name only variables that do something.
func TestDocsVariables(t *testing.T) {
	known := map[string]bool{}
	c := config.Defaults()
	for _, k := range config.Keys(&c) {
		known[k.Variable] = true
	}
	// Of the client, of programs in sandboxes, of the environment of a build.
	for _, name := range []string{"ENGI_URL", "ENGI_KEY", "ENGI_CONFIG", "ENGI_OUTPUT_DIR", "ENGI_SANDBOX_ID", "ENGI_TEST_REQUIRE", "ENGI_SECRET_KEY", "ENGI_NO_INSTALL"} {
		known[name] = true
	}
	for page, text := range pages(t) {
		for _, name := range variable.FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s names %s, which does nothing", page, name)
			}
		}
	}
}
