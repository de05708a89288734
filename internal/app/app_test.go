package app_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file returns a file in the form in which a model writes it.
func file(path, text string) string {
	return "<file path=\"" + path + "\">\n" + text + "</file>\n"
}

// apply applies a text and returns its updates and its result.
func apply(t testing.TB, s *app.Service, app string, spec engi.ApplySpec) (all []engi.AppUpdate, last engi.AppUpdate) {
	t.Helper()
	spec.Viewer, spec.App = "ann", app
	seq, err := s.Apply(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, s, app, seq)
}

func follow(t testing.TB, s *app.Service, app string, seq int64) (all []engi.AppUpdate, last engi.AppUpdate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for u, err := range s.Watch(ctx, "ann", app, seq-1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
		if u.Apply == seq && (u.Kind == engi.AppApplied || u.Kind == engi.AppApplyFailed) {
			return all, u
		}
	}
	t.Fatal("the stream ended before the apply")
	return nil, last
}

func create(t testing.TB, s *app.Service, name string) engi.App {
	t.Helper()
	a, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if a.State != engi.AppReady || a.Sandbox == "" || a.Revision != 1 || a.Port != 5173 {
		t.Fatalf("a new app is %+v", a)
	}
	return a
}

// recorded returns the files of a revision; 0 is the last one.
func recorded(t testing.TB, s *app.Service, app string, revision int64) map[string]string {
	t.Helper()
	files, err := s.Files(t.Context(), "ann", app, revision)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		r, err := s.File(t.Context(), "ann", app, f.Path, revision)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil || r.Close() != nil || int64(len(text)) != f.Size {
			t.Fatalf("%s has %d bytes of %d (%v)", f.Path, len(text), f.Size, err)
		}
		all[f.Path] = string(text)
	}
	return all
}

// wantSame checks that the sandbox has the files of the last revision.
func wantSame(t testing.TB, w *fixture, s *app.Service, app string) {
	t.Helper()
	a, err := s.Get(t.Context(), "ann", app)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(recorded(t, s, app, 0), w.tracked(a.Sandbox)); d != "" {
		t.Errorf("revision %d and the sandbox differ (-recorded +there):\n%s", a.Revision, d)
	}
}

func TestApply(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	before := recorded(t, s, "shop", 0)

	all, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "import './Card.tsx'\n") + file("src/Card.tsx", "export const card = 1\n"), Message: "Add a card\nand more", Actor: "run_x"})
	if last.Kind != engi.AppApplied || last.Revision != 2 {
		t.Fatalf("it ended with %+v", last)
	}
	var kinds []string
	for _, u := range all {
		kinds = append(kinds, strings.TrimSpace(string(u.Kind)+" "+u.Step+" "+u.Path+" "+string(u.Op)))
		if u.Apply != all[0].Seq {
			t.Errorf("%+v is not of the apply %d", u, all[0].Seq)
		}
	}
	want := []string{"start", "progress parse", "progress write", "file write src/App.tsx write", "file write src/Card.tsx create", "progress check", "done"}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Error(d)
	}
	after := maps.Clone(before)
	after["src/App.tsx"], after["src/Card.tsx"] = "import './Card.tsx'\n", "export const card = 1\n"
	if d := cmp.Diff(after, recorded(t, s, "shop", 0)); d != "" {
		t.Error(d)
	}
	wantSame(t, w, s, "shop")
	revs, err := s.Revisions(t.Context(), "ann", "shop", engi.Paging{})
	if err != nil || len(revs) != 2 || revs[0].Message != "Add a card" || revs[0].Actor != "run_x" || revs[0].Parent != 1 || len(revs[0].Changed) != 2 {
		t.Errorf("the history is %+v (%v)", revs, err)
	}

	// Failed changes are undone, and reported with file and line.
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: file("src/Card.tsx", "BROKEN\n") + file("src/New.tsx", "x\n")})
	if last.Kind != engi.AppApplyFailed || last.Error == nil || !strings.Contains(last.Error.Text, "src/Card.tsx:1: Unexpected token") {
		t.Errorf("it ended with %+v", last)
	}
	if d := cmp.Diff(after, w.tracked(a.Sandbox)); d != "" {
		t.Error(d)
	}
	wantSame(t, w, s, "shop")
	if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady || got.Revision != 2 || got.Applying != 0 {
		t.Errorf("the app is %+v (%v)", got, err)
	}

	// Unless the apply asks to keep them.
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: file("src/Card.tsx", "BROKEN\n"), Keep: true})
	if last.Kind != engi.AppApplied || last.Error == nil || last.Revision != 3 {
		t.Errorf("it ended with %+v", last)
	}
	if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady || got.Revision != 3 {
		t.Errorf("the app is %+v (%v)", got, err)
	}
	rev, err := s.Rollback(t.Context(), "ann", "shop", 2)
	if err != nil || rev.Of != 2 || rev.Number != 4 {
		t.Fatalf("rollback: %+v, %v", rev, err)
	}
	if d := cmp.Diff(after, w.tracked(a.Sandbox)); d != "" {
		t.Error(d)
	}
	if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
		t.Errorf("the app is %+v (%v)", got, err)
	}
	diff, err := s.Diff(t.Context(), "ann", "shop", 1, 2)
	if want := "diff --git a/src/App.tsx b/src/App.tsx\n--- a/src/App.tsx\n+++ b/src/App.tsx\n@@ -1,1 +1,1 @@\n-export default 'first'\n+import './Card.tsx'\n" +
		"diff --git a/src/Card.tsx b/src/Card.tsx\nnew file mode 100644\n--- /dev/null\n+++ b/src/Card.tsx\n@@ -0,0 +1,1 @@\n+export const card = 1\n"; err != nil || diff != want {
		t.Errorf("the diff is %v:\n%s", err, diff)
	}
	var b bytes.Buffer
	if err := s.Zip(t.Context(), "ann", "shop", 2, &b); err != nil {
		t.Fatal(err)
	}
	in, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(in.File) != len(after) {
		t.Errorf("the archive has %d files (%v)", len(in.File), err)
	}
}

