package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	// quiesceTime is the maximum time for a guest to close its connections.
	quiesceTime = 10 * time.Second
	// reconnectTime is the maximum time for a guest to answer after its
	// machine was saved or resumed.
	reconnectTime = 30 * time.Second
)

// timed records the duration of a successful move in the metrics. Defer it.
func (s *sandboxes) timed(move string, began time.Time, err *error) {
	if *err == nil {
		s.metrics.moves.WithLabelValues(move).Observe(time.Since(began).Seconds())
	}
}

// Pause implements engi.Lifecycle.
func (s *sandboxes) Pause(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "pause sandbox")
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return err
	}
	return s.transition(ctx, sb, func(ctx context.Context) error { return s.pause(ctx, sb) })
}

// pause freezes a sandbox; its memory stays allocated.
func (s *sandboxes) pause(ctx context.Context, sb *sandbox) (err error) {
	rec := sb.record()
	if rec.State == engi.Paused {
		return nil
	}
	defer s.timed("pause", time.Now(), &err)
	if _, err := s.setState(ctx, sb, engi.Paused, func(r *SandboxRecord) { r.Deadline = time.Time{} }); err != nil {
		return err
	}
	if err := provider.Pause(ctx, sb.instance().machine); err != nil {
		_, back := s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) { r.Deadline = rec.Deadline })
		if back != nil {
			s.log.Error("record that a sandbox could not be paused", "sandbox", sb.id, "error", back)
		}
		s.deadlineChanged()
		return err
	}
	return nil
}

// unpause resumes the machine of a paused sandbox, and makes sure that its
// guest can be reached.
func (s *sandboxes) unpause(ctx context.Context, sb *sandbox) error {
	inst := sb.instance()
	if err := provider.Resume(ctx, inst.machine); err != nil {
		return err
	}
	if inst.client() != nil {
		return nil
	}
	return s.reconnect(ctx, sb)
}

// reconnect opens a new connection to a sandbox's guest and closes the old one.
func (s *sandboxes) reconnect(ctx context.Context, sb *sandbox) error {
	inst := sb.instance()
	ctx, cancel := context.WithTimeout(ctx, reconnectTime)
	defer cancel()
	inst.closeClient()
	g, err := guest.Open(ctx, inst.machine.Guest, sb.record().Token)
	if err != nil {
		return err
	}
	inst.setClient(g)
	return nil
}

// Hibernate implements engi.Lifecycle.
func (s *sandboxes) Hibernate(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, diskOnly bool) (err error) {
	defer engi.Annotate(&err, "hibernate sandbox")
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return err
	}
	return s.transition(ctx, sb, func(ctx context.Context) error { return s.hibernate(ctx, sb, diskOnly) })
}

// hibernate writes a sandbox to disk and destroys its instance. The instance
// stays until the image is complete, so that at every moment the sandbox can be
// restored from one of them.
func (s *sandboxes) hibernate(ctx context.Context, sb *sandbox, diskOnly bool) (err error) {
	defer s.timed("hibernate", time.Now(), &err)
	was := sb.record()
	if was.State != engi.Running && was.State != engi.Paused {
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", sb.id, was.State)
	}
	sb.block()
	defer sb.unblock()
	_, err = s.setState(ctx, sb, engi.Hibernating, func(r *SandboxRecord) { r.Disk = diskOnly })
	if err != nil {
		return err
	}
	if err := s.saveImage(ctx, sb, was.State == engi.Paused, diskOnly); err != nil {
		s.undoHibernate(ctx, sb, was)
		return err
	}
	s.destroyInstance(sb)
	if _, err := s.setState(ctx, sb, engi.Hibernated, clearForHibernation); err != nil {
		// Only the record is out of date: the next node finds the image.
		s.log.Error("record that a sandbox hibernates", "sandbox", sb.id, "error", err)
		sb.markHibernated()
	}
	// As with the store, a crash of the node loses no data, while a power cut
	// may lose the last moments.
	s.spawn(func() {
		if err := s.files.syncImage(sb.id); err != nil {
			s.log.Error("sync a hibernated sandbox; a power cut would lose it", "sandbox", sb.id, "error", err)
		}
	})
	return nil
}

// A holder is a Templates that can prevent the removal of a template, by any
// process, as long as a path exists.
type holder interface {
	Hold(ctx context.Context, digest, path string) error
}

