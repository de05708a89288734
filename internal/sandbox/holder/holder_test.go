package holder_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
	"github.com/engi-dev/engi/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const note = "thing" // key of the note with the name of the thing

// A fixture holds the state that outlives a node: machines, their records, and the record of one thing.
type fixture struct {
	t     *testing.T
	host  *memory.Host
	store fleet.Store
	dir   string

	lock holder.Lock

	mu      sync.Mutex
	left    int  // number of acts until the node is killed; negative means never; guarded by mu, like all fields below
	dead    bool // the node was killed: its acts have no effect
	sandbox engi.SandboxID
	boots   int
	begun   bool
	entered map[engi.SandboxID]int
	refuse  error // error of entering the next sandbox
}

func newFixture(t *testing.T) *fixture {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, host: memory.NewHost(t.TempDir()), store: store.Fleet(db), dir: t.TempDir(), lock: holder.NewLock(), left: -1, entered: map[engi.SandboxID]int{}}
	t.Cleanup(func() {
		p := memory.New(f.host)
		ids, err := p.Found(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := p.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		db.Close()
	})
	return f
}

// A node is one run of a server.
type node struct {
	*fixture
	holder.Holder
	fleet *fleet.Manager
	stop  func()
}

// start runs a node until stop is called, or the test ends.
func (f *fixture) start() *node {
	f.t.Helper()
	m, err := fleet.Open(f.t.Context(), fleet.Options{
		Providers: []provider.Provider{memory.New(f.host)},
		Templates: fleettest.NewTemplates(engi.Template{Name: "base", Digest: "d1", Root: f.t.TempDir(), Env: map[string]string{"PATH": os.Getenv("PATH")}, Shell: "/bin/sh"}),
		Store:     f.store, Dir: f.dir, Log: slog.New(slog.DiscardHandler), Boots: 4,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- m.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-over:
		f.t.Fatal("Run ended early: ", err)
	}
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			f.t.Error("Run: ", err)
		}
	})
	f.t.Cleanup(stop)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.dead = -1, false
	return &node{f, holder.Holder{
		Sandboxes: mortal{m.Sandboxes(), f}, Log: slog.New(slog.DiscardHandler),
		Thing: func(sb engi.Sandbox) string { return sb.Notes[note] },
	}, m, stop}
}

// restart kills the node, if it is still alive, and starts the next one.
func (n *node) restart() *node {
	n.stop()
	return n.start()
}

var errDead = engi.Errorf(engi.Unavailable, "the node was killed")

// act calls do, unless the node is dead or is killed now.
func (f *fixture) act(do func() error) error {
	f.mu.Lock()
	f.dead = f.dead || f.left == 0
	f.left--
	dead := f.dead
	f.mu.Unlock()
	if dead {
		return errDead
	}
	return do()
}

// mortal is the fleet for a node that may be killed.
type mortal struct {
	engi.Sandboxes
	*fixture
}

func (m mortal) Create(ctx context.Context, spec engi.SandboxSpec) (sb engi.Sandbox, err error) {
	err = m.act(func() error { sb, err = m.Sandboxes.Create(ctx, spec); return err })
	return sb, err
}

func (m mortal) Stop(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) error {
	return m.act(func() error { return m.Sandboxes.Stop(ctx, viewer, id) })
}

// claim returns the current claim of the thing, according to its record. With a key, creation is
// idempotent.
func (n *node) claim(key string) holder.Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	change := func(f func()) error {
		return n.act(func() error {
			n.mu.Lock()
			defer n.mu.Unlock()
			f()
			return nil
		})
	}
	return holder.Claim{
		Thing: "mine", Key: key, Sandbox: n.sandbox, Boots: n.boots,
		Begin: func() (engi.SandboxSpec, error) {
			return engi.SandboxSpec{Owner: "alice", Template: "base", Notes: map[string]string{note: "mine"}, Lifetime: engi.Lifetime{AutoResume: true}}, change(func() { n.sandbox, n.begun = "", true })
		},
		Record: func(id engi.SandboxID, boots int) error {
			return change(func() { n.sandbox, n.boots = id, boots })
		},
		Enter: func(id engi.SandboxID, created bool) error {
			return n.act(func() error {
				g, leave, err := n.Enter(n.t.Context(), id)
				if err != nil {
					return err
				}
				defer leave()
				n.mu.Lock()
				err, n.refuse = n.refuse, nil
				n.mu.Unlock()
				if err != nil {
					return err
				}
				if _, err := g.Stat(n.t.Context(), "/"); err != nil {
					return err
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				n.begun = false
				n.entered[id]++
				return nil
			})
		},
	}
}

