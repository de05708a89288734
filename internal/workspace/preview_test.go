package workspace_test

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
)

// shown returns a file of the preview of workspace x, or its error.
func shown(t *testing.T, s *workspace.Service, path string) string {
	t.Helper()
	f, err := s.PreviewFile(t.Context(), engi.Everyone, "x", path)
	if err != nil {
		return string(engi.KindOf(err).String())
	}
	text := must[[]byte](t)(io.ReadAll(f.Content))
	if int64(len(text)) != f.Size || f.Digest == "" || f.Path != path {
		t.Errorf("%+v of %q", f, text)
	}
	if err := f.Content.(io.Closer).Close(); err != nil {
		t.Error(err)
	}
	return string(text)
}

func TestStaticPreview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		defer stop()
		ctx := t.Context()
		must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Collaborators: []engi.Collaborator{{Owner: "ed", Role: engi.RoleEditor}}}))
		show := func(viewer engi.Viewer, p engi.WorkspacePreview) error {
			x, err := s.Change(ctx, viewer, "a/x", engi.WorkspaceChange{Preview: &p})
			if err == nil && x.Preview != p {
				t.Errorf("%+v, not %+v", x.Preview, p)
			}
			return err
		}
		want := func(path, want string) {
			t.Helper()
			if got := shown(t, s, path); got != want {
				t.Errorf("%s is %q, not %q", path, got, want)
			}
		}
		want("index.html", "not_found")
		if err := show("a", engi.WorkspacePreview{Type: engi.PreviewStatic, Root: "site"}); err != nil {
			t.Fatal(err)
		}
		want("index.html", "not_found") // there is no revision
		must[engi.WorkspaceRevision](t)(s.Write(ctx, engi.WriteSpec{Viewer: "a", Workspace: "x", Files: []engi.WorkspaceFile{file("site/index.html", "1"), file("site/a/b", "b"), file("secret", "s")}}))
		want("index.html", "1")
		want("a/b", "b")
		for _, path := range []string{"", "a", "none", "../secret", "a/../../secret", "/secret", "site/index.html", "a/b/c", ".git/HEAD", "a\x00", strings.Repeat("a/", 300) + "b"} {
			want(path, "not_found")
		}

		// Changes that a program makes in the sandbox appear a second later, unless the sandbox hibernates.
		x := must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
		w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/site/index.html", "2", 0o644) })
		want("index.html", "2")
		w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/site/index.html", "3", 0o644) })
		want("index.html", "2")
		time.Sleep(2 * time.Second)
		want("index.html", "3")
		w.in(x.Sandbox, func(b *fakeSandbox) {
			b.put("/workspace/site/index.html", "4", 0o644)
			b.State = engi.Hibernated
		})
		time.Sleep(2 * time.Second)
		want("index.html", "3")
		w.in(x.Sandbox, func(b *fakeSandbox) { b.State = engi.Running })
		want("index.html", "3")
		time.Sleep(2 * time.Second)
		want("index.html", "4")
		if err := s.Stop(ctx, "a", "x"); err != nil {
			t.Fatal(err)
		}
		want("index.html", "4")

		for what, c := range map[string]struct {
			viewer engi.Viewer
			p      engi.WorkspacePreview
			want   engi.Kind
		}{
			"no type":         {"a", engi.WorkspacePreview{Type: "magic"}, engi.Invalid},
			"no port":         {"a", engi.WorkspacePreview{Type: engi.PreviewProxy}, engi.Invalid},
			"a large port":    {"a", engi.WorkspacePreview{Type: engi.PreviewWebSocket, Port: 65536}, engi.Invalid},
			"port of files":   {"a", engi.WorkspacePreview{Type: engi.PreviewStatic, Port: 80}, engi.Invalid},
			"root of server":  {"a", engi.WorkspacePreview{Type: engi.PreviewProxy, Port: 80, Root: "a"}, engi.Invalid},
			"root outside":    {"a", engi.WorkspacePreview{Type: engi.PreviewStatic, Root: "../a"}, engi.Invalid},
			"public by other": {"ed", engi.WorkspacePreview{Type: engi.PreviewStatic, Public: true}, engi.Denied},
			"stranger":        {"eve", engi.WorkspacePreview{Type: engi.PreviewStatic}, engi.NotFound},
		} {
			if err := show(c.viewer, c.p); !engi.Is(err, c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if x, err := s.Change(ctx, "a", "x", engi.WorkspaceChange{Preview: &engi.WorkspacePreview{Type: engi.PreviewStatic, Root: "site", Public: true}}); err != nil || !x.Preview.Public {
			t.Errorf("%+v, %v", x, err)
		}
		for _, viewer := range []engi.Viewer{"ed", "a"} {
			if err := show(viewer, engi.WorkspacePreview{Type: engi.PreviewProxy, Port: 3000}); err != nil {
				t.Error(err)
			}
			want("index.html", "not_found")
			if err := show(viewer, engi.WorkspacePreview{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPreviewsAreBounded checks that the files of an owner that are being sent use no more memory than
// allowed.
func TestPreviewsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("big", strings.Repeat("x", 15<<20))}}))
	must[engi.Workspace](t)(s.Change(ctx, "a", "x", engi.WorkspaceChange{Preview: &engi.WorkspacePreview{Type: engi.PreviewStatic}}))
	var open []io.Closer
	for {
		f, err := s.PreviewFile(ctx, engi.Everyone, "x", "big")
		if err != nil {
			if !engi.Is(err, engi.Exhausted) {
				t.Fatal(err)
			}
			break
		}
		if open = append(open, f.Content.(io.Closer)); len(open) > 100 {
			t.Fatal("more than a GiB is held")
		}
	}
	for _, c := range open {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if f, err := s.PreviewFile(ctx, engi.Everyone, "x", "big"); err != nil || f.Size != 15<<20 {
		t.Error(f.Size, err)
	}
}
