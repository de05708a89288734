package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/provider"
)

// Lifecycle returns what moves sandboxes between awake, asleep and many.
func (m *Manager) Lifecycle() engi.Lifecycle { return lifecycle{m} }

// lifecycle is the Manager as engi.Lifecycle.
type lifecycle struct{ m *Manager }

var _ engi.Lifecycle = lifecycle{}

const (
	// quietTime bounds how long a guest may take to close its connections.
	quietTime = 10 * time.Second
	// returnTime bounds how long a guest may take to answer after its
	// machine was saved or thawed.
	returnTime = 30 * time.Second
)

// find returns owner's box, or why there is none.
func (l lifecycle) find(ctx context.Context, owner engi.Owner, id engi.SandboxID) (*sandbox, error) {
	if x := l.m.boxOf(owner, id); x != nil {
		return x, nil
	}
	return nil, l.m.whyNoBox(ctx, owner, id)
}

// timed observes how long a move took, if it worked.
func (m *Manager) timed(move string, began time.Time, err *error) {
	if *err == nil {
		m.metrics.moves.WithLabelValues(move).Observe(time.Since(began).Seconds())
	}
}

func (l lifecycle) Pause(ctx context.Context, owner engi.Owner, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "pause sandbox")
	x, err := l.find(ctx, owner, id)
	if err != nil {
		return err
	}
	return l.m.perform(ctx, x, func(ctx context.Context) error { return l.m.freeze(ctx, x) })
}

// freeze pauses a box in memory.
func (m *Manager) freeze(ctx context.Context, x *sandbox) (err error) {
	rec := x.record()
	if rec.State == engi.Paused {
		return nil
	}
	defer m.timed("pause", time.Now(), &err)
	if _, err := m.step(ctx, x, engi.Paused, func(r *SandboxRecord) { r.Deadline = time.Time{} }); err != nil {
		return err
	}
	if err := provider.Pause(ctx, x.machine().machine); err != nil {
		_, back := m.step(ctx, x, engi.Running, func(r *SandboxRecord) { r.Deadline = rec.Deadline })
		if back != nil {
			m.log.Error("record that a sandbox goes on", "sandbox", x.id, "error", back)
		}
		m.stirTime()
		return err
	}
	return nil
}

// refreeze freezes the machine of a box that was thawed to be copied.
func (m *Manager) refreeze(ctx context.Context, x *sandbox) error {
	return provider.Pause(ctx, x.machine().machine)
}

// thaw lets a paused box's machine go on, and makes sure that its guest
// answers.
func (m *Manager) thaw(ctx context.Context, x *sandbox) error {
	b := x.machine()
	if err := provider.Resume(ctx, b.machine); err != nil {
		return err
	}
	if b.way() != nil {
		return nil
	}
	return m.reenter(ctx, x)
}

// reenter opens a new way into a box's machine and closes the old one.
func (m *Manager) reenter(ctx context.Context, x *sandbox) error {
	b := x.machine()
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	b.closeGuest()
	g, err := guest.Open(ctx, b.machine.Guest, x.record().Token)
	if err != nil {
		return err
	}
	b.setWay(g)
	return nil
}

func (l lifecycle) Hibernate(ctx context.Context, owner engi.Owner, id engi.SandboxID, diskOnly bool) (err error) {
	defer engi.Annotate(&err, "hibernate sandbox")
	x, err := l.find(ctx, owner, id)
	if err != nil {
		return err
	}
	return l.m.perform(ctx, x, func(ctx context.Context) error { return l.m.hibernate(ctx, x, diskOnly) })
}

// hibernate writes a box to disk and lets its machine go. The machine goes on
// until the image is complete, so that at every moment one of them is there to
// come back from.
func (m *Manager) hibernate(ctx context.Context, x *sandbox, diskOnly bool) (err error) {
	defer m.timed("hibernate", time.Now(), &err)
	was := x.record()
	if was.State != engi.Running && was.State != engi.Paused {
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", x.id, was.State)
	}
	x.close()
	defer x.open()
	_, err = m.step(ctx, x, engi.Hibernating, func(r *SandboxRecord) { r.Disk = diskOnly })
	if err != nil {
		return err
	}
	if err := m.saveBox(ctx, x, was.State == engi.Paused, diskOnly); err != nil {
		m.unhibernate(ctx, x, was)
		return err
	}
	m.disembody(x)
	if _, err := m.step(ctx, x, engi.Hibernated, asleep); err != nil {
		// The image is there: the next life of the node finds it, and until
		// then only the store is behind.
		m.log.Error("record that a sandbox hibernates", "sandbox", x.id, "error", err)
		x.sleep()
	}
	// As with the store, a power cut may take back the last moments, and a
	// crash of the node nothing.
	m.spawn(func() {
		if err := m.files.syncImage(x.id); err != nil {
			m.log.Error("a power cut would cost a sandbox that sleeps", "sandbox", x.id, "error", err)
		}
	})
	return nil
}

