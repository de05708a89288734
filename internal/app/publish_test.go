package app_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/seed"
)

// publishable creates an app whose package.json has a build.
func publishable(t testing.TB, w *fixture, s *app.Service, name string) engi.App {
	t.Helper()
	a := create(t, s, name)
	w.change(a.Sandbox, func(b *fakeSandbox) {
		b.put("package.json", `{"dependencies":{"react":"19"},"scripts":{"build":"vite build"}}`)
	})
	return a
}

// published returns a published file.
func published(t testing.TB, s *app.Service, app, path string, packed bool) (engi.PublishedFile, string) {
	t.Helper()
	f, err := s.Published(t.Context(), engi.Everyone, app, path, packed)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	b, err := io.ReadAll(f.Content)
	if err != nil || int64(len(b)) != f.Size {
		t.Fatalf("%s: %d of %d bytes (%v)", path, len(b), f.Size, err)
	}
	if f.Gzip {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if b, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	return f, string(b)
}

// TestPublishersAreFair publishes many apps of one owner while the node cannot accept any.
// Another owner must not wait for them.
func TestPublishersAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		w.dist = map[string]string{"index.html": "<h1>one</h1>"}
		for i := range 6 {
			publishable(t, w, s, fmt.Sprint("app-", i))
		}
		b, err := s.Create(t.Context(), engi.AppSpec{Owner: "bob", Name: "his"})
		if err != nil {
			t.Fatal(err)
		}
		w.change(b.Sandbox, func(b *fakeSandbox) {
			b.put("package.json", `{"dependencies":{"react":"19"},"scripts":{"build":"vite build"}}`)
		})
		w.mu.Lock()
		w.packing = time.Minute
		w.mu.Unlock()
		began := time.Now()
		var ann sync.WaitGroup
		for i := range 6 {
			ann.Go(func() {
				if _, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: fmt.Sprint("app-", i)}); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		if _, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "bob", App: "his"}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 90*time.Second {
			t.Errorf("bob waited for %v", took)
		}
		ann.Wait()
		stop()
		w.end()
	})
}

func gone(t testing.TB, s *app.Service, app, path string) {
	t.Helper()
	if _, err := s.Published(t.Context(), engi.Everyone, app, path, false); !engi.Is(err, engi.NotFound) {
		t.Errorf("%s: %v", path, err)
	}
}

func TestPublish(t *testing.T) {
	w := newFixture(t)
	s, stop := w.begin(t)
	a := publishable(t, w, s, "shop")
	gone(t, s, "shop", "index.html")
	big, random := make([]byte, 3*app.PartSize+17), seed.New(t)
	for i := range big {
		big[i] = byte(random.Uint32())
	}
	w.change(a.Sandbox, func(b *fakeSandbox) {
		b.put("dist/stale.txt", "old")
		b.put("public/assets/logo-Abcdefg1.svg", "<svg/>")
	})
	w.dist = map[string]string{
		"index.html": "<h1>one</h1>", "assets/index-DlFg9O5f.js": strings.Repeat("one();\n", 1000), "assets/user-settings.js": "x", "assets/logo-Abcdefg1.svg": "<svg/>",
		"movie.mp4": string(big), "empty.txt": "",
	}
	x, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if p := x.Published; p.Revision != 2 || p.Files != 6 || p.Bytes < int64(len(big)) || p.Private || p.At.IsZero() {
		t.Errorf("it is %+v", p)
	}
	for path, want := range w.dist {
		for _, packed := range []bool{false, true} {
			f, text := published(t, s, "shop", path, packed)
			if js := strings.HasSuffix(path, "5f.js"); text != want || f.Fixed != js || f.Gzip != (js && packed) {
				t.Errorf("%s: fixed %v, gzip %v, %d bytes", path, f.Fixed, f.Gzip, len(text))
			}
		}
	}
	gone(t, s, "shop", "stale.txt")
	f, _ := published(t, s, "shop", "movie.mp4", false)
	for range 50 {
		from := random.Int64N(f.Size)
		b := make([]byte, random.Int64N(f.Size-from)+1)
		if _, err := f.Content.Seek(from, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(f.Content, b); err != nil || !bytes.Equal(b, big[from:from+int64(len(b))]) {
			t.Fatalf("%d bytes from %d differ (%v)", len(b), from, err)
		}
	}

	// Reading needs neither the sandbox nor this node.
	if err := s.Stop(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = w.begin(t)
	if _, text := published(t, s, string(a.ID), "index.html", true); text != "<h1>one</h1>" {
		t.Errorf("after a restart: %q", text)
	}

	// The next publication replaces it, except for files that open pages need.
	w.dist = map[string]string{"index.html": "<h1>two</h1>", "assets/index-Other123.js": "two()"}
	if x, err = s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop", Private: true}); err != nil || !x.Published.Private || x.Published.Files != 2 {
		t.Fatalf("%+v, %v", x.Published, err)
	}
	if _, text := published(t, s, "shop", "index.html", false); text != "<h1>two</h1>" {
		t.Errorf("it has %q", text)
	}
	published(t, s, "shop", "assets/index-DlFg9O5f.js", true)
	gone(t, s, "shop", "movie.mp4")
	w.dist = map[string]string{"index.html": "<h1>three</h1>"}
	if _, err = s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	gone(t, s, "shop", "assets/index-DlFg9O5f.js")
	published(t, s, "shop", "assets/index-Other123.js", true)

	for range 2 {
		if err := s.Unpublish(t.Context(), "ann", "shop"); err != nil {
			t.Fatal(err)
		}
	}
	gone(t, s, "shop", "index.html")
	if x, err := s.Get(t.Context(), "ann", "shop"); err != nil || x.Published != (engi.Publication{}) {
		t.Errorf("it is %+v (%v)", x.Published, err)
	}
	var kinds []engi.AppUpdateKind
	for u, err := range s.Watch(t.Context(), "ann", "shop", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == engi.AppPublished || u.Kind == engi.AppUnpublished {
			kinds = append(kinds, u.Kind)
		}
		if u.Kind == engi.AppUnpublished {
			break
		}
	}
	if d := cmp.Diff([]engi.AppUpdateKind{engi.AppPublished, engi.AppPublished, engi.AppPublished, engi.AppUnpublished}, kinds); d != "" {
		t.Error(d)
	}
	for _, err := range []error{s.Unpublish(t.Context(), "bob", "shop"), second(s.Publish(t.Context(), engi.PublishSpec{Viewer: "bob", App: "shop"})), second(s.Published(t.Context(), "bob", "shop", "index.html", false))} {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("bob: %v", err)
		}
	}
}

