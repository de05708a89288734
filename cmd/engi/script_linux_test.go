package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
)

var update = flag.Bool("update", false, "write docs/cli.md and docs/configuration.md anew")

func TestMain(m *testing.M) {
	if os.Getenv("ENGI_TEST_IS_ENGI") != "" { // a program runs what it takes for engi
		os.Exit(engiMain(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(m, map[string]func(){
		"engi": func() {
			enter(os.Args[1:])
			os.Exit(engiMain(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// missing says what this machine lacks for real sandboxes; "" if nothing.
func missing() string {
	c, _, err := config.Load(config.From{Env: os.Environ()})
	if err != nil {
		return err.Error()
	}
	for _, v := range []string{"ENGI_RUNSC", "ENGI_GUEST", "ENGI_JS"} {
		if os.Getenv(v) == "" {
			name := strings.ToLower(strings.TrimPrefix(v, "ENGI_"))
			path, err := filepath.Abs("../../bin/" + map[string]string{"runsc": "runsc", "guest": "engi-guest", "js": "engi-js"}[name])
			if err != nil {
				return err.Error()
			}
			os.Setenv(v, path)
		}
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			return "the program " + os.Getenv(v) + " (make build)"
		}
	}
	if ok, err := node.HasTemplate(c, "base"); err != nil || !ok {
		return "the template base (make template)"
	}
	return ""
}

// TestScripts runs the scripts of test/script. Those in real need a machine
// that can run sandboxes.
func TestScripts(t *testing.T) {
	t.Run("plain", func(t *testing.T) { runScripts(t, "../../test/script/plain") })
	t.Run("real", func(t *testing.T) {
		if what := missing(); what != "" {
			if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
				t.Fatalf("needs %s", what)
			}
			t.Skipf("needs %s", what)
		}
		runScripts(t, "../../test/script/real")
		examples := t.TempDir()
		pages := []string{"README.md", "docs/executions.md", "docs/sandboxes.md", "docs/secrets.md", "docs/scripts.md", "docs/workflows.md"}
		if !testing.Short() { // these take minutes, or ask registries
			pages = append(pages, "docs/network.md", "docs/network-rules.md", "docs/mirror.md", "docs/events.md", "docs/pages.md", "docs/apps.md", "docs/workspaces.md", "docs/approvals.md", "docs/ssh.md", "docs/docs.md", "docs/templates.md", "docs/operations.md", "docs/security.md")
		}
		for _, page := range pages {
			pageScript(t, page, examples)
		}
		runScripts(t, examples)
	})
}

// pageScript writes the console blocks of a page as a script: after each line
// that begins with "$ " comes what the command prints, and its exit code in
// brackets if it is not 0.
func pageScript(t *testing.T, page, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var script, files strings.Builder
	n := 0
	for i, block := range strings.Split(string(text), "```console\n") {
		if i == 0 {
			continue
		}
		block, _, _ = strings.Cut(block, "```")
		for _, step := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			n++
			// The examples call the program by its name in a clone.
			command = strings.ReplaceAll(command, "bin/engi", "engi")
			quoted := strings.ReplaceAll("{ "+command+"; }; c=$?; [ $c = 0 ] || echo \"[$c]\"", "'", "''")
			fmt.Fprintf(&script, "exec sh -c '%s'\ncmp stdout want%d\n", quoted, n)
			fmt.Fprintf(&files, "-- want%d --\n%s", n, want)
			if want != "" && !strings.HasSuffix(want, "\n") {
				files.WriteString("\n")
			}
		}
	}
	if n == 0 {
		return
	}
	name := strings.ReplaceAll(strings.TrimSuffix(page, ".md"), "/", "-") + ".txtar"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script.String()+files.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			// The work directory's path is too long for sockets below it.
			data, err := os.MkdirTemp("", "engi-s")
			if err != nil {
				return err
			}
			e.Defer(func() { os.RemoveAll(data) })
			c, _, err := config.Load(config.From{Env: os.Environ()})
			if err != nil {
				return err
			}
			for _, kv := range [][2]string{
				{"ENGI_DATA_DIR", data}, {"ENGI_CACHE_DIR", c.CacheDir}, {"ENGI_RUNSC", os.Getenv("ENGI_RUNSC")}, {"ENGI_GUEST", os.Getenv("ENGI_GUEST")}, {"ENGI_JS", os.Getenv("ENGI_JS")},
				{"ENGI_LISTEN", "127.0.0.1:0"}, {"HOME", e.WorkDir},
			} {
				e.Setenv(kv[0], kv[1])
			}
			if !strings.HasSuffix(e.WorkDir, "script-docs-apps") {
				return nil
			}
			// The page has a model write, which follows a script.
			model := httptest.NewServer(&scripted.Server{Play: sells})
			e.Defer(model.Close)
			file := filepath.Join(e.WorkDir, "config.toml")
			e.Setenv("ENGI_CONFIG", file)
			return os.WriteFile(file, []byte("[models]\ndefault = \"play:m\"\n[providers.play]\nurl = \""+model.URL+"/v1\"\n"), 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"within": within, "exits": exits,
		},
		RequireUniqueNames: true,
	})
}

// sells is a model that does what docs/apps.md asks for, by the first word of the task.
func sells(c scripted.Conversation) scripted.Answer {
	page := func(code string) scripted.Answer {
		return scripted.Answer{Text: "<file path=\"src/App.tsx\">\n" + code + "\n</file>\n"}
	}
	_, task, _ := strings.Cut(c.Turns[0].Text, "# The task\n\n")
	again := len(c.Turns) > 1
	switch word, _, _ := strings.Cut(task, " "); {
	case word == "Add":
		return page("export default () => <main><h1>Shoes</h1><button>Add to the cart</button></main>")
	case word == "Count" && !again:
		return page("export default () => <main><h1>Shoes</h1><p>{count} of shoes</p></main>")
	case word == "Count":
		return page("export default () => <main><h1>Shoes</h1><p>count of shoes</p></main>")
	case word == "Make" && strings.Contains(c.Turns[0].Text, "attempt 2"):
		return page("export default () => <main><h1>Shoes</h1><p>a fast list</p></main>")
	case word == "Make":
		return page("export default () => <main><h1>Shoes</h1><p>a list</p></main>")
	}
	return scripted.Answer{Text: "I do not understand."}
}

// exits runs engi and demands an exit code: exits 3 run prog.py
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: exits CODE ARGS...")
	}
	err := ts.Exec("engi", args[1:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("engi %s: exit code %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// within demands that a command takes no longer: within 5s CODE ARGS...
func within(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: within DURATION CODE ARGS...")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	began := time.Now()
	exits(ts, false, args[1:])
	if took := time.Since(began); took > limit {
		ts.Fatalf("took %s, more than %s", took, limit)
	}
}

// TestDocs holds the pages that describe flags and keys to the program.
func TestDocs(t *testing.T) {
	for name, page := range map[string]string{"cli.md": cliPage(t), "configuration.md": configPage()} {
		path := filepath.Join("../../docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != page {
			t.Errorf("%s is not what the program says; run: go test ./cmd/engi -run TestDocs -update", path)
		}
	}
}

func cliPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Command line

This page is made from the program's own help: ` + "`go test ./cmd/engi -run TestDocs -update`" + `.

Commands use the server that ` + "`ENGI_URL` and `ENGI_KEY`" + ` name, else the one of the data directory. Without any, ` + "`run`, `shell`" + `
and ` + "`template`" + ` start a node of their own for the length of the command. ` + "`--json`" + ` prints JSON everywhere.

## Exit codes

| Code | ` + "`engi run`, `engi shell`, `engi sandbox exec` and `shell`" + ` | Other commands |
|---|---|---|
| 0 | the program ended with 0 | done |
| 1 | the program's own | engi could not do it |
| 2 | the program's own | the command line makes no sense |
| 123 | a limit on processes, disk or output ended the program | |
| 124 | the timeout ended it | |
| 125 | engi failed, or the command line makes no sense | |
| 130 | cancelled | |
| 137 | the memory limit ended it | |
| 128 + n | signal n ended it | |
| others | the program's own | |

A program's own code may be any of these; ` + "`engi run --json`" + ` says in ` + "`result.cause`" + ` how it ended. ` + "`engi logs -f`" + ` ends like ` + "`engi run`" + `.
`)
	var c commands
	parser, err := newParser(&c, nil, nil, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		if n.Type == kong.CommandNode && n.Leaf() {
			path := strings.Join(commandWords(n), " ")
			var out, errs bytes.Buffer
			if code := engiMain(append(strings.Fields(path), "--help"), nil, &out, &errs); code != 0 {
				t.Fatalf("engi %s --help: %d %s", path, code, errs.String())
			}
			text, _, _ := strings.Cut(out.String(), "\nFlags of every command:")
			fmt.Fprintf(&b, "\n## engi %s\n\n```text\n%s\n```\n", path, strings.TrimRight(trimLines(text), "\n"))
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(parser.Model.Node)
	var out, errs bytes.Buffer
	engiMain([]string{"version", "--help"}, nil, &out, &errs)
	_, everywhere, _ := strings.Cut(out.String(), "\nFlags of every command:")
	fmt.Fprintf(&b, "\n## Flags of every command\n\n```text\n%s\n```\n", strings.Trim(trimLines(everywhere), "\n"))
	return b.String()
}

func commandWords(n *kong.Node) []string {
	var words []string
	for ; n != nil && n.Type == kong.CommandNode; n = n.Parent {
		words = append([]string{n.Name}, words...)
	}
	return words
}

func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// TestEveryCommandHasHelpWithExamples keeps the promise of the help pages.
func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	for _, section := range strings.Split(cliPage(t), "\n## engi ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		if strings.HasPrefix(name, "bench ") {
			continue // the examples are with "engi bench"
		}
		if !strings.Contains(text, "Examples:") && !strings.Contains(text, "Example:") {
			t.Errorf("engi %s has no examples", name)
		}
	}
}
