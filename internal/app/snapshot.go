package app

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxSnapshots = 5                // maximum number of snapshots of an app
	snapshotTime = 12 * time.Minute // longer than the time limit of a sandbox's snapshot
	tidyTries    = putBackTries
)

// keep attaches a snapshot to a revision. It discards an earlier snapshot of the revision, and
// the oldest one if there are too many.
func (r *Record) keep(k Snapshot, revision int64) {
	if k.ID == "" {
		return
	}
	r.Stray.Snapshots = slices.DeleteFunc(r.Stray.Snapshots, func(id engi.SnapshotID) bool { return id == k.ID })
	r.discard(func(_ int, old Snapshot) bool { return old.Revision == revision })
	k.Revision = revision
	r.Snapshots = append(r.Snapshots, k)
	r.discard(func(i int, _ Snapshot) bool { return i < len(r.Snapshots)-maxSnapshots })
}

// discard detaches snapshots from an app and marks them for deletion.
func (r *Record) discard(gone func(i int, k Snapshot) bool) {
	var kept []Snapshot
	for i, k := range r.Snapshots {
		if gone(i, k) {
			r.Stray.Snapshots = append(r.Stray.Snapshots, k.ID)
		} else {
			kept = append(kept, k)
		}
	}
	r.Snapshots = kept
}

// makeSnapshot takes a snapshot of an app's sandbox. It records the ID as a stray before the snapshot
// exists, so that the snapshot is either attached to a revision or deleted,
// whenever the node is killed.
func (s *Service) makeSnapshot(ctx context.Context, u *use) (k Snapshot, err error) {
	id := engi.NewSnapshotID()
	if err := s.change(ctx, u, func(r *Record) { r.Stray.Snapshots = append(r.Stray.Snapshots, id) }); err != nil {
		return k, err
	}
	// The snapshot is completed even if the caller leaves.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTime)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)() // the next node deletes the snapshot
	x, err := s.opt.Lifecycle.Snapshot(work, engi.Everyone, u.rec.Sandbox, engi.SnapshotSpec{ID: id, Name: "apps/" + u.rec.Name + "/" + string(id[len(id)-8:])})
	if err != nil {
		return k, err
	}
	return Snapshot{ID: x.ID, Bytes: x.Bytes, Created: x.Created}, nil
}

// enterAgain enters the sandbox of an app after a snapshot, which closes the
// connections to the sandbox.
func (s *Service) enterAgain(ctx context.Context, u *use) error {
	g, leave, err := s.sandboxes.Reconnect(ctx, u.rec.Sandbox)
	if err != nil {
		return err // the caller notices that the old connection is closed
	}
	u.leave()
	u.g, u.leave = g, leave
	return nil
}

// tryKeep takes a snapshot for an apply, which succeeds without one too.
func (s *Service) tryKeep(ctx context.Context, u *use, say *reporter) (Snapshot, error) {
	if err := say.step("snapshot", "Keep a snapshot of the app with its databases"); err != nil {
		return Snapshot{}, err
	}
	k, failed := s.makeSnapshot(ctx, u)
	if err := s.enterAgain(ctx, u); err != nil {
		return Snapshot{}, err
	}
	if failed != nil {
		text := "it is applied, and there is no snapshot of it: " + failed.Error()
		if remedy := engi.RemedyOf(failed); remedy != "" {
			text += "; " + remedy
		}
		say.warn("", 0, text)
	}
	return k, nil
}

// Snapshot implements [engi.Apps].
func (s *Service) Snapshot(ctx context.Context, viewer engi.Viewer, idOrName string) (rev engi.Revision, err error) {
	defer engi.Annotate(&err, "keep a snapshot of app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err == nil {
		err = r.alone("snapshots")
	}
	if err != nil {
		return rev, err
	}
	u, err := s.open(ctx, viewer, string(r.ID), how{idle: true, capture: true})
	if err != nil {
		return rev, err
	}
	defer u.close()
	defer s.tidyLater(ctx, u.rec.ID)
	k, err := s.makeSnapshot(ctx, u)
	if e := s.enterAgain(ctx, u); err == nil {
		err = e
	}
	if err != nil {
		return rev, err
	}
	now, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		r.keep(k, r.Revision)
		_, err := tx.Emit(engi.EventAppSnapshotted, eventData{Revision: r.Revision, Snapshot: k.ID, Bytes: k.Bytes, Actor: engi.ActorOf(ctx)})
		return err
	})
	if err != nil {
		return rev, err
	}
	u.rec = now
	return s.revisionOf(ctx, now, now.Revision)
}

// revisionOf returns a revision with its snapshot.
func (s *Service) revisionOf(ctx context.Context, r Record, number int64) (engi.Revision, error) {
	rev, err := s.opt.Store.Revision(ctx, r.ID, number)
	if err != nil {
		return rev, err
	}
	one := []engi.Revision{rev}
	err = s.addSnapshots(ctx, r, one)
	return one[0], err
}

