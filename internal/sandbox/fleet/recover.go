package fleet

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	adoptions = 16              // maximum number of sandboxes taken over at the same time
	adoptTime = 5 * time.Second // maximum time for taking over one

	// reconcileEvery is the interval at which records and machines are compared.
	reconcileEvery = 30 * time.Second
	// sweepEvery is the number of rounds of the reconciler between checks of
	// all directories of executions.
	sweepEvery = 20
)

// inState selects all executions in a state.
func inState(state engi.ExecutionState) engi.ExecutionFilter {
	return engi.ExecutionFilter{State: state, Limit: math.MaxInt32}
}

// recover compares the records of the store with the machines that providers find,
// and repairs the difference: it follows running executions again, takes over
// the sandboxes of owners, puts warm instances back into their pools, and
// removes everything else. No requests are served yet, so nothing changes meanwhile.
func (m *Manager) recover(ctx context.Context) error {
	wanted, err := m.opt.Store.ListSandboxes(ctx, engi.Everyone)
	if err != nil {
		return err
	}
	running, err := m.opt.Store.List(ctx, engi.Everyone, inState(engi.ExecutionRunning))
	if err != nil {
		return err
	}
	users := map[engi.SandboxID]Record{}
	for _, rec := range running {
		users[rec.Sandbox] = rec
	}
	isWanted := map[engi.SandboxID]bool{}
	for _, s := range wanted {
		isWanted[s.ID] = true
	}
	if err := m.adoptLinks(ctx, wanted); err != nil {
		return err
	}

	var workers sync.WaitGroup
	limit := make(chan struct{}, adoptions)
	do := func(f func()) {
		limit <- struct{}{}
		workers.Go(func() {
			defer func() { <-limit }()
			f()
		})
	}
	for _, p := range m.opt.Providers {
		found, err := p.Found(ctx)
		if err != nil {
			workers.Wait()
			return err
		}
		for _, id := range found {
			if !isWanted[id] && !m.opt.Builds.owns(id) {
				do(func() { m.removeOrphan(ctx, p, id) })
			}
		}
	}
	for _, s := range wanted {
		rec, used := users[s.ID]
		delete(users, s.ID)
		if used {
			s = s.usedBy(rec)
		}
		do(func() {
			switch {
			case s.Made:
				m.sandboxes.recover(ctx, s)
			case used && s.State == engi.Running:
				m.executions.recover(ctx, s, rec)
			case used:
				m.executions.endLost(ctx, rec, &s, "its sandbox was "+string(s.State)+" when the node died")
				m.pools.removeRecorded(ctx, s)
			case s.State == engi.Ready && m.pools.recoverReady(ctx, s):
				m.metrics.repaired.WithLabelValues("warm_adopted").Inc()
			default:
				m.pools.removeRecorded(ctx, s)
			}
		})
	}
	for _, rec := range users {
		do(func() { m.executions.endLost(ctx, rec, nil, "nothing is known of its sandbox") })
	}
	workers.Wait()
	m.executions.sweepFiles(ctx, nil)
	m.sandboxes.sweep(ctx)
	m.sandboxes.pinSnapshots(ctx)
	return ctx.Err()
}

// adoptLinks takes over the network links of all machines that may be running.
func (m *Manager) adoptLinks(ctx context.Context, recorded []SandboxRecord) error {
	if m.opt.Egress == nil {
		return nil
	}
	var ids []engi.SandboxID
	for _, s := range recorded {
		if s.State != engi.Hibernated {
			ids = append(ids, s.ID)
		}
	}
	return m.opt.Egress.Adopt(ctx, ids)
}

// removeOrphan destroys a machine without a user.
func (m *Manager) removeOrphan(ctx context.Context, p provider.Provider, id engi.SandboxID) {
	if err := m.removeMachine(ctx, p, id); err != nil {
		m.log.Error("remove orphan; trying again later", "sandbox", id, "error", err)
		return
	}
	m.log.Info("removed orphan", "sandbox", id)
	m.metrics.repaired.WithLabelValues("orphan_removed").Inc()
}

// reconcileLoop reconciles, and removes old executions, periodically
// until ctx ends.
func (m *Manager) reconcileLoop(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	var unknown map[engi.ExecutionID]bool
	for round := 1; ; round++ {
		m.executions.expire(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.reconcile(ctx)
		m.sandboxes.pinSnapshots(ctx)
		if round%sweepEvery == 0 {
			unknown = m.executions.sweepFiles(ctx, unknown)
		}
	}
}

// reconcile removes machines without a user, and ends records whose
// machine is gone. It reads the machines and records before it checks which are
// known: everything that begins in between is registered first.
func (m *Manager) reconcile(ctx context.Context) {
	for _, p := range m.opt.Providers {
		found, err := p.Found(ctx)
		if err != nil {
			m.log.Error("look for machines", "tier", p.Tier(), "error", err)
			continue
		}
		for _, id := range found {
			if !m.knows(id) && !m.opt.Builds.owns(id) {
				m.removeOrphan(ctx, p, id)
			}
			m.sandboxes.removeLeftover(ctx, p, id)
		}
	}
	running, err := m.opt.Store.List(ctx, engi.Everyone, inState(engi.ExecutionRunning))
	if err != nil {
		m.log.Error("list executions", "error", err)
		return
	}
	users := map[engi.SandboxID]Record{}
	for _, rec := range running {
		users[rec.Sandbox] = rec
	}
	recorded, err := m.opt.Store.ListSandboxes(ctx, engi.Everyone)
	if err != nil {
		m.log.Error("list sandboxes", "error", err)
		return
	}
	used := map[engi.SandboxID]*SandboxRecord{}
	for _, s := range recorded {
		rec, running := users[s.ID]
		if running {
			s = s.usedBy(rec)
		}
		switch {
		case m.knows(s.ID):
			if running {
				used[s.ID] = &s
			}
		case s.Made:
			m.sandboxes.endLost(ctx, s)
		default:
			m.pools.removeRecorded(ctx, s)
		}
	}
	for _, rec := range running {
		// A record is written shortly before its run is registered.
		if m.executions.get(engi.Everyone, rec.ID) == nil && time.Since(rec.Started) > reconcileEvery {
			m.executions.endLost(ctx, rec, used[rec.Sandbox], "nobody follows it")
		}
	}
}

// knows reports whether id is an instance or a sandbox, or about to become one. The
// order matters: an instance that is given to a sandbox is known to both parts,
// and may then be known only to sandboxes.
func (m *Manager) knows(id engi.SandboxID) bool {
	return m.pools.expects(id) || m.sandboxes.get(engi.Everyone, id) != nil
}
