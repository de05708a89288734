package library_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/library"
	"github.com/engi-dev/engi/store"
)

func open(t testing.TB, o library.Options) *library.Library {
	t.Helper()
	if o.Store == nil {
		o.Store = shelf(t)
	}
	l, err := library.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func shelf(t testing.TB) library.Store {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.Library(db)
}

const guide = `# Linear

The client of an issue tracker.

## Install

Run npm install @linear/sdk.

## Create an issue

Call ` + "`linear.createIssue`" + ` with a team and a title.

` + "```ts\nconst { issue } = await linear.createIssue({ teamId, title: 'Broken' })\n```" + `

## Pagination

Lists come in pages; ask for the next with fetchNext().
`

func TestSearchFindsPieces(t *testing.T) {
	l := open(t, library.Options{})
	d, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Package: "@linear/sdk", URL: "https://docs.example/sdk.md", Text: guide})
	if err != nil {
		t.Fatal(err)
	}
	if d.Title != "Linear" || d.Chunks != 4 || d.State != engi.DocumentReady || d.Fetched {
		t.Errorf("%+v", d)
	}
	for _, mode := range []engi.SearchMode{"", engi.SearchVector, engi.SearchKeyword} {
		for question, anchor := range map[string]string{
			"createIssue": "create-an-issue", "create an issue": "create-an-issue", "how do I install it": "install", "next page of a list": "pagination",
		} {
			f, err := l.Search(t.Context(), engi.SearchSpec{Owner: "ann", Text: question, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Hits) == 0 || f.Hits[0].URL != "https://docs.example/sdk.md#"+anchor {
				t.Errorf("%s %q: %+v", mode, question, f.Hits)
			}
		}
	}
	if f, err := l.Search(t.Context(), engi.SearchSpec{Owner: "bob", Text: "createIssue"}); err != nil || len(f.Hits) > 0 {
		t.Errorf("bob finds %v, %v", f.Hits, err)
	}
	if f, err := l.Search(t.Context(), engi.SearchSpec{Text: "createIssue", Package: "other"}); err != nil || len(f.Hits) > 0 {
		t.Errorf("of another package: %v, %v", f.Hits, err)
	}
}

// filled returns a library of about n pieces of made-up prose in which some
// words are common and most are rare, as in real prose.
func filled(b *testing.B, n int) *library.Library {
	l := open(b, library.Options{})
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 8, 20_000)
	for d := range n / 100 {
		var s strings.Builder
		fmt.Fprintf(&s, "# Document %d\n", d)
		for c := range 100 {
			fmt.Fprintf(&s, "\n## Section %d of %s\n\n", c, word(zipf.Uint64()))
			for range 120 {
				s.WriteString(word(zipf.Uint64()) + " ")
			}
			s.WriteString("\n")
		}
		if _, err := l.Add(b.Context(), engi.DocumentSpec{Package: fmt.Sprintf("p%d", d%7), Text: s.String()}); err != nil {
			b.Fatal(err)
		}
	}
	return l
}

func word(n uint64) string {
	const syllables = "bacadefagohilomunaperisotuvexyzo"
	var s strings.Builder
	for n++; n > 0; n /= 16 {
		s.WriteString(syllables[2*(n%16) : 2*(n%16)+2])
	}
	return s.String() + "n"
}

// BenchmarkSearch searches 10,000 pieces for questions of six words.
func BenchmarkSearch(b *testing.B) {
	l := filled(b, 10_000)
	r := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(r, 1.1, 8, 20_000)
	for _, mode := range []engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword} {
		b.Run(string(mode), func(b *testing.B) {
			for b.Loop() {
				var q strings.Builder
				for range 6 {
					q.WriteString(word(zipf.Uint64()) + " ")
				}
				if _, err := l.Search(b.Context(), engi.SearchSpec{Text: q.String(), Mode: mode}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAdd takes in a document of a hundred pieces.
func BenchmarkAdd(b *testing.B) {
	var s strings.Builder
	for c := range 100 {
		fmt.Fprintf(&s, "## Section %d\n\n", c)
		for w := range 120 {
			s.WriteString(word(uint64(c*w)) + " ")
		}
		s.WriteString("\n\n")
	}
	l := open(b, library.Options{})
	n := 0
	for b.Loop() {
		n++
		if _, err := l.Add(b.Context(), engi.DocumentSpec{Title: fmt.Sprint(n), Text: s.String()}); err != nil {
			b.Fatal(err)
		}
	}
}
