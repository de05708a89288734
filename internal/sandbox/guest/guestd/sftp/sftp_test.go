package sftp

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serverVariable makes this test's program a server, for real clients.
const serverVariable = "ENGI_TEST_SFTP"

func TestMain(m *testing.M) {
	if home := os.Getenv(serverVariable); home != "" {
		if err := Serve(os.Stdin, os.Stdout, Options{Home: home}); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A client sends requests and reads answers.
type client struct {
	t    *testing.T
	in   io.WriteCloser
	out  io.Reader
	done chan error
	id   uint32
}

// dial starts a server whose home is dir.
func dial(t *testing.T, dir string) *client { return dialWith(t, Options{Home: dir}) }

func dialWith(t *testing.T, o Options) *client {
	t.Helper()
	in, to := io.Pipe()
	from, out := io.Pipe()
	c := &client{t: t, in: to, out: from, done: make(chan error, 1)}
	go func() {
		err := Serve(in, out, o)
		in.CloseWithError(io.EOF)
		out.Close()
		c.done <- err
	}()
	t.Cleanup(func() {
		to.Close()
		if err := <-c.done; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	kind, f := c.ask(append([]byte{kindInit}, 0, 0, 0, 3))
	if kind != kindVersion || f.uint32() != 3 {
		t.Fatalf("version: kind %d", kind)
	}
	return c
}

// ask sends a packet and returns the kind of its answer and its fields, after the ID
// if it has one.
func (c *client) ask(packet []byte) (byte, *fields) {
	c.t.Helper()
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(packet))), packet...)
	if _, err := c.in.Write(b); err != nil {
		c.t.Fatal(err)
	}
	answer, err := readPacket(c.out, make([]byte, maxPacket))
	if err != nil {
		c.t.Fatal(err)
	}
	f := &fields{b: answer[1:]}
	if answer[0] != kindVersion {
		if id := f.uint32(); id != c.id {
			c.t.Fatalf("answer to %d, want %d", id, c.id)
		}
	}
	return answer[0], f
}

func (c *client) request(kind byte, build func(reply) reply) (byte, *fields) {
	c.t.Helper()
	c.id++
	return c.ask(build(newReply(kind, c.id))[4:])
}

// status sends a packet that is answered with a code, and returns the code.
func (c *client) status(kind byte, build func(reply) reply) uint32 {
	c.t.Helper()
	got, f := c.request(kind, build)
	if got != kindStatus {
		c.t.Fatalf("request %d is answered by %d, want a status", kind, got)
	}
	return f.uint32()
}

func one(name string) func(reply) reply { return func(p reply) reply { return p.string(name) } }

func two(a, b string) func(reply) reply {
	return func(p reply) reply { return p.string(a).string(b) }
}

func (c *client) open(name string, flags uint32) string {
	c.t.Helper()
	kind, f := c.request(kindOpen, func(p reply) reply { return p.string(name).uint32(flags).uint32(attrMode).uint32(0o640) })
	if kind != kindHandle {
		c.t.Fatalf("open %s: %d %d", name, kind, f.uint32())
	}
	return f.string()
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	c, at := dial(t, dir), func(name string) string { return filepath.Join(dir, name) }
	data := make([]byte, 700<<10)
	rand.Read(data)

	h := c.open(at("f"), openWrite|openCreate|openTrunc)
	for off := 0; off < len(data); off += 128 << 10 {
		part := data[off:min(len(data), off+128<<10)]
		if code := c.status(kindWrite, func(p reply) reply { return p.string(h).uint64(uint64(off)).string(string(part)) }); code != 0 {
			t.Fatalf("write: %d", code)
		}
	}
	if code := c.status(kindFsetstat, func(p reply) reply {
		return p.string(h).uint32(attrMode | attrTimes).uint32(0o600).uint32(1e9).uint32(1e9)
	}); code != 0 {
		t.Errorf("fsetstat: %d", code)
	}
	if code := c.status(kindClose, one(h)); code != 0 {
		t.Errorf("close: %d", code)
	}
	if code := c.status(kindClose, one(h)); code != 4 {
		t.Errorf("close again: %d", code)
	}
	got, err := os.ReadFile(at("f"))
	info, _ := os.Stat(at("f"))
	if err != nil || !bytes.Equal(got, data) || info.Mode() != 0o600 || info.ModTime().Unix() != 1e9 {
		t.Errorf("%v, %d bytes, %v %v", err, len(got), info.Mode(), info.ModTime())
	}

	h = c.open(at("f"), openRead)
	var back []byte
	for {
		kind, f := c.request(kindRead, func(p reply) reply { return p.string(h).uint64(uint64(len(back))).uint32(1 << 30) })
		if kind == kindStatus {
			if code := f.uint32(); code != 1 {
				t.Fatalf("read: %d", code)
			}
			break
		}
		part := f.bytes()
		if kind != kindData || f.bad || len(f.b) > 0 || len(part) > maxData {
			t.Fatalf("read: kind %d, %d bytes, %d left", kind, len(part), len(f.b))
		}
		back = append(back, part...)
	}
	if !bytes.Equal(back, data) {
		t.Error("what is read is not what was written")
	}

	if kind, f := c.request(kindStat, one(at("f"))); kind != kindAttrs {
		t.Errorf("stat: %d", kind)
	} else if a := f.attrs(); a.size != uint64(len(data)) || a.mode != unix.S_IFREG|0o600 || a.mtime != 1e9 {
		t.Errorf("%+v", a)
	}
	for _, step := range []struct {
		what  string
		code  uint32
		kind  byte
		build func(reply) reply
	}{
		{"mkdir", 0, kindMkdir, func(p reply) reply { return p.string(at("d")).uint32(attrMode).uint32(0o700) }},
		{"mkdir again", 4, kindMkdir, func(p reply) reply { return p.string(at("d")).uint32(0) }},
		{"rename", 0, kindRename, two(at("f"), at("d/g"))},
		{"rename to what exists", 4, kindRename, two(at("d/g"), at("d"))},
		{"symlink", 0, kindSymlink, two("d/g", at("link"))},
		{"hard link", 0, kindExtended, func(p reply) reply { return p.string(extHardlink).string(at("d/g")).string(at("hard")) }},
		{"replace", 0, kindExtended, func(p reply) reply { return p.string(extRename).string(at("d/g")).string(at("hard")) }},
		{"times of a link", 0, kindExtended, func(p reply) reply {
			return p.string(extLsetstat).string(at("link")).uint32(attrTimes).uint32(2e9).uint32(2e9)
		}},
		{"truncate", 0, kindSetstat, func(p reply) reply { return p.string(at("hard")).uint32(attrSize).uint64(10) }},
		{"remove a directory as a file", 4, kindRemove, one(at("d"))},
		{"remove", 0, kindRemove, one(at("hard"))},
		{"remove again", 2, kindRemove, one(at("hard"))},
		{"unknown extension", 8, kindExtended, one("nothing@example.com")},
		{"unknown kind", 8, 99, one("")},
		{"stat nothing", 2, kindStat, one(at("nothing"))},
		{"list a file", 2, kindOpendir, one(at("d/g"))},
		{"a path with NUL", 4, kindStat, one("a\x00b")},
	} {
		if code := c.status(step.kind, step.build); code != step.code {
			t.Errorf("%s: %d, want %d", step.what, code, step.code)
		}
	}
	if target, err := os.Readlink(at("link")); err != nil || target != "d/g" {
		t.Errorf("link to %q, %v", target, err)
	}
	if info, err := os.Lstat(at("link")); err != nil || info.ModTime().Unix() != 2e9 {
		t.Errorf("%v %v", info, err)
	}
	if kind, f := c.request(kindReadlink, one(at("link"))); kind != kindName || f.uint32() != 1 || f.string() != "d/g" {
		t.Errorf("readlink: %d", kind)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kind, f := c.request(kindExtended, func(p reply) reply { return p.string(extExpand).string("~/d/../x") }); kind != kindName || f.uint32() != 1 || f.string() != filepath.Join(real, "x") {
		t.Errorf("expand: %d", kind)
	}
	if kind, f := c.request(kindExtended, func(p reply) reply { return p.string(extStatvfs).string(dir) }); kind != kindExtendedReply || f.uint64() == 0 {
		t.Errorf("statvfs: %d", kind)
	}
}

// TestDirectories lists more entries than one answer has.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	c, want := dial(t, dir), map[string]bool{}
	for i := range 3*maxEntries + 7 {
		name := strings.Repeat("ä", i%5) + string(rune('a'+i%26)) + time.Duration(i).String()
		want[name] = true
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kind, f := c.request(kindOpendir, one(dir))
	if kind != kindHandle {
		t.Fatal(kind)
	}
	h := f.string()
	for {
		kind, f := c.request(kindReaddir, one(h))
		if kind == kindStatus {
			if code := f.uint32(); code != 1 {
				t.Fatal(code)
			}
			break
		}
		for n := f.uint32(); n > 0; n-- {
			name, long, a := f.string(), f.string(), f.attrs()
			if !want[name] || !strings.HasPrefix(long, "-rw-------") || !strings.HasSuffix(long, " "+name) || a.mode&0o777 != 0o600 {
				t.Errorf("%q %q %+v", name, long, a)
			}
			delete(want, name)
		}
		if f.bad || len(f.b) > 0 {
			t.Fatalf("%d bytes are left", len(f.b))
		}
	}
	if len(want) > 0 {
		t.Errorf("%d names are missing", len(want))
	}
}

// TestBounds checks that a client cannot exceed the limits.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	c := dial(t, dir)
	for range maxHandles {
		c.open(filepath.Join(dir, "f"), openWrite|openCreate)
	}
	if code := c.status(kindOpen, func(p reply) reply { return p.string(filepath.Join(dir, "f")).uint32(openRead).uint32(0) }); code != 4 {
		t.Errorf("one handle more: %d", code)
	}
	// A pipe without a writer must not block the server.
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c.status(kindClose, one("1"))
	h := c.open(fifo, openRead)
	if code := c.status(kindRead, func(p reply) reply { return p.string(h).uint64(0).uint32(10) }); code != 4 && code != 1 {
		t.Errorf("read a pipe: %d", code)
	}
	for _, b := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0, 4, 0, 1}} {
		if err := Serve(bytes.NewReader(b), io.Discard, Options{Home: dir}); !errors.Is(err, errTooLong) {
			t.Errorf("a packet of %x bytes: %v", b, err)
		}
	}
	if err := Serve(bytes.NewReader([]byte{0, 0, 0, 9, kindStat, 0, 0, 0, 1, 0, 0, 0, 99}), io.Discard, Options{Home: dir}); !errors.Is(err, errPacket) {
		t.Errorf("a path longer than its packet: %v", err)
	}
	if err := Serve(bytes.NewReader([]byte{0, 0, 0, 9, kindStat}), io.Discard, Options{Home: dir}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a packet: %v", err)
	}
}

