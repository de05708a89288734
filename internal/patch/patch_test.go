package patch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/patch"
)

func TestKept(t *testing.T) {
	for _, c := range []struct {
		old, now string
		want     []int
	}{
		{"", "", []int{}},
		{"", "a\nb\n", []int{-1, -1}},
		{"a\nb\n", "", []int{}},
		{"a\nb\nc\n", "a\nb\nc\n", []int{0, 1, 2}},
		{"a\nb\nc\n", "a\nx\nc\n", []int{0, -1, 2}},
		{"a\nb", "a\nb\n", []int{0, -1}}, // the line end is new
		{"\n\n", "\n\n\n", []int{0, 1, -1}},
		{"-- a\n++ b\n@@ c\n", "++ b\n@@ c\n+++ b\n", []int{1, 2, -1}},
	} {
		if d := cmp.Diff(c.want, patch.Kept(c.old, c.now)); d != "" {
			t.Errorf("%q to %q: %s", c.old, c.now, d)
		}
	}
}

// TestKeptOfAnything checks that kept lines are equal and in order. For
// texts whose lines are all different, it checks that no line is missed if none moves.
func TestKeptOfAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var old []string
		for i := range random.IntN(40) {
			old = append(old, fmt.Sprint(i*random.IntN(2)))
		}
		now := slices.Clone(old)
		for range random.IntN(6) {
			if i := random.IntN(len(now) + 1); i < len(now) && random.IntN(2) == 0 {
				now = slices.Delete(now, i, i+1)
			} else {
				now = slices.Insert(now, i, fmt.Sprint("new", random.IntN(3)))
			}
		}
		text := func(lines []string) string {
			if len(lines) == 0 {
				return ""
			}
			return strings.Join(lines, "\n") + "\n"
		}
		kept := patch.Kept(text(old), text(now))
		if len(kept) != len(now) {
			t.Fatalf("%d lines of %d", len(kept), len(now))
		}
		last := -1
		for i, k := range kept {
			if k < 0 {
				continue
			}
			if k <= last || old[k] != now[i] {
				t.Fatalf("line %d of %q is said to be line %d of %q", i, now, k, old)
			}
			last = k
		}
	}
}
