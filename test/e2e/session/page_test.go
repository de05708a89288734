package session

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

const titles = `import { Acme } from "@acme/sdk";
export const titles = async () => {
  const acme = new Acme({ key: Deno.env.get("ACME_API_KEY")!, url: "https://api.acme.test" });
  return (await acme.issues()).issues.map((i: { title: string }) => i.title);
};
`

// act performs an action on the page of a session, and returns the page after the answer.
func act(t *testing.T, here *client.Client, session, action string) v1.Page {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	seq, err := here.Act(ctx, session, v1.PageActionRequest{Action: action}, "")
	if err != nil {
		t.Fatal(err)
	}
	for u, err := range here.WatchPage(ctx, session, seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Type == v1.PageBad {
			t.Errorf("%+v", u)
		}
		if u.Type == v1.PageDone {
			break
		}
	}
	page, err := here.Page(ctx, session, 0)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestPage has a model that draws data of an API: it searches the docs, runs code whose
// secret the egress gateway inserts, and saves a module, which it finds again in
// another session.
func TestPage(t *testing.T) {
	env.Slow(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(acmeDocs)) }))
	defer web.Close()
	play := func(c scripted.Conversation) scripted.Answer {
		var results []string
		for _, turn := range c.Turns {
			for _, r := range turn.Results {
				results = append(results, r.Text)
			}
		}
		again := strings.Contains(c.Turns[0].Text, "Action: again")
		switch {
		case len(results) == 0:
			return call("search_docs", map[string]any{"query": "the titles of all issues that are open"})
		case len(results) == 1 && again:
			_, source, _ := strings.Cut(results[0], "/workspace/lib/titles.ts first:\n")
			source, _, _ = strings.Cut(source, "\n\n2. ")
			return call("run_code", map[string]any{"code": write(source)})
		case len(results) == 1 && strings.Contains(results[0], "Call issues()"):
			return call("run_code", map[string]any{"code": write(titles)})
		}
		page := `{"type":"full","html":"<ul id=\"issues\"></ul>"}` + "\n" + `{"type":"patches","patches":[{"selector":"#issues","append":"<li>` +
			map[bool]string{true: "first", false: "nothing"}[strings.Contains(results[1], `["first"]`)] + `</li>"}]}` + "\n"
		if !again {
			page += `{"type":"code_modules","modules":[{"path":"lib/titles.ts","description":"The titles of all issues that are open.","exports":["titles"],"usage":"import { titles } from './lib/titles.ts'","scope":"user"}]}`
		}
		return scripted.Answer{Text: page}
	}
	model := &scripted.Server{Play: play}
	srv := httptest.NewServer(model)
	defer srv.Close()
	r := newRegistry(t)
	acme(t, r)
	a := serveAPI(t, "api.acme.test")
	t.Setenv("ACME_API_KEY", secretValue)
	const providers = `
[models]
default = "play:m"
[providers.play]
url = `
	n := run(t, settings(t, r, providers+`"`+srv.URL+`"
[network]
hosts = ["api.acme.test=`+outside+`"]
[sandbox]
enabled = true
[[sandbox.dependencies]]
package = "@acme/sdk"
docs = ["`+web.URL+`/sdk.md"]
secret_env = "ACME_API_KEY"
hosts = ["api.acme.test"]
`))
	n.installed(t)
	here := client.New(n.Endpoint().URL, n.AdminKey())
	wait(t, "the documentation is read", func() ([]v1.DocumentPackage, bool) {
		all, err := here.DocumentPackages(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all, len(all) == 1
	})
	const want = `<ul id="issues"><li>first</li></ul>`
	n.session(t, engi.SessionSpec{Name: "first"})
	if page := act(t, here, "first", "show"); page.HTML != want {
		t.Fatalf("%+v", page)
	}
	if x, err := n.Sessions.Get(t.Context(), engi.Everyone, "first"); err != nil || x.State != engi.SessionRunning {
		t.Errorf("%+v, %v", x, err)
	}
	wait(t, "the module is saved", func() ([]v1.CodeModule, bool) {
		all, err := here.SessionModules(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		return all, len(all) == 1 && all[0].Source == titles
	})
	n.session(t, engi.SessionSpec{Name: "second"})
	if page := act(t, here, "second", "again"); page.HTML != want {
		t.Errorf("%+v", page)
	}
	if keys := a.seen(); len(keys) != 2 || keys[0] != "Bearer "+secretValue || keys[1] != keys[0] {
		t.Errorf("the API saw %q", keys)
	}
	for _, q := range model.Seen() {
		if strings.Contains(string(q.Raw), secretValue) {
			t.Error("the model saw the secret")
		}
	}
	if s := model.Seen()[0].System; !strings.Contains(s, "It can import these packages: @acme/sdk.") || !strings.Contains(s, `"code_modules"`) {
		t.Errorf("instructions %q", s)
	}

	// Without sandboxes, none of these features exists.
	bare := &scripted.Server{Play: func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"full","html":"<p>hello</p>"}`}
	}}
	other := httptest.NewServer(bare)
	defer other.Close()
	n = run(t, settings(t, r, providers+`"`+other.URL+`"
[sandbox]
enabled = false
`))
	n.session(t, engi.SessionSpec{Name: "bare"})
	if page := act(t, client.New(n.Endpoint().URL, n.AdminKey()), "bare", "show"); page.HTML != "<p>hello</p>" {
		t.Errorf("%+v", page)
	}
	q := bare.Seen()[0]
	for _, word := range []string{"sandbox", "run_code", "search_docs", "code_modules", "/workspace", "package"} {
		if strings.Contains(q.System, word) {
			t.Errorf("instructions %q", q.System)
		}
	}
	if len(q.Tools) > 0 {
		t.Errorf("tools %q", q.Tools)
	}
}

// write returns code that saves a module and uses it.
func write(module string) string {
	return "await Deno.mkdir('/workspace/lib', { recursive: true });\nawait Deno.writeTextFile('/workspace/lib/titles.ts', " + quoted(module) + ");\n" +
		"const { titles } = await import('./lib/titles.ts');\nawait titles()"
}
