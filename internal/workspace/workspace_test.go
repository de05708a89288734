package workspace_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(x T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

// file returns a file to write; a content of "-" removes it.
func file(p, text string) engi.WorkspaceFile {
	if text == "-" {
		return engi.WorkspaceFile{Path: p, Removed: true}
	}
	return engi.WorkspaceFile{Path: p, Content: []byte(text)}
}

// contents returns the files of a revision with their contents.
func contents(t testing.TB, s *workspace.Service, name string, revision int64) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, f := range must[[]engi.WorkspaceFile](t)(s.Files(t.Context(), engi.Everyone, name, revision)) {
		r := must[io.ReadCloser](t)(s.File(t.Context(), engi.Everyone, name, f.Path, revision))
		data, err := io.ReadAll(r)
		if err != nil || int64(len(data)) != f.Size {
			t.Fatalf("%s has %d bytes, not %d: %v", f.Path, len(data), f.Size, err)
		}
		r.Close()
		all[f.Path] = string(data)
	}
	return all
}

func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("%s: %s", what, d)
	}
}

func TestRoles(t *testing.T) {
	// The lowest role for each operation.
	ctx := t.Context()
	operations := map[string]struct {
		need engi.WorkspaceRole
		do   func(s *workspace.Service, o engi.Viewer, id string) error
	}{
		"get": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error { _, err := s.Get(ctx, o, id); return err }},
		"use": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.ServiceUse(ctx, o, id)
			return err
		}},
		"files": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Files(ctx, o, id, 0)
			return err
		}},
		"files of": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Files(ctx, o, id, 1)
			return err
		}},
		"file": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.File(ctx, o, id, "a", 0)
			return err
		}},
		"revisions": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Revisions(ctx, o, id, engi.Paging{})
			return err
		}},
		"diff": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Diff(ctx, o, id, 1, 2)
			return err
		}},
		"git refs": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			return s.GitRefs(ctx, o, id, false, io.Discard)
		}},
		"git push refs": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			return s.GitRefs(ctx, o, id, true, io.Discard)
		}},
		"git push": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			return s.GitPush(ctx, o, id, strings.NewReader("0000"), io.Discard)
		}},
		"git fetch": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			last, err := s.Revisions(ctx, o, id, engi.Paging{Limit: 1})
			want := strings.Repeat("0", 40)
			if err == nil {
				want = last[0].Commit
			}
			return s.GitFetch(ctx, o, id, strings.NewReader("0032want "+want+"\n00000009done\n"), io.Discard)
		}},
		"blame": {engi.RoleViewer, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Blame(ctx, o, id, "a", 0)
			return err
		}},
		"write": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Write(ctx, engi.WriteSpec{Viewer: o, Workspace: id, Files: []engi.WorkspaceFile{file("a", "x\n")}})
			return err
		}},
		"move": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Move(ctx, engi.MoveSpec{Viewer: o, Workspace: id, From: "a", To: "b/a"})
			return err
		}},
		"restore": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Restore(ctx, o, id, 1, "")
			return err
		}},
		"start": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error { _, err := s.Start(ctx, o, id); return err }},
		"stop":  {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error { return s.Stop(ctx, o, id) }},
		"metadata": {engi.RoleEditor, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Change(ctx, o, id, engi.WorkspaceChange{Metadata: map[string]string{"a": "b"}})
			return err
		}},
		"collaborators": {engi.RoleOwner, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Change(ctx, o, id, engi.WorkspaceChange{Collaborators: &collaborators})
			return err
		}},
		"share": {engi.RoleOwner, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Change(ctx, o, id, engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "new", Role: engi.RoleViewer}}})
			return err
		}},
		"unshare": {engi.RoleOwner, func(s *workspace.Service, o engi.Viewer, id string) error {
			_, err := s.Change(ctx, o, id, engi.WorkspaceChange{Unshare: []engi.Owner{"vera"}})
			return err
		}},
		"remove": {engi.RoleOwner, func(s *workspace.Service, o engi.Viewer, id string) error { return s.Remove(ctx, o, id) }},
	}
	w := newFixture(t)
	s, _ := w.begin(t)
	ranks := []engi.WorkspaceRole{"", engi.RoleViewer, engi.RoleReviewer, engi.RoleEditor, engi.RoleOwner}
	for who, role := range map[engi.Viewer]engi.WorkspaceRole{"stranger": "", "": "", "vera": engi.RoleViewer, "rita": engi.RoleReviewer, "ed": engi.RoleEditor, "anna": engi.RoleOwner, engi.Everyone: engi.RoleOwner} {
		for what, op := range operations {
			for _, byName := range []bool{false, true} {
				x := must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "anna", Name: "lab", Files: []engi.WorkspaceFile{file("a", "1\n")}, Collaborators: collaborators}))
				must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "anna", Workspace: "lab", Files: []engi.WorkspaceFile{file("a", "2\n")}}))
				name := string(x.ID)
				if byName {
					name = "anna/lab"
				}
				err := op.do(s, who, name)
				switch {
				case role == "":
					if !engi.Is(err, engi.NotFound) {
						t.Errorf("%s of a stranger: %v", what, err)
					}
				case slices.Index(ranks, role) < slices.Index(ranks, op.need):
					if !engi.Is(err, engi.Denied) || !strings.Contains(engi.RemedyOf(err), string(op.need)) {
						t.Errorf("%s as %s: %v (%s)", what, role, err, engi.RemedyOf(err))
					}
				case err != nil:
					t.Errorf("%s as %s: %v", what, role, err)
				}
				all := must[[]engi.Workspace](t)(s.List(ctx, who, engi.Paging{}))
				if gone := what == "remove" && role == engi.RoleOwner; (len(all) == 1) != (role != "" && !gone) {
					t.Errorf("%s sees %d workspaces after %s", cmp.Or(who, "the node"), len(all), what)
				}
				if err := s.Remove(ctx, engi.Everyone, string(x.ID)); err != nil && !engi.Is(err, engi.NotFound) || len(w.boxes) > 0 {
					t.Fatalf("after %s: %v, %d sandboxes", what, err, len(w.boxes))
				}
			}
		}
	}
}