// open opens the thing, as its users do.
func (n *node) open(key string) (created bool, err error) {
	release, err := n.lock.Acquire(n.t.Context(), "thing")
	if err != nil {
		return false, err
	}
	defer release()
	return n.Open(n.t.Context(), n.claim(key))
}

func (n *node) mustOpen(key string, created bool) engi.SandboxID {
	n.t.Helper()
	did, err := n.open(key)
	if err != nil || did != created {
		n.t.Fatalf("open: created %v, %v; want %v", did, err, created)
	}
	return n.recorded()
}

// release releases the sandbox of the thing.
func (n *node) release() error {
	release, err := n.lock.Acquire(n.t.Context(), "thing")
	if err != nil {
		return err
	}
	defer release()
	n.mu.Lock()
	id, begun := n.sandbox, n.begun
	n.mu.Unlock()
	if err := n.Release(n.t.Context(), "mine", id, begun); err != nil {
		return err
	}
	return n.act(func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.sandbox, n.begun = "", false
		return nil
	})
}

func (f *fixture) recorded() engi.SandboxID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sandbox
}

// only checks that there are exactly the given sandboxes.
func (n *node) only(want ...engi.SandboxID) {
	n.t.Helper()
	all, err := n.Sandboxes.List(n.t.Context(), engi.Everyone, engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		n.t.Fatal(err)
	}
	ok := len(all) == len(want)
	for i := range min(len(all), len(want)) {
		ok = ok && all[i].ID == want[i] && want[i] != ""
	}
	if !ok {
		n.t.Errorf("there are %d sandboxes, want %v: %+v", len(all), want, all)
	}
}

// TestKilledBetweenAnyTwoSteps kills the node before and after each step of opening and of
// releasing a thing. The next node has one sandbox, or none, and the record names it.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	next := map[string]func(t *testing.T, n *node){
		"open again": func(t *testing.T, n *node) {
			if _, err := n.open("mine"); err != nil {
				t.Fatal(err)
			}
			n.only(n.recorded())
		},
		"release": func(t *testing.T, n *node) {
			if err := n.release(); err != nil {
				t.Fatal(err)
			}
			n.only()
		},
		"adopt": func(t *testing.T, n *node) {
			if err := n.Sweep(t.Context(), func(sb engi.Sandbox) (bool, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.sandbox == "" {
					n.sandbox = sb.ID
				}
				return n.sandbox == sb.ID, nil
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := n.open(""); err != nil {
				t.Fatal(err)
			}
			n.only(n.recorded())
		},
		"destroy": func(t *testing.T, n *node) {
			if err := n.Sweep(t.Context(), func(sb engi.Sandbox) (bool, error) { return n.recorded() == sb.ID, nil }); err != nil {
				t.Fatal(err)
			}
			id := n.recorded()
			if _, gone, err := n.Look(t.Context(), id); id == "" || err == nil && gone {
				n.only()
			} else {
				n.only(id)
			}
		},
	}
	before := map[string]struct {
		from int // the first step of interest
		do   func(n *node) error
	}{
		"open":    {0, func(n *node) error { _, err := n.open("mine"); return err }},
		"release": {4, func(n *node) error { n.mustOpen("mine", true); return n.release() }},
		"replace": {4, func(n *node) error {
			id := n.mustOpen("mine", true)
			if err := n.fleet.Sandboxes().Stop(n.t.Context(), engi.Everyone, id); err != nil {
				return err
			}
			_, err := n.open("mine")
			return err
		}},
	}
	for what, b := range before {
		for then, check := range next {
			t.Run(what+", "+then, func(t *testing.T) {
				t.Parallel()
				n := newFixture(t).start()
				for step, killed := b.from, true; killed; step++ {
					n.mu.Lock()
					n.left, n.boots = step, 100*step // no key was used before
					n.mu.Unlock()
					err := b.do(n)
					if killed = n.dead; killed != (err != nil) {
						t.Fatalf("step %d: killed %v, %v", step, killed, err)
					}
					n = n.restart()
					check(t, n)
					if err := n.release(); err != nil {
						t.Fatal(err)
					}
					n.only()
				}
			})
		}
	}
}

