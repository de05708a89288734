package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
)

// snapshotStore implements [snapshot.Store].
type snapshotStore struct {
	table[engi.Snapshot, engi.SnapshotID]
}

var _ snapshot.Store = snapshotStore{}

// Snapshots returns the store of snapshots.
func Snapshots(db *DB) snapshot.Store {
	return snapshotStore{table[engi.Snapshot, engi.SnapshotID]{
		db: db, name: "snapshots", noun: "snapshot", columns: `id, owner, name, sandbox, template, digest, tier, size, env, disk, bytes, created, used, expires`,
		fields: func(s *engi.Snapshot) []any {
			size := derived{func() (string, error) { return encodeSize(s.Size) }, func(text string) (err error) {
				s.Size, err = decodeSize(text)
				return err
			}}
			env := derived{func() (string, error) { return db.encodeEnv(string(s.ID), s.Owner, s.Env) }, func(text string) (err error) {
				s.Env, _, err = db.decodeEnv(string(s.ID), s.Owner, text)
				return err
			}}
			return []any{&s.ID, &s.Owner, &s.Name, &s.Sandbox, &s.Template, &s.Digest, &s.Tier, size, env, &s.Disk, &s.Bytes, (*stamp)(&s.Created), (*stamp)(&s.Used), (*stamp)(&s.Expires)}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such snapshot").WithRemedy("'engi snapshot list' shows yours"),
	}}
}

// snapshotsSeen selects the snapshots that exist at a time.
func snapshotsSeen(now time.Time) (w where) {
	w.and(true, `removed = 0 AND (expires = 0 OR expires > ?)`, nanos(now))
	return w
}

func (f snapshotStore) Put(ctx context.Context, s engi.Snapshot) (err error) {
	defer engi.Annotate(&err, "record snapshot %s", s.ID)
	return f.db.tx(ctx, func(t *tx) error {
		if s.Name != "" {
			if _, err := t.exec(ctx, `UPDATE snapshots SET name = '' WHERE owner = ? AND name = ?`, s.Owner, s.Name); err != nil {
				return err
			}
		}
		if err := f.with("removed", func(*engi.Snapshot) any { return 0 }).put(ctx, t, &s); err != nil {
			return err
		}
		if err := f.record(ctx, t, &s, engi.EventSnapshotCreated, map[string]any{
			"name": s.Name, "sandbox_id": s.Sandbox, "template": s.Template, "disk_only": s.Disk, "bytes": s.Bytes,
		}); err != nil {
			return err
		}
		box, err := first(ctx, t, errNoSandbox, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, s.Sandbox)
		if engi.Is(err, engi.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		d := newSandboxEvent(&box)
		d.Snapshot = s.ID
		return t.record(ctx, box.Owner, string(box.ID), engi.EventSandboxSnapshotted, d)
	})
}

func (f snapshotStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string, now time.Time) (engi.Snapshot, error) {
	if idOrName == "" {
		return engi.Snapshot{}, f.missing
	}
	w := snapshotsSeen(now)
	w.and(true, `(id = ? OR name = ?)`, idOrName, idOrName)
	w.ownedFew(viewer)
	return f.named(ctx, w)
}

func (f snapshotStore) List(ctx context.Context, viewer engi.Viewer, q snapshot.Filter) ([]engi.Snapshot, error) {
	w := snapshotsSeen(q.Now)
	if q.Removed {
		w = where{}
		w.and(true, `removed = 1`)
	}
	if q.Sandbox != "" {
		w.and(true, `sandbox = ?`, string(q.Sandbox))
		w.ownedFew(viewer)
	} else {
		w.owned(viewer)
	}
	return f.page(ctx, q.Page, w, true, `seq`)
}

func (f snapshotStore) Touch(ctx context.Context, id engi.SnapshotID, at time.Time) error {
	_, err := f.db.exec(ctx, `UPDATE snapshots SET used = ? WHERE id = ?`, nanos(at), string(id))
	return err
}

func (f snapshotStore) Remove(ctx context.Context, id engi.SnapshotID) error {
	return f.remove(ctx, f.missing, "removed", `id = ?`, id)
}

func (f snapshotStore) Expire(ctx context.Context, now time.Time) error {
	return f.remove(ctx, nil, "expired", `expires > 0 AND expires <= ?`, nanos(now))
}

// remove deletes the snapshots that a condition selects; missing is the error
// if there are none.
func (f snapshotStore) remove(ctx context.Context, missing error, why, condition string, arg any) error {
	return f.db.tx(ctx, func(t *tx) error {
		gone, err := list(ctx, t, f.scan, `UPDATE snapshots SET removed = 1, name = '' WHERE removed = 0 AND `+condition+` RETURNING `+f.columns, arg)
		if err != nil {
			return err
		}
		for _, s := range gone {
			if err := f.record(ctx, t, &s, engi.EventSnapshotRemoved, map[string]any{"sandbox_id": s.Sandbox, "reason": why}); err != nil {
				return err
			}
		}
		if len(gone) == 0 {
			return missing
		}
		return nil
	})
}

func (f snapshotStore) Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error) {
	return f.db.total(ctx, "snapshot", owner)
}

func (f snapshotStore) Forget(ctx context.Context, id engi.SnapshotID) error {
	_, err := f.db.exec(ctx, `DELETE FROM snapshots WHERE id = ? AND removed = 1`, id)
	return err
}