// TestEditorsEnter makes everybody try to enter each of the sandboxes of two workspaces, and
// one sandbox without a workspace.
func TestEditorsEnter(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	ctx := t.Context()
	all := s.Shared(boxes{fixture: w})
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "anna", Name: "lab", Files: []engi.WorkspaceFile{file("a", "1\n")}, Collaborators: collaborators, Services: []engi.ServiceSpec{{Type: engi.ServiceRedis}}}))
	lab := must[engi.Workspace](t)(s.Start(ctx, "anna", "lab"))
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "anna", Name: "other", Files: []engi.WorkspaceFile{file("a", "1\n")}}))
	other := must[engi.Workspace](t)(s.Start(ctx, "anna", "other"))
	lone := must[engi.Sandbox](t)(boxes{fixture: w}.Create(ctx, engi.SandboxSpec{Owner: "anna", Idempotency: "lone", Metadata: map[string]string{"workspace": "lab"}}))
	try := func(what string, who engi.Viewer, id engi.SandboxID, want engi.Kind) {
		t.Helper()
		g, release, err := all.Enter(ctx, who, id)
		if err == nil {
			release()
		}
		if engi.KindOf(err) != want || (g == nil) != (err != nil) {
			t.Errorf("%q enters %s: %v, want %v", who, what, err, want)
		}
	}
	const ok = engi.NoKind
	for who, want := range map[engi.Viewer][4]engi.Kind{
		engi.Everyone: {ok, ok, ok, ok},
		"anna":        {ok, ok, ok, ok},
		"ed":          {ok, engi.NotFound, engi.NotFound, engi.NotFound},
		"rita":        {engi.Denied, engi.NotFound, engi.NotFound, engi.NotFound},
		"vera":        {engi.Denied, engi.NotFound, engi.NotFound, engi.NotFound},
		"stranger":    {engi.NotFound, engi.NotFound, engi.NotFound, engi.NotFound},
		"":            {engi.NotFound, engi.NotFound, engi.NotFound, engi.NotFound},
	} {
		try("the working copy", who, lab.Sandbox, want[0])
		try("a service", who, lab.Services[0].Sandbox, want[1])
		try("another workspace", who, other.Sandbox, want[2])
		try("a sandbox that is called so", who, lone.ID, want[3])
	}
	must[engi.Workspace](t)(s.Change(ctx, "anna", "lab", engi.WorkspaceChange{Unshare: []engi.Owner{"ed"}}))
	try("what he works in no more", "ed", lab.Sandbox, engi.NotFound)
	if err := s.Stop(ctx, "anna", "lab"); err != nil {
		t.Fatal(err)
	}
	try("what is gone", "rita", lab.Sandbox, engi.NotFound)
}

var collaborators = []engi.Collaborator{{Owner: "vera", Role: engi.RoleViewer}, {Owner: "rita", Role: engi.RoleReviewer}, {Owner: "ed", Role: engi.RoleEditor}}

func TestSharesAtOnce(t *testing.T) {
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "anna", Name: "lab"}))
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			if _, err := s.Change(ctx, "anna", "lab", engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: engi.Owner(fmt.Sprint("p", i)), Role: engi.RoleEditor}}}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	x := must[engi.Workspace](t)(s.Change(ctx, "anna", "lab", engi.WorkspaceChange{
		Share: []engi.Collaborator{{Owner: "p3", Role: engi.RoleViewer}, {Owner: "new", Role: engi.RoleReviewer}}, Unshare: []engi.Owner{"p0", "p19"},
	}))
	if len(x.Collaborators) != 19 || !slices.Contains(x.Collaborators, engi.Collaborator{Owner: "p3", Role: engi.RoleViewer}) ||
		slices.ContainsFunc(x.Collaborators, func(c engi.Collaborator) bool { return c.Owner == "p0" || c.Owner == "p19" }) {
		t.Errorf("%+v", x.Collaborators)
	}
	for what, c := range map[string]struct {
		change engi.WorkspaceChange
		want   engi.Kind
	}{
		"twice":          {engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "b", Role: engi.RoleViewer}, {Owner: "b", Role: engi.RoleEditor}}}, engi.Invalid},
		"owner":          {engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "anna", Role: engi.RoleViewer}}}, engi.Invalid},
		"role":           {engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "b", Role: engi.RoleOwner}}}, engi.Invalid},
		"too many gone":  {engi.WorkspaceChange{Unshare: make([]engi.Owner, 101)}, engi.Invalid},
		"stranger":       {engi.WorkspaceChange{Unshare: []engi.Owner{"p1", "nobody"}}, engi.NotFound},
		"all and others": {engi.WorkspaceChange{Collaborators: &[]engi.Collaborator{{Owner: "b", Role: "king"}}, Share: []engi.Collaborator{{Owner: "c", Role: engi.RoleViewer}}}, engi.Invalid},
	} {
		if _, err := s.Change(ctx, "anna", "lab", c.change); !engi.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := must[engi.Workspace](t)(s.Get(ctx, "anna", "lab")); !slices.Equal(got.Collaborators, x.Collaborators) {
		t.Errorf("%+v", got.Collaborators)
	}
}

