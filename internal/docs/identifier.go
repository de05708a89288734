package docs

import (
	"strings"
	"unicode"
)

const (
	maxParts = 400 // maximum number of parts of identifiers per chunk
	maxTerms = 24  // maximum number of terms of a query
)

// stopWords are ignored in queries.
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

// tokens splits a text into words. Identifiers with any of _ . - / @ : in them
// are one word.
func tokens(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-/@:", r)
	})
}

// splitIdentifier returns the words of an identifier in lower case; for a plain word, the
// word itself.
func splitIdentifier(word string) []string {
	var list []string
	for run := range strings.FieldsFuncSeq(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		rs := []rune(run)
		begin := 0
		for i := 1; i < len(rs); i++ {
			lower := unicode.IsLower(rs[i-1]) || unicode.IsDigit(rs[i-1])
			// HTTPServer is split into HTTP and Server.
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

// identifierParts returns the parts of the mixed-case identifiers in a text,
// which the store's tokenizer would treat as one word each.
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
				if n += len(ps); n >= maxParts {
					return strings.TrimSpace(b.String())
				}
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// queryTerms returns the words to search for: whole identifiers and their
// parts, without stop words unless there are no others.
func queryTerms(query string) []string {
	var list, stops []string
	seen := map[string]bool{}
	add := func(w string) {
		w = strings.ToLower(w)
		if seen[w] || len(w) > 100 {
			return
		}
		seen[w] = true
		if stopWords[w] {
			stops = append(stops, w)
			return
		}
		list = append(list, w)
	}
	for _, w := range tokens(query) {
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
		list = stops
	}
	return list[:min(len(list), maxTerms)]
}
