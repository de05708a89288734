package app

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// counting is a server that has rows in its database and counts in its memory.
const counting = `<file path="server.js">
import { createServer } from 'node:http'
import { add, list } from './notes.js'

let count = 0
createServer(async (request, response) => {
  let body = ''
  for await (const chunk of request) body += chunk
  if (request.method === 'POST') add(body)
  response.end(request.url === '/count' ? String(++count) : list().map((n) => n.text).join(','))
}).listen(3000, '127.0.0.1')
</file>`

// TestSnapshots restores a snapshot of an app with rows in its database, and creates a
// branch from one.
func TestSnapshots(t *testing.T) {
	env.Slow(t)
	w := &fixture{Server: env.Serve(t, env.ServerOptions{}), t: t}
	ctx, began := t.Context(), time.Now()
	took := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	w.Run("template", "build", "node-api")
	took("build the template")
	var err error
	if w.app, err = w.CreateApp(ctx, v1.AppRequest{Name: "notes", Template: "node-api", Env: map[string]string{"A": "b"}}); err != nil {
		t.Fatal(err)
	}
	took("create")
	apply := func(text string, more ...string) string {
		t.Helper()
		cmd := w.Engi(append([]string{"app", "apply", "notes", "-"}, more...)...)
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	apply(counting)
	took("apply")
	for _, row := range []string{"one", "two"} {
		w.ask(w.app, http.MethodPost, "/", row)
	}
	w.get("/count")
	began = time.Now()
	if out := apply(`<file path="about.txt">kept</file>`, "--snapshot"); !strings.Contains(out, "snapshot") || strings.Contains(out, "warning") {
		t.Errorf("it said %s", out)
	}
	took("apply with a snapshot")
	revs, err := w.AppRevisions(ctx, "notes")
	if err != nil || revs[0].Number != 3 || revs[0].Snapshot == nil || revs[0].Snapshot.Size <= 0 {
		t.Fatalf("the history is %+v (%v)", revs, err)
	}
	t.Logf("the snapshot has %v", revs[0].Snapshot.Size)
	if rows, count := w.get("/"), w.get("/count"); rows != "one,two" || count != "1" { // the apply restarted the server
		t.Errorf("it has %q, and has counted %s", rows, count)
	}
	began = time.Now()
	w.Run("app", "snapshot", "notes")
	took("snapshot")
	if count := w.get("/count"); count != "2" {
		t.Errorf("it has counted %s", count)
	}

	// Later changes, and later faults, are gone.
	w.ask(w.app, http.MethodPost, "/", "three")
	apply(strings.Replace(counting, "list()", "[]", 1) + "<command>rm -f app.db*</command>")
	began = time.Now()
	if number := strings.TrimSpace(w.Run("app", "rollback", "notes", "--snapshot")); number != "5" {
		t.Errorf("it is revision %s", number)
	}
	took("roll back to the snapshot")
	if rows, count := w.get("/"), w.get("/count"); rows != "one,two" || count != "2" {
		t.Errorf("it has %q, and has counted %s", rows, count)
	}
	before := w.app
	if w.app, err = w.App(ctx, "notes"); err != nil || w.app.SandboxID == before.SandboxID || w.app.PreviewURL != before.PreviewURL || w.app.State != v1.AppReady {
		t.Errorf("it was %+v and is %+v (%v)", before, w.app, err)
	}
	if s, err := w.Sandbox(ctx, before.SandboxID); err != nil || s.State != "stopped" {
		t.Errorf("the former sandbox is %s (%v)", s.State, err)
	}
	if out := w.Run("app", "run", "notes", "-c", "echo $A; cat about.txt"); out != "b\nkept" {
		t.Errorf("inside it is %q", out)
	}

	// A branch begins with the same rows and then changes independently; without the snapshot it has none.
	began = time.Now()
	blue, err := w.BranchApp(ctx, "notes", v1.BranchRequest{Name: "blue", Revision: 3, Snapshot: true})
	if err != nil || blue.State != v1.AppReady {
		t.Fatalf("the branch is %+v (%v)", blue, err)
	}
	took("branch with a snapshot")
	w.ask(blue, http.MethodPost, "/", "blue")
	if rows, mine := w.ask(blue, http.MethodGet, "/", ""), w.get("/"); rows != "one,two,blue" || mine != "one,two" {
		t.Errorf("the branch has %q, the app %q", rows, mine)
	}
	red, err := w.BranchApp(ctx, "notes", v1.BranchRequest{Name: "red", Revision: 3})
	if err != nil || w.ask(red, http.MethodGet, "/", "") != "" {
		t.Errorf("the other branch is %+v (%v)", red, err)
	}

	// A killed node, a stopped app, and an app whose sandbox is lost.
	w.ask(w.app, http.MethodPost, "/", "four")
	w.Kill()
	w.Start()
	if rows := w.get("/"); rows != "one,two,four" {
		t.Errorf("after a restart it has %q", rows)
	}
	for name, lose := range map[string]func() error{
		"nothing": func() error { return nil },
		"broken": func() error { // an apply cannot repair a broken server
			w.Run("app", "run", "notes", "-c", "rm -f app.db-*; echo broken > app.db")
			if u := w.apply(`<file path="about.txt">gone</file>`, nil); u.Type != v1.AppError {
				t.Errorf("with a broken database, an apply ended with %+v", u)
			}
			return nil
		},
		"stopped":   func() error { _, err := w.StopApp(ctx, "notes"); return err },
		"destroyed": func() error { return w.StopSandbox(ctx, w.app.SandboxID) },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.RestoreApp(ctx, "notes", 3); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if w.app, err = w.App(ctx, "notes"); err != nil || w.get("/") != "one,two" {
			t.Errorf("%s: it is %+v (%v)", name, w.app, err)
		}
	}

	// Other owners can neither see nor use snapshots. The removal of one is detected.
	key, err := w.CreateKey(ctx, v1.KeyRequest{Name: "bob", Owner: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	bob, id := client.New(w.URL, key.Secret), revs[0].Snapshot.ID
	if revs, err = w.AppRevisions(ctx, "notes"); err != nil {
		t.Fatal(err)
	}
	for _, r := range revs {
		if r.Snapshot != nil {
			id = r.Snapshot.ID
		}
	}
	_, restored := bob.RestoreApp(ctx, w.app.ID, 3)
	_, branched := bob.BranchApp(ctx, w.app.ID, v1.BranchRequest{Snapshot: true})
	_, made := bob.SnapshotApp(ctx, w.app.ID)
	_, begun := bob.CreateSandbox(ctx, v1.SandboxRequest{Snapshot: id})
	for i, err := range []error{restored, branched, made, begun} {
		if !client.IsKind(err, v1.NotFound) {
			t.Errorf("bob's call %d: %v", i, err)
		}
	}
	w.Run("snapshot", "remove", id)
	if _, err := w.RestoreApp(ctx, "notes", 0); !client.IsKind(err, v1.NotFound) {
		t.Errorf("without the snapshot: %v", err)
	}
	if _, err := w.SnapshotApp(ctx, "notes"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"notes", "blue", "red"} {
		if err := w.RemoveApp(ctx, name); err != nil {
			t.Error(err)
		}
	}
	if left := fmt.Sprint(w.Run("snapshot", "list", "--json"), w.Run("sandbox", "list", "--json")); left != "[][]" {
		t.Errorf("left are %s", left)
	}
}