func TestRefusedRequests(t *testing.T) {
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	long := strings.Repeat("x", 300)
	many := make([]engi.Collaborator, 101)
	for i := range many {
		many[i] = engi.Collaborator{Owner: engi.Owner(fmt.Sprint("o", i)), Role: engi.RoleViewer}
	}
	for what, c := range map[string]struct {
		spec engi.WorkspaceSpec
		kind engi.Kind
	}{
		"name":              {engi.WorkspaceSpec{Name: "a_b"}, engi.Invalid},
		"long name":         {engi.WorkspaceSpec{Name: long}, engi.Invalid},
		"template":          {engi.WorkspaceSpec{Template: "none"}, engi.KindOf(engi.ErrNoTemplate)},
		"role":              {engi.WorkspaceSpec{Collaborators: []engi.Collaborator{{Owner: "b", Role: "king"}}}, engi.Invalid},
		"second owner":      {engi.WorkspaceSpec{Collaborators: []engi.Collaborator{{Owner: "b", Role: engi.RoleOwner}}}, engi.Invalid},
		"nobody":            {engi.WorkspaceSpec{Collaborators: []engi.Collaborator{{Role: engi.RoleViewer}}}, engi.Invalid},
		"owner as another":  {engi.WorkspaceSpec{Collaborators: []engi.Collaborator{{Owner: "a", Role: engi.RoleViewer}}}, engi.Invalid},
		"too many":          {engi.WorkspaceSpec{Collaborators: many}, engi.Invalid},
		"metadata":          {engi.WorkspaceSpec{Metadata: map[string]string{"": "x"}}, engi.Invalid},
		"removed file":      {engi.WorkspaceSpec{Files: []engi.WorkspaceFile{file("a", "-")}}, engi.Invalid},
		"file as directory": {engi.WorkspaceSpec{Files: []engi.WorkspaceFile{file("a", ""), file("a/b", "")}}, engi.Conflict},
		"twice":             {engi.WorkspaceSpec{Files: []engi.WorkspaceFile{file("a", ""), file("a", "")}}, engi.Invalid},
		"mode":              {engi.WorkspaceSpec{Files: []engi.WorkspaceFile{{Path: "a", Mode: 0o4755}}}, engi.Invalid},
		"large file":        {engi.WorkspaceSpec{Files: []engi.WorkspaceFile{{Path: "a", Content: make([]byte, 16<<20+1)}}}, engi.Invalid},
	} {
		c.spec.Owner = "a"
		if _, err := s.Create(ctx, c.spec); !engi.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", what, err, c.kind)
		}
	}
	if all := must[[]engi.Workspace](t)(s.List(ctx, engi.Everyone, engi.Paging{})); len(all) > 0 {
		t.Errorf("requests that were refused have left %v", all)
	}
	for _, p := range []string{
		"", ".", "..", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a/./b", "a\x00b", "a\nb", "a\\b", "\xff", long, strings.Repeat("a/", 40) + "a", strings.Repeat("aaaaaaa/", 70) + "a",
		".git", ".git/config", "a/.git/hooks/pre-commit", ".GIT/config", ".git ./x", "git~1/x", "node_modules/x", "a/__pycache__/x", ".venv/bin/python",
	} {
		if _, err := s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Files: []engi.WorkspaceFile{{Path: p}}}); !engi.Is(err, engi.Invalid) {
			t.Errorf("path %q: %v", p, err)
		}
	}
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "ok", Files: []engi.WorkspaceFile{file(".gitignore", "x"), file("ä/日本 b/c", ""), file(".github/x", "")}}))
}

func TestCreateIsRepeatable(t *testing.T) {
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	spec := engi.WorkspaceSpec{Owner: "a", Name: "x", Idempotency: "k", Files: []engi.WorkspaceFile{file("a", "1")}}
	first := must[engi.Workspace](t)(s.Create(ctx, spec))
	again := must[engi.Workspace](t)(s.Create(ctx, spec))
	if first.ID != again.ID {
		t.Errorf("made twice: %s, %s", first.ID, again.ID)
	}
	spec.Files[0].Content = []byte("2")
	if _, err := s.Create(ctx, spec); !engi.Is(err, engi.Conflict) {
		t.Errorf("another request with the same key: %v", err)
	}
	spec.Idempotency = ""
	if _, err := s.Create(ctx, spec); !engi.Is(err, engi.Conflict) {
		t.Errorf("the same name: %v", err)
	}
}

