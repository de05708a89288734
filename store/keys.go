package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/key"
)

// keyShelf is the key room's shelf in the database.
type keyStore struct{ db *DB }

var _ key.Store = keyStore{}

// Keys returns the key room's shelf.
func Keys(db *DB) key.Store { return keyStore{db} }

const keyColumns = `id, owner, name, admin, created, expires, revoked, scopes`

func (s keyStore) Put(ctx context.Context, k engi.Key, h key.Hash) (err error) {
	defer engi.Annotate(&err, "put key %s", k.ID)
	_, err = s.db.write.ExecContext(ctx,
		`INSERT INTO keys (`+keyColumns+`, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		k.ID, string(k.Owner), k.Name, k.Admin, nanos(k.Created), nanos(k.Expires), nanos(k.Revoked), joinScopes(k.Scopes), h[:])
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "UNIQUE constraint") {
		return engi.Errorf(engi.Conflict, "it is there already")
	}
	return fault(ctx, err)
}

func (s keyStore) Find(ctx context.Context, h key.Hash) (engi.Key, error) {
	k, err := scanKey(s.db.read.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE hash = ?`, h[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return engi.Key{}, engi.Errorf(engi.NotFound, "no such key")
	}
	if err != nil {
		return engi.Key{}, fault(ctx, err)
	}
	return k, nil
}

func (s keyStore) List(ctx context.Context, owner engi.Owner) ([]engi.Key, error) {
	rows, err := s.db.read.QueryContext(ctx,
		`SELECT `+keyColumns+` FROM keys WHERE ? = '' OR owner = ? ORDER BY seq DESC`, string(owner), string(owner))
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []engi.Key
	for rows.Next() {
		k, err := scanKey(rows)
		if err != nil {
			return nil, fault(ctx, err)
		}
		list = append(list, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

func (s keyStore) Revoke(ctx context.Context, owner engi.Owner, id string, at time.Time) error {
	res, err := s.db.write.ExecContext(ctx,
		`UPDATE keys SET revoked = CASE revoked WHEN 0 THEN ? ELSE revoked END WHERE id = ? AND (? = '' OR owner = ?)`,
		nanos(at), id, string(owner), string(owner))
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(ctx, err)
	} else if n == 0 {
		return engi.Errorf(engi.NotFound, "no such key")
	}
	return nil
}

func scanKey(row interface{ Scan(...any) error }) (engi.Key, error) {
	var k engi.Key
	var created, expires, revoked int64
	var scopes string
	err := row.Scan(&k.ID, &k.Owner, &k.Name, &k.Admin, &created, &expires, &revoked, &scopes)
	for s := range strings.FieldsSeq(scopes) {
		k.Scopes = append(k.Scopes, engi.Scope(s))
	}
	k.Created, k.Expires, k.Revoked = moment(created), moment(expires), moment(revoked)
	return k, err
}

// joinScopes writes scopes with spaces between; their names have none.
func joinScopes(scopes []engi.Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, " ")
}
