package docs_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

func open(t testing.TB, o docs.Options) *docs.Index {
	t.Helper()
	if o.Store == nil {
		o.Store = newStore(t)
	}
	l, err := docs.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newStore(t testing.TB) docs.Store {
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
	return store.Docs(db)
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

func TestSearchFindsChunks(t *testing.T) {
	l := open(t, docs.Options{})
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
			f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: "ann", Text: question, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Hits) == 0 || f.Hits[0].URL != "https://docs.example/sdk.md#"+anchor {
				t.Errorf("%s %q: %+v", mode, question, f.Hits)
			}
		}
	}
	if f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: "bob", Text: "createIssue"}); err != nil || len(f.Hits) > 0 {
		t.Errorf("bob finds %v, %v", f.Hits, err)
	}
	if f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: "createIssue", Package: "other"}); err != nil || len(f.Hits) > 0 {
		t.Errorf("of another package: %v, %v", f.Hits, err)
	}
}

// A countingEmbedder is the built-in embedder under another name, which counts
// texts and can be made to fail.
type countingEmbedder struct {
	docs.Embedder
	name    string
	texts   atomic.Int64
	failing atomic.Bool
}

func (c *countingEmbedder) Name() string { return c.name }

func (c *countingEmbedder) Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error) {
	if c.failing.Load() {
		return nil, engi.Errorf(engi.Unavailable, "out of order")
	}
	c.texts.Add(int64(len(texts)))
	return c.Embedder.Embed(ctx, owner, texts)
}

func find(t *testing.T, l *docs.Index, s engi.SearchSpec) engi.SearchResult {
	t.Helper()
	f, err := l.Search(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A docServer serves a document that can change, and counts requests.
type docServer struct {
	*httptest.Server
	text          atomic.Pointer[string]
	asked, served atomic.Int64
}

func newDocServer(t *testing.T, text string) *docServer {
	s := &docServer{}
	s.text.Store(&text)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		now := *s.text.Load()
		switch {
		case r.URL.Path == "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
			return
		case r.URL.Path == "/page":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
		case r.URL.Path == "/secret":
			w.WriteHeader(http.StatusForbidden)
			return
		case r.URL.Path == "/gone" || now == "":
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		tag := fmt.Sprintf("%q", fmt.Sprint(len(now)))
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		s.served.Add(1)
		fmt.Fprint(w, now)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestNonsenseFindsNothing searches for words that no document has, and for words that
// are misspelled or have other endings.
func TestNonsenseFindsNothing(t *testing.T) {
	l := open(t, docs.Options{})
	if _, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Text: guide}); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword} {
		for _, text := range []string{"xyzzy plugh frobnicate", "qwertz", "asdf jkl", "zq"} {
			f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: "ann", Text: text, Mode: mode})
			if err != nil || len(f.Hits) > 0 {
				t.Errorf("%s %q: %d hits, %v", mode, text, len(f.Hits), err)
			}
		}
	}
	for text, heading := range map[string]string{"paginatoin": "Pagination", "creating issues": "Create an issue", "instalation": "Install"} {
		f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: "ann", Text: text})
		if err != nil || len(f.Hits) == 0 || f.Hits[0].Headings[len(f.Hits[0].Headings)-1] != heading {
			t.Errorf("%q does not find %s: %+v, %v", text, heading, f.Hits, err)
		}
	}
}

