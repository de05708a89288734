package app_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// A fixture is the environment of a service that survives a power cut: completed steps persist.
// While the power is off, no step has an effect.
type fixture struct {
	t      testing.TB
	db     *store.DB
	mu     sync.Mutex
	left   int // number of steps until the power is cut; negative means never. guarded by mu, like all fields below
	off    bool
	steps  int // number of steps so far
	boxes  map[engi.SandboxID]*fakeSandbox
	keys   map[string]engi.SandboxID
	made   int
	flaky  int                                   // number of installations that still fail
	slow   chan struct{}                         // commands wait for it; nil for none
	full   bool                                  // no template can be started
	quota  int                                   // maximum number of sandboxes; 0 means no limit
	enter  int                                   // number of times that sandboxes were entered
	health time.Duration                         // interval of health checks; 0 means never
	pace   time.Duration                         // duration of programs; with 0, a power cut ends them
	hangs  bool                                  // the registry does not answer
	fault  func(op string, b *fakeSandbox) error // error before a step, called with mu locked; nil for none
	after  func() error                          // error after a transaction; nil for none
	built  map[string]engi.Template
	alerts app.Settings      // zero means the default
	busy   bool              // sandboxes are always in use
	memory int64             // memory use of each sandbox, in bytes
	cut    func()            // called when the power is cut
	deaf   int               // number of connections to servers that still fail
	packed int               // number of writes that fail because the disk is full, until caches are cleared; -1 for all
	gone   int               // number of attempts to enter a sandbox that still fail
	cold   int               // number of times that a sandbox was hibernated without its memory
	dist   map[string]string // result of a build; nil for a build that fails
	links  []tar.Header      // entries that a build creates beside files
	copies map[engi.SnapshotID]*copied
	noRoom bool // no space for snapshots
	models app.Models
	shared app.Workspaces
	adding time.Duration // time in which the store adds an app

	packing  time.Duration // time in which the guest sends the result of a build
	browser  string        // fault of browsers in sandboxes; empty for none
	forwards bool          // Vite prints the errors that pages report to it
	shown    []string      // addresses that browsers were told to show
}

// A fakeSandbox is a sandbox with files, and with a server that may be running.
type fakeSandbox struct {
	engi.Sandbox
	files   map[string]node
	server  bool // the server is running
	log     string
	starts  int
	commits []string
	clock   time.Time // time of the last change
	full    bool      // the disk is full
	stuck   bool      // the guest does not answer
	mute    bool      // its server accepts connections and does not answer
	serves  string    // content that its server read when it started
	procs   []*process
	gone    bool
	dir     string          // directory of the app; empty means appDir
	dirs    map[string]bool // directories without files, in the sandbox of a workspace
	tag     string          // tag of its server; empty means that of a template's
	other   bool            // another program listens at the port
	conns   int             // number of times that its connections were ended
	dead    chan struct{}   // closed when the sandbox has ended
}

// lose ends a sandbox and its processes. The caller holds the lock.
func (w *fixture) lose(b *fakeSandbox) {
	if !b.gone {
		b.gone = true
		delete(w.boxes, b.ID)
		close(b.dead)
	}
}

// app returns the directory of the app.
func (b *fakeSandbox) app() string { return cmp.Or(b.dir, appDir) }

// settings are files that the server reads only when it starts.
func (b *fakeSandbox) settings() string {
	return b.files[b.app()+"/vite.config.ts"].data + b.files[b.app()+"/package.json"].data
}

type node struct {
	data     string
	mode     fs.FileMode
	modified time.Time
	changed  time.Time // zero means modified
}

const appDir = "/home/user/app"

func newFixture(t testing.TB) *fixture {
	w := &fixture{t: t, db: storetest.Open(t), left: -1, boxes: map[engi.SandboxID]*fakeSandbox{}, keys: map[string]engi.SandboxID{}, copies: map[engi.SnapshotID]*copied{}}
	w.built = map[string]engi.Template{"vite-react": {Name: "vite-react", Digest: "d", WorkDir: appDir, Shell: "/bin/sh", Start: "serve", Ports: []int{5173}}}
	w.built["fastapi"] = engi.Template{Name: "fastapi", Digest: "d", WorkDir: appDir, Start: "serve", Ports: []int{8000}}
	t.Cleanup(w.loseAll)
	return w
}

// loseAll loses all sandboxes, with the processes that are still running.
func (w *fixture) loseAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.boxes {
		w.lose(b)
	}
}

