package fileops

import (
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/engi-dev/engi/internal/engi"
)

// TestGlobSyntax pins the syntax of patterns, most of which a library matches.
func TestGlobSyntax(t *testing.T) {
	for pattern, names := range map[string]string{ // a ! precedes names that must not match
		"*.py":           "a.py .py !a.pyc !d/a.py",
		"**/*.py":        "a.py d/a.py d/e/a.py !a.pyc",
		"**":             "a d/a d/e/a",
		"d/**":           "d/a d/e/f !e/a",
		"d/**/f":         "d/f d/e/f d/e/e/f !d/ef !f",
		"a**b":           "ab axxb !a/b",
		"?.go":           "a.go é.go !.go !ab.go",
		"[a-c]x":         "ax cx !dx",
		"[!a-c]x":        "dx !ax",
		"[\\]]":          "]",
		"[a\\]b]":        "] a b !\\",
		"*.{js,ts{,x}}":  "a.js a.ts a.tsx !a.jsx",
		"{a,b/**}/c":     "a/c b/x/c !c",
		"\\*":            "* !a",
		"a,b":            "a,b",
		"(a|b)+.^$":      "(a|b)+.^$ !a",
		"src/*/x[0-9].c": "src/a/x1.c !src/a/b/x1.c !src/a/x.c",
	} {
		if err := checkGlob(pattern); err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for _, name := range strings.Fields(names) {
			name, not := strings.CutPrefix(name, "!")
			if doublestar.MatchUnvalidated(pattern, name) == not {
				t.Errorf("%s matches %s: %v", pattern, name, !not)
			}
		}
	}
	for _, pattern := range []string{"", "[", "[a", "{", "{a", "}", "\\", strings.Repeat("{a,", 2000), strings.Repeat("x", 1<<20), "[]]", strings.Repeat("{a,b}", 9)} {
		if err := checkGlob(pattern); !engi.Is(err, engi.Invalid) {
			t.Errorf("%.100q: %v, want invalid", pattern, err)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, s := range []string{"**/*.go", "a[!b-c]?", "{a,{b,c}}/**", `\*`, "[]]", "[[:alpha:]]", "\xff*", "[z-a]"} {
		f.Add(s, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if err := checkGlob(pattern); err != nil {
			if !engi.Is(err, engi.Invalid) {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		match := func(name string) bool { return doublestar.MatchUnvalidated(pattern, name) }
		match(name)
		// Without wildcards a pattern matches only itself.
		if !strings.ContainsAny(pattern, `*?[]{}\,`) && utf8.ValidString(pattern) {
			if !match(pattern) || match(pattern+"x") {
				t.Errorf("%q does not match itself alone", pattern)
			}
		}
		// Where both have the same syntax, the result agrees with path.Match.
		if !strings.ContainsAny(pattern, `[]{}\,`) && !strings.Contains(pattern, "**") && utf8.ValidString(pattern) && utf8.ValidString(name) {
			if want, err := path.Match(pattern, name); err == nil && match(name) != want {
				t.Errorf("%q matches %q: %v, want %v", pattern, name, !want, want)
			}
		}
	})
}

func FuzzEdit(f *testing.F) {
	f.Add("a\nb\n", "b", "c", false)
	f.Add("a\r\nb\r\n", "a\nb", "x", true)
	f.Add("a\nb", "b\n", "c\n", false)
	f.Add("aaa", "aa", "b", true)
	f.Fuzz(func(t *testing.T, text, from, to string, all bool) {
		got, n, err := apply(text, []Replacement{{Old: from, New: to, All: all}})
		if err != nil {
			if kind := engi.KindOf(err); kind != engi.Conflict && kind != engi.Invalid {
				t.Errorf("kind %s: %v", kind, err)
			}
			if strings.Count(text, from) == 1 && from != "" && from != to && !strings.Contains(text, "\r") {
				t.Errorf("refused what is there once: %v", err)
			}
			return
		}
		if n == 0 || !all && n != 1 {
			t.Errorf("%d replacements", n)
		}
		// Line endings stay the same.
		if strings.Count(text, "\n") > 0 && strings.Count(text, "\r\n") == strings.Count(text, "\n") &&
			!strings.Contains(to, "\r") && strings.Count(got, "\r\n") != strings.Count(got, "\n") && !strings.Contains(from, "\r") {
			t.Errorf("%q became %q", text, got)
		}
		firstChange(text, got)
	})
}
