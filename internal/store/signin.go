package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/engi"
)

// signInStore implements [signin.Store].
type signInStore struct{ db *DB }

var _ signin.Store = signInStore{}

// SignIns returns the store of signed-in browsers.
func SignIns(db *DB) signin.Store { return signInStore{db} }

var errNoSignIn = engi.Errorf(engi.NotFound, "no such browser")

func (s signInStore) Put(ctx context.Context, r signin.Record, keep int) (err error) {
	defer engi.Annotate(&err, "sign in")
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO sign_ins (hash, key, sealed, expires) VALUES (?, ?, ?, ?)`, r.Hash[:], r.Key, r.Sealed, nanos(r.Expires)); err != nil {
			return err
		}
		_, err := t.exec(ctx, `DELETE FROM sign_ins WHERE expires <= ?1 OR key = ?2 AND rowid NOT IN
			(SELECT rowid FROM sign_ins WHERE key = ?2 ORDER BY expires DESC, rowid DESC LIMIT ?3)`, nanos(time.Now()), r.Key, keep)
		return err
	})
}

func (s signInStore) Find(ctx context.Context, h signin.Hash) (signin.Record, error) {
	return first(ctx, s.db.read, errNoSignIn, func(row scanner) (signin.Record, error) {
		r := signin.Record{Hash: h}
		err := row.Scan(&r.Key, &r.Sealed, (*stamp)(&r.Expires))
		return r, err
	}, `SELECT key, sealed, expires FROM sign_ins WHERE hash = ?`, h[:])
}

func (s signInStore) Remove(ctx context.Context, h signin.Hash) error {
	_, err := s.db.exec(ctx, `DELETE FROM sign_ins WHERE hash = ?`, h[:])
	return err
}