// end loses all sandboxes in a bubble, and waits until nothing in it runs any more.
func (w *fixture) end() {
	w.loseAll()
	synctest.Wait()
}

// begin returns a service that runs until the test ends or stop is called.
func (w *fixture) begin(t testing.TB) (s *app.Service, stop func()) {
	s = app.New(app.Options{
		Store: powerStore{store.Apps(w.db), w}, Events: powerEvents{store.Events(w.db), w}, Sandboxes: boxes{fixture: w}, Templates: templates{fixture: w},
		Lifecycle: boxes{fixture: w}, Snapshots: copies{fixture: w}, Alerts: w.alerts,
		Models: w.models, Workspaces: w.shared,
		MaxAwake: time.Hour, Look: time.Millisecond, Health: cmp.Or(w.health, time.Hour),
	})
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

// act performs one step, in a sandbox or elsewhere, unless the power is off. The power may be
// cut before and after the step.
func (w *fixture) act(b *fakeSandbox, do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := func() bool {
		w.steps++
		if w.left == 0 && !w.off {
			w.off = true
			if w.cut != nil {
				go w.cut()
			}
		}
		if w.left > 0 {
			w.left--
		}
		return w.off
	}
	if gone() {
		return errPower
	}
	if b != nil && b.gone {
		return errGone
	}
	if err := do(); err != nil {
		return err
	}
	if gone() {
		return errPower
	}
	return nil
}

// step begins an operation; the faults of the test occur here.
func (w *fixture) step(ctx context.Context, op string, b *fakeSandbox) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	if w.fault != nil {
		if err := w.fault(op, b); err != nil {
			return err
		}
	}
	switch {
	case w.off:
		return errPower
	case b == nil:
		return nil
	case b.gone:
		return errGone
	case b.stuck:
		w.mu.Unlock()
		defer w.mu.Lock()
		select {
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "%v", ctx.Err())
		case <-b.dead:
			return errGone
		}
	}
	return nil
}

var (
	errGone = engi.Errorf(engi.Unavailable, "the guest is gone")
	errFull = engi.Errorf(engi.Exhausted, "no space left on device")
)

var errPower = engi.Errorf(engi.Unavailable, "power cut")

func (w *fixture) power(left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.off, w.steps = left, false, 0
}

func (w *fixture) isOff() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off
}

// tracked returns the files of an app in its sandbox.
func (w *fixture) tracked(id engi.SandboxID) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for p, n := range w.boxes[id].files {
		rest, ok := strings.CutPrefix(p, w.boxes[id].app()+"/")
		if ok && n.mode.IsRegular() && app.CheckPath(rest) == nil {
			all[rest] = n.data
		}
	}
	return all
}

// change changes a sandbox as its owner may.
func (w *fixture) change(id engi.SandboxID, f func(b *fakeSandbox)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.boxes[id])
}

// ---- store

type powerStore struct {
	app.Store
	w *fixture
}

func (p powerStore) Put(ctx context.Context, r app.Record) error {
	if err := p.w.step(ctx, "put", nil); err != nil {
		return err
	}
	if p.w.adding > 0 {
		time.Sleep(p.w.adding)
	}
	return p.w.act(nil, func() error { return p.Store.Put(ctx, r) })
}

func (p powerStore) Branch(ctx context.Context, r app.Record, first engi.Revision, b app.Bounds) error {
	if err := p.w.step(ctx, "put", nil); err != nil {
		return err
	}
	return p.w.act(nil, func() error { return p.Store.Branch(ctx, r, first, b) })
}

func (p powerStore) Find(ctx context.Context, viewer engi.Viewer, name string) (r app.Record, err error) {
	if err := p.w.step(ctx, "find", nil); err != nil {
		return r, err
	}
	return p.Store.Find(ctx, viewer, name)
}

func (p powerStore) Change(ctx context.Context, id engi.AppID, f func(*app.Record, app.Tx) error) (r app.Record, err error) {
	if err := p.w.step(ctx, "change", nil); err != nil {
		return r, err
	}
	err = p.w.act(nil, func() (err error) {
		if r, err = p.Store.Change(ctx, id, f); err == nil && p.w.after != nil {
			err = p.w.after()
		}
		return err
	})
	return r, err
}

func (p powerStore) Remove(ctx context.Context, id engi.AppID) error {
	return p.w.act(nil, func() error { return p.Store.Remove(ctx, id) })
}

type powerEvents struct {
	engi.EventLog
	w *fixture
}

