package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/volume"
)

// volumeShelf is the volume room's shelf in the database.
type volumeStore struct{ db *DB }

var _ volume.Store = volumeStore{}

// Volumes returns the volume room's shelf.
func Volumes(db *DB) volume.Store { return volumeStore{db} }

const volumeColumns = `id, owner, name, capacity, used, holder, image, created, accessed, ttl`

func (f volumeStore) Put(ctx context.Context, r volume.Record) (err error) {
	defer engi.Annotate(&err, "record volume %s", r.ID)
	_, err = f.db.write.ExecContext(ctx, `INSERT INTO volumes (`+volumeColumns+`, removed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)`,
		string(r.ID), string(r.Owner), r.Name, r.Capacity, r.Used, string(r.Holder), r.Image, nanos(r.Created), nanos(r.Accessed), int64(r.TTL))
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "UNIQUE constraint") {
		return engi.Errorf(engi.Conflict, "there is one of that name").WithRemedy("use it, remove it, or choose another name")
	}
	return fault(ctx, err)
}

func (f volumeStore) Find(ctx context.Context, owner engi.Owner, idOrName string) (volume.Record, error) {
	// A name of the empty owner's own comes first.
	rows, err := f.db.read.QueryContext(ctx,
		`SELECT `+volumeColumns+` FROM volumes WHERE removed = 0 AND (id = ? OR name = ?) AND (? = '' OR owner = ?) ORDER BY owner = '' DESC LIMIT 2`,
		idOrName, idOrName, string(owner), string(owner))
	if err != nil {
		return volume.Record{}, fault(ctx, err)
	}
	found, err := scanVolumes(ctx, rows)
	switch {
	case err != nil:
		return volume.Record{}, err
	case len(found) == 0:
		return volume.Record{}, noVolume()
	case len(found) > 1 && found[0].Owner != "":
		return volume.Record{}, engi.Errorf(engi.Conflict, "several owners have a volume of that name").WithRemedy("use its ID")
	}
	return found[0], nil
}

func noVolume() error {
	return engi.Errorf(engi.NotFound, "there is no such volume").WithRemedy("'engi volume list' shows yours")
}

func (f volumeStore) List(ctx context.Context, owner engi.Owner) ([]volume.Record, error) {
	rows, err := f.db.read.QueryContext(ctx,
		`SELECT `+volumeColumns+` FROM volumes WHERE removed = 0 AND (? = '' OR owner = ?) ORDER BY name, owner`, string(owner), string(owner))
	if err != nil {
		return nil, fault(ctx, err)
	}
	return scanVolumes(ctx, rows)
}

func (f volumeStore) Pass(ctx context.Context, id engi.VolumeID, from, to engi.SandboxID, at time.Time) error {
	return f.change(ctx, id, `UPDATE volumes SET holder = ?, accessed = ? WHERE id = ? AND removed = 0 AND holder IN (?, ?)`,
		string(to), nanos(at), string(id), string(from), string(to))
}

func (f volumeStore) Touch(ctx context.Context, id engi.VolumeID, used int64, at time.Time) error {
	_, err := f.db.write.ExecContext(ctx, `UPDATE volumes SET used = ?, accessed = ? WHERE id = ?`, used, nanos(at), string(id))
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (f volumeStore) Remove(ctx context.Context, id engi.VolumeID, before time.Time) error {
	return f.change(ctx, id, `UPDATE volumes SET removed = 1 WHERE id = ? AND removed = 0 AND holder = '' AND (? = 0 OR accessed < ?)`,
		string(id), nanos(before), nanos(before))
}

// change runs an update of one volume, and says why if that changed nothing.
func (f volumeStore) change(ctx context.Context, id engi.VolumeID, update string, args ...any) error {
	return f.db.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, update, args...)
		if err != nil {
			return fault(ctx, err)
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			if err != nil {
				return fault(ctx, err)
			}
			return nil
		}
		var holder string
		err = tx.QueryRowContext(ctx, `SELECT holder FROM volumes WHERE id = ? AND removed = 0`, string(id)).Scan(&holder)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return noVolume()
		case err != nil:
			return fault(ctx, err)
		case holder == "":
			return engi.Errorf(engi.Conflict, "it was used meanwhile")
		}
		return engi.Errorf(engi.Conflict, "sandbox %s has it", holder).WithRemedy("stop the sandbox first: one at a time may have a volume")
	})
}

func (f volumeStore) Removed(ctx context.Context) ([]engi.VolumeID, error) {
	rows, err := f.db.read.QueryContext(ctx, `SELECT id FROM volumes WHERE removed = 1 ORDER BY seq`)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []engi.VolumeID
	for rows.Next() {
		var id engi.VolumeID
		if err := rows.Scan(&id); err != nil {
			return nil, fault(ctx, err)
		}
		list = append(list, id)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

func (f volumeStore) Forget(ctx context.Context, id engi.VolumeID) error {
	_, err := f.db.write.ExecContext(ctx, `DELETE FROM volumes WHERE id = ? AND removed = 1`, string(id))
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func scanVolumes(ctx context.Context, rows *sql.Rows) ([]volume.Record, error) {
	defer rows.Close()
	var list []volume.Record
	for rows.Next() {
		var r volume.Record
		var created, accessed, ttl int64
		err := rows.Scan(&r.ID, &r.Owner, &r.Name, &r.Capacity, &r.Used, &r.Holder, &r.Image, &created, &accessed, &ttl)
		if err != nil {
			return nil, fault(ctx, err)
		}
		r.Created, r.Accessed, r.TTL = moment(created), moment(accessed), time.Duration(ttl)
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}
