package library

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/engi-dev/engi"
)

// maxIndexed is how many bytes of vectors are held in memory. What does not
// fit is read again with each search.
const maxIndexed = 512 << 20

// An index has the vectors of shelves that were searched, the last used ones.
// To compare a question with ten thousand vectors takes a few milliseconds in
// memory; to read them from a database takes longer.
type index struct {
	store    Store
	embedder string

	mu          sync.Mutex
	collections map[string]*collection
	uses        int64
}

// indexed are the vectors of one shelf.
type collection struct {
	segments map[engi.DocumentID]*segment // never written once it is here
	bytes    int64
	used     int64
}

// A segment has those of one document. It is immutable. A vector is held as
// bytes and the factor that makes it what it was: a quarter of the memory to
// read for an error of about a thousandth, which is less than embeddings mean.
type segment struct {
	packages []string
	ids      []int64
	scales   []float32
	vectors  []int8 // one after the other
	missing  int    // pieces that have none of this embedder
}

func newIndex(s Store, embedder string) *index {
	return &index{store: s, embedder: embedder, collections: map[string]*collection{}}
}

func (x *index) segment(r Record, pieces []Chunk) *segment {
	s := &segment{packages: r.Packages()}
	for _, p := range pieces {
		n := len(s.ids)
		if p.Embedder != x.embedder || len(p.Vector) == 0 || n > 0 && len(p.Vector) != len(s.vectors)/n {
			s.missing++
			continue
		}
		v, scale := quantize(p.Vector)
		s.ids, s.scales, s.vectors = append(s.ids, p.ID), append(s.scales, scale), append(s.vectors, v...)
	}
	return s
}

func (s *segment) size() int64 { return int64(len(s.vectors) + 12*len(s.ids) + 200) }

// quantize returns v as bytes, and the factor to have it back.
func quantize(v []float32) ([]int8, float32) {
	var most float32
	for _, x := range v {
		most = max(most, x, -x)
	}
	b := make([]int8, len(v))
	if !(most > 0) || math.IsInf(float64(most), 0) {
		return b, 0
	}
	for i, x := range v {
		b[i] = int8(math.RoundToEven(float64(x / most * 127)))
	}
	return b, most / 127
}

// replace puts the pieces of a record in, if its shelf is held.
func (x *index) put(r Record, pieces []Chunk) {
	x.mu.Lock()
	defer x.mu.Unlock()
	coll := x.collections[r.Collection]
	if coll == nil {
		return
	}
	made := x.segment(r, pieces)
	segments := maps.Clone(coll.segments)
	if old := segments[r.ID]; old != nil {
		coll.bytes -= old.size()
	}
	segments[r.ID] = made
	x.collections[r.Collection] = &collection{segments, coll.bytes + made.size(), coll.used}
	x.evict(r.Collection)
}

// remove takes records out; the whole shelf if ids is nil.
func (x *index) remove(shelf string, ids []engi.DocumentID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	coll := x.collections[shelf]
	if coll == nil || ids == nil {
		delete(x.collections, shelf)
		return
	}
	segments := maps.Clone(coll.segments)
	n := coll.bytes
	for _, id := range ids {
		if s := segments[id]; s != nil {
			n -= s.size()
			delete(segments, id)
		}
	}
	x.collections[shelf] = &collection{segments, n, coll.used}
}

// get returns a shelf, read from the store if it is not held. The caller
// keeps the store from changing.
func (x *index) get(ctx context.Context, shelf string) (*collection, error) {
	x.mu.Lock()
	coll := x.collections[shelf]
	if coll != nil {
		x.uses++
		coll.used = x.uses
	}
	x.mu.Unlock()
	if coll != nil {
		return coll, nil
	}
	records, err := x.store.Records(ctx, Filter{Collections: []string{shelf}})
	if err != nil {
		return nil, err
	}
	pieces, err := x.store.Vectors(ctx, shelf, "")
	if err != nil {
		return nil, err
	}
	of := map[engi.DocumentID][]Chunk{}
	for _, p := range pieces {
		of[p.Document] = append(of[p.Document], p)
	}
	coll = &collection{segments: map[engi.DocumentID]*segment{}}
	for _, r := range records {
		s := x.segment(r, of[r.ID])
		coll.segments[r.ID] = s
		coll.bytes += s.size()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.uses++
	coll.used = x.uses
	x.collections[shelf] = coll
	x.evict(shelf)
	return coll, nil
}

// evict forgets shelves that were not used for longest, keep excepted.
func (x *index) evict(keep string) {
	var sum int64
	for _, coll := range x.collections {
		sum += coll.bytes
	}
	for sum > maxIndexed && len(x.collections) > 1 {
		oldest := ""
		for name, coll := range x.collections {
			if name != keep && (oldest == "" || coll.used < x.collections[oldest].used) {
				oldest = name
			}
		}
		sum -= x.collections[oldest].bytes
		delete(x.collections, oldest)
	}
}

// A near is a piece and how like it is to the question.
type scoredChunk struct {
	id    int64
	score float32
}

// nearest returns the n pieces that are most like q, the most alike first, and
// how many there are that have no vector to compare.
func (x *index) nearest(ctx context.Context, shelves []string, pkg string, q []float32, n int) (ids []int64, missing int, err error) {
	best := make([]scoredChunk, 0, n+1)
	question, _ := quantize(q)
	for _, name := range shelves {
		coll, err := x.get(ctx, name)
		if err != nil {
			return nil, 0, err
		}
		for _, s := range coll.segments {
			if pkg != "" && !slices.Contains(s.packages, pkg) {
				continue
			}
			missing += s.missing
			if len(s.ids) == 0 || len(s.vectors)/len(s.ids) != len(q) {
				missing += len(s.ids)
				continue
			}
			for i, id := range s.ids {
				score := float32(dot(question, s.vectors[i*len(q):])) * s.scales[i]
				if len(best) == n && score <= best[n-1].score {
					continue
				}
				at, _ := slices.BinarySearchFunc(best, score, func(b scoredChunk, s float32) int { return cmp.Compare(s, b.score) })
				best = slices.Insert(best, at, scoredChunk{id, score})
				best = best[:min(len(best), n)]
			}
		}
	}
	// Documents are looked at in any order; equals are found in one.
	slices.SortStableFunc(best, func(a, b scoredChunk) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id))
	})
	for _, b := range best {
		if b.score > 0 {
			ids = append(ids, b.id)
		}
	}
	return ids, missing, nil
}

// dot multiplies a with the beginning of b, in sums that a processor makes at
// the same time.
func dot(a, b []int8) int32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 int32
	for len(a) >= 8 && len(b) >= 8 {
		x, y := (*[8]int8)(a), (*[8]int8)(b)
		s0 += int32(x[0])*int32(y[0]) + int32(x[4])*int32(y[4])
		s1 += int32(x[1])*int32(y[1]) + int32(x[5])*int32(y[5])
		s2 += int32(x[2])*int32(y[2]) + int32(x[6])*int32(y[6])
		s3 += int32(x[3])*int32(y[3]) + int32(x[7])*int32(y[7])
		a, b = a[8:], b[8:]
	}
	for i := range a {
		s0 += int32(a[i]) * int32(b[i])
	}
	return s0 + s1 + s2 + s3
}
