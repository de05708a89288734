package volume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/store"
)

// A fixture is a manager with its directory and store.
type fixture struct {
	*volume.Manager
	t     *testing.T
	dir   string
	store volume.Store
	o     volume.Options
}

// kinds runs a test with directories and, where they work, with images.
func kinds(t *testing.T, f func(t *testing.T, h *fixture)) {
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "image", true: "plain"}[plain], func(t *testing.T) {
			h := open(t, volume.Options{Plain: plain})
			if why := h.NotEnforced(); !plain && len(why) > 0 {
				lacking(t, "images do not work here: "+why[0])
			}
			f(t, h)
		})
	}
}

func lacking(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func open(t *testing.T, o volume.Options) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if o.Capacity == 0 {
		o.Capacity = 32 << 20
	}
	o.Dir, o.Store = t.TempDir(), store.Volumes(db)
	h := &fixture{t: t, dir: o.Dir, store: o.Store, o: o}
	t.Cleanup(h.clear)
	h.again()
	return h
}

// again reopens the manager, like a new process.
func (h *fixture) again() {
	h.t.Helper()
	var err error
	if h.Manager, err = volume.Open(h.t.Context(), h.o); err != nil {
		h.t.Fatal(err)
	}
}

// clear unmounts the volumes that a test has left mounted.
func (h *fixture) clear() {
	found, err := filepath.Glob(filepath.Join(h.dir, "*", "at"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, at := range found {
		for unix.Unmount(at, unix.MNT_DETACH) == nil {
		}
	}
}

func (h *fixture) create(spec engi.VolumeSpec) engi.Volume {
	h.t.Helper()
	v, err := h.Create(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

func (h *fixture) files(name string) engi.VolumeFiles {
	h.t.Helper()
	f, err := h.Files(h.t.Context(), engi.Everyone, name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

func (h *fixture) mount(name string, holder engi.SandboxID) string {
	h.t.Helper()
	_, source, err := h.Mount(h.t.Context(), engi.Everyone, name, holder)
	if err != nil {
		h.t.Fatal(err)
	}
	return source
}

func (h *fixture) mounted(v engi.Volume) bool {
	var here, above unix.Stat_t
	at := filepath.Join(h.dir, string(v.ID), "at")
	if unix.Stat(at, &here) != nil || unix.Stat(filepath.Dir(at), &above) != nil {
		return false
	}
	return here.Dev != above.Dev
}

func write(t *testing.T, f engi.VolumeFiles, name, text string) {
	t.Helper()
	if _, err := f.Write(t.Context(), name, strings.NewReader(text), engi.FileAttr{}); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, f engi.VolumeFiles, name string) string {
	t.Helper()
	r, err := f.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func wantKind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func run(t *testing.T, m *volume.Manager) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAVolumeOutlivesItsSandboxes(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		v := h.create(engi.VolumeSpec{Owner: "ann", Name: "data"})
		if v.Capacity != 32<<20 || v.Holder != "" || !v.Expires.IsZero() || v.Used != 0 {
			t.Errorf("%+v", v)
		}
		first, second := engi.NewSandboxID(), engi.NewSandboxID()
		at := h.mount("data", first)
		st, err := os.Stat(at)
		if err != nil || st.Mode().Perm() != 0o777 {
			t.Errorf("what sandboxes see: %v, %v", st.Mode(), err)
		}
		if err := os.WriteFile(filepath.Join(at, "f"), bytes.Repeat([]byte("x"), 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, err = h.Mount(t.Context(), "ann", string(v.ID), second)
		wantKind(t, err, engi.Conflict)
		if !strings.Contains(fmt.Sprint(err), string(first)) {
			t.Errorf("%v does not name %s", err, first)
		}
		wantKind(t, h.Remove(t.Context(), "ann", "data"), engi.Conflict)
		if again := h.mount("data", first); again != at {
			t.Errorf("the same holder gets %s, before %s", again, at)
		}
		if holders, err := h.Holders(t.Context()); err != nil || !cmp.Equal(holders, []engi.SandboxID{first}) {
			t.Errorf("holders %v, %v", holders, err)
		}
		if got, err := h.Get(t.Context(), "ann", "data"); err != nil || got.Holder != first {
			t.Errorf("%+v, %v", got, err)
		}
		if err := h.Unmount(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := h.Unmount(t.Context(), first); err != nil {
			t.Errorf("again: %v", err)
		}
		if h.mounted(v) {
			t.Error("it is mounted although nobody has it")
		}
		got, err := h.Get(t.Context(), "ann", "data")
		if err != nil || got.Holder != "" || got.Used < 1<<20 || got.Used > 2<<20 || got.Accessed.Before(v.Accessed) {
			t.Errorf("%+v, %v", got, err)
		}
		at = h.mount("data", second)
		if data, err := os.ReadFile(filepath.Join(at, "f")); err != nil || len(data) != 1<<20 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		if err := h.Unmount(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		if err := h.Remove(t.Context(), "ann", "data"); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(h.dir); err != nil || len(left) != 0 {
			t.Errorf("left %v, %v", left, err)
		}
		h.create(engi.VolumeSpec{Owner: "ann", Name: "data"})
	})
}

func TestOwnersSeeTheirOwn(t *testing.T) {
	h := open(t, volume.Options{Plain: true})
	v := h.create(engi.VolumeSpec{Owner: "ann", Name: "x"})
	_, err := h.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: "x"})
	wantKind(t, err, engi.Conflict)
	h.create(engi.VolumeSpec{Owner: "bob", Name: "x"})
	h.create(engi.VolumeSpec{Owner: "ann", Name: "a"})
	_, err = h.Get(t.Context(), "bob", string(v.ID))
	wantKind(t, err, engi.NotFound)
	_, _, err = h.Mount(t.Context(), "bob", string(v.ID), engi.NewSandboxID())
	wantKind(t, err, engi.NotFound)
	_, err = h.Files(t.Context(), "bob", string(v.ID))
	wantKind(t, err, engi.NotFound)
	wantKind(t, h.Remove(t.Context(), "bob", string(v.ID)), engi.NotFound)
	_, err = h.Get(t.Context(), engi.Everyone, "x")
	wantKind(t, err, engi.Conflict)
	list, err := h.List(t.Context(), "ann", engi.Paging{})
	if err != nil || len(list) != 2 || list[0].Name != "a" || list[1].ID != v.ID {
		t.Errorf("%v, %v", list, err)
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	h := open(t, volume.Options{Plain: true})
	for _, spec := range []engi.VolumeSpec{
		{Name: ""}, {Name: "a/b"}, {Name: ".."}, {Name: "a b"}, {Name: string(engi.NewVolumeID())}, {Name: strings.Repeat("x", 129)},
		{Name: "x", Capacity: -1}, {Name: "x", Capacity: 1 << 10}, {Name: "x", Capacity: 1 << 60}, {Name: "x", TTL: -1},
	} {
		_, err := h.Create(t.Context(), spec)
		wantKind(t, err, engi.Invalid)
	}
	_, err := h.Create(t.Context(), engi.VolumeSpec{Name: "x", Capacity: 10 << 40})
	wantKind(t, err, engi.Exhausted) // more bytes than any disk has
	if left, err := os.ReadDir(h.dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestQuotas(t *testing.T) {
	others, stored := int64(0), map[engi.Owner]int64{}
	h := open(t, volume.Options{
		Plain: true,
		Quota: func(o engi.Owner) engi.Quota {
			return map[engi.Owner]engi.Quota{"ann": {Volumes: 2}}[o]
		},
		Book: func(_ context.Context, o engi.Owner, capacity int64) (func(func() error) error, func(), error) {
			if o == "bob" && others+stored[o]+capacity > 100<<20 {
				return nil, nil, engi.Errorf(engi.Exhausted, "too much")
			}
			return func(put func() error) error {
				stored[o] += capacity
				return put()
			}, func() {}, nil
		},
	})
	h.create(engi.VolumeSpec{Owner: "ann", Name: "a"})
	h.create(engi.VolumeSpec{Owner: "ann", Name: "b"})
	_, err := h.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: "c"})
	wantKind(t, err, engi.Exhausted)
	h.create(engi.VolumeSpec{Owner: "bob", Name: "a", Capacity: 60 << 20})
	_, err = h.Create(t.Context(), engi.VolumeSpec{Owner: "bob", Name: "b", Capacity: 60 << 20})
	wantKind(t, err, engi.Exhausted)
	others = 30 << 20
	_, err = h.Create(t.Context(), engi.VolumeSpec{Owner: "bob", Name: "b", Capacity: 30 << 20})
	wantKind(t, err, engi.Exhausted)
	others = 0
	h.create(engi.VolumeSpec{Owner: "bob", Name: "b", Capacity: 30 << 20})
	h.create(engi.VolumeSpec{Owner: "eve", Name: "a"})
}

// TestGrowthIsKeptInMind compares the remaining growth of volumes, which is kept from one
// creation to the next, with measured values, while they are used.
func TestGrowthIsKeptInMind(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		after := func(what string) int64 {
			t.Helper()
			told, is, err := h.Growth(t.Context())
			if told != is || err != nil {
				t.Errorf("after %s: %d, but it is %d; %v", what, told, is, err)
			}
			return told
		}
		h.create(engi.VolumeSpec{Name: "a"})
		h.create(engi.VolumeSpec{Name: "b", Capacity: 64 << 20})
		empty := after("two were created")
		holder := engi.NewSandboxID()
		source := h.mount("a", holder)
		if err := os.WriteFile(filepath.Join(source, "f"), bytes.Repeat([]byte("x"), 8<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		after("one was written to")
		if err := h.Unmount(t.Context(), holder); err != nil {
			t.Fatal(err)
		}
		if full := after("it was released"); full > empty-8<<20 {
			t.Errorf("%d of %d are still promised after 8 MiB were written", full, empty)
		}
		f := h.files("b")
		write(t, f, "/g", "some text")
		f.Close()
		after("another was written to")
		h.again()
		after("a restart")
		if err := h.Remove(t.Context(), engi.Everyone, "a"); err != nil {
			t.Fatal(err)
		}
		after("a removal")
		if err := h.Remove(t.Context(), engi.Everyone, "b"); err != nil {
			t.Fatal(err)
		}
		if left := after("all were removed"); left != 0 {
			t.Errorf("%d bytes are promised to no volume", left)
		}
	})
}

func TestCapacityIsEnforced(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		h.create(engi.VolumeSpec{Name: "small", Capacity: 16 << 20})
		f := h.files("small")
		write(t, f, "/kept", "kept")
		_, err := f.Write(t.Context(), "/kept", io.LimitReader(endless{}, 64<<20), engi.FileAttr{})
		wantKind(t, err, engi.Exhausted)
		if engi.RemedyOf(err) == "" || !strings.Contains(err.Error(), "small") {
			t.Errorf("%v: %s", err, engi.RemedyOf(err))
		}
		if got := read(t, f, "/kept"); got != "kept" {
			t.Errorf("the old content is %.20q", got)
		}
		write(t, f, "/after", "there is room again")
		list, err := f.List(t.Context(), "/", 2)
		if err != nil || len(list) != 2 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

func TestTheKernelEnforcesCapacityInside(t *testing.T) {
	h := open(t, volume.Options{})
	if why := h.NotEnforced(); len(why) > 0 {
		lacking(t, why[0])
	}
	v := h.create(engi.VolumeSpec{Name: "small", Capacity: 16 << 20})
	at := h.mount("small", engi.NewSandboxID())
	err := os.WriteFile(filepath.Join(at, "big"), make([]byte, 32<<20), 0o644)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("32 MiB into 16: %v", err)
	}
	f := h.files("small") // while the sandbox has it
	if _, err := f.Write(t.Context(), "/more", io.LimitReader(endless{}, 1<<20), engi.FileAttr{}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("from outside: %v", err)
	}
	if err := f.Remove(t.Context(), "/big"); err != nil {
		t.Fatal(err)
	}
	// Deleted blocks are freed on the node's disk.
	if err := unix.Access(at, unix.F_OK); err != nil {
		t.Fatal(err)
	}
	eventually(t, "blocks are freed", func() bool {
		var st unix.Stat_t
		unix.Sync()
		return unix.Stat(filepath.Join(h.dir, string(v.ID), "image"), &st) == nil && st.Blocks*512 < 12<<20
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAfterAKillWithASandboxAlive(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		h.create(engi.VolumeSpec{Name: "x"})
		holder := engi.NewSandboxID()
		at := h.mount("x", holder)
		if err := os.WriteFile(filepath.Join(at, "f"), []byte("kept"), 0o644); err != nil {
			t.Fatal(err)
		}
		open, err := os.Open(filepath.Join(at, "f")) // like a sandbox that keeps running
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		h.again()
		if holders, err := h.Holders(t.Context()); err != nil || len(holders) != 1 || holders[0] != holder {
			t.Errorf("holders %v, %v", holders, err)
		}
		if h.mount("x", holder) != at {
			t.Error("another place")
		}
		if got := read(t, h.files("x"), "/f"); got != "kept" {
			t.Errorf("read %q", got)
		}
		wantKind(t, h.Remove(t.Context(), engi.Everyone, "x"), engi.Conflict)
	})
}

func TestAfterTheMachineWentDown(t *testing.T) {
	h := open(t, volume.Options{})
	if why := h.NotEnforced(); len(why) > 0 {
		lacking(t, why[0])
	}
	v := h.create(engi.VolumeSpec{Name: "x"})
	holder := engi.NewSandboxID()
	at := h.mount("x", holder)
	if err := os.WriteFile(filepath.Join(at, "f"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.clear() // a reboot removes all mounts
	h.again()
	if h.mounted(v) {
		t.Fatal("it is mounted already")
	}
	if data, err := os.ReadFile(filepath.Join(h.mount("x", holder), "f")); err != nil || string(data) != "kept" {
		t.Errorf("%q, %v", data, err)
	}
	// A daemon that restarts when no sandbox has the volume any more.
	if err := h.store.Pass(t.Context(), v.ID, holder, "", time.Now()); err != nil {
		t.Fatal(err)
	}
	h.again()
	if h.mounted(v) {
		t.Error("a mount nobody needs is left")
	}
}

func TestTwoMountsShareOneDevice(t *testing.T) {
	h := open(t, volume.Options{})
	if why := h.NotEnforced(); len(why) > 0 {
		lacking(t, why[0])
	}
	v := h.create(engi.VolumeSpec{Name: "x"})
	holder := engi.NewSandboxID()
	at := h.mount("x", holder)
	// A sandbox that outlives the mount has it open.
	f, err := os.Create(filepath.Join(at, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Unmount(filepath.Join(h.dir, string(v.ID), "at"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	h.again()
	h.mount("x", holder)
	if _, err := f.WriteString("through the old mount"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(at, "f")); err != nil || string(data) != "through the old mount" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestARemovedVolumeGivesItsSpaceBackAtOnce(t *testing.T) {
	h := open(t, volume.Options{})
	if why := h.NotEnforced(); len(why) > 0 {
		lacking(t, why[0])
	}
	v := h.create(engi.VolumeSpec{Name: "x"})
	holder := engi.NewSandboxID()
	at := h.mount("x", holder)
	if err := os.WriteFile(filepath.Join(at, "big"), bytes.Repeat([]byte("x"), 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	image, err := os.Open(filepath.Join(h.dir, string(v.ID), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	elsewhere, err := os.Open(at) // as other sandboxes' namespaces keep the mount
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	if err := h.Unmount(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(t.Context(), engi.Everyone, "x"); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil || st.Nlink != 0 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes, %d names, %v", st.Blocks*512, st.Nlink, err)
	}
}

func TestUnusedVolumesExpire(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		held := h.create(engi.VolumeSpec{Name: "held", TTL: time.Millisecond})
		h.mount("held", engi.NewSandboxID())
		h.create(engi.VolumeSpec{Name: "gone", TTL: time.Millisecond})
		kept := h.create(engi.VolumeSpec{Name: "kept", TTL: time.Hour})
		if !kept.Expires.Equal(kept.Accessed.Add(time.Hour)) {
			t.Errorf("%+v", kept)
		}
		h.create(engi.VolumeSpec{Name: "ever"})
		time.Sleep(5 * time.Millisecond)
		run(t, h.Manager)
		eventually(t, "it goes", func() bool {
			_, err := h.Get(t.Context(), engi.Everyone, "gone")
			left, e := os.ReadDir(h.dir)
			return engi.Is(err, engi.NotFound) && e == nil && len(left) == 3
		})
		for _, name := range []string{"held", "kept", "ever"} {
			if _, err := h.Get(t.Context(), engi.Everyone, name); err != nil {
				t.Error(err)
			}
		}
		if v, err := h.Get(t.Context(), engi.Everyone, "held"); err != nil || v.ID != held.ID {
			t.Errorf("%v, %v", v, err)
		}
	})
}

// A failingStore blocks forever before or after its nth change, like a process that is
// killed there.
type failingStore struct {
	volume.Store
	calls atomic.Int64
	at    int64
	after bool
	dead  chan struct{}
	once  sync.Once
}

func (d *failingStore) around(f func() error) error {
	n := d.calls.Add(1)
	if n > d.at || n == d.at && !d.after {
		d.die()
	}
	err := f()
	if n == d.at {
		d.die()
	}
	return err
}

func (d *failingStore) die() {
	d.once.Do(func() { close(d.dead) })
	select {} // until the test process ends
}

func (d *failingStore) Put(ctx context.Context, r volume.Record) error {
	return d.around(func() error { return d.Store.Put(ctx, r) })
}

func (d *failingStore) Pass(ctx context.Context, id engi.VolumeID, from, to engi.SandboxID, at time.Time) error {
	return d.around(func() error { return d.Store.Pass(ctx, id, from, to, at) })
}

func (d *failingStore) Remove(ctx context.Context, id engi.VolumeID, before time.Time) error {
	return d.around(func() error { return d.Store.Remove(ctx, id, before) })
}

func (d *failingStore) Forget(ctx context.Context, id engi.VolumeID) error {
	return d.around(func() error { return d.Store.Forget(ctx, id) })
}

func TestKilledAnywhere(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		for at := int64(1); at <= 5; at++ {
			for _, after := range []bool{false, true} {
				h := open(t, volume.Options{Plain: h.o.Plain})
				d := &failingStore{Store: h.store, at: at, after: after, dead: make(chan struct{})}
				h.o.Store = d
				h.again()
				m := h.Manager
				holder := engi.NewSandboxID()
				finished := make(chan error, 1)
				wrote := make(chan struct{}, 1)
				go func() {
					finished <- func() error {
						ctx := context.Background()
						if _, err := m.Create(ctx, engi.VolumeSpec{Name: "x", Content: fstest.MapFS{"begin/with": {Data: []byte("this")}}}); err != nil {
							return err
						}
						_, source, err := m.Mount(ctx, engi.Everyone, "x", holder)
						if err != nil {
							return err
						}
						if err := os.WriteFile(filepath.Join(source, "f"), []byte("all of it"), 0o644); err != nil {
							return err
						}
						wrote <- struct{}{}
						if err := m.Unmount(ctx, holder); err != nil {
							return err
						}
						return m.Remove(ctx, engi.Everyone, "x")
					}()
				}()
				select {
				case <-d.dead:
				case err := <-finished:
					t.Fatalf("call %d: it did not die: %v", at, err)
				}
				h.o.Store = h.store
				h.again()
				holders, err := h.Holders(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, gone := range holders { // in the same way as fleet for sandboxes that have ended
					if err := h.Unmount(t.Context(), gone); err != nil {
						t.Error(err)
					}
				}
				if v, err := h.Get(t.Context(), engi.Everyone, "x"); err == nil {
					f := h.files("x")
					if got := read(t, f, "/begin/with"); got != "this" {
						t.Errorf("call %d: it begins with %q", at, got)
					}
					if len(wrote) > 0 {
						if got := read(t, f, "/f"); got != "all of it" {
							t.Errorf("call %d: %q", at, got)
						}
					}
					write(t, f, "/g", "more")
					f.Close()
					if h.mounted(v) {
						t.Errorf("call %d: it is mounted although nobody has it", at)
					}
					if err := h.Remove(t.Context(), engi.Everyone, "x"); err != nil {
						t.Errorf("call %d: %v", at, err)
					}
				} else if !engi.Is(err, engi.NotFound) {
					t.Error(err)
				}
				left, err := os.ReadDir(h.dir)
				removed, e := h.store.List(t.Context(), engi.Everyone, volume.Filter{Removed: true})
				if err != nil || e != nil || len(left) > 0 || len(removed) > 0 {
					t.Errorf("call %d, after %v: left %v and records %v; %v, %v", at, after, left, removed, err, e)
				}
			}
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		h.create(engi.VolumeSpec{Name: "x"})
		var all sync.WaitGroup
		var winners atomic.Int64
		for range 8 {
			all.Go(func() {
				holder := engi.NewSandboxID()
				for range 5 {
					_, at, err := h.Mount(t.Context(), engi.Everyone, "x", holder)
					if err != nil {
						if !engi.Is(err, engi.Conflict) {
							t.Error(err)
						}
						time.Sleep(time.Millisecond)
						continue
					}
					if winners.Add(1) > 1 {
						t.Error("two have it")
					}
					if err := os.WriteFile(filepath.Join(at, "f"), []byte(holder), 0o644); err != nil {
						t.Error(err)
					}
					winners.Add(-1)
					if err := h.Unmount(t.Context(), holder); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 3 {
			all.Go(func() {
				for range 5 {
					f, err := h.Files(t.Context(), engi.Everyone, "x")
					if err != nil {
						t.Error(err)
						continue
					}
					if _, err := f.Write(t.Context(), "/g", strings.NewReader("outside"), engi.FileAttr{}); err != nil {
						t.Error(err)
					}
					f.Close()
				}
			})
		}
		all.Wait()
	})
}

// TestRemovalsForgetPromises removes volumes while others are created, which measures
// all volumes: no growth stays promised to a deleted volume.
func TestRemovalsForgetPromises(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				name, holder := fmt.Sprint("v", i), engi.NewSandboxID()
				for range 5 {
					if _, err := h.Create(t.Context(), engi.VolumeSpec{Name: name, Capacity: 16 << 20}); err != nil {
						t.Error(err)
						return
					}
					if _, _, err := h.Mount(t.Context(), engi.Everyone, name, holder); err != nil {
						t.Error(err)
					}
					// A sandbox's end and its removal may both release the sandbox's volumes.
					ended := make(chan error)
					go func() { ended <- h.Unmount(t.Context(), holder) }()
					if err := h.Unmount(t.Context(), holder); err != nil {
						t.Error(err)
					}
					if err := h.Remove(t.Context(), engi.Everyone, name); err != nil {
						t.Error(err)
					}
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if left, _, err := h.Growth(t.Context()); left != 0 || err != nil {
			t.Errorf("%d bytes are promised to no volume; %v", left, err)
		}
	})
}

func perm(m fs.FileMode) *fs.FileMode { return &m }

// TestUnmount removes the directory of a manager that no longer exists.
func TestUnmount(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		h.create(engi.VolumeSpec{Name: "x"})
		for i := range 3 {
			f, err := h.Files(t.Context(), engi.Everyone, "x")
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				write(t, f, "/f", "kept")
			} else if got := read(t, f, "/f"); got != "kept" {
				t.Errorf("%q", got)
			}
			f.Close()
			if err := volume.Unmount(h.dir); err != nil {
				t.Fatal(err)
			}
			h.again()
		}
	})
	h := open(t, volume.Options{})
	v := h.create(engi.VolumeSpec{Name: "y"})
	h.mount("y", "sbx_1")
	if err := volume.Unmount(h.dir); err != nil {
		t.Fatal(err)
	}
	if h.mounted(v) {
		t.Error("it is still mounted")
	}
	if err := os.RemoveAll(h.dir); err != nil {
		t.Error(err)
	}
	if err := volume.Unmount(h.dir); err != nil {
		t.Error(err)
	}
}

// TestContent creates volumes with initial files: all of them or none appear.
func TestContent(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		dir := t.TempDir()
		for name, mode := range map[string]fs.FileMode{"closed/inner/file": 0o640, "closed/empty": 0o600} {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(name, int(mode)-0o600)), mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("inner/file", filepath.Join(dir, "closed/link")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "closed"), 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(filepath.Join(dir, "closed"), 0o700) })
		root := os.Geteuid() == 0
		if root {
			for i, name := range []string{"closed", "closed/inner/file", "closed/link"} {
				if err := os.Lchown(filepath.Join(dir, name), 1000+i, 2000+i); err != nil {
					t.Fatal(err)
				}
			}
		}
		v := h.create(engi.VolumeSpec{Owner: "ann", Name: "data", Content: os.DirFS(dir)})
		if h.mounted(v) {
			t.Error("it is mounted although nobody has it")
		}
		at := h.mount("data", engi.NewSandboxID())
		for _, name := range []string{"closed", "closed/inner", "closed/inner/file", "closed/empty", "closed/link"} {
			want, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.Lstat(filepath.Join(at, name))
			if err != nil {
				t.Fatal(err)
			}
			a, b := want.Sys().(*syscall.Stat_t), got.Sys().(*syscall.Stat_t)
			if want.Mode() != got.Mode() || root && (a.Uid != b.Uid || a.Gid != b.Gid) || !want.IsDir() && want.Size() != got.Size() {
				t.Errorf("%s is %v of %d:%d with %d bytes, want %v of %d:%d with %d", name, got.Mode(), b.Uid, b.Gid, got.Size(), want.Mode(), a.Uid, a.Gid, want.Size())
			}
			if want.Mode().Type() != fs.ModeSymlink && !want.ModTime().Truncate(time.Second).Equal(got.ModTime().Truncate(time.Second)) {
				t.Errorf("%s is from %v, want %v", name, got.ModTime(), want.ModTime())
			}
		}
		if data, err := os.ReadFile(filepath.Join(at, "closed/link")); err != nil || string(data) != strings.Repeat("closed/inner/file", 0o040) {
			t.Errorf("the file has %q, %v", data, err)
		}

		if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			content fs.FS
			want    engi.Kind
		}{
			"with a pipe": {os.DirFS(dir), engi.Invalid},
			"too large":   {fstest.MapFS{"a": {Data: make([]byte, 40<<20)}}, engi.Exhausted},
			"unreadable":  {broken{fstest.MapFS{"a": {Data: []byte("a")}, "b": {Data: []byte("b")}}}, engi.Internal},
		} {
			_, err := h.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: "more", Content: c.content})
			wantKind(t, err, c.want)
			if left, err := os.ReadDir(h.dir); err != nil || len(left) != 1 {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
		}
		h.create(engi.VolumeSpec{Owner: "ann", Name: "more"})
	})
}

// A broken file system has a file that cannot be opened.
type broken struct{ fstest.MapFS }

func (b broken) Open(name string) (fs.File, error) {
	if name == "b" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	return b.MapFS.Open(name)
}

// TestCreationsDoNotWait creates volumes during the creation of others, which already count.
func TestCreationsDoNotWait(t *testing.T) {
	kinds(t, func(t *testing.T, h *fixture) {
		h.o.Quota = func(engi.Owner) engi.Quota { return engi.Quota{Volumes: 3} }
		h.again()
		slow := &slowFS{MapFS: fstest.MapFS{"a": {Data: []byte("a")}}, began: make(chan struct{}), end: make(chan struct{})}
		id := engi.NewVolumeID()
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := h.Create(t.Context(), engi.VolumeSpec{ID: id, Owner: "ann", Name: "slow", Content: slow}); err != nil {
				t.Error(err)
			}
		})
		<-slow.began
		h.create(engi.VolumeSpec{Owner: "bob", Name: "x"})
		h.create(engi.VolumeSpec{Owner: "ann", Name: "x"})
		_, err := h.Create(t.Context(), engi.VolumeSpec{ID: id, Owner: "ann", Name: "other"})
		wantKind(t, err, engi.Conflict)
		h.create(engi.VolumeSpec{Owner: "ann", Name: "y"})
		_, err = h.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: "z"})
		wantKind(t, err, engi.Exhausted)
		close(slow.end)
		first.Wait()
		_, err = h.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: "z"})
		wantKind(t, err, engi.Exhausted)
		f := h.files("slow")
		if got := read(t, f, "/a"); got != "a" {
			t.Errorf("it begins with %q", got)
		}
		f.Close()
		if err := h.Remove(t.Context(), "ann", "slow"); err != nil {
			t.Fatal(err)
		}
		h.create(engi.VolumeSpec{Owner: "ann", Name: "z"})
	})
}

// A slowFS has a file that is slow to read.
type slowFS struct {
	fstest.MapFS
	began, end chan struct{}
	once       sync.Once
}

func (s *slowFS) Open(name string) (fs.File, error) {
	if name == "a" {
		s.once.Do(func() { close(s.began) })
		<-s.end
	}
	return s.MapFS.Open(name)
}