// TestServerThatDoesNotStart repairs a server that does not start with another apply,
// and with a rollback.
func TestServerThatDoesNotStart(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	for i, repair := range []func() error{
		func() error {
			if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("vite.config.ts", "export default {}\n")}); last.Error != nil {
				return last.Error
			}
			return nil
		},
		func() error { _, err := s.Rollback(t.Context(), "ann", "shop", 1); return err },
	} {
		_, last := apply(t, s, "shop", engi.ApplySpec{Text: file("vite.config.ts", fmt.Sprintf("DIES %d\n", i)), Keep: true})
		if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || last.Kind != engi.AppApplied || got.State != engi.AppFailed || got.Error == nil {
			t.Fatalf("it ended with %+v, and is %+v (%v)", last, got, err)
		}
		err := repair()
		if got, e := s.Get(t.Context(), "ann", "shop"); err != nil || e != nil || got.State != engi.AppReady || got.Error != nil {
			t.Errorf("repair %d: %v; the app is %+v (%v)", i, err, got, e)
		}
	}
}

// TestHandsAreKept changes a sandbox manually. The changes must become a revision of their own before an
// apply, and before the sandbox is removed.
func TestHandsAreKept(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put("src/hand.ts", "mine\n") })
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("a.txt", "a\n")}); last.Revision != 3 {
		t.Errorf("it ended with %+v", last)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put("src/hand.ts", "me!!\n") })
	if err := s.Stop(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	revs, err := s.Revisions(t.Context(), "ann", "shop", engi.Paging{})
	if err != nil || len(revs) != 4 || revs[2].Message != "Changed in the sandbox" || revs[0].Message != revs[2].Message || recorded(t, s, "shop", 0)["src/hand.ts"] != "me!!\n" {
		t.Errorf("the history is %+v (%v)", revs, err)
	}
	got, err := s.Open(t.Context(), "ann", "shop")
	if err != nil || got.Sandbox == a.Sandbox || got.State != engi.AppReady {
		t.Fatalf("opened again: %+v, %v", got, err)
	}
	wantSame(t, w, s, "shop")
}