func TestUnchangedChunksAreNotEmbeddedAgain(t *testing.T) {
	s := newDocServer(t, guide)
	e := &countingEmbedder{Embedder: docs.BuiltIn(), name: "e"}
	l := open(t, docs.Options{Embedder: e, OwnerTransport: func(engi.Owner) http.RoundTripper { return s.Client().Transport }})
	d, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", URL: s.URL + "/sdk.md"})
	if err != nil {
		t.Fatal(err)
	}
	if n := e.texts.Load(); n != 4 || !d.Fetched || d.Title != "Linear" {
		t.Fatalf("%d embedded, %+v", n, d)
	}
	same, err := l.Refresh(t.Context(), "ann", d.ID)
	if err != nil || len(same) != 1 || !same[0].Changed.Equal(d.Changed) || s.served.Load() != 1 || s.asked.Load() != 2 {
		t.Errorf("unchanged: %+v, %v, served %d", same, err, s.served.Load())
	}
	changed := strings.Replace(guide, "Run npm install", "Run deno add", 1)
	s.text.Store(&changed)
	fresh, err := l.Refresh(t.Context(), "ann", "")
	if err != nil || len(fresh) != 1 || fresh[0].ID != d.ID || fresh[0].Digest == d.Digest {
		t.Errorf("changed: %+v, %v", fresh, err)
	}
	if n := e.texts.Load(); n != 5 {
		t.Errorf("%d embedded, want one more than 4", n)
	}
	if f := find(t, l, engi.SearchSpec{Viewer: "ann", Text: "deno add", Mode: engi.SearchKeyword}); len(f.Hits) == 0 || f.Hits[0].Headings[1] != "Install" {
		t.Errorf("%+v", f.Hits)
	}
	// A failed refresh keeps the text.
	nothing := ""
	s.text.Store(&nothing)
	failed, err := l.Refresh(t.Context(), "ann", d.ID)
	if err != nil || failed[0].State != engi.DocumentFailed || failed[0].Error == nil || failed[0].Error.Kind != engi.Unavailable {
		t.Errorf("failed: %+v, %v", failed, err)
	}
	if f := find(t, l, engi.SearchSpec{Viewer: "ann", Text: "deno add"}); len(f.Hits) == 0 {
		t.Error("a document whose refresh failed is not found")
	}
}