func TestWriteSeesOthers(t *testing.T) {
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("a", "1"), file("b", "1")}}))
	write := func(base int64, files ...engi.WorkspaceFile) (engi.WorkspaceRevision, error) {
		return s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: files, Base: base, Actor: "me"})
	}
	rev := must[engi.WorkspaceRevision](t)(write(1, file("a", "2")))
	same(t, "revision", engi.WorkspaceRevision{Number: 2, Parent: 1, Commit: rev.Commit, Message: "Change a", Actor: "me", Created: rev.Created, Changed: []engi.AppChange{{Path: "a", Op: engi.FileWritten, Size: 1}}}, rev)
	if _, err := write(1, file("a", "3")); !engi.Is(err, engi.Conflict) {
		t.Errorf("a file that has changed since: %v", err)
	}
	if _, err := write(1, file("a", "-")); !engi.Is(err, engi.Conflict) {
		t.Errorf("the same, removed: %v", err)
	}
	if _, err := write(9, file("a", "3")); !engi.Is(err, engi.NotFound) {
		t.Errorf("a revision that there is not: %v", err)
	}
	must[engi.WorkspaceRevision](t)(write(1, file("b", "3")))
	if rev := must[engi.WorkspaceRevision](t)(write(0, file("b", "3"))); rev.Number != 3 {
		t.Errorf("what changes nothing is revision %d", rev.Number)
	}
	if _, err := write(0, file("b/c", "")); !engi.Is(err, engi.Conflict) {
		t.Errorf("a file as a directory: %v", err)
	}
	must[engi.WorkspaceRevision](t)(write(0, file("b", "-"), file("b/c", "")))
}

func TestSandbox(t *testing.T) {
	w := newFixture(t)
	w.seed = map[string]string{"README": "of the template"}
	s, _ := w.begin(t)
	ctx := t.Context()
	x := must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x"}))
	x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	if x.State != engi.WorkspaceRunning || x.Revision != 1 {
		t.Fatalf("%+v", x)
	}
	spec := w.specs[0]
	if spec.Network.Mode != engi.NetworkIsolated || spec.Network.Group != "ws-"+x.ID.Label() || spec.Network.Name != "workspace" || spec.Owner != "a" || spec.Idempotency != string(x.ID)+"-0" {
		t.Errorf("%+v", spec)
	}
	w.in(x.Sandbox, func(b *fakeSandbox) {
		b.put("/workspace/main.py", "print(1)", 0o755)
		b.put("/workspace/node_modules/x/index.js", "x", 0o644)
		b.put("/workspace/.git/HEAD", "x", 0o644)
		b.put("/workspace/bad\nname", "x", 0o644)
		b.files["/workspace/link"] = node{mode: fs.ModeSymlink | 0o777, data: "/etc"}
		b.remove("/workspace/README")
	})
	same(t, "files", map[string]string{"main.py": "print(1)"}, contents(t, s, "x", 0))
	same(t, "first", map[string]string{"README": "of the template"}, contents(t, s, "x", 1))
	if rev := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{}))[0]; rev.Message != "Changed in the sandbox" || rev.Number != 2 {
		t.Errorf("%+v", rev)
	}
	// A write replaces a link and a directory at the path, and does not follow the link.
	w.in(x.Sandbox, func(b *fakeSandbox) {
		b.put("/workspace/dir/node_modules/y", "y", 0o644)
		b.put("/etc/passwd", "root", 0o644)
	})
	must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("link/passwd", "mine"), file("dir", "a file"), file("main.py", "print(2)")}}))
	w.in(x.Sandbox, func(b *fakeSandbox) {
		if b.files["/etc/passwd"].data != "root" || b.files["/workspace/link/passwd"].data != "mine" || b.files["/workspace/dir"].data != "a file" || b.files["/workspace/main.py"].mode != 0o755 {
			t.Errorf("%v", b.files)
		}
	})
	if err := s.Stop(ctx, "a", "x"); err != nil {
		t.Fatal(err)
	}
	if len(w.boxes) != 0 {
		t.Errorf("left over: %v", w.boxes)
	}
	x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	want := map[string]string{"link/passwd": "mine", "dir": "a file", "main.py": "print(2)"}
	same(t, "a new sandbox", want, w.has(x.Sandbox))
	// A lost sandbox is created again.
	w.mu.Lock()
	delete(w.boxes, x.Sandbox)
	w.mu.Unlock()
	same(t, "without it", want, contents(t, s, "x", 0))
	x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	same(t, "made again", want, w.has(x.Sandbox))
	// Unchanged files are not read again.
	before := w.reads
	time.Sleep(time.Millisecond)
	contents(t, s, "x", 0)
	if w.in(x.Sandbox, func(*fakeSandbox) {}); w.reads-before > 3 {
		t.Errorf("%d files were read", w.reads-before)
	}
	if err := s.Remove(ctx, "a", "x"); err != nil || len(w.boxes) != 0 {
		t.Errorf("left over: %v, %v", w.boxes, err)
	}
}

