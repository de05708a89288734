package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/workspace"
)

// A fixture is the environment of a service that survives a power cut: completed steps persist.
// While the power is off, no step has an effect.
type fixture struct {
	db   *store.DB
	root string // directory of templates

	mongod string // template with mongod; empty for FerretDB

	mu     sync.Mutex
	left   int // number of steps until the power is cut; negative means never. guarded by mu, like all fields below
	off    bool
	boxes  map[engi.SandboxID]*fakeSandbox
	keys   map[string]engi.SandboxID
	specs  []engi.SandboxSpec
	fault  func(op, path string) error // error in a sandbox; nil for none
	reads  int                         // number of files that were read
	seed   map[string]string           // files of the template below /workspace
	refuse error                       // error of creating sandboxes; nil for none

	volumes map[engi.VolumeID]*volume
	broken  map[string]int // number of starts that still fail, by service
	servers sync.WaitGroup // connections being served
}

// A fakeSandbox is a sandbox with files by absolute path.
type fakeSandbox struct {
	engi.Sandbox
	files map[string]node
	clock time.Time
	procs []*process
}

type node struct {
	data     string
	mode     fs.FileMode
	modified time.Time
}

func (b *fakeSandbox) put(p, data string, mode fs.FileMode) {
	b.clock = b.clock.Add(time.Millisecond)
	for d := path.Dir(p); d != "/"; d = path.Dir(d) {
		if _, ok := b.files[d]; !ok {
			b.files[d] = node{mode: fs.ModeDir | 0o755, modified: b.clock}
		}
	}
	b.files[p] = node{data, mode, b.clock}
}

func newFixture(t testing.TB) *fixture {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var/lib/service/seed"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &fixture{root: root, db: storetest.Open(t), left: -1, boxes: map[engi.SandboxID]*fakeSandbox{}, keys: map[string]engi.SandboxID{}, volumes: map[engi.VolumeID]*volume{}, broken: map[string]int{}}
}

// begin returns a service that runs until the test ends or stop is called.
func (w *fixture) begin(t testing.TB) (s *workspace.Service, stop func()) {
	s = workspace.New(workspace.Options{Store: powerStore{store.Workspaces(w.db), w}, Sandboxes: boxes{fixture: w}, Templates: templates{root: w.root}, Volumes: volumes{fixture: w}, Network: engi.NetworkPolicy{Mode: engi.NetworkNone}, Mongod: w.mongod, MaxAwake: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return s, stop
}

var (
	errPower = engi.Errorf(engi.Internal, "power cut")
	errGone  = engi.Errorf(engi.NotFound, "there is no such sandbox")
	errNo    = engi.Errorf(engi.NotFound, "no such file")
)

// act performs one step, unless the power is off. The power may be cut before and after.
func (w *fixture) act(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := func() bool {
		w.off = w.off || w.left == 0
		if w.left > 0 {
			w.left--
		}
		return w.off
	}
	if gone() {
		return errPower
	}
	if err := do(); err != nil {
		return err
	}
	if gone() {
		return errPower
	}
	return nil
}

// power cuts the power after a number of steps, and restores it before.
func (w *fixture) power(left int) (was bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was = w.off
	w.left, w.off = left, false
	return was
}

// in changes a sandbox like its user.
func (w *fixture) in(id engi.SandboxID, f func(b *fakeSandbox)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.boxes[id])
}

// has returns the files in a sandbox below /workspace.
func (w *fixture) has(id engi.SandboxID) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for p, n := range w.boxes[id].files {
		if rest, ok := strings.CutPrefix(p, "/workspace/"); ok && n.mode.IsRegular() {
			all[rest] = n.data
		}
	}
	return all
}

type powerStore struct {
	workspace.Store
	w *fixture
}

func (p powerStore) Put(ctx context.Context, r workspace.Record, f func(workspace.Tx) error) error {
	return p.w.act(func() error { return p.Store.Put(ctx, r, f) })
}

func (p powerStore) Change(ctx context.Context, id engi.WorkspaceID, f func(*workspace.Record, workspace.Tx) error) (r workspace.Record, err error) {
	err = p.w.act(func() (err error) { r, err = p.Store.Change(ctx, id, f); return err })
	return r, err
}

func (p powerStore) Remove(ctx context.Context, id engi.WorkspaceID) error {
	return p.w.act(func() error { return p.Store.Remove(ctx, id) })
}

type templates struct {
	engi.Templates
	root string
}

func (t templates) Get(_ context.Context, name string) (engi.Template, error) {
	if !slices.Contains([]string{"base", "mine", "other"}, name) && !strings.HasPrefix(name, "service-") {
		return engi.Template{}, engi.ErrNoTemplate
	}
	return engi.Template{Name: name, Digest: "d", WorkDir: "/workspace", Root: t.root}, nil
}

type boxes struct {
	engi.Sandboxes
	*fixture
}

