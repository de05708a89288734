// Package fleet runs this node's sandboxes. It joins provider, guest and disk
// into warm pools, executions and sandboxes, keeps their records, and after a
// crash reconciles the records of the store with the machines that providers find.
//
// It does not implement isolation (package provider), the work inside
// a sandbox (package guest), root file systems (package disk) or
// surfaces (package api). Only node builds a Manager; all other packages see it
// as engi.Executions, engi.Sandboxes, engi.Lifecycle and engi.Pools.
//
// # Parts
//
// A Manager assembles three parts and reconciles all of them with the store:
//
//   - pools owns instances. An instance is one booted machine with a way into
//     its guest. pools boots instances in advance, hands them out, gets them
//     back and destroys them; internal/sandbox/fleet/pool decides which and when.
//   - executions owns runs. A run takes an instance, runs one program in it,
//     and gives it back to be destroyed.
//   - sandboxes owns the sandboxes of owners. A sandbox has an instance while
//     it is awake and an image on disk while it hibernates.
//
// executions and sandboxes use pools and do not know each other. The state that all
// three need is in shared.
//
// # Locks
//
// Each part has a mu for its maps. It is never held during I/O or while another
// part is called. A sandbox's mu may be taken under that of sandboxes, and an
// instance's mu under any other; a run's mu is taken alone. sandbox.editing
// and sandboxes.pinning are held during I/O, and are taken before every mu.
package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Manager is the fleet of one node. It is safe for concurrent use.
type Manager struct {
	*shared
	pools      *pools
	executions *executions
	sandboxes  *sandboxes
}

var _ engi.Pools = (*Manager)(nil)

// Open checks o and returns a Manager that is idle until Run is called. It
// returns Invalid for invalid options.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	files, err := openFiles(o.Dir)
	if err != nil {
		return nil, err
	}
	all := &shared{
		opt:     o,
		bounds:  engi.Bounds{File: o.MaxCode, Input: o.MaxInput, Limits: o.Max, ClaimTimeout: o.MaxTimeout, Lifetime: o.Lifetime.Max},
		log:     o.Log,
		files:   files,
		catalog: &catalog{src: o.Templates},
		metrics: newMetrics(),
	}
	m := &Manager{shared: all}
	if m.pools, err = newPools(all); err != nil {
		return nil, err
	}
	m.sandboxes = newSandboxes(all, m.pools)
	m.executions = newExecutions(all, m.pools, m.sandboxes)
	if o.Metrics != nil {
		if err := m.metrics.register(o.Metrics, m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Executions returns the service that runs programs.
func (m *Manager) Executions() engi.Executions { return m.executions }

// Sandboxes returns the service that creates and ends sandboxes.
func (m *Manager) Sandboxes() engi.Sandboxes { return m.sandboxes }

// Lifecycle returns the service that pauses, hibernates and copies sandboxes.
func (m *Manager) Lifecycle() engi.Lifecycle { return m.sandboxes }

// Pools returns all pools, ordered by template and language.
func (m *Manager) Pools(ctx context.Context) []engi.PoolStatus { return m.pools.sched.Status() }

// Warm returns nil once every configured pool has had a ready instance.
func (m *Manager) Warm(ctx context.Context) error { return m.pools.warm() }

// Run repairs the state after a crash, calls ready, keeps the pools warm and
// enforces the deadlines of sandboxes until ctx ends. It leaves machines running for the
// next Manager to adopt, unless the Manager is ephemeral. When Run returns, no
// goroutine of the Manager is left. Call it once.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(errStopping)
	m.life = life
	m.pools.ensureConfigured()
	m.pools.refreshTemplates(ctx)
	if err := m.recover(ctx); err != nil {
		end(errStopping)
		m.disconnect()
		return err
	}
	if err := m.executions.requeue(ctx); err != nil {
		m.log.Error("queue executions that waited before the restart", "error", err)
	}
	m.serve(true)
	background, stop := context.WithCancel(life)
	var loops sync.WaitGroup
	loops.Go(func() { m.pools.runSchedule(background) })
	loops.Go(func() { m.pools.followTemplates(background) })
	loops.Go(func() { m.sandboxes.enforceDeadlines(background) })
	loops.Go(func() { m.sandboxes.sampleLoop(background) })
	loops.Go(func() { m.reconcileLoop(background) })
	ready()
	<-ctx.Done()

	m.serve(false)
	if m.opt.Ephemeral {
		m.stopAll()
	}
	stop()
	loops.Wait()
	end(errStopping)
	m.disconnect()
	return nil
}

// disconnect waits for all goroutines, closes the connections to guests and
// releases templates. Programs in the sandboxes keep running.
func (m *Manager) disconnect() {
	m.work.Wait()
	m.pools.disconnect()
	m.sandboxes.unpin()
}

// stopTimeout is the maximum time that an ephemeral node takes to stop its sandboxes.
const stopTimeout = 30 * time.Second

// stopAll ends every execution and every sandbox. An ephemeral node calls it to leave
// nothing behind.
func (m *Manager) stopAll() {
	m.pools.sched.Drain(time.Now(), errStopping)
	m.executions.cancelAll()
	m.sandboxes.stopAll()
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if alive, _ := m.pools.sched.Counts(); alive == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			m.log.Error("some sandboxes could not be destroyed; the next start removes them")
			return
		}
	}
}
