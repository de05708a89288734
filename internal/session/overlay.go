package session

import (
	"context"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
)

// saveOverlay saves the changes of the disk of a session's sandbox as a snapshot,
// which replaces the one before it. The host does not read the content. The caller holds
// sandboxLock.
//
// The ID of a new snapshot is first recorded among those to be
// removed. So after a kill at any moment, either the old or the new snapshot is in use,
// and the other one can be found and removed.
func (m *Manager) saveOverlay(ctx context.Context, live *liveSession) (done engi.WorkspaceCopy, err error) {
	if err := live.checkAlive(); err != nil {
		return done, err
	}
	r := live.record()
	if r.Sandbox == "" {
		return done, nil // the last copy is complete
	}
	// A snapshot that was begun is always completed, so that its result is known.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	s, err := m.snapshotDisk(work, live, r)
	live.saved(err)
	if err != nil {
		m.noteUnsaved(ctx, live, err)
		return done, err
	}
	done.Bytes = s.Bytes
	if err := m.update(ctx, live, func(r *Record) {
		old := r.Overlay
		r.Overlay, r.Stale, r.Saved = s.ID, nil, timestamp()
		if old != "" {
			r.Stale = []engi.SnapshotID{old}
		}
		r.Note = &Note{Type: engi.EventSessionSaved, Data: map[string]any{"bytes": s.Bytes, "snapshot_id": s.ID}}
	}); err != nil {
		return done, err
	}
	if err := m.removeStale(ctx, live); err != nil {
		m.opt.Log.WarnContext(ctx, "remove what a session's disk was before; it is tried again", "session", live.id, "error", err)
	}
	return done, nil
}

func (m *Manager) snapshotDisk(ctx context.Context, live *liveSession, r Record) (s engi.Snapshot, err error) {
	defer engi.Annotate(&err, "save the disk")
	sandbox, err := m.opt.Sandboxes.Get(ctx, engi.Everyone, r.Sandbox)
	if err != nil {
		return s, err
	}
	if sandbox.State == engi.Hibernated && !sandbox.Disk { // only a running sandbox can separate its disk from its memory
		if _, err := m.opt.Lifecycle.Resume(ctx, engi.Everyone, r.Sandbox, 0, false); err != nil {
			return s, err
		}
	}
	if err := m.removeStale(ctx, live); err != nil {
		return s, err
	}
	id := engi.NewSnapshotID()
	if err := m.update(ctx, live, func(r *Record) { r.Stale = []engi.SnapshotID{id} }); err != nil {
		return s, err
	}
	return m.opt.Lifecycle.Snapshot(ctx, engi.Everyone, r.Sandbox, engi.SnapshotSpec{ID: id, Name: volumeName(live.id), DiskOnly: true})
}

// removeStale removes the snapshots that the session no longer needs.
func (m *Manager) removeStale(ctx context.Context, live *liveSession) error {
	stale := live.record().Stale
	if len(stale) == 0 {
		return nil
	}
	for _, id := range stale {
		if err := m.opt.Snapshots.Remove(ctx, engi.Everyone, string(id)); ignoreNotFound(err) != nil {
			return err
		}
	}
	return m.update(ctx, live, func(r *Record) { r.Stale = nil })
}

// findOverlay makes a sandbox begin with the saved changes of the last sandbox's disk,
// on the template in spec, and without the changes if the snapshot was removed.
func (m *Manager) findOverlay(ctx context.Context, live *liveSession, spec *engi.SandboxSpec) error {
	r := live.record()
	if r.Overlay == "" {
		return nil
	}
	_, err := m.opt.Snapshots.Get(ctx, engi.Everyone, string(r.Overlay))
	if engi.Is(err, engi.NotFound) {
		m.noteUnsaved(ctx, live, engi.Errorf(engi.NotFound, "the snapshot %s with the changes of the disk was removed", r.Overlay).WithRemedy("the disk starts empty"))
		return m.update(ctx, live, func(r *Record) { r.Overlay = "" })
	}
	spec.Snapshot, spec.Onto, spec.Template = r.Overlay, spec.Template, ""
	return err
}

// removeOverlay removes the saved disk changes of a session that has ended.
func (m *Manager) removeOverlay(ctx context.Context, r Record) error {
	for _, id := range slices.Concat(r.Stale, []engi.SnapshotID{r.Overlay}) {
		if id == "" {
			continue
		}
		if err := m.opt.Snapshots.Remove(ctx, engi.Everyone, string(id)); ignoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
