package llm_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
)

// ways are all ways to ask a provider: each returns what it shows of the answer
// or of the failure.
var ways = map[string]func(ctx context.Context, r *llm.Registry, ref string) (shown string, err error){
	"whole": func(ctx context.Context, r *llm.Registry, ref string) (string, error) { return generate(ctx, r, ref, nil, nil) },
	"streamed": func(ctx context.Context, r *llm.Registry, ref string) (shown string, err error) {
		text, err := generate(ctx, r, ref, nil, func(d llm.Delta) error { shown += fmt.Sprintf("%+v", d); return nil })
		return shown + text, err
	},
	"object": func(ctx context.Context, r *llm.Registry, ref string) (string, error) {
		return generate(ctx, r, ref, []byte(`{"type":"object","properties":{"a":{"type":"string"}}}`), nil)
	},
	"embedding": func(ctx context.Context, r *llm.Registry, _ string) (string, error) {
		e, err := r.Embedder()
		if err != nil {
			return "", err
		}
		v, err := e.Embed(ctx, "ann", []string{"a secret text"})
		return fmt.Sprint(v), err
	},
	"reranking": func(ctx context.Context, r *llm.Registry, _ string) (string, error) {
		e, err := r.Reranker()
		if err != nil {
			return "", err
		}
		v, err := e.Rerank(ctx, "ann", "a secret text", []string{"a", "b"})
		return fmt.Sprint(v), err
	},
}

func generate(ctx context.Context, r *llm.Registry, ref string, object []byte, out func(llm.Delta) error) (string, error) {
	m, err := r.Model(ref)
	if err != nil {
		return "", err
	}
	reply, err := m.Generate(ctx, llm.Request{Owner: "ann", Object: object, Messages: []engi.Message{{Role: engi.RoleUser, Text: "a secret text"}}}, out)
	return fmt.Sprintf("%+v", reply), err
}

// eachWay calls f with each way to ask each provider at url, which has its own
// client or that of the registry.
func eachWay(t *testing.T, url string, key string, f func(t *testing.T, opt llm.Options, ask func(llm.Options) (shown string, err error))) {
	t.Helper()
	for _, provider := range six {
		for way, ask := range ways {
			ref := provider + ":m"
			opt := llm.Options{Attempts: 1, Backoff: time.Nanosecond, Providers: map[string]llm.Provider{provider: {URL: url, Key: key}}}
			switch {
			case way == "embedding" && provider == "anthropic" || way == "reranking" && (provider == "anthropic" || provider == "gemini"):
				continue // it has none
			case way == "embedding":
				opt.Embedding = ref
			case way == "reranking":
				opt.Rerank = ref
			}
			t.Run(provider+"/"+way, func(t *testing.T) {
				f(t, opt, func(o llm.Options) (string, error) {
					r, err := llm.New(o)
					if err != nil {
						t.Fatal(err)
					}
					return ask(t.Context(), r, ref)
				})
			})
		}
	}
}

// TestRedirectsAreRefused has providers redirect to another host, which must not
// see the key nor the conversation, and to themselves.
func TestRedirectsAreRefused(t *testing.T) {
	asked := make(chan string, 1)
	tell := func(what string) {
		select {
		case asked <- what:
		default:
		}
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { tell(fmt.Sprint(r.Method, " ", r.Header)) }))
	defer other.Close()
	var status int
	var target string
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			tell("the provider itself")
			return
		}
		http.Redirect(w, r, target, status)
	}))
	defer provider.Close()
	eachWay(t, provider.URL, "key-of-the-operator", func(t *testing.T, opt llm.Options, ask func(llm.Options) (string, error)) {
		for _, status = range []int{301, 302, 303, 307, 308} {
			for _, target = range []string{other.URL, "/elsewhere"} {
				for _, own := range []*http.Client{nil, {Transport: http.DefaultTransport}} {
					for name, p := range opt.Providers {
						p.Client = own
						opt.Providers[name] = p
					}
					_, err := ask(opt)
					select {
					case what := <-asked:
						t.Errorf("%d to %s: asked %s", status, target, what)
					default:
					}
					if engi.KindOf(err) != engi.Invalid || engi.RemedyOf(err) == "" {
						t.Errorf("%d to %s: %v", status, target, err)
					}
				}
			}
		}
	})
}
