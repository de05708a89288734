package store_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// An appFixture is an empty store and the log that it appends to.
type appFixture struct {
	Store  app.Store
	Events engi.Events
}

var plentyForApps = app.Bounds{Revisions: 100, Bytes: 1 << 20, Owner: 1 << 20}

// record returns an app that is not in the store.
func appRecord(owner engi.Owner, name string) app.Record {
	now := time.Now().UTC()
	return app.Record{App: engi.App{ID: engi.NewAppID(), Owner: owner, Name: name, Template: "vite-react", State: engi.AppStarting, Created: now, Used: now}}
}

// text returns a file, and its content by its digest.
func appText(path, content string, contents map[string][]byte) app.File {
	sum := sha256.Sum256([]byte(content))
	digest := hex.EncodeToString(sum[:])
	contents[digest] = []byte(content)
	return app.File{AppFile: engi.AppFile{Path: path, Size: int64(len(content)), Mode: 0o644, Digest: digest}, Blob: "b-" + digest[:8]}
}

// revise adds a revision with files, without those whose content is "-".
func reviseApp(t *testing.T, s app.Store, id engi.AppID, files map[string]string, b app.Bounds) app.Record {
	t.Helper()
	r, err := s.Change(t.Context(), id, func(r *app.Record, tx app.Tx) error {
		contents := map[string][]byte{}
		var put []app.File
		var removed []string
		for path, content := range files {
			if content == "-" {
				removed = append(removed, path)
			} else {
				put = append(put, appText(path, content, contents))
			}
		}
		r.Revision++
		rev := engi.Revision{App: id, Number: r.Revision, Parent: r.Revision - 1, Message: fmt.Sprint("revision ", r.Revision), Commit: "c", Created: time.Now().UTC(), Changed: []engi.AppChange{{Path: "p", Op: engi.FileCreated, Size: 1}}}
		if err := tx.Revise(rev, put, removed, contents, b); err != nil {
			return err
		}
		_, err := tx.Emit(engi.EventAppApplied, map[string]any{"revision": r.Revision})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// contents returns the files of a revision with their contents.
func appContents(t *testing.T, s app.Store, id engi.AppID, number int64) map[string]string {
	t.Helper()
	files, err := s.Files(t.Context(), id, number)
	if err != nil {
		t.Fatal(err)
	}
	all, last := map[string]string{}, ""
	for _, f := range files {
		data, err := s.Content(t.Context(), id, f.Digest)
		if err != nil || f.Path <= last || f.Blob != "b-"+f.Digest[:8] || f.Mode != 0o644 || f.Size != int64(len(data)) {
			t.Errorf("%+v with %d bytes after %q (%v)", f, len(data), last, err)
		}
		all[f.Path], last = string(data), f.Path
	}
	return all
}

// appPromises tests every promise of app.Store. Each call of open returns an empty store.
func appPromises(t *testing.T, open func(t *testing.T) appFixture) {
	put := func(t *testing.T, f appFixture, r app.Record) app.Record {
		t.Helper()
		if err := f.Store.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	types := func(t *testing.T, f appFixture, id engi.AppID) (all []string) {
		t.Helper()
		events, err := f.Events.List(t.Context(), engi.Everyone, engi.EventFilter{Subject: string(id), Oldest: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			all = append(all, e.Type)
		}
		return all
	}

	t.Run("Put and Find/keep everything", func(t *testing.T) {
		f := open(t)
		want := appRecord("ann", "shop")
		want.Metadata, want.Env, want.Port = map[string]string{"a": "b"}, map[string]string{"KEY": "secret"}, 5173
		want.Network = engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"packages"}, Headers: []engi.HeaderRule{{Host: "h", Headers: map[string]string{"A": "secret"}}}}
		want.Sandbox, want.Applying, want.Editing, want.Boots, want.Idempotency, want.Fingerprint = engi.NewSandboxID(), 7, 5, 3, "k", "f"
		want.Workspace, want.Directory, want.Start, want.Ahead = engi.NewWorkspaceID(), "web", "npm start", true
		want.Error = engi.Errorf(engi.Exhausted, "full").WithRemedy("wait")
		want.Alerts = []engi.AppAlert{{Metric: "memory", Value: 0.9, Limit: 0.8, Action: engi.AppActRestartServer, Text: "t", Since: time.Now().UTC(), Seq: 3, Acted: true}}
		want.Published = engi.Publication{Revision: 2, At: time.Now().UTC(), Files: 3, Bytes: 4, Private: true}
		want.Undo = &app.Undo{Paths: []string{"a", "b"}, All: true, Packages: true, Restart: true}
		put(t, f, want)
		for _, name := range []string{"shop", string(want.ID)} {
			for _, viewer := range []engi.Viewer{"ann", engi.Everyone} {
				got, err := f.Store.Find(t.Context(), viewer, name)
				if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(engi.Error{}), cmpopts.EquateEmpty()); err != nil || d != "" {
					t.Errorf("%s for %q (%v):\n%s", name, viewer, err, d)
				}
			}
			for _, viewer := range []engi.Viewer{"bob", ""} {
				if _, err := f.Store.Find(t.Context(), viewer, name); !engi.Is(err, engi.NotFound) {
					t.Errorf("%q finds %s: %v", viewer, name, err)
				}
			}
		}
		if got, err := f.Store.ByIdempotencyKey(t.Context(), "ann", "k"); err != nil || got.ID != want.ID {
			t.Errorf("by its key: %v, %v", got.ID, err)
		}
		for owner, key := range map[engi.Owner]string{"bob": "k", "ann": ""} {
			if _, err := f.Store.ByIdempotencyKey(t.Context(), owner, key); !engi.Is(err, engi.NotFound) {
				t.Errorf("%s by %q: %v", owner, key, err)
			}
		}
		if got := types(t, f, want.ID); !cmp.Equal(got, []string{engi.EventAppCreated}) {
			t.Errorf("the events are %v", got)
		}
	})
	t.Run("Put/names and keys are one owner's", func(t *testing.T) {
		f := open(t)
		a := appRecord("ann", "shop")
		a.Idempotency = "k"
		put(t, f, a)
		if err := f.Store.Put(t.Context(), appRecord("ann", "shop")); !engi.Is(err, engi.Conflict) {
			t.Errorf("the name again: %v", err)
		}
		b := appRecord("ann", "other")
		b.Idempotency = "k"
		if err := f.Store.Put(t.Context(), b); !engi.Is(err, engi.Conflict) {
			t.Errorf("the key again: %v", err)
		}
		c := appRecord("bob", "shop")
		c.Idempotency = "k"
		put(t, f, c)
		if _, err := f.Store.Find(t.Context(), engi.Everyone, "shop"); !engi.Is(err, engi.Conflict) {
			t.Errorf("two of one name: %v", err)
		}
	})
	t.Run("List/is by owner, the newest first", func(t *testing.T) {
		f := open(t)
		a, b, c := put(t, f, appRecord("ann", "a")), put(t, f, appRecord("bob", "b")), put(t, f, appRecord("ann", "c"))
		for _, want := range []struct {
			viewer engi.Viewer
			page   engi.Paging
			names  string
		}{{"ann", engi.Paging{}, "ca"}, {engi.Everyone, engi.Paging{}, "cba"}, {"", engi.Paging{}, ""}, {engi.Everyone, engi.Paging{Limit: 1}, "c"}, {engi.Everyone, engi.Paging{Limit: 2, After: string(c.ID)}, "ba"}, {"ann", engi.Paging{After: string(c.ID)}, "a"}, {"bob", engi.Paging{After: string(b.ID)}, ""}} {
			all, err := f.Store.List(t.Context(), want.viewer, want.page)
			names := ""
			for _, r := range all {
				names += r.Name
			}
			if err != nil || names != want.names {
				t.Errorf("%q, %+v: %q, %v; want %q", want.viewer, want.page, names, err, want.names)
			}
		}
		if _, err := f.Store.List(t.Context(), "bob", engi.Paging{After: string(a.ID)}); !engi.Is(err, engi.Invalid) {
			t.Errorf("after another's: %v", err)
		}
	})
	t.Run("Change/keeps snapshots and what is of no use", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		want, err := f.Store.Change(t.Context(), r.ID, func(r *app.Record, _ app.Tx) error {
			r.Snapshots = []app.Snapshot{{Revision: 2, ID: engi.NewSnapshotID(), Bytes: 3, Created: time.Now().UTC()}}
			r.Stray = app.Stray{Sandboxes: []engi.SandboxID{engi.NewSandboxID()}, Snapshots: []engi.SnapshotID{engi.NewSnapshotID()}}
			r.Undo = &app.Undo{All: true, Snapshot: engi.NewSnapshotID()}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Store.Find(t.Context(), "ann", "shop"); err != nil || !cmp.Equal(got.Snapshots, want.Snapshots) || !cmp.Equal(got.Stray, want.Stray) || !cmp.Equal(got.Undo, want.Undo) {
			t.Errorf("it is %+v (%v), want %+v", got, err, want)
		}
	})
	t.Run("Change/stores all or nothing", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		var seq int64
		_, err := f.Store.Change(t.Context(), r.ID, func(r *app.Record, tx app.Tx) (err error) {
			r.State, r.Error = engi.AppReady, nil
			seq, err = tx.EmitOnce(engi.EventAppApplying, map[string]string{"text": "<é>"}, idempotency.Request{Key: "key", Fingerprint: "f"})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Store.Find(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
			t.Errorf("it is %+v (%v)", got, err)
		}
		if got, err := f.Store.EventByIdempotencyKey(t.Context(), "ann", r.ID, "key"); err != nil || got.Seq != seq || got.Fingerprint != "f" {
			t.Errorf("the key has %+v, %v; want %d", got, err, seq)
		}
		other := put(t, f, appRecord("ann", "other"))
		if _, err := f.Store.EventByIdempotencyKey(t.Context(), "ann", other.ID, "key"); !engi.Is(err, engi.NotFound) {
			t.Errorf("the key of another app: %v", err)
		}
		stop := engi.Errorf(engi.Denied, "no")
		_, err = f.Store.Change(t.Context(), r.ID, func(r *app.Record, tx app.Tx) error {
			r.State = engi.AppFailed
			if _, err := tx.Emit(engi.EventAppState, map[string]string{}); err != nil {
				return err
			}
			if err := tx.Revise(engi.Revision{App: r.ID, Number: 1}, nil, nil, nil, plentyForApps); err != nil {
				return err
			}
			return stop
		})
		if !engi.Is(err, engi.Denied) {
			t.Errorf("the error is %v", err)
		}
		if got, err := f.Store.Find(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
			t.Errorf("it is %+v (%v)", got, err)
		}
		if got := types(t, f, r.ID); !cmp.Equal(got, []string{engi.EventAppCreated, engi.EventAppApplying}) {
			t.Errorf("the events are %v", got)
		}
		if _, err := f.Store.Revision(t.Context(), r.ID, 1); !engi.Is(err, engi.NotFound) {
			t.Errorf("the revision: %v", err)
		}
		if _, err := f.Store.Change(t.Context(), r.ID, func(_ *app.Record, tx app.Tx) error {
			_, err := tx.EmitOnce(engi.EventAppApplying, map[string]string{}, idempotency.Request{Key: "key"})
			return err
		}); !engi.Is(err, engi.Conflict) {
			t.Errorf("the key again: %v", err)
		}
		if _, err := f.Store.Change(t.Context(), engi.NewAppID(), func(*app.Record, app.Tx) error { return nil }); !engi.Is(err, engi.NotFound) {
			t.Errorf("no app: %v", err)
		}
	})
	t.Run("Revise/each revision has its files", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "1", "b/c": "", "d": "x\x00\xff"}, plentyForApps)
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "2", "b/c": "-"}, plentyForApps)
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "1", "b/c": "again"}, plentyForApps)
		for i, want := range []map[string]string{{"a": "1", "b/c": "", "d": "x\x00\xff"}, {"a": "2", "d": "x\x00\xff"}, {"a": "1", "b/c": "again", "d": "x\x00\xff"}} {
			if d := cmp.Diff(want, appContents(t, f.Store, r.ID, int64(i+1))); d != "" {
				t.Errorf("revision %d:\n%s", i+1, d)
			}
		}
		files, err := f.Store.Files(t.Context(), r.ID, 3)
		if err != nil || len(files) != 3 || files[0].Since != 3 || files[1].Since != 3 || files[2].Since != 1 {
			t.Errorf("revision 3 has %+v (%v)", files, err)
		}
		revs, err := f.Store.Revisions(t.Context(), r.ID, engi.Paging{Limit: 2})
		if err != nil || len(revs) != 2 || revs[0].Number != 3 || revs[1].Number != 2 || revs[0].Parent != 2 || revs[0].Message != "revision 3" || revs[0].Commit != "c" || len(revs[0].Changed) != 1 || revs[0].App != r.ID || revs[0].Created.IsZero() {
			t.Errorf("the history is %+v (%v)", revs, err)
		}
		if revs, err := f.Store.Revisions(t.Context(), r.ID, engi.Paging{After: "2"}); err != nil || len(revs) != 1 || revs[0].Number != 1 {
			t.Errorf("after 2: %+v, %v", revs, err)
		}
		for _, after := range []string{"9", "x"} {
			if _, err := f.Store.Revisions(t.Context(), r.ID, engi.Paging{After: after}); !engi.Is(err, engi.Invalid) {
				t.Errorf("after %s: %v", after, err)
			}
		}
		if _, err := f.Store.Files(t.Context(), r.ID, 4); !engi.Is(err, engi.NotFound) {
			t.Errorf("revision 4: %v", err)
		}
	})
	t.Run("Revise/needs every content", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		_, err := f.Store.Change(t.Context(), r.ID, func(_ *app.Record, tx app.Tx) error {
			return tx.Revise(engi.Revision{App: r.ID, Number: 1}, []app.File{appText("a", "1", map[string][]byte{})}, nil, nil, plentyForApps)
		})
		if err == nil {
			t.Error("a file without content was recorded")
		}
	})
	t.Run("Revise/contents are of one app", func(t *testing.T) {
		f := open(t)
		a, b := put(t, f, appRecord("ann", "a")), put(t, f, appRecord("ann", "b"))
		reviseApp(t, f.Store, a.ID, map[string]string{"a": "1"}, plentyForApps)
		files, err := f.Store.Files(t.Context(), a.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Store.Content(t.Context(), b.ID, files[0].Digest); !engi.Is(err, engi.NotFound) {
			t.Errorf("another app's: %v", err)
		}
	})
	t.Run("Revise/bounds what an owner has", func(t *testing.T) {
		f := open(t)
		a, b, other := put(t, f, appRecord("ann", "a")), put(t, f, appRecord("ann", "b")), put(t, f, appRecord("bob", "b"))
		ten := app.Bounds{Revisions: 100, Bytes: 1 << 20, Owner: 10}
		reviseApp(t, f.Store, a.ID, map[string]string{"a": "123456"}, ten)
		more := func(id engi.AppID) error {
			_, err := f.Store.Change(t.Context(), id, func(r *app.Record, tx app.Tx) error {
				contents := map[string][]byte{}
				file := appText("a", "654321", contents)
				r.Revision++
				return tx.Revise(engi.Revision{App: id, Number: r.Revision, Created: time.Now()}, []app.File{file}, nil, contents, ten)
			})
			return err
		}
		if err := more(b.ID); !engi.Is(err, engi.Exhausted) {
			t.Errorf("12 of 10 bytes: %v", err)
		}
		if err := more(other.ID); err != nil {
			t.Errorf("another owner's: %v", err)
		}
		if err := f.Store.Remove(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		if err := more(b.ID); err != nil {
			t.Errorf("after the other app is gone: %v", err)
		}
	})
	t.Run("Revise/drops the oldest", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		few := app.Bounds{Revisions: 3, Bytes: 1 << 20, Owner: 1 << 20}
		var digests []string
		for i := range 6 {
			reviseApp(t, f.Store, r.ID, map[string]string{"a": fmt.Sprint("content ", i), "b": "the same"}, few)
			files, err := f.Store.Files(t.Context(), r.ID, int64(i+1))
			if err != nil {
				t.Fatal(err)
			}
			digests = append(digests, files[0].Digest)
		}
		for i, digest := range digests {
			_, err := f.Store.Revision(t.Context(), r.ID, int64(i+1))
			_, lost := f.Store.Content(t.Context(), r.ID, digest)
			if kept := i >= 3; (err == nil) != kept || (lost == nil) != kept {
				t.Errorf("revision %d: %v, its content: %v", i+1, err, lost)
			}
		}
		if d := cmp.Diff(map[string]string{"a": "content 3", "b": "the same"}, appContents(t, f.Store, r.ID, 4)); d != "" {
			t.Error(d)
		}
		// By size, but never the last two.
		small := app.Bounds{Revisions: 100, Bytes: 1, Owner: 1 << 20}
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "content 6"}, small)
		revs, err := f.Store.Revisions(t.Context(), r.ID, engi.Paging{})
		if err != nil || len(revs) != 2 {
			t.Errorf("%d revisions are left (%v)", len(revs), err)
		}
		if d := cmp.Diff(map[string]string{"a": "content 6", "b": "the same"}, appContents(t, f.Store, r.ID, 7)); d != "" {
			t.Error(d)
		}
	})
	t.Run("Publish/replaces what was there", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		big := strings.Repeat("0123456789abcdef", app.PartSize/8)
		publish := func(b app.Bounds, files map[string]string) error {
			_, err := f.Store.Change(t.Context(), r.ID, func(_ *app.Record, tx app.Tx) error {
				data := map[string][]byte{}
				var all []app.Published
				for path, content := range files {
					x := appText(path, content, data)
					all = append(all, app.Published{Path: path, Size: x.Size, Digest: x.Digest, Packed: appText(path, "packed "+path, data).Digest, Fixed: path == "fixed"})
				}
				return tx.Publish(all, data, b)
			})
			return err
		}
		read := func(path string) string {
			x, err := f.Store.Published(t.Context(), r.ID, path)
			if engi.Is(err, engi.NotFound) {
				return "none"
			}
			if err != nil {
				t.Fatal(err)
			}
			content := func(digest string) (all string) {
				for part := 0; ; part++ {
					size, data, err := f.Store.Part(t.Context(), r.ID, digest, part)
					if err != nil || len(data) > app.PartSize {
						t.Fatalf("part %d of %s: %d bytes, %v", part, path, len(data), err)
					}
					if all += string(data); int64(len(all)) >= size {
						return all
					}
				}
			}
			if packed := content(x.Packed); packed != "packed "+path || x.Fixed != (path == "fixed") || x.Path != path {
				t.Errorf("%+v is %q", x, packed)
			}
			return content(x.Digest)
		}
		want := func(files map[string]string) {
			t.Helper()
			for path, content := range files {
				if got := read(path); got != content {
					t.Errorf("%s is %.40q, want %.40q", path, got, content)
				}
			}
		}
		for _, step := range []struct{ publish, want map[string]string }{
			{map[string]string{"a": "1", "fixed": "f", "big": big, "empty": ""}, map[string]string{"a": "1", "fixed": "f", "big": big, "empty": "", "b": "none"}},
			{map[string]string{"a": "2", "b": "1"}, map[string]string{"a": "2", "fixed": "f", "big": "none", "b": "1"}},
			{map[string]string{"a": "2"}, map[string]string{"a": "2", "fixed": "none", "b": "none"}},
			{nil, map[string]string{"a": "none"}},
		} {
			if err := publish(plentyForApps, step.publish); err != nil {
				t.Fatal(err)
			}
			want(step.want)
		}
		if err := publish(app.Bounds{Owner: 10}, map[string]string{"a": "12345678901"}); !engi.Is(err, engi.Exhausted) {
			t.Errorf("more than 10 bytes: %v", err)
		}
		want(map[string]string{"a": "none"})
		if err := publish(plentyForApps, map[string]string{"a": "1"}); err != nil {
			t.Fatal(err)
		}
		x, err := f.Store.Published(t.Context(), r.ID, "a")
		if err != nil {
			t.Fatal(err)
		}
		other := put(t, f, appRecord("ann", "other"))
		for _, err := range []error{second(f.Store.Published(t.Context(), other.ID, "a")), third(f.Store.Part(t.Context(), other.ID, x.Digest, 0)), third(f.Store.Part(t.Context(), r.ID, x.Digest, 1))} {
			if !engi.Is(err, engi.NotFound) {
				t.Errorf("it is another app's, or not there: %v", err)
			}
		}
		if err := f.Store.Remove(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		if err := third(f.Store.Part(t.Context(), r.ID, x.Digest, 0)); !engi.Is(err, engi.NotFound) {
			t.Errorf("it outlives the app: %v", err)
		}
	})
	t.Run("Branch/has the files of a revision", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "1", "b": "x"}, plentyForApps)
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "2", "b": "-", "c": "y"}, plentyForApps)
		branch := func(owner engi.Owner, name string, of int64, b app.Bounds) (app.Record, error) {
			x := appRecord(owner, name)
			x.Revision = 1
			return x, f.Store.Branch(t.Context(), x, engi.Revision{App: x.ID, Number: 1, Of: of, From: r.ID, Message: "m", Commit: "c", Created: time.Now().UTC()}, b)
		}
		x, err := branch("ann", "blue", 1, plentyForApps)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Store.Remove(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(map[string]string{"a": "1", "b": "x"}, appContents(t, f.Store, x.ID, 1)); d != "" {
			t.Error(d)
		}
		if rev, err := f.Store.Revision(t.Context(), x.ID, 1); err != nil || rev.From != r.ID || rev.Of != 1 || rev.Parent != 0 {
			t.Errorf("it is %+v (%v)", rev, err)
		}
		reviseApp(t, f.Store, x.ID, map[string]string{"a": "3"}, plentyForApps)
		if d := cmp.Diff([]string{engi.EventAppCreated, engi.EventAppApplied, engi.EventAppApplied}, types(t, f, x.ID)); d != "" {
			t.Error(d)
		}
		r = x
		for _, c := range []struct {
			owner engi.Owner
			name  string
			of    int64
			b     app.Bounds
			kind  engi.Kind
		}{{"bob", "b", 1, plentyForApps, engi.NotFound}, {"ann", "b", 9, plentyForApps, engi.NotFound}, {"ann", "blue", 1, plentyForApps, engi.Conflict}, {"ann", "b", 1, app.Bounds{Revisions: 9, Bytes: 99, Owner: 3}, engi.Exhausted}} {
			if _, err := branch(c.owner, c.name, c.of, c.b); !engi.Is(err, c.kind) {
				t.Errorf("%s, %s of %d: %v, want %v", c.owner, c.name, c.of, err, c.kind)
			}
		}
		if all, err := f.Store.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(all) != 1 {
			t.Errorf("%d apps are there (%v)", len(all), err)
		}
	})
	t.Run("Remove/takes everything", func(t *testing.T) {
		f := open(t)
		r := put(t, f, appRecord("ann", "shop"))
		reviseApp(t, f.Store, r.ID, map[string]string{"a": "1"}, plentyForApps)
		files, err := f.Store.Files(t.Context(), r.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Store.Remove(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"find":     second(f.Store.Find(t.Context(), "ann", "shop")),
			"revision": second(f.Store.Revision(t.Context(), r.ID, 1)),
			"content":  second(f.Store.Content(t.Context(), r.ID, files[0].Digest)),
			"remove":   f.Store.Remove(t.Context(), r.ID),
		} {
			if !engi.Is(err, engi.NotFound) {
				t.Errorf("%s: %v", what, err)
			}
		}
		events, err := f.Events.List(t.Context(), "ann", engi.EventFilter{Subject: string(r.ID), Limit: 1})
		if err != nil || len(events) != 1 || events[0].Type != engi.EventAppRemoved || !json.Valid(events[0].Data) {
			t.Errorf("the last event is %+v (%v)", events, err)
		}
		put(t, f, appRecord("ann", "shop")) // the name is free
	})
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }
