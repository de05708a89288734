package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
	"github.com/engi-dev/engi/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fixture holds the state that outlives a node: machines, records, files, templates.
type fixture struct {
	t         testing.TB
	host      *memory.Host
	provider  func() provider.Provider
	store     *faultyStore
	templates fleet.Templates
	fakes     *fleettest.Templates // value of templates, unless a test chose others
	dir       string
}

// base is a template whose programs are this machine's own.
func base(t testing.TB, digest string) engi.Template {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	return engi.Template{
		Name:   "base",
		Digest: digest,
		Root:   t.TempDir(), // machines find programs on the host
		Env:    map[string]string{"PATH": os.Getenv("PATH"), "LANG": "C.UTF-8"},
		Shell:  "/bin/sh",
		Languages: map[engi.Language]engi.Interpreter{
			engi.Bash: {Path: bash, Warm: true},
		},
	}
}

func newFixture(t testing.TB) *fixture {
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // most of a test's time is waiting
	}
	fx := &fixture{
		t:     t,
		host:  memory.NewHost(t.TempDir()),
		store: openStore(t, t.TempDir()),
		fakes: fleettest.NewTemplates(base(t, "d1")),
		dir:   t.TempDir(),
	}
	fx.templates = fx.fakes
	fx.provider = func() provider.Provider { return memory.New(fx.host) }
	t.Cleanup(func() {
		p := fx.provider()
		ids, err := p.Found(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
	})
	return fx
}

// machines returns the IDs of all machines.
func (fx *fixture) machines() []engi.SandboxID {
	fx.t.Helper()
	ids, err := fx.provider().Found(fx.t.Context())
	if err != nil {
		fx.t.Fatal(err)
	}
	return ids
}

// A node is one run of a Manager.
type node struct {
	*fleet.Manager
	t    testing.TB
	fx   *fixture
	x    engi.Executions
	dead *atomic.Bool
	end  context.CancelFunc
	over chan error
}

