package docs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxQuery      = 8 << 10 // maximum bytes of a query
	maxLimit      = 50
	maxCandidates = 50 // maximum number of candidates of each method
	maxReranked   = 30

	// fusion is the constant of reciprocal rank fusion: rank r scores
	// 1/(fusion+r). Words and vectors fail on different queries, and the first result of one
	// method is more often right than a lower result of both, so the
	// constant is small; see test/quality.
	fusion = 2

	// builtInWeight is low because the built-in embedder compares words, like BM25,
	// and knows less about how rare they are.
	builtInWeight = 0.4
)

// Search implements [engi.Docs].
func (l *Index) Search(ctx context.Context, spec engi.SearchSpec) (found engi.SearchResult, err error) {
	defer engi.Annotate(&err, "search")
	spec.Mode = cmp.Or(spec.Mode, engi.SearchHybrid)
	spec.Limit = cmp.Or(spec.Limit, 5)
	spec.Text = strings.TrimSpace(spec.Text)
	switch {
	case spec.Text == "" || len(spec.Text) > maxQuery || !utf8.ValidString(spec.Text):
		return found, engi.Errorf(engi.Invalid, "the query is empty, not text, or longer than %d bytes", maxQuery)
	case spec.Limit < 1 || spec.Limit > maxLimit:
		return found, engi.Errorf(engi.Invalid, "the limit %d is not between 1 and %d", spec.Limit, maxLimit)
	case !slices.Contains([]engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword}, spec.Mode):
		return found, engi.Errorf(engi.Invalid, "unknown mode %.40q", spec.Mode).WithRemedy("use hybrid, vector or keyword")
	}
	session, err := l.sessionModules(ctx, spec.Viewer, spec.Session)
	if err != nil {
		return found, err
	}
	var notes []string
	var q []float32
	if spec.Mode != engi.SearchKeyword {
		vs, err := l.embedder.Embed(ctx, spec.Viewer.Owner(), []string{spec.Text})
		switch {
		case err == nil && len(vs) == 1:
			q, found.Embedder = vs[0], l.embedder.Name()
		case ctx.Err() != nil:
			return found, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		case spec.Mode == engi.SearchVector:
			return found, cmp.Or(err, error(engi.Errorf(engi.Unavailable, "the embedder returned no vector")))
		default:
			notes = append(notes, fmt.Sprintf("the embedding model %s does not answer: searched by words only", l.embedder.Name()))
		}
		if q != nil && found.Embedder == builtInName {
			notes = append(notes, "no embedding model is configured: the built-in one compares words, not meanings")
		}
	}
	chunks, missing, err := l.candidates(ctx, spec, session, q)
	if err != nil {
		return found, err
	}
	if missing > 0 && q != nil {
		notes = append(notes, fmt.Sprintf("%d chunks have no vectors of %s yet and are found by words only", missing, l.embedder.Name()))
	}
	if l.opt.Reranker != nil && spec.Mode == engi.SearchHybrid && len(chunks) > 1 {
		if note := l.rerank(ctx, spec, chunks[:min(len(chunks), maxReranked)]); note != "" {
			notes = append(notes, note)
		}
	}
	found.Note = strings.Join(notes, "; ")
	for i, p := range chunks[:min(len(chunks), spec.Limit)] {
		found.Hits = append(found.Hits, hit(p, 1/float64(fusion+1+i)))
	}
	return found, nil
}

// A candidate is a chunk and its record.
type candidate struct {
	Chunk
	record Record
}

// candidates returns the matching chunks, best first, and the number of chunks without a
// vector.
func (l *Index) candidates(ctx context.Context, spec engi.SearchSpec, session string, q []float32) (list []candidate, missing int, err error) {
	l.dataMu.RLock()
	defer l.dataMu.RUnlock()
	named, all := l.visible(spec, session)
	n := max(maxCandidates, spec.Limit)
	byWords, byVector := make(chan error, 1), make(chan error, 1)
	var words, similar []int64
	go func() {
		var err error
		if ts := queryTerms(spec.Text); spec.Mode != engi.SearchVector && len(ts) > 0 {
			words, err = l.opt.Store.Match(ctx, Query{Collections: named, Package: spec.Package, Words: ts, Limit: n})
		}
		byWords <- err
	}()
	go func() {
		var err error
		if q != nil {
			similar, missing, err = l.index.nearest(ctx, all, spec.Package, q, n)
		}
		byVector <- err
	}()
	if err := cmp.Or(<-byWords, <-byVector); err != nil {
		return nil, 0, err
	}
	weight := 1.0
	if l.embedder.Name() == builtInName {
		weight = builtInWeight
		if similar, err = l.resembling(ctx, spec.Text, similar, words); err != nil {
			return nil, 0, err
		}
	}
	ids := fuse(words, similar, weight)
	n = spec.Limit
	if l.opt.Reranker != nil {
		n = max(n, maxReranked)
	}
	ids = ids[:min(len(ids), n)]
	found, err := l.opt.Store.Chunks(ctx, ids)
	if err != nil {
		return nil, 0, err
	}
	return l.withRecords(ctx, ids, found, missing)
}