func TestStartFails(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	ctx := t.Context()
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("a", "1")}}))
	w.refuse = engi.Errorf(engi.Exhausted, "the node is full").WithRemedy("later")
	if _, err := s.Start(ctx, "a", "x"); !engi.Is(err, engi.Exhausted) {
		t.Fatal(err)
	}
	x := must[engi.Workspace](t)(s.Get(ctx, "a", "x"))
	if x.State != engi.WorkspaceFailed || x.Error == nil || x.Error.Remedy != "later" {
		t.Errorf("%+v", x)
	}
	w.refuse = nil
	w.fault = func(op, p string) error {
		if op == "unpack" {
			return engi.Errorf(engi.Exhausted, "no space left")
		}
		return nil
	}
	if _, err := s.Start(ctx, "a", "x"); err == nil {
		t.Fatal("started without files")
	}
	w.fault = nil
	x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	if x.State != engi.WorkspaceRunning || x.Error != nil || len(w.boxes) != 1 {
		t.Errorf("%+v, %d sandboxes", x, len(w.boxes))
	}
	same(t, "files", map[string]string{"a": "1"}, w.has(x.Sandbox))
	// Files that do not fit are recorded, and written as soon as they fit. In the meantime, changes
	// made in the sandbox are kept.
	w.fault = func(op, p string) error {
		if op == "write" {
			return engi.Errorf(engi.Exhausted, "no space left")
		}
		return nil
	}
	if _, err := s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("b", "2"), file("a", "2")}}); !engi.Is(err, engi.Exhausted) {
		t.Fatal(err)
	}
	same(t, "recorded", map[string]string{"a": "2", "b": "2"}, contents(t, s, "x", 0))
	w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/a", "3", 0o644) })
	same(t, "changed", map[string]string{"a": "3", "b": "2"}, contents(t, s, "x", 0))
	w.fault = nil
	must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	same(t, "in the sandbox", map[string]string{"a": "3", "b": "2"}, w.has(x.Sandbox))
}

// TestModel compares random histories with a map.
// TestMove moves files and directories while a program in the sandbox changes them.
func TestMove(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	ctx := t.Context()
	deep := strings.Repeat("d/", 20)
	script := file("src/run.sh", "echo\n")
	script.Mode = 0o755
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("a", "1\n"), file("src/b", "2\n"), script, file("srcs", "3\n"), file(deep+"e", "4\n")}}))
	x := must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	for _, step := range []struct {
		from, to string
		base     int64
		want     engi.Kind
	}{
		{"nix", "b", 0, engi.NotFound}, {"sr", "b", 0, engi.NotFound}, {"a/b", "b", 0, engi.NotFound},
		{"a", "srcs", 0, engi.Conflict}, {"a", "src", 0, engi.Conflict}, {"a", "a", 0, engi.Conflict}, {"a", "srcs/a", 0, engi.Conflict}, {"src", "a/src", 0, engi.Conflict},
		{"src", "src/lib", 0, engi.Invalid}, {"a", "../a", 0, engi.Invalid}, {"", "b", 0, engi.Invalid}, {"a", ".git/a", 0, engi.Invalid}, {"a", "b/", 0, engi.Invalid},
		{"d", deep + "f", 0, engi.Invalid}, {"d", strings.Repeat("z/", 15) + "z", 0, engi.Invalid}, // d/…/e would be too deep
	} {
		if _, err := s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: step.from, To: step.to, Base: step.base}); !engi.Is(err, step.want) {
			t.Errorf("%s to %s: %v, want %v", step.from, step.to, err, step.want)
		}
	}
	if all := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{})); len(all) != 1 {
		t.Errorf("refused moves made %d revisions", len(all)-1)
	}
	// What a program has changed is a revision before that of the move, and moves too.
	w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/src/new", "5\n", 0o644) })
	rev := must[engi.WorkspaceRevision](t)(s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: "src", To: "lib/src", Actor: "key_1"}))
	if rev.Number != 3 || rev.Message != "Move src to lib/src" || rev.Actor != "key_1" || len(rev.Changed) != 6 {
		t.Errorf("%+v", rev)
	}
	want := map[string]string{"a": "1\n", "lib/src/b": "2\n", "lib/src/run.sh": "echo\n", "lib/src/new": "5\n", "srcs": "3\n", deep + "e": "4\n"}
	same(t, "files", want, contents(t, s, "x", 0))
	same(t, "sandbox", want, w.has(x.Sandbox))
	for _, f := range must[[]engi.WorkspaceFile](t)(s.Files(ctx, "a", "x", 0)) {
		if (f.Mode == 0o755) != (f.Path == "lib/src/run.sh") {
			t.Errorf("%s has the mode %o", f.Path, f.Mode)
		}
	}
	// Somebody else's change since the base is a conflict, wherever in the directory it is.
	must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("lib/src/b", "6\n")}}))
	if _, err := s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: "lib", To: "src", Base: 3}); !engi.Is(err, engi.Conflict) {
		t.Error(err)
	}
	must[engi.WorkspaceRevision](t)(s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: "a", To: "b", Base: 3, Message: "Rename"}))
	must[engi.WorkspaceRevision](t)(s.Restore(ctx, "a", "x", 1, ""))
	same(t, "first revision", map[string]string{"a": "1\n", "src/b": "2\n", "src/run.sh": "echo\n", "srcs": "3\n", deep + "e": "4\n"}, w.has(x.Sandbox))
}

