package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// keepReservations is the time for which a reservation is kept.
const keepReservations = 7 * 24 * time.Hour

type idempotencyStore struct{ db *DB }

var _ idempotency.Reservations = idempotencyStore{}

// Idempotency returns the store of requests with an Idempotency-Key.
func Idempotency(db *DB) idempotency.Reservations { return idempotencyStore{db} }

func (s idempotencyStore) Reserve(ctx context.Context, r idempotency.Reservation) (_ idempotency.Reservation, fresh bool, err error) {
	defer engi.Annotate(&err, "reserve idempotency key")
	n, err := s.db.exec(ctx,
		`INSERT INTO idempotency (owner, key, fingerprint, ids, done, created) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (owner, key) DO UPDATE SET fingerprint = excluded.fingerprint, ids = excluded.ids, done = excluded.done, created = excluded.created
		WHERE idempotency.created < ?`,
		r.Owner, r.Key, r.Fingerprint, wordList[string](r.IDs), r.Done, nanos(r.Created), nanos(r.Created.Add(-keepReservations)))
	if err != nil || n == 1 {
		return r, n == 1, err
	}
	// A missing reservation was released a moment ago.
	missing := engi.Errorf(engi.Unavailable, "another request with this key has just failed").WithRetry(engi.Retry{AfterMillis: 100})
	r, err = first(ctx, s.db.read, missing, func(row scanner) (idempotency.Reservation, error) {
		err := row.Scan(&r.Fingerprint, (*wordList[string])(&r.IDs), &r.Done, (*stamp)(&r.Created))
		return r, err
	}, `SELECT fingerprint, ids, done, created FROM idempotency WHERE owner = ? AND key = ?`, r.Owner, r.Key)
	return r, false, err
}

func (s idempotencyStore) Finish(ctx context.Context, r idempotency.Reservation) (err error) {
	defer engi.Annotate(&err, "finish idempotency key")
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `UPDATE idempotency SET done = 1, ids = ? WHERE owner = ? AND key = ?`, wordList[string](r.IDs), r.Owner, r.Key); err != nil {
			return err
		}
		_, err := t.exec(ctx, `DELETE FROM idempotency WHERE created < ?`, nanos(time.Now().Add(-keepReservations)))
		return err
	})
}

func (s idempotencyStore) Release(ctx context.Context, r idempotency.Reservation) (err error) {
	defer engi.Annotate(&err, "release idempotency key")
	_, err = s.db.exec(ctx, `DELETE FROM idempotency WHERE owner = ? AND key = ? AND done = 0`, r.Owner, r.Key)
	return err
}
