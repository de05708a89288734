package store

import (
	"context"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
)

// keyStore implements [key.Store].
type keyStore struct{ db *DB }

var _ key.Store = keyStore{}

// Keys returns the store of API keys.
func Keys(db *DB) key.Store { return keyStore{db} }

const keyColumns = `id, owner, name, admin, created, expires, revoked, scopes`

func (s keyStore) Put(ctx context.Context, k engi.Key, h key.Hash) (err error) {
	defer engi.Annotate(&err, "put key %s", k.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO keys (`+keyColumns+`, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			k.ID, k.Owner, k.Name, k.Admin, nanos(k.Created), nanos(k.Expires), nanos(k.Revoked), joinScopes(k.Scopes), h[:]); err != nil {
			return err
		}
		return t.record(ctx, k.Owner, k.ID, engi.EventKeyCreated, map[string]any{"name": k.Name, "admin": k.Admin, "scopes": k.Scopes})
	})
}

var errNoKey = engi.Errorf(engi.NotFound, "no such key")

func (s keyStore) Find(ctx context.Context, h key.Hash) (engi.Key, error) {
	return first(ctx, s.db.read, errNoKey, scanKey, `SELECT `+keyColumns+` FROM keys WHERE hash = ?`, h[:])
}

func (s keyStore) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Key, error) {
	var w where
	w.owned(viewer)
	return listPage(ctx, s.db, p, scanKey, keyColumns, `keys`, w, true, `seq`)
}

func (s keyStore) Live(ctx context.Context, owner engi.Owner, at time.Time) ([]engi.Key, error) {
	const from = `SELECT ` + keyColumns + ` FROM keys WHERE revoked = 0 AND (expires = 0 OR expires > ?2) AND `
	return list(ctx, s.db.read, scanKey, from+`owner = ?1 UNION `+from+`admin = 1`, owner, nanos(at))
}

func (s keyStore) Revoke(ctx context.Context, viewer engi.Viewer, id string, at time.Time) error {
	return s.db.tx(ctx, func(t *tx) error {
		k, err := first(ctx, t, errNoKey, scanKey, `SELECT `+keyColumns+` FROM keys WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
		if err != nil || !k.Revoked.IsZero() {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE keys SET revoked = ? WHERE id = ?`, nanos(at), id); err != nil {
			return err
		}
		for _, table := range []string{"tool_clients", "sign_ins"} {
			if _, err := t.exec(ctx, `DELETE FROM `+table+` WHERE key = ?`, id); err != nil {
				return err
			}
		}
		return t.record(ctx, k.Owner, k.ID, engi.EventKeyRevoked, map[string]any{"name": k.Name})
	})
}

func scanKey(row scanner) (engi.Key, error) {
	var k engi.Key
	var scopes string
	err := row.Scan(&k.ID, &k.Owner, &k.Name, &k.Admin, (*stamp)(&k.Created), (*stamp)(&k.Expires), (*stamp)(&k.Revoked), &scopes)
	for s := range strings.FieldsSeq(scopes) {
		k.Scopes = append(k.Scopes, engi.Scope(s))
	}
	return k, err
}

// joinScopes joins scopes with spaces, which their names do not contain.
func joinScopes(scopes []engi.Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, " ")
}