func TestAddRefuses(t *testing.T) {
	s := newDocServer(t, guide)
	denied := roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, engi.Errorf(engi.Denied, "no rule allows it") })
	l := open(t, docs.Options{Quota: docs.Quota{Documents: 1, Bytes: 1000}, OwnerTransport: func(o engi.Owner) http.RoundTripper {
		if o == "eve" {
			return denied
		}
		return s.Client().Transport
	}})
	closed := open(t, docs.Options{})
	if _, err := closed.Add(t.Context(), engi.DocumentSpec{Owner: "ann", URL: s.URL}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("without a transport for owners: %v", err)
	}
	for name, c := range map[string]struct {
		spec engi.DocumentSpec
		want engi.Kind
	}{
		"nothing":            {engi.DocumentSpec{}, engi.Invalid},
		"blank":              {engi.DocumentSpec{Text: " \n"}, engi.Invalid},
		"no text":            {engi.DocumentSpec{Title: "x", Text: "a\xff"}, engi.Invalid},
		"NUL":                {engi.DocumentSpec{Title: "x", Text: "a\x00"}, engi.Invalid},
		"no title":           {engi.DocumentSpec{Text: "words"}, engi.Invalid},
		"HTML":               {engi.DocumentSpec{Title: "x", Text: "<!DOCTYPE html><p>x"}, engi.Invalid},
		"too long":           {engi.DocumentSpec{Title: "x", Text: strings.Repeat("word ", 2<<20)}, engi.Invalid},
		"bad URL":            {engi.DocumentSpec{URL: "file:///etc/passwd"}, engi.Invalid},
		"with user":          {engi.DocumentSpec{URL: "https://a:b@c.example/"}, engi.Invalid},
		"a page":             {engi.DocumentSpec{URL: s.URL + "/page"}, engi.Invalid},
		"endless":            {engi.DocumentSpec{URL: s.URL + "/loop"}, engi.Invalid},
		"forbidden":          {engi.DocumentSpec{URL: s.URL + "/secret"}, engi.Denied},
		"broken":             {engi.DocumentSpec{URL: s.URL + "/gone"}, engi.Unavailable},
		"unreached":          {engi.DocumentSpec{URL: "http://127.0.0.1:1/x"}, engi.Unavailable},
		"the egress gateway": {engi.DocumentSpec{Owner: "eve", URL: s.URL}, engi.Denied},
		"much":               {engi.DocumentSpec{Title: "x", Text: strings.Repeat("x ", 600)}, engi.Exhausted},
		"of a title":         {engi.DocumentSpec{Title: "a\nb", Text: "x"}, engi.Invalid},
	} {
		if c.spec.Owner == "" {
			c.spec.Owner = "ann"
		}
		if _, err := l.Add(t.Context(), c.spec); !engi.Is(err, c.want) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := l.Documents(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(list) != 0 {
		t.Errorf("left behind: %+v, %v", list, err)
	}
	for range 2 { // the second replaces the first
		if _, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Title: "one", Text: "x"}); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Title: "two", Text: "x"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var raceDetector bool // set by race_test.go

// TestTextsTakeBoundedMemory adds documents of many short lines and measures the
// memory allocated for them, whether they are accepted or not.
func TestTextsTakeBoundedMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates, too")
	}
	l := open(t, docs.Options{})
	for _, line := range []string{"# a\n", "a\n=\n", "## x\ny\n", "a\n", "a\n\n", "***\n", "```\n", "<!---->\n", "    a\n\n", "- a\n", "> a\n", "```a`b\n# a\n"} {
		for _, size := range []int{1 << 20, 8 << 20} {
			text := strings.Repeat(line, size/len(line))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Title: "many lines", Text: text})
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 400<<20 {
				t.Errorf("%d bytes of %q: %d MiB are allocated, %v", len(text), line, used>>20, err)
			}
			if (size == 8<<20 || line == "# a\n") && (!engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "") {
				t.Errorf("%d bytes of %q: %v", len(text), line, err)
			}
		}
	}
	// A long document of ordinary lines is accepted.
	text := strings.Repeat("## A heading\n\n"+strings.Repeat("A sentence of some words that is a line.\n", 12)+"\n```sh\n# no heading\n```\n\n", 2000)
	if d, err := l.Add(t.Context(), engi.DocumentSpec{Owner: "ann", Title: "long", Text: text}); err != nil || d.Chunks < 2000 {
		t.Errorf("%d bytes: %d chunks, %v", len(text), d.Chunks, err)
	}
}

func TestOwnersAreKeptApart(t *testing.T) {
	l := open(t, docs.Options{})
	add := func(owner engi.Owner, pkg string) engi.Document {
		d, err := l.Add(t.Context(), engi.DocumentSpec{Owner: owner, Package: pkg, Title: "of " + string(owner), Text: "apples and pears"})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	node, ann, bob := add("", "p"), add("ann", "p"), add("bob", "q")
	for viewer, want := range map[engi.Viewer]string{engi.Everyone: "[{p 2 2} {q 1 1}]", "": "[{p 1 1}]", "ann": "[{p 2 2}]", "bob": "[{p 1 1} {q 1 1}]"} {
		ps, err := l.Packages(t.Context(), viewer)
		if err != nil || fmt.Sprint(ps) != want {
			t.Errorf("%q: %v, %v", viewer, ps, err)
		}
		n := 2
		switch viewer {
		case engi.Everyone:
			n = 3
		case "":
			n = 1
		}
		if f := find(t, l, engi.SearchSpec{Viewer: viewer, Text: "apples"}); len(f.Hits) != n {
			t.Errorf("%q finds %+v", viewer, f.Hits)
		}
	}
	for _, mode := range []engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword} {
		if f := find(t, l, engi.SearchSpec{Text: "apples", Mode: mode}); len(f.Hits) != 1 || f.Hits[0].Document != node.ID {
			t.Errorf("the node finds by %s %+v", mode, f.Hits)
		}
	}
	for _, c := range []struct {
		viewer engi.Viewer
		id     engi.DocumentID
		want   engi.Kind
	}{{"ann", bob.ID, engi.NotFound}, {"ann", node.ID, engi.Denied}, {"ann", engi.NewDocumentID(), engi.NotFound}} {
		if err := l.Remove(t.Context(), c.viewer, c.id); !engi.Is(err, c.want) {
			t.Errorf("remove: %v", err)
		}
		if _, err := l.Refresh(t.Context(), c.viewer, c.id); !engi.Is(err, c.want) {
			t.Errorf("refresh: %v", err)
		}
	}
	if err := l.Remove(t.Context(), "ann", ann.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), engi.Everyone, bob.ID); err != nil {
		t.Fatal(err)
	}
	if f := find(t, l, engi.SearchSpec{Viewer: engi.Everyone, Text: "apples"}); len(f.Hits) != 1 || f.Hits[0].Document != node.ID {
		t.Errorf("%+v", f.Hits)
	}
}

