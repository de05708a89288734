package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestAppCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	answer := "<package>lucide-react</package><file path=\"src/App.jsx\">\nexport default () => <h1>Shop</h1>\n</file>"
	run := func(want int, input string, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, srv.URL, w.User, input, append([]string{"app"}, args...)...)
		if code != want {
			t.Fatalf("engi app %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
	var x v1.App
	out, _ := run(0, "", "create", "shop", "--json", "-m", "a=b")
	if err := json.Unmarshal([]byte(out), &x); err != nil || x.ID == "" || x.PreviewURL == "" || x.Metadata["a"] != "b" {
		t.Errorf("%v in %s", err, out)
	}
	out, said := run(0, "", "create", "api", "--template", "node-api")
	if !strings.HasPrefix(out, "app_") || strings.Count(out, "\n") != 1 || !strings.Contains(said, "api is at http://") {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(1, "", "create", "worse", "--template", "broken"); !strings.HasPrefix(out, "app_") || !strings.Contains(said, "its server does not answer") {
		t.Errorf("%q %q", out, said)
	}
	run(1, "", "create", "shop")

	out, said = run(0, answer, "apply", "shop", "-")
	if out != "2\n" || !strings.Contains(said, "packages\n  package lucide-react\nwrite\n  file write src/App.jsx\ncheck\ndone revision 2\n") || strings.Contains(said, "added 1 package") {
		t.Errorf("%q %q", out, said)
	}
	file := filepath.Join(t.TempDir(), "answer.txt")
	if err := os.WriteFile(file, []byte(strings.Replace(answer, "Shop", "Store", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var done applied
	out, _ = run(0, "", "apply", "shop", file, "--json", "--once", "k", "--message", "Rename")
	if err := json.Unmarshal([]byte(out), &done); err != nil || done.State != "done" || done.Revision != 3 || len(done.Files) != 1 || len(done.Packages) != 1 || len(done.Warnings) != 0 {
		t.Errorf("%v in %s", err, out)
	}
	if again, _ := run(0, "", "apply", "shop", file, "--json", "--once", "k", "--message", "Rename"); again != out {
		t.Errorf("%s", again)
	}
	if out, said := run(1, "fail", "apply", "shop", "-"); out != "" || !strings.Contains(said, "error src/App.jsx:3") || !strings.Contains(said, "engi: src/App.jsx:3: unexpected token\n  write it again") {
		t.Errorf("%q %q", out, said)
	}
	done = applied{}
	out, _ = run(1, "fail", "apply", "shop", "-", "--json")
	if err := json.Unmarshal([]byte(out), &done); err != nil || done.State != "failed" || done.Error == nil || done.Error.Kind != v1.Invalid {
		t.Errorf("%v in %s", err, out)
	}
	seq, _ := run(0, "wait", "apply", "shop", "-", "--detach")
	run(1, "x", "apply", "shop", "-")
	if out, _ := run(0, "", "show", "shop"); !strings.Contains(out, "since event "+strings.TrimSpace(seq)) {
		t.Errorf("%s", out)
	}
	run(0, "", "cancel", "shop")
	run(1, "", "apply", "shop", "/none")
	run(1, strings.Repeat("x", engi.MaxApplyText+1), "apply", "shop", "-")

	if out, _ := run(0, "", "cat", "shop", "src/App.jsx"); out != "export default () => <h1>Store</h1>\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "new\n", "write", "shop", "src/App.jsx", "--with", "-"); out != "4\n" {
		t.Errorf("%s", out)
	}
	t.Setenv("VISUAL", "sed -i s/new/newer/")
	for _, want := range []string{"5\n", "6\n"} {
		if out, _ := run(0, "", "write", "shop", "src/App.jsx"); out != want {
			t.Errorf("%q, want %q", out, want)
		}
	}
	t.Setenv("VISUAL", "true")
	if out, said := run(0, "", "write", "shop", "src/App.jsx"); out != "" || !strings.Contains(said, "nothing has changed") {
		t.Errorf("%q %q", out, said)
	}
	run(1, "", "write", "nobody", "src/App.jsx")
	run(1, "a</file>b", "write", "shop", "src/App.jsx", "--with", "-")
	run(1, "a", "write", "shop", `src/"App.jsx`, "--with", "-")

	// What the model of this server writes is what it is told.
	page := "<file path=\"x.js\">\nx\n</file>"
	run(0, "", "create", "edited")
	if out, said := run(0, "", "edit", "edited", page, "--verbose"); out != "2\n" || !strings.Contains(said, "round 1\n    <file path=\"x.js\">\n    x\n") || !strings.Contains(said, "</file>\nedited 1: tried\n") {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(0, strings.Replace(page, "x", "y", 2), "edit", "edited", "-", "--once", "edit", "--model", "a:b", "--rounds", "2", "--max-cost", "1"); out != "3\n" || strings.Contains(said, "<file path") {
		t.Errorf("%q %q", out, said)
	}
	if out, said := run(1, "", "edit", "edited", "fail"); out != "" || !strings.Contains(said, "  problem src/App.jsx:3 unexpected token\n") || !strings.Contains(said, "the app is not well after 1 rounds\n  edit again") {
		t.Errorf("%q %q", out, said)
	}
	var tried editResult
	out, _ = run(1, "", "edit", "edited", "fail", "--json")
	if err := json.Unmarshal([]byte(out), &tried); err != nil || tried.State != "failed" || tried.Rounds != 1 || tried.Cost != 0.0015 || len(tried.Problems) != 1 || tried.Error == nil {
		t.Errorf("%v in %s", err, out)
	}
	if out, said := run(0, "", "edit", "edited", strings.Replace(page, "x", "z", 2), "--attempts", "2", "--judge", "npm test", "--keep-attempts", "--model", "a:b"); out != "4\n" || !strings.Contains(said, "[2] attempt a:b http") || !strings.Contains(said, "[1] judged for npm test\n") || !strings.Contains(said, "[1] edited 1: tried") {
		t.Errorf("attempts: %q, %s", out, said)
	}
	out, _ = run(1, "", "edit", "edited", "fail", "--json", "--attempts", "3", "--judge-model", "a:b", "--criteria", "c")
	if err := json.Unmarshal([]byte(out), &tried); err != nil || tried.Attempt != 1 || len(tried.Attempts) != 3 || tried.Attempts[2].Rounds != 1 {
		t.Errorf("attempts: %s, %v", out, err)
	}
	run(2, "", "edit", "edited", "x", "--judge", "a", "--judge-model", "b")
	run(1, "", "edit", "edited", "x", "--model", "none")
	run(0, "", "kill", "edited")

	out, _ = run(0, "", "history", "shop")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 7 || !strings.HasPrefix(lines[1], "6 ") || !strings.Contains(lines[4], "Rename") || !strings.Contains(lines[1], "Edit src/App.jsx") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "diff", "shop", "2", "3"); !strings.Contains(out, "-export default () => <h1>Shop</h1>\n+export default () => <h1>Store</h1>\n") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "rollback", "shop", "2"); out != "7\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "rollback", "shop", "--json"); !strings.Contains(out, `"of": 6`) {
		t.Errorf("%s", out)
	}
	run(1, "", "rollback", "shop", "99")
	if out, _ := run(0, "", "files", "shop", "src"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "src/App.jsx") {
		t.Errorf("%s", out)
	}
	var files v1.AppFiles
	out, _ = run(0, "", "files", "shop", "--json", "--content", "--ext", ".jsx,.html", "--max-size", "8")
	if err := json.Unmarshal([]byte(`{"items":`+out+`}`), &files); err != nil || len(files.Items) != 1 || files.Items[0].Path != "src/App.jsx" || files.Items[0].Content == nil {
		t.Errorf("%v in %s", err, out)
	}
	run(1, "", "files", "shop", "--max-size", "much")
	if out, _ := run(0, "", "manifest", "shop"); !strings.Contains(out, "entry      src/App.jsx\n") || !strings.Contains(out, "route      / App\n") || !strings.Contains(out, "src/App.jsx  component, 1 lines: App\n") {
		t.Errorf("%s", out)
	}
	var m v1.AppManifest
	out, _ = run(0, "", "manifest", "shop", "--revision", "1", "--json")
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.Revision != 1 || len(m.Files) != 3 || m.Files[2].Imports[0].Package != "react" {
		t.Errorf("%v in %s", err, out)
	}
	run(1, "", "manifest", "shop", "--revision", "99")
	archive := filepath.Join(t.TempDir(), "a.zip")
	if out, _ := run(0, "", "zip", "shop", "-o", archive); out != archive+"\n" {
		t.Errorf("%s", out)
	}
	if b, err := os.ReadFile(archive); err != nil || !strings.HasPrefix(string(b), "PK") {
		t.Errorf("%v %q", err, b)
	}
	if out, _ := run(0, "", "zip", "shop", "-o", "-"); !strings.HasPrefix(out, "PK") {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "", "logs", "shop"); out != "VITE ready in 100 ms\n" {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "status", "shop"); !strings.Contains(out, "after 2ms") || !strings.Contains(out, "restart server: the sandbox uses 85 % of its memory") {
		t.Errorf("%s", out)
	}
	run(1, "", "status", "worse")
	run(0, "", "stop", "shop")
	if out, _ := run(0, "", "open", "shop", "--print"); !strings.HasPrefix(out, "http://") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "", "list"); strings.Count(out, "app_") != 3 {
		t.Errorf("%s", out)
	}
	if code, _, _ := askServer(t, srv.URL, w.Other, "", "app", "show", "shop"); code != 1 {
		t.Errorf("somebody else: exit code %d", code)
	}
	ids, _ := run(0, "", "list", "-q")
	run(0, "", append([]string{"kill"}, strings.Fields(ids)...)...)
	if out, _ := run(0, "", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("%s", out)
	}
}

// buildable has a template that is built when somebody asks for that.
type buildable struct {
	*apitest.Templates
	built bool
}

func (b *buildable) Build(ctx context.Context, name string, definition []byte, progress func(engi.Progress)) (engi.Template, error) {
	b.built = true
	progress(engi.Progress{Step: 1, Steps: 1, Name: "npm install"})
	x := engi.Template{Name: name, Digest: "sha256:f4e5", Built: time.Now()}
	if err := b.Remove(ctx, name); err != nil {
		return x, err
	}
	b.Add(x)
	return x, nil
}

// TestAppTemplatesAreBuiltFirst creates an app from a template that has no build yet.
func TestAppTemplatesAreBuiltFirst(t *testing.T) {
	templates := &buildable{Templates: apitest.NewTemplates()}
	for _, name := range []string{"fastapi", "node-api"} {
		templates.Add(engi.Template{Name: name})
	}
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Templates = templates })
	code, _, said := askServer(t, srv.URL, w.Admin, "", "app", "create", "--template", "fastapi")
	if code != 0 || !templates.built || !slices.Contains(strings.Split(said, "\n"), "[1/1] npm install") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if code, _, said := askServer(t, srv.URL, w.User, "", "app", "create", "--template", "node-api"); code != 1 || !strings.Contains(said, "admin") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