func TestModel(t *testing.T) {
	seeds := uint64(10)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func model(t *testing.T, random *rand.Rand) {
	w := newFixture(t)
	s, stop := w.begin(t)
	ctx := t.Context()
	x := must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("a", "1\n")}}))
	now := map[string]string{"a": "1\n"}
	history := []map[string]string{{}, maps.Clone(now)} // by revision
	blames := []map[string][]int64{{}, {"a": {1}}}      // by revision and path
	line := 1
	add := func() { // the files become a new revision
		last := len(history) - 1
		b := map[string][]int64{}
		for p, text := range now {
			old := strings.Split(history[last][p], "\n")
			for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
				by := int64(last + 1)
				if i := slices.Index(old, l); i >= 0 && text != "" {
					by = blames[last][p][i]
				}
				if text != "" {
					b[p] = append(b[p], by)
				}
			}
		}
		history, blames = append(history, maps.Clone(now)), append(blames, b)
	}
	next := func() { // the same, unless they are unchanged
		if !maps.Equal(history[len(history)-1], now) {
			add()
		}
	}
	edit := func(text string) string { // lines are unique and stay in order
		lines := strings.SplitAfter(text, "\n")
		lines = lines[:len(lines)-1]
		if i := random.IntN(len(lines) + 1); i < len(lines) && random.IntN(3) == 0 {
			lines = slices.Delete(lines, i, i+1)
		} else {
			line++
			lines = slices.Insert(lines, i, fmt.Sprint(line, "\n"))
		}
		return strings.Join(lines, "")
	}
	paths := []string{"a", "b", "d/a", "d/e/f"}
	for range 50 {
		p := paths[random.IntN(len(paths))]
		running := x.Sandbox != ""
		switch op := random.IntN(12); {
		case op == 11: // a move, to where nothing is written
			from, to := []string{"a", "b", "d", "d/e", "c", "m", "m/n"}[random.IntN(7)], []string{"c", "m/n", "m/o"}[random.IntN(3)]
			if running {
				next()
			}
			is := func(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
			moved, taken := map[string]string{}, false
			for p, text := range now {
				if taken = taken || is(p, to); is(p, from) {
					moved[to+strings.TrimPrefix(p, from)] = text
				}
			}
			_, err := s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: from, To: to})
			want := engi.NoKind
			switch {
			case from != to && is(to, from):
				want = engi.Invalid
			case taken:
				want = engi.Conflict
			case len(moved) == 0:
				want = engi.NotFound
			default:
				maps.DeleteFunc(now, func(p, _ string) bool { return is(p, from) })
				maps.Copy(now, moved)
				next()
			}
			if engi.KindOf(err) != want {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
		case op == 10: // a push
			if running {
				next()
			}
			var changed []map[string]string
			for range 1 + random.IntN(2) {
				text := edit(now[p])
				if _, ok := now[p]; ok && random.IntN(4) == 0 {
					text = "-"
					delete(now, p)
				} else {
					now[p] = text
				}
				changed = append(changed, map[string]string{p: text})
			}
			if err := pushes(ctx, t, s, "pushed", changed...); err != nil {
				t.Fatal(err)
			}
			add() // a commit without changes also counts
		case op < 3: // a write
			if running {
				next() // changes made in the sandbox are recorded first
			}
			text := edit(now[p])
			if _, ok := now[p]; ok && random.IntN(4) == 0 {
				text = "-"
				delete(now, p)
			} else {
				now[p] = text
			}
			must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file(p, text)}}))
			next()
		case op < 6 && running: // a change in the sandbox
			if _, ok := now[p]; ok && random.IntN(4) == 0 {
				delete(now, p)
				w.in(x.Sandbox, func(b *fakeSandbox) { b.remove("/workspace/" + p) })
			} else {
				now[p] = edit(now[p])
				w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/"+p, now[p], 0o644) })
			}
		case op == 6:
			of, below := 1+random.IntN(len(history)-1), []string{"", "d", "a", "d/e"}[random.IntN(4)]
			if running {
				next()
			}
			is := func(p string) bool { return below == "" || p == below || strings.HasPrefix(p, below+"/") }
			found := below == ""
			for p := range now {
				found = found || is(p)
			}
			for p := range history[of] {
				found = found || is(p)
			}
			_, err := s.Restore(ctx, "a", "x", int64(of), below)
			if !found {
				if !engi.Is(err, engi.NotFound) {
					t.Fatal(err)
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(now, func(p, _ string) bool { return is(p) })
			for p, text := range history[of] {
				if is(p) {
					now[p] = text
				}
			}
			next()
		case op == 7:
			x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
			next()
		case op == 8:
			if err := s.Stop(ctx, "a", "x"); err != nil {
				t.Fatal(err)
			}
			x.Sandbox = ""
			next()
		case op == 9:
			stop()
			s, stop = w.begin(t)
		}
		if random.IntN(3) == 0 {
			if running := x.Sandbox != ""; running {
				next()
			}
			same(t, "files", now, contents(t, s, "x", 0))
			if x.Sandbox != "" {
				same(t, "sandbox", now, w.has(x.Sandbox))
			}
		}
	}
	if x.Sandbox != "" {
		next()
	}
	same(t, "files", now, contents(t, s, "x", 0))
	revisions := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{}))
	if len(revisions) != len(history)-1 {
		t.Fatalf("%d revisions, want %d", len(revisions), len(history)-1)
	}
	for i, want := range history[1:] {
		n := int64(i + 1)
		same(t, fmt.Sprint("revision ", n), want, contents(t, s, "x", n))
		for p := range want {
			var got []int64
			for _, l := range must[[]engi.BlameLine](t)(s.Blame(ctx, "a", "x", p, n)) {
				got = append(got, l.Revision)
			}
			same(t, fmt.Sprintf("blame of %s in %d", p, n), blames[n][p], got)
		}
		diff := must[string](t)(s.Diff(ctx, "a", "x", 0, n))
		same(t, fmt.Sprint("diff of ", n), want, patched(t, history[n-1], diff))
	}
	from, to := 1+random.IntN(len(history)-1), 1+random.IntN(len(history)-1)
	same(t, "diff of two", history[to], patched(t, history[from], must[string](t)(s.Diff(ctx, "a", "x", int64(from), int64(to)))))
}