// TestSandboxIsLost rebuilds the sandbox of an app, with the same files, packages and
// commits.
func TestSandboxIsLost(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: "<package>zustand</package>" + file("src/App.tsx", "two\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	w.mu.Lock()
	w.lose(w.boxes[a.Sandbox])
	w.mu.Unlock()
	got, err := s.Open(t.Context(), "ann", "shop")
	if err != nil || got.Sandbox == a.Sandbox {
		t.Fatalf("opened again: %+v, %v", got, err)
	}
	wantSame(t, w, s, "shop")
	w.change(got.Sandbox, func(b *fakeSandbox) {
		if b.files[appDir+"/node_modules/zustand/index.js"].data == "" {
			t.Error("the package is not there")
		}
	})
	projected(t, w, s, got)
}

// projected waits until the repository in the sandbox has the last revision.
func projected(t testing.TB, w *fixture, s *app.Service, a engi.App) {
	t.Helper()
	if a.Directory != "" { // the history of the workspace takes the place of the repository
		wait(t, func() bool {
			r, err := store.Apps(w.db).Find(t.Context(), "ann", string(a.ID))
			return err == nil && !r.Ahead
		})
		return
	}
	revs, err := s.Revisions(t.Context(), "ann", string(a.ID), engi.Paging{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, func() (is bool) {
		w.change(a.Sandbox, func(b *fakeSandbox) { is = len(b.commits) > 0 && b.commits[len(b.commits)-1] == revs[0].Commit })
		return is
	})
}

func wait(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

func TestPackages(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	w.mu.Lock()
	w.flaky = 2
	w.mu.Unlock()
	all, last := apply(t, s, "shop", engi.ApplySpec{Text: "<package>zustand</package>"})
	if last.Kind != engi.AppApplied || !strings.Contains(recorded(t, s, "shop", 0)["package.json"], "zustand") {
		t.Errorf("it ended with %+v", last)
	}
	var logs, installed int
	for _, u := range all {
		switch u.Kind {
		case engi.AppLog:
			logs++
			if u.Seq != 0 {
				t.Errorf("a line of output is kept: %+v", u)
			}
		case engi.AppPackage:
			installed++
		}
	}
	if logs == 0 || installed != 1 {
		t.Errorf("%d lines and %d packages were told", logs, installed)
	}
	// Packages that files import are also installed.
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "import { Star } from 'lucide-react'\nimport React from 'react'\nexport default Star\n")})
	if last.Kind != engi.AppApplied || !strings.Contains(recorded(t, s, "shop", 0)["package.json"], "lucide-react") {
		t.Errorf("it ended with %+v", last)
	}
	began := time.Now()
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: "<package>nope</package>" + file("src/App.tsx", "two\n")})
	if last.Kind != engi.AppApplyFailed || !strings.Contains(last.Error.Text, "E404") || time.Since(began) > 30*time.Second {
		t.Errorf("after %v: %+v", time.Since(began), last)
	}
	wantSame(t, w, s, "shop")
}

// TestPythonPackages installs the packages that Python files import, like those of npm, and again in a
// new sandbox.
func TestPythonPackages(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: "api", Template: "fastapi"})
	if err != nil {
		t.Fatal(err)
	}
	site := func(a engi.App) (all []string) {
		w.change(a.Sandbox, func(b *fakeSandbox) {
			for p, n := range b.files {
				if name, ok := strings.CutPrefix(p, "/site/"); ok {
					all = append(all, name+" "+n.data)
				}
			}
		})
		slices.Sort(all)
		return all
	}
	w.mu.Lock()
	w.flaky = 2
	w.mu.Unlock()
	_, last := apply(t, s, "api", engi.ApplySpec{Text: file("main.py", "import os, yaml\nfrom PIL import Image\nfrom fastapi import FastAPI\nimport notes\nimport _e, __r\n") +
		file("notes.py", "import sqlite3\n") + "<package>FastAPI</package><package>httpx@0.28.1</package><package>-r /etc/passwd</package>"})
	if last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last.Error)
	}
	want := "fastapi==1.0\nhttpx==0.28.1\npillow==2.0\npyyaml==2.0\n"
	if got := recorded(t, s, "api", 0)["requirements.txt"]; got != want {
		t.Errorf("requirements.txt has %q, want %q", got, want)
	}
	there := []string{"fastapi 1.0", "httpx 0.28.1", "pillow 2.0", "pyyaml 2.0"}
	if d := cmp.Diff(there, site(a)); d != "" {
		t.Error(d)
	}
	w.mu.Lock()
	w.lose(w.boxes[a.Sandbox])
	w.mu.Unlock()
	if a, err = s.Open(t.Context(), "ann", "api"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(there, site(a)); d != "" {
		t.Errorf("in the new sandbox: %s", d)
	}
	_, last = apply(t, s, "api", engi.ApplySpec{Text: file("main.py", "import nope\n")})
	if last.Kind != engi.AppApplyFailed || !strings.Contains(last.Error.Text, "No matching distribution") || !strings.Contains(last.Error.Remedy, "exist") {
		t.Errorf("it ended with %+v", last)
	}
	wantSame(t, w, s, "api")
}

