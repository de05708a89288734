package docs

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// maxIndexed is the maximum number of bytes of vectors in memory. Collections that do
// not fit are read from the store again for each search.
const maxIndexed = 512 << 20

// An Index caches the vectors of the most recently searched collections.
// Comparing a query with ten thousand vectors takes a few milliseconds; reading
// them from the database would take longer.
type index struct {
	store    Store
	embedder string

	mu          sync.Mutex
	collections map[string]*vectorSet
	uses        int64
}

// A vectorSet holds the vectors of one collection.
type vectorSet struct {
	segments map[engi.DocumentID]*segment // never modified
	bytes    int64
	used     int64
}

// A segment holds the vectors of one document. It is immutable. A vector is
// quantized to bytes and a scale: this takes a quarter of the memory, with an error of about
// a thousandth, which does not matter for embeddings.
type segment struct {
	packages []string
	ids      []int64
	scales   []float32
	vectors  []int8 // concatenated
	missing  int    // number of chunks without a vector of this embedder
}

func newIndex(s Store, embedder string) *index {
	return &index{store: s, embedder: embedder, collections: map[string]*vectorSet{}}
}

func (x *index) segment(r Record, chunks []Chunk) *segment {
	s := &segment{packages: r.Packages()}
	for _, p := range chunks {
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

// quantize returns v as bytes, and the scale that restores it.
func quantize(v []float32) ([]int8, float32) {
	var peak float32
	for _, x := range v {
		peak = max(peak, x, -x)
	}
	b := make([]int8, len(v))
	if !(peak > 0) || math.IsInf(float64(peak), 0) {
		return b, 0
	}
	for i, x := range v {
		b[i] = int8(math.RoundToEven(float64(x / peak * 127)))
	}
	return b, peak / 127
}

// put replaces the chunks of a record, if its collection is cached.
func (x *index) put(r Record, chunks []Chunk) {
	x.mu.Lock()
	defer x.mu.Unlock()
	coll := x.collections[r.Collection]
	if coll == nil {
		return
	}
	made := x.segment(r, chunks)
	segments := maps.Clone(coll.segments)
	if old := segments[r.ID]; old != nil {
		coll.bytes -= old.size()
	}
	segments[r.ID] = made
	x.collections[r.Collection] = &vectorSet{segments, coll.bytes + made.size(), coll.used}
	x.evict(r.Collection)
}

// remove removes records; the whole collection if ids is nil.
func (x *index) remove(collection string, ids []engi.DocumentID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	coll := x.collections[collection]
	if coll == nil || ids == nil {
		delete(x.collections, collection)
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
	x.collections[collection] = &vectorSet{segments, n, coll.used}
}

// get returns a collection, which it reads from the store if it is not cached. The caller prevents
// concurrent changes of the store.
func (x *index) get(ctx context.Context, collection string) (*vectorSet, error) {
	x.mu.Lock()
	coll := x.collections[collection]
	if coll != nil {
		x.uses++
		coll.used = x.uses
	}
	x.mu.Unlock()
	if coll != nil {
		return coll, nil
	}
	records, err := x.store.Records(ctx, Filter{Collections: []string{collection}})
	if err != nil {
		return nil, err
	}
	chunks, err := x.store.Vectors(ctx, collection, "")
	if err != nil {
		return nil, err
	}
	byDocument := map[engi.DocumentID][]Chunk{}
	for _, p := range chunks {
		byDocument[p.Document] = append(byDocument[p.Document], p)
	}
	coll = &vectorSet{segments: map[engi.DocumentID]*segment{}}
	for _, r := range records {
		s := x.segment(r, byDocument[r.ID])
		coll.segments[r.ID] = s
		coll.bytes += s.size()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.uses++
	coll.used = x.uses
	x.collections[collection] = coll
	x.evict(collection)
	return coll, nil
}

// evict drops the least recently used collections, except keep, until the others
// fit.
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

// A scoredChunk is a chunk and its similarity to a query.
type scoredChunk struct {
	id    int64
	score float32
}

// nearest returns the n chunks that are most similar to q, best first, and the
// number of chunks without a vector.
func (x *index) nearest(ctx context.Context, collections []string, pkg string, q []float32, n int) (ids []int64, missing int, err error) {
	best := make([]scoredChunk, 0, n+1)
	query, _ := quantize(q)
	for _, name := range collections {
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
				score := float32(dot(query, s.vectors[i*len(q):])) * s.scales[i]
				if len(best) == n && score <= best[n-1].score {
					continue
				}
				at, _ := slices.BinarySearchFunc(best, score, func(b scoredChunk, s float32) int { return cmp.Compare(s, b.score) })
				best = slices.Insert(best, at, scoredChunk{id, score})
				best = best[:min(len(best), n)]
			}
		}
	}
	// Segments are visited in random order: make ties deterministic.
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

// dot returns the dot product of a and the beginning of b. It uses four sums,
// which processors compute in parallel.
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