func TestTwoUsesAtOnce(t *testing.T) {
	n := newFixture(t).start()
	var work sync.WaitGroup
	var mu sync.Mutex
	creations := 0
	for range 8 {
		work.Go(func() {
			created, err := n.open("mine")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				creations++
			}
		})
	}
	work.Wait()
	if id := n.recorded(); creations != 1 || n.entered[id] != 8 || len(n.entered) != 1 {
		t.Errorf("%d were created, and entered %v", creations, n.entered)
	}
	n.only(n.recorded())
}

func TestASandboxThatIsGoneIsReplaced(t *testing.T) {
	n := newFixture(t).start()
	first := n.mustOpen("mine", true)
	if again := n.mustOpen("mine", false); again != first {
		t.Errorf("%s was replaced by %s", first, again)
	}
	if err := n.fleet.Lifecycle().Hibernate(t.Context(), engi.Everyone, first, false); err != nil {
		t.Fatal(err)
	}
	if n.Runs(t.Context(), first) {
		t.Error("it runs while it sleeps")
	}
	if again := n.mustOpen("mine", false); again != first {
		t.Errorf("%s was asleep and was replaced by %s", first, again)
	}
	if err := n.fleet.Sandboxes().Stop(t.Context(), engi.Everyone, first); err != nil {
		t.Fatal(err)
	}
	if _, gone, err := n.Look(t.Context(), first); err != nil || !gone {
		t.Errorf("gone %v, %v", gone, err)
	}
	if again := n.mustOpen("mine", true); again == first {
		t.Error("it is gone and was not replaced")
	}
	n.only(n.recorded())
}

func TestABootThatFails(t *testing.T) {
	n := newFixture(t).start()
	c := n.claim("mine")
	begin := c.Begin
	c.Begin = func() (engi.SandboxSpec, error) {
		spec, err := begin()
		spec.Template = "none"
		return spec, err
	}
	if created, err := n.Open(t.Context(), c); !created || !engi.Is(err, engi.NotFound) {
		t.Errorf("no template: %v, %v", created, err)
	}
	n.only()
	n.refuse = engi.Errorf(engi.Unavailable, "it does not answer")
	if created, err := n.open("mine"); !created || !engi.Is(err, engi.Unavailable) {
		t.Errorf("no answer: %v, %v", created, err)
	}
	first := n.recorded()
	n.refuse = engi.Errorf(engi.Unavailable, "it does not answer yet")
	if created, err := n.open("mine"); created || !engi.Is(err, engi.Unavailable) {
		t.Errorf("no answer yet: %v, %v", created, err)
	}
	if again := n.mustOpen("mine", false); again != first {
		t.Errorf("%s does not answer and was replaced by %s", first, again)
	}
	n.only(first)
}

// TestASandboxThatIsNotRecorded: the record of the thing cannot be written after its sandbox is created.
func TestASandboxThatIsNotRecorded(t *testing.T) {
	n := newFixture(t).start()
	failed := engi.Errorf(engi.Unavailable, "the disk is full")
	for _, key := range []string{"", "mine"} {
		var first engi.SandboxID
		c := n.claim(key)
		c.Record = func(id engi.SandboxID, _ int) error { first = id; return failed }
		if created, err := n.Open(t.Context(), c); !created || !errors.Is(err, failed) {
			t.Errorf("key %q: %v, %v", key, created, err)
		}
		if key == "" {
			n.only()
		} else if id := n.mustOpen(key, true); id != first {
			t.Errorf("key %q: %s was not found again, but %s created", key, first, id)
		}
	}
	n.only(n.recorded())
}

// TestAnotherConfiguration kills the node before it has recorded a sandbox. The next node
// has another configuration, which results in another spec.
func TestAnotherConfiguration(t *testing.T) {
	n := newFixture(t).start()
	n.left = 2
	if _, err := n.open("mine"); err == nil {
		t.Fatal("it was not killed")
	}
	n = n.restart()
	c := n.claim("mine")
	begin := c.Begin
	c.Begin = func() (engi.SandboxSpec, error) {
		spec, err := begin()
		spec.Lifetime.Idle = time.Hour
		return spec, err
	}
	if _, err := n.Open(t.Context(), c); err != nil {
		t.Error(err)
	}
	n.only(n.recorded())
}