func (p powerEvents) Append(ctx context.Context, specs ...engi.EventSpec) (all []engi.Event, err error) {
	if err := p.w.step(ctx, "append", nil); err != nil {
		return nil, err
	}
	err = p.w.act(nil, func() (err error) { all, err = p.EventLog.Append(ctx, specs...); return err })
	return all, err
}

// ---- templates

type templates struct {
	engi.Templates
	*fixture
}

func (x templates) Get(_ context.Context, name string) (engi.Template, error) {
	t, ok := x.built[name]
	if !ok {
		return t, engi.Errorf(engi.Unavailable, "template %s is not built", name).WithRemedy("engi template build %s", name)
	}
	return t, nil
}

// ---- sandboxes

type boxes struct {
	engi.Sandboxes
	lifecycle
	*fixture
}

// A lifecycle implements the operations that boxes lacks.
type lifecycle struct{ engi.Lifecycle }

func (x boxes) Hibernate(_ context.Context, _ engi.Viewer, id engi.SandboxID, diskOnly bool) error {
	return x.act(nil, func() error {
		b, ok := x.boxes[id]
		if !ok {
			return errNoBox
		}
		if b.State = engi.Hibernated; diskOnly {
			x.cold++
			b.server = false
		}
		return nil
	})
}

func (x boxes) Create(ctx context.Context, spec engi.SandboxSpec) (sb engi.Sandbox, err error) {
	if err := x.step(ctx, "create", nil); err != nil {
		return sb, err
	}
	err = x.act(nil, func() error {
		if x.full || x.quota > 0 && len(x.boxes) >= x.quota {
			return engi.Errorf(engi.Exhausted, "the node is full")
		}
		if id, ok := x.keys[spec.Idempotency]; ok {
			if b, ok := x.boxes[id]; ok {
				sb = b.Sandbox
			} else {
				sb = engi.Sandbox{ID: id, State: engi.Stopped}
			}
			return nil
		}
		x.made++
		if spec.Snapshot != "" {
			return x.revive(spec, &sb)
		}
		b := &fakeSandbox{Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), Owner: spec.Owner, State: engi.Running, Network: spec.Network, Env: spec.Env, Lifetime: spec.Lifetime, Notes: spec.Notes, Metadata: spec.Metadata, Active: time.Now()}, files: map[string]node{}, server: true, clock: time.Now().Add(-time.Hour), dead: make(chan struct{})}
		files := map[string]string{
			"index.html": `<script type="module" src="/src/main.tsx"></script>`, "src/main.tsx": "import './App.tsx'\n", "src/App.tsx": "export default 'first'\n",
			"package.json": `{"dependencies":{"react":"19"}}`, "vite.config.ts": "export default {}\n", ".git/objects/x": "", "node_modules/react/index.js": "react",
		}
		if spec.Template == "fastapi" {
			files = map[string]string{"main.py": "from fastapi import FastAPI\n", "requirements.txt": "fastapi==1.0\n", "/site/fastapi": "1.0"}
		}
		for p, text := range files {
			b.put(p, text)
		}
		b.serves = b.settings()
		x.boxes[b.ID], x.keys[spec.Idempotency] = b, b.ID
		sb = b.Sandbox
		return nil
	})
	return sb, err
}

// A copied is the state of a sandbox at the time of a snapshot.
type copied struct {
	engi.Snapshot
	box fakeSandbox
}

func (b *fakeSandbox) clone() fakeSandbox {
	c := *b
	c.files, c.commits, c.procs = maps.Clone(b.files), slices.Clone(b.commits), nil
	return c
}

// revive creates a sandbox from a snapshot. The caller holds the lock.
func (w *fixture) revive(spec engi.SandboxSpec, sb *engi.Sandbox) error {
	c, ok := w.copies[spec.Snapshot]
	if !ok || c.Owner != spec.Owner {
		return errNoCopy
	}
	b := c.box.clone()
	b.Sandbox = engi.Sandbox{ID: cmp.Or(spec.ID, engi.NewSandboxID()), Owner: spec.Owner, State: engi.Running, Network: spec.Network, Env: spec.Env, Lifetime: spec.Lifetime, Notes: spec.Notes, Metadata: spec.Metadata, Active: time.Now(), Snapshot: spec.Snapshot}
	b.stuck, b.full, b.gone, b.dead = false, false, false, make(chan struct{})
	w.boxes[b.ID] = &b
	if spec.Idempotency != "" {
		w.keys[spec.Idempotency] = b.ID
	}
	*sb = b.Sandbox
	return nil
}

