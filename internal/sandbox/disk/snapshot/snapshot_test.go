package snapshot_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/store"
)

func database(t *testing.T) *store.DB {
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
	return db
}

func open(t *testing.T, dir string, s snapshot.Store) *snapshot.Registry {
	t.Helper()
	r, err := snapshot.Open(t.Context(), snapshot.Options{Dir: dir, Store: s})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fill writes one file.
func fill(text string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "memory"), []byte(text), 0o600) }
}

func create(t *testing.T, r *snapshot.Registry, s engi.Snapshot) engi.Snapshot {
	t.Helper()
	got, err := r.Create(t.Context(), s, fill("content of "+s.Name))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantKind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// entries returns the names in a directory.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// run starts the registry's background work until the test ends.
func run(t *testing.T, r *snapshot.Registry) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestCreateRecordsWhatWasFilled(t *testing.T) {
	dir := t.TempDir()
	db := database(t)
	r := open(t, dir, store.Snapshots(db))
	want := engi.Snapshot{
		Owner: "ann", Name: "team/app:v1", Sandbox: engi.NewSandboxID(), Template: "base", Digest: "sha256:aa", Tier: engi.TierGVisor,
		Size: engi.Size{VCPUs: 0.5, Memory: 1 << 30}, Env: map[string]string{"A": "1"}, Disk: true,
	}
	got := create(t, r, want)
	want.ID, want.Created, want.Used, want.Bytes = got.ID, got.Created, got.Used, got.Bytes
	if d := cmp.Diff(want, got); d != "" || got.Bytes < 4096 || got.Created.IsZero() {
		t.Errorf("created %+v: %s", got, d)
	}
	r = open(t, dir, store.Snapshots(db)) // after a restart
	for _, by := range []string{string(got.ID), got.Name} {
		for _, viewer := range []engi.Viewer{"ann", engi.Everyone} {
			again, err := r.Get(t.Context(), viewer, by)
			if d := cmp.Diff(got, again); err != nil || d != "" {
				t.Errorf("%q by %s: %v %s", viewer, by, err, d)
			}
		}
		for _, viewer := range []engi.Viewer{"bob", ""} {
			_, err := r.Get(t.Context(), viewer, by)
			wantKind(t, err, engi.NotFound)
		}
		wantKind(t, r.Remove(t.Context(), "bob", by), engi.NotFound)
		_, _, _, err := r.Use(t.Context(), "bob", by)
		wantKind(t, err, engi.NotFound)
	}
	if list, err := r.List(t.Context(), "bob", "", engi.Paging{}); err != nil || len(list) != 0 {
		t.Errorf("bob sees %v, %v", list, err)
	}
	digests, err := r.Digests(t.Context())
	if d := cmp.Diff([]string{"sha256:aa"}, digests); err != nil || d != "" {
		t.Errorf("digests: %v %s", err, d)
	}
}

func TestListIsNewestFirstAndOfOneSandbox(t *testing.T) {
	r := open(t, t.TempDir(), store.Snapshots(database(t)))
	box := engi.NewSandboxID()
	a := create(t, r, engi.Snapshot{Owner: "ann", Sandbox: box})
	b := create(t, r, engi.Snapshot{Owner: "ann", Sandbox: engi.NewSandboxID()})
	c := create(t, r, engi.Snapshot{Owner: "ann", Sandbox: box})
	all, err := r.List(t.Context(), "ann", "", engi.Paging{})
	if err != nil || len(all) != 3 || all[0].ID != c.ID || all[1].ID != b.ID {
		t.Errorf("all: %v, %v", all, err)
	}
	one, err := r.List(t.Context(), engi.Everyone, box, engi.Paging{})
	if err != nil || len(one) != 2 || one[0].ID != c.ID || one[1].ID != a.ID {
		t.Errorf("of one sandbox: %v, %v", one, err)
	}
	n, bytes, err := r.Usage(t.Context(), "ann")
	if err != nil || n != 3 || bytes != a.Bytes+b.Bytes+c.Bytes {
		t.Errorf("usage %d, %d, %v", n, bytes, err)
	}
}

func TestANewerSnapshotTakesTheName(t *testing.T) {
	r := open(t, t.TempDir(), store.Snapshots(database(t)))
	older := create(t, r, engi.Snapshot{Owner: "ann", Name: "x"})
	other := create(t, r, engi.Snapshot{Owner: "bob", Name: "x"})
	newer := create(t, r, engi.Snapshot{Owner: "ann", Name: "x"})
	if s, err := r.Get(t.Context(), "ann", "x"); err != nil || s.ID != newer.ID {
		t.Errorf("x is %v, %v", s.ID, err)
	}
	if s, err := r.Get(t.Context(), "ann", string(older.ID)); err != nil || s.Name != "" {
		t.Errorf("the older one: %+v, %v", s, err)
	}
	if s, err := r.Get(t.Context(), "bob", "x"); err != nil || s.ID != other.ID {
		t.Errorf("bob's: %+v, %v", s, err)
	}
	_, err := r.Get(t.Context(), engi.Everyone, "x")
	wantKind(t, err, engi.Conflict)
}

func TestBadNamesAreRefused(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, store.Snapshots(database(t)))
	for _, name := range []string{" x", "x\n", "-x", "../x", "x y", string(engi.NewSnapshotID()), string(make([]byte, 200))} {
		_, err := r.Create(t.Context(), engi.Snapshot{Name: name}, fill(""))
		wantKind(t, err, engi.Invalid)
	}
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	_, err := r.Get(t.Context(), engi.Everyone, "")
	wantKind(t, err, engi.NotFound)
}

func TestAFailedFillLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, store.Snapshots(database(t)))
	_, err := r.Create(t.Context(), engi.Snapshot{Name: "x"}, func(dir string) error {
		if err := fill("half")(dir); err != nil {
			t.Fatal(err)
		}
		return engi.Errorf(engi.Exhausted, "full")
	})
	wantKind(t, err, engi.Exhausted)
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	_, err = r.Get(t.Context(), engi.Everyone, "x")
	wantKind(t, err, engi.NotFound)
}

func TestFilesStayWhileUsed(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, store.Snapshots(database(t)))
	run(t, r)
	s := create(t, r, engi.Snapshot{Owner: "ann", Name: "x", Digest: "sha256:aa"})
	_, at, release, err := r.Use(t.Context(), "ann", "x")
	if err != nil {
		t.Fatal(err)
	}
	_, _, second, err := r.Use(t.Context(), engi.Everyone, string(s.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), "ann", "x"); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get(t.Context(), "ann", string(s.ID))
	wantKind(t, err, engi.NotFound)
	_, _, _, err = r.Use(t.Context(), "ann", string(s.ID))
	wantKind(t, err, engi.NotFound)
	// The node itself can use it again, as after a restart.
	_, _, third, err := r.Use(t.Context(), engi.Everyone, string(s.ID))
	if err != nil {
		t.Fatal(err)
	}
	if digests, err := r.Digests(t.Context()); err != nil || len(digests) != 1 {
		t.Errorf("its template is needed for longer: %v, %v", digests, err)
	}
	release()
	release()
	third()
	if data, err := os.ReadFile(filepath.Join(at, "memory")); err != nil || string(data) != "content of x" {
		t.Errorf("while it is used: %q, %v", data, err)
	}
	create(t, r, engi.Snapshot{Owner: "ann", Name: "x"}) // the name is free
	second()
	eventually(t, "the files go", func() bool { return len(entries(t, dir)) == 1 })
	eventually(t, "the record goes", func() bool {
		_, _, _, err := r.Use(t.Context(), engi.Everyone, string(s.ID))
		return engi.Is(err, engi.NotFound)
	})
}

func TestExpiredOnesGo(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, store.Snapshots(database(t)))
	s := create(t, r, engi.Snapshot{Name: "x", Expires: time.Now().Add(-time.Millisecond)})
	keep := create(t, r, engi.Snapshot{Name: "y", Expires: time.Now().Add(time.Hour)})
	_, err := r.Get(t.Context(), engi.Everyone, string(s.ID))
	wantKind(t, err, engi.NotFound)
	_, _, _, err = r.Use(t.Context(), engi.Everyone, "x")
	wantKind(t, err, engi.NotFound)
	run(t, r)
	eventually(t, "the files go", func() bool { return len(entries(t, dir)) == 1 })
	if got, err := r.Get(t.Context(), engi.Everyone, "y"); err != nil || got.ID != keep.ID {
		t.Errorf("the other: %v, %v", got, err)
	}
}

