package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// links are the links of machines, which outlive an egress gateway.
type links struct {
	mu  sync.Mutex
	all map[engi.SandboxID]bool
}

// A fakeEgress only records links and policies. It dies with its node.
type fakeEgress struct {
	links *links

	mu     sync.Mutex
	dead   bool
	open   map[engi.SandboxID]engi.NetworkPolicy
	opened []engi.SandboxID
	refuse map[string]error // errors of Attach and Open
}

func (l *links) egress() *fakeEgress {
	return &fakeEgress{links: l, open: map[engi.SandboxID]engi.NetworkPolicy{}, refuse: map[string]error{}}
}

func (w *fakeEgress) fail(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse[what] = err
}

// Permit implements fleet.Egress.
func (w *fakeEgress) Permit(_ context.Context, owner engi.Owner, p engi.NetworkPolicy) error {
	if slices.Contains(p.Allow, "not of "+string(owner)) {
		return engi.Errorf(engi.Denied, "not of %s", owner)
	}
	return w.Check(p)
}

func (w *fakeEgress) Check(p engi.NetworkPolicy) error {
	if slices.Contains(p.Allow, "forbidden") {
		return engi.Errorf(engi.Denied, "forbidden")
	}
	return nil
}

func (w *fakeEgress) Attach(ctx context.Context, id engi.SandboxID) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refuse["attach"]; err != nil {
		return "", err
	}
	w.links.mu.Lock()
	defer w.links.mu.Unlock()
	if w.links.all[id] {
		return "", engi.Errorf(engi.Conflict, "%s has a link", id)
	}
	w.links.all[id] = true
	return "/netns/" + string(id), nil
}

func (w *fakeEgress) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refuse["open"]; err != nil {
		return engi.NetworkSetup{}, err
	}
	w.links.mu.Lock()
	defer w.links.mu.Unlock()
	if !w.links.all[id] {
		return engi.NetworkSetup{}, engi.Errorf(engi.NotFound, "%s has no link", id)
	}
	if p.Mode == "" || p.Mode == engi.NetworkNone {
		delete(w.open, id)
		return engi.NetworkSetup{}, nil
	}
	w.open[id] = p
	w.opened = append(w.opened, id)
	return engi.NetworkSetup{
		Resolver: netip.MustParseAddr("10.0.0.1"),
		Env:      map[string]string{"EGRESS": string(owner) + " " + string(p.Mode) + " " + strings.Join(p.Allow, ",")},
	}, nil
}

func (w *fakeEgress) Detach(ctx context.Context, id engi.SandboxID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil
	}
	delete(w.open, id)
	w.links.mu.Lock()
	defer w.links.mu.Unlock()
	delete(w.links.all, id)
	return nil
}

func (w *fakeEgress) Adopt(ctx context.Context, ids []engi.SandboxID) error {
	w.links.mu.Lock()
	defer w.links.mu.Unlock()
	maps.DeleteFunc(w.links.all, func(id engi.SandboxID, _ bool) bool { return !slices.Contains(ids, id) })
	return nil
}

// die simulates the kill of the egress gateway's node.
func (w *fakeEgress) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

// policy returns the policy in force for a sandbox, if there is one.
func (w *fakeEgress) policy(id engi.SandboxID) (engi.NetworkPolicy, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.open[id]
	return p, ok
}

func (l *links) have() []engi.SandboxID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.all))
}

// withEgress returns an edit that gives a node an egress gateway, and the pools.
func withEgress(w *fakeEgress, ps ...fleet.PoolConfig) func(*fleet.Options) {
	return func(o *fleet.Options) { o.Egress, o.Pools = w, ps }
}

func newLinks() *links { return &links{all: map[engi.SandboxID]bool{}} }

func restricted(allow ...string) engi.NetworkPolicy {
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: allow}
}

