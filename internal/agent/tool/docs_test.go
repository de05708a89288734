package tool_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// docsServices returns a fake library and two sessions.
func docsServices(t *testing.T) (tool.Services, [2]engi.Session) {
	t.Helper()
	sessions := &apitest.Sessions{}
	services := tool.Services{Sessions: sessions, Docs: &apitest.Docs{Sessions: sessions}}
	var two [2]engi.Session
	for i, name := range []string{"one", "two"} {
		session, err := sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		two[i] = session
	}
	return services, two
}

func use(t *testing.T, x tool.Tool, e tool.Env, arguments string) tool.Result {
	t.Helper()
	r, err := x.Run(t.Context(), &tool.Call{Env: e, ID: "c", Out: func(engi.Stream, []byte) {}}, arguments)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func add(t *testing.T, s tool.Services, spec engi.DocumentSpec) {
	t.Helper()
	if _, err := s.Docs.Add(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

func TestSearchDocs(t *testing.T) {
	s, sessions := docsServices(t)
	search, save := find(t, s, "search_docs"), find(t, s, "save_module")
	add(t, s, engi.DocumentSpec{Package: "@acme/sdk", URL: "https://example.com/sdk.md", Text: "# Acme\n\nIt is\r\ngood.\n\n## Issues\n\nCall issues().\n"})
	add(t, s, engi.DocumentSpec{Owner: "bob", Package: "secret", Text: "# Secret issues\n"})
	ann, one := tool.Env{Owner: "ann"}, tool.Env{Owner: "ann", Session: "one"}

	r := use(t, search, ann, `{"query":"issues"}`)
	if want := "1. [@acme/sdk] Acme > Issues\nhttps://example.com/sdk.md\nIssues\n\nCall issues()."; r.Failed || r.Text != want {
		t.Errorf("%q, want %q", r.Text, want)
	}
	if r := use(t, search, ann, `{"query":"zebra"}`); r.Failed || !strings.HasPrefix(r.Text, "nothing found; there is documentation of @acme/sdk") {
		t.Errorf("%q", r.Text)
	}
	for _, bad := range []string{`{}`, `{"query":" "}`, `{"query":"x","limit":21}`, `{"query":"x","limit":-1}`, `{"query":"x","session":"two"}`} {
		if r := use(t, search, ann, bad); !r.Failed {
			t.Errorf("%s: %q", bad, r.Text)
		}
	}

	// Other sessions find a module of scope user with its source.
	for _, args := range []string{
		`{"path":"/workspace/lib/own.ts","description":"own issues","exports":["own"],"usage":"import { own } from './lib/own.ts'"}`,
		`{"path":"lib/all.ts","description":"all issues","exports":["all"],"usage":"import { all } from './lib/all.ts'","scope":"user"}`,
	} {
		if r := use(t, save, one, args); r.Failed || !strings.HasPrefix(r.Text, "saved lib/") {
			t.Errorf("%q", r.Text)
		}
	}
	if r := use(t, save, one, `{"path":"missing.ts","description":"","exports":[],"usage":""}`); !r.Failed {
		t.Errorf("%q", r.Text)
	}
	r = use(t, search, one, `{"query":"issues"}`)
	if !strings.Contains(r.Text, "module lib/own.ts: own issues\nexports own\nimport { own } from './lib/own.ts'") || strings.Contains(r.Text, "another session") {
		t.Errorf("%s", r.Text)
	}
	r = use(t, search, tool.Env{Owner: "ann", Session: string(sessions[1].ID)}, `{"query":"issues"}`)
	if strings.Contains(r.Text, "own.ts") || !strings.Contains(r.Text, "write this to /workspace/lib/all.ts first:\nexport const source = 'lib/all.ts'") {
		t.Errorf("%s", r.Text)
	}
	if r := use(t, search, tool.Env{Owner: "bob"}, `{"query":"issues"}`); strings.Contains(r.Text, ".ts") || !strings.Contains(r.Text, "Secret") {
		t.Errorf("%s", r.Text)
	}
}

// TestPrompts checks that the system prompt gets a few lines if there is
// documentation, and nothing at all if there is none.
func TestPrompts(t *testing.T) {
	s, _ := docsServices(t)
	search, save, run := find(t, s, "search_docs"), find(t, s, "save_module"), find(t, s, "run_code")
	in := tool.Env{Owner: "ann", Session: "one"}
	if search.Available(t.Context(), in) {
		t.Error("the search is offered although there is nothing to find")
	}
	for _, x := range []tool.Tool{search, save} {
		if text := x.Prompt(t.Context(), in); text != "" {
			t.Errorf("%s says %q", x.Name, text)
		}
	}
	use(t, save, in, `{"path":"lib/a.ts","description":"a","exports":[],"usage":""}`)
	if !search.Available(t.Context(), in) || search.Available(t.Context(), tool.Env{Owner: "ann"}) {
		t.Error("the search of a module is not offered to its session alone")
	}
	add(t, s, engi.DocumentSpec{Owner: "ann", Text: "# Notes\n"})
	if text := search.Prompt(t.Context(), in); strings.Contains(text, "packages") || !strings.Contains(text, "search_docs") {
		t.Errorf("%q", text)
	}
	if search.Available(t.Context(), tool.Env{Owner: "bob"}) {
		t.Error("the search is offered for another owner's documents")
	}
	for _, name := range []string{"zeta", "@acme/sdk"} {
		add(t, s, engi.DocumentSpec{Package: name, Text: "# " + name + "\n"})
	}
	var all []string
	for _, x := range []tool.Tool{run, save, search} {
		all = append(all, x.Prompt(t.Context(), in))
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{"documentation of these packages: @acme/sdk, zeta.", "search_docs before you write code", "run_code", "can import these packages: @acme/sdk.", "save_module", `{"type":"code_modules","modules":[`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if lines := strings.Count(text, "\n") + 1; lines > 5 || len(text) > 800 {
		t.Errorf("%d lines, %d bytes:\n%s", lines, len(text), text)
	}
	for i := range 300 {
		add(t, s, engi.DocumentSpec{Package: "package-" + strings.Repeat("x", 100) + string(rune('a'+i%26)) + string(rune('a'+i/26)), Text: "# x\n"})
	}
	if text := search.Prompt(t.Context(), in); len(text) > 6000 || !strings.Contains(text, " more.") {
		t.Errorf("%d bytes", len(text))
	}
}

func TestNoLibraryNoTools(t *testing.T) {
	all, err := tool.Builtin(tool.Services{Sessions: &apitest.Sessions{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Name == "search_docs" || x.Name == "save_module" {
			t.Errorf("there is %s", x.Name)
		}
	}
}
