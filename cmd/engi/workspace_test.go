package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// asWorkspace returns a function that runs engi workspace with arguments.
func asWorkspace(t *testing.T, url, key string) func(want int, input string, args ...string) (out, said string) {
	return func(want int, input string, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, url, key, input, append([]string{"workspace"}, args...)...)
		if code != want {
			t.Fatalf("engi workspace %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
}

func TestWorkspaceCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	run := asWorkspace(t, srv.URL, w.User)
	var x v1.Workspace
	out, said := run(0, "", "create", "shop", "--service", "postgres", "--service", "cache=redis:7", "-m", "a=b", "--json")
	if err := json.Unmarshal([]byte(out), &x); err != nil || x.Name != "shop" || len(x.Services) != 2 || x.Services[0].Name != "cache" || x.Services[0].Type != "redis" || x.Metadata["a"] != "b" || said != "" {
		t.Errorf("%v in %s %s", err, out, said)
	}
	run(1, "", "create", "shop")
	if out, said := run(0, "", "create", "blog", "-s", "mysql"); !strings.HasPrefix(out, "wsp_") || strings.Count(out, "\n") != 1 || said != "engi: mysql is healthy\n" {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(1, "", "create", "worse", "-s", "nginx:broken"); !strings.HasPrefix(out, "wsp_") || !strings.Contains(said, "engi: nginx is failed\nengi: nginx 1.22 has ended with exit code 1\n  see its logs\n") {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "", "list"); strings.Count(out, "wsp_") != 3 || !strings.Contains(out, "cache,postgres") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "list", "-q"); !strings.HasSuffix(out, x.ID+"\n") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "start", "shop"); !strings.HasPrefix(out, "sbx_") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "show", "shop"); !strings.Contains(out, "state      running\n") || !strings.Contains(out, "postgres.workspace.internal") {
		t.Errorf("%s", out)
	}

	// Programs run in the sandbox of the workspace, which starts for them.
	run(0, "", "stop", "shop")
	if out, _ := run(3, "in", "exec", "shop", "-e", "A=b", "--", "sh", "-c", `cat; echo " $A"; exit 3`); out != "in b\n" {
		t.Errorf("%q", out)
	}
	run(1, "", "exec", "shop")
	run(1, "", "exec", "nobody", "--", "true")
	if out, _ := run(0, "", "stop", "shop"); out != x.ID+" stopped\n" {
		t.Errorf("%q", out)
	}

	other := asWorkspace(t, srv.URL, w.Other)
	other(1, "", "show", x.ID)
	run(0, "", "share", "shop", "bob", "--role", "editor")
	run(0, "", "share", "shop", "carol")
	if out, _ := other(0, "", "show", x.ID); !strings.Contains(out, "with bob as editor") || !strings.Contains(out, "with carol as viewer") {
		t.Errorf("%s", out)
	}
	run(0, "", "share", "shop", "bob", "--role", "reviewer")
	if _, said := other(1, "x", "write", x.ID, "a", "--with", "-"); !strings.Contains(said, "a reviewer of workspace") {
		t.Errorf("%s", said)
	}
	run(1, "", "share", "shop", "bob", "--role", "king")
	run(0, "", "unshare", "shop", "bob")
	run(1, "", "unshare", "shop", "bob")
	other(1, "", "show", x.ID)

	run(0, "", "rm", "shop", "blog", "worse")
	if out, _ := run(0, "", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("%s", out)
	}
}

func TestWorkspaceFileCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	run := asWorkspace(t, srv.URL, w.User)
	run(0, "", "create", "shop")
	if out, _ := run(0, "# Shop\n", "write", "shop", "README.md", "--with", "-", "-m", "Begin"); out != "1\n" {
		t.Errorf("%s", out)
	}
	script := filepath.Join(t.TempDir(), "run.sh")
	if err := os.WriteFile(script, []byte("echo \xff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(0, "", "write", "shop", "bin/run.sh", "--with", script, "--mode", "0755"); out != "2\n" {
		t.Errorf("%s", out)
	}
	t.Setenv("VISUAL", "sed -i s/Shop/Store/")
	if out, _ := run(0, "", "write", "shop", "README.md"); out != "3\n" {
		t.Errorf("%s", out)
	}
	if _, said := run(0, "", "write", "shop", "README.md"); !strings.Contains(said, "nothing has changed") {
		t.Errorf("%s", said)
	}
	t.Setenv("VISUAL", "echo new >")
	if out, _ := run(0, "", "write", "shop", "new.txt"); out != "4\n" {
		t.Errorf("%s", out)
	}
	run(1, "", "write", "nobody", "README.md")
	run(1, "x", "write", "shop", "README.md", "--with", "-", "--base", "1")
	run(1, "x", "write", "shop", "README.md", "--with", "-", "--mode", "9")
	run(1, "", "write", "shop", "README.md", "--with", "/none")
	run(2, "", "write", "shop", "README.md", "--with", "-", "--remove")
	run(1, "", "write", "shop", "README.md", "--remove", "--base", "1")
	if out, _ := run(0, "", "write", "shop", "new.txt", "--remove", "-m", "Old"); out != "5\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "files", "shop", "bin"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "bin/run.sh  7") || !strings.Contains(out, "0755") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "cat", "shop", "bin/run.sh"); out != "echo \xff\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "", "cat", "shop", "README.md", "--revision", "1"); out != "# Shop\n" {
		t.Errorf("%q", out)
	}
	run(1, "", "cat", "shop", "none")
	out, _ := run(0, "", "history", "shop")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 6 || !strings.Contains(lines[1], "Old") || !strings.Contains(lines[5], "Begin") || !strings.Contains(lines[5], "key_") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "diff", "shop", "1", "3"); !strings.Contains(out, "-# Shop\n+# Store\n") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "restore", "shop", "1", "README.md"); out != "6\n" {
		t.Errorf("%s", out)
	}
	run(1, "", "restore", "shop", "99")
	if out, _ := run(0, "", "blame", "shop", "README.md"); !strings.Contains(out, "# Shop") || !strings.Contains(out, "\n6 ") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "mv", "shop", "README.md", "docs/README.md", "-m", "Tidy up"); out != "7\n" {
		t.Errorf("%s", out)
	}
	run(1, "", "mv", "shop", "README.md", "x")
	run(1, "", "mv", "shop", "docs", "bin")
	run(1, "", "mv", "shop", "docs", "doc", "--base", "6")
}

// odd answers queries with what a test says.
type odd struct {
	*apitest.Workspaces
	result engi.QueryResult
	asked  engi.Query
	found  engi.DocumentResult
	sought engi.DocumentQuery
}

func (o *odd) Query(ctx context.Context, q engi.Query) (engi.QueryResult, error) {
	if o.asked = q; len(o.result.Columns) > 0 {
		return o.result, nil
	}
	return o.Workspaces.Query(ctx, q)
}

func (o *odd) Documents(ctx context.Context, q engi.DocumentQuery) (engi.DocumentResult, error) {
	if o.sought = q; len(o.found.Documents) > 0 {
		return o.found, nil
	}
	return o.Workspaces.Documents(ctx, q)
}

