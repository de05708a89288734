package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/engi-dev/engi/internal/engi"
)

// tinyRoot is a minimal root for a template, as a tar.
func tinyRoot(t testing.TB, more ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	text := func(name, text string, mode int64) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(text)), ModTime: time.Unix(1e9, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"}); err != nil {
		t.Fatal(err)
	}
	text("usr/bin/sh", "#!", 0o755)
	text("usr/bin/bash", "#!", 0o755)
	text("usr/bin/python3", "#!", 0o755)
	text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/usr/sbin/nologin", 0o644)
	text("etc/skel/.profile", "profile", 0o644)
	for _, h := range more {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// openTemplates opens templates with source files.
func openTemplates(t testing.TB, o Options, files map[string][]byte) *Templates {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	d, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(d.o.Sources[0], name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func build(t testing.TB, d *Templates, name, text string) engi.Template {
	t.Helper()
	tmpl, err := d.Build(t.Context(), name, []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func wantKind(t testing.TB, err error, kind engi.Kind, words ...string) {
	t.Helper()
	if !engi.Is(err, kind) {
		t.Fatalf("error %v, want kind %s", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if engi.RemedyOf(err) == "" {
		t.Errorf("error %q has no remedy", err)
	}
}

func TestBuildMakesATemplate(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t), "tool": []byte("tool")})
	var events []engi.Progress
	tmpl, err := d.Build(t.Context(), "mine", []byte(`
base: tar:root.tar
user: user
env: {A: b}
ports: [80]
resources: {memory: 1GiB}
files:
  - {path: /opt/tool, source: tool, mode: 0755, owner: user}
  - {path: /etc/motd, content: hello}
languages: [python]
warm: [python]
`), func(e engi.Progress) { events = append(events, e) })
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != tmpl.Digest || got.Name != "mine" || !strings.HasPrefix(got.Digest, digestPrefix) {
		t.Errorf("got %+v", got)
	}
	if got.User != "user" || got.UID != 1000 || got.Home != "/home/user" || got.WorkDir != "/workspace" || got.Shell != "/bin/bash" {
		t.Errorf("got %+v", got)
	}
	if got.Env["A"] != "b" || got.Env["PATH"] == "" || !slices.Equal(got.Ports, []int{80}) || got.Size.Memory != 1<<30 || got.Bytes == 0 {
		t.Errorf("got %+v", got)
	}
	if p := got.Languages[engi.Python]; p.Path != "/usr/bin/python3" || !p.Warm {
		t.Errorf("python is %+v", p)
	}
	if b, ok := got.Languages[engi.Bash]; !ok || b.Warm {
		t.Errorf("bash is %+v, want there and not warm", b)
	}
	if _, ok := got.Languages[engi.Go]; ok {
		t.Error("go was found where there is none")
	}
	for name, want := range map[string]string{
		"opt/tool": "tool", "etc/motd": "hello", "home/user/.profile": "profile",
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/bash\n",
	} {
		if data, err := os.ReadFile(filepath.Join(got.Root, name)); err != nil || string(data) != want {
			t.Errorf("%s has %q (%v), want %q", name, data, err, want)
		}
	}
	for _, dir := range []string{"workspace", "proc", "sys", "dev", "tmp", ".engi"} {
		if st, err := os.Stat(filepath.Join(got.Root, dir)); err != nil || !st.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
	var steps []string
	for _, e := range events {
		if e.Steps != 3 || e.Name == "" {
			t.Errorf("event %+v", e)
		}
		if len(steps) == 0 || steps[len(steps)-1] != e.Name {
			steps = append(steps, e.Name)
		}
	}
	if want := []string{"unpack root.tar", "prepare users and files", "finish"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if st, err := os.Stat(d.o.Dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v (%v): others could run set-ID programs in it", st.Mode(), err)
	}
	if left := d.dir.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestBuildOnlyWhenSomethingChanged(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t), "f": []byte("1")})
	const text = "base: tar:root.tar\nfiles: [{path: /f, source: f}]\n"
	first := build(t, d, "a", text)
	steps := 0
	count := func(engi.Progress) { steps++ }
	again, err := d.Build(t.Context(), "a", nil, count)
	if err != nil || again.Digest != first.Digest || steps > 0 {
		t.Errorf("built again: %v, %d events", err, steps)
	}
	if other := build(t, d, "b", "# a comment\n"+text); other.Digest != first.Digest || other.Name != "b" {
		t.Errorf("an equal definition gave %+v", other)
	}
	for what, change := range map[string]func(){
		"a file's content": func() { os.WriteFile(filepath.Join(d.o.Sources[0], "f"), []byte("2"), 0o644) },
		"the base": func() {
			os.WriteFile(filepath.Join(d.o.Sources[0], "root.tar"), tinyRoot(t, &tar.Header{Name: "new/", Typeflag: tar.TypeDir, Mode: 0o755}), 0o644)
		},
	} {
		before, _ := d.Get(t.Context(), "a")
		changed := d.Changed()
		change()
		after, err := d.Build(t.Context(), "a", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if after.Digest == before.Digest {
			t.Errorf("%s changed, the digest did not", what)
		}
		select {
		case <-changed:
		default:
			t.Errorf("%s changed and nobody was told", what)
		}
	}
	if build(t, d, "a", "version: 2\n"+text).Digest == first.Digest {
		t.Error("another version gave the same digest")
	}
}

func TestBuildReportsWhoseFaultItIs(t *testing.T) {
	d := openTemplates(t, Options{Env: []string{"PATH=/nowhere"}}, map[string][]byte{
		"root.tar": tinyRoot(t), "bad.tar": []byte("not an archive, but long enough to be looked at closely" + strings.Repeat(".", 1000)),
		"evil.tar": tinyRoot(t, &tar.Header{Name: "../../evil", Typeflag: tar.TypeDir}), "root.tar.xz": []byte("\xfd7zXZ\x00rest"),
	})
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(d.o.Sources[0], "link")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		text  string
		kind  engi.Kind
		words []string
	}{
		{"base: debian:bookworm", engi.Unsupported, []string{"mmdebstrap"}},
		{"base: 'debian:../x'", engi.Invalid, []string{"suite"}},
		{"base: tar:bad.tar", engi.Invalid, []string{"broken archive"}},
		{"base: tar:evil.tar", engi.Invalid, []string{"leads upwards"}},
		{"base: tar:root.tar.xz", engi.Unsupported, []string{"xz"}},
		{"base: tar:missing.tar", engi.Invalid, []string{"missing.tar"}},
		{"base: tar:/etc/passwd", engi.Denied, []string{"/etc/passwd"}},
		{"base: tar:../../etc/passwd", engi.Denied, nil},
		{"base: tar:link", engi.Invalid, []string{"link"}},
		{"base: tar:root.tar\nfiles: [{path: /x, source: " + outside + "}]", engi.Denied, nil},
		{"base: oci-archive:bad.tar", engi.Invalid, nil},
		{"base: docker-archive:bad.tar", engi.Invalid, nil},
		{"base: template:mine", engi.Invalid, []string{"based on itself"}},
		{"base: template:nothing", engi.NotFound, nil},
		{"base: template:host", engi.Invalid, []string{"no files"}},
		{"base: host\npackages: [x]", engi.Invalid, []string{"takes no packages"}},
		{"base: 'a b'", engi.Invalid, []string{"neither a known base"}},
		{"base: tar:root.tar\ncommands: [true]", engi.Unsupported, []string{"no sandbox"}},
		{"base: tar:root.tar\nlanguages: [go]", engi.Invalid, []string{"no go"}},
		{"base: tar:root.tar\nlanguages: {go: /bin/go}", engi.Invalid, []string{"/bin/go"}},
		{"base: tar:root.tar\nwarm: [go]", engi.Invalid, []string{"cannot run"}},
		{"base: tar:root.tar\ndefault_shell: /bin/zsh", engi.Invalid, []string{"/bin/zsh"}},
		{"base: tar:root.tar\nfiles: [{path: /x, content: '', owner: nobody}]", engi.Invalid, []string{"nobody"}},
		{"base: tar:root.tar\ngo: 1.26.8", engi.Unsupported, []string{"no go command"}},
	}
	for _, test := range tests {
		_, err := d.Build(t.Context(), "mine", []byte(test.text), nil)
		t.Run(test.text, func(t *testing.T) { wantKind(t, err, test.kind, test.words...) })
	}
	_, err := d.Build(t.Context(), "../x", []byte("base: tar:root.tar"), nil)
	wantKind(t, err, engi.Invalid, "not a template name")
	_, err = d.Build(t.Context(), "unknown", nil, nil)
	wantKind(t, err, engi.NotFound)
	if list, err := os.ReadDir(filepath.Join(d.o.Dir, "builds")); err != nil || len(list) > 1 { // only the host template's build may exist
		t.Errorf("failed builds left %v (%v)", list, err)
	}
	if left := d.dir.leftovers(); len(left) > 0 {
		t.Errorf("failed builds left %q", left)
	}
}

func TestGetAndList(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	_, err := d.Get(t.Context(), "base")
	wantKind(t, err, engi.Unavailable, "not built")
	if !strings.Contains(engi.RemedyOf(err), "engi template build base") {
		t.Errorf("remedy %q", engi.RemedyOf(err))
	}
	for _, name := range []string{"unknown", "../base", "", "sha256:", "sha256:" + strings.Repeat("0", 64), "sha256:../../names"} {
		_, err := d.Get(t.Context(), name)
		wantKind(t, err, engi.NotFound)
	}
	mine := build(t, d, "mine", "base: tar:root.tar")
	if byDigest, err := d.Get(t.Context(), mine.Digest); err != nil || byDigest.Root != mine.Root {
		t.Errorf("by digest: %+v, %v", byDigest, err)
	}
	list, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tmpl := range list {
		names = append(names, tmpl.Name)
		if built := tmpl.Digest != ""; built != (tmpl.Name == "mine" || tmpl.Name == "host") {
			t.Errorf("%s built: %v", tmpl.Name, built)
		}
	}
	if want := []string{"base", "base-python", "blank-ubuntu", "browser", "code-interpreter-r-java", "code-interpreter-v1", "fastapi", "host", "jupyterlab", "mine", "node-api", "node-fullstack", "node22", "python-dev", "python3.13", "service-mongodb", "service-mysql", "service-nginx", "service-postgres", "service-redis", "vite-react"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	// Another process on the same directory sees the same.
	again, err := Open(t.Context(), Options{Dir: d.o.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Get(t.Context(), "mine"); err != nil || got.Digest != mine.Digest {
		t.Errorf("after opening again: %+v, %v", got, err)
	}
}

func TestUsedTemplatesStay(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	other, err := Open(t.Context(), Options{Dir: d.o.Dir}) // as another process
	if err != nil {
		t.Fatal(err)
	}
	old := build(t, d, "mine", "base: tar:root.tar")
	_, release, err := d.Use(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	_, releaseToo, err := d.Use(t.Context(), old.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []*Templates{d, other} {
		wantKind(t, who.Remove(t.Context(), "mine"), engi.Conflict)
		if _, err := who.Get(t.Context(), "mine"); err != nil {
			t.Errorf("a refused removal removed it: %v", err)
		}
	}
	wantKind(t, d.Remove(t.Context(), old.Digest), engi.Conflict, "mine")

	fresh := build(t, d, "mine", "base: tar:root.tar\nversion: 2")
	release()
	release() // repeated calls do nothing
	for _, who := range []*Templates{d, other} {
		if freed, err := who.Prune(t.Context()); err != nil || freed != 0 || !exists(old.Root) {
			t.Errorf("pruned a build in use: %d bytes, %v", freed, err)
		}
	}
	releaseToo()
	if freed, err := other.Prune(t.Context()); err != nil || freed != old.Bytes || exists(old.Root) || !exists(fresh.Root) {
		t.Errorf("prune freed %d bytes (%v), want %d", freed, err, old.Bytes)
	}
	if err := d.Remove(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
	wantKind(t, d.Remove(t.Context(), "mine"), engi.NotFound)
	if exists(fresh.Root) {
		t.Error("a removed template is still there")
	}
}

func TestRemoveKeepsWhatOthersMean(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	a := build(t, d, "a", "base: tar:root.tar")
	build(t, d, "b", "base: tar:root.tar")
	if err := d.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Get(t.Context(), "b"); err != nil || got.Digest != a.Digest || !exists(got.Root) {
		t.Errorf("b went with a: %v", err)
	}
	// A name whose build was deleted can be built again or removed.
	if err := os.RemoveAll(filepath.Dir(a.Root)); err != nil {
		t.Fatal(err)
	}
	_, err := d.Get(t.Context(), "b")
	wantKind(t, err, engi.Unavailable)
	if _, err := d.Build(t.Context(), "b", nil, nil); err != nil {
		t.Error(err)
	}
	// Removing a template restores the built-in definition of that name.
	build(t, d, "base", "base: tar:root.tar")
	if err := d.Remove(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	_, err = d.Get(t.Context(), "base")
	wantKind(t, err, engi.Unavailable)
}

func TestCrashLeavesNothing(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	mine := build(t, d, "mine", "base: tar:root.tar")
	tmp := filepath.Join(d.o.Dir, "tmp")
	// A build of another process, one whose process died, and an interrupted
	// removal.
	busy, lock, err := d.dir.newBuildDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	dead, deadLock, err := d.dir.newBuildDir()
	if err != nil {
		t.Fatal(err)
	}
	deadLock.Close()
	for _, dir := range []string{"root/deep/er", "root/locked"} {
		if err := os.MkdirAll(filepath.Join(dead, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dead, "root/locked"), 0o000); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(d.o.Dir, "names", ".write-123")
	gone := filepath.Join(tmp, "gone-X")
	long := time.Now().Add(-time.Hour)
	for _, err := range []error{os.WriteFile(half, nil, 0o600), os.Mkdir(gone, 0o700), os.Chtimes(half, long, long), os.Chtimes(gone, long, long)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(t.Context(), Options{Dir: d.o.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if exists(dead) || exists(half) || exists(gone) || !exists(busy) {
		t.Errorf("after a crash: dead %v, half %v, gone %v, busy %v", exists(dead), exists(half), exists(gone), exists(busy))
	}
	if got, err := again.Get(t.Context(), "mine"); err != nil || got.Digest != mine.Digest {
		t.Errorf("what was built is lost: %v", err)
	}
}

// A fakeRunner runs a Go function instead of a sandbox.
type fakeRunner struct {
	run   func(ctx context.Context, dir string, c engi.Command, out io.Writer) engi.Exit
	open  atomic.Int32
	total atomic.Int32
	owner engi.Owner // owner of the sandbox opened last
}

func (w *fakeRunner) Open(ctx context.Context, dir string, owner engi.Owner) (engi.Guest, func() error, error) {
	w.open.Add(1)
	w.total.Add(1)
	w.owner = owner
	return fakeGuest{w: w, dir: dir}, func() error { w.open.Add(-1); return nil }, nil
}

type fakeGuest struct {
	engi.Guest
	w   *fakeRunner
	dir string
}

func (g fakeGuest) Start(ctx context.Context, c engi.Command) (engi.Process, error) {
	var out bytes.Buffer
	return fakeProcess{exit: g.w.run(ctx, g.dir, c, &out), out: out.Bytes()}, nil
}

type fakeProcess struct {
	engi.Process
	exit engi.Exit
	out  []byte
}

func (p fakeProcess) Output(ctx context.Context, from int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		for chunk := range slices.Chunk(p.out, 7) { // lines may arrive in parts
			if !yield(engi.Chunk{Data: chunk}, nil) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(engi.Chunk{}, engi.Errorf(engi.Expired, "%v", ctx.Err()))
		}
	}
}

func (p fakeProcess) Wait(context.Context) (engi.Exit, error) { return p.exit, nil }

func TestCommandsRunInTheSandbox(t *testing.T) {
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	var commands []engi.Command
	w := &fakeRunner{}
	w.run = func(_ context.Context, dir string, c engi.Command, out io.Writer) engi.Exit {
		commands = append(commands, c)
		bundle, err := os.ReadFile(filepath.Join(dir, buildCAAll))
		if err != nil || !bytes.Contains(bundle, bytes.TrimSpace(ca)) {
			t.Errorf("the node's certificates are not there: %v", err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "etc/hosts")); err != nil || len(data) == 0 {
			t.Errorf("no hosts: %v", err)
		}
		for name, text := range map[string]string{"made": "x", "etc/ssl/certs/ca-certificates.crt": string(bundle) + "\n", "etc/resolv.conf": "nameserver 6.6.6.6"} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprintf(out, "said \x1b[31mred\x1b[0m\nprogress 1%%\rprogress 100%%\nno newline")
		return engi.Exit{Cause: engi.CauseExited}
	}
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o644); err != nil {
		t.Fatal(err)
	}
	d := openTemplates(t, Options{Runner: w, Env: []string{"https_proxy=http://proxy:3128", "SECRET=x", "SSL_CERT_FILE=/nowhere"}, CA: []string{caFile}},
		map[string][]byte{"root.tar": tinyRoot(t)})
	var lines []string
	tmpl, err := d.Build(t.Context(), "mine", []byte("base: tar:root.tar\nenv: {A: b}\nuser: user\ncommands:\n- first\n- {run: second, user: user, dir: /tmp}\n"), func(e engi.Progress) {
		if e.Log != "" {
			lines = append(lines, e.Log)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"said red", "progress 100%", "no newline"}; len(lines) != 6 || !slices.Equal(lines[:3], want) {
		t.Errorf("lines %q, want twice %q", lines, want)
	}
	if len(commands) != 2 || commands[0].User != "root" || commands[0].Dir != "/" || commands[1].User != "user" || commands[1].Dir != "/tmp" ||
		!slices.Equal(commands[1].Args, []string{"/bin/sh", "-ec", "second"}) {
		t.Errorf("commands %+v", commands)
	}
	env := commands[0].Env
	if env["A"] != "b" || env["https_proxy"] != "http://proxy:3128" || env["SSL_CERT_FILE"] != buildCAAll || env["SECRET"] != "" {
		t.Errorf("environment %v", env)
	}
	if w.open.Load() != 0 || w.total.Load() != 1 {
		t.Errorf("%d of %d sandboxes are open", w.open.Load(), w.total.Load())
	}
	// Temporary files are gone, results of commands are there.
	if tmpl.Env["https_proxy"] != "" || tmpl.Env["SSL_CERT_FILE"] != "" {
		t.Errorf("the template keeps %v", tmpl.Env)
	}
	for _, name := range []string{buildCA, buildCAAll} {
		if exists(filepath.Join(tmpl.Root, name)) {
			t.Errorf("%s stayed", name)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(tmpl.Root, systemCA)); bytes.Contains(data, bytes.TrimSpace(ca)) {
		t.Error("the node's certificate stayed in the bundle")
	}
	if data, err := os.ReadFile(filepath.Join(tmpl.Root, "etc/resolv.conf")); err != nil || len(data) != 0 {
		t.Errorf("resolv.conf has %q, %v", data, err)
	}
	if !exists(filepath.Join(tmpl.Root, "made")) {
		t.Error("what the command made is not there")
	}
}

func TestFailingCommandsCarryTheLog(t *testing.T) {
	w := &fakeRunner{}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	for _, test := range []struct {
		out  string
		exit engi.Exit
		kind engi.Kind
		want string
	}{
		{"many\nlines\ncc: not found", engi.Exit{Code: 127, Cause: engi.CauseExited}, engi.Invalid, "exited with code 127"},
		{"E: Temporary failure resolving 'deb.example'", engi.Exit{Code: 100, Cause: engi.CauseExited}, engi.Unavailable, "network"},
		{"too slow", engi.Exit{Code: -1, Cause: engi.CauseTimeout}, engi.Invalid, "timeout"},
	} {
		w.run = func(_ context.Context, _ string, _ engi.Command, out io.Writer) engi.Exit {
			io.WriteString(out, test.out)
			return test.exit
		}
		_, err := d.Build(t.Context(), "mine", []byte("base: tar:root.tar\ncommands: [make all]\n"), nil)
		wantKind(t, err, test.kind, test.want, test.out, "run make all")
	}
	if w.open.Load() != 0 {
		t.Errorf("%d sandboxes are open", w.open.Load())
	}
}

func TestPackagesUseWhatTheBaseHas(t *testing.T) {
	var run []string
	w := &fakeRunner{run: func(_ context.Context, _ string, c engi.Command, _ io.Writer) engi.Exit {
		run = append(run, c.Args[2])
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{
		"none.tar": tinyRoot(t), "apt.tar": tinyRoot(t, &tar.Header{Name: "usr/bin/apt-get", Typeflag: tar.TypeReg, Mode: 0o755}),
		"apk.tar": tinyRoot(t, &tar.Header{Name: "sbin/apk", Typeflag: tar.TypeReg, Mode: 0o755}),
	})
	_, err := d.Build(t.Context(), "mine", []byte("base: tar:none.tar\npackages: [git]\n"), nil)
	wantKind(t, err, engi.Invalid, "none of the package managers")
	build(t, d, "apt", "base: tar:apt.tar\npackages: [git, vim]\ncommands: [after]\n")
	build(t, d, "apk", "base: tar:apk.tar\npackages: [git]\n")
	if len(run) != 3 || !strings.Contains(run[0], "apt-get install -y -q --no-install-recommends git vim") || run[1] != "after" || !strings.Contains(run[2], "apk add --no-cache git") {
		t.Errorf("ran %q", run)
	}
}

func TestConcurrentBuildsHappenOnce(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	w := &fakeRunner{run: func(context.Context, string, engi.Command, io.Writer) engi.Exit {
		started <- struct{}{}
		<-finish
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := d.Build(t.Context(), fmt.Sprintf("t%d", i%3), []byte("base: tar:root.tar\ncommands: [x]\n"), func(engi.Progress) {}); err != nil {
				t.Error(err)
			}
		})
	}
	<-started
	close(finish)
	all.Wait()
	if n := w.total.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestCancelledBuildPassesOn(t *testing.T) {
	started := make(chan struct{}, 2)
	w := &fakeRunner{}
	w.run = func(ctx context.Context, _ string, _ engi.Command, _ io.Writer) engi.Exit {
		started <- struct{}{}
		if w.total.Load() == 1 {
			<-ctx.Done()
		}
		return engi.Exit{Cause: engi.CauseExited}
	}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	text := []byte("base: tar:root.tar\ncommands: [x]\n")
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := d.Build(ctx, "mine", text, nil)
		first <- err
	}()
	<-started
	waits := make(chan struct{})
	second := make(chan error)
	go func() {
		_, err := d.Build(t.Context(), "mine", text, sync1(waits))
		second <- err
	}()
	<-waits // the caller has joined the first build and received its step
	cancel()
	wantKind(t, <-first, engi.Expired)
	if err := <-second; err != nil {
		t.Errorf("the second caller got %v", err)
	}
	if n := w.total.Load(); n != 2 || w.open.Load() != 0 {
		t.Errorf("%d sandboxes, %d open", n, w.open.Load())
	}
}

// sync1 returns a progress function that closes c once.
func sync1(c chan struct{}) func(engi.Progress) {
	once := sync.OnceFunc(func() { close(c) })
	return func(engi.Progress) { once() }
}

func TestTemplateOnTemplate(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	low := build(t, d, "low", "base: tar:root.tar\nuser: user\nenv: {A: low, B: low}\nworking_dir: /code\nfiles: [{path: /low, content: x}]\n")
	high := build(t, d, "high", "base: template:low\nenv: {B: high}\nfiles: [{path: /high, content: x}]\n")
	if high.Env["A"] != "low" || high.Env["B"] != "high" || high.User != "user" || high.UID != 1000 || high.WorkDir != "/code" {
		t.Errorf("high is %+v", high)
	}
	if !exists(filepath.Join(high.Root, "low")) || !exists(filepath.Join(high.Root, "high")) || exists(filepath.Join(low.Root, "high")) {
		t.Error("files are not where they belong")
	}
	build(t, d, "low", "base: tar:root.tar\nuser: user\nversion: 2")
	if again, err := d.Build(t.Context(), "high", nil, nil); err != nil || again.Digest == high.Digest {
		t.Errorf("the base changed and the template did not (%v)", err)
	}
	// Cycles of any length are found.
	build(t, d, "c1", "base: tar:root.tar")
	build(t, d, "c2", "base: template:c1")
	build(t, d, "c3", "base: template:c2")
	_, err := d.Build(t.Context(), "c1", []byte("base: template:c3"), nil)
	wantKind(t, err, engi.Invalid, "based on itself")
}

func TestCompressedArchives(t *testing.T) {
	plain := tinyRoot(t)
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{g, z} {
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	d := openTemplates(t, Options{}, map[string][]byte{"a.tar": plain, "a.tar.gz": gz.Bytes(), "a.tar.zst": zst.Bytes(), "cut.tar.gz": gz.Bytes()[:gz.Len()-20]})
	for _, name := range []string{"a.tar", "a.tar.gz", "a.tar.zst"} {
		if tmpl := build(t, d, "x", "base: tar:"+name); !exists(filepath.Join(tmpl.Root, "usr/bin/python3")) {
			t.Errorf("%s is incomplete", name)
		}
	}
	_, err = d.Build(t.Context(), "x", []byte("base: tar:cut.tar.gz"), nil)
	wantKind(t, err, engi.Invalid)
}

func TestHostTemplate(t *testing.T) {
	d := openTemplates(t, Options{}, nil)
	got, err := d.Get(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(got.Mounts, engi.Mount{Source: "/usr", Target: "/usr"}) {
		t.Errorf("mounts %v", got.Mounts)
	}
	for _, m := range got.Mounts {
		if !exists(filepath.Join(got.Root, m.Target)) {
			t.Errorf("the root has no place for %v", m)
		}
	}
	if got.User != "user" || got.WorkDir != "/workspace" || got.Languages[engi.Bash].Path == "" || got.Bytes > 32<<20 {
		t.Errorf("host is %+v", got)
	}
	for _, no := range []string{"etc/shadow-", "etc/hostname", "etc/ssh", "etc/ssl/private", "etc/sudoers", "root/.bashrc"} {
		if exists(filepath.Join(got.Root, no)) {
			t.Errorf("the node's %s is in it", no)
		}
	}
	if data, err := os.ReadFile(filepath.Join(got.Root, "etc/passwd")); err != nil || strings.Count(string(data), "\n") != 2 {
		t.Errorf("passwd has %q, %v; want root and user", data, err)
	}
	again, err := Open(t.Context(), Options{Dir: d.o.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := again.Get(t.Context(), "host"); err != nil || same.Digest != got.Digest {
		t.Errorf("another digest for the same machine: %v", err)
	}
}

func TestPrintableLines(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\tb  ": "a b", "\x1b]0;title\x07text": "text", "1%\r50%\r100%\r": "100%", "bell\x07": "bell",
		"\x1b[1;31mbold\x1b[m": "bold", "c1 \u009b31m": "c1 31m", strings.Repeat("x", 1000): strings.Repeat("x", 501) + "…",
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) is %q, want %q", in, got, want)
		}
	}
}