func TestStatusOfErrors(t *testing.T) {
	for want, errs := range map[uint32][]error{
		1: {io.EOF}, 2: {fs.ErrNotExist, unix.ENOENT, unix.ELOOP}, 3: {unix.EACCES, unix.EPERM, unix.EROFS}, 4: {unix.ENOSPC, unix.EEXIST}, 8: {errUnsupported},
	} {
		for _, err := range errs {
			if code, text := status(err); code != want || text == "" {
				t.Errorf("%v: %d %q, want %d", err, code, text, want)
			}
		}
	}
}

// TestOpenSSH runs typical commands in OpenSSH's client.
func TestOpenSSH(t *testing.T) {
	program, err := exec.LookPath("sftp")
	if err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("needs sftp (openssh-client)")
	}
	dir := t.TempDir()
	data := make([]byte, 3<<20)
	rand.Read(data)
	if err := os.MkdirAll(filepath.Join(dir, "local", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "local", "sub", "f"), data, 0o754); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "local", "sub", "f"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-b", "-", "-D", os.Args[0])
	cmd.Dir, cmd.Env = dir, append(os.Environ(), serverVariable+"="+dir)
	cmd.Stdin = strings.NewReader(`put -rp local remote
get -p remote/sub/f back
ln -s remote/sub link
rename remote/sub/f remote/sub/g
chmod 600 remote/sub/g
ls -la remote/sub
df remote
mkdir empty
rmdir empty
`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, "back"))
	info, _ := os.Stat(filepath.Join(dir, "back"))
	if err != nil || !bytes.Equal(got, data) || info.Mode() != 0o754 || info.ModTime().Unix() != 1e9 {
		t.Errorf("%v, %d bytes, %v", err, len(got), info)
	}
	if info, err := os.Stat(filepath.Join(dir, "link", "g")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if !strings.Contains(string(out), "-rw-------") {
		t.Errorf("the listing is\n%s", out)
	}
}

