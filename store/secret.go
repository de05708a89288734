package store

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/secret"
)

// secretShelf is the secret room's shelf in the database.
type secretStore struct{ db *DB }

var _ secret.Store = secretStore{}

// Secrets returns the secret room's shelf.
func Secrets(db *DB) secret.Store { return secretStore{db} }

const secretColumns = `id, owner, name, version, metadata, created, updated`

func (s secretStore) Put(ctx context.Context, sec engi.Secret, v secret.Sealed) (err error) {
	defer engi.Annotate(&err, "put secret %s", sec.ID)
	metadata, err := json.Marshal(sec.Metadata)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	_, err = s.db.write.ExecContext(ctx,
		`INSERT INTO secrets (`+secretColumns+`, key, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(sec.ID), string(sec.Owner), sec.Name, sec.Version, string(metadata), nanos(sec.Created), nanos(sec.Updated), v.Key, v.Data)
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "constraint") {
		return engi.Errorf(engi.Conflict, "there is one of that name already").WithRemedy("update it, or choose another name")
	}
	return fault(ctx, err)
}

func (s secretStore) Find(ctx context.Context, owner engi.Owner, idOrName string) (found engi.Secret, v secret.Sealed, err error) {
	rows, err := s.db.read.QueryContext(ctx,
		`SELECT `+secretColumns+`, key, value FROM secrets WHERE (id = ? OR name = ?) AND (? = '' OR owner = ?) LIMIT 2`,
		idOrName, idOrName, string(owner), string(owner))
	if err != nil {
		return engi.Secret{}, secret.Sealed{}, fault(ctx, err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		if found, err = scanSecret(rows, &v.Key, &v.Data); err != nil {
			return engi.Secret{}, secret.Sealed{}, fault(ctx, err)
		}
	}
	if err := rows.Err(); err != nil {
		return engi.Secret{}, secret.Sealed{}, fault(ctx, err)
	}
	switch n {
	case 0:
		return engi.Secret{}, secret.Sealed{}, errNoSecret
	case 1:
		return found, v, nil
	}
	return engi.Secret{}, secret.Sealed{}, engi.Errorf(engi.Conflict, "several owners have one of that name").WithRemedy("use its ID")
}

var errNoSecret = engi.Errorf(engi.NotFound, "no such secret")

func (s secretStore) List(ctx context.Context, owner engi.Owner) ([]engi.Secret, error) {
	rows, err := s.db.read.QueryContext(ctx,
		`SELECT `+secretColumns+` FROM secrets WHERE ? = '' OR owner = ? ORDER BY name, owner`, string(owner), string(owner))
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []engi.Secret
	for rows.Next() {
		sec, err := scanSecret(rows)
		if err != nil {
			return nil, fault(ctx, err)
		}
		list = append(list, sec)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

func (s secretStore) Replace(ctx context.Context, sec engi.Secret, v secret.Sealed, was int) (err error) {
	defer engi.Annotate(&err, "replace secret %s", sec.ID)
	metadata, err := json.Marshal(sec.Metadata)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	res, err := s.db.write.ExecContext(ctx,
		`UPDATE secrets SET version = ?, metadata = ?, updated = ?, key = ?, value = ? WHERE id = ? AND version = ?`,
		sec.Version, string(metadata), nanos(sec.Updated), v.Key, v.Data, string(sec.ID), was)
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return faultOrNil(ctx, err)
	}
	var there int
	if err := s.db.read.QueryRowContext(ctx, `SELECT count(*) FROM secrets WHERE id = ?`, string(sec.ID)).Scan(&there); err != nil {
		return fault(ctx, err)
	}
	if there == 0 {
		return errNoSecret
	}
	return engi.Errorf(engi.Conflict, "it has changed meanwhile")
}

func (s secretStore) Remove(ctx context.Context, id engi.SecretID) error {
	res, err := s.db.write.ExecContext(ctx, `DELETE FROM secrets WHERE id = ?`, string(id))
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return faultOrNil(ctx, err)
	}
	return errNoSecret
}

func (s secretStore) Keys(ctx context.Context) ([]string, error) {
	rows, err := s.db.read.QueryContext(ctx, `SELECT DISTINCT key FROM secrets`)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var keys []string
	for rows.Next() {
		var k string
		if err := rows.Scan(&k); err != nil {
			return nil, fault(ctx, err)
		}
		keys = append(keys, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return keys, nil
}

func faultOrNil(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return fault(ctx, err)
}

func scanSecret(row interface{ Scan(...any) error }, more ...any) (engi.Secret, error) {
	var s engi.Secret
	var created, updated int64
	var metadata string
	err := row.Scan(append([]any{&s.ID, &s.Owner, &s.Name, &s.Version, &metadata, &created, &updated}, more...)...)
	if err == nil {
		err = json.Unmarshal([]byte(metadata), &s.Metadata)
	}
	s.Created, s.Updated = moment(created), moment(updated)
	return s, err
}
