package volume_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
)

func paths(list []engi.FileInfo) []string {
	all := []string{}
	for _, fi := range list {
		all = append(all, fi.Path)
	}
	return all
}

func TestFiles(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		v := h.create(engi.VolumeSpec{Name: "x"})
		f := h.files("x")
		ctx := t.Context()
		uid, gid := 33, 34
		fi, err := f.Write(ctx, "/a/b/c.txt", strings.NewReader("hello"), engi.FileAttr{Mode: perm(0o640), UID: &uid, GID: &gid})
		if err != nil || fi.Path != "/a/b/c.txt" || fi.Size != 5 || fi.Mode != 0o640 {
			t.Fatalf("%+v, %v", fi, err)
		}
		if os.Geteuid() == 0 && (fi.UID != 33 || fi.GID != 34 || fi.Owner != "33") {
			t.Errorf("owner: %+v", fi)
		}
		write(t, f, "/a/b/c.txt", "again") // keeps owner and mode
		if again, err := f.Stat(ctx, "/a/b/c.txt"); err != nil || again.Mode != 0o640 || again.UID != fi.UID {
			t.Errorf("%+v, %v", again, err)
		}
		if fi, err := f.Stat(ctx, "/a"); err != nil || !fi.Mode.IsDir() || os.Geteuid() == 0 && fi.UID != 1000 {
			t.Errorf("a parent: %+v, %v", fi, err)
		}
		if fi, err := f.Stat(ctx, "/"); err != nil || fi.Path != "/" || !fi.Mode.IsDir() {
			t.Errorf("the root: %+v, %v", fi, err)
		}
		if _, err := f.MakeDir(ctx, "/d/e", engi.FileAttr{Mode: perm(0o700)}); err != nil {
			t.Fatal(err)
		}
		_, err = f.MakeDir(ctx, "/d/e", engi.FileAttr{})
		wantKind(t, err, engi.Conflict)
		_, err = f.MakeDir(ctx, "/", engi.FileAttr{})
		wantKind(t, err, engi.Conflict)
		_, err = f.MakeDir(ctx, "/a/b/c.txt/d", engi.FileAttr{})
		wantKind(t, err, engi.Conflict)
		if fi, err := f.Change(ctx, "/d/e", engi.FileAttr{Mode: perm(0o711)}); err != nil || fi.Mode.Perm() != 0o711 {
			t.Errorf("%+v, %v", fi, err)
		}
		for depth, want := range map[int][]string{
			0: {"/a", "/d"}, 1: {"/a", "/d"}, 2: {"/a", "/a/b", "/d", "/d/e"}, 9: {"/a", "/a/b", "/a/b/c.txt", "/d", "/d/e"},
		} {
			list, err := f.List(ctx, "/", depth)
			if d := cmp.Diff(want, paths(list)); err != nil || d != "" {
				t.Errorf("depth %d: %v %s", depth, err, d)
			}
		}
		_, err = f.List(ctx, "/a/b/c.txt", 1)
		wantKind(t, err, engi.Conflict)
		_, err = f.List(ctx, "/none", 1)
		wantKind(t, err, engi.NotFound)
		_, err = f.Open(ctx, "/a")
		wantKind(t, err, engi.Conflict)
		_, err = f.Open(ctx, "/none")
		wantKind(t, err, engi.NotFound)
		_, err = f.Write(ctx, "/a", strings.NewReader(""), engi.FileAttr{})
		wantKind(t, err, engi.Conflict)
		_, err = f.Write(ctx, "/x", strings.NewReader(""), engi.FileAttr{Mode: perm(fs.ModeSetuid | 0o755)})
		wantKind(t, err, engi.Invalid)
		for _, bad := range []string{"", "a", "a/../..", "/a\x00", "/" + strings.Repeat("x", 5000)} {
			_, err := f.Stat(ctx, bad)
			wantKind(t, err, engi.Invalid)
		}
		if _, err := f.Stat(ctx, "/../../a"); err != nil {
			t.Errorf("dots at the root lead to the root: %v", err)
		}
		wantKind(t, f.Remove(ctx, "/none"), engi.NotFound)
		wantKind(t, f.Remove(ctx, "/"), engi.Denied)
		if err := f.Remove(ctx, "/a"); err != nil {
			t.Fatal(err)
		}

		// A reader keeps the volume mounted.
		write(t, f, "/r", "read late")
		r, err := f.Open(ctx, "/r")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		f.Close()
		buf := make([]byte, 20)
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != "read late" {
			t.Errorf("%q, %v", buf[:n], err)
		}
		r.Close()
		if h.mounted(v) {
			t.Error("it is mounted although nobody has it")
		}
	})
}