func FuzzParse(f *testing.F) {
	for kind := range byte(21) {
		f.Add([]byte(newReply(kind, 1).string("/a").uint32(attrMode).uint32(0o600))[4:])
		f.Add([]byte(newReply(kind, 1).string("0").uint64(7).string("data"))[4:])
	}
	for _, e := range extensions {
		f.Add([]byte(newReply(kindExtended, 1).string(e[0]).string("/a").string("/b"))[4:])
	}
	f.Add([]byte(newReply(kindSetstat, 1).string("/a").uint32(attrExtended).uint32(1 << 31))[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := parse(b)
		if err != nil {
			return
		}
		if len(q.ext)+len(q.name)+len(q.other)+len(q.data) > len(b) {
			t.Errorf("%d bytes have %+v in them", len(b), q)
		}
	})
}

// TestLinkFirst makes a link for a client that follows the draft.
func TestLinkFirst(t *testing.T) {
	dir := t.TempDir()
	c := dialWith(t, Options{Home: dir, LinkFirst: true})
	link := filepath.Join(dir, "link")
	if code := c.status(kindSymlink, two(link, "target")); code != 0 {
		t.Errorf("symlink: %d", code)
	}
	if target, err := os.Readlink(link); err != nil || target != "target" {
		t.Errorf("link to %q, %v", target, err)
	}
}
