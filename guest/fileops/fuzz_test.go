package fileops

import (
	"path"
	"strings"
	"testing"

	"github.com/engi-dev/engi"
)

func FuzzPattern(f *testing.F) {
	for _, s := range []string{"**/*.go", "a[!b-c]?", "{a,{b,c}}/**", `\*`, "[]]", "[[:alpha:]]", "\xff*", "[z-a]"} {
		f.Add(s, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			if engi.KindOf(err) != engi.Invalid {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		p.Match(name)
		// Without magic a pattern matches itself and nothing else.
		if !strings.ContainsAny(pattern, `*?[]{}\,`) && strings.ToValidUTF8(pattern, "") == pattern {
			if !p.Match(pattern) || p.Match(pattern+"x") {
				t.Errorf("%q does not match itself alone", pattern)
			}
		}
		// As far as they say the same, it is path.Match's opinion.
		if !strings.ContainsAny(pattern, `[]{}\,`) && !strings.Contains(pattern, "**") && strings.ToValidUTF8(pattern+name, "") == pattern+name {
			if want, err := path.Match(pattern, name); err == nil && p.Match(name) != want {
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
	f.Fuzz(func(t *testing.T, text, old, new string, all bool) {
		got, n, err := apply(text, []Replacement{{Old: old, New: new, All: all}})
		if err != nil {
			if kind := engi.KindOf(err); kind != engi.Conflict && kind != engi.Invalid {
				t.Errorf("kind %s: %v", kind, err)
			}
			if strings.Count(text, old) == 1 && old != "" && old != new && !strings.Contains(text, "\r") {
				t.Errorf("refused what is there once: %v", err)
			}
			return
		}
		if n == 0 || !all && n != 1 {
			t.Errorf("%d replacements", n)
		}
		// Line ends stay what they are.
		if strings.Count(text, "\n") > 0 && strings.Count(text, "\r\n") == strings.Count(text, "\n") &&
			!strings.Contains(new, "\r") && strings.Count(got, "\r\n") != strings.Count(got, "\n") && !strings.Contains(old, "\r") {
			t.Errorf("%q became %q", text, got)
		}
		firstChange(text, got)
	})
}