func TestAContentThatBreaksOffChangesNothing(t *testing.T) {
	h := open(t, volume.Options{Plain: true})
	v := h.create(engi.VolumeSpec{Name: "x"})
	f := h.files("x")
	write(t, f, "/f", "kept")
	_, err := f.Write(t.Context(), "/f", brokenReader{}, engi.FileAttr{})
	wantKind(t, err, engi.Invalid)
	if got := read(t, f, "/f"); got != "kept" {
		t.Errorf("%q", got)
	}
	tmp := filepath.Join(h.dir, string(v.ID), "at", "tmp")
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	// Leftovers of a killed process are removed by the next use.
	if err := os.WriteFile(filepath.Join(tmp, "half"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.again()
	h.files("x")
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

type brokenReader struct{}

func (brokenReader) Read(p []byte) (int, error) {
	if len(p) > 100 {
		p = p[:100]
	}
	return len(p), errors.New("gone")
}

func TestHostileContent(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		h.create(engi.VolumeSpec{Name: "x"})
		at := h.mount("x", engi.NewSandboxID())
		up := strings.Repeat("../", 20)
		for name, target := range map[string]string{
			"absolute": secret, "relative": up + secret, "dir": "/", "updir": up, "loop": "loop", "fifolink": "fifo", "good": "sub/file",
		} {
			if err := os.Symlink(target, filepath.Join(at, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(at, "fifo"), 0o666); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := unix.Mknod(filepath.Join(at, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
		}
		f := h.files("x")
		ctx := t.Context()
		write(t, f, "/sub/file", "inside")
		write(t, f, "/good", "through a link")
		if got := read(t, f, "/sub/file"); got != "through a link" {
			t.Errorf("a good link: %q", got)
		}
		for _, name := range []string{"/absolute", "/relative", "/dir" + secret, "/updir" + secret} {
			_, err := f.Open(ctx, name)
			wantKind(t, err, engi.Denied)
		}
		for _, name := range []string{"/fifo", "/fifolink", "/zero"} {
			_, err := f.Open(ctx, name)
			if !engi.Is(err, engi.Conflict) && !(name == "/zero" && engi.Is(err, engi.NotFound)) {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err := f.Open(ctx, "/loop")
		wantKind(t, err, engi.Invalid)
		for _, name := range []string{"/dir/x", "/updir/x", "/dir/tmp/x"} {
			if _, err := f.Write(ctx, name, strings.NewReader("x"), engi.FileAttr{}); err == nil {
				t.Errorf("wrote %s", name)
			}
			if _, err := f.MakeDir(ctx, name, engi.FileAttr{}); err == nil {
				t.Errorf("made %s", name)
			}
			if err := f.Remove(ctx, name); err == nil {
				t.Errorf("removed %s", name)
			}
			if _, err := f.Change(ctx, name, engi.FileAttr{Mode: perm(0o777)}); err == nil {
				t.Errorf("changed %s", name)
			}
		}
		if _, err := f.Change(ctx, "/absolute", engi.FileAttr{Mode: perm(0o777)}); err == nil {
			t.Error("changed the mode of what is outside")
		}
		if _, err := f.List(ctx, "/updir", 2); err == nil {
			t.Error("listed what is outside")
		}
		// Links are listed, not followed, and replaced.
		if fi, err := f.Stat(ctx, "/absolute"); err != nil || fi.Target != secret || fi.Mode&fs.ModeSymlink == 0 {
			t.Errorf("%+v, %v", fi, err)
		}
		write(t, f, "/absolute", "mine")
		write(t, f, "/relative", "mine")
		write(t, f, "/fifo", "a file now")
		if got := read(t, f, "/fifo"); got != "a file now" {
			t.Errorf("%q", got)
		}
		if data, err := os.ReadFile(secret); err != nil || string(data) != "secret" {
			t.Errorf("outside: %q, %v", data, err)
		}
		if err := f.Remove(ctx, "/updir"); err != nil {
			t.Error(err)
		}
		if list, err := f.List(ctx, "/", 5); err != nil || len(list) < 8 {
			t.Errorf("%v, %v", paths(list), err)
		}
	})
}

func TestListingsAreBounded(t *testing.T) {
	h := open(t, volume.Options{Plain: true, Capacity: 1 << 30})
	h.SetListed(100)
	h.create(engi.VolumeSpec{Name: "x"})
	at := h.mount("x", engi.NewSandboxID())
	for i := range 4 {
		sub := filepath.Join(at, "d", fmt.Sprint(i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		first := filepath.Join(sub, "first")
		if err := os.WriteFile(first, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		for j := range 30 { // links are cheaper than files
			if err := os.Link(first, filepath.Join(sub, fmt.Sprint(j))); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := h.files("x")
	_, err := f.List(t.Context(), "/d", 2)
	wantKind(t, err, engi.Exhausted)
	if list, err := f.List(t.Context(), "/d/0", 1); err != nil || len(list) != 31 {
		t.Errorf("%d, %v", len(list), err)
	}
	if err := f.Remove(t.Context(), "/d"); err != nil {
		t.Error(err)
	}
}
