// Package clip shortens texts. It cuts between characters, and its results are
// valid UTF-8: invalid bytes are replaced by U+FFFD.
package clip

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const ellipsis = "…"

// Bytes returns the beginning of s, at most n bytes.
func Bytes(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return s[:Index(s, n)]
}

// Tail returns the end of s, at most n bytes.
func Tail(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	at := max(len(s)-n, 0)
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[at:]
}

// Text returns s if it has at most n bytes, else its beginning and an ellipsis, at most n bytes
// together.
func Text(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return s[:Index(s, n-len(ellipsis))] + ellipsis
}

// Line is like Text, on one line. It replaces control characters and white space by
// spaces, and a sequence of them by one space.
func Line(s string, n int) string {
	return Text(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " "), n)
}

// Index returns the largest number of bytes, at most n, after which s can be cut
// between two characters. It returns n if there is no such place near n, because s is not text.
func Index[T string | []byte](s T, n int) int {
	n = min(max(n, 0), len(s))
	for at := n; at > max(n-utf8.UTFMax, -1); at-- {
		if at == len(s) || utf8.RuneStart(s[at]) {
			return at
		}
	}
	return n
}

// Whole returns the length of b without an incomplete character at its end.
func Whole(b []byte) int {
	for n := len(b) - 1; n >= max(len(b)-utf8.UTFMax+1, 0); n-- {
		if utf8.RuneStart(b[n]) {
			if !utf8.FullRune(b[n:]) {
				return n
			}
			break
		}
	}
	return len(b)
}
