package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/engi"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

// options returns the options of a node with the fixture w.
func options(w *fixture) Options {
	return Options{
		Sandboxes: liveSandboxes{w}, Lifecycle: sleeper{fixture: w}, Snapshots: snapshots{fixture: w}, Volumes: volumes{fixture: w}, Workspaces: workspaces{w}, Shared: shared{w}, Store: w, Packages: packages{w},
		Defaults: Defaults{
			Mode: engi.SessionLazy, Size: engi.Size{Memory: 1 << 30}, Capacity: 300 << 20, TTL: 30 * time.Minute, Dormancy: 5 * time.Minute,
			Timeout: 5 * time.Minute, MaxAwake: 24 * time.Hour,
			Network: engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a.example"}},
			Grants:  []engi.Grant{{Secret: "sandbox.KEY", Hosts: []string{"b.example"}, Env: "KEY"}},
		},
	}
}

// start runs a manager until stop.
func start(t testing.TB, w *fixture) (m *Manager, stop func()) {
	t.Helper()
	return startWith(t, options(w))
}

func startWith(t testing.TB, o Options) (m *Manager, stop func()) {
	t.Helper()
	m, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- m.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return m, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func create(t testing.TB, m *Manager, spec engi.SessionSpec) engi.Session {
	t.Helper()
	s, err := m.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func runCode(t testing.TB, m *Manager, id engi.SessionID, code string) engi.CodeResult {
	t.Helper()
	res, err := m.RunCode(context.Background(), engi.Everyone, string(id), engi.CodeSpec{Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestLifeOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "s"})
		if w.booted() != 0 || s.State != engi.SessionIdle || s.Expires.Sub(s.Used) != 30*time.Minute {
			t.Errorf("a lazy session begins as %+v with %d boots", s, w.booted())
		}
		if g := s.Network.Grants; len(g) != 1 || g[0].Env != "KEY" || s.Network.Allow[0] != "a.example" {
			t.Errorf("network %+v", s.Network)
		}
		res := runCode(t, m, s.ID, "set k v\nprint hi\nget k")
		if !res.OK || string(res.Value) != `"v"` || res.Stdout != "hi\n" || res.BootTime == 0 {
			t.Errorf("%+v", res)
		}
		time.Sleep(4 * time.Minute)
		if res := runCode(t, m, s.ID, "get k"); res.BootTime != 0 || w.booted() != 1 {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		time.Sleep(6 * time.Minute) // dormancy
		x, err := m.Get(t.Context(), "ann", "s")
		if err != nil || x.State != engi.SessionIdle || x.Sandbox != "" || x.Volume == "" {
			t.Errorf("%+v, %v", x, err)
		}
		if res := runCode(t, m, s.ID, "get k"); string(res.Value) != `"v"` || res.BootTime == 0 || w.booted() != 2 {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		time.Sleep(31 * time.Minute)
		if sandboxes, volumes, _, _ := w.count(); sandboxes+volumes != 0 {
			t.Errorf("%d volumes, %d sandboxes after the time to live", volumes, sandboxes)
		}
		_, err = m.RunCode(t.Context(), "ann", string(s.ID), engi.CodeSpec{Code: "get k"}, nil)
		if !engi.Is(err, engi.NotFound) || !strings.Contains(err.Error(), "nobody used it for 30m0s") {
			t.Errorf("%v", err)
		}
		if x, err := m.Get(t.Context(), "ann", string(s.ID)); err != nil || x.State != engi.SessionTerminated {
			t.Errorf("%+v, %v", x, err)
		}
		// Its name is available again; after a day it is removed.
		create(t, m, engi.SessionSpec{Owner: "ann", Name: "s", TTL: 48 * time.Hour})
		time.Sleep(25 * time.Hour)
		if _, err := m.Get(t.Context(), "ann", string(s.ID)); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
	})
}

func TestRunsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{})
		runCode(t, m, s.ID, "set log -")
		var mu sync.Mutex
		var order []int
		var refused []error
		var wg sync.WaitGroup
		for i := range maxWaiting + 4 {
			wg.Go(func() {
				res, err := m.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "sleep 1s"}, nil)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refused = append(refused, err)
					return
				}
				if _, _, _, n := w.count(); n > 1 {
					t.Errorf("%d at once", n)
				}
				if !res.OK || res.Duration < time.Second {
					t.Errorf("%d: %+v", i, res)
				}
				order = append(order, i)
			})
			synctest.Wait() // so that they arrive in order
		}
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != maxWaiting+1 {
			t.Errorf("order %v", order)
		}
		for _, err := range refused {
			if !engi.Is(err, engi.Exhausted) || engi.RetryOf(err).Position != maxWaiting+1 {
				t.Errorf("%v at %+v", err, engi.RetryOf(err))
			}
		}
		if len(refused) != 3 {
			t.Errorf("%d refused", len(refused))
		}
		// A cancelled call only loses its own place.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		go func() {
			_, _ = m.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "sleep 1s"}, nil)
		}()
		synctest.Wait()
		if _, err := m.RunCode(ctx, engi.Everyone, string(s.ID), engi.CodeSpec{Code: "get x"}, nil); !engi.Is(err, engi.Expired) {
			t.Errorf("%v", err)
		}
		if res := runCode(t, m, s.ID, "get log"); string(res.Value) != `"-"` || res.QueueTime == 0 {
			t.Errorf("%+v", res)
		}
	})
}

func TestCodeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{})
		runCode(t, m, s.ID, "set k v")
		if res := runCode(t, m, s.ID, "print a\nthrow"); res.OK || res.Error.Error() != "Error: boom (line 1, column 2)" || res.Stdout != "a\n" {
			t.Errorf("%+v", res)
		}
		if res := runCode(t, m, s.ID, "exit"); res.OK || res.Error.Message != "the code ended the program with exit status 3" {
			t.Errorf("%+v", res.Error)
		}
		res, err := m.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "print b\nsleep 1h", Timeout: time.Second}, nil)
		if err != nil || res.OK || res.Error.Cause != engi.CauseTimeout || res.Stdout != "b\n" {
			t.Errorf("%+v, %v", res, err)
		}
		if w.booted() != 1 {
			t.Errorf("%d boots", w.booted())
		}
		// Code that ends its sandbox returns a result, and loses no file.
		if res := runCode(t, m, s.ID, "die"); res.OK || res.Error.Cause != engi.CauseSandboxLost {
			t.Errorf("%+v", res)
		}
		if res := runCode(t, m, s.ID, "get k"); string(res.Value) != `"v"` || w.booted() != 2 {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		// The same if the sandbox still appears to be running when its guest has ended.
		if res := runCode(t, m, s.ID, "burst"); res.OK || res.Error.Cause != engi.CauseMemory {
			t.Errorf("%+v", res)
		}
		if res := runCode(t, m, s.ID, "get k"); string(res.Value) != `"v"` || w.booted() != 3 {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		res, err = m.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "env A", Env: map[string]string{"A": "b"}}, nil)
		if err != nil || string(res.Value) != `"b"` {
			t.Errorf("%+v, %v", res, err)
		}
		for _, spec := range []engi.CodeSpec{{}, {Code: "x", Language: engi.Python}, {Code: "x", Timeout: time.Hour}, {Code: "x", Timeout: -1}, {Code: strings.Repeat("x", 2<<20)}} {
			if _, err := m.RunCode(t.Context(), engi.Everyone, string(s.ID), spec, nil); !engi.Is(err, engi.Invalid) {
				t.Errorf("%.20s %v: %v", spec.Code, spec.Timeout, err)
			}
		}
		w.lack(engi.Errorf(engi.Unavailable, "not installed").WithRemedy("look"))
		other := create(t, m, engi.SessionSpec{})
		if _, err := m.RunCode(t.Context(), engi.Everyone, string(other.ID), engi.CodeSpec{Code: "get k"}, nil); engi.RemedyOf(err) != "look" {
			t.Errorf("%v", err)
		}
	})
}

func TestCreateSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		a := create(t, m, engi.SessionSpec{Owner: "ann", Name: "x", Idempotency: "k"})
		b := create(t, m, engi.SessionSpec{Owner: "ann", Name: "x", Idempotency: "k"})
		if a.ID != b.ID {
			t.Error("a repeated key makes another session")
		}
		for want, spec := range map[*engi.SessionSpec]engi.Kind{
			{Owner: "ann", Name: "y", Idempotency: "k"}: engi.Conflict,
			{Owner: "ann", Name: "x"}:                   engi.Conflict,
			{Name: "a b"}:                               engi.Invalid,
			{Name: string(engi.NewSessionID())}:         engi.Invalid,
			{Mode: "hot"}:                               engi.Invalid,
			{Persistence: "all"}:                        engi.Invalid,
			{TTL: -1}:                                   engi.Invalid,
			{Dormancy: 48 * time.Hour}:                  engi.Invalid,
			{Size: engi.Size{Memory: -1}}:               engi.Invalid,
			{Metadata: map[string]string{"": "x"}}:      engi.Invalid,
			{Metadata: map[string]string{"x": strings.Repeat("y", 300)}}: engi.Invalid,
		} {
			if _, err := m.Create(t.Context(), *want); !engi.Is(err, spec) {
				t.Errorf("%+v: %v, want %s", *want, err, spec)
			}
		}
		if _, err := m.Get(t.Context(), "bob", string(a.ID)); !engi.Is(err, engi.NotFound) {
			t.Errorf("somebody else: %v", err)
		}
		if _, _, err := m.Enter(t.Context(), "bob", "x"); !engi.Is(err, engi.NotFound) {
			t.Errorf("somebody else: %v", err)
		}
		for _, f := range []func(context.Context, engi.Viewer, string) error{m.Release, m.Terminate} {
			for _, viewer := range []engi.Viewer{"bob", ""} {
				if err := f(t.Context(), viewer, "x"); !engi.Is(err, engi.NotFound) {
					t.Errorf("somebody else: %v", err)
				}
			}
		}
		// Warm sessions boot at once.
		warm := create(t, m, engi.SessionSpec{Mode: engi.SessionWarm})
		if warm.State != engi.SessionBooting {
			t.Errorf("%+v", warm)
		}
		time.Sleep(time.Second)
		if x, err := m.Get(t.Context(), engi.Everyone, string(warm.ID)); err != nil || x.State != engi.SessionRunning {
			t.Errorf("%+v, %v", x, err)
		}
		if res := runCode(t, m, warm.ID, "get x"); res.BootTime != 0 {
			t.Errorf("%+v", res)
		}
		// Policies of sessions: the access for packages is added if they allow
		// any egress.
		for mode, grants := range map[engi.Network]int{engi.NetworkNone: 0, engi.NetworkIsolated: 0, engi.NetworkRestricted: 1, engi.NetworkOpen: 1} {
			if s := create(t, m, engi.SessionSpec{Network: engi.NetworkPolicy{Mode: mode}}); len(s.Network.Grants) != grants || s.Network.Mode != mode {
				t.Errorf("%s: %+v", mode, s.Network)
			}
		}
	})
}

// timeless is a test without a deadline, which synctest does not support.
type timeless struct{ rapid.TB }

