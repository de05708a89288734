package problems_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden file anew")

const root = "/home/user/app"

// TestCorpus parses output of Vite 8, tsc 7, Node and Python about apps that
// were broken on purpose.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 30 {
		t.Fatal(files, err)
	}
	var b strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		found := problems.Parse(string(raw), root)
		if strings.HasPrefix(name, "overlay") {
			p, ok := problems.Overlay(string(raw), root)
			if !ok {
				t.Errorf("%s is no overlay", name)
			}
			found = []problems.Problem{p}
		}
		if len(found) == 0 {
			t.Errorf("nothing is found in %s", name)
		}
		for _, p := range found {
			fmt.Fprintf(&b, "%s: %s %s:%d:%d %q\n", name, p.Source, p.File, p.Line, p.Column, p.Text)
		}
	}
	const golden = "testdata/problems.want"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Error(d)
	}
}

func TestConsole(t *testing.T) {
	const origin = "http://5173-x.localhost:8080"
	tests := map[string]struct {
		message, stack string
		want           problems.Problem
	}{
		"Chromium": {"Uncaught TypeError: Cannot read properties of undefined (reading 'map')",
			"TypeError: Cannot read properties of undefined (reading 'map')\n    at renderWithHooks (" + origin + "/node_modules/.vite/deps/react-dom_client.js?v=1:5:7)\n    at List (" + origin + "/src/components/List.tsx?t=17:12:23)\n    at App (" + origin + "/src/App.tsx:5:1)",
			problems.Problem{Source: "browser", File: "src/components/List.tsx", Line: 12, Column: 23, Text: "TypeError: Cannot read properties of undefined (reading 'map')"}},
		"Firefox":         {"TypeError: a is undefined", "List@" + origin + "/src/List.tsx:12:23\nApp@" + origin + "/src/App.tsx:5:1", problems.Problem{Source: "browser", File: "src/List.tsx", Line: 12, Column: 23, Text: "TypeError: a is undefined"}},
		"another origin":  {"Error: x", "    at f (https://cdn.example/src/a.js:1:2)", problems.Problem{Source: "browser", Text: "Error: x"}},
		"without a stack": {"Failed to load resource: the server responded with a status of 404 (Not Found)", "", problems.Problem{Source: "browser", Text: "Failed to load resource: the server responded with a status of 404 (Not Found)"}},
	}
	for name, tt := range tests {
		if d := cmp.Diff(tt.want, problems.Console(tt.message, tt.stack, origin)); d != "" {
			t.Error(name, d)
		}
	}
}

func TestOverlayIsNone(t *testing.T) {
	for _, s := range []string{"", "{}", "null", `{"type":"connected"}`, `{"type":"error","err":3}`, "<html>", `{"type":"error","err":{"message":""}}`, strings.Repeat("[", 1<<19)} {
		if p, ok := problems.Overlay(s, root); ok {
			t.Errorf("%.40q is %+v", s, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	f.Fuzz(func(t *testing.T, s string) {
		start := time.Now()
		found := problems.Parse(s, root)
		if p, ok := problems.Overlay(s, root); ok {
			found = append(found, p)
		}
		found = append(found, problems.Console(s, s, "http://x"))
		if len(found) > 52 || time.Since(start) > 30*time.Second {
			t.Fatalf("%d problems of %d bytes in %v", len(found), len(s), time.Since(start))
		}
		for _, p := range found {
			if strings.HasPrefix(p.File, "/") || strings.HasPrefix(p.File, "..") || strings.ContainsAny(p.File, "\x00\n") || p.Line < 0 || p.Column < 0 || len(p.Text) > 1000 {
				t.Fatalf("%+v", p)
			}
		}
	})
}