// patched applies a diff to files.
func patched(t *testing.T, files map[string]string, diff string) map[string]string {
	t.Helper()
	files = maps.Clone(files)
	for _, part := range strings.Split("\n"+diff, "\ndiff --git a/")[1:] {
		name, rest, _ := strings.Cut(part, " b/")
		_, rest, _ = strings.Cut(rest, "\n")
		removed := strings.HasPrefix(rest, "deleted")
		old := strings.SplitAfter(files[name], "\n")
		var now strings.Builder
		at := 0
		for _, l := range strings.Split(rest, "\n") {
			switch {
			case strings.HasPrefix(l, "---"), strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "new"), strings.HasPrefix(l, "deleted"), l == "":
			case strings.HasPrefix(l, "@@"):
				var a, b, c, d int
				if _, err := fmt.Sscanf(l, "@@ -%d,%d +%d,%d @@", &a, &b, &c, &d); err != nil {
					t.Fatal(err)
				}
				if b > 0 {
					a--
				}
				for ; at < a; at++ {
					now.WriteString(old[at])
				}
			case l[0] == '-', l[0] == ' ':
				if old[at] != l[1:]+"\n" {
					t.Fatalf("the diff of %s does not apply: %q is %q", name, l, old[at])
				}
				if at++; l[0] == ' ' {
					now.WriteString(l[1:] + "\n")
				}
			case l[0] == '+':
				now.WriteString(l[1:] + "\n")
			}
		}
		for ; at < len(old); at++ {
			now.WriteString(old[at])
		}
		if files[name] = now.String(); removed {
			delete(files, name)
		}
	}
	return files
}

// TestPowerCuts cuts the power at each step of typical work.
func TestPowerCuts(t *testing.T) {
	every := 1
	if testing.Short() {
		every = 7
	}
	for left := 0; ; left += every {
		w := newFixture(t)
		s, stop := w.begin(t)
		w.power(left)
		done := day(t.Context(), t, w, s)
		stop()
		ended := !w.power(-1)
		s, stop = w.begin(t) // and then another node
		after(t, w, s, done)
		stop()
		if ended || t.Failed() {
			if left < 40 {
				t.Errorf("it was over after %d steps", left)
			}
			return
		}
	}
}

// A done holds the acknowledged results.
type done struct {
	created  bool
	texts    []string // contents that a had, of which the last may be recorded or not
	sure     int      // number of texts that are certainly recorded
	touched  string   // content of b that was written in the sandbox
	box      engi.SandboxID
	captured bool // captured, and a later call was answered
}

