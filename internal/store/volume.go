package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
)

// volumeStore implements [volume.Store].
type volumeStore struct {
	table[volume.Record, engi.VolumeID]
}

var _ volume.Store = volumeStore{}

// Volumes returns the store of volumes.
func Volumes(db *DB) volume.Store {
	return volumeStore{table[volume.Record, engi.VolumeID]{
		db: db, name: "volumes", noun: "volume", columns: `id, owner, name, capacity, used, holder, image, created, accessed, ttl`,
		fields: func(r *volume.Record) []any {
			return []any{&r.ID, &r.Owner, &r.Name, &r.Capacity, &r.Used, &r.Holder, &r.Image, (*stamp)(&r.Created), (*stamp)(&r.Accessed), &r.TTL}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such volume").WithRemedy("'engi volume list' shows yours"),
		exists:  engi.Errorf(engi.Conflict, "a volume with that name exists").WithRemedy("use it, remove it, or choose another name"),
	}}
}

func (f volumeStore) Put(ctx context.Context, r volume.Record) (err error) {
	defer engi.Annotate(&err, "record volume %s", r.ID)
	return f.with("removed", func(*volume.Record) any { return 0 }).
		add(ctx, &r, engi.EventVolumeCreated, map[string]any{"name": r.Name, "capacity": r.Capacity})
}

func (f volumeStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (volume.Record, error) {
	return f.named(ctx, seen(viewer, `removed = 0 AND (id = ? OR name = ?)`, idOrName, idOrName))
}

func (f volumeStore) List(ctx context.Context, viewer engi.Viewer, q volume.Filter) ([]volume.Record, error) {
	var w where
	w.and(!q.Removed, `removed = 0`)
	w.and(q.Removed, `removed = 1`)
	w.owned(viewer)
	w.and(q.Held || q.Holder != "", `holder <> ''`)
	w.and(q.Holder != "", `holder = ?`, q.Holder)
	w.and(!q.Expired.IsZero(), `ttl > 0 AND accessed + ttl < ? AND holder = ''`, nanos(q.Expired))
	return f.page(ctx, q.Page, w, false, byName(viewer)...)
}

func (f volumeStore) Pass(ctx context.Context, id engi.VolumeID, from, to engi.SandboxID, at time.Time) error {
	kind, sandbox := engi.EventVolumeAttached, to
	if to == "" {
		kind, sandbox = engi.EventVolumeDetached, from
	}
	if from == to {
		kind = ""
	}
	return f.change(ctx, id, kind, map[string]any{"sandbox_id": sandbox},
		`UPDATE volumes SET holder = ?, accessed = ? WHERE id = ? AND removed = 0 AND holder IN (?, ?)`, to, nanos(at), id, from, to)
}

func (f volumeStore) Touch(ctx context.Context, id engi.VolumeID, used int64, at time.Time) error {
	_, err := f.db.exec(ctx, `UPDATE volumes SET used = ?, accessed = ? WHERE id = ?`, used, nanos(at), id)
	return err
}

func (f volumeStore) Remove(ctx context.Context, id engi.VolumeID, before time.Time) error {
	reason := "removed"
	if !before.IsZero() {
		reason = "expired"
	}
	return f.change(ctx, id, engi.EventVolumeRemoved, map[string]any{"reason": reason},
		`UPDATE volumes SET removed = 1 WHERE id = ? AND removed = 0 AND holder = '' AND (? = 0 OR accessed < ?)`, id, nanos(before), nanos(before))
}

// change runs an update of one volume and appends its event, unless kind is empty.
// If no row changed, it reports the reason.
func (f volumeStore) change(ctx context.Context, id engi.VolumeID, kind string, data any, update string, args ...any) error {
	return f.db.tx(ctx, func(t *tx) error {
		before, err := f.one(ctx, t, when(`id = ? AND removed = 0`, id))
		if err != nil {
			return err
		}
		n, err := t.exec(ctx, update, args...)
		switch {
		case err != nil:
			return err
		case n > 0 && (kind == "" || kind == engi.EventVolumeAttached && before.Holder == args[0] || kind == engi.EventVolumeDetached && before.Holder == ""):
			return nil // the volume did not change
		case n > 0:
			return t.record(ctx, before.Owner, string(id), kind, data)
		case before.Holder == "":
			return engi.Errorf(engi.Conflict, "it has been used since")
		}
		return engi.Errorf(engi.Conflict, "sandbox %s has it", before.Holder).WithRemedy("stop the sandbox first: only one at a time can have a volume")
	})
}

func (f volumeStore) Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error) {
	return f.db.total(ctx, "volume", owner)
}

func (f volumeStore) Forget(ctx context.Context, id engi.VolumeID) error {
	_, err := f.db.exec(ctx, `DELETE FROM volumes WHERE id = ? AND removed = 1`, id)
	return err
}
