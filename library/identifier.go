package library

import (
	"strings"
	"unicode"
)

const (
	maxNames = 400 // parts of identifiers kept of a piece
	maxWords = 24  // of a question
)

// stop are words that say nothing about what a question is after.
var stopWords = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`a about all also am an and any are as at be been being but by can could did do does doing for from get
		had has have how i if in into is it its let me my no not of on one or our please shall should show so some such tell than that the
		their them then there these they this those to too use used using want was way we were what when where which while who why will with
		would you your`) {
		m[w] = true
	}
	return m
}()

// fields yields the words of a text, identifiers in one: letters, digits,
// and between them one of _ . - / @ : that join.
func tokens(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-/@:", r)
	})
}

// parts are the words that an identifier is made of, in lower case; one for a
// plain word.
func splitIdentifier(word string) []string {
	var list []string
	for run := range strings.FieldsFuncSeq(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		rs := []rune(run)
		begin := 0
		for i := 1; i < len(rs); i++ {
			lower := unicode.IsLower(rs[i-1]) || unicode.IsDigit(rs[i-1])
			// HTTPServer is HTTP and Server.
			inner := i+1 < len(rs) && unicode.IsUpper(rs[i-1]) && unicode.IsLower(rs[i+1])
			if unicode.IsUpper(rs[i]) && (lower || inner) {
				list = append(list, strings.ToLower(string(rs[begin:i])))
				begin = i
			}
		}
		list = append(list, strings.ToLower(string(rs[begin:])))
	}
	return list
}

// names are the parts of identifiers in mixed case, which a tokenizer takes
// for one word.
func identifierParts(text string) string {
	var b strings.Builder
	n := 0
	seen := map[string]bool{}
	for _, w := range tokens(text) {
		for run := range strings.FieldsFuncSeq(w, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			if seen[run] || len(run) > 100 {
				continue
			}
			seen[run] = true
			if ps := splitIdentifier(run); len(ps) > 1 {
				for _, p := range ps {
					b.WriteString(p)
					b.WriteByte(' ')
				}
				if n += len(ps); n >= maxNames {
					return strings.TrimSpace(b.String())
				}
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// terms are the words of a question that are looked for: identifiers as a
// whole and by their parts, without words that say nothing, unless there are
// no others.
func queryTerms(question string) []string {
	var list, dull []string
	seen := map[string]bool{}
	add := func(w string) {
		w = strings.ToLower(w)
		if seen[w] || len(w) > 100 {
			return
		}
		seen[w] = true
		if stopWords[w] {
			dull = append(dull, w)
			return
		}
		list = append(list, w)
	}
	for _, w := range tokens(question) {
		if w = strings.Trim(w, "_.-/@:"); w == "" {
			continue
		}
		add(w)
		if ps := splitIdentifier(w); len(ps) > 1 {
			for _, p := range ps {
				if len(p) > 1 {
					add(p)
				}
			}
		}
	}
	if len(list) == 0 {
		list = dull
	}
	return list[:min(len(list), maxWords)]
}