// day performs all kinds of operations until the power is off.
func day(ctx context.Context, t *testing.T, w *fixture, s *workspace.Service) (d done) {
	files := []engi.WorkspaceFile{file("a", "0"), file("b", "0"), file("c/d", strings.Repeat("x", 1000))}
	if _, err := s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: files}); err != nil {
		return d
	}
	d.created, d.texts, d.sure = true, []string{"0"}, 1
	write := func(text string) error {
		d.texts = append(d.texts, text)
		_, err := s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("a", text)}})
		if err == nil {
			d.sure = len(d.texts)
		}
		return err
	}
	x, err := s.Start(ctx, "a", "x")
	if err != nil {
		return d
	}
	if write("1") != nil {
		return d
	}
	w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/b", "touched", 0o644) })
	d.touched, d.box = "touched", x.Sandbox
	if write("2") != nil {
		return d
	}
	d.captured = true
	if _, err := s.Restore(ctx, "a", "x", 1, "c"); err != nil {
		return d
	}
	for _, way := range [][2]string{{"c", "e/c"}, {"e/c", "c"}} { // it is in one of the two places after a power cut
		if _, err := s.Move(ctx, engi.MoveSpec{Viewer: "a", Workspace: "x", From: way[0], To: way[1]}); err != nil {
			return d
		}
	}
	if s.Stop(ctx, "a", "x") != nil {
		return d
	}
	if _, err := s.Start(ctx, "a", "x"); err != nil {
		return d
	}
	d.texts = append(d.texts, "3")
	if pushes(ctx, t, s, "pushed", map[string]string{"a": "3"}) != nil {
		return d
	}
	d.sure = len(d.texts)
	d.captured = s.Remove(ctx, "a", "x") == nil || d.captured
	return d
}

// after checks the state after a power cut.
func after(t *testing.T, w *fixture, s *workspace.Service, d done) {
	t.Helper()
	ctx := t.Context()
	all := must[[]engi.Workspace](t)(s.List(ctx, "a", engi.Paging{}))
	if len(all) == 0 {
		if len(w.boxes) > 0 {
			t.Errorf("a sandbox of nothing is left")
		}
		if d.created && d.sure < 4 {
			t.Errorf("the workspace is gone")
		}
		return
	}
	alive := w.boxes[d.box] != nil
	x, err := s.Start(ctx, "a", "x")
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, s, "x", 0)
	same(t, "the sandbox", files, w.has(x.Sandbox))
	if len(w.boxes) != 1 {
		t.Errorf("there are %d sandboxes", len(w.boxes))
	}
	want := []string{"0"} // a workspace whose creation was not acknowledged
	if d.created {
		want = d.texts[d.sure-1:]
	}
	if !slices.Contains(want, files["a"]) {
		t.Errorf("a is %q, want one of %q", files["a"], want)
	}
	if (alive || d.captured) && d.touched != "" && files["b"] != d.touched {
		t.Errorf("what somebody has changed in the sandbox is lost: b is %q", files["b"])
	}
	if big := strings.Repeat("x", 1000); (files["c/d"] == big) == (files["e/c/d"] == big) {
		t.Errorf("c/d has %d bytes, e/c/d %d", len(files["c/d"]), len(files["e/c/d"]))
	}
	for _, rev := range must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{})) {
		for p, text := range contents(t, s, "x", rev.Number) {
			if strings.HasSuffix(p, "c/d") && len(text) != 1000 {
				t.Errorf("revision %d has %d bytes of c/d", rev.Number, len(text))
			}
		}
	}
	if err := s.Remove(ctx, "a", "x"); err != nil || len(w.boxes) > 0 {
		t.Errorf("left over: %d sandboxes, %v", len(w.boxes), err)
	}
}

func TestManyFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	w := newFixture(t)
	s, _ := w.begin(t)
	ctx := t.Context()
	var files []engi.WorkspaceFile
	for i := range 10_000 {
		files = append(files, file(fmt.Sprintf("d%d/e%d/f%d", i%10, i%100, i), fmt.Sprint(i)))
	}
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: files}))
	x := must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	if n := len(w.has(x.Sandbox)); n != 10_000 {
		t.Fatalf("the sandbox has %d files", n)
	}
	if _, err := s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("more", "")}}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("one more: %v", err)
	}
	w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/more", "", 0o644) })
	if _, err := s.Files(ctx, "a", "x", 0); !engi.Is(err, engi.Exhausted) {
		t.Errorf("one more in the sandbox: %v", err)
	}
	if err := s.Stop(ctx, "a", "x"); !engi.Is(err, engi.Exhausted) {
		t.Errorf("it was stopped, with what could not be recorded: %v", err)
	}
	w.in(x.Sandbox, func(b *fakeSandbox) { b.remove("/workspace/more"); b.put("/workspace/d0/e0/f0", "changed", 0o644) })
	if rev := must[engi.WorkspaceRevision](t)(s.Restore(ctx, "a", "x", 1, "")); rev.Number != 3 || len(rev.Changed) != 1 {
		t.Errorf("%+v", rev)
	}
}

// TestLongHistory changes one file often beside many others.
func TestLongHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	var files []engi.WorkspaceFile
	for i := range 2000 {
		files = append(files, file(fmt.Sprint("f", i), fmt.Sprint(i)))
	}
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: files}))
	var text bytes.Buffer
	for i := range 200 {
		fmt.Fprintln(&text, i)
		must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("log", text.String())}}))
	}
	lines := must[[]engi.BlameLine](t)(s.Blame(ctx, "a", "x", "log", 0))
	for i, l := range lines {
		if l.Revision != int64(i+2) || l.Text != fmt.Sprint(i) {
			t.Fatalf("line %d: %+v", i, l)
		}
	}
	if len(lines) != 200 {
		t.Errorf("%d lines", len(lines))
	}
}