// TestPublishRefuses publishes builds without a page, and builds with hostile files in
// dist. The earlier publication must remain.
func TestPublishRefuses(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	refuses := func(kind engi.Kind, want string) {
		t.Helper()
		_, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"})
		if !engi.Is(err, kind) || !strings.Contains(err.Error(), want) || engi.RemedyOf(err) == "" {
			t.Errorf("%v (%q), want %s", err, engi.RemedyOf(err), want)
		}
	}
	refuses(engi.Conflict, "produces no files to serve")
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put("package.json", `{"scripts":{"build":5}}`) })
	refuses(engi.Conflict, "produces no files to serve")
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put("package.json", `{"scripts":{"build":"vite build"}}`) })
	w.dist = map[string]string{"index.html": "first"}
	if _, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	w.dist = nil
	refuses(engi.Conflict, "the build ended with 2:\nsrc/App.tsx:1: it is wrong")
	w.dist = map[string]string{}
	refuses(engi.Conflict, "produces no files to serve")
	w.dist = map[string]string{"other.html": ""}
	refuses(engi.Conflict, "no index.html")
	page := map[string]string{"index.html": "second"}
	for _, h := range []tar.Header{
		{Name: "dist/passwd", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, {Name: "dist/a", Typeflag: tar.TypeLink, Linkname: "dist/b"}, {Name: "dist/null", Typeflag: tar.TypeChar},
		{Name: "dist/../../x", Typeflag: tar.TypeReg}, {Name: "/etc/x", Typeflag: tar.TypeReg}, {Name: "dist//x", Typeflag: tar.TypeReg}, {Name: "other/x", Typeflag: tar.TypeReg},
		{Name: "dist/a\x01b", Typeflag: tar.TypeReg}, {Name: "dist/\xff", Typeflag: tar.TypeReg}, {Name: "dist/a\\b", Typeflag: tar.TypeReg}, {Name: "dist/index.html", Typeflag: tar.TypeReg},
		{Name: "dist/" + strings.Repeat("d/", 40) + "x", Typeflag: tar.TypeReg},
	} {
		w.dist, w.links = page, []tar.Header{h}
		_, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"})
		if !engi.Is(err, engi.Conflict) || !strings.Contains(err.Error(), "of the build") && !strings.Contains(err.Error(), "cannot be published") {
			t.Errorf("%q: %v", h.Name, err)
		}
	}
	w.links = nil
	w.dist = maps.Clone(page)
	w.dist["big"] = strings.Repeat("x", 16<<20+1)
	refuses(engi.Exhausted, "16 MiB")
	w.dist = maps.Clone(page)
	for i := range 1000 {
		w.dist[fmt.Sprint(i)] = ""
	}
	refuses(engi.Exhausted, "1000 files")
	if _, text := published(t, s, "shop", "index.html", false); text != "first" {
		t.Errorf("it has %q", text)
	}
}

