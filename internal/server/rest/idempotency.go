package rest

import (
	"strings"

	"github.com/engi-dev/engi/internal/idempotency"
)

// readKey reads the Idempotency-Key of a route that takes one. Services that store keys
// with their objects get it as the key of the spec; all others are called by [once].
func (c *call) readKey() (err error) {
	if c.route.Creates != "" {
		c.key, err = idempotency.Read(c.r.Header)
	}
	return err
}

// once calls the work of a request: only once for each Idempotency-Key, if there is one. q is
// the request's body.
func once[T any](c *call, q any, n idempotency.Creation[T]) (T, error) {
	n.Left = c.logInternal
	return idempotency.Reserved(c, c.s.reservations, idempotency.Request{Owner: c.auth.Owner, Key: c.key, Fingerprint: c.fingerprint(q)}, n)
}

// fingerprint returns a value that differs for different requests; empty for a request
// without a key.
func (c *call) fingerprint(q any) string {
	if c.key == "" {
		return ""
	}
	return idempotency.FingerprintOf(c.r, q, c.s.secret)
}

// prefer is the parameter of routes that can answer before the work is done.
type prefer struct {
	Prefer string `header:"Prefer" doc:"respond-async requests the answer 202 at once"`
}

// async reports whether the caller does not want to wait.
func (p prefer) async() bool {
	for part := range strings.SplitSeq(p.Prefer, ",") {
		if strings.EqualFold(strings.TrimSpace(part), "respond-async") {
			return true
		}
	}
	return false
}
