package llm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// ranks returns the reranker of a fake provider, which answers by calling
// answer.
func ranks(t *testing.T, answer func(n int, w http.ResponseWriter, texts []string)) llm.Reranker {
	t.Helper()
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Model, Query string
			Documents    []string
			Top          int `json:"top_n"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.URL.Path != "/v1/rerank" || r.Header.Get("Authorization") != "Bearer k" ||
			q.Model != "m" || q.Query == "" || q.Top != len(q.Documents) {
			t.Errorf("asked %s %+v: %v", r.URL.Path, q, err)
		}
		asked++
		answer(asked, w, q.Documents)
	}))
	t.Cleanup(s.Close)
	r, err := llm.New(llm.Options{
		Providers: map[string]llm.Provider{"mine": {URL: s.URL + "/v1", Key: "k"}}, Rerank: "mine:m", Backoff: time.Nanosecond, Client: s.Client(),
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Reranker()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRerank(t *testing.T) {
	e := ranks(t, func(n int, w http.ResponseWriter, texts []string) {
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"results":[{"index":1,"relevance_score":0.9,"document":{"text":"b"}},{"index":0,"relevance_score":-2}],"usage":{"total_tokens":7}}`)
	})
	got, err := e.Rerank(t.Context(), "ann", "q", []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float64{-2, 0.9}, got); diff != "" || e.Name() != "mine:m" {
		t.Errorf("%s: %s", e.Name(), diff)
	}
}

func TestRerankBoundsAnswers(t *testing.T) {
	for name, body := range map[string]string{
		"no JSON":        `<html>`,
		"one is missing": `{"results":[{"index":0,"relevance_score":1}]}`,
		"one is twice":   `{"results":[{"index":0,"relevance_score":1},{"index":0,"relevance_score":1}]}`,
		"none of ours":   `{"results":[{"index":0,"relevance_score":1},{"index":2,"relevance_score":1}]}`,
		"negative index": `{"results":[{"index":0,"relevance_score":1},{"index":-1,"relevance_score":1}]}`,
		"no score":       `{"results":[{"index":0,"relevance_score":1},{"index":1}]}`,
		"too large":      `{"results":[],"x":"` + strings.Repeat("x", 9<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			e := ranks(t, func(_ int, w http.ResponseWriter, _ []string) { io.WriteString(w, body) }) //nolint:errcheck // the client may have left
			if got, err := e.Rerank(t.Context(), "", "q", []string{"a", "b"}); engi.Is(err, engi.Internal) || err == nil {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	e := ranks(t, func(int, http.ResponseWriter, []string) { t.Error("asked") })
	if got, err := e.Rerank(t.Context(), "", "q", nil); err != nil || got != nil {
		t.Errorf("no texts: %v, %v", got, err)
	}
	if _, err := e.Rerank(t.Context(), "", "q", make([]string, 5000)); !engi.Is(err, engi.Invalid) {
		t.Errorf("too many: %v", err)
	}
}

func TestRerankRefuses(t *testing.T) {
	e := ranks(t, func(_ int, w http.ResponseWriter, _ []string) { w.WriteHeader(http.StatusUnauthorized) })
	if _, err := e.Rerank(t.Context(), "", "q", []string{"a"}); !engi.Is(err, engi.Denied) {
		t.Errorf("%v", err)
	}
	r, err := llm.New(llm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reranker(); !engi.Is(err, engi.Unsupported) {
		t.Errorf("%v", err)
	}
	if _, err := llm.New(llm.Options{Rerank: "nobody:m"}); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v", err)
	}
}