func TestTemplatesAreHeldBeforeTheyAreOnRecord(t *testing.T) {
	db := database(t)
	held := map[string]string{}
	r, err := snapshot.Open(t.Context(), snapshot.Options{Dir: t.TempDir(), Store: store.Snapshots(db), Hold: func(ctx context.Context, digest, path string) error {
		if digest == "sha256:gone" {
			return engi.Errorf(engi.NotFound, "no such build")
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		held[digest] = path
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := create(t, r, engi.Snapshot{Digest: "sha256:aa"})
	if filepath.Base(held["sha256:aa"]) != string(s.ID) {
		t.Errorf("held %v", held)
	}
	_, err = r.Create(t.Context(), engi.Snapshot{Digest: "sha256:gone"}, fill(""))
	wantKind(t, err, engi.NotFound)
}

// A failingStore blocks forever before or after its nth call, like a process that is
// killed there.
type failingStore struct {
	snapshot.Store
	calls atomic.Int64
	at    int64
	after bool // block after the call instead of before
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

func (d *failingStore) Put(ctx context.Context, s engi.Snapshot) error {
	return d.around(func() error { return d.Store.Put(ctx, s) })
}

func (d *failingStore) Remove(ctx context.Context, id engi.SnapshotID) error {
	return d.around(func() error { return d.Store.Remove(ctx, id) })
}

func (d *failingStore) Forget(ctx context.Context, id engi.SnapshotID) error {
	return d.around(func() error { return d.Store.Forget(ctx, id) })
}

func TestKilledAnywhere(t *testing.T) {
	for at := int64(1); at <= 3; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after %v", at, after), func(t *testing.T) {
				dir := t.TempDir()
				real := store.Snapshots(database(t))
				d := &failingStore{Store: real, at: at, after: after, dead: make(chan struct{})}
				r := open(t, dir, d)
				ids := make(chan engi.SnapshotID, 1)
				finished := make(chan error, 1)
				go func() {
					s := engi.Snapshot{ID: engi.NewSnapshotID(), Name: "x"}
					ids <- s.ID
					_, err := r.Create(context.Background(), s, fill("all of it"))
					if err == nil {
						err = r.Remove(context.Background(), engi.Everyone, "x")
					}
					finished <- err
				}()
				id := <-ids
				select {
				case <-d.dead:
				case err := <-finished:
					t.Fatalf("it did not die: %v", err)
				}
				r = open(t, dir, real)
				run(t, r)
				if s, _, _, err := r.Use(t.Context(), "ann", string(id)); err == nil {
					t.Fatalf("ann uses what is not hers: %v", s)
				}
				if _, err := r.Get(t.Context(), engi.Everyone, string(id)); err == nil {
					_, at, release, err := r.Use(t.Context(), engi.Everyone, "x")
					if err != nil {
						t.Fatal(err)
					}
					if data, err := os.ReadFile(filepath.Join(at, "memory")); err != nil || string(data) != "all of it" {
						t.Errorf("on record with %q, %v", data, err)
					}
					release()
					if err := r.Remove(t.Context(), engi.Everyone, "x"); err != nil {
						t.Error(err)
					}
				}
				eventually(t, "nothing is left", func() bool {
					removed, err := real.List(t.Context(), engi.Everyone, snapshot.Filter{Removed: true})
					return err == nil && len(removed) == 0 && len(entries(t, dir)) == 0
				})
				create(t, r, engi.Snapshot{Name: "x"})
			})
		}
	}
}

func TestKilledWhileFilling(t *testing.T) {
	dir := t.TempDir()
	s := store.Snapshots(database(t))
	kept := create(t, open(t, dir, s), engi.Snapshot{Name: "kept"})
	// Leftovers of a killed process.
	half := filepath.Join(dir, string(engi.NewSnapshotID()))
	if err := os.MkdirAll(filepath.Join(half, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := fill("half")(half); err != nil {
		t.Fatal(err)
	}
	open(t, dir, s)
	if d := cmp.Diff([]string{string(kept.ID)}, entries(t, dir)); d != "" {
		t.Error(d)
	}
}

func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, store.Snapshots(database(t)))
	run(t, r)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 10 {
				name := fmt.Sprint("n", i%4)
				if _, err := r.Create(t.Context(), engi.Snapshot{Name: name}, fill(name)); err != nil {
					t.Error(err)
				}
				_, at, release, err := r.Use(t.Context(), engi.Everyone, name)
				if err != nil {
					if !engi.Is(err, engi.NotFound) {
						t.Error(err)
					}
					continue
				}
				if err := engi.Ignore(r.Remove(t.Context(), engi.Everyone, name), engi.NotFound); err != nil {
					t.Error(err)
				}
				if data, err := os.ReadFile(filepath.Join(at, "memory")); err != nil || string(data) != name {
					t.Errorf("in use: %q, %v", data, err)
				}
				release()
			}
		})
	}
	all.Wait()
	left, err := r.List(t.Context(), engi.Everyone, "", engi.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range left {
		if err := r.Remove(t.Context(), engi.Everyone, string(s.ID)); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all files go", func() bool { return len(entries(t, dir)) == 0 })
}