// start runs a Manager until the test ends.
func (fx *fixture) start(edit func(*fleet.Options)) *node {
	fx.t.Helper()
	dead := new(atomic.Bool)
	o := fleet.Options{
		Providers: []provider.Provider{failing{fx.provider(), dead}},
		Templates: fx.templates,
		Store:     failingStore{fx.store, dead},
		Dir:       fx.dir,
		Log:       slog.New(slog.NewTextHandler(testWriter{fx.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Boots:     4,
	}
	if edit != nil {
		edit(&o)
	}
	m, err := fleet.Open(fx.t.Context(), o)
	if err != nil {
		fx.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Manager: m, t: fx.t, fx: fx, x: m.Executions(), dead: dead, end: cancel, over: make(chan error, 1)}
	ready := make(chan struct{})
	go func() { n.over <- m.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-n.over:
		fx.t.Fatal("Run ended early: ", err)
	}
	fx.t.Cleanup(n.stop)
	return n
}

// stop ends the node in order.
func (n *node) stop() {
	n.end()
	select {
	case err := <-n.over:
		n.over <- nil
		if err != nil {
			n.t.Error("Run: ", err)
		}
	case <-time.After(time.Minute):
		all := make([]byte, 1<<20)
		n.t.Fatalf("Run does not end\n%s", all[:runtime.Stack(all, true)])
	}
}

// kill ends the node as kill -9 would: from then on, none of its actions
// reaches machines or records.
func (n *node) kill() {
	n.dead.Store(true)
	n.stop()
}

// pools returns an edit that configures pools and a fast queue.
func pools(ps ...fleet.PoolConfig) func(*fleet.Options) {
	return func(o *fleet.Options) { o.Pools = ps }
}

func (n *node) warm() *node {
	n.t.Helper()
	n.eventually("the pools are full", func() bool {
		for _, p := range n.Pools(n.t.Context()) {
			if p.Ready < p.Target {
				return false
			}
		}
		return n.Warm(n.t.Context()) == nil
	})
	return n
}

// onlyPools waits until the only machines are those of warm sandboxes and others further ones.
// The number of warm ones is the sum of the targets, or more while a pool has grown.
func (fx *fixture) onlyPools(n *node, others int) {
	fx.t.Helper()
	n.warm()
	n.eventually("used sandboxes are gone", func() bool {
		found, ready := len(fx.machines()), 0
		for _, p := range n.Pools(n.t.Context()) {
			ready += p.Ready
		}
		return found == ready+others
	})
}

// eventually waits for a condition that becomes true in the background.
func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			n.t.Fatalf("never: %s; pools %+v", what, n.Pools(n.t.Context()))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// script returns the spec of a bash program that alice runs.
func script(code string) engi.ExecutionSpec {
	return engi.ExecutionSpec{
		Owner: "alice",
		Program: engi.Program{
			Language: engi.Bash,
			Files:    []engi.SourceFile{{Path: "main.sh", Data: []byte(code)}},
		},
	}
}

func (n *node) start(spec engi.ExecutionSpec) engi.Execution {
	n.t.Helper()
	x, err := n.x.Start(n.t.Context(), spec)
	if err != nil {
		n.t.Fatal(err)
	}
	return x
}

// now returns the current state of an execution. The one that begin returned may not have had a
// sandbox yet.
func (n *node) now(id engi.ExecutionID) engi.Execution {
	n.t.Helper()
	x, err := n.x.Get(n.t.Context(), "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	return x
}

func (n *node) wait(id engi.ExecutionID) engi.Execution {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	x, err := n.x.Wait(ctx, "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	return x
}

func (n *node) execute(spec engi.ExecutionSpec) engi.Execution {
	n.t.Helper()
	return n.wait(n.start(spec).ID)
}

// printed waits until a running execution has printed at least the given number of bytes.
func (n *node) printed(id engi.ExecutionID, bytes int64) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for e, err := range n.x.Watch(ctx, "alice", id, 0) {
		if err != nil {
			n.t.Fatal(err)
		}
		if e.Offset+int64(len(e.Data)) >= bytes && e.Type != engi.EventStarted {
			return
		}
	}
	n.t.Fatalf("%s ended before it printed %d bytes", id, bytes)
}

// watch collects a run's output from an offset to its result.
func (n *node) watch(id engi.ExecutionID, from int64) (out string, kinds []engi.ExecutionUpdateKind, err error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	var b strings.Builder
	at := from
	for e, err := range n.x.Watch(ctx, "alice", id, from) {
		if err != nil {
			return b.String(), kinds, err
		}
		kinds = append(kinds, e.Type)
		if e.Offset != at && e.Type != engi.EventStarted {
			return b.String(), kinds, fmt.Errorf("event %s at offset %d, want %d", e.Type, e.Offset, at)
		}
		at += int64(len(e.Data))
		b.Write(e.Data)
	}
	return b.String(), kinds, nil
}

func wantKind(t testing.TB, what string, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("%s: error %v, want kind %s", what, err, want)
	}
}

// wantAnswer checks the exit code, cause and output of a result.
func wantAnswer(t testing.TB, x engi.Execution, code int, cause engi.Cause, stdout string) {
	t.Helper()
	if x.State != engi.ExecutionDone || x.Result == nil {
		t.Fatalf("execution is %s: %+v", x.State, x)
	}
	r := x.Result
	if r.Exit.Code != code || r.Exit.Cause != cause || string(r.Stdout) != stdout {
		t.Errorf("exit %+v stdout %.200q stderr %.500q error %q, want code %d cause %s stdout %.200q",
			r.Exit, r.Stdout, r.Stderr, r.Error, code, cause, stdout)
	}
}

// failing is a provider whose node can die: after that, its calls have no effect.
type failing struct {
	provider.Provider
	dead *atomic.Bool
}

var errDead = errors.New("this node was killed")

func (p failing) Start(ctx context.Context, spec provider.Spec) (provider.Machine, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	m, err := p.Provider.Start(ctx, spec)
	return p.wrap(m, err)
}

func (p failing) Restore(ctx context.Context, spec provider.Spec, dir string) (provider.Machine, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	m, err := provider.Restore(ctx, p.Provider, spec, dir)
	return p.wrap(m, err)
}

func (p failing) Adopt(ctx context.Context, id engi.SandboxID) (provider.Machine, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	m, err := p.Provider.Adopt(ctx, id)
	return p.wrap(m, err)
}

func (p failing) wrap(m provider.Machine, err error) (provider.Machine, error) {
	if err != nil {
		return nil, err
	}
	mm := &failingMachine{Machine: m, dead: p.dead}
	machines.Store(m.ID(), mm)
	return mm, nil
}

func (p failing) Remove(ctx context.Context, id engi.SandboxID) error {
	if p.dead.Load() {
		return errDead
	}
	return p.Provider.Remove(ctx, id)
}

type failingMachine struct {
	provider.Machine
	dead *atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
}

// machines holds the machines that nodes of this process started or adopted last.
var machines sync.Map

// cut breaks the connections to a sandbox; the machine keeps running.
func cut(id engi.SandboxID) {
	m, _ := machines.Load(id)
	mm := m.(*failingMachine)
	mm.mu.Lock()
	defer mm.mu.Unlock()
	for _, c := range mm.conns {
		c.Close()
	}
	mm.conns = nil
}

func (m *failingMachine) Guest(ctx context.Context) (net.Conn, error) {
	c, err := m.Machine.Guest(ctx)
	if err == nil {
		m.mu.Lock()
		m.conns = append(m.conns, c)
		m.mu.Unlock()
	}
	return c, err
}

func (m *failingMachine) Close() error {
	if m.dead.Load() {
		return errDead
	}
	return m.Machine.Close()
}

// while calls act unless the node is dead.
func (m *failingMachine) while(act func() error) error {
	if m.dead.Load() {
		return errDead
	}
	return act()
}

func (m *failingMachine) Pause(ctx context.Context) error {
	return m.while(func() error { return provider.Pause(ctx, m.Machine) })
}

func (m *failingMachine) Resume(ctx context.Context) error {
	return m.while(func() error { return provider.Resume(ctx, m.Machine) })
}

func (m *failingMachine) Checkpoint(ctx context.Context, dir string) error {
	return m.while(func() error { return provider.Checkpoint(ctx, m.Machine, dir) })
}

func (m *failingMachine) Snapshot(ctx context.Context, dir string) error {
	return m.while(func() error { return provider.Snapshot(ctx, m.Machine, dir) })
}

func (m *failingMachine) SaveDisk(ctx context.Context, dir string) error {
	return m.while(func() error { return provider.SaveDisk(ctx, m.Machine, dir) })
}

func (m *failingMachine) Resize(ctx context.Context, size engi.Size) error {
	return provider.Resize(ctx, m.Machine, size)
}

// A faultyStore is a store in SQLite that can be made to fail.
type faultyStore struct {
	fleet.Store

	mu    sync.Mutex
	fault func(act string) error // returns the error of a write; nil for none; guarded by mu

	gets atomic.Int32 // number of reads of executions
}

func (s *faultyStore) Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (fleet.Record, error) {
	s.gets.Add(1)
	return s.Store.Get(ctx, viewer, id)
}

// openStore opens the database in dir until the test ends.
func openStore(t testing.TB, dir string) *faultyStore {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(dir, "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &faultyStore{Store: store.Fleet(db)}
}

// Fail makes every later write fail for which f returns an error; a nil f stops
// the failures. f is called with the name of the method, never concurrently.
func (s *faultyStore) Fail(f func(act string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

func (s *faultyStore) check(act string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return nil
	}
	return s.fault(act)
}

func (s *faultyStore) Create(ctx context.Context, r fleet.Record, b *fleet.SandboxRecord) error {
	if err := s.check("Create"); err != nil {
		return err
	}
	return s.Store.Create(ctx, r, b)
}

func (s *faultyStore) Update(ctx context.Context, from engi.ExecutionState, r fleet.Record, b *fleet.SandboxRecord) error {
	if err := s.check("Update"); err != nil {
		return err
	}
	return s.Store.Update(ctx, from, r, b)
}

func (s *faultyStore) PutSandbox(ctx context.Context, b fleet.SandboxRecord) error {
	if err := s.check("PutSandbox"); err != nil {
		return err
	}
	return s.Store.PutSandbox(ctx, b)
}

func (s *faultyStore) ForgetSandbox(ctx context.Context, id engi.SandboxID) error {
	if err := s.check("ForgetSandbox"); err != nil {
		return err
	}
	return s.Store.ForgetSandbox(ctx, id)
}

// failingStore is a store whose node can die.
type failingStore struct {
	fleet.Store
	dead *atomic.Bool
}

func (s failingStore) Create(ctx context.Context, r fleet.Record, b *fleet.SandboxRecord) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Create(ctx, r, b)
}

func (s failingStore) Update(ctx context.Context, from engi.ExecutionState, r fleet.Record, b *fleet.SandboxRecord) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Update(ctx, from, r, b)
}

func (s failingStore) PutSandbox(ctx context.Context, b fleet.SandboxRecord) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.PutSandbox(ctx, b)
}

func (s failingStore) ForgetSandbox(ctx context.Context, id engi.SandboxID) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.ForgetSandbox(ctx, id)
}

// testWriter sends a log to the test, one line at a time.
type testWriter struct{ t testing.TB }

var logging sync.Mutex

func (w testWriter) Write(b []byte) (int, error) {
	logging.Lock()
	defer logging.Unlock()
	w.t.Log(string(bytes.TrimRight(b, "\n")))
	return len(b), nil
}

// files returns the files below the node's directory, relative to it.
func (fx *fixture) files() (names []string) {
	fx.t.Helper()
	err := filepath.WalkDir(fx.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(fx.dir, p)
			names = append(names, rel)
		}
		if errors.Is(err, os.ErrNotExist) { // the file is being removed
			return nil
		}
		return err
	})
	if err != nil {
		fx.t.Fatal(err)
	}
	return names
}
