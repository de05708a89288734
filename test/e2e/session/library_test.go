package session

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

const acmeDocs = `# Acme SDK

## Greeting

Make a client with new Acme({ key }) and call greet(name), which puts a name between brackets.

## Issues

Call issues() for all that are open.
`

const greeter = `import { Acme } from "@acme/sdk";
export const hello = (name: string) => new Acme({ key: "k" }).greet(name);
`

// call is a call of a tool with arguments.
func call(name string, arguments map[string]any) scripted.Answer {
	raw, err := json.Marshal(arguments)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return scripted.Answer{Calls: []scripted.Call{{Name: name, Arguments: string(raw)}}}
}

// TestSearchRunSave has an agent do its typical work: search
// the docs, run code, and announce the modules it has saved, which other sessions
// find, and use, until the modules are removed.
func TestSearchRunSave(t *testing.T) {
	env.Slow(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, acmeDocs) }))
	defer web.Close()
	found := make(chan string, 10)
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		tools := 0
		for _, turn := range c.Turns {
			tools += len(turn.Results)
		}
		last := ""
		if r := c.Last().Results; len(r) > 0 {
			last = r[0].Text
		}
		second := strings.Contains(c.Turns[0].Text, "again")
		switch {
		case tools == 0:
			return call("search_docs", map[string]any{"query": "greet somebody with a name between brackets", "limit": 3})
		case tools == 1 && second:
			found <- last
			_, source, _ := strings.Cut(last, "/workspace/lib/hello.ts first:\n")
			source, _, _ = strings.Cut(source, "\n\n2. ") // cut off the following hits
			return call("write_file", map[string]any{"path": "/workspace/lib/hello.ts", "content": source})
		case tools == 1:
			found <- last
			return call("run_code", map[string]any{"code": "await Deno.mkdir('/workspace/lib', { recursive: true });\nawait Deno.writeTextFile('/workspace/lib/hello.ts', " + quoted(greeter) + ");\n" +
				"const { hello } = await import('./lib/hello.ts');\nhello('you')"})
		case tools == 2 && second:
			return call("run_code", map[string]any{"code": "import { hello } from './lib/hello.ts';\nhello('them')"})
		case second:
			return scripted.Answer{Text: last}
		}
		return scripted.Answer{Text: last + "\n" + `{"type":"code_modules","modules":[{"path":"lib/hello.ts","description":"Greets somebody, with the name between brackets.","exports":["hello"],"usage":"import { hello } from './lib/hello.ts'","scope":"user"},` +
			`{"path":"lib/never.ts","description":"Was never written.","exports":[],"usage":""}]}`}
	}}
	srv := httptest.NewServer(model)
	defer srv.Close()

	r := newRegistry(t)
	acme(t, r)
	c := settings(t, r, strings.Replace(plain, "https://acme.example/sdk.md", web.URL+"/sdk.md", 1)+`
[providers.play]
url = "`+srv.URL+`"
[models]
default = "play:m"
`)
	n := run(t, c)
	n.installed(t)
	here := client.New(n.Endpoint().URL, n.AdminKey())
	ctx := t.Context()
	wait(t, "the documentation is read", func() ([]v1.DocumentPackage, bool) {
		all, err := here.DocumentPackages(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return all, len(all) == 1 && all[0].Name == "@acme/sdk"
	})

	first := n.session(t, engi.SessionSpec{Name: "first"})
	a, err := here.Chat(ctx, v1.ChatRequest{RunRequest: v1.RunRequest{Session: "first"}, Message: "Greet me."})
	if err != nil || !strings.Contains(a.Response, `"result":"[you]"`) {
		t.Fatalf("%+v %v", a, err)
	}
	if text := <-found; !strings.HasPrefix(text, "1. [@acme/sdk] Acme SDK > Greeting\n"+web.URL) {
		t.Errorf("found %q", text)
	}
	seen := model.Seen()[0]
	if !slices.Contains(seen.Tools, "search_docs") || !slices.Contains(seen.Tools, "save_module") || !strings.Contains(seen.System, "It can import these packages: @acme/sdk.") || !strings.Contains(seen.System, "code_modules") {
		t.Errorf("instructions %q, tools %v", seen.System, seen.Tools)
	}
	modules := wait(t, "the module is saved", func() ([]v1.CodeModule, bool) {
		all, err := here.SessionModules(ctx, "first")
		if err != nil {
			t.Fatal(err)
		}
		return all, len(all) > 0
	})
	if m := modules[0]; len(modules) != 1 || m.Path != "lib/hello.ts" || m.Source != greeter || m.SessionID != string(first.ID) {
		t.Errorf("%+v", modules)
	}

	n.session(t, engi.SessionSpec{Name: "second"})
	a, err = here.Chat(ctx, v1.ChatRequest{RunRequest: v1.RunRequest{Session: "second"}, Message: "Greet them again."})
	if err != nil || !strings.Contains(a.Response, `"result":"[them]"`) {
		t.Fatalf("%+v %v; found %s", a, err, <-found)
	}

	// Modules of scope session are removed with their volume, those of scope user stay.
	n.code(t, first.ID, "await Deno.writeTextFile('/workspace/own.ts', 'export const x = 1')")
	if _, err := here.SaveModules(ctx, "first", []v1.CodeModuleRequest{{Path: "own.ts", Description: "Has an x."}}); err != nil {
		t.Fatal(err)
	}
	if x, err := here.SearchDocuments(ctx, v1.SearchRequest{Query: "has an x", Session: "first", Limit: 1}); err != nil || len(x.Hits) != 1 || x.Hits[0].Module == nil || x.Hits[0].Module.Path != "own.ts" {
		t.Errorf("%+v %v", x, err)
	}
	if err := here.TerminateSession(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	x, err := here.SearchDocuments(ctx, v1.SearchRequest{Query: "has an x", Session: string(first.ID), Limit: 50})
	if err != nil || slices.ContainsFunc(x.Hits, func(h v1.Hit) bool { return h.Module != nil && h.Module.Path == "own.ts" }) {
		t.Errorf("%+v %v", x, err)
	}
	if all, err := here.Modules(ctx); err != nil || len(all) != 1 || all[0].Path != "lib/hello.ts" {
		t.Errorf("%+v %v", all, err)
	}
}

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(raw)
}
