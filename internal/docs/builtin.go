package docs

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	builtInName = "built-in:words-1" // increment the number when the method changes, so that vectors are computed again
	dimensions  = 384
)

// BuiltIn returns the embedder of nodes without an embedding model. A vector
// counts words, parts of identifiers and groups of four letters, so texts are
// similar if they share words or stems; it knows nothing of the meaning of words.
func BuiltIn() Embedder { return builtIn{} }

type builtIn struct{}

func (builtIn) Name() string { return builtInName }

func (builtIn) Embed(ctx context.Context, _ engi.Owner, texts []string) ([][]float32, error) {
	vs := make([][]float32, len(texts))
	for i, t := range texts {
		if ctx.Err() != nil {
			return nil, engi.Errorf(engi.Expired, "embed: %v", context.Cause(ctx))
		}
		vs[i] = embedWords(t)
	}
	return vs, nil
}

func embedWords(t string) []float32 {
	counts := map[string]float64{}
	for _, w := range tokens(t) {
		if w = strings.Trim(w, "_.-/@:"); w == "" || len(w) > 100 {
			continue
		}
		ps := splitIdentifier(w)
		if len(ps) > 1 {
			counts["="+strings.ToLower(w)]++
		}
		for _, p := range ps {
			if !stopWords[p] {
				counts["="+stem(p)]++
			}
		}
	}
	v := make([]float32, dimensions)
	for w, n := range counts {
		tf := 1 + math.Log(n)
		addFeature(v, w, tf)
		grams := []rune("^" + w[1:] + "$")
		for i := 0; i+4 <= len(grams); i++ {
			addFeature(v, string(grams[i:i+4]), 0.25*tf/math.Sqrt(float64(len(grams)-3)))
		}
	}
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		v[0], sum = 1, 1 // texts without words are similar to each other
	}
	f := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= f
	}
	return v
}

// addFeature adds a feature at two hashed positions with hashed signs: features
// that collide at one position rarely do at the other.
func addFeature(v []float32, feature string, weight float64) {
	h := uint64(14695981039346656037)
	for i := range len(feature) {
		h = (h ^ uint64(feature[i])) * 1099511628211
	}
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 32
	for range 2 {
		w := float32(weight)
		if h&1 == 1 {
			w = -w
		}
		v[(h>>1)%dimensions] += w
		h >>= 32
	}
}

// stem removes common suffixes.
func stem(w string) string {
	for _, end := range []string{"ations", "ation", "ments", "ment", "ings", "ing", "ies", "ied", "ers", "er", "es", "ed", "s", "e", "y"} {
		if s, ok := strings.CutSuffix(w, end); ok && len(s) >= 3 {
			return s
		}
	}
	return w
}

// resembles reports whether a text has a word that is similar to one of terms: they
// have the same stem, or share most groups of four letters.
func resembles(terms []string, text string) bool {
	seen := map[string]bool{}
	for _, token := range tokens(text) {
		for _, word := range splitIdentifier(token) {
			if seen[word] {
				continue
			}
			seen[word] = true
			if slices.ContainsFunc(terms, func(t string) bool { return stem(t) == stem(word) || alike(t, word) }) {
				return true
			}
		}
	}
	return false
}

// alike reports whether two words share most of their groups of four
// letters.
func alike(a, b string) bool {
	n := 0
	for i := 0; i+4 <= len(a); i++ {
		if strings.Contains(b, a[i:i+4]) {
			n++
		}
	}
	return n > 0 && 4*n > len(a)+len(b)-6
}