// saveImage writes a sandbox's instance to its image. With the memory, the
// provider itself ends the machine when the image is complete, so that no
// program continues and changes a volume.
func (s *sandboxes) saveImage(ctx context.Context, sb *sandbox, paused, diskOnly bool) error {
	if paused {
		if err := s.unpause(ctx, sb); err != nil {
			return err
		}
	}
	dir, err := s.files.newImage(sb.id)
	if err != nil {
		return err
	}
	held := make(chan error, 1)
	go func() { held <- s.hold(ctx, sb) }() // as slow as a sync
	if diskOnly {
		// Writes from here on are lost, so no caller must be told that
		// they succeeded.
		sb.instance().closeClient()
		err = provider.SaveDisk(ctx, sb.instance().machine, dir)
	} else {
		err = s.saveMemory(ctx, sb, dir, provider.Checkpoint)
	}
	if e := <-held; err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return s.files.keepImage(sb.id)
}

// hold prevents the removal of a sandbox's template as long as the sandbox has files.
func (s *sandboxes) hold(ctx context.Context, sb *sandbox) error {
	if h, ok := s.opt.Templates.(holder); ok {
		return h.Hold(ctx, sb.record().Digest, s.files.sandbox(sb.id))
	}
	return nil
}

// saveMemory writes a sandbox's machine with its memory to an empty directory,
// and closes the connection to the guest. If the machine continues, call reconnect.
func (s *sandboxes) saveMemory(ctx context.Context, sb *sandbox, dir string, write func(context.Context, provider.Machine, string) error) error {
	inst := sb.instance()
	g := inst.client()
	if g == nil {
		return engi.Errorf(engi.Unavailable, "sandbox %s does not answer", sb.id)
	}
	short, cancel := context.WithTimeout(ctx, quiesceTime)
	defer cancel()
	// A guest that the host dials has no connections of its own to close.
	if err := engi.Ignore(g.Quiesce(short), engi.Unsupported); err != nil {
		return err
	}
	g.Close()
	return write(ctx, inst.machine, dir)
}

// undoHibernate lets a sandbox continue after a failed hibernation, or ends it if
// its instance has ended.
func (s *sandboxes) undoHibernate(ctx context.Context, sb *sandbox, was SandboxRecord) {
	err := s.dropImage(sb.id)
	if err == nil {
		err = s.reconnect(ctx, sb)
	}
	if err == nil {
		_, err = s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) {
			r.Disk, r.Deadline = false, was.Deadline
			if was.Deadline.IsZero() { // it was paused
				startClock(r, 0)
			}
		})
	}
	if err != nil {
		s.log.Error("a sandbox can neither hibernate nor go on, so it ends", "sandbox", sb.id, "error", err)
		sb.endSoon(engi.CauseSandboxLost)
	}
	s.deadlineChanged()
}

// dropImage removes a sandbox's image. The image is moved away at once; its bytes are freed
// in the background.
func (s *sandboxes) dropImage(id engi.SandboxID) error {
	trash, err := s.files.moveAway(id)
	if err != nil || trash == "" {
		return err
	}
	if !s.spawn(func() { s.dropTemp(trash) }) {
		s.dropTemp(trash)
	}
	return nil
}

// Resume implements engi.Lifecycle.
func (s *sandboxes) Resume(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, timeout time.Duration, cold bool) (_ engi.Sandbox, err error) {
	defer engi.Annotate(&err, "resume sandbox")
	if err := s.checkTimeout(timeout); err != nil {
		return engi.Sandbox{}, err
	}
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	err = s.transition(ctx, sb, func(ctx context.Context) error {
		if sb.record().State == engi.Running {
			return s.extend(ctx, sb, timeout)
		}
		return s.wake(ctx, sb, timeout, cold, "request")
	})
	return sb.record().Sandbox, err
}

// checkTimeout returns Invalid for a timeout beyond the limits.
func (s *sandboxes) checkTimeout(timeout time.Duration) error {
	return engi.SandboxUpdate{Timeout: &timeout}.Faults(s.bounds).Err()
}

// extend moves a running sandbox's deadline later, never earlier.
func (s *sandboxes) extend(ctx context.Context, sb *sandbox, timeout time.Duration) error {
	_, err := s.edit(ctx, sb, func(r *SandboxRecord) error {
		next := *r
		startClock(&next, timeout)
		if d := earlier(next.Deadline, r.Started.Add(r.Lifetime.Max)); d.After(r.Deadline) {
			r.Deadline = d
		}
		return nil
	})
	return err
}

