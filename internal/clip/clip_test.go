package clip

import (
	"testing"
	"unicode/utf8"
)

func TestClip(t *testing.T) {
	for _, c := range []struct {
		f    func(string, int) string
		s    string
		n    int
		want string
	}{
		{Bytes, "añb", 2, "a"},
		{Bytes, "añb", 3, "añ"},
		{Bytes, "añb", 9, "añb"},
		{Bytes, "añb", -1, ""},
		{Bytes, "a\xffb", 9, "a\uFFFDb"},
		{Tail, "añb", 2, "b"},
		{Tail, "añb", 3, "ñb"},
		{Tail, "añb", 9, "añb"},
		{Tail, "añb", 0, ""},
		{Text, "añbcd", 5, "a…"},
		{Text, "añbcde", 6, "añ…"},
		{Text, "añb", 4, "añb"},
		{Text, "a\xff", 9, "a\uFFFD"},
		{Line, " a\n\x1b\tb\r\n", 9, "a b"},
		{Line, "a\nbcde", 5, "a …"},
	} {
		got := c.f(c.s, c.n)
		if got != c.want {
			t.Errorf("of %q, %d: %q, want %q", c.s, c.n, got, c.want)
		}
		if !utf8.ValidString(got) {
			t.Errorf("of %q, %d: %q is not valid", c.s, c.n, got)
		}
	}
}

func TestWhole(t *testing.T) {
	for s, want := range map[string]int{"": 0, "a": 1, "ñ": 2, "a\xc3": 1, "a\xe2\x80": 1, "…": 3, "a\xf0\x9f\x98": 1, "\x80\x80\x80\x80": 4,
		"é": 2, "a\xe2\x82": 1, "€": 3, "\xf0\x9f\x98": 0, "\xff": 1} {
		if got := Whole([]byte(s)); got != want {
			t.Errorf("of %q: %d, want %d", s, got, want)
		}
	}
}
