package fleet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/store"
)

// openSnapshots opens snapshots for a test.
func openSnapshots(t testing.TB) *snapshot.Registry {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	r, err := snapshot.Open(t.Context(), snapshot.Options{Dir: filepath.Join(t.TempDir(), "snapshots"), Store: store.Snapshots(db)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// volumes is a fake fleet.VolumeStore.
type volumes struct {
	dir string

	mu     sync.Mutex
	holder map[string]engi.SandboxID
}

func (v *volumes) Mount(ctx context.Context, viewer engi.Viewer, name string, holder engi.SandboxID) (engi.Volume, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	dir := filepath.Join(v.dir, string(viewer)+"-"+name)
	if _, err := os.Stat(dir); err != nil {
		return engi.Volume{}, "", engi.Errorf(engi.NotFound, "no volume %s", name)
	}
	if have := v.holder[dir]; have != "" && have != holder {
		return engi.Volume{}, "", engi.Errorf(engi.Conflict, "sandbox %s has volume %s", have, name)
	}
	v.holder[dir] = holder
	return engi.Volume{Name: name, Holder: holder}, dir, nil
}

func (v *volumes) Unmount(ctx context.Context, holder engi.SandboxID) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for dir, id := range v.holder {
		if id == holder {
			delete(v.holder, dir)
		}
	}
	return nil
}

func (v *volumes) Holders(ctx context.Context) (all []engi.SandboxID, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, id := range v.holder {
		all = append(all, id)
	}
	return all, nil
}

// TestSnapshotQuota creates more snapshots at once than an owner may have.
func TestSnapshotQuota(t *testing.T) {
	for name, q := range map[string]engi.Quota{"snapshots": {Snapshots: 3}, "disk": {Disk: 4*(512<<20) + 1}} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(func(o *fleet.Options) {
				o.Snapshots = openSnapshots(t)
				o.Quota = func(engi.Owner) engi.Quota { return q }
			})
			var made atomic.Int32
			var wg sync.WaitGroup
			var all []engi.Sandbox
			for range 4 {
				all = append(all, n.create(engi.SandboxSpec{Size: engi.Size{Disk: 512 << 20}}))
			}
			for _, s := range all {
				for range 3 {
					wg.Go(func() {
						_, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{})
						if err == nil {
							made.Add(1)
						} else if !engi.Is(err, engi.Exhausted) {
							t.Error(err)
						}
					})
				}
			}
			wg.Wait()
			if want := map[string]int32{"snapshots": 3, "disk": 1}[name]; made.Load() != want {
				t.Errorf("%d snapshots were made, want %d", made.Load(), want)
			}
		})
	}
}

func TestSnapshots(t *testing.T) {
	for name, diskOnly := range map[string]bool{"memory": false, "disk only": true} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			snaps := openSnapshots(t)
			n := fx.start(func(o *fleet.Options) {
				o.Snapshots = snaps
				o.Quota = func(engi.Owner) engi.Quota { return engi.Quota{Snapshots: 3} }
			})
			s := n.create(engi.SandboxSpec{Env: map[string]string{"A": "1"}})
			n.mustRun(s.ID, "echo kept > file")
			snap, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{Name: "first", DiskOnly: diskOnly, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if snap.Owner != "alice" || snap.Sandbox != s.ID || snap.Digest != "d1" || snap.Disk != diskOnly || snap.Name != "first" || snap.Expires.IsZero() {
				t.Errorf("%+v", snap)
			}
			n.wantState(s.ID, engi.Running)
			n.mustRun(s.ID, "cat file; echo changed > file")
			_, err = n.Lifecycle().Snapshot(t.Context(), "bob", s.ID, engi.SnapshotSpec{})
			wantKind(t, "bob's snapshot of alice's", err, engi.NotFound)
			_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "bob", Snapshot: snap.ID})
			wantKind(t, "bob's start from alice's", err, engi.NotFound)
			named := engi.NewSandboxID()
			if c := n.create(engi.SandboxSpec{ID: named, Snapshot: snap.ID}); c.ID != named {
				t.Errorf("it is %s, and was to be %s", c.ID, named)
			}
			_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", ID: engi.NewSandboxID(), Template: "base"})
			wantKind(t, "an ID of one that is no copy", err, engi.Invalid)

			fx.fakes.Set(base(t, "d2")) // the template is rebuilt
			for range 2 {
				c := n.create(engi.SandboxSpec{Snapshot: snap.ID, Env: map[string]string{"B": "2"}})
				if c.Snapshot != snap.ID || c.Template != "base" || c.Digest != "d1" {
					t.Errorf("%+v", c)
				}
				if out := n.mustRun(c.ID, "cat file; echo $A $B; echo own > file"); out != "kept\n1 2\n" {
					t.Errorf("output %q", out)
				}
			}
			if out := n.mustRun(s.ID, "cat file"); out != "changed\n" {
				t.Errorf("output in the original: %q", out)
			}

			// Fork a paused sandbox, and a hibernated one.
			if err := n.Lifecycle().Pause(t.Context(), "alice", s.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{DiskOnly: diskOnly}); err != nil {
				t.Fatal(err)
			}
			n.wantState(s.ID, engi.Paused)
			n.hibernate(s.ID, diskOnly)
			hibernated, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{DiskOnly: diskOnly})
			if err != nil {
				t.Fatal(err)
			}
			n.wantState(s.ID, engi.Hibernated)
			if out := n.mustRun(n.create(engi.SandboxSpec{Snapshot: hibernated.ID}).ID, "cat file"); out != "changed\n" {
				t.Errorf("output in a copy of the hibernated one: %q", out)
			}
			_, err = n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{DiskOnly: diskOnly})
			wantKind(t, "a snapshot beyond the quota", err, engi.Exhausted)
			all, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 2})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				if f.Err != nil {
					t.Fatal(f.Err)
				}
				if out := n.mustRun(f.Sandbox.ID, "cat file"); out != "changed\n" {
					t.Errorf("output in a fork of the hibernated one: %q", out)
				}
			}
			n.resume(s.ID, false)
			if out := n.mustRun(s.ID, "cat file"); out != "changed\n" {
				t.Errorf("output in the original: %q", out)
			}
		})
	}
}