// run runs l until the test ends.
func run(t *testing.T, l *docs.Index) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// until waits for an effect of a goroutine of the index.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func TestAnotherEmbedder(t *testing.T) {
	s := newStore(t)
	first := open(t, docs.Options{Store: s})
	if _, err := first.Add(t.Context(), engi.DocumentSpec{Text: guide}); err != nil {
		t.Fatal(err)
	}
	e := &countingEmbedder{Embedder: docs.BuiltIn(), name: "other"}
	l := open(t, docs.Options{Store: s, Embedder: e})
	f := find(t, l, engi.SearchSpec{Viewer: engi.Everyone, Text: "pages"})
	if len(f.Hits) == 0 || !strings.Contains(f.Note, "4 chunks have no vectors") || f.Embedder != "other" {
		t.Errorf("%+v", f)
	}
	e.failing.Store(true)
	if f := find(t, l, engi.SearchSpec{Viewer: engi.Everyone, Text: "pages"}); len(f.Hits) == 0 || !strings.Contains(f.Note, "does not answer") || f.Embedder != "" {
		t.Errorf("%+v", f)
	}
	if _, err := l.Search(t.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: "pages", Mode: engi.SearchVector}); !engi.Is(err, engi.Unavailable) {
		t.Errorf("%v", err)
	}
	if _, err := l.Add(t.Context(), engi.DocumentSpec{Title: "later", Text: "It is found by words."}); err != nil {
		t.Errorf("an embedder that is out of order: %v", err)
	}
	e.failing.Store(false)
	run(t, l)
	until(t, "every chunk has a vector", func() bool { return find(t, l, engi.SearchSpec{Viewer: engi.Everyone, Text: "pages"}).Note == "" })
	if n := e.texts.Load(); n < 5 {
		t.Errorf("%d embedded", n)
	}
}