func (n *node) setNetwork(id engi.SandboxID, p engi.NetworkPolicy) error {
	n.t.Helper()
	_, err := n.Sandboxes().Update(n.t.Context(), "alice", id, engi.SandboxUpdate{Network: &p})
	return err
}

const askNetwork = `echo "${EGRESS-nothing}"`

func TestNetworksOfSandboxes(t *testing.T) {
	fx, l := newFixture(t), newLinks()
	egress := l.egress()
	n := fx.start(withEgress(egress, bare)).warm()
	n.eventually("instances of the pool have links", func() bool { return slices.Equal(l.have(), fx.machines()) })
	s := n.create(engi.SandboxSpec{Network: restricted("a.example")})
	if got := n.mustRun(s.ID, askNetwork); got != "alice restricted a.example\n" {
		t.Errorf("output %q", got)
	}
	cold := n.create(engi.SandboxSpec{Network: restricted("c.example"), Size: engi.Size{Disk: 64 << 20}})
	if got := n.mustRun(cold.ID, askNetwork); got != "alice restricted c.example\n" {
		t.Errorf("output in one that was booted for it: %q", got)
	}
	none := n.create(engi.SandboxSpec{})
	if got := n.mustRun(none.ID, askNetwork); got != "nothing\n" {
		t.Errorf("output in one without: %q", got)
	}

	// Changes are in force at once, and the guest is told.
	if err := n.setNetwork(s.ID, restricted("b.example")); err != nil {
		t.Fatal(err)
	}
	if p, _ := egress.policy(s.ID); !slices.Equal(p.Allow, []string{"b.example"}) {
		t.Errorf("in force is %+v", p)
	}
	if got := n.mustRun(s.ID, askNetwork); got != "alice restricted b.example\n" {
		t.Errorf("output %q", got)
	}
	// A refused change has no effect.
	wantKind(t, "a policy that is refused", n.setNetwork(s.ID, restricted("forbidden")), engi.Denied)
	wantKind(t, "a policy that is refused to its owner", n.setNetwork(s.ID, restricted("not of alice")), engi.Denied)
	egress.fail("open", engi.Errorf(engi.NotFound, "no such secret"))
	wantKind(t, "a policy that cannot be", n.setNetwork(s.ID, restricted("x.example")), engi.NotFound)
	egress.fail("open", nil)
	if got := n.sandbox(s.ID).Network.Allow; !slices.Equal(got, []string{"b.example"}) {
		t.Errorf("the record says %v", got)
	}
	if got := n.mustRun(s.ID, askNetwork); got != "alice restricted b.example\n" {
		t.Errorf("output %q", got)
	}
	if err := n.setNetwork(s.ID, engi.NetworkPolicy{Mode: engi.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	if _, ok := egress.policy(s.ID); ok {
		t.Error("it is open still")
	}
	if got := n.mustRun(s.ID, askNetwork); got != "nothing\n" {
		t.Errorf("output %q", got)
	}

	_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Network: restricted("forbidden")})
	wantKind(t, "a sandbox with a policy that is refused", err, engi.Denied)
	_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Network: restricted("not of alice")})
	wantKind(t, "a sandbox with a policy that is refused to its owner", err, engi.Denied)
	egress.fail("open", engi.Errorf(engi.NotFound, "no such secret"))
	for _, spec := range []engi.SandboxSpec{{Network: restricted()}, {Network: restricted(), Size: engi.Size{Disk: 64 << 20}}} {
		spec.Owner = "alice"
		_, err = n.Sandboxes().Create(t.Context(), spec)
		wantKind(t, "a sandbox with a policy that cannot be", err, engi.NotFound)
	}
	egress.fail("open", nil)
	for _, id := range []engi.SandboxID{s.ID, cold.ID, none.ID} {
		if err := n.Sandboxes().Stop(t.Context(), "alice", id); err != nil {
			t.Fatal(err)
		}
	}
	n.warm()
	n.eventually("only the pool has links", func() bool {
		return len(l.have()) == 2 && slices.Equal(l.have(), fx.machines())
	})
}

