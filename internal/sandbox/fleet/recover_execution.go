package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest"
)

// expireBatch is the maximum number of old executions removed in one transaction.
const expireBatch = 50

// recover resumes following an execution that was running when the node died.
func (e *executions) recover(ctx context.Context, s SandboxRecord, rec Record) {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	inst, err := e.pools.adopt(ctx, s)
	if err != nil {
		e.endLost(ctx, rec, &s, err.Error())
		e.pools.removeRecorded(ctx, s)
		return
	}
	g, err := inst.guest.Reattach(ctx, string(rec.ID))
	if err != nil {
		inst.guest.Close()
		inst.unpin()
		why := err.Error()
		if engi.Is(err, engi.NotFound) {
			why = "the node died before the program started"
		}
		e.endLost(ctx, rec, &s, why)
		e.pools.removeRecorded(ctx, s)
		return
	}
	r := e.newRun(rec)
	r.network = s.Network
	if opens(s.Network) {
		if _, err := e.openNetwork(ctx, s.ID, s.Owner, s.Network); err != nil {
			e.log.Error("open the network of an execution again", "execution", rec.ID, "error", err)
		}
	}
	e.pools.weigh(inst, ordinaryWeight)
	inst.run = r
	e.pools.add(inst)
	e.pools.sched.Adopt(inst.key, pool.Config{Demand: true}, inst, s.Digest, true, time.Now())
	e.metrics.repaired.WithLabelValues("run_adopted").Inc()
	e.insert(r)
	e.work.Go(func() { e.resume(r, inst, g) })
}

// resume drives a run that was found again.
func (e *executions) resume(r *run, inst *instance, g *guest.Run) {
	rec, _, _, _ := r.look()
	// The program may have ended in time while no node followed it, so its
	// result is collected even after the timeout. The guest itself enforces the timeout.
	left := time.Until(rec.Started.Add(rec.Limits.Timeout))
	watch := e.guard(r, inst, max(left, adoptTime))
	defer watch.end()
	result := engi.Result{Tier: inst.key.Tier, NotEnforced: e.notEnforced(inst.key.Tier)}
	e.follow(r, inst, g, result, false, watch)
}

// endLost ends the record of an execution whose sandbox is gone, and marks the record of
// the sandbox, if there is one, as used.
func (e *executions) endLost(ctx context.Context, rec Record, s *SandboxRecord, why string) {
	rec.State, rec.Ended = engi.ExecutionDone, time.Now().UTC()
	rec.Result = &engi.Result{
		Exit:  engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseSandboxLost},
		Error: "the node was restarted: " + why,
		Tier:  e.opt.Providers[0].Tier(),
	}
	if s != nil {
		rec.Result.Tier = s.Tier
		used := *s
		used.State = engi.Stopping
		s = &used
	}
	// The record has no output, so the output file is removed, too.
	if err := e.files.drop(rec.ID); err != nil {
		e.log.Error("remove files of lost execution", "execution", rec.ID, "error", err)
	}
	if err := e.opt.Store.Update(ctx, engi.ExecutionRunning, rec, s); err != nil {
		if !engi.Is(err, engi.Conflict) {
			e.log.Error("record lost execution", "execution", rec.ID, "error", err)
		}
		return
	}
	e.log.Warn("execution lost", "execution", rec.ID, "why", why)
	e.metrics.repaired.WithLabelValues("run_lost").Inc()
	e.count(rec)
}

// requeue restores the queue of executions that were waiting when the node died, in
// their old order. Their programs have not run.
func (e *executions) requeue(ctx context.Context) error {
	recs, err := e.opt.Store.List(ctx, engi.Everyone, inState(engi.ExecutionQueued))
	if err != nil {
		return err
	}
	for _, rec := range slices.Backward(recs) {
		r := e.newRun(rec)
		e.insert(r)
		q, err := e.files.getQueued(rec.ID)
		if err == nil {
			err = e.rejoin(ctx, r, q)
		}
		if err != nil {
			e.work.Go(func() {
				e.refuse(r, nil, engi.Errorf(engi.Unavailable, "the node was restarted before the program could start: %w", err).
					WithRemedy("send the request again: no part of it has run"))
			})
			continue
		}
		e.metrics.repaired.WithLabelValues("requeued").Inc()
	}
	return nil
}

// rejoin puts a run back into its pool's queue.
func (e *executions) rejoin(ctx context.Context, r *run, q queuedProgram) error {
	t, err := e.catalog.get(ctx, q.Key.Template)
	if err != nil {
		return err
	}
	_, _, cfg := e.pools.policy(q.Key)
	now := time.Now()
	ticket, err := e.pools.sched.Join(q.Key, cfg, t.Digest, r.owner, true, now)
	if err != nil {
		return err
	}
	size := programSize(&q.Program)
	e.queuedBytes.Add(r.owner, size)
	e.work.Go(func() { e.waitForInstance(r, ticket, size, q.Patience, now) })
	return nil
}

// sweepFiles removes the files of executions that have no record.
// While the node serves, files are written shortly before their record, so
// it removes only files that were unknown in the previous sweep, too. It returns the newly
// unknown ones.
func (e *executions) sweepFiles(ctx context.Context, before map[engi.ExecutionID]bool) (unknown map[engi.ExecutionID]bool) {
	ids, err := e.files.all()
	if err != nil {
		e.log.Error("look for files", "error", err)
		return nil
	}
	serving := e.serving.Load()
	unknown = map[engi.ExecutionID]bool{}
	for _, id := range ids {
		if _, err := e.opt.Store.Get(ctx, engi.Everyone, id); !engi.Is(err, engi.NotFound) {
			continue
		}
		if serving && !before[id] {
			unknown[id] = true
			continue
		}
		if err := e.files.drop(id); err != nil {
			e.log.Error("remove files that belong to no execution", "execution", id, "error", err)
			continue
		}
		e.metrics.repaired.WithLabelValues("files_removed").Inc()
	}
	return unknown
}

// expire removes executions that are too old or too many, with their files.
// The record goes first: files without a record are found again, but a record
// without its files would be wrong.
func (e *executions) expire(ctx context.Context) {
	for ctx.Err() == nil {
		gone, err := e.opt.Store.Expire(ctx, time.Now().Add(-e.opt.KeepAge), e.opt.KeepCount, expireBatch)
		if err != nil {
			e.log.Error("remove old executions", "error", err)
			return
		}
		for _, id := range gone {
			if err := e.files.drop(id); err != nil {
				e.log.Error("remove files of old execution", "execution", id, "error", err)
			}
		}
		if len(gone) < expireBatch {
			return
		}
	}
}