// TestErrorsSayWhatToDo makes installations fail for different reasons.
func TestErrorsSayWhatToDo(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	for _, x := range []struct {
		what   string
		cause  func(b *fakeSandbox)
		kind   engi.Kind
		remedy string
	}{
		{"the registry is down", func(*fakeSandbox) { w.flaky = 9 }, engi.Unavailable, "in a moment"},
		{"the disk is full", func(b *fakeSandbox) { b.full = true }, engi.Exhausted, "stop the app and open it again"},
	} {
		w.change(a.Sandbox, x.cause)
		_, last := apply(t, s, "shop", engi.ApplySpec{Text: "<package>zustand</package>"})
		if last.Kind != engi.AppApplyFailed || last.Error.Kind != x.kind || !strings.Contains(last.Error.Remedy, x.remedy) {
			t.Errorf("%s: %+v", x.what, last.Error)
		}
		w.change(a.Sandbox, func(b *fakeSandbox) { w.flaky, b.full = 0, false })
	}
	wantSame(t, w, s, "shop")
}

// TestCommandsEndWithTheirApply kills the node while a command is running, which continues in the
// sandbox, and loses a sandbox while it is being rebuilt.
func TestCommandsEndWithTheirApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.pace = time.Minute
		s, stop := w.begin(t)
		a := create(t, s, "shop")
		time.Sleep(2 * time.Minute) // time for its repository
		if _, err := s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: file("src/App.tsx", "two\n") + "<command>put made.txt late</command>"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		w.power(0) // kills the node
		w.mu.Lock()
		w.off = true
		w.mu.Unlock()
		stop()
		w.power(-1)
		s, stop = w.begin(t)
		if _, err := s.Open(t.Context(), "ann", "shop"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if _, ok := w.tracked(a.Sandbox)["made.txt"]; ok {
			t.Error("the command wrote after the apply had ended")
		}
		wantSame(t, w, s, "shop")
		stop()
	})
}

func TestCommands(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	all, last := apply(t, s, "shop", engi.ApplySpec{Text: "<command>put made.txt by a command</command><command>fail</command><command>npm run dev</command>"})
	if last.Kind != engi.AppApplied || recorded(t, s, "shop", 0)["made.txt"] != "by a command" {
		t.Errorf("it ended with %+v", last)
	}
	var codes []int
	warned := false
	for _, u := range all {
		if u.Kind == engi.AppCommand {
			codes = append(codes, u.Code)
		}
		warned = warned || u.Kind == engi.AppWarning && strings.Contains(u.Text, "npm run dev")
	}
	if d := cmp.Diff([]int{0, 3}, codes); d != "" || !warned {
		t.Errorf("warned: %v; codes: %s", warned, d)
	}
	// The effects of commands are undone with the apply.
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: "<command>put other.txt x</command>" + file("src/App.tsx", "BROKEN")})
	if last.Kind != engi.AppApplyFailed {
		t.Errorf("it ended with %+v", last)
	}
	wantSame(t, w, s, "shop")
}

func TestCancel(t *testing.T) {
	w := newFixture(t)
	w.slow = make(chan struct{})
	defer close(w.slow)
	s, _ := w.begin(t)
	create(t, s, "shop")
	if err := s.Cancel(t.Context(), "ann", "shop"); !engi.Is(err, engi.Conflict) {
		t.Errorf("without an apply: %v", err)
	}
	spec := engi.ApplySpec{Viewer: "ann", App: "shop", Text: file("src/App.tsx", "two\n") + "<command>wait</command>", Idempotency: "k"}
	seq, err := s.Apply(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Apply(t.Context(), spec); err != nil || again != seq {
		t.Errorf("the same again: %d, %v", again, err)
	}
	if _, err := s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: "x", Idempotency: "k"}); !engi.Is(err, engi.Conflict) || !strings.Contains(err.Error(), "idempotency key") {
		t.Errorf("another with the same key: %v", err)
	}
	if _, err := s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: "x"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("another: %v", err)
	}
	for u, err := range s.Watch(t.Context(), "ann", "shop", seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Step == "command" {
			break
		}
	}
	if err := s.Cancel(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	if _, last := follow(t, s, "shop", seq); last.Kind != engi.AppApplyFailed || last.Error.Kind != engi.Expired {
		t.Errorf("it ended with %+v", last)
	}
	wantSame(t, w, s, "shop")
}

