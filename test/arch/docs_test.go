package arch

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinksOfPages resolves every link within the repository, with its heading, and
// fails where docs/README.md lacks a page.
func TestLinksOfPages(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		pages = append(pages, found...)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), "x"), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // a link to another site
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			there, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if heading == "" || there.IsDir() {
				continue
			}
			linked, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !headings(string(linked))[heading] {
				t.Errorf("%s links to %s, which has no such heading", page, m[1])
			}
		}
	}
	index, err := os.ReadFile(filepath.Join(root, "docs/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := path.Base(page); path.Base(path.Dir(page)) == "docs" && name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
}

// headings returns the anchors of a page, as GitHub generates them.
func headings(text string) map[string]bool {
	all, drop := map[string]bool{}, regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		all[strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
	}
	return all
}

// TestTourLinks resolves every name and path of code in docs/architecture.md.
func TestTourLinks(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	ps := packages(t)
	byName := map[string][]*info{}
	for _, p := range ps {
		byName[p.name] = append(byName[p.name], p)
	}
	found := regexp.MustCompile("`([a-z][a-z0-9]*)(?:\\.(\\w+))+`|`([a-z][\\w-]*(?:/[\\w.-]+)+)`").FindAllStringSubmatch(string(src), -1)
	if len(found) < 80 {
		t.Errorf("found only %d names", len(found))
	}
	for _, m := range found {
		if m[3] != "" {
			if !exists(m[3]) && !exists("internal/"+m[3]) {
				t.Errorf("docs/architecture.md: there is no %s", m[3])
			}
			continue
		}
		there := false
		for _, p := range byName[m[1]] {
			there = there || p.idents[m[2]] || p.idents[strings.Split(strings.Trim(m[0], "`"), ".")[1]]
		}
		if !there {
			t.Errorf("docs/architecture.md: %s names nothing", m[0])
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(filepath.Join(root, file))
	return err == nil
}

var update = flag.Bool("update", false, "draw docs/architecture.md anew")

// TestDrawing compares the drawing in docs/architecture.md with the imports.
func TestDrawing(t *testing.T) {
	of := func(pkg string) string { tree, _, _ := strings.Cut(pkg, "/"); return tree }
	edges := map[string]bool{}
	for pkg, p := range packages(t) {
		from := of(pkg)
		for imp := range p.imports {
			in, ours := strings.CutPrefix(imp, module+"/")
			to := of(strings.TrimPrefix(in, "internal/"))
			if ours && from != to && from != "test" && from != "node" && to != "engi" && !matchAny(everywhere, to) && from != "clock" && !strings.HasSuffix(pkg, "test") {
				edges[fmt.Sprintf("    %s --> %s\n", from, to)] = true
			}
		}
	}
	drawing := "```mermaid\nflowchart TD\n" + strings.Join(slices.Sorted(maps.Keys(edges)), "") + "```\n"
	file := filepath.Join(root, "docs/architecture.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	drawn := regexp.MustCompile("(?s)```mermaid\n.*?```\n")
	want := drawn.ReplaceAllLiteralString(string(text), drawing)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) || !drawn.Match(text) {
		t.Error("the drawing is not what the packages import; run: go test ./test/arch -run Drawing -update")
	}
}