// TestSnapshotsKeepTheirTemplates restarts the node: templates that snapshots
// need are in use from the start, until the snapshots go.
func TestSnapshotsKeepTheirTemplates(t *testing.T) {
	fx := newFixture(t)
	snaps := openSnapshots(t)
	with := func(o *fleet.Options) { o.Snapshots = snaps }
	n := fx.start(with)
	s := n.create(engi.SandboxSpec{})
	snap, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
		t.Fatal(err)
	}
	if fx.fakes.Pins()["d1"] == 0 {
		t.Error("the template may go")
	}
	n.stop()
	n = fx.start(with)
	if fx.fakes.Pins()["d1"] == 0 {
		t.Error("after a restart the template may go")
	}
	if err := snaps.Remove(t.Context(), "alice", string(snap.ID)); err != nil {
		t.Fatal(err)
	}
	n.PinSnapshots(t.Context())
	if pins := fx.fakes.Pins(); len(pins) != 0 {
		t.Errorf("templates in use without need: %v", pins)
	}
}

// TestSnapshotOntoAnotherTemplate checks that the changes of a disk are applied to the
// requested template, which must be the owner's, and that memory can be restored on no other template.
func TestSnapshotOntoAnotherTemplate(t *testing.T) {
	fx := newFixture(t)
	newer := base(t, "d2")
	newer.Name = "newer"
	fx.fakes.Set(newer)
	hers := base(t, "d3")
	hers.Name, hers.Owner = "hers", "ann"
	fx.fakes.Set(hers)
	n := fx.start(func(o *fleet.Options) { o.Snapshots = openSnapshots(t) })
	s := n.create(engi.SandboxSpec{})
	n.mustRun(s.ID, "echo mine > mine")
	for _, disk := range []bool{true, false} {
		snap, err := n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{DiskOnly: disk})
		if err != nil {
			t.Fatal(err)
		}
		x, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Snapshot: snap.ID, Onto: "newer"})
		if !disk {
			wantKind(t, "memory on another template", err, engi.Unsupported)
			continue
		}
		if err != nil || x.Template != "newer" || x.Digest != newer.Digest {
			t.Fatalf("%+v, %v", x, err)
		}
		if out := n.mustRun(x.ID, "cat mine"); out != "mine\n" {
			t.Errorf("output %q", out)
		}
		_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Snapshot: snap.ID, Onto: "hers"})
		wantKind(t, "on somebody else's template", err, engi.NotFound)
	}
}