func TestNetworksOfExecutions(t *testing.T) {
	fx, l := newFixture(t), newLinks()
	egress := l.egress()
	n := fx.start(withEgress(egress, warmBash)).warm()
	x := n.execute(script(askNetwork))
	wantAnswer(t, x, 0, engi.CauseExited, "nothing\n")
	if len(egress.opened) != 0 {
		t.Errorf("the egress gateway was opened for %v", egress.opened)
	}
	n.warm()
	spec := script(askNetwork)
	spec.Network = restricted("a.example")
	spec.Network.Detail = map[string]any{"words": []any{"of", "a", "surface"}}
	x = n.execute(spec)
	wantAnswer(t, x, 0, engi.CauseExited, "alice restricted a.example\n")
	if !x.Result.Warm {
		t.Error("the interpreter that waited was not used")
	}
	n.eventually("it is shut again", func() bool { _, open := egress.policy(x.Sandbox); return !open })

	// The same holds for executions that wait for a sandbox.
	spec.Template = "base"
	spec.Limits.Size.Disk = 64 << 20
	wantAnswer(t, n.execute(spec), 0, engi.CauseExited, "alice restricted a.example\n")

	egress.fail("open", engi.Errorf(engi.NotFound, "no such secret"))
	_, err := n.x.Wait(t.Context(), "alice", n.start(spec).ID)
	wantKind(t, "a network that cannot be", err, engi.NotFound)
	egress.fail("open", nil)
	spec.Network = restricted("forbidden")
	_, err = n.x.Start(t.Context(), spec)
	wantKind(t, "a policy that is refused", err, engi.Denied)
	spec.Network = restricted("not of alice")
	_, err = n.x.Start(t.Context(), spec)
	wantKind(t, "a policy that is refused to its owner", err, engi.Denied)
	n.warm()
	n.eventually("only the pool has links", func() bool { return slices.Equal(l.have(), fx.machines()) })
}

func TestNetworksAfterARestart(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			fx, l := newFixture(t), newLinks()
			egress := l.egress()
			n := fx.start(withEgress(egress, bare, warmBash)).warm()
			s := n.create(engi.SandboxSpec{Network: restricted("a.example"), Lifetime: engi.Lifetime{Timeout: time.Hour}})
			paused := n.create(engi.SandboxSpec{Network: restricted("f.example"), Lifetime: engi.Lifetime{AutoResume: true}})
			if err := n.Lifecycle().Pause(t.Context(), "alice", paused.ID); err != nil {
				t.Fatal(err)
			}
			hibernated := n.create(engi.SandboxSpec{Network: restricted("s.example")})
			n.hibernate(hibernated.ID, false)
			lost := n.create(engi.SandboxSpec{Network: restricted("l.example")})
			flag := filepath.Join(t.TempDir(), "flag")
			spec := script("echo began; while ! test -e " + flag + "; do sleep 0.02; done")
			spec.Network = restricted("x.example")
			x := n.start(spec)
			n.printed(x.ID, 5)
			x = n.now(x.ID)
			egress.die()
			die(n)
			fx.host.Kill(lost.ID)
			l.mu.Lock()
			unknown := engi.NewSandboxID()
			l.all[unknown] = true
			l.mu.Unlock()

			egress = l.egress()
			n = fx.start(withEgress(egress, bare, warmBash))
			for id, allow := range map[engi.SandboxID]string{s.ID: "a.example", paused.ID: "f.example", x.Sandbox: "x.example"} {
				if p, ok := egress.policy(id); !ok || !slices.Equal(p.Allow, []string{allow}) {
					t.Errorf("in force for %s is %+v, want %s", id, p, allow)
				}
			}
			have := l.have()
			for what, id := range map[string]engi.SandboxID{"a unknown": unknown, "one that is lost": lost.ID, "a hibernated one": hibernated.ID} {
				if slices.Contains(have, id) {
					t.Errorf("%s has a link", what)
				}
			}
			if got := n.mustRun(s.ID, askNetwork); got != "alice restricted a.example\n" {
				t.Errorf("output %q", got)
			}
			// A paused sandbox is told later.
			if err := n.setNetwork(paused.ID, restricted("g.example")); err != nil {
				t.Fatal(err)
			}
			if p, _ := egress.policy(paused.ID); !slices.Equal(p.Allow, []string{"g.example"}) {
				t.Errorf("in force for the paused one is %+v", p)
			}
			if got := n.mustRun(paused.ID, askNetwork); got != "alice restricted g.example\n" {
				t.Errorf("after the pause: %q", got)
			}
			// A hibernated sandbox gets a link and its changed policy when it
			// resumes.
			if err := n.setNetwork(hibernated.ID, restricted("t.example")); err != nil {
				t.Fatal(err)
			}
			n.resume(hibernated.ID, false)
			if got := n.mustRun(hibernated.ID, askNetwork); got != "alice restricted t.example\n" {
				t.Errorf("after it resumed: %q", got)
			}
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			wantAnswer(t, n.wait(x.ID), 0, engi.CauseExited, "began\n")
			n.Reconcile(t.Context())
			n.warm()
			n.eventually("machines have links, and nobody else", func() bool { return slices.Equal(l.have(), fx.machines()) })
		})
	}
}

