package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// cage creates a tree in a directory. The test fails if anything outside of the
// directory changes.
func cage(t testing.TB) *Tree {
	t.Helper()
	outer := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(outer, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(outer, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("secret", "outside")
	write("etc/passwd", "outside")
	if err := os.Mkdir(filepath.Join(outer, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(filepath.Join(outer, "root"))
	if err != nil {
		t.Fatal(err)
	}
	before := surroundings(t, outer)
	t.Cleanup(func() {
		tr.Close()
		if after := surroundings(t, outer); !slices.Equal(before, after) {
			t.Errorf("the surroundings changed:\n%q\n%q", before, after)
		}
	})
	return tr
}

func surroundings(t testing.TB, outer string) []string {
	var all []string
	err := filepath.WalkDir(outer, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == filepath.Join(outer, "root") {
			return filepath.SkipDir
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		line := p + " " + st.Mode().String()
		if st.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// An entry of a test archive.
type entry struct {
	name string
	kind byte // tar type; 0 is a regular file
	text string
	link string
	mode int64
	uid  int
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.uid, ModTime: time.Unix(1700000000, 0)}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(e.text))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, e.text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func budget() *Budget { return &Budget{Bytes: 1 << 20, Entries: 1000} }

func extract(t testing.TB, tr *Tree, o ExtractOptions, data []byte) (Skipped, error) {
	t.Helper()
	if o.Budget == nil {
		o.Budget = budget()
	}
	return tr.Extract(t.Context(), bytes.NewReader(data), o)
}

func mustExtract(t *testing.T, tr *Tree, o ExtractOptions, entries ...entry) Skipped {
	t.Helper()
	s, err := extract(t, tr, o, archive(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listing returns the names in the tree.
func listing(t *testing.T, tr *Tree) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(tr.Dir(), func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(tr.Dir(), p); rel != "." {
			names = append(names, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestExtractKeepsWhatTheArchiveSays(t *testing.T) {
	tr := cage(t)
	skipped := mustExtract(t, tr, ExtractOptions{},
		entry{name: "./", kind: tar.TypeDir, mode: 0},
		entry{name: "usr/bin/", kind: tar.TypeDir},
		entry{name: "bin", kind: tar.TypeSymlink, link: "usr/bin"},
		entry{name: "bin/tool", text: "tool", mode: 0o4755},
		entry{name: "/absolute", text: "a", mode: 0o600},
		entry{name: "hard", kind: tar.TypeLink, link: "usr/bin/tool"},
		entry{name: "pipe", kind: tar.TypeFifo, mode: 0o644},
		entry{name: "dev/sda", kind: tar.TypeBlock},
		entry{name: "no/parents/here", text: "x"},
		entry{name: "spool", kind: tar.TypeDir, mode: 0o1777},
	)
	if skipped.Devices != 1 {
		t.Errorf("skipped %+v, want one device", skipped)
	}
	if got, want := listing(t, tr), "absolute bin hard no no/parents no/parents/here pipe spool usr usr/bin usr/bin/tool"; got != want {
		t.Errorf("tree has %q, want %q", got, want)
	}
	st, err := tr.Stat("/bin/tool")
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o7777 != 0o4755 || st.Nlink != 2 || st.Mtim.Sec != 1700000000 {
		t.Errorf("tool has mode %o, %d links, time %d", st.Mode, st.Nlink, st.Mtim.Sec)
	}
	if st, err := tr.Stat("spool"); err != nil || st.Mode&0o7777 != 0o1777 {
		t.Errorf("spool: mode %o, %v", st.Mode, err)
	}
}

// TestHostileNamesAreRefusedOrHarmless tries all known ways out of a root.
func TestHostileNamesAreRefusedOrHarmless(t *testing.T) {
	long := strings.Repeat("x", 256)
	tests := []struct {
		name    string
		entries []entry
		kind    engi.Kind // kind of the error; 0 (Internal) means no error
		want    string    // listing after success
	}{
		{"dots", []entry{{name: "../secret", text: "pwned"}}, engi.Invalid, ""},
		{"a hard link to a device", []entry{{name: "sda", kind: tar.TypeBlock}, {name: "hard", kind: tar.TypeLink, link: "sda"}}, engi.Invalid, ""},
		{"a device over a file, and a link to it", []entry{{name: "a", text: "x"}, {name: "a", kind: tar.TypeChar}, {name: "b", kind: tar.TypeSymlink, link: "a"}}, 0, "a b"},
		{"dots inside", []entry{{name: "a/../../secret", text: "pwned"}}, engi.Invalid, ""},
		{"dots at the end", []entry{{name: "a/..", kind: tar.TypeDir}}, engi.Invalid, ""},
		{"absolute", []entry{{name: "/etc/passwd", text: "inside"}}, 0, "etc etc/passwd"},
		{"write through an absolute link", []entry{{name: "a", kind: tar.TypeSymlink, link: "/etc"}, {name: "etc/", kind: tar.TypeDir}, {name: "a/passwd", text: "inside"}}, 0, "a etc etc/passwd"},
		{"write through a link upwards", []entry{{name: "a", kind: tar.TypeSymlink, link: "../.."}, {name: "a/secret", text: "inside"}}, 0, "a secret"},
		{"write through a link to a file outside", []entry{{name: "a", kind: tar.TypeSymlink, link: "../secret"}, {name: "a", text: "inside"}}, 0, "a"},
		{"chain of links", []entry{{name: "a", kind: tar.TypeSymlink, link: "."}, {name: "a/b", kind: tar.TypeSymlink, link: "a/.."}, {name: "b/c", text: "x"}}, 0, "a b c"},
		{"directory over a link", []entry{{name: "a", kind: tar.TypeSymlink, link: "../etc"}, {name: "a/", kind: tar.TypeDir, mode: 0o777}, {name: "a/passwd", text: "x"}}, 0, "a a/passwd"},
		{"hard link outside", []entry{{name: "a", kind: tar.TypeLink, link: "../secret"}}, engi.Invalid, ""},
		{"hard link to an absolute path", []entry{{name: "a", kind: tar.TypeLink, link: "/secret"}}, engi.Invalid, ""},
		{"hard link through a link", []entry{{name: "up", kind: tar.TypeSymlink, link: ".."}, {name: "a", kind: tar.TypeLink, link: "up/secret"}}, engi.Invalid, ""},
		{"hard link to a directory", []entry{{name: "d/", kind: tar.TypeDir}, {name: "a", kind: tar.TypeLink, link: "d"}}, engi.Invalid, ""},
		{"hard link to itself", []entry{{name: "a", text: "x"}, {name: "a", kind: tar.TypeLink, link: "a"}}, 0, "a"},
		{"replace the root", []entry{{name: ".", text: "x"}}, engi.Invalid, ""},
		{"replace the root by a link", []entry{{name: "/", kind: tar.TypeSymlink, link: "/etc"}}, engi.Invalid, ""},
		{"long name", []entry{{name: long, text: "x"}}, engi.Invalid, ""},
		{"endless name", []entry{{name: strings.Repeat("a/", 3000), kind: tar.TypeDir}}, engi.Invalid, ""},
		{"below a file", []entry{{name: "a", text: "x"}, {name: "a/b", text: "y"}}, engi.Invalid, ""},
		{"loop", []entry{{name: "a", kind: tar.TypeSymlink, link: "a"}, {name: "a/b", text: "x"}}, engi.Invalid, ""},
		{"whiteout of the parent", []entry{{name: "d/.wh...", text: ""}}, engi.Invalid, ""},
		{"whiteout of itself", []entry{{name: "d/.wh..", text: ""}}, engi.Invalid, ""},
		{"whiteout of nothing", []entry{{name: ".wh.", text: ""}}, engi.Invalid, ""},
		{"whiteout through a link", []entry{{name: "up", kind: tar.TypeSymlink, link: ".."}, {name: "up/.wh.secret"}}, 0, "up"},
		{"opaque through a link", []entry{{name: "up", kind: tar.TypeSymlink, link: "../etc"}, {name: "up/.wh..wh..opq"}}, 0, "up"},
		{"negative owner", []entry{{name: "a", text: "x", uid: -1}}, engi.Invalid, ""},
		{"empty link", []entry{{name: "a", kind: tar.TypeSymlink}}, engi.Invalid, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tr := cage(t)
			_, err := extract(t, tr, ExtractOptions{Whiteouts: true}, archive(t, test.entries...))
			if test.kind != 0 {
				if !engi.Is(err, test.kind) {
					t.Fatalf("error %v, want kind %s", err, test.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(t, tr); got != test.want {
				t.Errorf("tree has %q, want %q", got, test.want)
			}
		})
	}
}

func TestWhiteoutsDeleteLowerLayersOnly(t *testing.T) {
	lower := []entry{
		{name: "keep", text: "1"}, {name: "gone", text: "1"}, {name: "dir/", kind: tar.TypeDir}, {name: "dir/old", text: "1"}, {name: "dir/deep/old", text: "1"},
		{name: "opaque/old", text: "1"}, {name: "opaque/sub/old", text: "1"}, {name: "file", text: "1"}, {name: "tree/x", text: "1"},
	}
	upper := []entry{
		{name: ".wh.gone"}, {name: ".wh.missing"}, {name: "nowhere/.wh.x"},
		{name: "dir/deep/new", text: "2"}, {name: ".wh.dir"}, // the content stays, whatever the order
		{name: "opaque/new", text: "2"}, {name: "opaque/.wh..wh..opq"}, {name: "opaque/later", text: "2"},
		{name: "file/", kind: tar.TypeDir}, {name: "file/in", text: "2"}, // a directory over a file
		{name: "tree", text: "2"},         // and a file over a directory
		{name: ".wh..wh.plnk", text: "2"}, // metadata of another file system
	}
	tr := cage(t)
	mustExtract(t, tr, ExtractOptions{Whiteouts: true}, lower...)
	mustExtract(t, tr, ExtractOptions{Whiteouts: true}, upper...)
	if got, want := listing(t, tr), "dir dir/deep dir/deep/new file file/in keep opaque opaque/later opaque/new tree"; got != want {
		t.Errorf("tree has %q, want %q", got, want)
	}
	// Without the option, they are ordinary names.
	plain := cage(t)
	mustExtract(t, plain, ExtractOptions{}, entry{name: "a", text: "x"}, entry{name: ".wh.a", text: "x"})
	if got, want := listing(t, plain), ".wh.a a"; got != want {
		t.Errorf("tree has %q, want %q", got, want)
	}
}

func TestBudgetHolds(t *testing.T) {
	many := make([]entry, 20)
	for i := range many {
		many[i] = entry{name: strings.Repeat("d/", i) + "f", text: "0123456789"}
	}
	for name, b := range map[string]*Budget{"entries": {Bytes: 1 << 20, Entries: 19}, "bytes": {Bytes: 199, Entries: 100}} {
		t.Run(name, func(t *testing.T) {
			_, err := extract(t, cage(t), ExtractOptions{Budget: b}, archive(t, many...))
			if !engi.Is(err, engi.Exhausted) {
				t.Errorf("error %v, want Exhausted", err)
			}
		})
	}
	// The budget is for a series of archives.
	b, tr := &Budget{Bytes: 300, Entries: 100}, cage(t)
	if _, err := extract(t, tr, ExtractOptions{Budget: b}, archive(t, many...)); err != nil {
		t.Fatal(err)
	}
	if _, err := extract(t, tr, ExtractOptions{Budget: b}, archive(t, many...)); !engi.Is(err, engi.Exhausted) {
		t.Errorf("second archive: error %v, want Exhausted", err)
	}
}

func TestBrokenArchivesAreInvalid(t *testing.T) {
	whole := archive(t, entry{name: "a", text: strings.Repeat("x", 5000)})
	for name, data := range map[string][]byte{"cut": whole[:2000], "noise": bytes.Repeat([]byte{7}, 2048)} {
		if _, err := extract(t, cage(t), ExtractOptions{}, data); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: error %v, want Invalid", name, err)
		}
	}
	// Errors of the reader are passed on.
	fault := engi.Errorf(engi.Unavailable, "the network is gone")
	_, err := cage(t).Extract(t.Context(), io.MultiReader(bytes.NewReader(whole[:2000]), failing{fault}), ExtractOptions{Budget: budget()})
	if !errors.Is(err, fault) {
		t.Errorf("error %v, want the reader's", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestFilesOnly(t *testing.T) {
	mustExtract(t, cage(t), ExtractOptions{FilesOnly: true}, entry{name: "a/b", text: "x"})
	for _, kind := range []byte{tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar} {
		if _, err := extract(t, cage(t), ExtractOptions{FilesOnly: true}, archive(t, entry{name: "a", kind: kind, link: "b"})); !engi.Is(err, engi.Invalid) {
			t.Errorf("type %c: error %v, want Invalid", kind, err)
		}
	}
}

func TestCopyIsTheSame(t *testing.T) {
	from, to := cage(t), cage(t)
	mustExtract(t, from, ExtractOptions{},
		entry{name: "bin", kind: tar.TypeSymlink, link: "/usr/bin"}, entry{name: "usr/bin/", kind: tar.TypeDir, mode: 0o711},
		entry{name: "usr/bin/a", text: "program", mode: 0o4755, uid: uidForTest()}, entry{name: "usr/bin/b", kind: tar.TypeLink, link: "usr/bin/a"},
		entry{name: "pipe", kind: tar.TypeFifo}, entry{name: "tmp", kind: tar.TypeDir, mode: 0o1777}, entry{name: "empty", text: ""},
	)
	exact := time.Unix(1700000001, 123456789)
	if err := from.Touch("usr/bin/a", exact); err != nil {
		t.Fatal(err)
	}
	var bytes int64
	if err := Copy(t.Context(), to, from, func(n int64) { bytes += n }); err != nil {
		t.Fatal(err)
	}
	if a, b := listing(t, from), listing(t, to); a != b {
		t.Fatalf("copy has %q, want %q", b, a)
	}
	if bytes != int64(len("program")) {
		t.Errorf("progress counted %d bytes", bytes)
	}
	for name := range strings.FieldsSeq(listing(t, from)) {
		a, err1 := from.Lstat(name)
		b, err2 := to.Lstat(name)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Nlink != b.Nlink {
			t.Errorf("%s: mode %o, owner %d:%d, %d links, want %o, %d:%d, %d", name, b.Mode, b.Uid, b.Gid, b.Nlink, a.Mode, a.Uid, a.Gid, a.Nlink)
		}
		if a.Mode&unix.S_IFMT == unix.S_IFREG && a.Mtim != b.Mtim {
			t.Errorf("%s: time %v, want %v", name, b.Mtim, a.Mtim)
		}
	}
}

func uidForTest() int {
	if privileged {
		return 1234
	}
	return os.Getuid()
}

func TestOperationsStayInside(t *testing.T) {
	tr := cage(t)
	for _, link := range []struct{ name, target string }{{"abs", "/"}, {"up", "../../.."}, {"pass", "/etc/passwd"}} {
		if err := tr.Symlink(link.target, link.name, Owner{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tr.ReadFile("pass", 100); !engi.Is(err, engi.NotFound) {
		t.Errorf("read through a link outside: %v, want NotFound", err)
	}
	if _, err := tr.ReadFile("../../secret", 100); !engi.Is(err, engi.NotFound) {
		t.Errorf("read upwards: %v, want NotFound", err)
	}
	if err := tr.WriteFile("up/secret", []byte("inside"), 0o644, Owner{}); err != nil {
		t.Fatal(err)
	}
	if err := tr.MkdirAll("abs/etc/deep", 0o755, Owner{}); err != nil {
		t.Fatal(err)
	}
	if err := tr.RemoveAll("abs/etc"); err != nil {
		t.Fatal(err)
	}
	if err := tr.RemoveAll("nothing/here"); err != nil {
		t.Fatal(err)
	}
	if err := tr.RemoveAll("/"); err == nil {
		t.Error("removed the root itself")
	}
	if err := tr.Fifo("pipe", 0o644, Owner{}); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.OpenFile("pipe"); !engi.Is(err, engi.Invalid) {
		t.Errorf("open a pipe: %v, want Invalid at once", err)
	}
	if _, err := tr.ReadFile("up/secret", 3); !engi.Is(err, engi.Invalid) {
		t.Errorf("read more than the limit: %v, want Invalid", err)
	}
	if got, want := listing(t, tr), "abs pass pipe secret up"; got != want {
		t.Errorf("tree has %q, want %q", got, want)
	}
}

// FuzzExtract extracts arbitrary archives; cage checks that nothing outside changes.
func FuzzExtract(f *testing.F) {
	f.Add(archive(f, entry{name: "a", kind: tar.TypeSymlink, link: "../.."}, entry{name: "a/secret", text: "x"}), true)
	f.Add(archive(f, entry{name: "d/f", text: "x"}, entry{name: "d/.wh.f"}, entry{name: "h", kind: tar.TypeLink, link: "d/f"}), true)
	f.Add(archive(f, entry{name: "../secret", text: "x"}, entry{name: "p", kind: tar.TypeFifo}), false)
	f.Fuzz(func(t *testing.T, data []byte, whiteouts bool) {
		tr := cage(t)
		extract(t, tr, ExtractOptions{Whiteouts: whiteouts, Budget: &Budget{Bytes: 64 << 10, Entries: 200}}, data)
		if err := tr.RemoveAll("a"); err != nil {
			t.Error(err)
		}
	})
}