func TestVolumes(t *testing.T) {
	fx := newFixture(t)
	v := &volumes{dir: t.TempDir(), holder: map[string]engi.SandboxID{}}
	if err := os.Mkdir(filepath.Join(v.dir, "alice-data"), 0o755); err != nil {
		t.Fatal(err)
	}
	with := func(o *fleet.Options) { o.Volumes, o.Snapshots = v, openSnapshots(t) }
	n := fx.start(with)
	at := filepath.Join("/data" + strings.ToLower(t.Name()))
	spec := engi.SandboxSpec{Owner: "alice", Volumes: []engi.VolumeMount{{Volume: "data", Path: at}}}
	s := n.create(spec)
	if holders, _ := v.Holders(t.Context()); !slices.Equal(holders, []engi.SandboxID{s.ID}) {
		t.Errorf("holders %v", holders)
	}
	_, err := n.Sandboxes().Create(t.Context(), spec)
	wantKind(t, "a second one with the volume", err, engi.Conflict)
	bobs := spec
	bobs.Owner = "bob"
	_, err = n.Sandboxes().Create(t.Context(), bobs)
	wantKind(t, "bob's with alice's volume", err, engi.NotFound)
	if got := fx.machines(); len(got) != 1 {
		t.Errorf("machines %v", got)
	}
	_, err = n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 1})
	wantKind(t, "a fork", err, engi.Unsupported)
	_, err = n.Lifecycle().Snapshot(t.Context(), "alice", s.ID, engi.SnapshotSpec{})
	wantKind(t, "a snapshot of its memory", err, engi.Unsupported)
	n.hibernate(s.ID, false)
	if holders, _ := v.Holders(t.Context()); len(holders) != 1 {
		t.Error("it lost its volume when it hibernated")
	}
	n.kill()
	stray := engi.NewSandboxID()
	v.mu.Lock()
	v.holder["stray"] = stray
	v.mu.Unlock()
	n = fx.start(with)
	if holders, _ := v.Holders(t.Context()); !slices.Equal(holders, []engi.SandboxID{s.ID}) {
		t.Errorf("after a restart, holders %v, want %s", holders, s.ID)
	}
	n.resume(s.ID, false)
	fx.host.Kill(s.ID)
	n.eventually("it is lost", func() bool { return n.sandbox(s.ID).State == engi.Stopped })
	if holders, _ := v.Holders(t.Context()); len(holders) != 0 {
		t.Errorf("the lost one holds its volume: %v", holders)
	}
	s = n.create(spec)
	if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
		t.Fatal(err)
	}
	if holders, _ := v.Holders(t.Context()); len(holders) != 0 {
		t.Errorf("the stopped one holds its volume: %v", holders)
	}
}

func TestStartCommands(t *testing.T) {
	fx := newFixture(t)
	up := base(t, "s1")
	up.Name, up.Start, up.Ready = "up", "sleep 0.1; echo up > up; exec sleep 1000", "test -e up"
	never := base(t, "s2")
	never.Name, never.Start, never.Ready = "never", "echo I give up; exit 3", "test -e nothing"
	fx.fakes.Set(up)
	fx.fakes.Set(never)
	n := fx.start(pools(fleet.PoolConfig{Template: "up", Target: 1})).warm()
	for _, spec := range []engi.SandboxSpec{{Template: "up"}, {Template: "up", Size: engi.Size{Disk: 1 << 30}}} {
		s := n.create(spec)
		if out := n.mustRun(s.ID, "cat /dev/null; echo there"); out != "there\n" {
			t.Errorf("output %q", out)
		}
		g, release, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
		if err != nil {
			t.Fatal(err)
		}
		all, err := g.Processes(t.Context())
		release()
		if err != nil || !slices.ContainsFunc(all, func(p engi.ProcessInfo) bool { return p.Tag == "start" && !p.Ended }) {
			t.Errorf("processes %+v, %v", all, err)
		}
	}
	_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Template: "never"})
	wantKind(t, "a service that does not come up", err, engi.Invalid)
	if err != nil && !strings.Contains(err.Error(), "I give up") {
		t.Errorf("the error does not say why: %v", err)
	}
}

// TestDiskQuotaIsOne creates sandboxes and volumes at once, which together may not use more
// than one quota.
func TestDiskQuotaIsOne(t *testing.T) {
	const each, room = 512 << 20, 5
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	quota := func(engi.Owner) engi.Quota { return engi.Quota{Disk: room * each} }
	var n *node
	v, err := volume.Open(t.Context(), volume.Options{
		Dir: filepath.Join(t.TempDir(), "volumes"), Store: store.Volumes(db), Plain: true, Quota: quota,
		Book: func(ctx context.Context, owner engi.Owner, capacity int64) (func(func() error) error, func(), error) {
			return n.BookVolume(ctx, owner, capacity)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n = newFixture(t).start(func(o *fleet.Options) { o.Volumes, o.Quota = v, quota })
	for range 4 {
		var wg sync.WaitGroup
		var made atomic.Int32
		count := func(err error) {
			if err == nil {
				made.Add(1)
			} else if !engi.Is(err, engi.Exhausted) {
				t.Error(err)
			}
		}
		for i := range room {
			wg.Go(func() {
				_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice"})
				count(err)
			})
			wg.Go(func() {
				_, err := v.Create(t.Context(), engi.VolumeSpec{Owner: "alice", Name: fmt.Sprint("v", i), Capacity: each})
				count(err)
			})
		}
		wg.Wait()
		if made.Load() != room {
			t.Fatalf("%d were made, want %d", made.Load(), room)
		}
		vols, err := v.List(t.Context(), "alice", engi.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range vols {
			if err := v.Remove(t.Context(), "alice", x.Name); err != nil {
				t.Fatal(err)
			}
		}
		all, err := n.Sandboxes().List(t.Context(), "alice", engi.SandboxFilter{Owned: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
}