func (x boxes) Create(_ context.Context, spec engi.SandboxSpec) (sb engi.Sandbox, err error) {
	err = x.act(func() error {
		if x.refuse != nil {
			return x.refuse
		}
		if id, ok := x.keys[spec.Idempotency]; ok {
			if sb = (engi.Sandbox{ID: id, State: engi.Stopped}); x.boxes[id] != nil {
				sb = x.boxes[id].Sandbox
			}
			return nil
		}
		id := engi.NewSandboxID()
		for _, m := range spec.Volumes {
			v := x.volumes[engi.VolumeID(m.Volume)]
			switch {
			case v == nil:
				return engi.Errorf(engi.NotFound, "there is no such volume")
			case v.Holder != "":
				return engi.Errorf(engi.Conflict, "the volume is in use")
			}
			v.Holder = id
		}
		x.specs = append(x.specs, spec)
		b := &fakeSandbox{Sandbox: engi.Sandbox{ID: id, Owner: spec.Owner, State: engi.Running, Notes: spec.Notes, Metadata: spec.Metadata, Volumes: spec.Volumes}, files: map[string]node{}, clock: time.Now().Add(-time.Hour)}
		for p, text := range x.seed {
			b.put("/workspace/"+p, text, 0o644)
		}
		x.boxes[b.ID], x.keys[spec.Idempotency] = b, b.ID
		sb = b.Sandbox
		return nil
	})
	return sb, err
}

func (x boxes) List(_ context.Context, _ engi.Viewer, f engi.SandboxFilter) (all []engi.Sandbox, err error) {
	err = x.act(func() error {
		for _, b := range x.boxes {
			if f.Metadata == nil || b.Metadata["workspace"] == f.Metadata["workspace"] {
				all = append(all, b.Sandbox)
			}
		}
		return nil
	})
	return all, err
}

func (x boxes) Stop(_ context.Context, _ engi.Viewer, id engi.SandboxID) error {
	return x.act(func() error {
		if x.boxes[id] == nil {
			return errGone
		}
		x.lose(id)
		return nil
	})
}

func (x boxes) Enter(_ context.Context, viewer engi.Viewer, id engi.SandboxID) (g engi.Guest, release func(), err error) {
	err = x.act(func() error {
		if b := x.boxes[id]; b == nil || !viewer.Sees(b.Owner) {
			return errGone
		}
		g = guest{fixture: x.fixture, id: id}
		return nil
	})
	return g, func() {}, err
}

type guest struct {
	engi.Guest
	*fixture
	id engi.SandboxID
}

// do performs an operation in the sandbox.
func (g guest) do(op, p string, f func(b *fakeSandbox) error) error {
	return g.act(func() error {
		b := g.boxes[g.id]
		if b == nil {
			return engi.Errorf(engi.Unavailable, "the guest is gone")
		}
		if g.fault != nil {
			if err := g.fault(op, p); err != nil {
				return err
			}
		}
		return f(b)
	})
}

func info(p string, n node) engi.FileInfo {
	return engi.FileInfo{Path: p, Size: int64(len(n.data)), Mode: n.mode, Modified: n.modified}
}

func (g guest) Stat(_ context.Context, p string) (fi engi.FileInfo, err error) {
	err = g.do("stat", p, func(b *fakeSandbox) error {
		n, ok := b.files[p]
		if !ok {
			return errNo
		}
		fi = info(p, n)
		return nil
	})
	return fi, err
}

func (g guest) List(_ context.Context, dir string, _ int) (all []engi.FileInfo, err error) {
	err = g.do("list", dir, func(b *fakeSandbox) error {
		if _, ok := b.files[dir]; !ok {
			return errNo
		}
		for p, n := range b.files {
			if path.Dir(p) == dir {
				all = append(all, info(p, n))
			}
		}
		slices.SortFunc(all, func(x, y engi.FileInfo) int { return strings.Compare(x.Path, y.Path) })
		return nil
	})
	return all, err
}

func (g guest) Open(_ context.Context, p string) (r io.ReadCloser, err error) {
	err = g.do("open", p, func(b *fakeSandbox) error {
		n, ok := b.files[p]
		if !ok || !n.mode.IsRegular() {
			return errNo
		}
		g.reads++
		r = io.NopCloser(strings.NewReader(n.data))
		return nil
	})
	return r, err
}

func (g guest) Write(_ context.Context, p string, r io.Reader, o engi.WriteOptions) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return g.do("write", p, func(b *fakeSandbox) error {
		for d := path.Dir(p); d != "/"; d = path.Dir(d) {
			if n, ok := b.files[d]; ok && !n.mode.IsDir() {
				return engi.Errorf(engi.Conflict, "%s is no directory", d)
			}
		}
		if n, ok := b.files[p]; ok && !n.mode.IsRegular() {
			return engi.Errorf(engi.Conflict, "%s is no file", p)
		}
		b.put(p, string(data), o.Mode)
		return nil
	})
}

func (g guest) Remove(_ context.Context, p string) error {
	return g.do("remove", p, func(b *fakeSandbox) error {
		b.remove(p)
		return nil
	})
}

func (b *fakeSandbox) remove(p string) {
	for q := range b.files {
		if q == p || strings.HasPrefix(q, p+"/") {
			delete(b.files, q)
		}
	}
}

// Unpack extracts one file at a time, so that the power may be cut in between, and within a file.
func (g guest) Unpack(_ context.Context, dir string, r io.Reader) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return engi.Errorf(engi.Unavailable, "%v", err)
		}
		var data bytes.Buffer
		if _, err := io.Copy(&data, tr); err != nil {
			return engi.Errorf(engi.Unavailable, "%v", err)
		}
		for _, part := range []string{data.String()[:data.Len()/2], data.String()} {
			if err := g.do("unpack", h.Name, func(b *fakeSandbox) error {
				b.put(dir+"/"+h.Name, part, h.FileInfo().Mode())
				return nil
			}); err != nil {
				return err
			}
		}
	}
}
