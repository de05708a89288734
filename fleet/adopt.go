package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/provider"
)

// recoverBox takes a sandbox up again that lived when the node died, in
// whatever state that was:
//
//	running      goes on, deadline and all
//	paused       stays so
//	hibernating  sleeps if its image is complete, else goes on
//	hibernated   stays so
//	resuming     goes on if its machine is there, else sleeps
//
// One whose machine is gone without an image has ended: sandbox_lost.
func (m *Manager) recoverBox(ctx context.Context, s SandboxRecord) {
	err := m.retakeBox(ctx, s)
	if err == nil || ctx.Err() != nil {
		return
	}
	m.log.Warn("sandbox did not survive", "sandbox", s.ID, "state", s.State, "error", err)
	m.metrics.repaired.WithLabelValues("sandbox_lost").Inc()
	m.buryBox(ctx, s)
}

// buryBox removes all that is left of a sandbox and ends its record.
func (m *Manager) buryBox(ctx context.Context, s SandboxRecord) {
	if now, err := m.opt.Store.GetSandbox(ctx, "", s.ID); err != nil || now.State == engi.Stopped {
		return // it ended while the caller looked
	}
	if s.End == "" {
		s.End = engi.CauseSandboxLost
	}
	err := m.remove(ctx, m.providerOf(s.Tier), s.ID)
	if err == nil {
		err = m.clear(ctx, s.ID, s)
	}
	if err == nil {
		s.State = engi.Stopped
		ended(&s)
		err = m.opt.Store.PutSandbox(ctx, s)
	}
	if err != nil {
		m.log.Error("end lost sandbox; trying again later", "sandbox", s.ID, "error", err)
	}
}

// retakeBox is recoverBox for a sandbox that may have survived.
func (m *Manager) retakeBox(ctx context.Context, s SandboxRecord) (err error) {
	var u undo
	defer u.run()
	image := m.files.hasImage(s.ID)
	t, unpin, err := m.opt.Templates.Use(ctx, s.Digest)
	if err != nil { // it may come back; what runs has it open, and what sleeps sleeps on
		m.log.Error("the template of a sandbox is missing", "sandbox", s.ID, "error", err)
		unpin = func() {}
	}
	u.add(unpin)
	x := newBox(s, unpin)
	x.active = time.Now().UTC() // being away counts as use
	x.turn <- struct{}{}
	u.add(x.abort)
	m.know(x)
	u.add(func() { m.unknow(x) })
	err = nil
	if s.State != engi.Hibernated && len(s.Volumes) > 0 {
		// The keeper of volumes has started anew, too.
		if _, err := m.mounts(ctx, s, t); err != nil {
			m.log.Error("take up volumes of a sandbox", "sandbox", s.ID, "error", err)
		}
	}
	switch s.State {
	case engi.Running:
		if err := m.retakeAwake(ctx, x, t); err != nil {
			return err
		}
		if image { // of before it was woken
			err = m.dropImage(s.ID)
		}
	case engi.Paused:
		err = m.retakeFrozen(ctx, x)
	case engi.Hibernating:
		if image { // the machine may be there too: nobody used it since
			m.retakeAsleep(ctx, x)
			break
		}
		if err = m.retakeAwake(ctx, x, t); err != nil {
			err = m.retakeSaved(ctx, x, t, err)
		}
		if err == nil {
			_, err = m.step(ctx, x, engi.Running, func(r *SandboxRecord) { r.Disk = false })
		}
	case engi.Resuming:
		if err = m.retakeAwake(ctx, x, t); err == nil {
			_, err = m.step(ctx, x, engi.Running, func(r *SandboxRecord) {
				r.Disk = false
				wake(r, time.Now().UTC(), 0)
			})
			if err == nil {
				err = m.dropImage(s.ID)
			}
			break
		}
		if !image {
			return err
		}
		m.disembody(x)
		m.retakeAsleep(ctx, x)
		err = nil
	case engi.Hibernated:
		if !image {
			return engi.Errorf(engi.NotFound, "its image is gone")
		}
		m.retakeAsleep(ctx, x)
	default:
		return engi.Errorf(engi.Conflict, "it was %s", s.State)
	}
	if err != nil {
		m.disembody(x)
		return err
	}
	u.keep()
	x.leave()
	m.metrics.repaired.WithLabelValues("sandbox_adopted").Inc()
	return nil
}

// retakeAsleep takes a sandbox up that sleeps. What is left of its machine
// goes; what fails now is no reason to lose what sleeps.
func (m *Manager) retakeAsleep(ctx context.Context, x *sandbox) {
	rec := x.record()
	if err := m.remove(ctx, m.providerOf(rec.Tier), rec.ID); err != nil {
		m.log.Error("remove the machine of a sandbox that sleeps; waking it tries again", "sandbox", rec.ID, "error", err)
	}
	if rec.State == engi.Hibernated {
		return
	}
	if _, err := m.step(ctx, x, engi.Hibernated, asleep); err != nil {
		m.log.Error("record that a sandbox sleeps", "sandbox", rec.ID, "error", err)
		x.sleep()
	}
}

