package session

import (
	"cmp"
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session/backup"
)

const (
	saveTimeout = 30 * time.Minute // maximum time of one copy
	firstRetry  = time.Minute      // pause after a copy that failed; doubled each time
	lastRetry   = time.Hour
)

// copyKey returns the key of the copy of a session's workspace. It has the name of the session, so that
// another session with the name finds the copy, even in a new database.
func copyKey(r Record) backup.Key {
	return backup.Key{Owner: r.Owner, Name: cmp.Or(r.Name, string(r.ID))}
}

// fillVolume restores the files of a session with persistence workspace to its new
// volume. Until that is recorded, the next boot repeats it.
func (m *Manager) fillVolume(ctx context.Context, live *liveSession) error {
	r := live.record()
	if r.Persistence != engi.PersistWorkspace || r.Filled {
		return nil
	}
	files, err := m.opt.Volumes.Files(ctx, engi.Everyone, string(r.Volume))
	if err != nil {
		return err
	}
	defer files.Close()
	done, err := m.opt.Workspaces.Restore(ctx, copyKey(r), files)
	found := err == nil
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	return m.update(ctx, live, func(r *Record) {
		if r.Filled = true; found {
			r.Note = &Note{Type: engi.EventSessionRestored, Data: map[string]any{"files": done.Files, "bytes": done.Bytes}}
		}
	})
}

// SaveWorkspace implements [engi.SessionFiles].
func (m *Manager) SaveWorkspace(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.WorkspaceCopy, err error) {
	defer engi.Annotate(&err, "save session %.140s", idOrName)
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.WorkspaceCopy{}, err
	}
	switch r := live.record(); r.Persistence {
	case engi.PersistWorkspace:
		return m.saveWorkspace(ctx, live)
	case engi.PersistOverlay:
		unlock, err := live.sandboxLock.Acquire(ctx, "session")
		if err != nil {
			return engi.WorkspaceCopy{}, err
		}
		defer unlock()
		return m.saveOverlay(ctx, live)
	default:
		return engi.WorkspaceCopy{}, engi.Errorf(engi.Conflict, "a session of persistence %s has no copy", r.Persistence).WithRemedy("create a session with persistence workspace or overlay")
	}
}

// saveWorkspace copies a session's files on the host, so that it works after the sandbox
// has died, and a running sandbox cannot interfere.
func (m *Manager) saveWorkspace(ctx context.Context, live *liveSession) (done engi.WorkspaceCopy, err error) {
	unlock, err := live.saveLock.Acquire(ctx, "session")
	if err != nil {
		return done, err
	}
	defer unlock()
	if err := live.checkAlive(); err != nil {
		return done, err
	}
	r := live.record()
	if r.Volume == "" || !r.Filled {
		return done, nil // the last copy is complete
	}
	work, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	files, err := m.opt.Volumes.Files(work, engi.Everyone, string(r.Volume))
	if err == nil {
		defer files.Close()
		done, err = m.opt.Workspaces.Save(work, copyKey(r), files, r.Capacity)
	}
	live.saved(err)
	if files == nil && engi.Is(err, engi.NotFound) {
		m.opt.Log.WarnContext(ctx, "a session's volume is gone, and with it what was not saved", "session", live.id, "volume", r.Volume)
		return done, m.update(ctx, live, func(r *Record) { r.Changed = false })
	}
	if err == nil {
		boots := r.Boots
		return done, m.update(ctx, live, func(r *Record) {
			// Later changes of the volume by a sandbox are for the next copy.
			r.Changed, r.Saved = r.Sandbox != "" || r.Boots != boots, timestamp()
			r.Note = &Note{Type: engi.EventSessionSaved, Data: map[string]any{"files": done.Files, "bytes": done.Bytes, "uploaded": done.Uploaded, "skipped": done.Skipped}}
		})
	}
	m.noteUnsaved(ctx, live, err)
	return done, err
}

// saved counts failed copies, and delays the next one.
func (live *liveSession) saved(err error) {
	live.mu.Lock()
	defer live.mu.Unlock()
	if err == nil {
		live.unsaved = 0
		return
	}
	live.unsaved++
	live.retry = time.Now().Add(min(firstRetry<<min(live.unsaved-1, 10), lastRetry))
}

// tooEarly reports whether the last copy failed only recently.
func (live *liveSession) tooEarly() bool {
	live.mu.Lock()
	defer live.mu.Unlock()
	return live.unsaved > 0 && time.Now().Before(live.retry)
}

func (m *Manager) noteUnsaved(ctx context.Context, live *liveSession, err error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if e := m.note(late, live, engi.EventSessionSaveFailed, map[string]any{"error": err.Error(), "remedy": engi.RemedyOf(err)}); e != nil {
		m.opt.Log.WarnContext(ctx, "record that a session was not saved", "session", live.id, "error", e)
	}
}

// saveLater saves a session's files in the background, unless the last save failed only
// recently.
func (m *Manager) saveLater(live *liveSession) {
	if live.tooEarly() {
		return
	}
	m.later(live, func(ctx context.Context) {
		if _, err := m.saveWorkspace(ctx, live); err != nil && ctx.Err() == nil {
			m.opt.Log.WarnContext(ctx, "save a session's workspace; it is tried again", "session", live.id, "error", err)
		}
	})
}

// removeCopy deletes the copy of a session that was terminated or has no name. It keeps the copy
// if another session has taken the name, and with it the copy.
func (m *Manager) removeCopy(ctx context.Context, r Record) error {
	if r.Persistence != engi.PersistWorkspace || !r.GivenUp && r.Name != "" || m.opt.Workspaces == nil {
		return nil
	}
	for _, live := range m.all(r.Owner.Viewer()) {
		if o := live.record(); o.ID != r.ID && o.Ended.IsZero() && o.Persistence == engi.PersistWorkspace && copyKey(o) == copyKey(r) {
			return nil
		}
	}
	return m.opt.Workspaces.Remove(ctx, copyKey(r))
}