func TestConfiguredDocuments(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.md", "# First\n\nmarmalade")
	write("b.txt", "jam without a heading")
	write("c.bin", "honey")
	site := newDocServer(t, guide)
	s := newStore(t)
	o := docs.Options{
		Store: s, Sources: []engi.DocumentSpec{{Package: "@linear/sdk", URL: site.URL + "/sdk.md"}, {URL: site.URL + "/gone"}},
		Files: []docs.File{{Package: "local", Path: dir}},
	}
	titles := func(l *docs.Index) string {
		ds, err := l.Documents(t.Context(), "ann", engi.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, d := range ds {
			list = append(list, d.Title+" "+string(d.State))
		}
		return strings.ReplaceAll(strings.Join(list, ", "), site.URL, "")
	}
	t.Run("added", func(t *testing.T) {
		l := open(t, o)
		run(t, l)
		until(t, "all are there", func() bool { return titles(l) == "/gone failed, Linear ready, First ready, b.txt ready" })
		if f := find(t, l, engi.SearchSpec{Viewer: "ann", Package: "local", Text: "marmalade"}); len(f.Hits) == 0 || f.Hits[0].Title != "First" || f.Hits[0].URL != "" {
			t.Errorf("%+v", f)
		}
	})
	t.Run("removed", func(t *testing.T) {
		o.Sources = nil
		write("b.txt", "# Second\n\njam")
		l := open(t, o)
		if _, err := l.Add(t.Context(), engi.DocumentSpec{Title: "by hand", Text: "x"}); err != nil {
			t.Fatal(err)
		}
		run(t, l)
		until(t, "what is not configured goes", func() bool { return titles(l) == "by hand ready, First ready, Second ready" })
	})
}

// fakeSessions has one session, whose volume can be removed.
type fakeSessions struct {
	session engi.Session
	gone    atomic.Bool
	guest   engi.Guest
}

func (s *fakeSessions) Get(_ context.Context, viewer engi.Viewer, id string) (engi.Session, error) {
	if !viewer.Sees(s.session.Owner) || id != string(s.session.ID) && id != s.session.Name {
		return engi.Session{}, engi.Errorf(engi.NotFound, "there is no such session")
	}
	now := s.session
	if s.gone.Load() {
		now.Volume, now.State = "", engi.SessionTerminated
	}
	return now, nil
}

func (s *fakeSessions) Enter(context.Context, engi.Viewer, string) (engi.Guest, func(), error) {
	return s.guest, func() {}, nil
}

// A fakeGuest only has files.
type fakeGuest struct {
	engi.Guest
	byPath map[string]string
}

func (f fakeGuest) Open(_ context.Context, path string) (io.ReadCloser, error) {
	text, ok := f.byPath[path]
	if !ok {
		return nil, engi.Errorf(engi.NotFound, "no such file")
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func TestModulesLiveAsLongAsTheirVolume(t *testing.T) {
	sessions := &fakeSessions{
		session: engi.Session{ID: engi.NewSessionID(), Owner: "ann", Name: "chat", Volume: engi.NewVolumeID(), State: engi.SessionIdle},
		guest: fakeGuest{byPath: map[string]string{
			"/workspace/lib/linear.ts": `import { LinearClient } from "@linear/sdk";`, "/workspace/lib/dates.ts": "export const today = 1",
		}},
	}
	s := newStore(t)
	l := open(t, docs.Options{Store: s, Sessions: sessions})
	modules := []engi.CodeModule{
		{Path: "./lib/linear.ts", Description: "opens tickets in the tracker", Exports: []string{"openTicket"}, Usage: "import { openTicket } from './lib/linear.ts'"},
		{Path: "/workspace/lib/dates.ts", Description: "formats dates", Scope: engi.ModuleUser},
	}
	missing := append(modules, engi.CodeModule{Path: "lib/none.ts"})
	if err := l.SaveModules(t.Context(), "ann", "chat", missing); !engi.Is(err, engi.NotFound) || !strings.Contains(err.Error(), "lib/none.ts") {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, p := range []string{"", "../x", "/etc/passwd", "a\x00b", "."} {
		if err := l.SaveModules(t.Context(), "ann", "chat", []engi.CodeModule{{Path: p}}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", p, err)
		}
	}
	if err := l.SaveModules(t.Context(), "bob", "chat", modules); !engi.Is(err, engi.NotFound) {
		t.Errorf("another's session: %v", err)
	}
	for range 2 { // the second replaces the first
		if err := l.SaveModules(t.Context(), "ann", "chat", modules); err != nil {
			t.Fatal(err)
		}
	}
	paths := func(viewer engi.Viewer, session string) string {
		ms, err := l.Modules(t.Context(), viewer, session)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, m := range ms {
			list = append(list, m.Path+" "+string(m.Scope)+" "+m.Source)
		}
		return strings.Join(list, ", ")
	}
	if got := paths("ann", "chat"); got != "lib/dates.ts user export const today = 1, lib/linear.ts session " {
		t.Errorf("%s", got)
	}
	if got := paths("ann", ""); got != "lib/dates.ts user export const today = 1" {
		t.Errorf("%s", got)
	}
	if got := paths("bob", ""); got != "" {
		t.Errorf("bob has %s", got)
	}
	found := func(spec engi.SearchSpec) string {
		var list []string
		for _, h := range find(t, l, spec).Hits {
			list = append(list, h.Module.Path)
		}
		return strings.Join(list, " ")
	}
	for name, c := range map[string]struct {
		spec engi.SearchSpec
		want string
	}{
		"in its session":   {engi.SearchSpec{Viewer: "ann", Session: "chat", Text: "openTicket"}, "lib/linear.ts"},
		"in another":       {engi.SearchSpec{Viewer: "ann", Text: "openTicket"}, ""},
		"of the user":      {engi.SearchSpec{Viewer: "ann", Text: "formats dates", Limit: 1}, "lib/dates.ts"},
		"of another user":  {engi.SearchSpec{Viewer: "bob", Text: "formats dates"}, ""},
		"of a package":     {engi.SearchSpec{Viewer: "ann", Session: "chat", Text: "openTicket", Package: "@linear/sdk"}, "lib/linear.ts"},
		"of no package":    {engi.SearchSpec{Viewer: "ann", Session: "chat", Text: "openTicket", Package: "other"}, ""},
		"by who sees all":  {engi.SearchSpec{Viewer: engi.Everyone, Text: "formats dates", Limit: 1}, "lib/dates.ts"},
		"by its first use": {engi.SearchSpec{Viewer: "ann", Session: "chat", Text: "tickets in the tracker", Limit: 1}, "lib/linear.ts"},
	} {
		c.spec.Mode = engi.SearchKeyword
		if got := found(c.spec); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := l.Search(t.Context(), engi.SearchSpec{Viewer: "ann", Session: "none", Text: "x"}); !engi.Is(err, engi.NotFound) {
		t.Errorf("%v", err)
	}

	// When the volume is removed, its modules are removed at once.
	sessions.gone.Store(true)
	if got := found(engi.SearchSpec{Viewer: "ann", Session: "chat", Text: "openTicket", Mode: engi.SearchKeyword}); got != "" {
		t.Errorf("found %q of a volume that is gone", got)
	}
	records, err := s.Records(t.Context(), docs.Filter{})
	if err != nil || len(records) != 1 || records[0].Key != "lib/dates.ts" {
		t.Errorf("left: %+v, %v", records, err)
	}
	if err := l.SaveModules(t.Context(), "ann", "chat", modules); !engi.Is(err, engi.Conflict) {
		t.Errorf("a session that is over: %v", err)
	}
}

// A reverseReranker ranks the last text first, or fails.
type reverseReranker struct{ broken bool }

func (reverseReranker) Name() string { return "backwards" }

func (b reverseReranker) Rerank(_ context.Context, _ engi.Owner, _ string, texts []string) ([]float64, error) {
	if b.broken {
		return nil, engi.Errorf(engi.Unavailable, "out of order")
	}
	scores := make([]float64, len(texts))
	for i := range scores {
		scores[i] = float64(i)
	}
	return scores, nil
}

func TestRerank(t *testing.T) {
	s := newStore(t)
	plain := open(t, docs.Options{Store: s})
	if _, err := plain.Add(t.Context(), engi.DocumentSpec{Text: guide}); err != nil {
		t.Fatal(err)
	}
	spec := engi.SearchSpec{Viewer: engi.Everyone, Text: "create an issue with a title", Limit: 50}
	before := find(t, plain, spec)
	after := find(t, open(t, docs.Options{Store: s, Reranker: reverseReranker{}}), spec)
	n := len(before.Hits)
	if n < 2 || len(after.Hits) != n || after.Hits[0].Text != before.Hits[n-1].Text || after.Hits[0].Score <= after.Hits[1].Score {
		t.Errorf("%+v, then %+v", before.Hits, after.Hits)
	}
	failed := find(t, open(t, docs.Options{Store: s, Reranker: reverseReranker{broken: true}}), spec)
	if len(failed.Hits) != n || failed.Hits[0].Text != before.Hits[0].Text || !strings.Contains(failed.Note, "does not answer") {
		t.Errorf("%+v", failed)
	}
}

// TestSearchesAreIsolated replaces a document during searches.
func TestSearchesAreIsolated(t *testing.T) {
	l := open(t, docs.Options{})
	version := func(n int) engi.DocumentSpec {
		return engi.DocumentSpec{Title: "d", Text: fmt.Sprintf("## One\n\nmarker version%d\n\n## Two\n\nmarker version%d, at some more length\n\n## Three\n\nmarker version%d and so on", n, n, n)}
	}
	if _, err := l.Add(t.Context(), version(0)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				f, err := l.Search(t.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: "marker"})
				if err != nil {
					t.Error(err)
					return
				}
				seen := map[string]bool{}
				for _, h := range f.Hits {
					for w := range strings.FieldsSeq(h.Text) {
						if strings.HasPrefix(w, "version") {
							seen[strings.Trim(w, ",")] = true
						}
					}
				}
				if len(seen) != 1 {
					t.Errorf("a search saw chunks of %v", seen)
					return
				}
			}
		})
	}
	for n := range 40 {
		if _, err := l.Add(t.Context(), version(n+1)); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestSearchRefuses(t *testing.T) {
	l := open(t, docs.Options{})
	for name, s := range map[string]engi.SearchSpec{
		"nothing": {Text: " "}, "no text": {Text: "\xff"}, "long": {Text: strings.Repeat("x", 10<<10)}, "limit": {Text: "x", Limit: 51}, "below": {Text: "x", Limit: -1}, "mode": {Text: "x", Mode: "magic"},
	} {
		if _, err := l.Search(t.Context(), s); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []string{`"`, `a" OR places : x`, "* NEAR(a b)", "?!", "the", strings.Repeat("word ", 1000)} {
		find(t, l, engi.SearchSpec{Viewer: engi.Everyone, Text: s})
	}
}

// filled returns an index of about n chunks of random text in which, as in real
// text, some words are common and most are rare.
func filled(b *testing.B, n int) *docs.Index {
	l := open(b, docs.Options{})
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

// BenchmarkSearch searches 10,000 chunks for six words that are not among the
// hundred most frequent, which represent stop words.
func BenchmarkSearch(b *testing.B) {
	l := filled(b, 10_000)
	r := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(r, 1.1, 8, 20_000)
	for _, mode := range []engi.SearchMode{engi.SearchHybrid, engi.SearchVector, engi.SearchKeyword} {
		b.Run(string(mode), func(b *testing.B) {
			// The first search reads the vectors into memory.
			if _, err := l.Search(b.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: "warm", Mode: mode}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				var q strings.Builder
				for range 6 {
					q.WriteString(word(100+zipf.Uint64()) + " ")
				}
				if _, err := l.Search(b.Context(), engi.SearchSpec{Viewer: engi.Everyone, Text: q.String(), Mode: mode}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAdd adds a document of a hundred chunks.
func BenchmarkAdd(b *testing.B) {
	var s strings.Builder
	for c := range 100 {
		fmt.Fprintf(&s, "## Section %d\n\n", c)
		for w := range 120 {
			s.WriteString(word(uint64(c*w)) + " ")
		}
		s.WriteString("\n\n")
	}
	l := open(b, docs.Options{})
	n := 0
	for b.Loop() {
		n++
		if _, err := l.Add(b.Context(), engi.DocumentSpec{Title: fmt.Sprint(n), Text: s.String()}); err != nil {
			b.Fatal(err)
		}
	}
}
