package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/test/seed"
)

// TestRandomLifecycles calls random operations on sandboxes, and kills the node at
// random writes. Acknowledged writes must have survived, sandboxes must
// be in a stable state, and nothing may be left that belongs to no sandbox.
// ENGI_TEST_SEED adds a seed.
func TestRandomLifecycles(t *testing.T) {
	seeds := []uint64{1, seed.Of(t, "ENGI_TEST_SEED", 2)}
	steps := 80
	if testing.Short() {
		steps = 20
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := &chaos{fx: newFixture(t), snaps: openSnapshots(t), rng: rand.New(rand.NewPCG(seed, 7)), known: map[engi.SandboxID]string{}}
			c.start()
			for range steps {
				c.step()
			}
			c.restart()
			c.check()
		})
	}
}

type chaos struct {
	fx    *fixture
	n     *node
	snaps fleet.SnapshotStore
	rng   *rand.Rand
	log   []string
	known map[engi.SandboxID]string // acknowledged content of each sandbox
	next  int
}

func (c *chaos) start() {
	c.n = c.fx.start(func(o *fleet.Options) {
		o.Log = nil
		o.Snapshots = c.snaps
		o.Pools = []fleet.PoolConfig{{Target: 1}}
		o.MaxSandboxes = 64
	})
}

func (c *chaos) note(format string, args ...any) { c.log = append(c.log, fmt.Sprintf(format, args...)) }

func (c *chaos) fatal(format string, args ...any) {
	c.fx.t.Helper()
	for _, line := range c.log[max(0, len(c.log)-40):] {
		c.fx.t.Log(line)
	}
	c.fx.t.Fatalf(format, args...)
}

// pick returns one of the sandboxes, "" if there is none.
func (c *chaos) pick() engi.SandboxID {
	ids := make([]engi.SandboxID, 0, len(c.known))
	for id := range c.known {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		return ""
	}
	return ids[c.rng.IntN(len(ids))]
}

func (c *chaos) step() {
	ctx, n := c.fx.t.Context(), c.n
	life, sandboxes := n.Lifecycle(), n.Sandboxes()
	id := c.pick()
	act := c.rng.IntN(13)
	if id == "" {
		act = 0
	}
	if act == 12 || c.rng.IntN(10) == 0 {
		// The node dies at one of the next writes, or after them.
		k := 1 + c.rng.IntN(4)
		after := c.rng.IntN(2) == 0
		c.note("it will die at write %d, after: %v", k, after)
		c.fx.store.Fail(func(what string) error {
			if what != "PutSandbox" || n.dead.Load() {
				return nil
			}
			if k--; k == 0 {
				n.dead.Store(true)
				if !after {
					return errDead
				}
			}
			return nil
		})
		defer c.restart()
	}
	var err error
	switch act {
	case 0, 1:
		var s engi.Sandbox
		if s, err = sandboxes.Create(ctx, engi.SandboxSpec{Owner: "alice", Lifetime: engi.Lifetime{AutoResume: true}}); err == nil {
			id = s.ID
			c.known[id] = ""
		}
		c.note("create %s: %v", id, err)
	case 2, 3, 4, 12:
		c.next++
		text := fmt.Sprint("text ", c.next)
		if _, err = n.run(id, "echo "+text+" > file.new && mv file.new file"); err == nil {
			c.known[id] = text
		} else if c.known[id] != "" {
			// The write was not acknowledged: it may have survived or not.
			c.known[id] = c.known[id] + "|" + text
		} else {
			c.known[id] = "|" + text
		}
		c.note("write %q to %s: %v", text, id, err)
	case 5:
		err = life.Pause(ctx, "alice", id)
		c.note("pause %s: %v", id, err)
	case 6:
		_, err = life.Resume(ctx, "alice", id, 0, c.rng.IntN(3) == 0)
		c.note("resume %s: %v", id, err)
	case 7, 8:
		err = life.Hibernate(ctx, "alice", id, c.rng.IntN(2) == 0)
		c.note("hibernate %s: %v", id, err)
	case 9:
		var all []engi.Forked
		if all, err = life.Fork(ctx, "alice", id, engi.ForkSpec{Count: 1}); err == nil && all[0].Err == nil {
			c.known[all[0].Sandbox.ID] = c.known[id]
		}
		c.note("fork %s: %v %+v", id, err, all)
	case 10:
		var s engi.Snapshot
		var made engi.Sandbox
		if s, err = life.Snapshot(ctx, "alice", id, engi.SnapshotSpec{}); err == nil {
			if made, err = sandboxes.Create(ctx, engi.SandboxSpec{Owner: "alice", Snapshot: s.ID, Lifetime: engi.Lifetime{AutoResume: true}}); err == nil {
				c.known[made.ID] = c.known[id]
			}
		}
		c.note("snapshot %s to %s: %v", id, made.ID, err)
	case 11:
		if err = sandboxes.Stop(ctx, "alice", id); err == nil {
			delete(c.known, id)
		}
		c.note("stop %s: %v", id, err)
	}
}

func (c *chaos) restart() {
	c.note("kill")
	c.n.kill()
	c.fx.store.Fail(nil)
	c.start()
	c.check()
}

// check checks the state after a restart.
func (c *chaos) check() {
	c.fx.t.Helper()
	n := c.n
	listed, err := n.Sandboxes().List(c.fx.t.Context(), "alice", engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		c.fatal("list: %v", err)
	}
	for _, s := range listed {
		switch s.State {
		case engi.Running, engi.Paused, engi.Hibernated:
		default:
			c.fatal("sandbox %s is %s", s.ID, s.State)
		}
		if _, ok := c.known[s.ID]; !ok { // the creation, or the stop, was not acknowledged
			c.note("nobody knows %s", s.ID)
			if err := n.Sandboxes().Stop(c.fx.t.Context(), "alice", s.ID); err != nil {
				c.fatal("stop %s: %v", s.ID, err)
			}
		}
	}
	for id, want := range c.known {
		s, err := n.Sandboxes().Get(c.fx.t.Context(), "alice", id)
		if err != nil {
			c.fatal("sandbox %s: %v", id, err)
		}
		if s.State == engi.Stopped {
			if s.End != engi.CauseCancelled { // a stop that was not acknowledged
				c.fatal("sandbox %s has ended: %s", id, s.End)
			}
			delete(c.known, id)
			continue
		}
		if s.State == engi.Hibernated && c.rng.IntN(2) == 0 {
			continue // let it sleep
		}
		out, err := n.run(id, "cat file 2>/dev/null || true")
		if engi.Is(err, engi.Exhausted) {
			continue
		}
		if err != nil {
			c.fatal("sandbox %s: %v", id, err)
		}
		if !oneOf(out, want) {
			c.fatal("sandbox %s has %q, want %q", id, out, want)
		}
	}
	for id := range c.known { // not too many
		if len(c.known) <= 5 {
			break
		}
		if err := n.Sandboxes().Stop(c.fx.t.Context(), "alice", id); err != nil {
			c.fatal("stop %s: %v", id, err)
		}
		delete(c.known, id)
	}
	n.Reconcile(c.fx.t.Context())
	n.eventually("what runs is what is known, and the pool", func() bool {
		running := 0
		for id := range c.known {
			if s := n.sandbox(id); s.State == engi.Running || s.State == engi.Paused {
				running++
			}
		}
		spare := len(c.fx.machines()) - running
		return spare == 0 || spare == 1
	})
}

// oneOf reports whether out is one of the texts that want permits.
func oneOf(out, want string) bool {
	return slices.Contains(strings.Split(want, "|"), strings.TrimSpace(out))
}