func TestOwnersAndNames(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	if _, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: "shop"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("the name again: %v", err)
	}
	for _, name := range []string{"-a", "a_b", strings.Repeat("a", 64), "../a"} {
		if _, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: name}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Template: "other"}); !engi.Is(err, engi.Unavailable) {
		t.Errorf("a template that is not built: %v", err)
	}
	for what, err := range map[string]error{
		"open":   second(s.Open(t.Context(), "bob", string(a.ID))),
		"files":  second(s.Files(t.Context(), "bob", "shop", 0)),
		"apply":  second(s.Apply(t.Context(), engi.ApplySpec{Viewer: "bob", App: string(a.ID), Text: "x"})),
		"remove": s.Remove(t.Context(), "bob", string(a.ID)),
		"status": second(s.Status(t.Context(), "bob", string(a.ID))),
	} {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("%s by another owner: %v", what, err)
		}
	}
	again, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: "two", Replace: true, Idempotency: "k", Env: map[string]string{"A": "b"}})
	if err != nil || again.State != engi.AppReady {
		t.Fatalf("replaced: %+v, %v", again, err)
	}
	if old, err := s.Get(t.Context(), "ann", "shop"); err != nil || old.State != engi.AppStopped || old.Sandbox != "" {
		t.Errorf("the one before is %+v (%v)", old, err)
	}
	same, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: "two", Replace: true, Idempotency: "k", Env: map[string]string{"A": "b"}})
	if err != nil || same.ID != again.ID || w.made != 2 {
		t.Errorf("the same again: %+v, %v; %d sandboxes", same, err, w.made)
	}
	st, err := s.Status(t.Context(), "ann", "two")
	if err != nil || !st.Healthy || st.Files != 5 || st.Memory != 100<<20 {
		t.Errorf("the status is %+v (%v)", st, err)
	}
	if err := s.Remove(t.Context(), "ann", "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "ann", "two"); !engi.Is(err, engi.NotFound) || len(w.boxes) != 0 {
		t.Errorf("it was removed: %v; %d sandboxes", err, len(w.boxes))
	}
}

func second[T any](_ T, err error) error { return err }

// TestNothingIsLeftOfWhatCannotStart creates an app when there is no room.
func TestNothingIsLeftOfWhatCannotStart(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	w.full = true
	if _, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Name: "shop"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("it says %v", err)
	}
	if all, err := s.List(t.Context(), "ann", engi.Paging{}); err != nil || len(all) != 0 {
		t.Errorf("there are %+v (%v)", all, err)
	}
}

// TestPathsThatLeadOutside writes to paths outside of the app, which must have no effect.
func TestPathsThatLeadOutside(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	var text string
	bad := []string{"../x", "/etc/x", "a/../../x", ".git/config", "node_modules/react/index.js", "src/.git/x", "dist/x", "a/", "x.db", strings.Repeat("a/", 40) + "b"}
	for _, p := range bad {
		text += file(p, "x")
	}
	all, last := apply(t, s, "shop", engi.ApplySpec{Text: text + file("ok.txt", "ok\n")})
	warned := map[string]bool{}
	for _, u := range all {
		if u.Kind == engi.AppWarning {
			warned[u.Path] = true
		}
	}
	for _, p := range bad {
		if !warned[p] {
			t.Errorf("nothing was said about %q", p)
		}
	}
	if last.Kind != engi.AppApplied || recorded(t, s, "shop", 0)["ok.txt"] != "ok\n" {
		t.Errorf("it ended with %+v", last)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) {
		for p, n := range b.files {
			if !strings.HasPrefix(p, appDir) || n.data == "x" {
				t.Errorf("%s is %q", p, n.data)
			}
		}
		// A symbolic link is not followed.
		b.files[appDir+"/link"] = node{mode: 0o777 | 1<<27, modified: b.clock}
	})
	_, last = apply(t, s, "shop", engi.ApplySpec{Text: file("link/passwd", "x")})
	if last.Kind != engi.AppApplyFailed || last.Error.Kind != engi.Conflict {
		t.Errorf("through a link: %+v", last)
	}
}

