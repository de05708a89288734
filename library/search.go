package library

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

const (
	maxQuestion   = 8 << 10 // bytes
	maxLimit      = 50
	maxCandidates = 50 // of each half of a search
	maxReranked   = 30

	// Of two lists, a place r counts 1/(fusion+r). Words and likeness fail on
	// different questions: what one of them has first is more often right than
	// what both have somewhere, so the number is small (test/quality).
	fusion = 2

	// The built-in embedder compares what BM25 compares, and knows less of how
	// rare a word is.
	builtInWeight = 0.4
)

// Search implements [engi.Library].
func (l *Library) Search(ctx context.Context, spec engi.SearchSpec) (found engi.SearchResult, err error) {
	defer engi.Annotate(&err, "search")
	spec.Mode = cmp.Or(spec.Mode, engi.SearchHybrid)
	spec.Limit = cmp.Or(spec.Limit, 5)
	spec.Text = strings.TrimSpace(spec.Text)
	switch {
	case spec.Text == "" || len(spec.Text) > maxQuestion || !utf8.ValidString(spec.Text):
		return found, engi.Errorf(engi.Invalid, "the question is empty, no text, or longer than %d bytes", maxQuestion)
	case spec.Limit < 1 || spec.Limit > maxLimit:
		return found, engi.Errorf(engi.Invalid, "limit is %d, it is from 1 to %d", spec.Limit, maxLimit)
	case !slices.Contains([]engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword}, spec.Mode):
		return found, engi.Errorf(engi.Invalid, "%.40q is no mode", spec.Mode).WithRemedy("use hybrid, vector or keyword")
	}
	session, err := l.sessionModules(ctx, spec.Owner, spec.Session)
	if err != nil {
		return found, err
	}
	var notes []string
	var q []float32
	if spec.Mode != engi.SearchKeyword {
		vs, err := l.embedder.Embed(ctx, spec.Owner, []string{spec.Text})
		switch {
		case err == nil && len(vs) == 1:
			q, found.Embedder = vs[0], l.embedder.Name()
		case ctx.Err() != nil:
			return found, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		case spec.Mode == engi.SearchVector:
			return found, cmp.Or(err, error(engi.Errorf(engi.Unavailable, "the embedder gives no vector")))
		default:
			notes = append(notes, fmt.Sprintf("the embedding model %s does not answer: searched by words only", l.embedder.Name()))
		}
		if q != nil && found.Embedder == builtInName {
			notes = append(notes, "no embedding model is configured: the built-in one compares words, not meanings")
		}
	}
	pieces, missing, err := l.candidates(ctx, spec, session, q)
	if err != nil {
		return found, err
	}
	if missing > 0 && q != nil {
		notes = append(notes, fmt.Sprintf("%d pieces wait for vectors of %s and are found by words only", missing, l.embedder.Name()))
	}
	if l.opt.Reranker != nil && spec.Mode == engi.SearchHybrid && len(pieces) > 1 {
		if note := l.rerank(ctx, spec, pieces[:min(len(pieces), maxReranked)]); note != "" {
			notes = append(notes, note)
		}
	}
	found.Note = strings.Join(notes, "; ")
	for i, p := range pieces[:min(len(pieces), spec.Limit)] {
		found.Hits = append(found.Hits, hit(p, 1/float64(fusion+1+i)))
	}
	return found, nil
}

// A candidate is a piece and what it is of.
type candidate struct {
	Chunk
	record Record
}

// candidates are the pieces that may answer, the best first.
func (l *Library) candidates(ctx context.Context, spec engi.SearchSpec, session string, q []float32) (list []candidate, missing int, err error) {
	l.dataMu.RLock()
	defer l.dataMu.RUnlock()
	named, all := l.visible(spec.Owner, session)
	n := max(maxCandidates, spec.Limit)
	byWords, byLikeness := make(chan error, 1), make(chan error, 1)
	var words, likes []int64
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
			likes, missing, err = l.index.nearest(ctx, all, spec.Package, q, n)
		}
		byLikeness <- err
	}()
	if err := cmp.Or(<-byWords, <-byLikeness); err != nil {
		return nil, 0, err
	}
	weight := 1.0
	if l.embedder.Name() == builtInName {
		weight = builtInWeight
	}
	ids := fuse(words, likes, weight)
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

// inOrder gives pieces the order of ids and their records.
func (l *Library) withRecords(ctx context.Context, ids []int64, found []Chunk, missing int) ([]candidate, int, error) {
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

// visible are the shelves that owner finds things on: as a query names them,
// and each by its name.
func (l *Library) visible(owner engi.Owner, session string) (named, all []string) {
	if owner == "" {
		named = []string{Everywhere}
		l.mu.Lock()
		for s := range l.collections {
			if !IsSessionCollection(s) {
				all = append(all, s)
			}
		}
		l.mu.Unlock()
	} else {
		named = []string{documentCollection(owner), documentCollection(""), userCollection(owner)}
		all = slices.Clone(named)
	}
	if session != "" {
		named, all = append(named, session), append(all, session)
	}
	return named, all
}

// fuse joins two ranked lists by reciprocal ranks, those of the second times
// its weight. What is first in the first wins among equals.
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

// rerank puts what answers best first, or says why it could not.
func (l *Library) rerank(ctx context.Context, spec engi.SearchSpec, list []candidate) (note string) {
	texts := make([]string, len(list))
	for i, c := range list {
		texts[i] = embeddingText(c.record.Title, c.Chunk)
	}
	scores, err := l.opt.Reranker.Rerank(ctx, spec.Owner, spec.Text, texts)
	if err != nil || len(scores) != len(list) {
		l.log.Warn("rerank", "reranker", l.opt.Reranker.Name(), "err", err)
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
