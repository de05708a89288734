package providertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// quiesce prepares a machine for a save. c cannot be used afterwards.
func quiesce(t *testing.T, c *guest.Client) {
	t.Helper()
	if slices.Contains(c.Hello().Capabilities, wire.CapQuiesce) {
		if err := c.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
}

// count starts a program that counts in the file tmp/count. wantCounting fails the
// test if it does not run.
func (s *suite) count(t *testing.T, c *guest.Client) engi.Process {
	t.Helper()
	proc, err := c.Start(t.Context(), engi.Command{
		Args: []string{"/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > tmp/next; mv tmp/next tmp/count; sleep 0.01; done"}, Dir: "/", User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	mustSh(t, c, "until test -e tmp/count; do sleep 0.01; done")
	return proc
}

func wantCounting(t *testing.T, c *guest.Client, proc engi.Process) {
	t.Helper()
	if got := mustSh(t, c, "a=$(cat tmp/count); n=0; while test $n -lt 200; do n=$((n+1)); sleep 0.05; test $(cat tmp/count) -gt $a && echo counts && break; done"); got != "counts" {
		t.Error("a process of before does not run")
	}
	if _, err := c.Attach(t.Context(), proc.ID()); err != nil {
		t.Errorf("an earlier process is not found: %v", err)
	}
}

func (s *suite) restore(t *testing.T, spec provider.Spec, dir string) (provider.Machine, *guest.Client) {
	t.Helper()
	m, err := provider.Restore(t.Context(), s.p, spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	return m, open(t, m, spec)
}

func (s *suite) checkpoint(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Checkpointer); !ok {
		wantKind(t, provider.Checkpoint(t.Context(), m, t.TempDir()), engi.Unsupported)
		_, err := provider.Restore(t.Context(), s.p, spec, t.TempDir())
		wantKind(t, err, engi.Unsupported)
		return
	}
	c := open(t, m, spec)
	mustSh(t, c, "echo kept > tmp/state")
	proc := s.count(t, c)
	quiesce(t, c)
	dir := t.TempDir()
	if err := provider.Checkpoint(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}
	wantDone(t, m, engi.CauseCancelled)
	s.wantGone(t, spec.ID)
	for i := range 2 {
		fresh := s.spec()
		fresh.Hostname = fmt.Sprintf("restored-%d", i)
		m, c := s.restore(t, fresh, dir)
		if got := mustSh(t, c, "cat tmp/state"); got != "kept" {
			t.Errorf("restored: got %q, want kept", got)
		}
		if s.env.OwnKernel {
			wantCounting(t, c, proc)
		}
		_, err := guest.Open(t.Context(), m.Guest, spec.Token)
		wantKind(t, err, engi.Anonymous)

		// Save the copy, too.
		mustSh(t, c, "echo more >> tmp/state")
		quiesce(t, c)
		again := t.TempDir()
		if err := provider.Checkpoint(t.Context(), m, again); err != nil {
			t.Fatal(err)
		}
		m, c = s.restore(t, fresh, again)
		if got := mustSh(t, c, "cat tmp/state"); got != "kept\nmore" {
			t.Errorf("restored twice: got %q, want kept, more", got)
		}
		if s.env.OwnKernel {
			wantCounting(t, c, proc)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// An incomplete image is refused, and the attempt leaves nothing.
	for _, dir := range []string{t.TempDir(), truncated(t, dir)} {
		fresh := s.spec()
		m, err := provider.Restore(t.Context(), s.p, fresh, dir)
		if err == nil {
			m.Close()
		}
		wantKind(t, err, engi.Invalid)
		s.wantGone(t, fresh.ID)
	}
}

// truncated returns a copy of an image without its last file.
func truncated(t *testing.T, dir string) string {
	t.Helper()
	copied := t.TempDir()
	if out, err := exec.Command("cp", "-a", dir+"/.", copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	entries, err := os.ReadDir(copied)
	if err != nil || len(entries) == 0 {
		t.Fatalf("no image was written: %v", err)
	}
	for _, e := range slices.Backward(entries) {
		if e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(copied, e.Name())); err != nil {
				t.Fatal(err)
			}
			return copied
		}
	}
	t.Fatal("an image without files")
	return ""
}

// checkpointFails saves to a directory that is not writable.
func (s *suite) checkpointFails(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Checkpointer); !ok {
		t.Skip("this kind of machine cannot be saved")
	}
	c := open(t, m, spec)
	mustSh(t, c, "echo kept > tmp/state")
	quiesce(t, c)
	if err := provider.Checkpoint(t.Context(), m, filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Fatal("saved to nowhere")
	}
	c = open(t, m, spec)
	if got := mustSh(t, c, "cat tmp/state"); got != "kept" {
		t.Errorf("got %q, want kept", got)
	}
	// A guest that was quiesced but not saved can be reached again.
	quiesce(t, c)
	c = open(t, m, spec)
	// The machine can still be saved.
	quiesce(t, c)
	dir := t.TempDir()
	if err := provider.Checkpoint(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}
	_, c = s.restore(t, spec, dir)
	if got := mustSh(t, c, "cat tmp/state"); got != "kept" {
		t.Errorf("restored: got %q, want kept", got)
	}
}

// imageAge is the time between a save and its restore.
const imageAge = 3 * time.Second

func (s *suite) restoreLater(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Checkpointer); !ok {
		t.Skip("this kind of machine cannot be saved")
	}
	c := open(t, m, spec)
	mustSh(t, c, "echo kept > tmp/state")
	quiesce(t, c)
	dir := t.TempDir()
	if err := provider.Checkpoint(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}
	_, err := s.p.Adopt(t.Context(), spec.ID)
	wantKind(t, err, engi.NotFound)
	time.Sleep(imageAge)

	spec.Token = string(engi.NewRequestID())
	random := map[string]bool{}
	for i := range 2 {
		spec.Hostname = fmt.Sprintf("later-%d", i)
		m, c := s.restore(t, spec, dir)
		if got := mustSh(t, c, "cat tmp/state"); got != "kept" {
			t.Errorf("restored: got %q, want kept", got)
		}
		if s.env.OwnKernel {
			before := time.Now()
			ns, err := strconv.ParseInt(mustSh(t, c, "date +%s%N"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if inside := time.Unix(0, ns); inside.Before(before.Add(-imageAge/2)) || inside.After(time.Now().Add(imageAge/2)) {
				t.Errorf("the clock says %s, it is %s", inside, time.Now())
			}
			if got := mustSh(t, c, "uname -n"); got != spec.Hostname {
				t.Errorf("the host name is %q, want %q", got, spec.Hostname)
			}
		}
		bytes := mustSh(t, c, "head -c 16 /dev/urandom | od -An -tx1")
		if random[bytes] {
			t.Errorf("two machines of one image drew the same random bytes %s", bytes)
		}
		random[bytes] = true
		// A stopped clock could pass the check above by accident, so check that the clock advances.
		mustSh(t, c, "a=$(date +%s%N); sleep 0.05; b=$(date +%s%N); test $b -gt $a")
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *suite) snapshot(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Snapshotter); !ok {
		wantKind(t, provider.Snapshot(t.Context(), m, t.TempDir()), engi.Unsupported)
		return
	}
	c := open(t, m, spec)
	mustSh(t, c, "echo before > tmp/state")
	proc := s.count(t, c)
	var dirs []string
	for i := range 2 {
		quiesce(t, c)
		dir := t.TempDir()
		if err := provider.Snapshot(t.Context(), m, dir); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
		// The guest reconnects by itself, and its state is complete.
		c = open(t, m, spec)
		wantCounting(t, c, proc)
		mustSh(t, c, fmt.Sprintf("echo after-%d >> tmp/state", i))
	}
	for i, dir := range dirs {
		copied, cc := s.restore(t, s.spec(), dir)
		want := strings.Join([]string{"before", "after-0"}[:i+1], "\n")
		if got := mustSh(t, cc, "cat tmp/state"); got != want {
			t.Errorf("copy %d: got %q, want %q", i, got, want)
		}
		if s.env.OwnKernel {
			wantCounting(t, cc, proc)
		}
		mustSh(t, cc, "echo copy >> tmp/state")
		if err := copied.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustSh(t, c, "cat tmp/state"); got != "before\nafter-0\nafter-1" {
		t.Errorf("the original: %q", got)
	}
	wantCounting(t, c, proc)
}

// makeFiles creates every kind of file that must be saved; describe prints all
// their attributes, including checksums.
const (
	makeFiles = `
mkdir -p d/sub d/empty 'd/with space' && cd d
echo plain > plain; chown 12:34 plain; chmod 4711 plain; touch -d '2001-02-03 04:05:06.789' plain
printf 'caf\351' > "$(printf 'name\351\n')"
i=0; while test $i -lt 300; do echo "line $i"; i=$((i+1)); done > sub/lines
ln -s plain link; ln -s /no/such/place/that/is/long/enough/to/take/more/than/one/field/of/an/archive/which/has/only/one/hundred/bytes dangling
ln plain hard; ln sub/lines sub/hard
mkfifo fifo
truncate -s 5000000 sparse; printf end >> sparse
: > nothing
chmod 1700 sub; chown 5:6 sub; touch -d '2002-02-02 02:02:02' sub empty`
	describe = `find d -exec stat -c '%F %a %u %g %s %h %y %N' {} + | sort; find d -type f -exec cksum {} + | sort`
)

func (s *suite) saveDisk(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.CopyFS(root, os.DirFS(s.env.Root)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "workspace/old"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"removed", "replaced", "kept", "old/a", "old/b"} {
		if err := os.WriteFile(filepath.Join(root, "workspace", name), []byte("of the root\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec := s.spec()
	spec.Root = root
	m, err := s.p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	if _, ok := m.(provider.DiskSaver); !ok {
		wantKind(t, provider.SaveDisk(t.Context(), m, t.TempDir()), engi.Unsupported)
		return
	}
	c := open(t, m, spec)
	const work = "cd workspace; "
	mustSh(t, c, work+"rm removed; echo new > replaced; rm -r old; mkdir old; echo new > old/b; "+makeFiles)
	want := mustSh(t, c, work+describe)
	if !strings.Contains(want, "plain") {
		t.Fatalf("no files were made: %s", want)
	}
	dir := t.TempDir()
	if err := provider.SaveDisk(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}
	mustSh(t, c, work+"echo later > d/plain") // the machine continues, and the image does not change
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a machine that was started from a saved disk can be saved, too
		fresh := s.spec()
		fresh.Root, fresh.Disk = root, dir
		m, err := s.p.Start(t.Context(), fresh)
		if err != nil {
			t.Fatal(err)
		}
		s.closeAfter(t, m)
		c := open(t, m, fresh)
		if s.env.OwnKernel {
			if got := mustSh(t, c, work+describe); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		}
		for script, want := range map[string]string{
			"ls":                      "d\nkept\nold\nreplaced",
			"cat kept replaced old/b": "of the root\nnew\nnew",
			"ls old":                  "b",
			"cat d/hard":              "plain",
			"readlink d/link":         "plain",
		} {
			if got := mustSh(t, c, work+script); got != want {
				t.Errorf("%s: got %q, want %q", script, got, want)
			}
		}
		dir = t.TempDir()
		if err := provider.SaveDisk(t.Context(), m, dir); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fresh := s.spec()
	fresh.Root, fresh.Disk = root, truncated(t, dir)
	if m, err := s.p.Start(t.Context(), fresh); err == nil {
		m.Close()
		t.Error("started from half a disk")
	} else {
		wantKind(t, err, engi.Invalid)
	}
	s.wantGone(t, fresh.ID)
}

// volume is the target of mounts, which the root does not have.
const volume = "/data/volumes/one"

func (s *suite) mountWritable(t *testing.T) {
	sources := [2]string{t.TempDir(), t.TempDir()}
	for _, dir := range sources {
		if err := os.WriteFile(filepath.Join(dir, "old"), []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadDir(s.env.Root)
	if err != nil {
		t.Fatal(err)
	}
	spec := s.spec()
	spec.Mounts = append(slices.Clone(spec.Mounts),
		provider.Mount{Source: sources[0], Target: volume, Writable: true},
		provider.Mount{Source: sources[1], Target: "/data/read-only"})
	m, err := s.p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	c := open(t, m, spec)
	in := "cd ." + volume + "; "
	if got := mustSh(t, c, in+"cat old"); got != "of the host" {
		t.Errorf("inside: %q", got)
	}
	// A write is visible on the other side when it has returned.
	for i := range 3 {
		text := fmt.Sprintf("round %d", i)
		mustSh(t, c, in+"mkdir -p sub; printf '"+text+"' > sub/new; printf '"+text+"' > old")
		for _, name := range []string{"sub/new", "old"} {
			if raw, err := os.ReadFile(filepath.Join(sources[0], name)); err != nil || string(raw) != text {
				t.Errorf("the host reads %q, %v, want %q", raw, err, text)
			}
		}
		if err := os.WriteFile(filepath.Join(sources[0], "from-host"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := mustSh(t, c, in+"cat from-host"); got != text {
			t.Errorf("inside reads %q, want %q", got, text)
		}
	}
	mustSh(t, c, in+"rm old; mv sub/new moved; rmdir sub")
	if entries, err := os.ReadDir(sources[0]); err != nil || len(entries) != 2 || entries[1].Name() != "moved" {
		t.Errorf("the host sees %v, %v", entries, err)
	}
	if got := mustSh(t, c, "cat data/read-only/old"); got != "of the host" {
		t.Errorf("read-only: %q", got)
	}
	if s.env.OwnKernel {
		if out, exit, err := sh(t, c, "echo x > data/read-only/old"); err != nil || exit.Code == 0 {
			t.Errorf("wrote to a read-only directory: %v: %s", err, out)
		}
	}
	if after, err := os.ReadDir(s.env.Root); err != nil || len(after) != len(before) {
		t.Errorf("the root has %d entries, had %d: %v", len(after), len(before), err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(sources[0], "moved")); err != nil || string(raw) != "round 2" {
		t.Errorf("after the end: %q, %v", raw, err)
	}

	spec = s.spec()
	spec.Mounts = []provider.Mount{{Source: filepath.Join(sources[0], "missing"), Target: volume}}
	if m, err := s.p.Start(t.Context(), spec); err == nil {
		m.Close()
		t.Error("mounted what is not there")
	} else {
		wantKind(t, err, engi.Invalid)
	}
	s.wantGone(t, spec.ID)
}

func (s *suite) mountSaved(t *testing.T) {
	sources := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range sources {
		if err := os.WriteFile(filepath.Join(dir, "which"), []byte(strconv.Itoa(i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mounted := func(source string) provider.Spec {
		spec := s.spec()
		spec.Mounts = append(slices.Clone(spec.Mounts), provider.Mount{Source: source, Target: volume, Writable: true})
		return spec
	}
	spec := mounted(sources[0])
	m, err := s.p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	if _, ok := m.(provider.Checkpointer); !ok {
		t.Skip("this kind of machine cannot be saved")
	}
	c := open(t, m, spec)
	in := "cd ." + volume + "; "
	mustSh(t, c, in+"cat which; echo before > log")
	quiesce(t, c)
	copied := t.TempDir()
	if err := provider.Snapshot(t.Context(), m, copied); err != nil {
		t.Fatal(err)
	}
	c = open(t, m, spec)
	mustSh(t, c, in+"echo between >> log")
	quiesce(t, c)
	dir := t.TempDir()
	if err := provider.Checkpoint(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}

	// Restore with the same source and, for a copy, with another one.
	spec.Token = string(engi.NewRequestID())
	_, c = s.restore(t, spec, dir)
	mustSh(t, c, in+"echo after >> log")
	if raw, err := os.ReadFile(filepath.Join(sources[0], "log")); err != nil || string(raw) != "before\nbetween\nafter\n" {
		t.Errorf("the host reads %q, %v", raw, err)
	}
	other := mounted(sources[1])
	_, c = s.restore(t, other, copied)
	if got := mustSh(t, c, in+"cat which; echo copy > log"); got != "1" {
		t.Errorf("the copy has source %s, want 1", got)
	}
	if raw, err := os.ReadFile(filepath.Join(sources[1], "log")); err != nil || string(raw) != "copy\n" {
		t.Errorf("the host reads %q, %v", raw, err)
	}
}
