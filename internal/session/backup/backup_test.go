package backup_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/blob"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/session/backup"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/test/env"
)

// memory is a blob store whose power can be cut.
type memory struct {
	mu    sync.Mutex
	blobs map[string][]byte
	left  int // number of changes until the power is cut; negative means never
	puts  int
}

func newMemory() *memory { return &memory{blobs: map[string][]byte{}, left: -1} }

func (m *memory) act(f func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return engi.Errorf(engi.Unavailable, "power cut")
	}
	m.left--
	f()
	return nil
}

func (m *memory) Put(_ context.Context, name string, data []byte) error {
	return m.act(func() { m.blobs[name] = bytes.Clone(data); m.puts++ })
}

func (m *memory) Get(_ context.Context, name string, limit int64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.blobs[name]
	if !ok {
		return nil, engi.Errorf(engi.NotFound, "no %s", name)
	}
	if int64(len(data)) > limit {
		return nil, engi.Errorf(engi.Conflict, "too large")
	}
	return data, nil
}

func (m *memory) List(_ context.Context, prefix string) iter.Seq2[engi.Blob, error] {
	return func(yield func(engi.Blob, error) bool) {
		m.mu.Lock()
		all := maps.Clone(m.blobs)
		m.mu.Unlock()
		for name, data := range all {
			if strings.HasPrefix(name, prefix) && !yield(engi.Blob{Name: name, Size: int64(len(data))}, nil) {
				return
			}
		}
	}
}

func (m *memory) Remove(_ context.Context, name string) error {
	return m.act(func() { delete(m.blobs, name) })
}

func (m *memory) bytes() (n int) {
	for _, b := range m.blobs {
		n += len(b)
	}
	return n
}