// A holder keeps a template from being removed, by whatever process, for as
// long as a path exists. Templates that can do that are asked to.
type holder interface {
	Hold(ctx context.Context, digest, path string) error
}

// saveBox writes a box's machine to its image. Of the memory the provider
// itself ends the machine when the image is whole, so that no program goes on
// to change what a volume has.
func (m *Manager) saveBox(ctx context.Context, x *sandbox, frozen, diskOnly bool) error {
	if frozen {
		if err := m.thaw(ctx, x); err != nil {
			return err
		}
	}
	dir, err := m.files.newImage(x.id)
	if err != nil {
		return err
	}
	held := make(chan error, 1)
	go func() { held <- m.hold(ctx, x) }() // it waits for the disk
	if diskOnly {
		// From here on nobody is told that something was written.
		x.machine().closeGuest()
		err = provider.SaveDisk(ctx, x.machine().machine, dir)
	} else {
		err = m.save(ctx, x, dir, provider.Checkpoint)
	}
	if e := <-held; err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return m.files.keepImage(x.id)
}

// hold keeps a box's template for as long as the box has files.
func (m *Manager) hold(ctx context.Context, x *sandbox) error {
	if h, ok := m.opt.Templates.(holder); ok {
		return h.Hold(ctx, x.record().Digest, m.files.box(x.id))
	}
	return nil
}

// save writes a box's machine with its memory to an empty directory. If it
// goes on then, it has no way in: reenter.
func (m *Manager) save(ctx context.Context, x *sandbox, dir string, write func(context.Context, provider.Machine, string) error) error {
	b := x.machine()
	g := b.way()
	if g == nil {
		return engi.Errorf(engi.Unavailable, "sandbox %s does not answer", x.id)
	}
	quiet, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	// A guest whose connections the host opens has none of its own to close.
	if err := g.Quiesce(quiet); err != nil && engi.KindOf(err) != engi.Unsupported {
		return err
	}
	g.Close()
	return write(ctx, b.machine, dir)
}

// unhibernate lets a box go on whose hibernation failed, or ends it if its
// machine has.
func (m *Manager) unhibernate(ctx context.Context, x *sandbox, was SandboxRecord) {
	err := m.dropImage(x.id)
	if err == nil {
		err = m.reenter(ctx, x)
	}
	if err == nil {
		_, err = m.step(ctx, x, engi.Running, func(r *SandboxRecord) {
			r.Disk, r.Deadline = false, was.Deadline
			if was.Deadline.IsZero() { // it was frozen
				wake(r, time.Now().UTC(), 0)
			}
		})
	}
	if err != nil {
		m.log.Error("a sandbox neither hibernates nor goes on: it ends", "sandbox", x.id, "error", err)
		x.condemn(engi.CauseSandboxLost)
	}
	m.stirTime()
}

// dropImage removes what a box was written to. It takes the files away at
// once; that their bytes are free again is worth nobody's waiting.
func (m *Manager) dropImage(id engi.SandboxID) error {
	away, err := m.files.carryOff(id)
	if err != nil || away == "" {
		return err
	}
	if !m.spawn(func() { m.dropFork(away) }) {
		m.dropFork(away)
	}
	return nil
}