// asleep is the change of a record when its sandbox has been written to disk.
func asleep(r *SandboxRecord) { r.Deadline, r.Token = time.Time{}, "" }

// sleep makes the record in memory that of a sandbox that sleeps, though the
// store could not be told: what is on disk says so too.
func (x *sandbox) sleep() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rec.State = engi.Hibernated
	asleep(&x.rec)
}

// retakeAwake takes a sandbox up that runs, or did so a moment before it was
// to be frozen or saved.
func (m *Manager) retakeAwake(ctx context.Context, x *sandbox, t engi.Template) (err error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	rec := x.record()
	machine, err := m.providerOf(rec.Tier).Adopt(ctx, rec.ID)
	if err != nil {
		return err
	}
	defer func() {
		// One that does not answer is in the way of what comes next. If we
		// are told to stop, the next node takes it.
		if err != nil && whole.Err() == nil {
			err = errors.Join(err, machine.Close())
		}
	}()
	if err := provider.Resume(ctx, machine); err != nil && engi.KindOf(err) != engi.Unsupported {
		return err
	}
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return err
	}
	wiring, err := m.openWall(ctx, rec.ID, rec.Owner, rec.Network)
	if err != nil {
		// It may have been made before there was a wall, or name a secret
		// that is gone. Nothing is reachable then.
		m.log.Error("open the network of a sandbox", "sandbox", rec.ID, "error", err)
		wiring = nil
	}
	if t.Digest != "" {
		// Its owner's environment may not have been sent before the node died.
		if err := g.Setup(ctx, setupOf(t, rec, wiring)); err != nil {
			g.Close()
			return err
		}
	}
	m.adoptBody(x, machine, g)
	return nil
}

// retakeSaved takes a sandbox up whose machine ended for the reason why, in the
// moment between the last byte of its image and the image's name: only a
// machine that comes back from it can tell whether the image is whole.
func (m *Manager) retakeSaved(ctx context.Context, x *sandbox, t engi.Template, why error) error {
	m.disembody(x)
	rec := x.record()
	if err := m.remove(ctx, m.providerOf(rec.Tier), rec.ID); err != nil {
		return err
	}
	if m.files.keepImage(rec.ID) != nil {
		return why // there is none
	}
	if err := m.repower(ctx, x, rec, t, false); err != nil {
		return err
	}
	return m.dropImage(rec.ID)
}

// retakeFrozen takes a sandbox up that is paused. It may run still, if the
// node died before it was paused or after it was resumed.
func (m *Manager) retakeFrozen(ctx context.Context, x *sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	rec := x.record()
	machine, err := m.providerOf(rec.Tier).Adopt(ctx, rec.ID)
	if err != nil {
		return err
	}
	if err := provider.Pause(ctx, machine); err != nil {
		return err
	}
	if _, err := m.openWall(ctx, rec.ID, rec.Owner, rec.Network); err != nil {
		m.log.Error("open the network of a sandbox", "sandbox", rec.ID, "error", err)
	}
	m.adoptBody(x, machine, nil)
	x.machine().setUnwired(true)
	return nil
}

// adoptBody makes a machine that was found a box's.
func (m *Manager) adoptBody(x *sandbox, machine provider.Machine, g *guest.Client) {
	rec := x.record()
	b := &instance{
		key:     pool.Key{Tier: rec.Tier, Template: rec.Template, Language: rec.Language, Size: rec.Fixed},
		machine: machine,
		guest:   g,
		unpin:   func() {}, // the box has the template
		gone:    make(chan struct{}),
		rec:     rec,
	}
	x.embody(b)
	m.stock.Adopt(b.key, m.poolFor(b.key), b, rec.Digest, true, time.Now())
	m.admit(b)
}

// sweepBoxes removes images and holders of volumes that belong to no sandbox,
// and what copies left behind. It is for the start: later there are boxes
// that nobody knows yet.
func (m *Manager) sweepBoxes(ctx context.Context) {
	ids, err := m.files.strayBoxes()
	if err != nil {
		m.log.Error("look for images", "error", err)
	}
	for _, id := range ids {
		if m.boxOf("", id) != nil {
			continue
		}
		if err := m.files.dropBox(id); err != nil {
			m.log.Error("remove image nobody owns", "sandbox", id, "error", err)
			continue
		}
		m.metrics.repaired.WithLabelValues("image_removed").Inc()
	}
	if err := m.files.dropForks(); err != nil {
		m.log.Error("remove what copies left", "error", err)
	}
	if m.opt.Volumes == nil {
		return
	}
	holders, err := m.opt.Volumes.Holders(ctx)
	if err != nil {
		m.log.Error("look for holders of volumes", "error", err)
		return
	}
	slices.Sort(holders)
	for _, id := range slices.Compact(holders) {
		if m.boxOf("", id) != nil {
			continue
		}
		if err := m.opt.Volumes.Unmount(ctx, id); err != nil {
			m.log.Error("let go of volumes", "sandbox", id, "error", err)
			continue
		}
		m.metrics.repaired.WithLabelValues("volumes_released").Inc()
	}
}