func TestNetworksOfCopies(t *testing.T) {
	fx, l := newFixture(t), newLinks()
	egress := l.egress()
	n := fx.start(withEgress(egress))
	s := n.create(engi.SandboxSpec{Network: restricted("a.example")})
	forks, err := n.Lifecycle().Fork(t.Context(), "alice", s.ID, engi.ForkSpec{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		if f.Err != nil {
			t.Fatal(f.Err)
		}
		if got := n.mustRun(f.Sandbox.ID, askNetwork); got != "alice restricted a.example\n" {
			t.Errorf("output in a copy: %q", got)
		}
	}
	if err := n.setNetwork(forks[0].Sandbox.ID, engi.NetworkPolicy{Mode: engi.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	if _, ok := egress.policy(s.ID); !ok {
		t.Error("closing the network of a copy closed the original's")
	}
	n.eventually("machines have links, and nobody else", func() bool { return slices.Equal(l.have(), fx.machines()) })
}

// TestNoLinks: no machine boots while links cannot be made, and nothing is left.
func TestNoLinks(t *testing.T) {
	fx, l := newFixture(t), newLinks()
	egress := l.egress()
	egress.fail("attach", engi.Errorf(engi.Exhausted, "too many namespaces"))
	n := fx.start(withEgress(egress, bare))
	_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Size: engi.Size{Disk: 64 << 20}})
	wantKind(t, "a sandbox without a link", err, engi.Exhausted)
	if got := fx.machines(); len(got) > 0 {
		t.Errorf("%v run", got)
	}
	egress.fail("attach", nil)
	n.warm()
	if got := l.have(); !slices.Equal(got, fx.machines()) {
		t.Errorf("links of %v", got)
	}
}

// TestNoEgress: requests that need an egress gateway are refused without one.
func TestNoEgress(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	for _, mode := range []engi.Network{engi.NetworkIsolated, engi.NetworkRestricted, engi.NetworkOpen} {
		_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice", Network: engi.NetworkPolicy{Mode: mode}})
		wantKind(t, fmt.Sprintf("mode %s without an egress gateway", mode), err, engi.Unsupported)
	}
	s := n.create(engi.SandboxSpec{Network: engi.NetworkPolicy{Mode: engi.NetworkNone}})
	wantKind(t, "a change to open without an egress gateway", n.setNetwork(s.ID, engi.NetworkPolicy{Mode: engi.NetworkOpen}), engi.Unsupported)
}
