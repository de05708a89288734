package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/node/config"
)

// page is a site with one document that knows when nothing has changed.
type docSite struct {
	text      atomic.Value // string
	sent, old atomic.Int32
}

func (p *docSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text := p.text.Load().(string)
	tag := fmt.Sprintf(`"%d"`, len(text))
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		p.old.Add(1)
		w.WriteHeader(http.StatusNotModified)
		return
	}
	p.sent.Add(1)
	w.Header().Set("Content-Type", "text/markdown")
	io.WriteString(w, text)
}

const acmeDocs = `# Acme SDK

Talks to Acme.

## Installing

Run the installer, then sign in.

## Creating invoices

Call acme.invoices.create({ customer, lines }) with at least one line. It returns the number of the invoice.

## Deleting customers

Call acme.customers.remove(id). Their invoices stay.
`

// talkative returns the address of a model that searches, and then says what
// it found.
func talkative(t *testing.T) (*scripted.Server, string) {
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		last := c.Last()
		switch {
		case last.Role == "tool":
			return scripted.Answer{Text: last.Results[0].Text}
		case slices.Contains(c.Tools, "search_docs"):
			return scripted.Answer{Calls: []scripted.Call{{Name: "search_docs", Arguments: `{"query":"create an invoice with lines","package":"acme","limit":1}`}}}
		}
		return scripted.Answer{Text: "I have nothing to search."}
	}}
	srv := httptest.NewServer(model)
	t.Cleanup(srv.Close)
	return model, srv.URL
}

