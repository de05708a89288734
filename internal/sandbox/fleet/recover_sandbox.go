package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/undo"
)

// recover takes over a sandbox that was live when the node died, in any state:
//
//	running      runs on, with its deadline
//	paused       stays paused
//	hibernating  is hibernated if its image is complete, else runs on
//	hibernated   stays hibernated
//	resuming     runs on if its machine is there, else is hibernated
//
// A sandbox without a machine and without an image has ended, with cause sandbox_lost.
func (s *sandboxes) recover(ctx context.Context, rec SandboxRecord) {
	err := s.tryRecover(ctx, rec)
	if err == nil || ctx.Err() != nil {
		return
	}
	s.log.Warn("sandbox did not survive", "sandbox", rec.ID, "state", rec.State, "error", err)
	s.metrics.repaired.WithLabelValues("sandbox_lost").Inc()
	s.endLost(ctx, rec)
}

// endLost removes the remains of a sandbox that is not live, and ends its
// record.
func (s *sandboxes) endLost(ctx context.Context, rec SandboxRecord) {
	if now, err := s.opt.Store.GetSandbox(ctx, engi.Everyone, rec.ID); err != nil || now.State == engi.Stopped {
		return // the sandbox has ended since the caller checked
	}
	if rec.End == "" {
		rec.End = engi.CauseSandboxLost
	}
	err := s.removeMachine(ctx, s.providerOf(rec.Tier), rec.ID)
	if err == nil {
		err = s.cleanUp(ctx, rec)
	}
	if err == nil {
		rec.State = engi.Stopped
		endRecord(&rec)
		err = s.opt.Store.PutSandbox(ctx, rec)
	}
	if err != nil {
		s.log.Error("end lost sandbox; trying again later", "sandbox", rec.ID, "error", err)
	}
}

// tryRecover is recover for a sandbox that may have survived.
func (s *sandboxes) tryRecover(ctx context.Context, rec SandboxRecord) (err error) {
	var u undo.Stack
	defer u.Run()
	image := s.files.hasImage(rec.ID)
	t, unpin, err := s.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		// A running sandbox has the template open, and for others it may be restored.
		s.log.Error("the template of a sandbox is missing", "sandbox", rec.ID, "error", err)
		unpin = func() {}
	}
	u.Add(unpin)
	sb := newSandbox(rec, unpin)
	sb.active = time.Now().UTC() // the sandbox could not be used while the node was down
	u.Add(sb.abandon)
	s.insert(sb)
	u.Add(func() { s.remove(sb) })
	if rec.State != engi.Hibernated && len(rec.Volumes) > 0 {
		// The volume service has been restarted, too.
		if _, err := s.mounts(ctx, rec, t); err != nil {
			s.log.Error("mount the volumes of a sandbox again", "sandbox", rec.ID, "error", err)
		}
	}
	if err := s.recoverState(ctx, sb, t, image); err != nil {
		s.destroyInstance(sb)
		return err
	}
	u.Keep()
	sb.unlock()
	s.metrics.repaired.WithLabelValues("sandbox_adopted").Inc()
	return nil
}