// TestPublishIsAllOrNothing cuts the power at each step.
func TestPublishIsAllOrNothing(t *testing.T) {
	w := newFixture(t)
	s, stop := w.begin(t)
	a := publishable(t, w, s, "shop")
	w.dist = map[string]string{"index.html": "0", "x": "0"}
	if _, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	for step, was := 0, "0"; ; step++ {
		now := fmt.Sprint(step + 1)
		w.mu.Lock()
		w.dist = map[string]string{"index.html": now, "x": now}
		w.mu.Unlock()
		w.power(step)
		_, err := s.Publish(t.Context(), engi.PublishSpec{Viewer: "ann", App: "shop"})
		cut := w.isOff()
		stop()
		w.power(-1)
		s, stop = w.begin(t)
		_, page := published(t, s, "shop", "index.html", false)
		_, other := published(t, s, "shop", "x", false)
		if page != other || page != was && page != now || err == nil && page != now {
			t.Fatalf("cut at step %d (%v): %q and %q, before %q", step, err, page, other, was)
		}
		if was = page; !cut {
			break
		}
		if step > 100 {
			t.Fatal("it never ends")
		}
	}
	if _, err := s.Get(t.Context(), "ann", string(a.ID)); err != nil {
		t.Error(err)
	}
}

func TestBranch(t *testing.T) {
	w := newFixture(t)
	s, stop := w.begin(t)
	a := create(t, s, "shop")
	apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "two\n") + file("a.txt", "a\n")})
	apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "three\n")})
	two := recorded(t, s, "shop", 2)
	b, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: "shop", Name: "blue", Revision: 2, Idempotency: "k"})
	if err != nil || b.State != engi.AppReady || b.Revision != 1 || b.Sandbox == "" || b.Sandbox == a.Sandbox || b.Name != "blue" || b.Owner != "ann" || b.Port != a.Port {
		t.Fatalf("%+v, %v", b, err)
	}
	if d := cmp.Diff(two, recorded(t, s, "blue", 0)); d != "" {
		t.Error(d)
	}
	wantSame(t, w, s, "blue")
	revs, err := s.Revisions(t.Context(), "ann", "blue", engi.Paging{})
	if err != nil || len(revs) != 1 || revs[0].From != a.ID || revs[0].Of != 2 || revs[0].Parent != 0 || revs[0].Message != "Branch from shop at revision 2" || len(revs[0].Changed) != len(two) || revs[0].Commit == "" {
		t.Errorf("the history is %+v (%v)", revs, err)
	}
	if again, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: "shop", Name: "blue", Revision: 2, Idempotency: "k"}); err != nil || again.ID != b.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	for _, c := range []struct {
		spec engi.BranchSpec
		kind engi.Kind
	}{
		{engi.BranchSpec{Viewer: "ann", App: "shop", Name: "red", Idempotency: "k"}, engi.Conflict},
		{engi.BranchSpec{Viewer: "ann", App: "shop", Name: "blue"}, engi.Conflict},
		{engi.BranchSpec{Viewer: "ann", App: "shop", Name: "a b"}, engi.Invalid},
		{engi.BranchSpec{Viewer: "ann", App: "shop", Revision: 9}, engi.NotFound},
		{engi.BranchSpec{Viewer: "bob", App: "shop"}, engi.NotFound},
		{engi.BranchSpec{Viewer: "bob", App: string(a.ID)}, engi.NotFound},
	} {
		if x, err := s.Branch(t.Context(), c.spec); !engi.Is(err, c.kind) {
			t.Errorf("%+v: %+v, %v", c.spec, x, err)
		}
	}
	// An admin's branch belongs to the owner, and the two apps are independent.
	c, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: engi.Everyone, App: string(a.ID)})
	if err != nil || c.Owner != "ann" {
		t.Fatalf("%+v, %v", c, err)
	}
	apply(t, s, "blue", engi.ApplySpec{Text: file("src/App.tsx", "blue\n")})
	if err := s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	if recorded(t, s, "blue", 1)["src/App.tsx"] != "two\n" || recorded(t, s, string(c.ID), 0)["src/App.tsx"] != "three\n" {
		t.Error("it lost its files")
	}
	if err := s.Stop(t.Context(), "ann", "blue"); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = w.begin(t)
	if _, err := s.Open(t.Context(), "ann", "blue"); err != nil {
		t.Fatal(err)
	}
	wantSame(t, w, s, "blue")
}

// TestBranchIsAllOrNothing cuts the power at each step: the branch must exist with its
// files, or not at all.
func TestBranchIsAllOrNothing(t *testing.T) {
	w := newFixture(t)
	s, stop := w.begin(t)
	create(t, s, "shop")
	apply(t, s, "shop", engi.ApplySpec{Text: file("a.txt", "a\n")})
	want := recorded(t, s, "shop", 0)
	for step := 0; ; step++ {
		name := fmt.Sprint("b", step)
		w.power(step)
		_, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: "shop", Name: name})
		cut := w.isOff()
		stop()
		w.power(-1)
		s, stop = w.begin(t)
		_, e := s.Open(t.Context(), "ann", name)
		switch {
		case engi.Is(e, engi.NotFound) && err != nil:
		case e != nil:
			t.Fatalf("cut at step %d: %v", step, e)
		default:
			if d := cmp.Diff(want, recorded(t, s, name, 1)); d != "" {
				t.Fatalf("cut at step %d:\n%s", step, d)
			}
			wantSame(t, w, s, name)
		}
		if !cut {
			break
		}
	}
}
