package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// A workspaceFixture is an empty store and the log that it appends to.
type workspaceFixture struct {
	Store  workspace.Store
	Events engi.Events
}

// record returns a workspace that is not in the store.
func workspaceRecord(owner engi.Owner, name string) workspace.Record {
	now := time.Now().UTC()
	return workspace.Record{Workspace: engi.Workspace{ID: engi.NewWorkspaceID(), Owner: owner, Name: name, Template: "base", State: engi.WorkspaceStopped, Created: now, Used: now}}
}

// put adds a workspace.
func putWorkspace(t *testing.T, s workspace.Store, r workspace.Record) workspace.Record {
	t.Helper()
	if err := s.Put(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

const plentyForWorkspaces = 1 << 20

// revise adds a revision with files, all of which it names as changed.
func reviseWorkspace(t *testing.T, s workspace.Store, r workspace.Record, most int64, files map[string]string) (engi.WorkspaceRevision, error) {
	t.Helper()
	all, rev := repo.Files{}, engi.WorkspaceRevision{Number: r.Revision + 1, Parent: r.Revision, Message: "m", Actor: "a", Of: 7, Created: time.Now().UTC()}
	var objects []repo.Object
	for p, text := range files {
		o, err := repo.New(repo.Blob, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		objects, all[p] = append(objects, o), repo.File{Path: p, Mode: repo.FileMode, Hash: o.Hash}
	}
	rev.Changed = repo.Files{}.Changes(all)
	v, made, err := repo.Version{}.Next(all, repo.Note{Message: "m", Actor: "a", Time: rev.Created})
	if err != nil {
		t.Fatal(err)
	}
	rev.Commit = v.Commit
	_, err = s.Change(t.Context(), r.ID, func(now *workspace.Record, tx workspace.Tx) error {
		now.Revision = rev.Number
		if err := tx.Revise(rev, append(objects, made...), most); err != nil {
			return err
		}
		return tx.Emit(engi.EventWorkspaceRevised, map[string]any{"revision": rev.Number})
	})
	return rev, err
}

func wantKind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// events returns the types of the events about a workspace, the oldest first.
func workspaceEvents(t *testing.T, f workspaceFixture, id engi.WorkspaceID) (types []string) {
	t.Helper()
	all, err := f.Events.List(t.Context(), engi.Everyone, engi.EventFilter{Subject: string(id), Oldest: true, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		types = append(types, e.Type)
	}
	return types
}

// workspacePromises tests every promise of [workspace.Store].
func workspacePromises(t *testing.T, fixture func(t *testing.T) workspaceFixture) {
	for name, f := range map[string]func(*testing.T, workspaceFixture){
		"1 a record is what was put and changed":            workspaceRecords,
		"2 owners and who works on it find it":              workspaceFinding,
		"3 names and keys are used once":                    workspaceOnce,
		"4 lists are in pages, the newest first":            workspacePages,
		"5 what fails changes nothing":                      workspaceAtomic,
		"6 revisions have numbers in a row and their files": workspaceRevisions,
		"7 histories are bounded":                           workspaceBounded,
		"8 what is removed is gone":                         workspaceRemoved,
	} {
		t.Run(name, func(t *testing.T) { f(t, fixture(t)) })
	}
}

func workspaceRecords(t *testing.T, f workspaceFixture) {
	r := workspaceRecord("o", "n")
	r.Collaborators = []engi.Collaborator{{Owner: "p", Role: engi.RoleEditor}}
	r.Metadata, r.Idempotency, r.Fingerprint = map[string]string{"k": "v"}, "key", "print"
	putWorkspace(t, f.Store, r)
	r.Services = []workspace.ServiceRecord{{
		Service: engi.Service{
			Name: "db", Type: engi.ServicePostgres, Version: "15.3", Server: "PostgreSQL 15.3", State: engi.ServiceHealthy, Sandbox: "sb", Volume: "vol", Host: "db.workspace.internal",
			Port: 5432, Exposed: true, Needs: []string{"cache"}, Restarts: 3, Error: engi.Errorf(engi.Unavailable, "why").WithRemedy("how"), Started: time.Now().UTC(),
		},
		User: "u", Password: "secret", Database: "d", Env: map[string]string{"A": "B"}, Wanted: "15", Template: "mine", Boots: 2, Failures: 1,
	}}
	r.Preview = engi.WorkspacePreview{Type: engi.PreviewStatic, Root: "dist", Port: 3, Public: true}
	r.State, r.Sandbox, r.Base, r.Boots, r.Revision, r.Size, r.Error = engi.WorkspaceFailed, "sb2", 4, 5, 6, 7, engi.Errorf(engi.Exhausted, "full")
	r.Collaborators = append(r.Collaborators, engi.Collaborator{Owner: "q", Role: engi.RoleViewer})
	changed, err := f.Store.Change(t.Context(), r.ID, func(x *workspace.Record, _ workspace.Tx) error { *x = r; return nil })
	if err != nil {
		t.Fatal(err)
	}
	found, err := f.Store.Find(t.Context(), "q", string(r.ID))
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []workspace.Record{changed, found} {
		if d := cmp.Diff(r, got, cmpopts.IgnoreUnexported(engi.Error{})); d != "" {
			t.Error(d)
		}
	}
}

func workspaceFinding(t *testing.T, f workspaceFixture) {
	mine, yours := workspaceRecord("a", "x"), workspaceRecord("b", "x")
	yours.Collaborators = []engi.Collaborator{{Owner: "a", Role: engi.RoleViewer}, {Owner: "c", Role: engi.RoleViewer}}
	third := workspaceRecord("d", "x")
	third.Collaborators = []engi.Collaborator{{Owner: "c", Role: engi.RoleViewer}}
	for _, r := range []workspace.Record{mine, yours, third} {
		putWorkspace(t, f.Store, r)
	}
	for _, c := range []struct {
		viewer engi.Viewer
		name   string
		want   engi.WorkspaceID
		kind   engi.Kind
	}{
		{"a", "x", mine.ID, 0},
		{"a", string(yours.ID), yours.ID, 0},
		{"a", string(third.ID), "", engi.NotFound},
		{"b", "x", yours.ID, 0},
		{"b", string(mine.ID), "", engi.NotFound},
		{"a", "b/x", yours.ID, 0},
		{"a", "a/x", mine.ID, 0},
		{"a", "d/x", "", engi.NotFound},
		{"c", "x", "", engi.NotFound}, // others share two of the name
		{"c", "d/x", third.ID, 0},
		{"c", "/x", "", engi.NotFound},
		{"c", string(third.ID), third.ID, 0},
		{"e", "x", "", engi.NotFound},
		{engi.Everyone, "x", "", engi.Conflict},
		{engi.Everyone, string(mine.ID), mine.ID, 0},
		{engi.Everyone, "b/x", yours.ID, 0},
		{engi.Everyone, "y", "", engi.NotFound},
		{"", "x", "", engi.NotFound},
		{"", string(mine.ID), "", engi.NotFound},
	} {
		r, err := f.Store.Find(t.Context(), c.viewer, c.name)
		if c.want == "" {
			wantKind(t, err, c.kind)
		} else if err != nil || r.ID != c.want {
			t.Errorf("%q finds %s as %s: %v", c.viewer, c.name, r.ID, err)
		}
	}
	// Who does not work on it any more does not find it.
	if _, err := f.Store.Change(t.Context(), yours.ID, func(r *workspace.Record, _ workspace.Tx) error { r.Collaborators = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	_, err := f.Store.Find(t.Context(), "a", string(yours.ID))
	wantKind(t, err, engi.NotFound)
	if n, err := f.Store.Count(t.Context(), "a"); err != nil || n != 1 {
		t.Errorf("a owns %d: %v", n, err)
	}
}

func workspaceOnce(t *testing.T, f workspaceFixture) {
	r := workspaceRecord("a", "x")
	r.Idempotency = "k"
	putWorkspace(t, f.Store, r)
	wantKind(t, f.Store.Put(t.Context(), workspaceRecord("a", "x"), nil), engi.Conflict)
	again := workspaceRecord("a", "y")
	again.Idempotency = "k"
	wantKind(t, f.Store.Put(t.Context(), again, nil), engi.Conflict)
	again.Owner = "b"
	putWorkspace(t, f.Store, again)
	putWorkspace(t, f.Store, workspaceRecord("b", "x"))
	got, err := f.Store.ByIdempotencyKey(t.Context(), "a", "k")
	if err != nil || got.ID != r.ID {
		t.Errorf("the key is of %s: %v", got.ID, err)
	}
	_, err = f.Store.ByIdempotencyKey(t.Context(), "b", "")
	wantKind(t, err, engi.NotFound)
}

func workspacePages(t *testing.T, f workspaceFixture) {
	var want []engi.WorkspaceID
	for i := range 5 {
		r := workspaceRecord("a", fmt.Sprint("n", i))
		if i == 2 {
			r.Owner, r.Collaborators = "b", []engi.Collaborator{{Owner: "a", Role: engi.RoleViewer}}
		}
		putWorkspace(t, f.Store, r)
		want = append([]engi.WorkspaceID{r.ID}, want...)
	}
	other := putWorkspace(t, f.Store, workspaceRecord("c", "z"))
	var got []engi.WorkspaceID
	for p := (engi.Paging{Limit: 2}); ; {
		all, err := f.Store.List(t.Context(), "a", p)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			break
		}
		for _, r := range all {
			got = append(got, r.ID)
		}
		p.After = string(got[len(got)-1])
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	_, err := f.Store.List(t.Context(), "a", engi.Paging{After: string(other.ID)})
	wantKind(t, err, engi.Invalid)
	if all, err := f.Store.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(all) != 6 {
		t.Errorf("the node sees %d: %v", len(all), err)
	}
}

func workspaceAtomic(t *testing.T, f workspaceFixture) {
	r := putWorkspace(t, f.Store, workspaceRecord("a", "x"))
	fails := engi.Errorf(engi.Denied, "no")
	_, err := f.Store.Change(t.Context(), r.ID, func(x *workspace.Record, tx workspace.Tx) error {
		x.Boots = 9
		return cmpOr(tx.Emit(engi.EventWorkspaceState, nil), error(fails))
	})
	wantKind(t, err, engi.Denied)
	lost := workspaceRecord("a", "y")
	wantKind(t, f.Store.Put(t.Context(), lost, func(workspace.Tx) error { return fails }), engi.Denied)
	_, err = f.Store.Find(t.Context(), "a", "y")
	wantKind(t, err, engi.NotFound)
	if got, err := f.Store.Find(t.Context(), "a", "x"); err != nil || got.Boots != 0 {
		t.Errorf("a change that failed has left %d: %v", got.Boots, err)
	}
	if d := cmp.Diff([]string{engi.EventWorkspaceCreated}, workspaceEvents(t, f, r.ID)); d != "" {
		t.Error(d)
	}
	_, err = f.Store.Change(t.Context(), engi.NewWorkspaceID(), func(*workspace.Record, workspace.Tx) error { return nil })
	wantKind(t, err, engi.NotFound)
}

func cmpOr(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func workspaceRevisions(t *testing.T, f workspaceFixture) {
	r, other := putWorkspace(t, f.Store, workspaceRecord("a", "x")), putWorkspace(t, f.Store, workspaceRecord("a", "y"))
	var want []engi.WorkspaceRevision
	for i, files := range []map[string]string{{"a": "1", "d/b": "2"}, {"d/b": "3"}, {"a": ""}} {
		r.Revision = int64(i)
		rev, err := reviseWorkspace(t, f.Store, r, plentyForWorkspaces, files)
		if err != nil {
			t.Fatal(err)
		}
		want = append([]engi.WorkspaceRevision{rev}, want...)
		for p, text := range files {
			file, err := repo.Find(t.Context(), workspaceSource(f, r.ID), rev.Commit, p)
			if err != nil {
				t.Fatal(err)
			}
			o, err := f.Store.Object(t.Context(), r.ID, file.Hash)
			if err != nil {
				t.Fatal(err)
			}
			if data, err := o.Content(); err != nil || string(data) != text {
				t.Errorf("%s is %q: %v", p, data, err)
			}
			if sizes, err := f.Store.Sizes(t.Context(), r.ID, repo.Blob, []string{file.Hash, "x", rev.Commit}); err != nil || !cmp.Equal(sizes, map[string]int64{file.Hash: int64(len(text))}) {
				t.Errorf("sizes are %v: %v", sizes, err)
			}
			_, err = f.Store.Object(t.Context(), other.ID, file.Hash)
			wantKind(t, err, engi.NotFound)
		}
	}
	got, err := f.Store.Revisions(t.Context(), r.ID, engi.Paging{})
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	got, err = f.Store.Revisions(t.Context(), r.ID, engi.Paging{After: "3", Limit: 1})
	if d := cmp.Diff(want[1:2], got); d != "" || err != nil {
		t.Error(d, err)
	}
	for _, after := range []string{"4", "x"} {
		_, err = f.Store.Revisions(t.Context(), r.ID, engi.Paging{After: after})
		wantKind(t, err, engi.Invalid)
	}
	got, err = f.Store.Touched(t.Context(), r.ID, "a", 3, 10)
	if d := cmp.Diff([]engi.WorkspaceRevision{want[0], want[2]}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if got, err = f.Store.Touched(t.Context(), r.ID, "a", 2, 1); err != nil || len(got) != 1 || got[0].Number != 1 {
		t.Error(got, err)
	}
	_, err = f.Store.Revision(t.Context(), r.ID, 4)
	wantKind(t, err, engi.NotFound)
	_, err = reviseWorkspace(t, f.Store, r, plentyForWorkspaces, map[string]string{"a": "twice"}) // number 3 again
	wantKind(t, err, engi.Conflict)
	_, err = f.Store.Change(t.Context(), other.ID, func(_ *workspace.Record, tx workspace.Tx) error {
		return tx.Revise(engi.WorkspaceRevision{Number: 1, Commit: want[0].Commit}, nil, plentyForWorkspaces)
	})
	wantKind(t, err, engi.Internal) // it is a commit of another workspace
	if d := cmp.Diff([]string{engi.EventWorkspaceCreated, engi.EventWorkspaceRevised, engi.EventWorkspaceRevised, engi.EventWorkspaceRevised}, workspaceEvents(t, f, r.ID)); d != "" {
		t.Error(d)
	}
}

func workspaceSource(f workspaceFixture, id engi.WorkspaceID) repo.Source {
	return func(ctx context.Context, hash string) (repo.Object, error) { return f.Store.Object(ctx, id, hash) }
}

func workspaceBounded(t *testing.T, f workspaceFixture) {
	const most = 4000
	noise := func(seed byte) string { // that compresses badly
		var b strings.Builder
		for x := uint32(seed) + 1; b.Len() < 1000; x = x*1664525 + 1013904223 {
			b.WriteByte(byte(x >> 24))
		}
		return b.String()
	}
	r := putWorkspace(t, f.Store, workspaceRecord("a", "x"))
	if _, err := reviseWorkspace(t, f.Store, r, most, map[string]string{"a": noise(1)}); err != nil {
		t.Fatal(err)
	}
	second := putWorkspace(t, f.Store, workspaceRecord("a", "y"))
	_, err := reviseWorkspace(t, f.Store, second, most, map[string]string{"a": noise(2), "b": noise(3)})
	wantKind(t, err, engi.Exhausted)
	if all, err := f.Store.Revisions(t.Context(), second.ID, engi.Paging{}); err != nil || len(all) > 0 {
		t.Errorf("a revision that was too much is there: %v, %v", all, err)
	}
	stranger := putWorkspace(t, f.Store, workspaceRecord("b", "y"))
	if _, err := reviseWorkspace(t, f.Store, stranger, most, map[string]string{"a": noise(2), "b": noise(3)}); err != nil {
		t.Error(err)
	}
	if err := f.Store.Remove(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := reviseWorkspace(t, f.Store, second, most, map[string]string{"a": noise(2), "b": noise(3)}); err != nil {
		t.Error("what was removed still counts:", err)
	}
}

func workspaceRemoved(t *testing.T, f workspaceFixture) {
	r := workspaceRecord("a", "x")
	r.Collaborators = []engi.Collaborator{{Owner: "b", Role: engi.RoleViewer}}
	putWorkspace(t, f.Store, r)
	rev, err := reviseWorkspace(t, f.Store, r, plentyForWorkspaces, map[string]string{"a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Store.Remove(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.Store.Find(t.Context(), "b", "x")
	wantKind(t, err, engi.NotFound)
	_, err = f.Store.Object(t.Context(), r.ID, rev.Commit)
	wantKind(t, err, engi.NotFound)
	_, err = f.Store.Revision(t.Context(), r.ID, 1)
	wantKind(t, err, engi.NotFound)
	wantKind(t, f.Store.Remove(t.Context(), r.ID), engi.NotFound)
	putWorkspace(t, f.Store, workspaceRecord("a", "x"))
	all, err := f.Events.List(t.Context(), "a", engi.EventFilter{Subject: string(r.ID)})
	if err != nil || len(all) == 0 || all[0].Type != engi.EventWorkspaceRemoved {
		t.Errorf("events are %v: %v", all, err)
	}
	var data struct{ Name string }
	if err := json.Unmarshal(all[0].Data, &data); err != nil || data.Name != "x" {
		t.Errorf("the event says %s: %v", all[0].Data, err)
	}
}