func (l lifecycle) Resume(ctx context.Context, owner engi.Owner, id engi.SandboxID, timeout time.Duration, cold bool) (_ engi.Sandbox, err error) {
	defer engi.Annotate(&err, "resume sandbox")
	if timeout < 0 || timeout > l.m.opt.Lifetime.Max {
		return engi.Sandbox{}, engi.Errorf(engi.Invalid, "a timeout of %v is not between 0 and %v", timeout, l.m.opt.Lifetime.Max)
	}
	x, err := l.find(ctx, owner, id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	err = l.m.perform(ctx, x, func(ctx context.Context) error {
		if x.record().State == engi.Running {
			return l.m.extend(ctx, x, timeout)
		}
		return l.m.rouse(ctx, x, timeout, cold, "request")
	})
	return x.record().Sandbox, err
}

// extend gives a running box a deadline that is farther than its own.
func (m *Manager) extend(ctx context.Context, x *sandbox, timeout time.Duration) error {
	_, err := m.edit(ctx, x, func(r *SandboxRecord) error {
		next := *r
		wake(&next, time.Now().UTC(), timeout)
		if d := earlier(next.Deadline, r.Started.Add(r.Lifetime.Max)); d.After(r.Deadline) {
			r.Deadline = d
		}
		return nil
	})
	return err
}

// rouse wakes a box that is frozen or on disk.
func (m *Manager) rouse(ctx context.Context, x *sandbox, timeout time.Duration, cold bool, why string) (err error) {
	began := time.Now()
	switch rec := x.record(); rec.State {
	case engi.Paused:
		defer m.timed("resume", began, &err)
		err = m.unfreeze(ctx, x, timeout)
	case engi.Hibernated:
		defer m.timed("wake", began, &err)
		err = m.restore(ctx, x, timeout, cold)
	default:
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", x.id, rec.State)
	}
	if err == nil {
		m.metrics.wakes.WithLabelValues(why).Inc()
		x.mu.Lock()
		x.active, x.stale = time.Now().UTC(), true
		x.mu.Unlock()
		m.stirTime()
	}
	return err
}

// unfreeze lets a paused box go on.
func (m *Manager) unfreeze(ctx context.Context, x *sandbox, timeout time.Duration) error {
	x.close()
	defer x.open()
	if _, err := m.step(ctx, x, engi.Running, func(r *SandboxRecord) { wake(r, time.Now().UTC(), timeout) }); err != nil {
		return err
	}
	if err := m.thaw(ctx, x); err != nil {
		if _, back := m.step(ctx, x, engi.Paused, func(r *SandboxRecord) { r.Deadline = time.Time{} }); back != nil {
			m.log.Error("record that a sandbox stays frozen", "sandbox", x.id, "error", back)
		}
		return err
	}
	if err := m.catchUp(ctx, x); err != nil {
		m.log.Error("a sandbox was thawed and does not know its network", "sandbox", x.id, "error", err)
	}
	return nil
}

// restore wakes a box that is on disk. Its image goes when the store says
// that it runs: until then it can be woken again from there.
func (m *Manager) restore(ctx context.Context, x *sandbox, timeout time.Duration, cold bool) (err error) {
	rec := x.record()
	booking, err := m.bookAwake(x.owner, rec.Size)
	if err != nil {
		return err
	}
	defer m.unbook(booking)
	t, release, err := m.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		return err
	}
	defer release() // the box has its own
	x.close()
	defer x.open()
	rec, err = m.step(ctx, x, engi.Resuming, func(r *SandboxRecord) { r.Token = newToken() })
	if err != nil {
		return err
	}
	// The machine's own end may have left traces when the node died.
	err = m.remove(ctx, m.providerOf(rec.Tier), x.id)
	if err == nil {
		err = m.repower(ctx, x, rec, t, cold)
	}
	if err == nil {
		_, err = m.step(ctx, x, engi.Running, func(r *SandboxRecord) {
			r.Disk = false
			wake(r, time.Now().UTC(), timeout)
		})
	}
	if err != nil {
		m.disembody(x)
		if _, back := m.step(ctx, x, engi.Hibernated, asleep); back != nil {
			m.log.Error("record that a sandbox sleeps on", "sandbox", x.id, "error", back)
			x.sleep()
		}
		return err
	}
	if err := m.dropImage(x.id); err != nil {
		m.log.Error("remove the image of a sandbox that runs; trying again later", "sandbox", x.id, "error", err)
	}
	return nil
}

// repower starts the machine of a box from its image.
func (m *Manager) repower(ctx context.Context, x *sandbox, rec SandboxRecord, t engi.Template, cold bool) error {
	image := m.files.image(x.id)
	switch {
	case rec.Disk:
		_, err := m.power(ctx, x, rec, t, "", image)
		return err
	case !cold:
		_, err := m.power(ctx, x, rec, t, image, "")
		return err
	}
	// What the disk was is known to the machine only: it is restored for a
	// moment to tell.
	if _, err := m.power(ctx, x, rec, t, image, ""); err != nil {
		return err
	}
	dir, err := m.files.newFork()
	if err != nil {
		return err
	}
	defer m.dropFork(dir)
	err = provider.SaveDisk(ctx, x.machine().machine, dir)
	m.disembody(x)
	if err != nil {
		return err
	}
	_, err = m.power(ctx, x, rec, t, "", dir)
	return err
}