// volumes returns a function that creates volumes, and their directories.
func volumes(t *testing.T) func() (engi.VolumeFiles, string) {
	t.Helper()
	db := storetest.Open(t)
	dir := t.TempDir()
	m, err := volume.Open(t.Context(), volume.Options{Dir: dir, Store: store.Volumes(db), Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	return func() (engi.VolumeFiles, string) {
		t.Helper()
		n++
		v, err := m.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: fmt.Sprint("v", n), Capacity: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		f, err := m.Files(t.Context(), "ann", string(v.ID))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f, filepath.Join(dir, string(v.ID), "at", "data")
	}
}

// tree describes the files below dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%v %d:%d", fi.Mode(), st.Uid, st.Gid)
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %x %d", len(data), sha256.Sum256(data), fi.ModTime().UnixNano())
		case fi.IsDir():
			text += fmt.Sprintf(" %d", fi.ModTime().UnixNano())
		default:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			text += " " + target
		}
		all[strings.TrimPrefix(file, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

type file struct {
	data string
	mode fs.FileMode
}

func write(t *testing.T, dir string, files map[string]file) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(files[name].data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at, files[name].mode); err != nil {
			t.Fatal(err)
		}
	}
}

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

var key = backup.Key{Owner: "ann", Name: "chat"}

const plenty = 1 << 30

func save(t *testing.T, s *backup.Store, f engi.VolumeFiles) engi.WorkspaceCopy {
	t.Helper()
	x, err := s.Save(t.Context(), key, f, plenty)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestRestoredIsIdentical saves all kinds of files that programs can create, including hostile
// names, modes and links, and restores them elsewhere.
func TestRestoredIsIdentical(t *testing.T) {
	volume := volumes(t)
	from, dir := volume()
	write(t, dir, map[string]file{
		"plain": {"hello", 0o644}, "empty": {"", 0o600}, "tool": {"#!/bin/sh\n", 0o755}, "none": {"x", 0}, "large": {random(9<<20 + 17), 0o644}, "same": {"hello", 0o444},
		"a/b/c/d": {"deep", 0o640}, " lead and trail ": {"s", 0o644}, "new\nline": {"n", 0o644}, "no\xfftext\x80": {"u", 0o644}, "-rf": {"r", 0o644}, "..x": {"d", 0o644},
		strings.Repeat("n", 255): {"long", 0o644}, strings.Repeat("d/", 200) + "end": {"path", 0o644}, "caf\u00e9 \u202e": {"b", 0o644}, "closed/inside": {"c", 0o600},
	})
	for name, target := range map[string]string{"out": "/etc/passwd", "up": "../../../etc", "dangling": "nowhere", "loop": "loop", "odd": "a\xffb", "a/in": "../plain"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "plain"), filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	hole, err := os.Create(filepath.Join(dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := hole.Truncate(5<<20 + 3); err != nil {
		t.Fatal(err)
	}
	hole.Close()
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	for _, name := range []string{"plain", "a/b", "closed"} {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Lchown(filepath.Join(dir, "tool"), 1234, 5678); err != nil {
			t.Fatal(err)
		}
	}
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: plenty})
	done := save(t, s, from)
	if done.Skipped != 1 || done.Bytes < 14<<20 || done.Uploaded > 12<<20 {
		t.Errorf("%+v", done)
	}
	if err := os.Remove(filepath.Join(dir, "pipe")); err != nil {
		t.Fatal(err)
	}
	root, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	to, there := volume()
	restored, err := s.Restore(t.Context(), key, to)
	if err != nil || restored.Files != done.Files || restored.Bytes != done.Bytes {
		t.Fatalf("%+v, want %+v, %v", restored, done, err)
	}
	want := tree(t, dir)
	got := tree(t, there)
	if _, ok := want["/a/b"]; !ok || root == nil || len(want) < 220 {
		t.Fatalf("only %d files", len(want))
	}
	delete(want, "") // the root's time changed when the pipe was removed
	delete(got, "")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("restored (-want +got):\n%s", d)
	}
	// Restore again, over the result of an interrupted attempt.
	if err := os.Remove(filepath.Join(there, "plain")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(t.Context(), key, to); err != nil {
		t.Fatal(err)
	}
	got = tree(t, there)
	delete(got, "")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("restored twice (-want +got):\n%s", d)
	}
}

// TestOnlyChangesAreStored checks that copies are incremental, and that unneeded content
// is removed.
func TestOnlyChangesAreStored(t *testing.T) {
	volume := volumes(t)
	from, dir := volume()
	files := map[string]file{"large": {random(20 << 20), 0o644}}
	for i := range 200 {
		files[fmt.Sprint("small/", i)] = file{random(2000), 0o644}
	}
	write(t, dir, files)
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: plenty})
	if x := save(t, s, from); x.Uploaded != 20<<20+200*2000 {
		t.Errorf("%+v", x)
	}
	if x := save(t, s, from); x.Uploaded != 0 {
		t.Errorf("nothing changed, and %d bytes were stored", x.Uploaded)
	}
	// The same size and time, but other content.
	before, err := os.Stat(filepath.Join(dir, "small/7"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]file{"small/7": {random(2000), 0o644}, "copy": files["large"]})
	if err := os.Chtimes(filepath.Join(dir, "small/7"), before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	if x := save(t, s, from); x.Uploaded != 2000 {
		t.Errorf("%+v", x)
	}
	// In the middle of a large file.
	f, err := os.OpenFile(filepath.Join(dir, "large"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("changed"), 7<<20+5); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if x := save(t, s, from); x.Uploaded != 1<<20 {
		t.Errorf("%+v", x)
	}
	for _, name := range []string{"large", "copy"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	save(t, s, from)
	save(t, s, from) // moves needed pieces out of packs that are mostly garbage
	if n := blobs.bytes(); n > 1<<20 {
		t.Errorf("%d bytes are stored for 400 KB", n)
	}
	to, there := volume()
	if _, err := s.Restore(t.Context(), key, to); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(tree(t, dir), tree(t, there)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := s.Remove(t.Context(), key); err != nil || len(blobs.blobs) != 0 {
		t.Errorf("%d blobs are left, %v", len(blobs.blobs), err)
	}
	if _, err := s.Restore(t.Context(), key, to); !engi.Is(err, engi.NotFound) {
		t.Errorf("%v", err)
	}
}

// TestPowerCuts interrupts a copy after each change of the store: a restore must return
// the earlier copy or the new one, never a mixture, and the next copy must
// clean up.
func TestPowerCuts(t *testing.T) {
	volume := volumes(t)
	from, dir := volume()
	one := map[string]file{"keep": {random(3 << 20), 0o644}, "change": {random(10 << 20), 0o644}, "go": {random(2 << 20), 0o644}}
	write(t, dir, one)
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: plenty})
	save(t, s, from)
	before, first := tree(t, dir), maps.Clone(blobs.blobs)
	write(t, dir, map[string]file{"change": {random(12 << 20), 0o600}, "new": {random(9 << 20), 0o644}})
	if err := os.Remove(filepath.Join(dir, "go")); err != nil {
		t.Fatal(err)
	}
	after := tree(t, dir)
	cuts, olds := 0, 0
	for n := 0; ; n++ {
		blobs.blobs, blobs.left = maps.Clone(first), n
		_, err := s.Save(t.Context(), key, from, plenty)
		whole := blobs.left > 0
		blobs.left = -1
		to, there := volume()
		if _, err := s.Restore(t.Context(), key, to); err != nil {
			t.Fatalf("cut after %d changes: %v", n, err)
		}
		got := tree(t, there)
		switch {
		case cmp.Equal(got, before):
			olds++
			if err == nil {
				t.Errorf("cut after %d changes: the copy was made, and the old one is there", n)
			}
		case !cmp.Equal(got, after):
			t.Fatalf("cut after %d changes: neither the old nor the new copy", n)
		}
		save(t, s, from)
		if packs := len(blobs.blobs); packs > 6 {
			t.Errorf("cut after %d changes: %d blobs are left", n, packs)
		}
		if whole {
			break
		}
		cuts++
	}
	if cuts < 4 || olds < 3 {
		t.Errorf("%d cuts, %d of which left the old copy: the test has not cut enough", cuts, olds)
	}
}

// TestDamageIsNoticed damages each blob of a copy.
func TestDamageIsNoticed(t *testing.T) {
	volume := volumes(t)
	from, dir := volume()
	write(t, dir, map[string]file{"a": {random(9 << 20), 0o644}, "b": {"b", 0o644}})
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: plenty})
	save(t, s, from)
	whole := maps.Clone(blobs.blobs)
	for name, data := range whole {
		for how, bad := range map[string][]byte{"flipped": append(bytes.Clone(data[:len(data)-1]), data[len(data)-1]^1), "cut": data[:len(data)/2], "gone": nil} {
			if how == "gone" && strings.HasSuffix(name, "manifest") {
				continue // then there is no copy
			}
			blobs.blobs = maps.Clone(whole)
			if blobs.blobs[name] = bad; bad == nil {
				delete(blobs.blobs, name)
			}
			to, _ := volume()
			if _, err := s.Restore(t.Context(), key, to); !engi.Is(err, engi.Conflict) || engi.RemedyOf(err) == "" {
				t.Errorf("%s %s: %v", name, how, err)
			}
			if how == "flipped" && !strings.HasSuffix(name, "manifest") {
				continue // saving a copy does not read it
			}
			save(t, s, from)
			if _, err := s.Restore(t.Context(), key, to); err != nil {
				t.Errorf("%s %s, and saved again: %v", name, how, err)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	volume := volumes(t)
	refused := func(what string, err error) {
		t.Helper()
		if !engi.Is(err, engi.Exhausted) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: 4 << 20})
	from, dir := volume()
	hole, err := os.Create(filepath.Join(dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := hole.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	hole.Close()
	_, err = s.Save(t.Context(), key, from, 64<<20)
	if refused("a file of 1 TiB that is a hole", err); !strings.Contains(err.Error(), "/hole") {
		t.Errorf("it does not name the file: %v", err)
	}
	if len(blobs.blobs) > 1 {
		t.Errorf("%d blobs", len(blobs.blobs))
	}
	if err := os.Remove(filepath.Join(dir, "hole")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]file{"a": {random(3 << 20), 0o644}})
	save(t, s, from)
	save(t, s, from) // stored content needs no additional space
	other, there := volume()
	write(t, there, map[string]file{"b": {random(2 << 20), 0o644}})
	_, err = s.Save(t.Context(), backup.Key{Owner: "ann", Name: "other"}, other, plenty)
	refused("more than the owner's quota", err)
	if _, err := s.Save(t.Context(), backup.Key{Owner: "bob", Name: "other"}, other, plenty); err != nil {
		t.Errorf("the quota of another owner: %v", err)
	}
	deep, at := volume()
	if err := os.MkdirAll(filepath.Join(at, strings.Repeat("d/", 256)), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = s.Save(t.Context(), backup.Key{Owner: "eve", Name: "deep"}, deep, plenty)
	refused("directories that are nested too deep", err)
}

// TestOneAtATime checks that copies of one workspace do not mix.
func TestOneAtATime(t *testing.T) {
	volume := volumes(t)
	blobs := newMemory()
	s := backup.New(backup.Options{Blobs: blobs, Quota: plenty})
	var wait sync.WaitGroup
	for i := range 6 {
		from, dir := volume()
		write(t, dir, map[string]file{"n": {fmt.Sprint(i), 0o644}, "data": {random(2 << 20), 0o644}})
		wait.Go(func() {
			if _, err := s.Save(t.Context(), key, from, plenty); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	to, _ := volume()
	if _, err := s.Restore(t.Context(), key, to); err != nil {
		t.Fatal(err)
	}
	r, err := to.Open(t.Context(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); err != nil || n != 2<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n := len(blobs.blobs); n != 2 {
		t.Errorf("%d blobs, want a manifest and a pack", n)
	}
}

// directory is a volume that the killed process reads.
type directory struct {
	engi.VolumeFiles
	root string
}

func (d directory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(d.root, name))
}

func (d directory) Stat(_ context.Context, name string) (engi.FileInfo, error) {
	fi, err := os.Lstat(filepath.Join(d.root, name))
	if err != nil {
		return engi.FileInfo{}, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return engi.FileInfo{Path: name, Size: fi.Size(), Mode: fi.Mode(), UID: int(st.Uid), GID: int(st.Gid), Modified: fi.ModTime()}, nil
}

func (d directory) List(ctx context.Context, _ string, _ int) (all []engi.FileInfo, err error) {
	err = filepath.WalkDir(d.root, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || file == d.root {
			return err
		}
		fi, err := d.Stat(ctx, strings.TrimPrefix(file, d.root))
		all = append(all, fi)
		return err
	})
	return all, err
}

// TestKilledCopies saves 10,000 files to an S3 server and restores them on an
// empty disk; then it kills the process that makes further copies.
func TestKilledCopies(t *testing.T) {
	const directoryVariable, placeVariable = "ENGI_TEST_BACKUP_DIR", "ENGI_TEST_BACKUP_AT"
	if dir := os.Getenv(directoryVariable); dir != "" {
		b, err := blob.Open(os.Getenv(placeVariable))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("begins")
		save(t, backup.New(backup.Options{Blobs: b, Quota: plenty}), directory{root: dir})
		return
	}
	env.Slow(t)
	at, _ := env.S3(t)
	b, err := blob.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	s := backup.New(backup.Options{Blobs: b, Quota: plenty})
	volume := volumes(t)
	_, dir := volume()
	files := map[string]file{"large": {random(9 << 20), 0o644}}
	for i := range 10_000 {
		files[fmt.Sprintf("data/%d/%d", i%100, i)] = file{random(100 + i%300), 0o600 | fs.FileMode(i%8)}
	}
	write(t, dir, files)
	from := directory{root: dir}
	check := func(wants ...map[string]string) int {
		t.Helper()
		to, there := volume()
		if _, err := s.Restore(t.Context(), key, to); err != nil {
			t.Fatal(err)
		}
		got := tree(t, there)
		for i, want := range wants {
			if cmp.Equal(want, got) {
				return i
			}
		}
		t.Fatalf("what is restored is none of %d versions:\n%.2000s", len(wants), cmp.Diff(wants[0], got))
		return 0
	}
	save(t, s, from)
	before := tree(t, dir)
	if len(before) < 10_100 {
		t.Fatalf("%d files", len(before))
	}
	check(before)
	news := 0
	for i, after := range []time.Duration{20 * time.Millisecond, 150 * time.Millisecond} {
		for k := range 200 {
			n := (k*37 + i) % 10_000
			write(t, dir, map[string]file{fmt.Sprintf("data/%d/%d", n%100, n): {random(500), 0o644}})
		}
		write(t, dir, map[string]file{"large": {random(9 << 20), 0o644}, fmt.Sprint("new", i): {random(6 << 20), 0o644}})
		next := tree(t, dir)
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledCopies$")
		cmd.Env = append(os.Environ(), directoryVariable+"="+dir, placeVariable+"="+at)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("begins"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the process was killed
		if check(before, next) == 1 {
			news++
		}
		save(t, s, from)
		before = next
	}
	check(before)
	t.Logf("%d of 2 copies were complete when their process was killed", news)
}
