package e2b

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A listed scenario, as its file registers it.
type listedScenario struct{ section, name string }

var registered = regexp.MustCompile(`(?m)^\s*@?(about|scenario)\(\s*(?:'([^'\n]+)'|"([^"\n]+)")`)

// scenarios reads the scenarios that each runner's file registers.
func scenarios(t *testing.T) map[string][]listedScenario {
	t.Helper()
	all := map[string][]listedScenario{}
	for _, r := range runners {
		src, err := os.ReadFile(r.file)
		if err != nil {
			t.Fatal(err)
		}
		section := ""
		for _, m := range registered.FindAllStringSubmatch(string(src), -1) {
			text := cmp.Or(m[2], m[3])
			if m[1] == "about" {
				section = text
				continue
			}
			all[r.file] = append(all[r.file], listedScenario{section, text})
		}
		if len(all[r.file]) == 0 {
			t.Fatalf("%s registers no scenario", r.file)
		}
	}
	return all
}

const (
	docFile  = "../../../docs/e2b.md"
	docBegin = "<!-- begin: written by test/e2e/e2b -->"
	docEnd   = "<!-- end -->"
)

var packages = []struct{ name, title string }{
	{"js", "`e2b` 2.51.0 (npm)"},
	{"js 1.13", "`e2b` 1.13.2 (npm), by domain and https"},
	{"python", "`e2b` 2.63.0 (PyPI)"},
	{"python domain", "`e2b` 2.63.0 (PyPI), by domain and https"},
	{"python 2.31", "`e2b` 2.31.0 (PyPI)"},
}

// table returns the text between the marks: every scenario with its result.
func table(list map[string][]listedScenario, passed func(file string, s listedScenario) bool) string {
	var b strings.Builder
	total, good := 0, 0
	for _, p := range packages {
		fmt.Fprintf(&b, "\n### %s\n\n| Section | What works | Result |\n|---|---|---|\n", p.title)
		for _, r := range runners {
			if r.name != p.name {
				continue
			}
			for _, s := range list[r.file] {
				total++
				said := "**fails**"
				if passed(r.file, s) {
					good++
					said = "passes"
				}
				fmt.Fprintf(&b, "| %s | %s | %s |\n", s.section, strings.ReplaceAll(s.name, "|", "\\|"), said)
			}
		}
	}
	return fmt.Sprintf("%s\n\n%d of %d scenarios pass.\n%s\n%s", docBegin, good, total, b.String(), docEnd)
}

// writeTable puts the results of a run into the documentation.
func writeTable(t *testing.T, all map[string][]result) {
	t.Helper()
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), docBegin)
	_, after, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks", docFile)
	}
	text := table(scenarios(t), func(file string, s listedScenario) bool {
		return slices.ContainsFunc(all[file], func(r result) bool { return r.Section == s.section && r.Name == s.name && r.OK })
	})
	if err := os.WriteFile(docFile, []byte(before+text+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTable fails when the documentation lists other scenarios than the existing
// ones, or a failed one.
func TestTable(t *testing.T) {
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	want := table(scenarios(t), func(string, listedScenario) bool { return true })
	if !strings.Contains(string(doc), want) {
		t.Errorf("%s does not list the scenarios as they are: run TestE2B with ENGI_UPDATE_DOCS=1", docFile)
	}
}
