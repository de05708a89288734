package mcp_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/mcp"
	"github.com/engi-dev/engi/test/apitest"
)

const (
	script  = "document.title = 'shown'"
	appType = "text/html;profile=mcp-app"
	knowsUI = `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`
)

// showing are the options of a client that shows interfaces.
func showing() *sdk.ClientOptions {
	var c sdk.ClientCapabilities
	c.AddExtension("io.modelcontextprotocol/ui", map[string]any{"mimeTypes": []any{appType}})
	return &sdk.ClientOptions{Capabilities: &c}
}

// A pagesServer has sessions with pages, and nothing else.
type pagesServer struct {
	*apitest.Fixture
	pages *recorder
	url   string
	again func() string // the address of another server
}

// A recorder keeps the last action.
type recorder struct {
	*apitest.Pages
	last    engi.PageAction
	watches atomic.Int64 // begun
}

func (r *recorder) Watch(ctx context.Context, viewer engi.Viewer, session string, seq int64) iter.Seq2[engi.PageUpdate, error] {
	return func(yield func(engi.PageUpdate, error) bool) {
		r.watches.Add(1)
		r.Pages.Watch(ctx, viewer, session, seq)(yield)
	}
}

// watched waits until so many watches have begun.
func (r *recorder) watched(t *testing.T, n int64) {
	for deadline := time.Now().Add(time.Minute); r.watches.Load() < n; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d watches have begun, want %d", r.watches.Load(), n)
			return
		}
	}
}

func (r *recorder) Act(ctx context.Context, a engi.PageAction) (int64, error) {
	r.last = a
	return r.Pages.Act(ctx, a)
}

func servePages(t *testing.T, view []byte) pagesServer {
	t.Helper()
	p := pagesServer{Fixture: apitest.New(nil)}
	t.Cleanup(p.Close)
	sessions := &apitest.Sessions{}
	p.pages = &recorder{Pages: &apitest.Pages{Sessions: sessions}}
	p.again = func() string {
		s, err := mcp.New(mcp.Options{Services: tool.Services{}, Sessions: sessions, Pages: p.pages, View: view, Keys: p.Keys, Clients: p.Clients, Version: "1"})
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(s)
		t.Cleanup(web.Close)
		t.Cleanup(web.CloseClientConnections)
		return web.URL
	}
	p.url = p.again()
	return p
}