// TestSessionsAcrossPowerCuts performs operations of users in random order, and cuts the
// power between any two steps. Acknowledged results must persist, and
// nothing without an owner must be left.
func TestSessionsAcrossPowerCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			w := newFixture()
			m, stop := start(t, w)
			type model struct {
				s    engi.Session
				data map[string]string   // acknowledged data
				may  map[string][]string // unacknowledged data
				used time.Time
				over bool   // the session has ended, or may have
				disk string // saved file
			}
			var all []*model
			pick := func() *model {
				var alive []*model
				for _, x := range all {
					if !x.over {
						alive = append(alive, x)
					}
				}
				if len(alive) == 0 {
					return nil
				}
				return rapid.SampledFrom(alive).Draw(rt, "session")
			}
			restart := func() {
				w.mu.Lock()
				w.off, w.left = true, 0
				w.mu.Unlock()
				stop()
				w.mu.Lock()
				w.off, w.left = false, -1
				for _, b := range w.sandboxes {
					b.uses = 0
				}
				w.mu.Unlock()
				m, stop = start(t, w)
			}
			defer func() { stop() }()
			n := 0
			rt.Repeat(map[string]func(*rapid.T){
				"create": func(rt *rapid.T) {
					spec := engi.SessionSpec{
						Mode:        rapid.SampledFrom([]engi.SessionMode{engi.SessionLazy, engi.SessionWarm}).Draw(rt, "mode"),
						Persistence: rapid.SampledFrom([]engi.Persistence{engi.PersistSession, engi.PersistSnapshot, engi.PersistOverlay, engi.PersistNone}).Draw(rt, "persistence"),
					}
					s, err := m.Create(context.Background(), spec)
					if err == nil {
						all = append(all, &model{s: s, data: map[string]string{}, may: map[string][]string{}, used: time.Now()})
					}
				},
				"set": func(rt *rapid.T) {
					x := pick()
					if x == nil {
						rt.Skip()
					}
					n++
					k, v := fmt.Sprint("k", n%3), fmt.Sprint("v", n)
					before := time.Now()
					res, err := m.RunCode(context.Background(), engi.Everyone, string(x.s.ID), engi.CodeSpec{Code: "set " + k + " " + v}, nil)
					switch {
					case err == nil && res.OK:
						x.data[k], x.may[k], x.used = v, nil, time.Now()
					case engi.Is(err, engi.NotFound):
						if before.Sub(x.used) < x.s.TTL-time.Second {
							rt.Fatalf("%s is over too early: %v", x.s.ID, err)
						}
						x.over = true
					default:
						x.may[k] = append(x.may[k], v)
					}
				},
				"get": func(rt *rapid.T) {
					x := pick()
					if x == nil || x.s.Persistence == engi.PersistNone {
						rt.Skip()
					}
					for _, k := range []string{"k0", "k1", "k2"} {
						res, err := m.RunCode(context.Background(), engi.Everyone, string(x.s.ID), engi.CodeSpec{Code: "get " + k}, nil)
						if err != nil {
							if engi.Is(err, engi.NotFound) {
								x.over = true
							}
							return
						}
						x.used = time.Now()
						got := strings.Trim(string(res.Value), `"`)
						if res.OK && got != x.data[k] && !slices.Contains(x.may[k], got) {
							rt.Fatalf("%s of %s is %q, want %q or one of %v", k, x.s.ID, got, x.data[k], x.may[k])
						}
					}
				},
				"release": func(rt *rapid.T) {
					if x := pick(); x != nil {
						_ = m.Release(context.Background(), engi.Everyone, string(x.s.ID))
					}
				},
				"change the disk": func(rt *rapid.T) {
					x := pick()
					if x == nil || x.s.Persistence != engi.PersistOverlay {
						rt.Skip()
					}
					ctx, id := context.Background(), string(x.s.ID)
					g, release, err := m.Enter(ctx, engi.Everyone, id)
					if err != nil {
						return
					}
					x.used = time.Now()
					n++
					name := fmt.Sprint("/etc/f", n)
					if x.disk != "" {
						if _, err := g.Stat(ctx, x.disk); engi.Is(err, engi.NotFound) {
							rt.Fatalf("%s has no %s, which was saved", id, x.disk)
						}
					}
					err = g.Write(ctx, name, strings.NewReader(""), engi.WriteOptions{})
					release()
					if err != nil {
						return
					}
					if _, err := m.SaveWorkspace(ctx, engi.Everyone, id); err == nil {
						x.disk = name
					}
				},
				"change the state": func(rt *rapid.T) {
					x := pick()
					if x == nil {
						rt.Skip()
					}
					ctx, id := context.Background(), string(x.s.ID)
					change := rapid.SampledFrom([]string{"suspend", "hibernate", "resume", "attach", "detach"}).Draw(rt, "change")
					var err error
					switch change {
					case "suspend":
						_, err = m.Suspend(ctx, engi.Everyone, id)
					case "hibernate":
						_, err = m.Hibernate(ctx, engi.Everyone, id)
					case "resume":
						_, err = m.Resume(ctx, engi.Everyone, id)
					case "attach":
						_, err = m.Attach(ctx, engi.Everyone, id, "a")
					case "detach":
						_, err = m.Detach(ctx, engi.Everyone, id, "a")
					}
					// A client that suspends a session does not use it.
					if err == nil && (change == "resume" || change == "attach") {
						x.used = time.Now()
					}
					x.over = x.over || engi.Is(err, engi.NotFound)
				},
				"change the sandbox's": func(rt *rapid.T) {
					w.mu.Lock()
					defer w.mu.Unlock()
					for _, b := range w.sandboxes {
						if b.uses == 0 {
							b.State = rapid.SampledFrom([]engi.State{engi.Running, engi.Paused, engi.Hibernated}).Draw(rt, "state")
							return
						}
					}
				},
				"terminate": func(rt *rapid.T) {
					if x := pick(); x != nil {
						x.over = true
						_ = m.Terminate(context.Background(), engi.Everyone, string(x.s.ID))
					}
				},
				"kill the sandbox": func(rt *rapid.T) {
					w.mu.Lock()
					defer w.mu.Unlock()
					for id, b := range w.sandboxes {
						if b.uses == 0 && (b.Lifetime.OnTimeout != engi.EndHibernate) {
							w.drop(id)
							return
						}
					}
				},
				"wait": func(rt *rapid.T) { time.Sleep(time.Duration(rapid.IntRange(1, 700).Draw(rt, "seconds")) * time.Second) },
				"cut the power soon": func(rt *rapid.T) {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.left = rapid.IntRange(0, 12).Draw(rt, "calls")
				},
				"restart": func(rt *rapid.T) { restart() },
				"": func(rt *rapid.T) {
					w.mu.Lock()
					off := w.off
					w.mu.Unlock()
					if off {
						restart()
					}
				},
			})
			restart()
			time.Sleep(22 * time.Second) // not at a multiple of the interval in which the manager checks sessions
			w.mu.Lock()
			defer w.mu.Unlock()
			for id, b := range w.sandboxes {
				r := w.records[engi.SessionID(b.Notes[noteKey])]
				if r.Sandbox != id || !r.Ended.IsZero() {
					rt.Fatalf("sandbox %s is nobody's: session %+v", id, r)
				}
			}
			if len(w.faults) > 0 {
				rt.Fatal(w.faults)
			}
			for id, r := range w.records {
				want := engi.SessionIdle
				if b := w.sandboxes[r.Sandbox]; b != nil {
					want = sessionStates[b.State]
				}
				if !r.Ended.IsZero() {
					want = engi.SessionTerminated
				}
				if r.State != want {
					rt.Fatalf("session %s is %s in the log, and %s", id, r.State, want)
				}
			}
			for id := range w.snapshots {
				if !slices.ContainsFunc(slices.Collect(maps.Values(w.records)), func(r Record) bool { return r.Overlay == id || slices.Contains(r.Stale, id) }) {
					rt.Fatalf("snapshot %s is nobody's", id)
				}
			}
			for id, v := range w.volumes {
				r := w.records[engi.SessionID(strings.TrimPrefix(v.Name, "session-"))]
				if r.ID == "" || !r.Ended.IsZero() {
					rt.Fatalf("volume %s is nobody's: session %+v", id, r)
				}
			}
			for _, x := range all {
				if r := w.records[x.s.ID]; !x.over && (r.ID == "" || !r.Ended.IsZero()) && time.Since(x.used) < x.s.TTL-time.Minute {
					rt.Fatalf("session %s is lost: %+v", x.s.ID, r)
				}
			}
		})
	})
}

func TestNothingIsServedBeforeAndAfter(t *testing.T) {
	w := newFixture()
	m, err := Open(t.Context(), options(w))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), engi.SessionSpec{}); !engi.Is(err, engi.Unavailable) {
		t.Errorf("%v", err)
	}
	w.off = true
	if _, err := Open(t.Context(), options(w)); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
