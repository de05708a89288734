package quality

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/env"
)

var update = flag.Bool("update", false, "write docs/docs-quality.md")

// packages maps packages to the paths of their documents, below test/e2e.
var packages = map[string]string{
	"undici/Dispatcher": "e2b/js/node_modules/undici/docs/docs/api/Dispatcher.md",
	"minipass":          "e2b/js/node_modules/minipass/README.md",
	"lru-cache":         "e2b/js/node_modules/lru-cache/README.md",
	"tar":               "e2b/js/node_modules/tar/README.md",
	"qs":                "mcp/js/node_modules/qs/README.md",
	"body-parser":       "mcp/js/node_modules/body-parser/README.md",
	"router":            "mcp/js/node_modules/router/README.md",
	"cors":              "mcp/js/node_modules/cors/README.md",
	"debug":             "mcp/js/node_modules/debug/README.md",
	"cookie":            "mcp/js/node_modules/cookie/README.md",
}

// A question is a question with the place of its answer.
type question struct {
	kinds    []string // kinds for which the question counts
	document string
	headings map[string]bool // headings of the answer, as returned by plain; any of them is right
	text     string
}

// questions returns all questions: those known during the development of the search, and those that were not.
func questions(t *testing.T) []question {
	t.Helper()
	all := questionsIn(t, "questions.txt", func(kind string) []string { return []string{kind, "all"} })
	all = append(all, questionsIn(t, "questions-2.txt", func(string) []string { return []string{"new"} })...)
	return append(all, questionsIn(t, "questions-3.txt", func(string) []string { return []string{"problem"} })...)
}

func questionsIn(t *testing.T, file string, kinds func(kind string) []string) []question {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []question
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		p := strings.SplitN(line, " | ", 4)
		if len(p) != 4 {
			t.Fatalf("%q is no question", line)
		}
		q := question{kinds(strings.TrimSpace(p[0])), strings.TrimSpace(p[1]), map[string]bool{}, strings.TrimSpace(p[3])}
		for h := range strings.SplitSeq(p[2], ";") {
			q.headings[plain(h)] = true
		}
		list = append(list, q)
	}
	return list
}

// plain returns a heading without all characters except letters and digits.
func plain(h string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, h)
}

// answers reports whether a hit contains the answer.
func (q question) answers(h engi.SearchHit) bool {
	if h.Title != q.document {
		return false
	}
	for _, heading := range h.Headings {
		if q.headings[plain(heading)] {
			return true
		}
	}
	// Short sections are combined in one piece.
	for line := range strings.Lines(h.Text) {
		if strings.HasPrefix(line, "##") && q.headings[plain(line)] {
			return true
		}
	}
	return false
}

func documents(t *testing.T, qs []question) []engi.DocumentSpec {
	t.Helper()
	seen := map[string]bool{}
	var list []engi.DocumentSpec
	for _, q := range qs {
		if seen[q.document] {
			continue
		}
		seen[q.document] = true
		file := "../../docs/" + q.document + ".md"
		if p, ok := packages[q.document]; ok {
			file = "../e2e/" + p
		}
		text, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			env.Need(t, file+" (.ci/packages)")
		}
		list = append(list, engi.DocumentSpec{Title: q.document, Package: q.document, Text: string(text)})
	}
	return list
}

// A score is the share of questions whose section is among the first hits.
type score struct{ one, five, asked int }

func (s score) recall() float64 { return float64(s.five) / float64(s.asked) }

// measure asks all questions in all modes; the result is by mode and kind, all
// kinds together under "all".
func measure(t *testing.T, e docs.Embedder, corpus []engi.DocumentSpec, qs []question) (result map[engi.SearchMode]map[string]score, pieces int) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := docs.Open(t.Context(), docs.Options{Store: store.Docs(db), Embedder: e})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, 2)
	for _, d := range corpus {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			kept, err := l.Add(t.Context(), d)
			if err != nil {
				t.Errorf("%s: %v", d.Title, err)
			}
			mu.Lock()
			pieces += kept.Chunks
			mu.Unlock()
		})
	}
	wg.Wait()
	result = map[engi.SearchMode]map[string]score{}
	for _, mode := range modes {
		result[mode] = map[string]score{}
		for _, q := range qs {
			f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: q.text, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			place := len(f.Hits)
			for i, h := range f.Hits {
				if q.answers(h) {
					place = i
					break
				}
			}
			for _, kind := range q.kinds {
				s := result[mode][kind]
				s.asked++
				if place < len(f.Hits) {
					s.five++
					if place == 0 {
						s.one++
					}
				}
				result[mode][kind] = s
			}
			if place == len(f.Hits) && mode == engi.SearchHybrid {
				var got []string
				for _, h := range f.Hits {
					got = append(got, h.Title+": "+strings.Join(h.Headings[min(1, len(h.Headings)):], " > "))
				}
				t.Logf("%q is in %s, found %s", q.text, q.document, strings.Join(got, " | "))
			}
		}
	}
	return result, pieces
}

var modes = []engi.SearchMode{engi.SearchKeyword, engi.SearchVector, engi.SearchHybrid}

