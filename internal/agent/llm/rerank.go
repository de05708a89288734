package llm

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"

	"github.com/engi-dev/engi/internal/engi"
)

// A Reranker scores how well texts answer a question. It is safe for concurrent
// use.
type Reranker interface {
	// Name returns provider:model.
	Name() string
	// Rerank returns one score per text; higher is better. The error kinds are
	// those of Generate.
	Rerank(ctx context.Context, owner engi.Owner, query string, texts []string) ([]float64, error)
}

// Reranker returns the configured reranker, or Unsupported if there is none. It
// uses the path /rerank below the provider's URL, like most servers of such
// models.
func (r *Registry) Reranker() (Reranker, error) {
	ref := r.opt.Rerank
	if ref == "" {
		return nil, engi.Errorf(engi.Unsupported, "no reranking model is configured").WithRemedy("set models.rerank in the configuration")
	}
	p, model, err := r.split(ref)
	if err != nil {
		return nil, err
	}
	if p.Dialect == Anthropic || p.Dialect == Gemini {
		return nil, engi.Errorf(engi.Invalid, "reranking model %s: the provider has no reranking", ref).WithRemedy("choose another provider for models.rerank")
	}
	return &reranker{registry: r, name: ref, model: model, p: p}, nil
}

type reranker struct {
	registry    *Registry
	name, model string
	p           Provider
}

const (
	maxReranked = 1000    // maximum number of texts in one request
	maxRanks    = 8 << 20 // maximum bytes of the answer, which may repeat the texts
)

func (e *reranker) Name() string { return e.name }

func (e *reranker) Rerank(ctx context.Context, owner engi.Owner, query string, texts []string) ([]float64, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	if len(texts) > maxReranked {
		return nil, engi.Errorf(engi.Invalid, "ask %s: %d texts, %d at most", e.name, len(texts), maxReranked)
	}
	if err := e.registry.checkBudget(ctx, owner); err != nil {
		return nil, err
	}
	return withRetries(ctx, e.registry, owner, e.name, func() ([]float64, engi.Tokens, error) { return e.ask(ctx, query, texts) })
}

func (e *reranker) ask(ctx context.Context, query string, texts []string) ([]float64, engi.Tokens, error) {
	raw, err := e.registry.post(ctx, e.name, e.p, e.p.URL+"/rerank", maxRanks, map[string]any{
		"model": e.model, "query": query, "documents": texts, "top_n": len(texts),
	})
	if err != nil {
		return nil, engi.Tokens{}, err
	}
	var answer struct {
		Results []struct {
			Index int      `json:"index"`
			Score *float64 `json:"relevance_score"`
		} `json:"results"`
		Usage struct {
			Total int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, engi.Tokens{}, engi.Errorf(engi.Unavailable, "ask %s: the answer is not JSON with scores", e.name)
	}
	t := engi.Tokens{Input: max(answer.Usage.Total, 0)}
	scores := make([]float64, len(texts))
	seen := make([]bool, len(texts))
	n := 0
	for _, r := range answer.Results {
		if r.Index < 0 || r.Index >= len(texts) || seen[r.Index] || r.Score == nil || math.IsInf(*r.Score, 0) {
			return nil, t, engi.Errorf(engi.Unavailable, "ask %s: the score of text %d is invalid", e.name, r.Index)
		}
		scores[r.Index], seen[r.Index] = *r.Score, true
		n++
	}
	if n != len(texts) {
		return nil, t, engi.Errorf(engi.Unavailable, "ask %s: %d scores for %d texts", e.name, n, len(texts))
	}
	return scores, t, nil
}

// post sends a request that has no format of its own, and returns at most limit bytes
// of the answer.
func (r *Registry) post(ctx context.Context, name string, p Provider, url string, limit int64, request any) ([]byte, error) {
	s := p.source(name)
	ctx, cancel := context.WithTimeout(ctx, r.opt.Timeout)
	defer cancel()
	resp, err := send(ctx, r.clientOf(p), s, url, request, func(h http.Header) { p.headers(openaiFormat{}, h) })
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, s.classify(err)
	}
	if int64(len(raw)) > limit {
		return nil, tooLong(name)
	}
	return raw, nil
}
