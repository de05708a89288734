// Package spelling guesses the intended word of a misspelled one, for
// error texts that ask "did you mean ...?".
package spelling

import "strings"

// Nearest returns the candidate most similar to word, or "" if none is close. A candidate
// that begins with a word of three bytes or more is always close. Case is ignored,
// and the first of equally close candidates is returned.
func Nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	best, least := "", 1+max(1, len(word)/3)
	for _, c := range candidates {
		lower := strings.ToLower(c)
		d := distance(word, lower)
		if len(word) >= 3 && strings.HasPrefix(lower, word) {
			d = 1
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete, replace or swap with
// their neighbour to change a to b: the optimal string alignment distance.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b) // too long to be a misspelled word
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
