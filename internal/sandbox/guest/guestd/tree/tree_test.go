package tree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

func TestCreateRefusesLinks(t *testing.T) {
	outside, inside := t.TempDir(), t.TempDir()
	for name, prepare := range map[string]func() string{
		"directory link": func() string { os.Symlink(outside, filepath.Join(inside, "d")); return "d/f" },
		"file link":      func() string { os.Symlink(filepath.Join(outside, "f"), filepath.Join(inside, "l")); return "l" },
		"pipe":           func() string { unix.Mkfifo(filepath.Join(inside, "p"), 0o600); return "p" },
		"directory":      func() string { os.Mkdir(filepath.Join(inside, "dir"), 0o755); return "dir" },
	} {
		rel := prepare()
		d, err := OpenDir(inside)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Create(rel, 0o644, KeepOwner, strings.NewReader("x"), 1)
		d.Close()
		if !engi.Is(err, engi.Invalid, engi.Conflict) {
			t.Errorf("%s: %v of kind %v", name, err, engi.KindOf(err))
		}
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("something was written outside: %v", left)
	}
}

// TestErrorsOfFilesSayWhatToDoAboutFiles checks that no remedy is about keys and IDs.
func TestErrorsOfFilesSayWhatToDoAboutFiles(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		unix.EPERM: "owner or mode", unix.EACCES: "owner or mode", unix.EROFS: "choose a path", unix.ENOENT: "check the path",
		unix.EEXIST: "what is at the path", unix.ENOSPC: "remove files", unix.ENAMETOOLONG: "correct the path",
	} {
		if got := engi.RemedyOf(Classify(&os.PathError{Op: "open", Path: "/x", Err: errno}, "open", "/x")); !strings.Contains(got, want) {
			t.Errorf("%v: remedy %q, want one with %q", errno, got, want)
		}
	}
}

func TestCreateReplaces(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, content := range []string{"long content", "short"} {
		st, err := d.Create("a/b/c", 0o751, KeepOwner, strings.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "a/b/c")); err != nil || string(got) != content || st.size != int64(len(content)) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, "a/b/c")); err != nil || fi.Mode() != 0o751 {
		t.Errorf("got %v, %v", fi.Mode(), err)
	}
	if _, err := d.Create("short", 0o644, KeepOwner, strings.NewReader("ab"), 3); !engi.Is(err, engi.Invalid) {
		t.Errorf("a source that ends early: %v", err)
	}
}

func TestCollect(t *testing.T) {
	dir := t.TempDir()
	write := func(rel, content string) {
		p := filepath.Join(dir, rel)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("old", "old")
	time.Sleep(20 * time.Millisecond)
	since := time.Now()
	time.Sleep(20 * time.Millisecond)
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	same, err := d.Create("same", 0o644, KeepOwner, strings.NewReader("s"), 1)
	if err != nil {
		t.Fatal(err)
	}
	write("z/new", "12345")
	write("a", "1")
	write("__pycache__/x", "no")
	found, left, err := Collect(dir, Search{Since: since, Known: map[string]Stamp{"same": same}, Bytes: 100, Count: 10})
	if err != nil || left != 0 || len(found) != 2 || found[0].Path != "a" || found[1].Path != "z/new" || found[1].Size != 5 {
		t.Errorf("got %+v, %d, %v", found, left, err)
	}
	found, left, _ = Collect(dir, Search{Since: since, Known: map[string]Stamp{"same": same}, Bytes: 4, Count: 10})
	if len(found) != 1 || left != 1 {
		t.Errorf("with 4 bytes: %+v, %d", found, left)
	}
	write("same", "t")
	if found, _, _ = Collect(dir, Search{Since: since, Known: map[string]Stamp{"same": same}, Bytes: 100, Count: 10}); len(found) != 3 {
		t.Errorf("after a change of an input: %+v", found)
	}
	if found, left, err := Collect(filepath.Join(dir, "nowhere"), Search{}); found != nil || left != 0 || err != nil {
		t.Errorf("a directory that is gone: %v, %d, %v", found, left, err)
	}
}

func TestWriteThroughLinkKeepsMode(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(link, strings.NewReader("x"), 0, KeepOwner, func() string { return "" }); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", fi, err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode() != 0o755 || fi.Size() != 1 {
		t.Errorf("the file: %v, %v", fi, err)
	}
	if _, err := Write(file, strings.NewReader("y"), 0, KeepOwner, func() string { return strings.Repeat("0", 64) }); !engi.Is(err, engi.Unavailable) {
		t.Errorf("a wrong digest: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "x" {
		t.Errorf("after a wrong digest the file is %q", b)
	}
}

// FuzzUnpack extracts anything, and checks that nothing appears outside of the
// directory.
func FuzzUnpack(f *testing.F) {
	archive := func(hs ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			if h.Typeflag == tar.TypeReg {
				h.Size = 1
			}
			w.WriteHeader(&h)
			if h.Size > 0 {
				w.Write([]byte("x"))
			}
		}
		w.Close()
		return b.Bytes()
	}
	f.Add(archive(tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Mode: 0o644}))
	f.Add(archive(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "l/x", Mode: 0o644}))
	f.Add(archive(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../victim"}, tar.Header{Typeflag: tar.TypeReg, Name: "h", Mode: 0o644}))
	f.Add(archive(tar.Header{Typeflag: tar.TypeDir, Name: "..", Mode: 0o777}))
	f.Fuzz(func(t *testing.T, b []byte) {
		top := t.TempDir()
		if err := os.WriteFile(filepath.Join(top, "victim"), []byte("safe"), 0o600); err != nil {
			t.Fatal(err)
		}
		Unpack(filepath.Join(top, "dir"), io.LimitReader(bytes.NewReader(b), 1<<20), KeepOwner) // any error is acceptable
		names, err := os.ReadDir(top)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if n.Name() != "victim" && n.Name() != "dir" {
				t.Errorf("%s appeared", n.Name())
			}
		}
		if b, _ := os.ReadFile(filepath.Join(top, "victim")); string(b) != "safe" {
			t.Errorf("the victim is %q", b)
		}
		if fi, err := os.Stat(filepath.Join(top, "victim")); err != nil || fi.Mode() != 0o600 {
			t.Errorf("the victim has mode %v, %v", fi.Mode(), err)
		}
	})
}
