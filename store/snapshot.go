package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/snapshot"
)

// snapshotShelf is the snapshot room's shelf in the database.
type snapshotStore struct{ db *DB }

var _ snapshot.Store = snapshotStore{}

// Snapshots returns the snapshot room's shelf.
func Snapshots(db *DB) snapshot.Store { return snapshotStore{db} }

const snapshotColumns = `id, owner, name, sandbox, template, digest, tier, size, env, disk, bytes, created, used, expires`

// snapshotSeen is what lookups of an owner at a moment see.
const snapshotSeen = `removed = 0 AND (? = '' OR owner = ?) AND (expires = 0 OR expires > ?)`

func (f snapshotStore) Put(ctx context.Context, s engi.Snapshot) (err error) {
	defer engi.Annotate(&err, "record snapshot %s", s.ID)
	size, err := encodeSize(s.Size)
	if err != nil {
		return err
	}
	env, err := encodeEnv(s.Env)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(tx *sql.Tx) error {
		if s.Name != "" {
			_, err := tx.ExecContext(ctx, `UPDATE snapshots SET name = '' WHERE owner = ? AND name = ?`, string(s.Owner), s.Name)
			if err != nil {
				return fault(ctx, err)
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO snapshots (`+snapshotColumns+`, removed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)`,
			string(s.ID), string(s.Owner), s.Name, string(s.Sandbox), s.Template, s.Digest, string(s.Tier), size, env, s.Disk, s.Bytes,
			nanos(s.Created), nanos(s.Used), nanos(s.Expires))
		if err != nil {
			return fault(ctx, err)
		}
		return nil
	})
}

func (f snapshotStore) Find(ctx context.Context, owner engi.Owner, idOrName string, now time.Time) (engi.Snapshot, error) {
	// A name of the empty owner's own comes first.
	rows, err := f.db.read.QueryContext(ctx,
		`SELECT `+snapshotColumns+` FROM snapshots WHERE (id = ? OR name = ?) AND `+snapshotSeen+` ORDER BY owner = '' DESC LIMIT 2`,
		idOrName, idOrName, string(owner), string(owner), nanos(now))
	if err != nil {
		return engi.Snapshot{}, fault(ctx, err)
	}
	found, err := scanSnapshots(ctx, rows)
	switch {
	case err != nil:
		return engi.Snapshot{}, err
	case len(found) == 0 || idOrName == "":
		return engi.Snapshot{}, engi.Errorf(engi.NotFound, "there is no such snapshot").WithRemedy("'engi snapshot list' shows yours")
	case len(found) > 1 && found[0].Owner != "":
		return engi.Snapshot{}, engi.Errorf(engi.Conflict, "several owners have a snapshot of that name").WithRemedy("use its ID")
	}
	return found[0], nil
}

func (f snapshotStore) List(ctx context.Context, owner engi.Owner, sandbox engi.SandboxID, now time.Time) ([]engi.Snapshot, error) {
	rows, err := f.db.read.QueryContext(ctx,
		`SELECT `+snapshotColumns+` FROM snapshots WHERE (? = '' OR sandbox = ?) AND `+snapshotSeen+` ORDER BY seq DESC`,
		string(sandbox), string(sandbox), string(owner), string(owner), nanos(now))
	if err != nil {
		return nil, fault(ctx, err)
	}
	return scanSnapshots(ctx, rows)
}

func (f snapshotStore) Touch(ctx context.Context, id engi.SnapshotID, at time.Time) error {
	_, err := f.db.write.ExecContext(ctx, `UPDATE snapshots SET used = ? WHERE id = ?`, nanos(at), string(id))
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (f snapshotStore) Remove(ctx context.Context, id engi.SnapshotID) error {
	res, err := f.db.write.ExecContext(ctx, `UPDATE snapshots SET removed = 1, name = '' WHERE id = ? AND removed = 0`, string(id))
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(ctx, err)
	} else if n == 0 {
		return engi.Errorf(engi.NotFound, "there is no such snapshot")
	}
	return nil
}

func (f snapshotStore) Expire(ctx context.Context, now time.Time) error {
	_, err := f.db.write.ExecContext(ctx,
		`UPDATE snapshots SET removed = 1, name = '' WHERE removed = 0 AND expires > 0 AND expires <= ?`, nanos(now))
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (f snapshotStore) Removed(ctx context.Context) ([]engi.Snapshot, error) {
	rows, err := f.db.read.QueryContext(ctx, `SELECT `+snapshotColumns+` FROM snapshots WHERE removed = 1 ORDER BY seq`)
	if err != nil {
		return nil, fault(ctx, err)
	}
	return scanSnapshots(ctx, rows)
}

func (f snapshotStore) Forget(ctx context.Context, id engi.SnapshotID) error {
	_, err := f.db.write.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ? AND removed = 1`, string(id))
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func scanSnapshots(ctx context.Context, rows *sql.Rows) ([]engi.Snapshot, error) {
	defer rows.Close()
	var list []engi.Snapshot
	for rows.Next() {
		var s engi.Snapshot
		var size, env string
		var created, used, expires int64
		err := rows.Scan(&s.ID, &s.Owner, &s.Name, &s.Sandbox, &s.Template, &s.Digest, &s.Tier, &size, &env, &s.Disk, &s.Bytes, &created, &used, &expires)
		if err != nil {
			return nil, fault(ctx, err)
		}
		if s.Size, err = decodeSize(size); err != nil {
			return nil, err
		}
		if s.Env, err = decodeEnv(env); err != nil {
			return nil, err
		}
		s.Created, s.Used, s.Expires = moment(created), moment(used), moment(expires)
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

// encodeEnv returns the JSON of an environment, "" for none.
func encodeEnv(env map[string]string) (string, error) {
	if len(env) == 0 {
		return "", nil
	}
	text, err := json.Marshal(env)
	if err != nil {
		return "", engi.Errorf(engi.Internal, "encode environment: %v", err)
	}
	return string(text), nil
}

func decodeEnv(text string) (env map[string]string, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &env); err != nil {
		return nil, engi.Errorf(engi.Internal, "decode environment: %v", err)
	}
	return env, nil
}