// resembling returns the chunks of similar that have a word of a text, or a word much
// like it: by chance, vectors of the built-in embedder are always a little similar. Chunks
// that were found by words have such a word.
func (l *Index) resembling(ctx context.Context, text string, similar, byWords []int64) ([]int64, error) {
	have := make(map[int64]bool, len(similar))
	var unknown []int64
	for _, id := range similar {
		if have[id] = slices.Contains(byWords, id); !have[id] {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) == 0 {
		return similar, nil
	}
	chunks, err := l.opt.Store.Chunks(ctx, unknown)
	if err != nil {
		return nil, err
	}
	terms := queryTerms(text)
	for _, c := range chunks {
		have[c.ID] = resembles(terms, strings.Join(c.Headings, " ")+" "+c.Text)
	}
	return slices.DeleteFunc(similar, func(id int64) bool { return !have[id] }), nil
}

// withRecords returns chunks in the order of ids, with their records.
func (l *Index) withRecords(ctx context.Context, ids []int64, found []Chunk, missing int) ([]candidate, int, error) {
	byID := make(map[int64]Chunk, len(found))
	of := []engi.DocumentID{}
	for _, p := range found {
		byID[p.ID] = p
		if !slices.Contains(of, p.Document) {
			of = append(of, p.Document)
		}
	}
	records, err := l.opt.Store.Records(ctx, Filter{IDs: of})
	if err != nil {
		return nil, 0, err
	}
	byDocument := make(map[engi.DocumentID]Record, len(records))
	for _, r := range records {
		byDocument[r.ID] = r
	}
	var list []candidate
	for _, id := range ids {
		p, ok := byID[id]
		r, known := byDocument[p.Document]
		if ok && known {
			list = append(list, candidate{p, r})
		}
	}
	return list, missing, nil
}

// visible returns the collections that spec searches, in two forms: as named in a
// query, where Everywhere may represent them, and each by name.
func (l *Index) visible(spec engi.SearchSpec, session string) (named, all []string) {
	if spec.Viewer == engi.Everyone {
		named = []string{Everywhere}
		l.mu.Lock()
		for s := range l.collections {
			if !IsSessionCollection(s) {
				all = append(all, s)
			}
		}
		l.mu.Unlock()
	} else {
		owner := spec.Viewer.Owner()
		named = []string{documentCollection(""), userCollection(owner)}
		if owner != "" {
			named = append(named, documentCollection(owner))
		}
		all = slices.Clone(named)
	}
	if session != "" {
		named, all = append(named, session), append(all, session)
	}
	return named, all
}

// fuse merges two ranked lists by reciprocal rank fusion; weight is that of the
// second list. Ties keep the order of the first.
func fuse(first, second []int64, weight float64) []int64 {
	scores := make(map[int64]float64, len(first)+len(second))
	ids := make([]int64, 0, len(first)+len(second))
	add := func(list []int64, weight float64) {
		for r, id := range list {
			if _, ok := scores[id]; !ok {
				ids = append(ids, id)
			}
			scores[id] += weight / float64(fusion+1+r)
		}
	}
	add(first, 1)
	add(second, weight)
	slices.SortStableFunc(ids, func(a, b int64) int { return cmp.Compare(scores[b], scores[a]) })
	return ids
}

// rerank sorts list by the reranker's scores, or returns a note with the reason why it could
// not.
func (l *Index) rerank(ctx context.Context, spec engi.SearchSpec, list []candidate) (note string) {
	texts := make([]string, len(list))
	for i, c := range list {
		texts[i] = embeddingText(c.record.Title, c.Chunk)
	}
	scores, err := l.opt.Reranker.Rerank(ctx, spec.Viewer.Owner(), spec.Text, texts)
	if err != nil || len(scores) != len(list) {
		l.log.Warn("rerank", "reranker", l.opt.Reranker.Name(), "error", err)
		return fmt.Sprintf("the reranker %s does not answer", l.opt.Reranker.Name())
	}
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	sorted := make([]candidate, len(list))
	for i, o := range order {
		sorted[i] = list[o]
	}
	copy(list, sorted)
	return ""
}

func hit(c candidate, score float64) engi.SearchHit {
	h := engi.SearchHit{Title: c.record.Title, Package: c.record.Package, Headings: c.Headings, Text: c.Text, Score: score}
	if c.record.Module != nil {
		m := *c.record.Module
		h.Module, h.Title = &m, m.Path
		return h
	}
	h.Document, h.URL = c.record.ID, c.record.URL
	if h.URL != "" && c.Anchor != "" && !strings.Contains(h.URL, "#") {
		h.URL += "#" + c.Anchor
	}
	return h
}