// TestLibrary reads a document when the node starts, lets an agent
// find the right piece of it, and reads it again when it has changed.
func TestLibrary(t *testing.T) {
	site := &docSite{}
	site.text.Store(acmeDocs)
	web := httptest.NewServer(site)
	defer web.Close()
	model, address := talkative(t)

	c, o := fakeNode(t)
	c.Providers = map[string]config.Provider{"play": {URL: address}}
	c.Models.Default = "play:m"
	c.Docs.Sources = []config.DocsSource{{Package: "acme", URLs: []string{web.URL + "/sdk.md"}}}
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	here := client.New(n.Endpoint().URL, n.AdminKey())
	ctx := t.Context()
	var doc v1.Document
	for deadline := time.Now().Add(time.Minute); doc.State != "ready"; time.Sleep(5 * time.Millisecond) {
		all, err := here.Documents(ctx)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v %v", all, err)
		}
		if len(all) == 1 {
			doc = all[0]
		}
	}
	if doc.Title != "Acme SDK" || doc.Package != "acme" || doc.Owner != "" || !doc.Fetched || doc.Chunks < 3 {
		t.Errorf("%+v", doc)
	}

	ask := func() string {
		t.Helper()
		a, err := here.Chat(ctx, v1.ChatRequest{Message: "Bill Ann."})
		if err != nil {
			t.Fatal(err)
		}
		return a.Response
	}
	if said := ask(); !strings.Contains(said, "Acme SDK > Creating invoices") || !strings.Contains(said, "acme.invoices.create(") || strings.Contains(said, "customers.remove") {
		t.Errorf("the agent was told %q", said)
	}
	first := model.Seen()[0]
	if want := "There is documentation of these packages: acme.\nCall search_docs before you write code that uses them."; !strings.Contains(first.System, want) || strings.Contains(first.System, "run_code") {
		t.Errorf("instructions %q", first.System)
	}

	// Nothing has changed, then something has.
	if all, err := here.RefreshDocuments(ctx); err != nil || len(all) != 1 || all[0].Digest != doc.Digest || site.sent.Load() != 1 || site.old.Load() == 0 {
		t.Errorf("%+v %v, sent %d times", all, err, site.sent.Load())
	}
	site.text.Store(strings.Replace(acmeDocs, "acme.invoices.create(", "acme.billing.invoice(", 1) + "\nThe end.\n")
	if x, err := here.RefreshDocument(ctx, doc.ID); err != nil || x.Digest == doc.Digest || x.ID != doc.ID || site.sent.Load() != 2 {
		t.Errorf("%+v %v", x, err)
	}
	if said := ask(); !strings.Contains(said, "acme.billing.invoice(") || strings.Contains(said, "acme.invoices.create(") {
		t.Errorf("the agent was told %q", said)
	}

	// What callers name is fetched from public addresses only.
	if _, err := here.AddDocument(ctx, v1.DocumentRequest{URL: strings.Replace(web.URL, "127.0.0.1", "localhost", 1) + "/other.md"}); !client.IsKind(err, v1.Denied) || !strings.Contains(err.(*client.Error).Remedy, "docs.sources") {
		t.Errorf("a private address: %v", err)
	}
	k, err := here.CreateKey(ctx, v1.KeyRequest{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ann := client.New(n.Endpoint().URL, k.Secret)
	if _, err := ann.AddDocument(ctx, v1.DocumentRequest{URL: web.URL + "/sdk.md"}); err == nil || site.sent.Load() != 2 {
		t.Errorf("an owner had the node fetch: %v", err)
	}
	if found, err := ann.SearchDocuments(ctx, v1.SearchRequest{Query: "remove a customer", Limit: 1}); err != nil || len(found.Hits) != 1 || found.Hits[0].Headings[len(found.Hits[0].Headings)-1] != "Deleting customers" || found.Embedder == "" {
		t.Errorf("%+v %v", found, err)
	}
}

// TestPromptsWithoutDocs checks that models are told of the docs only
// where it has something.
func TestPromptsWithoutDocs(t *testing.T) {
	for name, off := range map[string]bool{"off": true, "empty": false} {
		t.Run(name, func(t *testing.T) {
			model, address := talkative(t)
			c, o := fakeNode(t)
			c.Providers = map[string]config.Provider{"play": {URL: address}}
			c.Models.Default, c.Docs.Off = "play:m", off
			n, err := Open(t.Context(), c, o)
			if err != nil {
				t.Fatal(err)
			}
			start(t, n)
			here := client.New(n.Endpoint().URL, n.AdminKey())
			if _, err := here.Chat(t.Context(), v1.ChatRequest{Message: "Hello."}); err != nil {
				t.Fatal(err)
			}
			first := model.Seen()[0]
			if first.System != c.AgentSpecs()[0].System || slices.Contains(first.Tools, "search_docs") || slices.Contains(first.Tools, "save_module") || strings.Contains(string(first.Raw), "search_docs") {
				t.Errorf("the model was told %q and has %v", first.System, first.Tools)
			}
			if _, err := here.Documents(t.Context()); client.IsKind(err, v1.Unsupported) != off {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestModelsOfTheLibrary holds that configured models compare meanings and put
// what is found in order, and that searches say so.
func TestModelsOfTheLibrary(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/", &scripted.Server{Play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{} }})
	mux.HandleFunc("POST /rerank", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Documents []string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		type result struct {
			Index int     `json:"index"`
			Score float64 `json:"relevance_score"`
		}
		var all []result
		for i, d := range q.Documents {
			x := result{Index: i}
			if strings.Contains(d, "customers.remove") { // it knows better
				x.Score = 1
			}
			all = append(all, x)
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"results": all}); err != nil {
			t.Error(err)
		}
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c, o := fakeNode(t)
	c.Providers = map[string]config.Provider{"play": {URL: srv.URL}}
	c.Models.Default, c.Models.Embedding, c.Models.Rerank = "play:m", "play:e", "play:r"
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	here := client.New(n.Endpoint().URL, n.AdminKey())
	if _, err := here.AddDocument(t.Context(), v1.DocumentRequest{Text: acmeDocs}); err != nil {
		t.Fatal(err)
	}
	found, err := here.SearchDocuments(t.Context(), v1.SearchRequest{Query: "creating invoices with acme", Limit: 1})
	if err != nil || found.Embedder != "play:e" || found.Note != "" || len(found.Hits) != 1 || !strings.Contains(found.Hits[0].Text, "customers.remove") {
		t.Errorf("%+v %v", found, err)
	}
}