// TestReleaseWhileCreating releases a thing whose sandbox is being created.
func TestReleaseWhileCreating(t *testing.T) {
	n := newFixture(t).start()
	opening, go_on := make(chan struct{}), make(chan struct{})
	c := n.claim("mine")
	record := c.Record
	c.Record = func(id engi.SandboxID, boots int) error {
		close(opening)
		<-go_on
		return record(id, boots)
	}
	release, ok := n.lock.Try()
	if !ok {
		t.Fatal("somebody has the lock")
	}
	var work sync.WaitGroup
	work.Go(func() {
		defer release()
		if _, err := n.Open(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
	<-opening
	if _, ok := n.lock.Try(); ok {
		t.Error("two have the lock")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.lock.Acquire(ctx, "thing"); !engi.Is(err, engi.Expired) {
		t.Errorf("wait for the lock: %v", err)
	}
	work.Go(func() {
		if err := n.release(); err != nil {
			t.Error(err)
		}
	})
	close(go_on)
	work.Wait()
	n.only()
	if id := n.recorded(); id != "" {
		t.Errorf("the record names %s", id)
	}
}

// sandboxes is a fake whose answers a test sets.
type sandboxes struct {
	engi.Sandboxes
	enter func() error
	stop  func(engi.SandboxID) error
	all   []engi.Sandbox
}

func (s sandboxes) Enter(context.Context, engi.Viewer, engi.SandboxID) (engi.Guest, func(), error) {
	return nil, nil, s.enter()
}

func (s sandboxes) Stop(_ context.Context, _ engi.Viewer, id engi.SandboxID) error { return s.stop(id) }

func (s sandboxes) List(context.Context, engi.Viewer, engi.SandboxFilter) ([]engi.Sandbox, error) {
	return s.all, nil
}

// TestReconnectIsPatient reconnects to a sandbox that does not answer for a while.
func TestReconnectIsPatient(t *testing.T) {
	for _, x := range []struct {
		kind  engi.Kind
		tries int
		took  time.Duration
	}{{engi.Unavailable, 6, 3100 * time.Millisecond}, {engi.NotFound, 1, 0}, {engi.Exhausted, 1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			tries, began := 0, time.Now()
			h := holder.Holder{Sandboxes: sandboxes{enter: func() error { tries++; return engi.Errorf(x.kind, "no") }}}
			_, leave, err := h.Reconnect(t.Context(), "sb")
			if took := time.Since(began); !engi.Is(err, x.kind) || tries != x.tries || took != x.took {
				t.Errorf("%s: %v after %d tries and %v", x.kind, err, tries, took)
			}
			leave()
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			if _, _, err := h.Reconnect(ctx, "sb"); x.tries > 1 && !engi.Is(err, engi.Expired) {
				t.Errorf("%s: %v once the caller has gone", x.kind, err)
			}
		})
	}
}

// TestWhatCannotBeDestroyed: a sandbox that cannot be destroyed prevents no node from
// starting, and no other sandbox from being destroyed.
func TestWhatCannotBeDestroyed(t *testing.T) {
	mine := map[string]string{note: "mine"}
	var stopped []engi.SandboxID
	h := holder.Holder{
		Sandboxes: sandboxes{all: []engi.Sandbox{{ID: "stuck", Notes: mine}, {ID: "gone", Notes: mine}, {ID: "other"}, {ID: "good", Notes: mine}}, stop: func(id engi.SandboxID) error {
			stopped = append(stopped, id)
			switch id {
			case "stuck":
				return engi.Errorf(engi.Unavailable, "it does not end")
			case "gone":
				return engi.Errorf(engi.NotFound, "there is no such sandbox")
			}
			return nil
		}},
		Thing: func(sb engi.Sandbox) string { return sb.Notes[note] }, Log: slog.New(slog.DiscardHandler),
	}
	if err := h.Sweep(t.Context(), func(engi.Sandbox) (bool, error) { return false, nil }); err != nil || len(stopped) != 3 {
		t.Errorf("sweep: %v, stopped %v", err, stopped)
	}
	stopped = nil
	if err := h.Release(t.Context(), "mine", "", true); !engi.Is(err, engi.Unavailable) || len(stopped) != 3 {
		t.Errorf("release all: %v, stopped %v", err, stopped)
	}
	stopped = nil
	if err := errors.Join(h.Release(t.Context(), "mine", "", false), h.Release(t.Context(), "mine", "gone", true)); err != nil || len(stopped) != 1 {
		t.Errorf("release: %v, stopped %v", err, stopped)
	}
	failed := engi.Errorf(engi.Internal, "no record can be read")
	if err := h.Sweep(t.Context(), func(engi.Sandbox) (bool, error) { return false, failed }); !errors.Is(err, failed) {
		t.Errorf("sweep without records: %v", err)
	}
}
