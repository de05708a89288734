package docs

import (
	"context"
	"maps"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
)

const embedBatch = 64 // number of texts per request

// reuseVectors copies the vectors of equal chunks of the old record to chunks.
func (l *Index) reuseVectors(ctx context.Context, old Record, chunks []Chunk) error {
	if old.ID == "" {
		return nil
	}
	had, err := l.opt.Store.Vectors(ctx, old.Collection, old.ID)
	if err != nil {
		return err
	}
	vectors := map[string][]float32{}
	for _, p := range had {
		if p.Embedder == l.embedder.Name() {
			vectors[p.Hash] = p.Vector
		}
	}
	for i := range chunks {
		if v := vectors[chunks[i].Hash]; v != nil {
			chunks[i].Vector, chunks[i].Embedder = v, l.embedder.Name()
		}
	}
	return nil
}

// embedMissing computes the missing vectors of chunks. If the embedder fails, the
// document is found by words only, and embedPending tries again.
func (l *Index) embedMissing(ctx context.Context, owner engi.Owner, title string, chunks []Chunk) {
	var rest []int
	for i := range chunks {
		if chunks[i].Vector == nil {
			rest = append(rest, i)
		}
	}
	for some := range slices.Chunk(rest, embedBatch) {
		texts := make([]string, len(some))
		for i, at := range some {
			texts[i] = embeddingText(title, chunks[at])
		}
		vs, err := l.vectors(ctx, owner, texts)
		if err != nil {
			l.log.Warn("embed", "embedder", l.embedder.Name(), "error", err)
			return
		}
		for i, at := range some {
			chunks[at].Vector, chunks[at].Embedder = vs[i], l.embedder.Name()
		}
	}
}

// vectors returns one vector per text.
func (l *Index) vectors(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error) {
	vs, err := l.embedder.Embed(ctx, owner, texts)
	if err == nil && len(vs) != len(texts) {
		err = engi.Errorf(engi.Unavailable, "%d vectors for %d texts", len(vs), len(texts))
	}
	return vs, err
}

// embedPending computes, until ctx ends, vectors of chunks that have none of the
// current embedder, because the embedder is new or has failed before.
func (l *Index) embedPending(ctx context.Context) {
	l.wakeEmbedder()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		collections := maps.Clone(l.collections)
		l.mu.Unlock()
		for collection, owner := range collections {
			if err := l.embedCollection(ctx, collection, owner); err != nil && ctx.Err() == nil {
				l.log.Warn("embed chunks without vectors", "embedder", l.embedder.Name(), "error", err)
				break // Run will wake it again
			}
		}
	}
}

func (l *Index) embedCollection(ctx context.Context, collection string, owner engi.Owner) error {
	have, err := l.opt.Store.Vectors(ctx, collection, "")
	if err != nil {
		return err
	}
	var ids []int64
	for _, p := range have {
		if p.Embedder != l.embedder.Name() {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	records, err := l.opt.Store.Records(ctx, Filter{Collections: []string{collection}})
	if err != nil {
		return err
	}
	titles := map[engi.DocumentID]string{}
	for _, r := range records {
		if r.Module == nil {
			titles[r.ID] = r.Title
		}
	}
	for some := range slices.Chunk(ids, embedBatch) {
		chunks, err := l.opt.Store.Chunks(ctx, some)
		if err != nil || len(chunks) == 0 {
			return err
		}
		texts := make([]string, len(chunks))
		for i, p := range chunks {
			texts[i] = embeddingText(titles[p.Document], p)
		}
		vs, err := l.vectors(ctx, owner, texts)
		if err != nil {
			return err
		}
		vectors := map[int64][]float32{}
		for i, p := range chunks {
			vectors[p.ID] = vs[i]
		}
		if err := l.setVectors(ctx, collection, vectors); err != nil {
			return err
		}
	}
	return nil
}

func (l *Index) setVectors(ctx context.Context, collection string, vectors map[int64][]float32) error {
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	if err := l.opt.Store.SetVectors(ctx, l.embedder.Name(), vectors); err != nil {
		return err
	}
	l.index.remove(collection, nil)
	return nil
}
