package llm

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// A Dialect is a wire format.
type Dialect string

const (
	OpenAI     Dialect = "openai"     // chat completions, with JSON schemas of their own
	Compatible Dialect = "compatible" // chat completions as others offer them
	Anthropic  Dialect = "anthropic"
	Gemini     Dialect = "gemini"
)

// A Provider is somebody who runs models.
type Provider struct {
	Dialect Dialect           // empty means that of the known name, else compatible
	URL     string            // empty means that of the known name
	Key     string            // empty for those that need none
	Headers map[string]string // added to every request
	Client  *http.Client      // instead of that of the options; may be nil
}

// known are the providers that need nothing but a key.
var known = map[string]Provider{
	"openai":    {Dialect: OpenAI, URL: "https://api.openai.com/v1"},
	"anthropic": {Dialect: Anthropic, URL: "https://api.anthropic.com"},
	"gemini":    {Dialect: Gemini, URL: "https://generativelanguage.googleapis.com"},
	"ollama":    {Dialect: Compatible, URL: "http://127.0.0.1:11434/v1"},
	"mistral":   {Dialect: Compatible, URL: "https://api.mistral.ai/v1"},
	"groq":      {Dialect: Compatible, URL: "https://api.groq.com/openai/v1"},
}

// A Price is what a million tokens cost, in any currency.
type Price struct{ Input, Output, CacheRead, CacheWrite float64 }

// Options configure a Registry.
type Options struct {
	Providers map[string]Provider // by the name before the colon
	Default   string              // provider:model for callers that do not choose; empty means there is none
	Fallbacks map[string][]string // by provider:model: asked in this order when it fails for a passing reason
	Prices    map[string]Price    // by provider:model, or provider:* for all others of it
	Embedding string              // provider:model of [Registry.Embedder]
	Rerank    string              // provider:model of [Registry.Reranker]

	Attempts int           // per model, the first included; 0 means 3
	Timeout  time.Duration // of one attempt; 0 means 5 min
	Quiet    time.Duration // longest silence of an answer that is on its way; 0 means 60 s
	Pause    time.Duration // before the second attempt, doubled before each later one; 0 means 500 ms

	// Client makes the requests; nil means one with the system's proxy.
	Client *http.Client
	// Spend is told what every attempt cost, failed ones included; nil if
	// nobody wants to know. It must be quick.
	Spend func(Call)
	// Afford reports Exhausted when owner's budget is used up; nil if there
	// are none.
	Afford func(ctx context.Context, owner engi.Owner) error
}

// A Call is one attempt to get an answer.
type Call struct {
	Owner  engi.Owner
	Model  string
	Tokens engi.Tokens
	Took   time.Duration
	Err    error // nil if it was answered
}

// A Registry makes models by name. It is safe for concurrent use.
type Registry struct {
	opt  Options
	mu   sync.Mutex
	made map[string]Model
}