// addSnapshots adds the existing snapshots to revisions.
func (s *Service) addSnapshots(ctx context.Context, r Record, revisions []engi.Revision) error {
	kept, err := s.snapshots(ctx, r)
	for i := range revisions {
		for _, k := range kept {
			if k.Revision == revisions[i].Number {
				revisions[i].Snapshot = engi.AppSnapshot{ID: k.ID, Bytes: k.Bytes, Created: k.Created}
			}
		}
	}
	return err
}

// snapshots returns the snapshots of an app, and forgets those that were deleted.
func (s *Service) snapshots(ctx context.Context, r Record) (there []Snapshot, err error) {
	gone := map[engi.SnapshotID]bool{}
	for _, k := range r.Snapshots {
		_, err := s.opt.Snapshots.Get(ctx, r.Owner.Viewer(), string(k.ID))
		switch {
		case err == nil:
			there = append(there, k)
		case engi.Is(err, engi.NotFound):
			gone[k.ID] = true
		default:
			return nil, err
		}
	}
	if len(gone) > 0 {
		_, err = s.opt.Store.Change(ctx, r.ID, func(r *Record, _ Tx) error {
			r.Snapshots = slices.DeleteFunc(r.Snapshots, func(k Snapshot) bool { return gone[k.ID] })
			return nil
		})
	}
	return there, err
}

// snapshotOf returns the snapshot of a revision; 0 means the last revision with a snapshot.
func (s *Service) snapshotOf(ctx context.Context, r Record, number int64) (k Snapshot, err error) {
	there, err := s.snapshots(ctx, r)
	if err != nil {
		return k, err
	}
	for _, x := range there {
		if x.Revision == number || number == 0 && x.Revision > k.Revision {
			k = x
		}
	}
	switch {
	case k.ID != "":
		return k, nil
	case number == 0:
		return k, engi.Errorf(engi.NotFound, "the app has no snapshot").WithRemedy("create a snapshot with 'engi app snapshot', or apply with --snapshot")
	}
	return k, engi.Errorf(engi.NotFound, "revision %d has no snapshot, or has none any more", number).
		WithRemedy("'engi app history' shows the revisions with a snapshot; without --snapshot, only the files of the revision are restored")
}

// Restore implements [engi.Apps].
func (s *Service) Restore(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) (rev engi.Revision, err error) {
	defer engi.Annotate(&err, "restore app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return rev, err
	}
	if err := cmp.Or(r.alone("snapshots"), r.busy(0)); err != nil {
		return rev, err
	}
	k, err := s.snapshotOf(ctx, r, number)
	if err != nil {
		return rev, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, applyTime, engi.Errorf(engi.Expired, "it took longer than %v", applyTime))
	defer cancel()
	a := s.live(r.ID)
	unlock, err := a.locked.Acquire(ctx, "app")
	if err != nil {
		return rev, err
	}
	defer unlock()
	if r, err = s.opt.Store.Find(ctx, engi.Everyone, string(r.ID)); err != nil {
		return rev, err
	}
	if err := r.busy(0); err != nil {
		return rev, err
	}
	s.keepChanges(ctx, a, r)
	return s.replace(ctx, a, r.ID, k)
}

