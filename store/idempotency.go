package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// keepReservations is how long a reservation is remembered.
const keepReservations = 7 * 24 * time.Hour

type idempotencyStore struct{ db *DB }

var _ engi.Idempotency = idempotencyStore{}

// Idempotency returns the memory of requests with an Idempotency-Key.
func Idempotency(db *DB) engi.Idempotency { return idempotencyStore{db} }

func (s idempotencyStore) Reserve(ctx context.Context, r engi.Reservation) (_ engi.Reservation, fresh bool, err error) {
	defer engi.Annotate(&err, "reserve idempotency key")
	res, err := s.db.write.ExecContext(ctx,
		`INSERT INTO idempotency (owner, key, fingerprint, ids, done, created) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (owner, key) DO UPDATE SET fingerprint = excluded.fingerprint, ids = excluded.ids, done = excluded.done, created = excluded.created
		WHERE idempotency.created < ?`,
		string(r.Owner), r.Key, r.Fingerprint, strings.Join(r.IDs, " "), r.Done, nanos(r.Created), nanos(r.Created.Add(-keepReservations)))
	if err != nil {
		return r, false, fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return r, true, faultOrNil(ctx, err)
	}
	var ids string
	var created int64
	err = s.db.read.QueryRowContext(ctx, `SELECT fingerprint, ids, done, created FROM idempotency WHERE owner = ? AND key = ?`, string(r.Owner), r.Key).
		Scan(&r.Fingerprint, &ids, &r.Done, &created)
	if errors.Is(err, sql.ErrNoRows) { // it was released a moment ago
		return r, false, engi.Errorf(engi.Unavailable, "another request with this key has just failed").WithRetry(engi.Retry{AfterMillis: 100})
	}
	r.IDs, r.Created = strings.Fields(ids), moment(created)
	return r, false, faultOrNil(ctx, err)
}

func (s idempotencyStore) Finish(ctx context.Context, r engi.Reservation) (err error) {
	defer engi.Annotate(&err, "finish idempotency key")
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE idempotency SET done = 1, ids = ? WHERE owner = ? AND key = ?`, strings.Join(r.IDs, " "), string(r.Owner), r.Key)
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM idempotency WHERE created < ?`, nanos(time.Now().Add(-keepReservations)))
		}
		return faultOrNil(ctx, err)
	})
}

func (s idempotencyStore) Release(ctx context.Context, r engi.Reservation) (err error) {
	defer engi.Annotate(&err, "release idempotency key")
	_, err = s.db.write.ExecContext(ctx, `DELETE FROM idempotency WHERE owner = ? AND key = ? AND done = 0`, string(r.Owner), r.Key)
	return faultOrNil(ctx, err)
}
