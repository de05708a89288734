package llm

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// Embedder returns the configured embedder, or Unsupported if there is none. All
// dialects but Anthropic's serve embeddings in OpenAI's format.
func (r *Registry) Embedder() (Embedder, error) {
	ref := r.opt.Embedding
	if ref == "" {
		return nil, engi.Errorf(engi.Unsupported, "no embedding model is configured").WithRemedy("set models.embedding in the configuration")
	}
	p, model, err := r.split(ref)
	if err != nil {
		return nil, err
	}
	url := p.URL + "/embeddings"
	switch p.Dialect {
	case Anthropic:
		return nil, engi.Errorf(engi.Invalid, "embedding model %s: the provider has no embeddings", ref).WithRemedy("choose another provider for models.embedding")
	case Gemini:
		url = p.URL + "/v1beta/openai/embeddings"
	}
	return &embedder{registry: r, name: ref, model: model, url: url, p: p}, nil
}

type embedder struct {
	registry         *Registry
	name, model, url string
	p                Provider
}

func (e *embedder) Name() string { return e.name }

const (
	maxEmbed     = 64 // maximum number of texts in one request
	maxVectors   = 64 << 20
	maxDimension = 8192
)

func (e *embedder) Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error) {
	if err := e.registry.checkBudget(ctx, owner); err != nil {
		return nil, err
	}
	all := make([][]float32, 0, len(texts))
	for len(texts) > 0 {
		n := min(len(texts), maxEmbed)
		part, err := withRetries(ctx, e.registry, owner, e.name, func() ([][]float32, engi.Tokens, error) { return e.ask(ctx, texts[:n]) })
		if err != nil {
			return nil, err
		}
		for _, v := range part {
			if len(all) > 0 && len(v) != len(all[0]) {
				return nil, engi.Errorf(engi.Unavailable, "ask %s: vectors of both %d and %d dimensions", e.name, len(all[0]), len(v))
			}
			all = append(all, v)
		}
		texts = texts[n:]
	}
	return all, nil
}

// withRetries calls ask until it succeeds or a retry is pointless, and
// reports each attempt to OnCall.
func withRetries[T any](ctx context.Context, r *Registry, owner engi.Owner, name string, ask func() (T, engi.Tokens, error)) (answer T, err error) {
	pause := r.opt.Backoff
	for attempt := range r.opt.Attempts {
		if attempt > 0 {
			if clock.Sleep(ctx, min(max(pause, time.Duration(engi.RetryOf(err).AfterMillis)*time.Millisecond), maxWait)) != nil {
				return answer, source{name: name}.classify(ctx.Err())
			}
			pause *= 2
		}
		began := time.Now()
		var t engi.Tokens
		answer, t, err = ask()
		t.Calls = 1
		t.Cost = r.price(name, t)
		if r.opt.OnCall != nil {
			r.opt.OnCall(Call{Owner: owner, Model: name, Tokens: t, Took: time.Since(began), Err: err})
		}
		if err == nil || !temporary(err) || ctx.Err() != nil {
			break
		}
	}
	return answer, err
}

func (e *embedder) ask(ctx context.Context, texts []string) ([][]float32, engi.Tokens, error) {
	raw, err := e.registry.post(ctx, e.name, e.p, e.url, maxVectors, map[string]any{"model": e.model, "input": texts, "encoding_format": "float"})
	if err != nil {
		return nil, engi.Tokens{}, err
	}
	var answer struct {
		Data []struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int64 `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, engi.Tokens{}, engi.Errorf(engi.Unavailable, "ask %s: the answer is not JSON with vectors", e.name)
	}
	t := engi.Tokens{Input: max(answer.Usage.Prompt, 0)}
	vs := make([][]float32, len(texts))
	for _, d := range answer.Data {
		if d.Index < 0 || d.Index >= len(vs) || len(d.Embedding) == 0 || len(d.Embedding) > maxDimension {
			return nil, t, engi.Errorf(engi.Unavailable, "ask %s: vector %d of %d dimensions", e.name, d.Index, len(d.Embedding))
		}
		if !normalize(d.Embedding) {
			return nil, t, engi.Errorf(engi.Unavailable, "ask %s: vector %d has no direction", e.name, d.Index)
		}
		vs[d.Index] = d.Embedding
	}
	for i, v := range vs {
		if v == nil {
			return nil, t, engi.Errorf(engi.Unavailable, "ask %s: vector %d of %d is missing", e.name, i, len(vs))
		}
	}
	return vs, t, nil
}

// normalize scales v to length 1. It reports false for a vector without a
// direction.
func normalize(v []float32) bool {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		return false
	}
	f := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= f
	}
	return true
}