// Snapshot ends the connections to a sandbox, like the real implementation.
func (x boxes) Snapshot(ctx context.Context, _ engi.Viewer, id engi.SandboxID, spec engi.SnapshotSpec) (s engi.Snapshot, err error) {
	x.mu.Lock()
	b := x.boxes[id]
	x.mu.Unlock()
	if b == nil {
		return s, errNoBox
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := x.step(ctx, "snapshot", b); err != nil {
		return s, err
	}
	err = x.act(b, func() error {
		if x.noRoom {
			return engi.Errorf(engi.Exhausted, "the quota of snapshots is 0, and there are 0").WithRemedy("remove a snapshot")
		}
		b.conns++
		s = engi.Snapshot{ID: spec.ID, Owner: b.Owner, Name: spec.Name, Sandbox: id, Bytes: 100, Created: time.Now()}
		x.copies[s.ID] = &copied{s, b.clone()}
		return nil
	})
	return s, err
}

// copies implements snapshots.
type copies struct {
	engi.Snapshots
	*fixture
}

var errNoCopy = engi.Errorf(engi.NotFound, "there is no such snapshot")

func (x copies) Get(ctx context.Context, viewer engi.Viewer, id string) (engi.Snapshot, error) {
	if err := x.step(ctx, "find", nil); err != nil {
		return engi.Snapshot{}, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.fixture.copies[engi.SnapshotID(id)]; ok && viewer.Sees(c.Owner) {
		return c.Snapshot, nil
	}
	return engi.Snapshot{}, errNoCopy
}

func (x copies) Remove(ctx context.Context, _ engi.Viewer, id string) error {
	if err := x.step(ctx, "remove", nil); err != nil {
		return err
	}
	return x.act(nil, func() error {
		if _, ok := x.fixture.copies[engi.SnapshotID(id)]; !ok {
			return errNoCopy
		}
		delete(x.fixture.copies, engi.SnapshotID(id))
		return nil
	})
}

func (x boxes) Get(_ context.Context, _ engi.Viewer, id engi.SandboxID) (sb engi.Sandbox, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b, ok := x.boxes[id]; ok {
		return b.Sandbox, nil
	}
	return sb, errNoBox
}

func (x boxes) List(ctx context.Context, _ engi.Viewer, f engi.SandboxFilter) (all []engi.Sandbox, err error) {
	if err := x.step(ctx, "boxes", nil); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.boxes {
		if f.Metadata == nil || b.Metadata["app"] == f.Metadata["app"] {
			all = append(all, b.Sandbox)
		}
	}
	return all, nil
}

var errNoBox = engi.Errorf(engi.NotFound, "there is no such sandbox")

func (x boxes) Enter(ctx context.Context, _ engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	if err := x.step(ctx, "enter", nil); err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b, ok := x.boxes[id]
	if !ok {
		return nil, nil, errNoBox
	}
	if x.gone != 0 {
		x.gone--
		return nil, nil, errPower
	}
	b.Active, b.State = time.Now(), engi.Running
	if x.busy {
		b.Active = b.Active.Add(time.Hour)
	}
	x.enter++
	return &fakeGuest{w: x.fixture, b: b, conn: b.conns}, func() {}, nil
}

func (x boxes) Stop(_ context.Context, _ engi.Viewer, id engi.SandboxID) error {
	return x.act(nil, func() error {
		if b, ok := x.boxes[id]; ok {
			x.lose(b)
		}
		return nil
	})
}

func (x boxes) Samples(context.Context, engi.Viewer, engi.SandboxID, time.Time, time.Time) ([]engi.Sample, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return []engi.Sample{{Memory: cmp.Or(x.memory, 100<<20)}}, nil
}

// ---- guest

func (b *fakeSandbox) put(p, text string) {
	if !strings.HasPrefix(p, "/") {
		p = b.app() + "/" + p
	}
	b.clock = b.clock.Add(time.Nanosecond)
	b.files[p] = node{data: text, mode: 0o644, modified: b.clock}
}

// isDir reports whether there are files below p.
func (b *fakeSandbox) isDir(p string) bool {
	for q := range b.files {
		if strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	return b.dir == "" && p == appDir || b.dirs[p]
}

func (b *fakeSandbox) info(p string) (engi.FileInfo, bool) {
	if n, ok := b.files[p]; ok {
		return engi.FileInfo{Path: p, Size: int64(len(n.data)), Mode: n.mode, Modified: n.modified, Changed: cmp.Or(n.changed, n.modified)}, true
	}
	return engi.FileInfo{Path: p, Mode: fs.ModeDir | 0o755}, b.isDir(p)
}

// A fakeGuest is the guest of a sandbox. As with a real guest, every step is either done or not.
type fakeGuest struct {
	engi.Guest
	w    *fixture
	b    *fakeSandbox
	conn int
}

// step begins a call, whose connection may have ended.
func (g *fakeGuest) step(ctx context.Context, op string) error {
	g.w.mu.Lock()
	ended := g.conn != g.b.conns
	g.w.mu.Unlock()
	if ended {
		return engi.Errorf(engi.Unavailable, "the connection to the sandbox has ended")
	}
	return g.w.step(ctx, op, g.b)
}

var errNoFile = engi.Errorf(engi.NotFound, "there is no such file")

func (g *fakeGuest) Stat(ctx context.Context, p string) (fi engi.FileInfo, err error) {
	if err := g.step(ctx, "stat"); err != nil {
		return fi, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	fi, ok := g.b.info(p)
	if !ok {
		return fi, errNoFile
	}
	return fi, nil
}

func (g *fakeGuest) List(ctx context.Context, dir string, depth int) (all []engi.FileInfo, err error) {
	if err := g.step(ctx, "list"); err != nil {
		return nil, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if depth != 1 || !g.b.isDir(dir) {
		return nil, errNoFile
	}
	names := map[string]bool{}
	for p := range g.b.files {
		if rest, ok := strings.CutPrefix(p, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fi, _ := g.b.info(dir + "/" + name)
		all = append(all, fi)
	}
	return all, nil
}

func (g *fakeGuest) Open(ctx context.Context, p string) (io.ReadCloser, error) {
	if err := g.step(ctx, "open"); err != nil {
		return nil, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	n, ok := g.b.files[p]
	if !ok {
		return nil, errNoFile
	}
	return io.NopCloser(strings.NewReader(n.data)), nil
}

func (g *fakeGuest) Move(ctx context.Context, from, to string) error {
	if err := g.step(ctx, "move"); err != nil {
		return err
	}
	return g.w.act(g.b, func() error {
		n, ok := g.b.files[from]
		if !ok {
			return errNoFile
		}
		delete(g.b.files, from)
		g.b.files[to] = n
		if strings.Contains(n.data, "CRASH") { // the page is being viewed
			g.b.log += "1:02:03 PM [vite] (client) [Unhandled error] TypeError: Cannot read properties of undefined (reading 'x')\n > App " + strings.TrimPrefix(to, g.b.app()+"/") + ":1:1\n"
		}
		return nil
	})
}

func (g *fakeGuest) Remove(ctx context.Context, p string) error {
	if err := g.step(ctx, "remove"); err != nil {
		return err
	}
	return g.w.act(g.b, func() error {
		delete(g.b.files, p)
		maps.DeleteFunc(g.b.files, func(q string, _ node) bool { return strings.HasPrefix(q, p+"/") })
		return nil
	})
}

func (g *fakeGuest) Unpack(ctx context.Context, dir string, r io.Reader) error {
	if err := g.step(ctx, "unpack"); err != nil {
		return err
	}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if err := g.w.act(g.b, func() error {
			if g.b.full || g.w.packed != 0 {
				return errFull
			}
			g.b.put(path.Join(dir, h.Name), string(data))
			n := g.b.files[path.Join(dir, h.Name)]
			n.mode = fs.FileMode(h.Mode)
			g.b.files[path.Join(dir, h.Name)] = n
			return nil
		}); err != nil {
			return err
		}
	}
}

// Pack returns the files below a directory, and the entries that a test adds.
func (g *fakeGuest) Pack(_ context.Context, dir string) (io.ReadCloser, error) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if d := g.w.packing; d > 0 {
		g.w.mu.Unlock()
		time.Sleep(d - time.Second)
		g.w.mu.Lock()
	}
	if g.w.off {
		return nil, errPower
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, data string) {
		if err := w.WriteHeader(&h); err != nil {
			g.w.t.Error(err)
		}
		io.WriteString(w, data)
	}
	add(tar.Header{Name: path.Base(dir) + "/", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	for p, n := range g.b.files {
		if rest, ok := strings.CutPrefix(p, dir+"/"); ok {
			add(tar.Header{Name: path.Base(dir) + "/" + rest, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(n.data))}, n.data)
		}
	}
	for _, h := range g.w.links {
		add(h, "")
	}
	return io.NopCloser(&b), nil // without an end, which callers must not rely on
}

var imported = regexp.MustCompile(`import '\./([^']+)'`)

// Dial answers like Vite, for modules that import others of their directory.
func (g *fakeGuest) Dial(ctx context.Context, _ int) (net.Conn, error) {
	if err := g.step(ctx, "dial"); err != nil {
		return nil, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if g.w.deaf > 0 {
		g.w.deaf--
		return nil, engi.Errorf(engi.Unavailable, "it does not answer")
	}
	if !g.b.server && !g.b.other {
		return nil, engi.Errorf(engi.Unavailable, "nothing listens there")
	}
	here, there := net.Pipe()
	l := &oneConn{conns: make(chan net.Conn, 1)}
	l.conns <- there
	close(l.conns)
	go http.Serve(l, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		g.w.mu.Lock()
		defer g.w.mu.Unlock()
		if g.b.mute {
			g.w.mu.Unlock()
			<-r.Context().Done()
			g.w.mu.Lock()
			return
		}
		file := g.b.app() + r.URL.Path
		if r.URL.Path == "/" {
			file += "index.html"
		}
		n, ok := g.b.files[file]
		fail := func(text string) {
			raw, _ := json.Marshal(map[string]any{"message": text, "id": file, "loc": map[string]any{"file": file, "line": 1}})
			rw.WriteHeader(500)
			fmt.Fprintf(rw, "<script>\n  const error = %s\n</script>", raw)
		}
		switch {
		case !ok:
			rw.WriteHeader(404)
			return
		case strings.Contains(n.data, "BROKEN"):
			fail("Unexpected token")
			return
		}
		for _, m := range imported.FindAllStringSubmatch(n.data, -1) {
			if _, ok := g.b.files[path.Dir(file)+"/"+m[1]]; !ok {
				fail("Failed to resolve import " + m[1])
				return
			}
			fmt.Fprintf(rw, "import \"%s/%s\"\n", path.Dir(r.URL.Path), m[1])
		}
		io.WriteString(rw, n.data)
	}))
	return here, nil
}

// A oneConn is a listener with one connection.
type oneConn struct{ conns chan net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// Start runs the programs that a service of apps runs, and commands of the form "put PATH TEXT".
func (g *fakeGuest) Start(ctx context.Context, c engi.Command) (engi.Process, error) {
	if err := g.step(ctx, "start"); err != nil {
		return nil, err
	}
	p := &process{w: g.w, b: g.b, name: c.Args[0], tag: c.Tag, done: make(chan struct{}), kill: make(chan struct{})}
	g.w.mu.Lock()
	slow, pace := g.w.slow, g.w.pace
	g.w.mu.Unlock()
	if strings.HasPrefix(c.Tag, "start") {
		p.server = true
		return p, g.w.act(g.b, func() error {
			g.b.server, g.b.serves, g.b.tag = true, g.b.settings(), c.Tag
			g.b.starts++
			if strings.Contains(g.b.serves, "DIES") {
				g.b.server, p.code = false, 1
				close(p.done)
			}
			return nil
		})
	}
	if strings.HasPrefix(c.Tag, "browser") {
		return g.startBrowser()
	}
	if rest, ok := strings.CutPrefix(c.Args[len(c.Args)-1], "kill -s KILL -- -"); ok {
		close(p.done)
		return p, g.w.act(g.b, func() error {
			for _, q := range g.b.procs {
				if fmt.Sprintf("%d %[1]d", q.PID()) == rest {
					q.end()
				}
			}
			return nil
		})
	}
	if len(c.Args) > 4 && c.Args[3] == "end" { // the processes of the server of an app in a workspace
		close(p.done)
		return p, g.w.act(g.b, func() error {
			if c.Args[4] == "ENGI_APP="+strings.TrimPrefix(g.b.tag, "start-") {
				g.b.server = false
			}
			return nil
		})
	}
	if slow != nil && c.Args[len(c.Args)-1] == "wait" {
		go func() {
			defer close(p.done)
			select {
			case <-slow:
			case <-p.kill:
			}
		}()
		return p, g.w.act(g.b, func() error { return g.b.add(p) })
	}
	if pace == 0 {
		defer close(p.done)
		return p, g.w.act(g.b, func() error { g.run(p, c); return nil })
	}
	// The program continues even if the node is killed.
	var limit <-chan time.Time
	if c.Timeout > 0 {
		limit = time.After(c.Timeout)
	}
	go func() {
		defer close(p.done)
		for first := true; first || c.Args[0] == "npm" && g.w.hanging(); first = false {
			select {
			case <-time.After(pace):
			case <-limit:
				p.code, p.cause = -1, engi.CauseTimeout
				return
			case <-p.kill:
				p.code = -1
				return
			case <-g.b.dead:
				return
			}
		}
		g.w.mu.Lock()
		defer g.w.mu.Unlock()
		g.run(p, c)
	}()
	return p, g.w.act(g.b, func() error { return g.b.add(p) })
}

func (w *fixture) hanging() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hangs
}

func (b *fakeSandbox) add(p *process) error {
	b.procs = append(b.procs, p)
	p.pid = len(b.procs)
	return nil
}

// run performs the effects of a program. The caller holds the lock.
func (g *fakeGuest) run(p *process, c engi.Command) {
	switch {
	case len(c.Args) > 2 && strings.Contains(c.Args[2], "_cacache"):
		g.w.packed = min(g.w.packed, 0)
		g.b.put("/root/cleared", "")
	case c.Args[0] == "npm" && c.Args[1] == "run" && c.Args[2] == "build":
		if p.code, p.output = 2, "src/App.tsx:1: it is wrong\n"; g.w.dist != nil {
			p.code, p.output = 0, "built\n"
		}
		for name, text := range g.w.dist {
			g.b.put("dist/"+name, text)
		}
	case c.Args[0] == "npm" && c.Args[1] == "run":
		for name, n := range g.b.files {
			if strings.Contains(n.data, "TYPEERROR") {
				p.code, p.output = 2, p.output+strings.TrimPrefix(name, g.b.app()+"/")+"(1,1): error TS2322: Type 'string' is not assignable to type 'number'.\n"
			}
		}
	case c.Args[0] == "npm":
		if g.w.flaky > 0 {
			g.w.flaky--
			p.code, p.output = 1, "npm error network ETIMEDOUT\n"
			return
		}
		if g.b.full || g.w.packed != 0 {
			p.code, p.output = 228, "npm error code ENOSPC\n"
			return
		}
		m := map[string]any{} // npm keeps unknown fields
		if err := json.Unmarshal([]byte(g.b.files[g.b.app()+"/package.json"].data), &m); err != nil {
			p.code, p.output = 1, "npm error EJSONPARSE\n"
			return
		}
		have := map[string]any{}
		for _, kind := range []string{"devDependencies", "dependencies"} {
			some, _ := m[kind].(map[string]any)
			maps.Copy(have, some)
		}
		asked := c.Args[slices.Index(c.Args, "--")+1:]
		for _, name := range slices.AppendSeq(slices.Clone(asked), maps.Keys(have)) {
			if name == "nope" {
				p.code, p.output = 1, "npm error code E404\nnpm error 404 'nope' is not in this registry\n"
				return
			}
		}
		if len(asked) > 0 {
			some, _ := m["dependencies"].(map[string]any)
			if some == nil {
				some = map[string]any{}
				m["dependencies"] = some
			}
			for _, a := range asked {
				name, version := a, "1.0.0"
				if i := strings.LastIndexByte(a, '@'); i > 0 {
					name, version = a[:i], strings.TrimLeft(a[i+1:], "^~")
				}
				some[name], have[name] = "^"+version, true
			}
			raw, _ := json.Marshal(m)
			g.b.put("package.json", string(raw))
		}
		maps.DeleteFunc(g.b.files, func(q string, _ node) bool { return strings.HasPrefix(q, g.b.app()+"/node_modules/") })
		for name := range have {
			g.b.put("node_modules/"+name+"/index.js", name)
		}
	case c.Args[0] == "pip" && c.Args[1] == "freeze":
		for q, n := range g.b.files {
			if name, ok := strings.CutPrefix(q, "/site/"); ok {
				p.output += name + "==" + n.data + "\n"
			}
		}
	case c.Args[0] == "pip":
		if g.w.flaky > 0 {
			g.w.flaky--
			p.code, p.output = 1, "WARNING: Retrying after connection broken by 'ReadTimeoutError': Read timed out.\n"
			return
		}
		all := c.Args[slices.Index(c.Args, "--")+1:]
		if slices.Contains(c.Args, "--requirement=requirements.txt") {
			all = strings.Fields(g.b.files[g.b.app()+"/requirements.txt"].data)
		}
		for _, r := range all {
			name, version, _ := strings.Cut(r, "==")
			if name == "nope" {
				p.code, p.output = 1, "ERROR: No matching distribution found for nope\n"
				return
			}
			g.b.put("/site/"+strings.ToLower(name), cmp.Or(version, "2.0"))
		}
	case len(c.Args) > 3 && c.Args[3] == "git":
		g.b.put(".git/refs/engi/head", c.Args[4])
		g.b.commits = append(g.b.commits, c.Args[4])
	case strings.HasPrefix(c.Args[2], "put "):
		if g.b.full {
			p.code, p.output = 1, "no space left on device\n"
			return
		}
		words := strings.SplitN(c.Args[2], " ", 3)
		g.b.put(words[1], words[2])
	case c.Args[2] == "judge": // prints the text in src/App.tsx after "JUDGE "
		_, text, _ := strings.Cut(g.b.files[g.b.app()+"/src/App.tsx"].data, "JUDGE ")
		p.output = text + "\n"
		if strings.Contains(text, "FAIL") {
			p.code = 1
		}
		g.b.put("judged.txt", "")
	case c.Args[2] == "fail":
		p.code, p.output = 3, "it failed\n"
	}
}

func (g *fakeGuest) Attach(ctx context.Context, name string) (engi.Process, error) {
	if err := g.step(ctx, "attach"); err != nil {
		return nil, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	for _, p := range slices.Backward(g.b.procs) {
		if name == p.tag && name != "" {
			return p, nil
		}
	}
	if name != cmp.Or(g.b.tag, "start") || !g.b.server {
		return nil, errNoFile
	}
	return &process{w: g.w, b: g.b, server: true, done: make(chan struct{}), output: "ready\n" + g.b.log}, nil
}

// Processes lists the server.
func (g *fakeGuest) Processes(ctx context.Context) ([]engi.ProcessInfo, error) {
	if err := g.step(ctx, "processes"); err != nil {
		return nil, err
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	return []engi.ProcessInfo{{Tag: g.b.tag, Ended: !g.b.server}}, nil
}

func (g *fakeGuest) MakeDir(ctx context.Context, p string) error {
	if err := g.step(ctx, "mkdir"); err != nil {
		return err
	}
	return g.w.act(g.b, func() error {
		g.b.dirs[p] = true
		return nil
	})
}

type process struct {
	engi.Process
	w      *fixture
	b      *fakeSandbox
	name   string
	tag    string
	pid    int
	server bool
	code   int
	cause  engi.Cause
	output string
	done   chan struct{}
	kill   chan struct{}
	killed bool // guarded by the fixture's mu
}

func (p *process) PID() int { return p.pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end kills the process. The caller holds the lock.
func (p *process) end() {
	if !p.killed {
		p.killed = true
		close(p.kill)
	}
}

func (p *process) ID() string {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return fmt.Sprint(p.b.starts)
}

func (p *process) Output(ctx context.Context, _ int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		if p.server && p.output != "" && !yield(engi.Chunk{Data: []byte(p.output)}, nil) {
			return
		}
		select {
		case <-p.done:
			if p.output != "" {
				yield(engi.Chunk{Data: []byte(p.output)}, nil)
			}
		case <-p.b.dead:
			yield(engi.Chunk{}, errGone)
		case <-ctx.Done():
			yield(engi.Chunk{}, engi.Errorf(engi.Expired, "%v", ctx.Err()))
		}
	}
}

func (p *process) Wait(ctx context.Context) (engi.Exit, error) {
	if err := p.w.step(ctx, "wait", p.b); err != nil {
		return engi.Exit{}, err
	}
	if p.server {
		p.w.mu.Lock()
		runs := p.b.server
		p.w.mu.Unlock()
		if !runs {
			return engi.Exit{Cause: engi.CauseExited}, nil
		}
	}
	select {
	case <-p.done:
		return engi.Exit{Code: p.code, Cause: cmp.Or(p.cause, engi.CauseExited)}, nil
	case <-p.b.dead:
		return engi.Exit{}, errGone
	case <-ctx.Done():
		return engi.Exit{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
	}
}

func (p *process) Signal(ctx context.Context, name string) error {
	if err := p.w.step(ctx, "signal", p.b); err != nil {
		return err
	}
	return p.w.act(p.b, func() error {
		switch {
		case p.server:
			p.b.server = false
		case p.ended():
			return errNoFile
		case name == "KILL":
			p.end()
		}
		return nil
	})
}
