package tree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// instances counts the inotify instances of this process.
func instances(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

func watching(t *testing.T, dir string, recursive bool) *Watch {
	t.Helper()
	w, err := NewWatch(dir, recursive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// until reads changes up to a certain one.
func until(t *testing.T, w *Watch, op engi.FileOp, path string) []wire.FileChange {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []wire.FileChange
	for {
		ch, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %s %s after %v: %v", op, path, all, err)
		}
		all = append(all, ch)
		if ch.Op == op && ch.Path == path {
			return all
		}
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestWatchesShareAnInstance has more watches than a user may have inotify
// instances.
func TestWatchesShareAnInstance(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	var all []*Watch
	for i := range 600 {
		d := dir
		if i%2 == 1 {
			d = other
		}
		all = append(all, watching(t, d, false))
	}
	if n := instances(t); n != 1 {
		t.Errorf("600 watches hold %d inotify instances", n)
	}
	touch(t, filepath.Join(dir, "here"))
	touch(t, filepath.Join(other, "there"))
	for i, w := range all {
		name, wrong := filepath.Join(dir, "here"), "there"
		if i%2 == 1 {
			name, wrong = filepath.Join(other, "there"), "here"
		}
		for _, ch := range until(t, w, engi.FileCreated, name) {
			if filepath.Base(ch.Path) == wrong {
				t.Errorf("watch %d heard of %s", i, ch.Path)
			}
		}
	}
	for _, w := range all[1:] {
		w.Close()
		w.Close()
	}
	touch(t, filepath.Join(dir, "late"))
	until(t, all[0], engi.FileCreated, filepath.Join(dir, "late"))
	all[0].Close()
	if n := instances(t); n != 0 {
		t.Errorf("%d inotify instances are left", n)
	}
	if w := watching(t, dir, false); w.hub == all[0].hub {
		t.Error("the hub of watches that ended lives on")
	}
}

// TestWatchBeginsNow expects no changes from before a watch, even if an earlier
// watch has the same directory.
func TestWatchBeginsNow(t *testing.T) {
	dir := t.TempDir()
	first := watching(t, dir, false)
	for i := range 20 {
		old := filepath.Join(dir, fmt.Sprintf("old%d", i))
		touch(t, old)
		w := watching(t, dir, false)
		touch(t, filepath.Join(dir, "new"))
		for _, ch := range until(t, w, engi.FileWritten, filepath.Join(dir, "new")) {
			if ch.Path == old {
				t.Fatalf("round %d: a change from before the watch: %+v", i, ch)
			}
		}
		os.Remove(filepath.Join(dir, "new"))
		until(t, first, engi.FileCreated, old)
	}
}

func TestWatchBelow(t *testing.T) {
	dir, away := t.TempDir(), t.TempDir()
	in := func(s string) string { return filepath.Join(dir, s) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, flat := watching(t, dir, true), watching(t, dir, false)
	must(os.MkdirAll(in("a/b/c"), 0o700))
	until(t, w, engi.FileCreated, in("a/b/c"))
	touch(t, in("a/b/c/f"))
	until(t, w, engi.FileCreated, in("a/b/c/f"))

	// A directory that moves is watched at its new place.
	must(os.Rename(in("a/b"), in("moved")))
	until(t, w, engi.FileRenamed, in("a/b"))
	until(t, w, engi.FileCreated, in("moved/c/f"))
	touch(t, in("moved/c/g"))
	until(t, w, engi.FileCreated, in("moved/c/g"))

	// A directory that moves away is not watched any more, until it is back.
	must(os.Rename(in("moved"), filepath.Join(away, "moved")))
	until(t, w, engi.FileRenamed, in("moved"))
	touch(t, filepath.Join(away, "moved/c/unseen"))
	touch(t, in("mark"))
	for _, ch := range until(t, w, engi.FileCreated, in("mark")) {
		if strings.HasPrefix(ch.Path, in("moved")) {
			t.Errorf("heard of %+v, which is elsewhere", ch)
		}
	}
	must(os.Rename(filepath.Join(away, "moved"), in("back")))
	until(t, w, engi.FileCreated, in("back/c/unseen"))
	must(os.RemoveAll(in("back")))
	until(t, w, engi.FileRemoved, in("back"))
	for _, ch := range until(t, flat, engi.FileRemoved, in("back")) {
		if filepath.Dir(ch.Path) != dir {
			t.Errorf("a watch of one directory heard of %+v", ch)
		}
	}
}

// TestSlowWatch checks that a watch that is not read fails, and no other watch.
func TestSlowWatch(t *testing.T) {
	dir := t.TempDir()
	slow, quick := watching(t, dir, false), watching(t, dir, false)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	touch(t, a)
	for range maxQueued/2/64 + 64 {
		for range 32 {
			if err := os.Rename(a, b); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(b, a); err != nil {
				t.Fatal(err)
			}
		}
		touch(t, filepath.Join(dir, "mark"))
		until(t, quick, engi.FileCreated, filepath.Join(dir, "mark"))
		os.Remove(filepath.Join(dir, "mark"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	for ; ; n++ {
		if _, err := slow.Next(ctx); err != nil {
			if !engi.Is(err, engi.Exhausted) || engi.RemedyOf(err) == "" {
				t.Errorf("got %v", err)
			}
			break
		}
	}
	if n != maxQueued {
		t.Errorf("%d changes are queued, want %d", n, maxQueued)
	}
	touch(t, filepath.Join(dir, "after"))
	until(t, quick, engi.FileCreated, filepath.Join(dir, "after"))
}

func TestWatchesThatComeAndGo(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				w, err := NewWatch(dir, j%2 == 0)
				if err != nil {
					t.Error(err)
					return
				}
				name := filepath.Join(dir, fmt.Sprintf("%d-%d", i, j))
				if err := os.Mkdir(name, 0o700); err != nil {
					t.Error(err)
				}
				until(t, w, engi.FileCreated, name)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				for {
					if _, err := w.Next(ctx); err != nil {
						if !engi.Is(err, engi.Expired) {
							t.Errorf("after the end: %v", err)
						}
						break
					}
				}
				os.Remove(name)
				w.Close()
			}
		})
	}
	all.Wait()
	if n := instances(t); n != 0 {
		t.Errorf("%d inotify instances are left", n)
	}
}

// TestWatchWithoutInstances expects a remedy if no inotify instance is left.
func TestWatchWithoutInstances(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := NewWatch(dir, false)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !engi.Is(err, engi.Exhausted) || !strings.Contains(engi.RemedyOf(err), "max_user_instances") {
		t.Errorf("got %v, %q", err, engi.RemedyOf(err))
	}
	w := watching(t, dir, false)
	touch(t, filepath.Join(dir, "f"))
	until(t, w, engi.FileCreated, filepath.Join(dir, "f"))
}

func FuzzWatchParse(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, '.', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, '/', 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, w := newHub(nil), newWatch("/nowhere", false)
		w.hub, w.dirs[1] = h, "/nowhere"
		h.watches[w], h.dirs[1] = true, map[*Watch]bool{w: true}
		h.parse(b)
		if h.queued != len(w.events) {
			t.Errorf("%d events wait, %d counted", len(w.events), h.queued)
		}
		for _, e := range w.events {
			if err := w.handle(e); err != nil {
				t.Error(err)
			}
		}
		for _, ch := range w.queue {
			if filepath.Dir(ch.Path) != "/nowhere" {
				t.Errorf("got %+v", ch)
			}
		}
	})
}