// replace replaces the app's sandbox by one that starts from a snapshot. The sandbox
// that is not the app's, first the new and then the old one, is recorded as a
// stray. The caller holds the app's lock.
func (s *Service) replace(ctx context.Context, a *app, id engi.AppID, k Snapshot) (rev engi.Revision, err error) {
	sandbox := engi.NewSandboxID()
	var r Record
	defer func() {
		if err != nil && s.begun(ctx, id, func(now Record) bool { r = now; return now.Sandbox == sandbox }) {
			rev, err = s.revisionOf(ctx, r, r.Revision) // the change was recorded despite the error
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			a.copy.forget() // the cache is that of the old sandbox
		}
		late, cancel := s.late(ctx)
		defer cancel()
		if e := s.tidy(late, id); e != nil {
			s.opt.Log.WarnContext(ctx, "remove a sandbox whose place another has taken; it is tried again", "app", id, "error", e)
			s.tidyLater(ctx, id)
		}
	}()
	if r, err = s.opt.Store.Change(ctx, id, func(r *Record, _ Tx) error {
		r.Stray.Sandboxes = append(r.Stray.Sandboxes, sandbox)
		return nil
	}); err != nil {
		return rev, err
	}
	t, err := s.template(ctx, r.Owner, r.Template)
	if err != nil {
		return rev, err
	}
	spec := s.sandboxOf(r)
	spec.ID, spec.Snapshot = sandbox, k.ID
	if _, err := s.opt.Sandboxes.Create(ctx, spec); err != nil {
		return rev, err
	}
	u := &use{app: a, rec: r, t: t, dir: t.WorkDir, leave: func() {}}
	u.rec.Sandbox = sandbox
	a.copy.forget()
	if u.g, u.leave, err = s.sandboxes.Reconnect(ctx, sandbox); err != nil {
		return rev, err
	}
	defer func() { u.leave() }()
	changed, err := s.putFiles(ctx, u, k.Revision)
	if err != nil {
		return rev, err
	}
	// A server that answers keeps running, with its state in memory.
	if u.down = u.probe(ctx) != nil; u.down || len(changed) > 0 {
		wrong, err := s.settle(ctx, u, changed, s.reporter(ctx, u, 0))
		if err = cmp.Or(err, wrong); err != nil {
			return rev, engi.Errorf(engi.KindOf(err), "%w", err).WithRemedy("roll back to another revision; the app is unchanged")
		}
	}
	now, contents, err := a.copy.read(ctx, u.g, u.dir)
	if err != nil {
		return rev, err
	}
	then, err := s.opt.Store.Revision(ctx, id, k.Revision)
	if err != nil {
		return rev, err
	}
	rev = engi.Revision{Message: firstLine("Go back to: " + then.Message), Actor: engi.ActorOf(ctx), Of: k.Revision}
	r, rev, err = s.revise(ctx, r, now, contents, rev, func(r *Record, tx Tx, rev engi.Revision) error {
		r.Stray.Sandboxes = slices.DeleteFunc(r.Stray.Sandboxes, func(id engi.SandboxID) bool { return id == sandbox })
		if r.Sandbox != "" {
			r.Stray.Sandboxes = append(r.Stray.Sandboxes, r.Sandbox)
		}
		r.Sandbox, r.Undo = sandbox, nil
		if r.State == engi.AppStopped {
			if err := become(r, tx, engi.AppStarting, nil); err != nil {
				return err
			}
		}
		if err := become(r, tx, engi.AppReady, nil); err != nil {
			return err
		}
		_, err := tx.Emit(engi.EventAppRolledBack, eventData{Revision: rev.Number, Of: k.Revision, Text: rev.Message, Commit: rev.Commit, Snapshot: k.ID, Sandbox: sandbox})
		return err
	})
	if err != nil {
		return rev, err
	}
	u.rec = r
	s.projectLater(ctx, u.app, u.dir)
	return s.revisionOf(ctx, r, rev.Number)
}

// putFiles makes the files in a sandbox those of a revision, which they already are
// unless they were changed while the snapshot was taken.
func (s *Service) putFiles(ctx context.Context, u *use, number int64) (changed []string, err error) {
	have, _, err := u.app.copy.read(ctx, u.g, u.dir)
	if err != nil {
		return nil, err
	}
	want, err := s.opt.Store.Files(ctx, u.rec.ID, number)
	if err != nil {
		return nil, err
	}
	for _, c := range have.changes(treeOf(want)) {
		changed = append(changed, c.Path)
	}
	return changed, s.makeSo(ctx, u, have, treeOf(want))
}

// dropSnapshots deletes the snapshots of an app.
func (s *Service) dropSnapshots(ctx context.Context, id engi.AppID) error {
	if _, err := s.opt.Store.Change(ctx, id, func(r *Record, _ Tx) error {
		r.discard(func(int, Snapshot) bool { return true })
		return nil
	}); err != nil {
		return err
	}
	return s.tidy(ctx, id)
}

// tidy deletes the strays of an app, as its record lists them now: the caller of a
// transaction may not know whether it was committed. The caller holds the app's lock.
func (s *Service) tidy(ctx context.Context, id engi.AppID) error {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil || !r.Stray.any() {
		return err
	}
	var left Stray // strays that could not be deleted
	var wrong []error
	for _, id := range r.Stray.Sandboxes {
		if err := s.sandboxes.Destroy(ctx, id); err != nil {
			left.Sandboxes, wrong = append(left.Sandboxes, id), append(wrong, err)
		}
	}
	for _, id := range r.Stray.Snapshots {
		if err := engi.Ignore(s.opt.Snapshots.Remove(ctx, engi.Everyone, string(id)), engi.NotFound); err != nil {
			left.Snapshots, wrong = append(left.Snapshots, id), append(wrong, err)
		}
	}
	_, err = s.opt.Store.Change(ctx, id, func(r *Record, _ Tx) error {
		r.Stray = left
		return nil
	})
	return cmp.Or(err, errors.Join(wrong...))
}

// tidyLater deletes the strays of an app in the background.
func (s *Service) tidyLater(ctx context.Context, id engi.AppID) {
	s.begin(ctx, func(ctx context.Context) {
		err := retry(ctx, tidyTries, func() error {
			unlock, err := s.live(id).locked.Acquire(ctx, "app")
			if err != nil {
				return err
			}
			defer unlock()
			return s.tidy(ctx, id)
		})
		if err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "remove what is of no use to an app; the next node tries again", "app", id, "error", err)
		}
	})
}
