package engi

import (
	"context"
	"time"
)

// A Reservation is what is remembered of a request with an Idempotency-Key, so
// that the same request sent again makes nothing twice. It is a value.
type Reservation struct {
	Owner       Owner
	Key         string   // as the caller chose it
	Fingerprint string   // of the request
	IDs         []string // of what the request makes; empty if they are not known before
	Done        bool     // it was made
	Created     time.Time
}

// Idempotency remembers reservations for a week. It is safe for concurrent use.
type Idempotency interface {
	// Reserve records r, which survives a kill from then on. If there is a
	// reservation of its owner and key already, it returns that one, and
	// false.
	Reserve(ctx context.Context, r Reservation) (_ Reservation, fresh bool, err error)
	// Finish records that what was reserved was made, with its IDs.
	Finish(ctx context.Context, r Reservation) error
	// Release forgets a reservation that nothing was made for; none is no
	// error.
	Release(ctx context.Context, r Reservation) error
}