func TestServiceCommands(t *testing.T) {
	databases := &odd{Workspaces: &apitest.Workspaces{}}
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Workspaces = databases })
	run := asWorkspace(t, srv.URL, w.User)
	run(0, "", "create", "shop")
	if out, said := run(0, "", "service", "add", "shop", "postgres", "--version", "15"); out != "postgres.workspace.internal:5432\n" || !strings.Contains(said, "postgres is healthy") {
		t.Errorf("%q %q", out, said)
	}
	var s v1.Service
	out, _ := run(0, "", "service", "add", "shop", "nginx", "--name", "web", "--needs", "postgres", "--exposed", "--json", "-e", "A=b")
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Name != "web" || !s.Exposed || len(s.Needs) != 1 {
		t.Errorf("%v in %s", err, out)
	}
	run(1, "", "service", "add", "shop", "postgres")
	run(1, "", "service", "add", "shop", "oracle")
	if _, said := run(1, "", "service", "add", "shop", "mysql", "--version", "broken"); !strings.Contains(said, "MariaDB 10.11 has ended with exit code 1") {
		t.Errorf("%s", said)
	}
	if out, _ := run(0, "", "service", "list", "shop"); strings.Count(out, "\n") != 4 || strings.Count(out, "  1.5s  48 MiB  40 MiB  ") != 2 || !strings.Contains(out, "has ended with exit code 1") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "service", "restart", "shop", "postgres"); out != "postgres.workspace.internal:5432\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "service", "logs", "shop", "postgres", "--bytes", "12"); out != "connections\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "service", "connection", "shop", "postgres"); out != "postgres://engi:secret@postgres.workspace.internal/engi\n" {
		t.Errorf("%s", out)
	}
	run(0, "", "service", "rm", "shop", "mysql")
	run(1, "", "service", "rm", "shop", "mysql")

	if out, said := run(0, "", "sql", "shop", "-c", "select 42 as n", "--json"); out != "[\n  {\n    \"n\": 42\n  }\n]\n" || said != "" {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(0, "insert into orders values (1)", "sql", "shop"); out != "" || said != "engi: 1 rows affected\n" {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "insert into orders values (1)", "sql", "shop", "--json"); out != "[]\n" {
		t.Errorf("%q", out)
	}
	if _, said := run(1, "", "sql", "shop", "-c", "select\n1, fail"); said != "engi: the database: syntax error at or near \"fail\" (42601) at 2:4\n  write something else\n" {
		t.Errorf("%q", said)
	}
	run(1, "", "sql", "shop", "-c", "insert", "--read-only")
	run(1, "", "sql", "shop", "-c", "select 1 as n", "--timeout", "soon")
	run(1, "", "sql", "shop", "-c", "select 1 as n", "--service", "web")
	run(0, "", "sql", "shop", "-c", "select $1 as n", "-s", "postgres", "--database", "d", "--max-rows", "7", "--max-bytes", "1MiB", "--timeout", "5s", "--", "7", "a b", "null", `{"a":"b"}`)
	want := engi.Query{Viewer: "ann", Workspace: "shop", Service: "postgres", Text: "select $1 as n", Database: "d", MaxRows: 7, MaxBytes: 1 << 20, Timeout: 5e9, Args: []any{json.Number("7"), "a b", nil, map[string]any{"a": "b"}}}
	if d := cmp.Diff(want, databases.asked); d != "" {
		t.Error(d)
	}
	raw := func(values ...string) (row []json.RawMessage) {
		for _, v := range values {
			row = append(row, json.RawMessage(v))
		}
		return row
	}
	databases.result = engi.QueryResult{
		Columns: []engi.Column{{Name: "n"}, {Name: "text\x1b[2J"}, {Name: "n"}}, Truncated: true, Affected: -1,
		Rows: [][]json.RawMessage{raw("1", `"a\u001bb"`, "null"), raw("9007199254740993", `""`, `{"a":[1]}`)},
	}
	out, said := run(0, "", "sql", "shop", "-c", "x")
	if want := "n                 text\ufffd[2J  n\n1                 a\ufffdb       NULL\n9007199254740993            {\"a\":[1]}\n"; out != want || !strings.Contains(said, "there are more rows") {
		t.Errorf("%q, want %q; %q", out, want, said)
	}
	if out, _ := run(0, "", "sql", "shop", "-c", "x", "--json"); !strings.Contains(out, "9007199254740993") || strings.Count(out, `"n": `) != 4 {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "explain", "shop", "-c", "select 1 as n"); !strings.HasPrefix(out, "Result  (cost=") {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "", "tables", "shop"); !strings.Contains(out, "public  orders  table  3     32KiB\n") || !strings.Contains(out, "public  paid    view   -     -\n") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "describe", "shop", "public.orders"); !strings.Contains(out, "id      integer  not null  nextval(") || !strings.Contains(out, "orders_pkey  primary key  PRIMARY KEY (id)") {
		t.Errorf("%s", out)
	}
	run(1, "", "describe", "shop", "none")

	if _, said := run(1, "", "find", "shop", "orders"); !strings.Contains(said, "no service") {
		t.Errorf("%q", said)
	}
	run(0, "", "service", "add", "shop", "mongodb")
	if out, said := run(0, "", "find", "shop", "orders", `{"total": {"$gt": 5}}`, "--json"); out != "[\n  {\n    \"_id\": {\n      \"$oid\": \"665f1c2b9d3e4a0001000000\"\n    },\n    \"total\": 7\n  }\n]\n" || said != "" {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(0, "", "find", "shop", "orders", "--max-rows", "1"); out != `{"_id":{"$oid":"665f1c2b9d3e4a0001000000"},"total":7}`+"\n" || !strings.Contains(said, "there are more documents") {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(0, "", "find", "shop", "empty"); out+said != "" {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "", "find", "shop", "empty", "--json"); out != "[]\n" {
		t.Errorf("%q", out)
	}
	if _, said := run(1, "", "find", "shop", "--pipeline", `[{"$fail": {}}]`); said != "engi: the database: unknown operator: $fail (BadValue)\n  correct the query\n" {
		t.Errorf("%q", said)
	}
	for _, args := range [][]string{{"orders", "{"}, {"orders", "--sort", "total"}, {"orders", "--projection", "{total: 1}"}, {"--pipeline", "[{]"}} {
		if _, said := run(1, "", append([]string{"find", "shop"}, args...)...); !strings.Contains(said, "is not JSON") {
			t.Errorf("%v: %q", args, said)
		}
	}
	run(1, "", "find", "shop")
	run(1, "", "find", "shop", "orders", "[]")
	run(1, "", "find", "shop", "orders", "--timeout", "soon")
	run(1, "", "find", "shop", "orders", "--service", "web")
	run(0, "", "find", "shop", "orders", `{"b": 1, "a": 9007199254740993}`, "-s", "mongodb", "--database", "d", "--projection", `{"a": 1}`, "--sort", `{"b": -1, "a": 1}`, "--skip", "3", "--max-rows", "7", "--max-bytes", "1MiB", "--timeout", "5s")
	sought := engi.DocumentQuery{
		Viewer: "ann", Workspace: "shop", Service: "mongodb", Database: "d", Collection: "orders", Filter: json.RawMessage(`{"b":1,"a":9007199254740993}`), Projection: json.RawMessage(`{"a":1}`), Sort: json.RawMessage(`{"b":-1,"a":1}`),
		Skip: 3, MaxRows: 7, MaxBytes: 1 << 20, Timeout: 5e9,
	}
	if d := cmp.Diff(sought, databases.sought); d != "" {
		t.Error(d)
	}
	databases.found.Documents = raw(`{"text":"\u001b[2J`+"\u202e"+`"}`, `{"n":9007199254740993}`)
	if out, _ := run(0, "", "find", "shop", "orders"); out != `{"text":"\u001b[2J`+"\ufffd"+`"}`+"\n"+`{"n":9007199254740993}`+"\n" {
		t.Errorf("%q", out)
	}

	run(1, "", "redis", "shop", "--", "PING")
	run(0, "", "service", "add", "shop", "redis")
	for _, step := range [][2]string{{"PING", "PONG\n"}, {"SET a hello", "OK\n"}, {"GET a", "hello\n"}, {"GET b", "null\n"}} {
		if out, _ := run(0, "", append([]string{"redis", "shop", "--"}, strings.Fields(step[0])...)...); out != step[1] {
			t.Errorf("%s: %q, want %q", step[0], out, step[1])
		}
	}
	if out, said := run(1, "", "redis", "shop", "--", "NOPE"); out != `{"error":"ERR unknown command"}`+"\n" || !strings.Contains(said, "redis has refused the command") {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "", "redis", "shop", "--json", "--", "GET", "a"); out != "\"hello\"\n" {
		t.Errorf("%q", out)
	}
	run(0, "", "service", "add", "shop", "redis", "--name", "second")
	run(1, "", "redis", "shop", "--", "PING")
	run(0, "", "redis", "shop", "-s", "second", "--", "PING")
}

// TestWorkspaceClones has git clone, pull and push with the key that engi has.
func TestWorkspaceClones(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs git (make setup)")
		}
		t.Skip("needs git (make setup)")
	}
	w, srv := apitest.Serve(t, nil)
	run := asWorkspace(t, srv.URL, w.User)
	t.Setenv("ENGI_TEST_IS_ENGI", "1")
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	t.Setenv("GIT_CONFIG_SYSTEM", "/dev/null")
	t.Setenv("GIT_TERMINAL_PROMPT", "0")
	run(0, "", "create", "shop")
	dir := filepath.Join(t.TempDir(), "it's here")
	if _, said := run(0, "", "clone", "shop", dir); !strings.Contains(said, "empty repository") {
		t.Errorf("%s", said)
	}
	config, err := os.ReadFile(filepath.Join(dir, ".git/config"))
	if err != nil || strings.Contains(string(config), w.User) || !strings.Contains(string(config), "workspace git-credential") {
		t.Errorf("%s, %v", config, err)
	}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=me", "-c", "user.email=me@engi.invalid"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "ENGI_URL="+srv.URL, "ENGI_KEY="+w.User)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", "a")
	git("commit", "-q", "-m", "Begin")
	git("push", "-q", "-u", "origin", "main")
	if out, _ := run(0, "", "cat", "shop", "a"); out != "1" {
		t.Errorf("%q", out)
	}
	run(0, "2", "write", "shop", "a", "--with", "-")
	git("pull", "-q")
	if text, err := os.ReadFile(filepath.Join(dir, "a")); string(text) != "2" {
		t.Errorf("%q, %v", text, err)
	}
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(0, "", "clone", "shop", shallow, "--depth", "1")
	if out := git("-C", shallow, "rev-list", "--count", "HEAD"); out != "1\n" {
		t.Errorf("%s", out)
	}
	run(128, "", "clone", "shop", dir) // it is there
	run(1, "", "clone", "nobody")

	host := strings.TrimPrefix(srv.URL, "http://")
	for input, want := range map[string]string{
		"protocol=http\nhost=" + host + "\n\n":         "username=engi\npassword=" + w.User + "\n",
		"protocol=http\nhost=evil.invalid\n\n":         "",
		"protocol=https\nhost=" + host + "\n\n":        "",
		"host=" + host + "\n\nprotocol=http\n":         "",
		"protocol=http\nhost=" + host + ".evil\n\n":    "",
		"protocol=http\nhost=x\nusername=" + host + "": "",
	} {
		if out, _ := run(0, input, "git-credential", "get"); out != want {
			t.Errorf("%q: %q", input, out)
		}
	}
	if out, _ := run(0, "protocol=http\nhost="+host+"\n\n", "git-credential", "store"); out != "" {
		t.Errorf("%q", out)
	}
}
