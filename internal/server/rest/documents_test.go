package rest_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestDocuments(t *testing.T) {
	w := newFixture(t, nil)
	root, bob := []string{"Authorization", "Bearer " + w.Admin}, []string{"Authorization", "Bearer " + w.Other}
	const page = `{"package":"@acme/sdk","url":"https://example.com/sdk.md"}`
	shared := read[v1.Document](t, ask(t, w, "POST", "/v1/docs", page, root...), 201)
	if shared.Owner != "" || !shared.Fetched || shared.State != "ready" || shared.Chunks == 0 {
		t.Errorf("%+v", shared)
	}
	made := ask(t, w, "POST", "/v1/docs", `{"package":"notes","text":"# Notes\n\n## Tickets\n\nOpen a ticket for each fault."}`)
	mine := read[v1.Document](t, made, 201)
	if mine.Owner != "ann" || mine.Title != "Notes" || mine.Fetched || made.Header().Get("Location") != "/v1/docs/"+mine.ID {
		t.Errorf("%+v at %s", mine, made.Header().Get("Location"))
	}
	// The same again is no second one.
	if again := read[v1.Document](t, ask(t, w, "POST", "/v1/docs", page, root...), 201); again.ID != shared.ID {
		t.Errorf("%s is not %s", again.ID, shared.ID)
	}
	if got := read[v1.Document](t, ask(t, w, "GET", "/v1/docs/"+mine.ID, ""), 200); got != mine {
		t.Errorf("%+v is not %+v", got, mine)
	}
	for who, want := range map[string]int{w.User: 2, w.Other: 1, w.Admin: 2} {
		as := []string{"Authorization", "Bearer " + who}
		if n := len(read[v1.List[v1.Document]](t, ask(t, w, "GET", "/v1/docs", "", as...), 200).Items); n != want {
			t.Errorf("%d documents, want %d", n, want)
		}
		if n := len(read[v1.List[v1.DocumentPackage]](t, ask(t, w, "GET", "/v1/docs/packages", "", as...), 200).Items); n != want {
			t.Errorf("%d packages, want %d", n, want)
		}
	}
	found := read[v1.Finding](t, ask(t, w, "GET", "/v1/docs/search?query=open+a+ticket&limit=1", ""), 200)
	if len(found.Hits) != 1 || found.Hits[0].DocumentID != mine.ID || found.Hits[0].Headings[0] != "Tickets" || found.Embedder == "" || found.Note == "" {
		t.Errorf("%+v", found)
	}
	if found := read[v1.Finding](t, ask(t, w, "GET", "/v1/docs/search?query=ticket&mode=keyword", "", bob...), 200); len(found.Hits) != 0 || found.Hits == nil || found.Embedder != "" {
		t.Errorf("somebody else finds %+v", found)
	}
	if x := read[v1.Document](t, ask(t, w, "POST", "/v1/docs/"+mine.ID+"/refresh", ""), 200); !x.CheckedAt.After(mine.CheckedAt) {
		t.Errorf("%+v", x)
	}
	if l := read[v1.List[v1.Document]](t, ask(t, w, "POST", "/v1/docs/refresh", "", root...), 200); len(l.Items) != 1 || l.Items[0].ID != shared.ID {
		t.Errorf("%+v", l)
	}
	// The node's documents are read by all, and changed by admins.
	read[v1.Document](t, ask(t, w, "GET", "/v1/docs/"+shared.ID, ""), 200)
	refused(t, ask(t, w, "DELETE", "/v1/docs/"+shared.ID, ""), 403, engi.Denied)
	for _, id := range []string{mine.ID, shared.ID} {
		if rec := ask(t, w, "DELETE", "/v1/docs/"+id, "", root...); rec.Code != 204 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
	refused(t, ask(t, w, "GET", "/v1/docs/"+mine.ID, ""), 404, engi.NotFound)
}

func TestDocumentsThatAreRefused(t *testing.T) {
	w := newFixture(t, nil)
	for body, want := range map[string]struct {
		status int
		kind   engi.Kind
	}{
		`{}`:                                 {400, engi.Invalid},
		`{"text":"x","txet":"y"}`:            {400, engi.Invalid},
		`{"text":"a\u0000b"}`:                {400, engi.Invalid},
		`{"url":"file:///etc/passwd"}`:       {400, engi.Invalid},
		`{"url":"https://denied.example/x"}`: {403, engi.Denied},
		`{"url":"https://down.example/x"}`:   {503, engi.Unavailable},
		`{"text":"full"}`:                    {429, engi.Exhausted},
	} {
		refused(t, ask(t, w, "POST", "/v1/docs", body), want.status, want.kind)
	}
	for _, query := range []string{"", "?query=", "?query=x&mode=magic", "?query=x&limit=51", "?query=x&limit=0", "?q=x", "?query=" + strings.Repeat("x", 5000)} {
		refused(t, ask(t, w, "GET", "/v1/docs/search"+query, ""), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "GET", "/v1/docs/search?query=x&session=none", ""), 404, engi.NotFound)
	refused(t, ask(t, w, "GET", "/v1/docs/none", ""), 400, engi.Invalid)
}

func TestModules(t *testing.T) {
	w := newFixture(t, nil)
	for _, name := range []string{"a", "b"} {
		read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"`+name+`"}`), 201)
	}
	read[v1.List[v1.CodeModule]](t, ask(t, w, "POST", "/v1/sessions/a/modules",
		`{"modules":[{"path":"lib/x.ts","description":"counts tickets","exports":["f"]},{"path":"lib/y.ts","description":"closes tickets","scope":"user"}]}`), 200)
	for path, want := range map[string]int{"/v1/sessions/a/modules": 2, "/v1/sessions/b/modules": 1, "/v1/modules": 1} {
		all := read[v1.List[v1.CodeModule]](t, ask(t, w, "GET", path, ""), 200).Items
		if len(all) != want || all[len(all)-1].Path != "lib/y.ts" || all[len(all)-1].Source == "" {
			t.Errorf("%s: %+v", path, all)
		}
	}
	found := read[v1.Finding](t, ask(t, w, "GET", "/v1/docs/search?query=tickets&session=a", ""), 200)
	if len(found.Hits) != 2 || found.Hits[0].Module == nil {
		t.Errorf("%+v", found)
	}
	for _, body := range []string{
		`{}`, `{"modules":[{"path":"/etc/passwd","description":"x"}]}`, `{"modules":[{"path":"../x.ts","description":"x"}]}`, `{"modules":[{"path":"x.ts","description":"x","scope":"world"}]}`,
	} {
		refused(t, ask(t, w, "POST", "/v1/sessions/a/modules", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", "/v1/sessions/a/modules", `{"modules":[{"path":"missing.ts","description":"x"}]}`), 404, engi.NotFound)
}

// TestS0_1_NodeWithoutLibrary checks that every route of the library says what
// to do where a node has none.
func TestS0_1_NodeWithoutLibrary(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Docs = nil })
	tried := 0
	for _, route := range w.Handler.Routes() {
		pattern := route.Pattern
		if !strings.Contains(pattern, "/v1/docs") && !strings.HasSuffix(pattern, "/modules") {
			continue
		}
		tried++
		method, path, body := held{document: string(engi.NewDocumentID()), session: "s"}.requestFor(pattern)
		if p := refused(t, ask(t, w, method, path, body), 501, engi.Unsupported); !strings.Contains(p.Remedy, "[docs]") {
			t.Errorf("%s: remedy %q", pattern, p.Remedy)
		}
	}
	if tried != 11 {
		t.Errorf("%d routes", tried)
	}
}
