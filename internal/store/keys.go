package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
)

// keyStore implements [key.Store].
type keyStore struct{ table[engi.Key, string] }

var _ key.Store = keyStore{}

// Keys returns the store of API keys.
func Keys(db *DB) key.Store {
	return keyStore{table[engi.Key, string]{
		db: db, name: "keys", noun: "key", columns: `id, owner, name, admin, created, expires, revoked, scopes`, newest: true,
		fields: func(k *engi.Key) []any {
			return []any{&k.ID, &k.Owner, &k.Name, &k.Admin, (*stamp)(&k.Created), (*stamp)(&k.Expires), (*stamp)(&k.Revoked), (*wordList[engi.Scope])(&k.Scopes)}
		},
		missing: engi.Errorf(engi.NotFound, "no such key"),
	}}
}

func (s keyStore) Put(ctx context.Context, k engi.Key, h key.Hash) (err error) {
	defer engi.Annotate(&err, "put key %s", k.ID)
	return s.with("hash", func(*engi.Key) any { return h[:] }).
		add(ctx, &k, engi.EventKeyCreated, map[string]any{"name": k.Name, "admin": k.Admin, "scopes": k.Scopes})
}

func (s keyStore) Find(ctx context.Context, h key.Hash) (engi.Key, error) {
	return s.one(ctx, s.db.read, when(`hash = ?`, h[:]))
}

func (s keyStore) Live(ctx context.Context, owner engi.Owner, at time.Time) ([]engi.Key, error) {
	from := s.query(when(`revoked = 0 AND (expires = 0 OR expires > ?2) AND `))
	return list(ctx, s.db.read, s.scan, from+`owner = ?1 UNION `+from+`admin = 1`, owner, nanos(at))
}

func (s keyStore) Revoke(ctx context.Context, viewer engi.Viewer, id string, at time.Time) error {
	_, err := s.change(ctx, seen(viewer, `id = ?`, id), func(t *tx, k *engi.Key) error {
		if !k.Revoked.IsZero() {
			return nil
		}
		k.Revoked = at
		for _, table := range []string{"tool_clients", "sign_ins"} {
			if _, err := t.exec(ctx, `DELETE FROM `+table+` WHERE key = ?`, id); err != nil {
				return err
			}
		}
		return s.record(ctx, t, k, engi.EventKeyRevoked, map[string]any{"name": k.Name})
	})
	return err
}