// recoverState brings a locked sandbox from the state in which the crash left it to one
// in which it can stay. image reports whether it has a complete image.
func (s *sandboxes) recoverState(ctx context.Context, sb *sandbox, t engi.Template, image bool) error {
	switch state := sb.record().State; state {
	case engi.Running:
		err := s.recoverRunning(ctx, sb, t)
		if err == nil && image { // the sandbox had just been resumed from the image
			err = s.dropImage(sb.id)
		}
		return err
	case engi.Paused:
		return s.recoverPaused(ctx, sb)
	case engi.Hibernating:
		if image { // there may be a machine, too, but it has not been used since
			s.recoverHibernated(ctx, sb)
			return nil
		}
		err := s.recoverRunning(ctx, sb, t)
		if err != nil {
			err = s.recoverFromImage(ctx, sb, t, err)
		}
		if err == nil {
			_, err = s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) { r.Disk = false })
		}
		return err
	case engi.Resuming:
		err := s.recoverRunning(ctx, sb, t)
		switch {
		case err == nil:
			_, err = s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) {
				r.Disk = false
				startClock(r, 0)
			})
			if err == nil {
				err = s.dropImage(sb.id)
			}
			return err
		case !image:
			return err
		}
		s.destroyInstance(sb)
		s.recoverHibernated(ctx, sb)
		return nil
	case engi.Hibernated:
		if !image {
			return engi.Errorf(engi.NotFound, "its image is gone")
		}
		s.recoverHibernated(ctx, sb)
		return nil
	default:
		return engi.Errorf(engi.Conflict, "it was %s", state)
	}
}

// recoverHibernated takes over a sandbox that has a complete image, and removes
// the remains of its machine. The sandbox survives a failure of the removal.
func (s *sandboxes) recoverHibernated(ctx context.Context, sb *sandbox) {
	rec := sb.record()
	if err := s.removeMachine(ctx, s.providerOf(rec.Tier), rec.ID); err != nil {
		s.log.Error("remove the machine of a hibernated sandbox; resuming it tries again", "sandbox", rec.ID, "error", err)
	}
	if rec.State == engi.Hibernated {
		// Earlier versions kept images elsewhere, so the template must be held for the new path.
		if err := engi.Ignore(s.hold(ctx, sb), engi.NotFound); err != nil {
			s.log.Error("hold the template of a hibernated sandbox", "sandbox", rec.ID, "error", err)
		}
		return
	}
	if _, err := s.setState(ctx, sb, engi.Hibernated, clearForHibernation); err != nil {
		s.log.Error("record that a sandbox hibernates", "sandbox", rec.ID, "error", err)
		sb.markHibernated()
	}
}

// clearForHibernation clears the fields of a record that only a running sandbox has.
func clearForHibernation(r *SandboxRecord) { r.Deadline, r.Token = time.Time{}, "" }

// markHibernated changes only the record in memory; it is for a failure of the store. The
// next node finds the image on disk.
func (sb *sandbox) markHibernated() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.rec.State = engi.Hibernated
	clearForHibernation(&sb.rec)
}

// recoverRunning takes over the machine of a sandbox that is running, or was running just
// before it was to be paused or saved.
func (s *sandboxes) recoverRunning(ctx context.Context, sb *sandbox, t engi.Template) (err error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	rec := sb.record()
	machine, err := s.providerOf(rec.Tier).Adopt(ctx, rec.ID)
	if err != nil {
		return err
	}
	defer func() {
		// A machine that does not answer would conflict with the next machine. If
		// the node is being stopped, the next one takes the machine over.
		if err != nil && outer.Err() == nil {
			err = errors.Join(err, machine.Close())
		}
	}()
	if err := engi.Ignore(provider.Resume(ctx, machine), engi.Unsupported); err != nil {
		return err
	}
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return err
	}
	network, err := s.openNetwork(ctx, rec.ID, rec.Owner, rec.Network)
	if err != nil {
		// The sandbox may have been created before the node had a network, or its policy
		// may name a secret that no longer exists. Nothing is reachable then.
		s.log.Error("open the network of a sandbox", "sandbox", rec.ID, "error", err)
		network = nil
	}
	if t.Digest != "" {
		// The node may have died before it sent the owner's environment.
		if err := g.Setup(ctx, setupOf(t, rec, network)); err != nil {
			g.Close()
			return err
		}
	}
	s.adoptInstance(sb, machine, g)
	return nil
}

