package engi

import (
	"context"
	"time"
)

// A Reservation is the record of a request with an Idempotency-Key, so
// that a repeated request creates nothing twice. It is a value.
type Reservation struct {
	Owner       Owner
	Key         string   // key that the caller chose
	Fingerprint string   // fingerprint of the request
	IDs         []string // IDs of the objects that the request creates; empty if they are not known in advance
	Done        bool     // the objects were created
	Created     time.Time
}

// Idempotency stores reservations for a week. It is safe for concurrent use.
type Idempotency interface {
	// Reserve records r, which then survives a crash. If there is a
	// reservation of the same owner and key, it returns that one and
	// false.
	Reserve(ctx context.Context, r Reservation) (_ Reservation, fresh bool, err error)
	// Finish records that the reserved objects were created, with their IDs.
	Finish(ctx context.Context, r Reservation) error
	// Release deletes a reservation for which nothing was created; a missing one is no
	// error.
	Release(ctx context.Context, r Reservation) error
}