// New returns a registry. It reports Invalid for a configuration that cannot
// work, naming the provider.
func New(opt Options) (*Registry, error) {
	if opt.Client == nil {
		opt.Client = &http.Client{}
	}
	if opt.Attempts == 0 {
		opt.Attempts = 3
	}
	or(&opt.Timeout, 5*time.Minute)
	or(&opt.Quiet, time.Minute)
	or(&opt.Pause, 500*time.Millisecond)
	providers := make(map[string]Provider, len(opt.Providers))
	for name, p := range opt.Providers {
		if name == "" || strings.ContainsAny(name, ": \t\r\n") {
			return nil, engi.Errorf(engi.Invalid, "provider %.40q has no name that can be used", name)
		}
		k := known[name]
		if p.Dialect == "" {
			p.Dialect = k.Dialect
		}
		if p.Dialect == "" {
			p.Dialect = Compatible
		}
		if p.URL == "" {
			p.URL = k.URL
		}
		switch {
		case formats[p.Dialect] == nil:
			return nil, engi.Errorf(engi.Invalid, "provider %s speaks %.40q, which is unknown", name, p.Dialect).
				WithRemedy("use openai, compatible, anthropic or gemini")
		case p.URL == "":
			return nil, engi.Errorf(engi.Invalid, "provider %s has no URL", name).WithRemedy("set its url")
		case !strings.HasPrefix(p.URL, "https://") && !strings.HasPrefix(p.URL, "http://"):
			return nil, engi.Errorf(engi.Invalid, "the URL of provider %s is none", name).WithRemedy("begin it with https:// or http://")
		}
		p.URL = strings.TrimRight(p.URL, "/")
		providers[name] = p
	}
	opt.Providers = providers
	r := &Registry{opt: opt, made: map[string]Model{}}
	for _, refs := range append(slices.Collect(maps.Values(opt.Fallbacks)), slices.Collect(maps.Keys(opt.Fallbacks)), []string{opt.Default, opt.Embedding, opt.Rerank}) {
		for _, ref := range refs {
			if ref == "" {
				continue
			}
			if _, _, err := r.split(ref); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func or(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

// Default returns the name of the model for callers that do not choose; empty
// if there is none.
func (r *Registry) Default() string { return r.opt.Default }

// Providers returns the names of providers.
func (r *Registry) Providers() []string { return slices.Sorted(maps.Keys(r.opt.Providers)) }

func (r *Registry) split(ref string) (Provider, string, error) {
	name, model, ok := strings.Cut(ref, ":")
	if !ok || name == "" || model == "" || len(ref) > 200 {
		return Provider{}, "", engi.Errorf(engi.Invalid, "%.80q is no model", ref).WithRemedy("name it provider:model, like openai:gpt-4o")
	}
	p, ok := r.opt.Providers[name]
	if !ok {
		e := engi.Errorf(engi.Invalid, "model %.80s: there is no provider %.40s", ref, name)
		if _, ok := known[name]; ok {
			return p, "", e.WithRemedy("add [providers.%s] with its api_key_env to the configuration", name)
		}
		return p, "", e.WithRemedy("choose one of %s, or add [providers.%.40s] to the configuration", strings.Join(r.Providers(), ", "), name)
	}
	return p, model, nil
}

// Model returns the model of a name, provider:model; empty means the default.
// It repeats what fails for a passing reason, then tries the model's
// fallbacks. It reports Invalid for a name of no model.
func (r *Registry) Model(ref string) (Model, error) {
	if ref == "" {
		ref = r.opt.Default
	}
	if ref == "" {
		return nil, engi.Errorf(engi.Unsupported, "no model is configured").
			WithRemedy("add [providers.NAME] and models.default to the configuration")
	}
	chain := append([]string{ref}, r.opt.Fallbacks[ref]...)
	models := make([]Model, len(chain))
	for i, ref := range chain {
		m, err := r.single(ref)
		if err != nil {
			return nil, err
		}
		models[i] = m
	}
	return &patient{reg: r, models: models}, nil
}

func (r *Registry) single(ref string) (Model, error) {
	p, model, err := r.split(ref)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.made[ref]; m != nil {
		return m, nil
	}
	if len(r.made) >= maxMade {
		clear(r.made)
	}
	made := &remote{name: ref, model: model, provider: p, client: r.clientOf(p), format: formats[p.Dialect], quiet: r.opt.Quiet, native: p.Dialect == Gemini}
	r.made[ref] = made
	return made, nil
}

// maxMade bounds the models remembered: their names come from callers.
const maxMade = 256

// clientOf returns the client for requests to a provider.
func (r *Registry) clientOf(p Provider) *http.Client {
	if p.Client != nil {
		return p.Client
	}
	return r.opt.Client
}

var formats = map[Dialect]format{OpenAI: openaiFormat{}, Compatible: openaiFormat{}, Anthropic: anthropicFormat{}, Gemini: geminiFormat{}}

// price returns what tokens of a model cost, in millionths.
func (r *Registry) price(ref string, t engi.Tokens) int64 {
	p, ok := r.opt.Prices[ref]
	if !ok {
		provider, _, _ := strings.Cut(ref, ":")
		p = r.opt.Prices[provider+":*"]
	}
	// Prices are per million tokens, costs in millionths: the factors cancel.
	return int64(p.Input*float64(t.Input) + p.Output*float64(t.Output) + p.CacheRead*float64(t.CacheRead) + p.CacheWrite*float64(t.CacheWrite))
}