// TestPowerCuts cuts the power at steps of applies and rollbacks: at all of them with
// ENGI_TEST_CUTS, otherwise at each fourth. The next service must have the old or the new state
// of the app, and its sandbox must match.
func TestPowerCuts(t *testing.T) {
	everything := "<package>zustand</package><command>put made.txt x</command>" + file("src/main.tsx", "import './A.tsx'\n") + file("src/A.tsx", "import './B.tsx'\n") +
		file("src/B.tsx", "b\n") + file("vite.config.ts", "export default { a: 1 }\n") + `<file path="old.txt" action="delete"/>`
	random := seed.New(t)
	for name, text := range map[string]string{
		"in a workspace": everything, "in a workspace that is lost": everything, "rolled back in a workspace": "",
		"everything": everything, "broken": strings.Replace(everything, "b\n", "BROKEN\n", 1), "files": file("src/App.tsx", "two\n") + file("new.txt", "new\n"),
		"manifest": file("package.json", `{"dependencies":{"react":"19","zustand":"1"}}`), "rollback": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			every := cutEvery()
			first := random.IntN(every)
			at := first
			for cutAt(t, name, text, at) {
				at += every
			}
			if at < 10 {
				t.Errorf("there were only %d steps", at)
			}
			t.Logf("cut after steps %d to %d, each %d", first, at, every)
		})
	}
}

// cutEvery returns the number of steps between two cuts: 1 with
// ENGI_TEST_CUTS=1, and a large number with -short.
func cutEvery() int {
	switch {
	case os.Getenv("ENGI_TEST_CUTS") != "":
		return 1
	case testing.Short():
		return 12
	}
	return 4
}

// cutAt cuts the power after some steps of applying text, or of a rollback to revision 1
// if text is empty, and reports whether there were so many steps. The name says where the app is, and whether the sandbox is
// lost with the power.
func cutAt(t *testing.T, name, text string, steps int) bool {
	w := newFixture(t)
	defer w.db.Close()
	shared, lost := strings.Contains(name, "workspace"), strings.Contains(name, "lost")
	if shared {
		w.openShared(t, map[string]string{"web": ""})
	}
	s, stop := w.begin(t)
	var a engi.App
	if shared {
		a = createShared(t, s, "shop", "web")
	} else {
		a = create(t, s, "shop")
	}
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "one\n") + file("old.txt", "old\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	old := recorded(t, s, "shop", 0)
	projected(t, w, s, a) // so that all steps belong to the apply
	w.power(steps)
	if text == "" {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.Rollback(t.Context(), "ann", "shop", 1)
		}()
		defer func() { <-done }()
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case <-time.After(time.Millisecond):
				over = w.isOff()
			}
		}
	} else if seq, err := s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: text}); err == nil {
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			for u, err := range s.Watch(ctx, "ann", "shop", seq) {
				if err != nil || u.Kind == engi.AppApplied || u.Kind == engi.AppApplyFailed {
					return
				}
			}
		}()
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case <-time.After(time.Millisecond):
				over = w.isOff()
			}
		}
		cancel()
		<-done
	}
	stop()
	cut := w.isOff()
	w.power(-1)
	if lost {
		w.change(a.Sandbox, func(b *fakeSandbox) { w.lose(b) })
	}
	s, stop = w.begin(t)
	defer stop()
	if _, err := s.Open(t.Context(), "ann", "shop"); err != nil {
		t.Fatalf("after %d steps: %v", steps, err)
	}
	r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	if r.Applying != 0 || r.Undo != nil || r.State != engi.AppReady || r.Sandbox != a.Sandbox && !lost {
		t.Errorf("after %d steps the app is %+v", steps, r)
	}
	wantSame(t, w, s, "shop")
	if shared {
		w.wantOnly(t, r.App)
	}
	if now := recorded(t, s, "shop", 0); r.Revision == 2 && !maps.Equal(now, old) {
		t.Errorf("after %d steps, revision 2 has changed", steps)
	} else if r.Revision > 3 {
		t.Errorf("after %d steps there is a revision %d: what was half done was taken for somebody's work", steps, r.Revision)
	}
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("next.txt", "next\n")}); last.Kind != engi.AppApplied {
		t.Errorf("after %d steps, the next apply ended with %+v", steps, last)
	}
	return cut
}
