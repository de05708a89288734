package llm

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Dialect is a wire format.
type Dialect string

const (
	OpenAI     Dialect = "openai"     // chat completions, with JSON schemas as OpenAI restricts them
	Responses  Dialect = "responses"  // OpenAI's responses
	Compatible Dialect = "compatible" // chat completions as other providers offer them
	Anthropic  Dialect = "anthropic"
	Gemini     Dialect = "gemini"
)

// A Provider is a server of models.
type Provider struct {
	Dialect Dialect           // empty means the dialect of the well-known provider of this name, else compatible
	URL     string            // empty means the URL of the well-known provider of this name
	Key     string            // empty if the provider needs none
	Headers map[string]string // added to every request
	Client  *http.Client      // overrides that of the options; may be nil
}

// known holds the well-known providers, which need only a key.
var known = map[string]Provider{
	"openai":    {Dialect: OpenAI, URL: "https://api.openai.com/v1"},
	"anthropic": {Dialect: Anthropic, URL: "https://api.anthropic.com"},
	"gemini":    {Dialect: Gemini, URL: "https://generativelanguage.googleapis.com"},
	"ollama":    {Dialect: Compatible, URL: "http://127.0.0.1:11434/v1"},
	"mistral":   {Dialect: Compatible, URL: "https://api.mistral.ai/v1"},
	"groq":      {Dialect: Compatible, URL: "https://api.groq.com/openai/v1"},
}

// A Price is the price of a million tokens, in any currency.
type Price struct{ Input, Output, CacheRead, CacheWrite float64 }

// Options configures a Registry.
type Options struct {
	Providers map[string]Provider // providers by the name before the colon
	Default   string              // provider:model for callers that name none; empty means that there is no default
	Fallbacks map[string][]string // models to try in this order after a temporary failure, by provider:model
	Prices    map[string]Price    // prices by provider:model, or provider:* for all other models of a provider
	Embedding string              // provider:model of [Registry.Embedder]
	Rerank    string              // provider:model of [Registry.Reranker]

	Attempts    int           // maximum attempts per model, including the first; 0 means 3
	Timeout     time.Duration // maximum time of one attempt; 0 means 5 min
	IdleTimeout time.Duration // maximum pause within a streamed answer; 0 means 60 s
	Backoff     time.Duration // time before the second attempt, doubled before each later one; 0 means 500 ms

	// Client makes the requests; nil means a client with the system's proxy. Its
	// CheckRedirect does not apply: redirects are not followed.
	Client *http.Client
	// OnCall, if not nil, is called after every attempt, including failed ones.
	// It must return quickly.
	OnCall func(Call)
	// CheckBudget reports Exhausted if owner's budget is used up; nil means that there are no
	// budgets.
	CheckBudget func(ctx context.Context, owner engi.Owner) error
}

// A Call is one attempt to get an answer.
type Call struct {
	Owner  engi.Owner
	Model  string
	Tokens engi.Tokens
	Took   time.Duration
	Err    error // nil if the attempt succeeded
}

// A Registry makes models by name. It is safe for concurrent use.
type Registry struct {
	opt  Options
	mu   sync.Mutex
	made map[string]Model
}

// New returns a registry. It reports Invalid for an invalid configuration, naming
// the provider.
func New(opt Options) (*Registry, error) {
	if opt.Client == nil {
		opt.Client = &http.Client{}
	}
	opt.Attempts = cmp.Or(opt.Attempts, 3)
	opt.Timeout = cmp.Or(opt.Timeout, 5*time.Minute)
	opt.IdleTimeout = cmp.Or(opt.IdleTimeout, time.Minute)
	opt.Backoff = cmp.Or(opt.Backoff, 500*time.Millisecond)
	providers := make(map[string]Provider, len(opt.Providers))
	for name, p := range opt.Providers {
		if name == "" || strings.ContainsAny(name, ": \t\r\n") {
			return nil, engi.Errorf(engi.Invalid, "%.40q is not a name for a provider", name)
		}
		k := known[name]
		p.Dialect = cmp.Or(p.Dialect, k.Dialect, Compatible)
		p.URL = cmp.Or(p.URL, k.URL)
		switch {
		case formats[p.Dialect] == nil:
			return nil, engi.Errorf(engi.Invalid, "provider %s has the unknown dialect %.40q", name, p.Dialect).
				WithRemedy("use openai, responses, compatible, anthropic or gemini")
		case p.URL == "":
			return nil, engi.Errorf(engi.Invalid, "provider %s has no URL", name).WithRemedy("set its url")
		case !strings.HasPrefix(p.URL, "https://") && !strings.HasPrefix(p.URL, "http://"):
			return nil, engi.Errorf(engi.Invalid, "the URL of provider %s is not http or https", name).WithRemedy("begin it with https:// or http://")
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

// Default returns the name of the default model; empty if there is none.
func (r *Registry) Default() string { return r.opt.Default }

// Providers returns the names of providers.
func (r *Registry) Providers() []string { return slices.Sorted(maps.Keys(r.opt.Providers)) }

func (r *Registry) split(ref string) (Provider, string, error) {
	name, model, ok := strings.Cut(ref, ":")
	if !ok || name == "" || model == "" || len(ref) > 200 {
		return Provider{}, "", engi.Errorf(engi.Invalid, "%.80q does not name a model", ref).WithRemedy("write provider:model, like openai:gpt-4o")
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

// Model returns the model named provider:model, or the default for an empty
// name. The model retries temporary failures and then tries its fallbacks. It
// reports Invalid for an unknown name.
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
	return &retryingModel{registry: r, models: models}, nil
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
	made := &remote{source: p.source(ref), model: model, provider: p, client: r.clientOf(p), format: formats[p.Dialect], quiet: r.opt.IdleTimeout, native: p.native(ref)}
	r.made[ref] = made
	return made, nil
}

// native reports whether a model accepts the schema of an object as a field of the
// request. Other models receive it as the schema of a tool call, which not all
// servers can force.
func (p Provider) native(ref string) bool {
	name, model, _ := strings.Cut(ref, ":")
	switch p.Dialect {
	case Gemini:
		return true
	case OpenAI, Responses:
		return openaiObjects(model)
	}
	return name == "ollama" || name == "mistral"
}

// maxMade is the maximum number of models kept: callers choose their names.
const maxMade = 256

// clientOf returns the client for requests to a provider. It follows no
// redirects, because custom headers with keys and the conversation would also be sent
// to the target of the redirect.
func (r *Registry) clientOf(p Provider) *http.Client {
	c := *cmp.Or(p.Client, r.opt.Client)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

var formats = map[Dialect]format{OpenAI: openaiFormat{}, Responses: responsesFormat{}, Compatible: openaiFormat{compatible: true}, Anthropic: anthropicFormat{}, Gemini: geminiFormat{}}

// price returns the cost of tokens of a model, in millionths.
func (r *Registry) price(ref string, t engi.Tokens) int64 {
	p, ok := r.opt.Prices[ref]
	if !ok {
		provider, _, _ := strings.Cut(ref, ":")
		p = r.opt.Prices[provider+":*"]
	}
	// Prices are per million tokens, costs in millionths: the factors cancel.
	return int64(p.Input*float64(t.Input) + p.Output*float64(t.Output) + p.CacheRead*float64(t.CacheRead) + p.CacheWrite*float64(t.CacheWrite))
}
