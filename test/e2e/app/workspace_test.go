package app

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// says returns a server in Python that answers with a text.
func says(text string) string {
	return fmt.Sprintf(`import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b%q)
http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
`, text)
}

func wholeFile(path, text string) string {
	return "<file path=\"" + path + "\">\n" + text + "</file>\n"
}

// TestAppInWorkspace follows an app in a directory of a workspace, whose server runs in the workspace's sandbox,
// through applies, a kill of engi, attacks on its port and its processes, and the loss of the sandbox.
func TestAppInWorkspace(t *testing.T) {
	env.Slow(t)
	w := &fixture{Server: env.Serve(t, env.ServerOptions{}), t: t}
	ctx := t.Context()
	write := func(path, content string) {
		t.Helper()
		if _, err := w.WriteWorkspace(ctx, "shop", v1.WriteRequest{Files: []v1.WorkspaceWrite{{Path: path, Content: &content}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	write("web/server.py", says("first"))
	write("notes.txt", "notes\n")
	x, err := w.StartWorkspace(ctx, "shop")
	if err != nil {
		t.Fatal(err)
	}
	sandbox := x.SandboxID
	shell := func(command string) string {
		t.Helper()
		p, err := w.Exec(ctx, sandbox, v1.ProcessRequest{Args: []string{"/bin/sh", "-c", command}})
		if err != nil || p.ExitCode != 0 {
			t.Fatalf("%s: %+v, %v", command, p, err)
		}
		return strings.TrimSpace(p.Stdout)
	}
	shell("git init -q . && git add . && git -c user.name=x -c user.email=x@x.test commit -qm first && git init -q web")
	const hash = "find . -path '*/.git/*' -type f | sort | xargs sha256sum | sha256sum"
	repositories := shell(hash)

	spec := v1.AppRequest{Name: "web", Workspace: "shop", Directory: "web", Start: "python3 server.py & wait", Port: 3000, Env: map[string]string{"COLOUR": "blue"}}
	if w.app, err = w.CreateApp(ctx, spec); err != nil || w.app.State != v1.AppReady || w.app.SandboxID != sandbox || w.app.Directory != "web" || w.app.Port != 3000 {
		t.Fatalf("%+v, %v", w.app, err)
	}
	serves := func(want string) {
		t.Helper()
		if got := w.get("/"); got != want {
			t.Errorf("it serves %q, want %q", got, want)
		}
	}
	serves("first")
	for what, q := range map[string]v1.AppRequest{
		"the same port":      {Workspace: "shop", Directory: "api", Start: "x", Port: 3000},
		"the same directory": {Workspace: "shop", Directory: "web", Start: "x", Port: 3001},
		"a directory below":  {Workspace: "shop", Directory: "web/admin", Start: "x", Port: 3001},
		"a file":             {Workspace: "shop", Directory: "notes.txt", Start: "x", Port: 3001},
	} {
		if a, err := w.CreateApp(ctx, q); !client.IsKind(err, v1.Conflict) {
			t.Errorf("%s: %+v, %v", what, a, err)
		}
	}
	if out := w.Run("app", "run", "web", "-c", "pwd"); strings.TrimSpace(out) != "/workspace/web" {
		t.Errorf("a program of the app runs in %s", out)
	}

	// Its preview shows its own port only.
	shell("cd /tmp && (python3 -m http.server 8123 >/dev/null 2>&1 &) && for i in $(seq 200); do curl -s 127.0.0.1:8123 >/dev/null && exit; sleep 0.1; done; exit 1")
	u, err := url.Parse(w.app.PreviewURL)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = strings.Replace(u.Host, "3000-", "8123-", 1)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		t.Errorf("another port of the workspace: %s", resp.Status)
	}

	// Applies and rollbacks.
	if u := w.apply(wholeFile("server.py", says("second"))+wholeFile("lib/colour.txt", "blue\n"), nil); u.Type != v1.AppDone || u.Revision != 2 {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	serves("second")
	if u := w.apply(wholeFile("server.py", "raise Exception('broken')\n"), nil); u.Type != v1.AppError {
		t.Errorf("it ended with %+v", u)
	}
	serves("second")
	if r, err := w.RollbackApp(ctx, "web", 1); err != nil || r.Of != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	serves("first")
	if r, err := w.RollbackApp(ctx, "web", 2); err != nil || r.Of != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	serves("second")

	// The server outlives a kill of engi, and an apply that is interrupted is undone.
	server := `grep -lsF ENGI_APP= /proc/[0-9]*/environ | tr -dc '0-9\n' | sort -n | tr '\n' ' '`
	before := shell(server)
	if len(strings.Fields(before)) != 2 {
		t.Errorf("the server has the processes %q", before)
	}
	w.Kill()
	w.Start()
	if a, err := w.OpenApp(ctx, "web"); err != nil || a.State != v1.AppReady || shell(server) != before {
		t.Errorf("%+v, %v; processes %q, then %q", a, err, before, shell(server))
	}
	serves("second")
	if _, err := w.ApplyToApp(ctx, "web", v1.ApplyRequest{Text: wholeFile("server.py", says("third")) + "<command>touch begun; sleep 1000</command>"}, ""); err != nil {
		t.Fatal(err)
	}
	shell("for i in $(seq 600); do test -e /workspace/web/begun && exit; sleep 0.1; done; exit 1")
	w.Kill()
	w.Start()
	if a, err := w.OpenApp(ctx, "web"); err != nil || a.State != v1.AppReady || a.Revision != 4 {
		t.Errorf("after an interrupted apply: %+v, %v", a, err)
	}
	serves("second")
	if out := shell("test ! -e /workspace/web/begun; ls -d /var/tmp/engi* 2>/dev/null; ps ax 2>/dev/null | grep -c '[s]leep 1000' || true"); out != "0" {
		t.Errorf("there is left: %s", out)
	}

	// A child whose parent was killed is the app's too; a server that is stopped by a signal ends.
	shell(`for p in $(` + server + `); do grep -q wait /proc/$p/cmdline && kill -KILL $p; done; true`)
	if a, err := w.OpenApp(ctx, "web"); err != nil || a.State != v1.AppReady {
		t.Errorf("after the end of its first process: %+v, %v", a, err)
	}
	serves("second")
	shell(`for p in $(` + server + `); do kill -STOP $p; done`)
	if a, err := w.StopApp(ctx, "web"); err != nil || a.State != v1.AppStopped || a.SandboxID != "" {
		t.Errorf("%+v, %v", a, err)
	}
	if left := shell(server); left != "" {
		t.Errorf("processes %s are left", left)
	}

	// Another program at its port is not the app.
	shell("cd /tmp && (python3 -m http.server 3000 >/dev/null 2>&1 & echo $! > other.pid) && for i in $(seq 200); do curl -s 127.0.0.1:3000 >/dev/null && exit; sleep 0.1; done; exit 1")
	if a, err := w.OpenApp(ctx, "web"); !client.IsKind(err, v1.Conflict) || !strings.Contains(err.Error(), "in use by another program") {
		t.Errorf("with its port in use: %+v, %v", a, err)
	}
	shell("kill $(cat /tmp/other.pid)")
	if a, err := w.OpenApp(ctx, "web"); err != nil || a.State != v1.AppReady {
		t.Errorf("%+v, %v", a, err)
	}
	serves("second")
	if now := shell(hash); now != repositories {
		t.Error("the repositories in the workspace have changed")
	}

	// The app goes on with a file that was written while the workspace was stopped, and with its last revision after the
	// sandbox was lost.
	if _, err := w.StopWorkspace(ctx, "shop"); err != nil {
		t.Fatal(err)
	}
	write("web/server.py", says("by hand"))
	if w.app, err = w.OpenApp(ctx, "web"); err != nil || w.app.State != v1.AppReady || w.app.SandboxID == sandbox {
		t.Fatalf("%+v, %v", w.app, err)
	}
	serves("by hand")
	if u := w.apply(wholeFile("server.py", says("last")), nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	if err := w.StopSandbox(ctx, w.app.SandboxID); err != nil {
		t.Fatal(err)
	}
	if w.app, err = w.OpenApp(ctx, "web"); err != nil || w.app.State != v1.AppReady {
		t.Fatalf("%+v, %v", w.app, err)
	}
	serves("last")
	for path, text := range w.recorded() {
		f, err := w.WorkspaceFile(ctx, "shop", "web/"+path, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(got) != text {
			t.Errorf("%s of the workspace is %q, %v", path, got, err)
		}
	}

	// Hibernation of the workspace keeps the server; the end of the app leaves the files and the sandbox.
	sandbox = w.app.SandboxID
	before = shell(server)
	if _, err := w.HibernateSandbox(ctx, sandbox, false); err != nil {
		t.Fatal(err)
	}
	serves("last")
	if now := shell(server); now != before {
		t.Errorf("processes %q, and %q after hibernation", before, now)
	}
	if err := w.RemoveApp(ctx, "web"); err != nil {
		t.Fatal(err)
	}
	if left := shell(server); left != "" {
		t.Errorf("processes %s are left", left)
	}
	if got := shell("cat /workspace/web/lib/colour.txt /workspace/notes.txt; ls -d /var/tmp/engi* 2>/dev/null; true"); got != "blue\nnotes" {
		t.Errorf("the workspace has %q", got)
	}
	if x, err := w.Workspace(ctx, "shop"); err != nil || x.SandboxID != sandbox {
		t.Errorf("%+v, %v", x, err)
	}

	// An app without its workspace ends, and keeps its history.
	spec.Name = "again"
	if w.app, err = w.CreateApp(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if err := w.RemoveWorkspace(ctx, "shop"); err != nil {
		t.Fatal(err)
	}
	if a, err := w.OpenApp(ctx, "again"); !client.IsKind(err, v1.NotFound) {
		t.Errorf("%+v, %v", a, err)
	}
	if files := w.recorded(); files["server.py"] != says("last") {
		t.Errorf("its history has %v", files)
	}
	if err := w.RemoveApp(ctx, "again"); err != nil {
		t.Error(err)
	}
}