// recoverFromImage takes over a sandbox whose machine has ended with the error
// why, after the last byte of its image was written and before the image was renamed. Whether
// the image is complete is known only after a machine has started from it.
func (s *sandboxes) recoverFromImage(ctx context.Context, sb *sandbox, t engi.Template, why error) error {
	s.destroyInstance(sb)
	rec := sb.record()
	if err := s.removeMachine(ctx, s.providerOf(rec.Tier), rec.ID); err != nil {
		return err
	}
	if s.files.keepImage(rec.ID) != nil {
		return why // there is no image
	}
	if err := s.bootFromImage(ctx, sb, rec, t, false); err != nil {
		return err
	}
	return s.dropImage(rec.ID)
}

// recoverPaused takes over a paused sandbox. Its machine may be running,
// if the node died before it paused the machine or after it resumed the machine.
func (s *sandboxes) recoverPaused(ctx context.Context, sb *sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	rec := sb.record()
	machine, err := s.providerOf(rec.Tier).Adopt(ctx, rec.ID)
	if err != nil {
		return err
	}
	if err := provider.Pause(ctx, machine); err != nil {
		return err
	}
	if _, err := s.openNetwork(ctx, rec.ID, rec.Owner, rec.Network); err != nil {
		s.log.Error("open the network of a sandbox", "sandbox", rec.ID, "error", err)
	}
	s.adoptInstance(sb, machine, nil).setNetworkStale(true)
	return nil
}

// adoptInstance gives a machine that was found to its sandbox.
func (s *sandboxes) adoptInstance(sb *sandbox, machine provider.Machine, g *guest.Client) *instance {
	rec := sb.record()
	inst := newInstance(rec, machine, g)
	sb.setInstance(inst)
	s.pools.sched.Adopt(inst.key, s.pools.configFor(inst.key), inst, rec.Digest, true, time.Now())
	s.pools.add(inst)
	return inst
}

// sweep removes temporary files, and releases the files and volumes of sandboxes that do
// not exist. Call it only at the start: later, new sandboxes may not be registered yet.
func (s *sandboxes) sweep(ctx context.Context) {
	ids, err := s.files.sandboxes()
	if err != nil {
		s.log.Error("look for images", "error", err)
	}
	for _, id := range ids {
		if s.get(engi.Everyone, id) != nil {
			continue
		}
		if err := s.files.dropSandbox(id); err != nil {
			s.log.Error("remove an image that belongs to no sandbox", "sandbox", id, "error", err)
			continue
		}
		s.metrics.repaired.WithLabelValues("image_removed").Inc()
	}
	if err := s.files.dropTemps(); err != nil {
		s.log.Error("remove temporary files", "error", err)
	}
	if s.opt.Volumes == nil {
		return
	}
	holders, err := s.opt.Volumes.Holders(ctx)
	if err != nil {
		s.log.Error("look for holders of volumes", "error", err)
		return
	}
	slices.Sort(holders)
	for _, id := range slices.Compact(holders) {
		if s.get(engi.Everyone, id) != nil {
			continue
		}
		if err := s.opt.Volumes.Unmount(ctx, id); err != nil {
			s.log.Error("release volumes", "sandbox", id, "error", err)
			continue
		}
		s.metrics.repaired.WithLabelValues("volumes_released").Inc()
	}
}

// removeLeftover removes the machine of a sandbox that was left when its sandbox
// hibernated. It skips a sandbox whose state is changing.
func (s *sandboxes) removeLeftover(ctx context.Context, p provider.Provider, id engi.SandboxID) {
	sb := s.get(engi.Everyone, id)
	if sb == nil {
		return
	}
	select {
	case sb.locked <- struct{}{}:
	default:
		return
	}
	defer sb.unlock()
	if sb.record().State != engi.Hibernated || sb.instance() != nil {
		return
	}
	if err := s.removeMachine(ctx, p, id); err != nil {
		s.log.Error("remove the machine of a hibernated sandbox; trying again later", "sandbox", id, "error", err)
		return
	}
	s.metrics.repaired.WithLabelValues("orphan_removed").Inc()
}