// TestQuestionsHaveSections notices headings of this repository's documents
// that were renamed.
func TestQuestionsHaveSections(t *testing.T) {
	for _, q := range questions(t) {
		if _, ok := packages[q.document]; ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../../docs", q.document+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		if !q.answers(engi.SearchHit{Title: q.document, Text: string(text)}) {
			t.Errorf("%q: %s has no heading like %v", q.text, q.document, slices.Collect(maps.Keys(q.headings)))
		}
	}
}

// TestSearchFindsTheSection checks that the fused search is at least as good
// as either half, with an embedder that compares words and with one that
// compares meanings.
func TestSearchFindsTheSection(t *testing.T) {
	env.Slow(t)
	qs := questions(t)
	if len(qs) < 100 {
		t.Fatalf("%d questions, want 100 at least", len(qs))
	}
	corpus := documents(t, qs)
	var table strings.Builder
	fmt.Fprintf(&table, "| Embedder | Questions | Words | Likeness | Both |\n|---|---|---|---|---|\n")
	pieces, measured := 0, 0
	for _, c := range []struct {
		name     string
		embedder func(t *testing.T) docs.Embedder
		floor    map[string]float64 // minimum scores of the fused search
	}{
		{"built-in", func(*testing.T) docs.Embedder { return nil }, map[string]float64{"all": 0.70, "new": 0.55, "problem": 0.55}},
		{"sentence model", sentences, map[string]float64{"all": 0.80, "new": 0.65, "problem": 0.70}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var result map[engi.SearchMode]map[string]score
			result, pieces = measure(t, c.embedder(t), corpus, qs)
			for _, kind := range []string{"words", "name", "meaning", "all", "new", "problem"} {
				fmt.Fprintf(&table, "| %s | %s (%d) |", c.name, labels[kind], result[engi.SearchHybrid][kind].asked)
				for _, m := range modes {
					s := result[m][kind]
					fmt.Fprintf(&table, " %.0f %% (%.0f %%) |", 100*s.recall(), 100*float64(s.one)/float64(s.asked))
				}
				table.WriteByte('\n')
			}
			both, words, likeness := result[engi.SearchHybrid]["all"], result[engi.SearchKeyword]["all"], result[engi.SearchVector]["all"]
			measured++
			// A difference of two questions is random.
			if best := max(words.five, likeness.five); both.five < best-2 {
				t.Errorf("both together find %d of %d, one alone %d", both.five, both.asked, best)
			}
			for kind, floor := range c.floor {
				if r := result[engi.SearchHybrid][kind].recall(); r < floor {
					t.Errorf("%s: recall %.2f, want %.2f", labels[kind], r, floor)
				}
			}
		})
	}
	t.Logf("\n%s", table.String())
	if *update {
		if measured != 2 {
			t.Fatal("the page needs both embedders")
		}
		write(t, table.String(), len(qs), len(corpus), pieces)
	}
}

var labels = map[string]string{"words": "a few words", "name": "identifiers", "meaning": "in other words", "all": "all of these", "new": "others", "problem": "whole sentences"}

func write(t *testing.T, table string, questions, documents, pieces int) {
	t.Helper()
	text := fmt.Sprintf(`# How well docs are found

%d questions were written by hand, over %d documents of this repository and of well-known npm packages, %d pieces in all. A question counts as answered
if its section is among the first five hits (in brackets: if it is the first). A few are single words, some are identifiers, and most say in other words
what the document says. The sentence model is all-MiniLM-L6-v2, which fits into 90 MB; the built-in embedder needs no model and compares words and parts of
words. The others, and the whole sentences of somebody with a problem, were written later, and nothing was chosen by them.

%s
Words are BM25 in SQLite's FTS5, likeness is the cosine of embeddings, and both together are what a search does unless it is told otherwise: ranks
fused, so that neither half's numbers matter to the other. Questions and documents are in `+"`test/quality`"+`; the test holds both together to be no worse than
either half alone. How ranks are fused was chosen with these questions at hand, see [decision 11](decisions/0011-how-docs-are-found.md). This page is written by `+"`go test ./test/quality -update`"+`.
`, questions, documents, pieces, table)
	if err := os.WriteFile("../../docs/docs-quality.md", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sentences returns an embedder with a language model in another
// process, behind OpenAI's API.
func sentences(t *testing.T) docs.Embedder {
	t.Helper()
	python := os.Getenv("ENGI_TEST_EMBEDDER")
	if _, err := os.Stat(python); err != nil {
		env.Need(t, "Python with a sentence model, named by ENGI_TEST_EMBEDDER (.ci/packages, test/e2e/embed/py)")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	cmd := exec.CommandContext(ctx, python, "../e2e/embed/py/serve.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait() //nolint:errcheck // it ends with its input
		cancel()
	})
	var port int
	if _, err := fmt.Fscan(out, &port); err != nil {
		t.Fatalf("the sentence model does not start: %v", err)
	}
	models, err := llm.New(llm.Options{
		Providers: map[string]llm.Provider{"local": {URL: fmt.Sprintf("http://127.0.0.1:%d/v1", port)}}, Embedding: "local:all-MiniLM-L6-v2",
		Client: &http.Client{Transport: &http.Transport{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := models.Embedder()
	if err != nil {
		t.Fatal(err)
	}
	return e
}
