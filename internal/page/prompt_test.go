package page

import (
	"context"
	"fmt"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// An embedder counts the texts that it embeds.
type embedder map[engi.Owner]int

func (e embedder) Embed(_ context.Context, owner engi.Owner, texts []string) ([][]float32, error) {
	e[owner] += len(texts)
	all := make([][]float32, len(texts))
	for i, t := range texts {
		all[i] = []float32{float32(len(owner)), float32(len(t))}
	}
	return all, nil
}

// TestVectorsAreSharedFairly makes an owner compare more texts than the cache can hold,
// while others compare a few repeatedly.
func TestVectorsAreSharedFairly(t *testing.T) {
	var v vectors
	asked := embedder{}
	compare := func(owner engi.Owner, from, n int) {
		t.Helper()
		texts := make([]string, n, n+1)
		for i := range texts {
			texts[i] = fmt.Sprintf("%0*d", i%7+1, from+i)
		}
		all, err := v.of(t.Context(), asked, owner, append(texts, texts[0]))
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range append(texts, texts[0]) {
			if all[i][0] != float32(len(owner)) || all[i][1] != float32(len(text)) {
				t.Fatalf("the vector of %q for %q is %v", text, owner, all[i])
			}
		}
	}
	few := []engi.Owner{"", "ann", "bob"}
	for round := range 60 {
		compare("busy", 200*round, 250)
		for _, o := range few {
			compare(o, 0, 200)
		}
		total := 0
		for _, theirs := range v.kept {
			total += len(theirs)
		}
		if total != v.size || total > maxVectors {
			t.Fatalf("%d vectors are kept, and counted as %d", total, v.size)
		}
	}
	for _, o := range few {
		if asked[o] != 200 {
			t.Errorf("%q asked for %d vectors, want 200", o, asked[o])
		}
	}
	if n := len(v.kept["busy"]); n != maxVectors-600 {
		t.Errorf("%d vectors of who is busy, want all that is left", n)
	}
	if most := 200*59 + 250 + 60*50; asked["busy"] > most {
		t.Errorf("who is busy asked for %d vectors, want %d at most", asked["busy"], most)
	}
	for i := range maxVectors + 100 { // many owners
		compare(engi.Owner(fmt.Sprint("owner", i)), 0, 1)
	}
	if len(v.kept) > maxVectors || v.size != maxVectors {
		t.Errorf("%d owners have %d vectors", len(v.kept), v.size)
	}
}