// TestInterruptedActions comes back to an action at another server, which does not do
// it again and has its answer.
func TestInterruptedActions(t *testing.T) {
	p := servePages(t, []byte(script))
	key := p.key(t, "ann")
	use(t, connect(t, p.url, key, nil), "create_session", args{"name": "page"})
	session := begin(t, p.url, key)
	stream := ask(t, "POST", p.url, key, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"act_on_page","arguments":{"session":"page","action":"wait"}}}`, session...)
	before := next(t, bufio.NewReader(stream.Body))
	go func() {
		p.pages.watched(t, 2) // by both servers
		if err := p.pages.Cancel(t.Context(), "ann", "page"); err != nil {
			t.Error(err)
		}
	}()
	later := ask(t, "GET", p.again(), key, "", append(session, "Last-Event-ID", before.id)...)
	if later.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", later.Status, bodyOf(t, later))
	}
	if got := next(t, bufio.NewReader(later.Body)); !strings.Contains(got.data, "The answer is cancelled") {
		t.Errorf("%+v", got)
	}
	acted := 0
	for u, err := range p.pages.Watch(t.Context(), "ann", "page", 1) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == engi.PageActed {
			acted++
		}
		if u.Kind == engi.PageDone {
			break
		}
	}
	if acted != 1 {
		t.Errorf("it was done %d times", acted)
	}
}

// key returns a secret of an owner.
func (p pagesServer) key(t *testing.T, owner engi.Owner, scopes ...engi.Scope) string {
	t.Helper()
	_, secret, err := p.Keys.Create(t.Context(), engi.Key{Owner: owner, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

type pageData struct {
	Session string
	Seq     int64
	HTML    string
	Working bool
	Updates []struct {
		Type, HTML, Text string
		Seq              int64
		Partial          bool
	}
	Idle bool
}

// data calls a tool and returns what a program sees of its result.
func data(t *testing.T, c *sdk.ClientSession, name string, a args) (d pageData) {
	t.Helper()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: a})
	if err != nil || r.IsError {
		t.Fatalf("%s: %v %s", name, err, text(r))
	}
	raw, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPages(t *testing.T) {
	p := servePages(t, []byte(script))
	c := connect(t, p.url, p.key(t, "ann"), showing())
	use(t, c, "create_session", args{"name": "page"})

	if d := data(t, c, "show_page", args{"session": "page"}); d.Session == "" || d.HTML != "" || d.Working {
		t.Errorf("%+v", d)
	}
	d := data(t, c, "act_on_page", args{"session": "page", "action": "demo-counter", "data": args{"n": 1, "list": []any{true, "x"}}})
	if !strings.Contains(d.HTML, `<h1 id="count">0</h1>`) || d.Seq == 0 || d.Working {
		t.Errorf("%+v", d)
	}
	if a := p.pages.last; string(a.Data) != `{"list":[true,"x"],"n":1}` || a.Viewer != "ann" || a.Idempotency == "" {
		t.Errorf("%+v", a)
	}
	if got := use(t, c, "show_page", args{"session": "page"}); !strings.Contains(got, `id="count"`) {
		t.Errorf("models see %q", got)
	}

	// The whole page first, then what has happened since, and nothing twice.
	after := int64(0)
	follow := func() (kinds string) {
		t.Helper()
		for began := time.Now(); ; {
			d = data(t, c, "watch_page", args{"session": "page", "after": after})
			for _, u := range d.Updates {
				if kinds += u.Type + " "; u.Seq > 0 && u.Seq <= after {
					t.Errorf("%d comes after %d", u.Seq, after)
				}
				after = max(after, u.Seq)
			}
			switch {
			case d.Idle && len(d.Updates) == 0:
				return kinds
			case time.Since(began) > time.Minute:
				t.Fatalf("it does not come to an end: %+v", d)
			}
		}
	}
	if got := follow(); got != "html " {
		t.Errorf("%q", got)
	}
	if d = data(t, c, "act_on_page", args{"session": "page", "action": "add", "no_wait": true}); !d.Working || d.HTML != "" || d.Seq <= after {
		t.Errorf("%+v", d)
	}
	if got := follow(); got != "action patch done " {
		t.Errorf("%q", got)
	}

	// While an answer is given it waits, and of a page that is being written only the last is of use.
	data(t, c, "act_on_page", args{"session": "page", "action": "wait", "no_wait": true})
	for kinds := ""; !strings.Contains(kinds, "stats"); {
		d = data(t, c, "watch_page", args{"session": "page", "after": after})
		for _, u := range d.Updates {
			kinds += u.Type
			after = max(after, u.Seq)
		}
	}
	watched := p.pages.watches.Load()
	go func() {
		p.pages.watched(t, watched+1)
		run := engi.PageUpdate{Kind: engi.PageReplaced, Run: engi.NewRunID(), Partial: true}
		var all []engi.PageUpdate
		for _, run.HTML = range []string{"<p>a", "<p>ab", "<p>abc"} {
			all = append(all, run)
		}
		if err := p.pages.Happen(t.Context(), engi.SessionID(d.Session), all...); err != nil {
			t.Error(err)
		}
	}()
	if d = data(t, c, "watch_page", args{"session": "page", "after": after}); len(d.Updates) != 1 || d.Updates[0].HTML != "<p>abc" {
		t.Errorf("%+v", d)
	}
	if err := p.pages.Cancel(t.Context(), "ann", "page"); err != nil {
		t.Fatal(err)
	}
	if got := use(t, c, "act_on_page", args{"session": "page", "action": "fail"}); !strings.HasPrefix(got, "The answer is failed: the model is gone\n") {
		t.Errorf("%q", got)
	}
}

// TestPagesAreTheirOwners has others try, and keys that may not.
func TestPagesAreTheirOwners(t *testing.T) {
	p := servePages(t, []byte(script))
	c := connect(t, p.url, p.key(t, "ann"), showing())
	var made struct{ Session string }
	if err := json.Unmarshal([]byte(use(t, c, "create_session", args{"name": "page"})), &made); err != nil {
		t.Fatal(err)
	}
	use(t, c, "act_on_page", args{"session": "page", "action": "demo-counter"})
	uri := "ui://engi/sessions/"
	for who, may := range map[string]struct {
		key       string
		see, act  bool
		mayScopes []engi.Scope
	}{
		"another":          {key: p.key(t, "bob")},
		"an administrator": {key: p.Admin},
		"programs":         {key: p.key(t, "ann", engi.ScopeExecutions, engi.ScopeSandboxes)},
		"a reader":         {key: p.key(t, "ann", engi.ScopeRead), see: true},
		"agents":           {key: p.key(t, "ann", engi.ScopeAgents), see: true, act: true, mayScopes: []engi.Scope{engi.ScopeAgents}},
	} {
		c := connect(t, p.url, may.key, showing())
		for _, session := range []string{made.Session, "page"} {
			for name, ok := range map[string]bool{"show_page": may.see, "watch_page": may.see, "act_on_page": may.act} {
				a := args{"session": session}
				if name == "act_on_page" {
					a["action"] = "add"
				}
				r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: a})
				if err != nil || r.IsError == ok || !ok && strings.Contains(text(r), "count") {
					t.Errorf("%s uses %s: %v %s", who, name, err, text(r))
				}
			}
			if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri + session}); (err == nil) != may.see {
				t.Errorf("%s reads the page: %v", who, err)
			}
		}
		if may.act && !reflect.DeepEqual(p.pages.last.Scopes, may.mayScopes) {
			t.Errorf("the answer may use %q", p.pages.last.Scopes)
		}
	}
}

// TestViews reads the documents that show pages, as a client of each revision.
func TestViews(t *testing.T) {
	p := servePages(t, []byte(script))
	key := p.key(t, "ann")
	c := connect(t, p.url, key, showing())
	var made struct{ Session string }
	if err := json.Unmarshal([]byte(use(t, c, "create_session", args{"name": "page"})), &made); err != nil {
		t.Fatal(err)
	}
	tools := map[string][]any{}
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if ui, ok := x.Meta["ui"].(map[string]any); ok {
			tools[x.Name] = ui["visibility"].([]any)
			if ui["resourceUri"] != "ui://engi/page" || x.Meta["ui/resourceUri"] != "ui://engi/page" {
				t.Errorf("%s: %v", x.Name, x.Meta)
			}
		}
	}
	if want := map[string][]any{"show_page": {"model", "app"}, "act_on_page": {"model", "app"}, "watch_page": {"app"}}; !reflect.DeepEqual(tools, want) {
		t.Errorf("%v", tools)
	}
	sum := sha256.Sum256([]byte(script))
	policy := "default-src 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
	for uri, given := range map[string]string{"ui://engi/page": "{}", "ui://engi/sessions/page": `{"session":"` + made.Session + `"}`} {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(r.Contents) != 1 {
			t.Fatalf("%s: %v %+v", uri, err, r)
		}
		x := r.Contents[0]
		for _, part := range []string{"<!DOCTYPE html>", `content="` + policy + `"`, "<script type=\"module\">" + script + "</script>", ">" + given + "</script>"} {
			if !strings.Contains(x.Text, part) {
				t.Errorf("%s has no %s: %s", uri, part, x.Text)
			}
		}
		ui, _ := x.Meta["ui"].(map[string]any)
		csp, _ := ui["csp"].(map[string]any)
		if x.MIMEType != appType || x.URI != uri || len(csp) != 4 {
			t.Errorf("%+v", x)
		}
		for name, domains := range csp {
			if len(domains.([]any)) > 0 {
				t.Errorf("%s asks for %s %v", uri, name, domains)
			}
		}
	}

	// Without sessions of the protocol, each request says what its client knows; who does
	// not know the extension is told nothing of it.
	for capabilities, knows := range map[string]bool{knowsUI: true, `{}`: false, `{"extensions":{"io.modelcontextprotocol/ui":{}}}`: false, `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/plain"]}}}`: false} {
		for method, marks := range map[string][]string{"tools/list": {`"watch_page"`, `resourceUri`}, "resources/list": {"ui://engi/page"}, "resources/templates/list": {"ui://engi/sessions/"}} {
			got := bodyOf(t, ask(t, "POST", p.url, key, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+meta(capabilities)+`}}`, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method))
			for _, mark := range marks {
				if strings.Contains(got, mark) != knows {
					t.Errorf("%s for a client of %s: %s", method, capabilities, got)
				}
			}
			if method == "tools/list" && !strings.Contains(got, `"act_on_page"`) {
				t.Errorf("there is no act_on_page for a client of %s: %s", capabilities, got)
			}
		}
	}
	plain := connect(t, p.url, key, nil)
	for x, err := range plain.Tools(t.Context(), nil) {
		if err != nil || x.Name == "watch_page" || x.Meta != nil {
			t.Errorf("%v %+v", err, x)
		}
	}
	if d := data(t, plain, "act_on_page", args{"session": "page", "action": "demo-counter"}); d.HTML == "" {
		t.Errorf("%+v", d)
	}
}

// TestNoPages has a node without models, and a build without the script.
func TestNoPages(t *testing.T) {
	p := servePages(t, nil)
	for x, err := range connect(t, p.url, p.User, showing()).Tools(t.Context(), nil) {
		if err != nil || x.Name == "watch_page" || x.Meta != nil {
			t.Errorf("%v %+v", err, x)
		}
	}
	if _, err := mcp.New(mcp.Options{Services: tool.Services{}, Pages: p.pages, View: []byte("'</SCRIPT>'"), Keys: p.Keys, Clients: p.Clients}); err == nil {
		t.Error("a script that ends itself is served")
	}
	s, err := mcp.New(mcp.Options{Services: tool.Services{Executions: p.Executions}, View: []byte(script), Keys: p.Keys, Clients: p.Clients})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	defer web.Close()
	c := connect(t, web.URL, p.User, showing())
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil || strings.Contains(x.Name, "page") {
			t.Errorf("%v %+v", err, x)
		}
	}
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "ui://engi/page"}); err == nil {
		t.Error("a page is shown")
	}
	if _, ok := c.InitializeResult().Capabilities.Extensions["io.modelcontextprotocol/ui"]; ok {
		t.Error("the extension is declared")
	}
}
