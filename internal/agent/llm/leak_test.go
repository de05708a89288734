package llm_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// ways are all ways to ask a provider: each returns what it shows of the answer
// or of the failure.
var ways = map[string]func(ctx context.Context, r *llm.Registry, ref string) (shown string, err error){
	"whole": func(ctx context.Context, r *llm.Registry, ref string) (string, error) {
		return generate(ctx, r, ref, nil, nil)
	},
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
					if !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
						t.Errorf("%d to %s: %v", status, target, err)
					}
				}
			}
		}
	})
}

// TestKeysAreMasked has providers repeat the keys that they were sent in
// whatever enters errors.
func TestKeysAreMasked(t *testing.T) {
	const key, other = `sk-live/0123+456789&abcdef`, "another-secret-of-the-operator"
	forms := []string{key, other, url.QueryEscape(key), url.PathEscape(key), base64.StdEncoding.EncodeToString([]byte(key)), hex.EncodeToString([]byte(key))}
	echo := strings.Join(forms, " ")
	message := func(text string) string {
		raw, err := json.Marshal(map[string]any{"type": "error", "error": map[string]any{"message": text}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	raw := func(response string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, out, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			out.WriteString(response) //nolint:errcheck // the client may have left
			out.Flush()               //nolint:errcheck // the client may have left
		}
	}
	says := map[string]http.HandlerFunc{
		"a broken response":    raw(echo + "\r\n\r\n"),
		"a broken status":      raw("HTTP/1.1 " + echo + "\r\n\r\n"),
		"a broken header":      raw("HTTP/1.1 200 OK\r\n" + echo + "\r\n\r\n"),
		"a broken trailer":     raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + echo + "\r\n\r\n"),
		"a broken redirection": raw("HTTP/1.1 302 Found\r\nLocation: http://%zz/" + echo + "\r\nContent-Length: 0\r\n\r\n"),
		"a redirection":        raw("HTTP/1.1 302 Found\r\nLocation: http://other.invalid/" + key + "\r\nContent-Length: 0\r\n\r\n"),
	}
	for _, status := range []int{400, 401, 404, 409, 413, 429, 500, 503} {
		says[fmt.Sprint("an error ", status)] = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Echo", echo)
			w.Header().Set("Retry-After", key)
			w.WriteHeader(status)
			fmt.Fprint(w, message("you sent "+echo))
		}
	}
	for name, body := range map[string]string{
		"no JSON":        "you sent " + echo,
		"an inner error": message("you sent " + echo),
		"lines":          message("you sent\n" + strings.ReplaceAll(echo, "s", "\x00s\x07")),
		"an event":       "data: " + message("you sent "+echo) + "\n\n",
		"a broken event": "data: {you sent " + echo + "\n\n",
	} {
		says[name] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
		says[name+" 400"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400); fmt.Fprint(w, body) }
	}
	for at := range 30 { // a part of a key is not shown either
		says[fmt.Sprint("the end of a line ", at)] = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, message(strings.Repeat("x", 300-at)+key+strings.Repeat(key, 20)))
		}
	}
	var answer http.HandlerFunc
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer web.Close()
	eachWay(t, web.URL, key, func(t *testing.T, opt llm.Options, ask func(llm.Options) (string, error)) {
		for name, p := range opt.Providers {
			p.Headers = map[string]string{"X-Other": "Token " + other}
			opt.Providers[name] = p
		}
		var calls []llm.Call
		opt.OnCall = func(c llm.Call) { calls = append(calls, c) }
		for name, say := range says {
			calls, answer = nil, say
			shown, err := ask(opt)
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			all := fmt.Sprint(shown, err, engi.RemedyOf(err), calls)
			for _, form := range append(forms, key[:9], other[:9]) {
				if strings.Contains(all, form) {
					t.Errorf("%s shows %q: %s", name, form, all)
				}
			}
		}
	})
}