// wake resumes a sandbox that is paused or hibernated.
func (s *sandboxes) wake(ctx context.Context, sb *sandbox, timeout time.Duration, cold bool, why string) (err error) {
	began := time.Now()
	switch rec := sb.record(); rec.State {
	case engi.Paused:
		defer s.timed("resume", began, &err)
		err = s.resumePaused(ctx, sb, timeout)
	case engi.Hibernated:
		defer s.timed("wake", began, &err)
		err = s.resumeHibernated(ctx, sb, timeout, cold)
	default:
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", sb.id, rec.State)
	}
	if err == nil {
		s.metrics.wakes.WithLabelValues(why).Inc()
		sb.touch()
		s.deadlineChanged()
	}
	return err
}

// resumePaused resumes a paused sandbox.
func (s *sandboxes) resumePaused(ctx context.Context, sb *sandbox, timeout time.Duration) error {
	sb.block()
	defer sb.unblock()
	if _, err := s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) { startClock(r, timeout) }); err != nil {
		return err
	}
	if err := s.unpause(ctx, sb); err != nil {
		if _, back := s.setState(ctx, sb, engi.Paused, func(r *SandboxRecord) { r.Deadline = time.Time{} }); back != nil {
			s.log.Error("record that a sandbox stays paused", "sandbox", sb.id, "error", back)
		}
		return err
	}
	if err := s.refreshNetwork(ctx, sb); err != nil {
		s.log.Error("tell a resumed sandbox of its network", "sandbox", sb.id, "error", err)
	}
	return nil
}

// resumeHibernated boots a sandbox from its image. The image stays until the
// stored record has state running, so that the resume can be tried again.
func (s *sandboxes) resumeHibernated(ctx context.Context, sb *sandbox, timeout time.Duration, cold bool) (err error) {
	rec := sb.record()
	booking, err := s.book(ctx, &booking{owner: sb.owner, size: rec.Size, of: aResumption})
	if err != nil {
		return err
	}
	defer s.unbook(booking)
	t, release, err := s.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		return err
	}
	defer release() // sb has the template pinned, unless the template was missing
	sb.block()
	defer sb.unblock()
	rec, err = s.setState(ctx, sb, engi.Resuming, func(r *SandboxRecord) { r.Token = newToken() })
	if err != nil {
		return err
	}
	// A crash may have left remains of the sandbox's last machine.
	err = s.removeMachine(ctx, s.providerOf(rec.Tier), sb.id)
	if err == nil {
		err = s.bootFromImage(ctx, sb, rec, t, cold)
	}
	if err == nil {
		_, err = s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) {
			r.Disk = false
			startClock(r, timeout)
		})
	}
	if err != nil {
		s.destroyInstance(sb)
		if _, back := s.setState(ctx, sb, engi.Hibernated, clearForHibernation); back != nil {
			s.log.Error("record that a sandbox stays hibernated", "sandbox", sb.id, "error", back)
			sb.markHibernated()
		}
		return err
	}
	if err := s.dropImage(sb.id); err != nil {
		s.log.Error("remove the image of a sandbox that runs; trying again later", "sandbox", sb.id, "error", err)
	}
	return nil
}

// bootFromImage boots an instance for a hibernated sandbox.
func (s *sandboxes) bootFromImage(ctx context.Context, sb *sandbox, rec SandboxRecord, t engi.Template, cold bool) error {
	image := s.files.image(sb.id)
	switch {
	case rec.Disk:
		_, err := s.bootInstance(ctx, sb, rec, t, "", image)
		return err
	case !cold:
		_, err := s.bootInstance(ctx, sb, rec, t, image, "")
		return err
	}
	// Only a machine can separate the disk from the memory of an image, so the image is
	// restored briefly.
	if _, err := s.bootInstance(ctx, sb, rec, t, image, ""); err != nil {
		return err
	}
	dir, err := s.files.newTemp()
	if err != nil {
		return err
	}
	defer s.dropTemp(dir)
	err = provider.SaveDisk(ctx, sb.instance().machine, dir)
	s.destroyInstance(sb)
	if err != nil {
		return err
	}
	_, err = s.bootInstance(ctx, sb, rec, t, "", dir)
	return err
}
