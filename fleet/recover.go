package fleet

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/provider"
)

const (
	// adoptions is how many sandboxes are taken over at the same time.
	adoptions = 16
	// adoptTime bounds the taking over of one.
	adoptTime = 5 * time.Second
	// filesEvery is how many rounds of the reconciler pass between looks at
	// all directories of executions.
	filesEvery = 20
	// expireBatch is how many old executions go in one transaction.
	expireBatch = 50
)

// all is a filter without a limit.
func all(state engi.ExecutionState) engi.ExecutionFilter {
	return engi.ExecutionFilter{State: state, Limit: math.MaxInt32}
}

// recover compares what the store wants with what the providers find, and
// puts right what differs: running executions are followed again, warm
// members go back to their pools, everything else is removed. Nobody is
// served yet, so nothing changes under it.
func (m *Manager) recover(ctx context.Context) error {
	wanted, err := m.opt.Store.ListSandboxes(ctx, "")
	if err != nil {
		return err
	}
	running, err := m.opt.Store.List(ctx, "", all(engi.ExecutionRunning))
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
	gate := make(chan struct{}, adoptions)
	each := func(f func()) {
		gate <- struct{}{}
		workers.Go(func() {
			defer func() { <-gate }()
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
			if !isWanted[id] && !m.opt.Workshop.owns(id) {
				each(func() { m.removeOrphan(ctx, p, id) })
			}
		}
	}
	for _, s := range wanted {
		rec, used := users[s.ID]
		delete(users, s.ID)
		each(func() {
			switch {
			case s.Made:
				m.recoverBox(ctx, s)
			case used && s.State == engi.Running:
				m.recoverRun(ctx, s, rec)
			case used:
				m.endLost(ctx, rec, &s, "its sandbox was "+string(s.State)+" when the node died")
				m.removeWanted(ctx, s)
			case s.State == engi.Ready && m.recoverReady(ctx, s):
				m.metrics.repaired.WithLabelValues("warm_adopted").Inc()
			default:
				m.removeWanted(ctx, s)
			}
		})
	}
	for _, rec := range users {
		each(func() { m.endLost(ctx, rec, nil, "nothing is known of its sandbox") })
	}
	workers.Wait()
	m.sweepFiles(ctx, nil)
	m.sweepBoxes(ctx)
	m.pinSnapshots(ctx)
	return ctx.Err()
}

// removeOrphan removes a machine nobody knows.
func (m *Manager) removeOrphan(ctx context.Context, p provider.Provider, id engi.SandboxID) {
	if err := m.remove(ctx, p, id); err != nil {
		m.log.Error("remove orphan; trying again later", "sandbox", id, "error", err)
		return
	}
	m.log.Info("removed orphan", "sandbox", id)
	m.metrics.repaired.WithLabelValues("orphan_removed").Inc()
}

// removeWanted removes what is left of a recorded sandbox that is of no more
// use, and its record or its present.
func (m *Manager) removeWanted(ctx context.Context, s SandboxRecord) {
	if err := m.remove(ctx, m.providerOf(s.Tier), s.ID); err != nil {
		m.log.Error("remove sandbox; trying again later", "sandbox", s.ID, "error", err)
		return
	}
	var err error
	if s.Execution == "" {
		err = m.opt.Store.ForgetSandbox(ctx, s.ID)
	} else {
		s.State, s.Stopped, s.Token = engi.Stopped, time.Now().UTC(), ""
		if s.End == "" {
			s.End = engi.CauseSandboxLost
		}
		err = m.opt.Store.PutSandbox(ctx, s)
	}
	if err != nil {
		m.log.Error("record end of sandbox", "sandbox", s.ID, "error", err)
		return
	}
	m.metrics.repaired.WithLabelValues("sandbox_removed").Inc()
}

// retake takes over a machine and its guest.
func (m *Manager) retake(ctx context.Context, s SandboxRecord) (_ *instance, err error) {
	var u undo
	defer u.run()
	machine, err := m.providerOf(s.Tier).Adopt(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	g, err := m.enter(ctx, machine, s.Token)
	if err != nil {
		return nil, err
	}
	u.add(func() { g.Close() })
	unpin := func() {}
	if _, release, err := m.opt.Templates.Use(ctx, s.Digest); err == nil {
		unpin = release
	}
	u.keep()
	return &instance{
		key:     pool.Key{Tier: s.Tier, Template: s.Template, Language: s.Language, Size: s.Fixed},
		machine: machine,
		guest:   g,
		unpin:   unpin,
		gone:    make(chan struct{}),
		rec:     s,
	}, nil
}

// recoverReady puts a warm sandbox back into its pool, if there is such a
// pool. One of a template's older build serves until enough new ones are
// ready, as if the node had not been away.
func (m *Manager) recoverReady(ctx context.Context, s SandboxRecord) bool {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	key := pool.Key{Tier: s.Tier, Template: s.Template, Language: s.Language, Size: s.Fixed}
	cfg, ok := m.pools[key]
	if !ok {
		return false
	}
	t, unpin, err := m.opt.Templates.Use(ctx, s.Digest)
	if err != nil {
		return false
	}
	defer unpin() // retake has its own
	if s.Fixed.Or(m.size(t)) != s.Size {
		return false // it would boot with another size today
	}
	if !m.linked(ctx, s) {
		return false // it is of before there was a wall
	}
	b, err := m.retake(ctx, s)
	if err != nil {
		m.log.Info("warm sandbox did not survive", "sandbox", s.ID, "error", err)
		return false
	}
	if _, err := b.guest.Processes(ctx); err != nil {
		b.guest.Close()
		b.unpin()
		m.log.Info("warm sandbox does not answer", "sandbox", s.ID, "error", err)
		return false
	}
	m.admit(b)
	m.stock.Adopt(key, pool.Config{Target: cfg.Target, Max: cfg.Max}, b, s.Digest, false, time.Now())
	return true
}

// recoverRun follows an execution again that ran when the node died.
func (m *Manager) recoverRun(ctx context.Context, s SandboxRecord, rec Record) {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	b, err := m.retake(ctx, s)
	if err != nil {
		m.endLost(ctx, rec, &s, err.Error())
		m.removeWanted(ctx, s)
		return
	}
	g, err := b.guest.Reattach(ctx, string(rec.ID))
	if err != nil {
		b.guest.Close()
		b.unpin()
		why := err.Error()
		if engi.KindOf(err) == engi.NotFound {
			why = "the node died before the program started"
		}
		m.endLost(ctx, rec, &s, why)
		m.removeWanted(ctx, s)
		return
	}
	r := m.newRun(rec)
	r.network = s.Network
	if opens(s.Network) {
		if _, err := m.openWall(ctx, s.ID, s.Owner, s.Network); err != nil {
			m.log.Error("open the network of an execution again", "execution", rec.ID, "error", err)
		}
	}
	b.run = r
	m.admit(b)
	m.stock.Adopt(b.key, pool.Config{Demand: true}, b, s.Digest, true, time.Now())
	m.metrics.repaired.WithLabelValues("run_adopted").Inc()
	m.mu.Lock()
	m.runs[r.id] = r
	m.mu.Unlock()
	m.work.Go(func() { m.resume(r, b, g) })
}

// resume drives a run that was found again.
func (m *Manager) resume(r *run, b *instance, g *guest.Run) {
	rec, _, _, _ := r.look()
	// The program may have ended in time while nobody looked: its answer
	// gets a chance, however late it is. The guest keeps the time itself.
	left := time.Until(rec.Started.Add(rec.Limits.Timeout))
	watch := m.guard(r, b, max(left, adoptTime))
	defer watch.end()
	answer := engi.Result{Tier: b.key.Tier, NotEnforced: m.notEnforced(b.key.Tier)}
	m.follow(r, b, g, answer, false, watch)
}

// endLost ends an execution whose sandbox is gone.
func (m *Manager) endLost(ctx context.Context, rec Record, s *SandboxRecord, why string) {
	now := time.Now().UTC()
	rec.State, rec.Ended = engi.ExecutionDone, now
	rec.Result = &engi.Result{
		Exit:  engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseSandboxLost},
		Error: "the node was restarted: " + why,
		Tier:  m.opt.Providers[0].Tier(),
	}
	if s != nil {
		rec.Result.Tier = s.Tier
	}
	// Output that was kept outside belongs to a run that is over.
	if err := m.files.drop(rec.ID); err != nil {
		m.log.Error("remove files of lost execution", "execution", rec.ID, "error", err)
	}
	if err := m.opt.Store.Update(ctx, engi.ExecutionRunning, rec, nil); err != nil {
		if engi.KindOf(err) != engi.Conflict {
			m.log.Error("record lost execution", "execution", rec.ID, "error", err)
		}
		return
	}
	m.log.Warn("execution lost", "execution", rec.ID, "why", why)
	m.metrics.repaired.WithLabelValues("run_lost").Inc()
	m.count(rec)
}

// requeue lets executions that waited when the node died wait again, in the
// order they came. Their programs never ran.
func (m *Manager) requeue(ctx context.Context) error {
	recs, err := m.opt.Store.List(ctx, "", all(engi.ExecutionQueued))
	if err != nil {
		return err
	}
	for _, rec := range slices.Backward(recs) {
		r := m.newRun(rec)
		m.mu.Lock()
		m.runs[r.id] = r
		m.mu.Unlock()
		q, err := m.files.getQueued(rec.ID)
		if err == nil {
			err = m.rejoin(ctx, r, q)
		}
		if err != nil {
			m.work.Go(func() {
				m.refuse(r, engi.Errorf(engi.Unavailable, "the node was restarted before the program could start: %w", err).
					WithRemedy("send it again: nothing of it has run"))
			})
			continue
		}
		m.metrics.repaired.WithLabelValues("requeued").Inc()
	}
	return nil
}

// rejoin queues a run again.
func (m *Manager) rejoin(ctx context.Context, r *run, q queuedProgram) error {
	t, err := m.catalog.get(ctx, q.Key.Template)
	if err != nil {
		return err
	}
	_, _, cfg := m.policy(q.Key)
	now := time.Now()
	ticket, err := m.stock.Join(q.Key, cfg, t.Digest, r.owner, now)
	if err != nil {
		return err
	}
	size := programSize(&q.Program)
	m.queuedBytes.Add(size)
	m.work.Go(func() { m.wait(r, ticket, size, q.Patience, now) })
	return nil
}

// keepTruth compares wanted and found now and then, and lets old executions
// go, until ctx ends.
func (m *Manager) keepTruth(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	var strangers map[engi.ExecutionID]bool
	for round := 1; ; round++ {
		m.expire(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.reconcile(ctx)
		m.pinSnapshots(ctx)
		if round%filesEvery == 0 {
			strangers = m.sweepFiles(ctx, strangers)
		}
	}
}

// reconcile removes machines nobody knows, and ends records of what is gone.
// Found and recorded are read before what is known is: whatever is begun
// meanwhile was made known first.
func (m *Manager) reconcile(ctx context.Context) {
	for _, p := range m.opt.Providers {
		found, err := p.Found(ctx)
		if err != nil {
			m.log.Error("look for machines", "tier", p.Tier(), "error", err)
			continue
		}
		for _, id := range found {
			if !m.knows(id) && !m.opt.Workshop.owns(id) {
				m.removeOrphan(ctx, p, id)
			}
			if x := m.boxOf("", id); x != nil {
				m.removeLeftover(ctx, p, x)
			}
		}
	}
	recorded, err := m.opt.Store.ListSandboxes(ctx, "")
	if err != nil {
		m.log.Error("list sandboxes", "error", err)
		return
	}
	for _, s := range recorded {
		switch {
		case m.knows(s.ID):
		case s.Made:
			m.buryBox(ctx, s)
		default:
			m.removeWanted(ctx, s)
		}
	}
	running, err := m.opt.Store.List(ctx, "", all(engi.ExecutionRunning))
	if err != nil {
		m.log.Error("list executions", "error", err)
		return
	}
	for _, rec := range running {
		// A record is written a moment before its run is known.
		if m.find("", rec.ID) == nil && time.Since(rec.Started) > reconcileEvery {
			m.endLost(ctx, rec, nil, "nobody follows it")
		}
	}
}

// removeLeftover removes the machine of a sandbox that sleeps, should one have
// been left when it fell asleep.
func (m *Manager) removeLeftover(ctx context.Context, p provider.Provider, x *sandbox) {
	select {
	case x.turn <- struct{}{}:
	default:
		return // somebody moves it
	}
	defer x.leave()
	if x.record().State != engi.Hibernated || x.machine() != nil {
		return
	}
	if err := m.remove(ctx, p, x.id); err != nil {
		m.log.Error("remove the machine of a sandbox that sleeps; trying again later", "sandbox", x.id, "error", err)
		return
	}
	m.metrics.repaired.WithLabelValues("orphan_removed").Inc()
}

// knows reports whether a sandbox is alive or about to be.
func (m *Manager) knows(id engi.SandboxID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.expected[id] || m.boxes[id] != nil
}

// sweepFiles removes files of executions the store does not know. While the
// node serves, files come a moment before their record, so only those go that
// were strangers the time before too; it returns the new ones.
func (m *Manager) sweepFiles(ctx context.Context, before map[engi.ExecutionID]bool) (strangers map[engi.ExecutionID]bool) {
	ids, err := m.files.all()
	if err != nil {
		m.log.Error("look for files", "error", err)
		return nil
	}
	m.mu.Lock()
	serving := m.serving
	m.mu.Unlock()
	strangers = map[engi.ExecutionID]bool{}
	for _, id := range ids {
		if _, err := m.opt.Store.Get(ctx, "", id); engi.KindOf(err) != engi.NotFound || err == nil {
			continue
		}
		if serving && !before[id] {
			strangers[id] = true
			continue
		}
		if err := m.files.drop(id); err != nil {
			m.log.Error("remove files nobody owns", "execution", id, "error", err)
			continue
		}
		m.metrics.repaired.WithLabelValues("files_removed").Inc()
	}
	return strangers
}

// expire removes executions that are too old or too many, with their files.
// The record goes first: files without a record are found again, a record
// without files would lie.
func (m *Manager) expire(ctx context.Context) {
	for ctx.Err() == nil {
		gone, err := m.opt.Store.Expire(ctx, time.Now().Add(-m.opt.KeepAge), m.opt.KeepCount, expireBatch)
		if err != nil {
			m.log.Error("remove old executions", "error", err)
			return
		}
		for _, id := range gone {
			if err := m.files.drop(id); err != nil {
				m.log.Error("remove files of old execution", "execution", id, "error", err)
			}
		}
		if len(gone) < expireBatch {
			return
		}
	}
}
