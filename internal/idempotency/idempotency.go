// Package idempotency has an object created only once for each idempotency key of its owner.
//
// A key is stored before or with the object, together with a fingerprint of the request:
//
//  1. A service with records stores the key in the object's record, in the transaction that
//     creates the object. [Once] finds the record of an earlier request by its key.
//  2. For objects that have no such record, [Reserved] stores the key in a reservation, with the
//     IDs of the objects, before they are created.
//
// In both cases, a request that is repeated after a kill -9 at any moment gets the object of the
// first request, or creates it. Concurrent requests with one key wait for each other, and another request
// with the key is a Conflict. A request without a key is not remembered.
package idempotency

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Header is the header of a request that has the key.
const Header = "Idempotency-Key"

// A Request is a request to create an object.
type Request struct {
	Owner       engi.Owner
	Key         string // empty for a request that is not repeated
	Fingerprint string // differs for different requests; empty matches any
}

// Keys has concurrent requests with the same key wait for each other. It is safe for
// concurrent use.
type Keys struct {
	locks        *engi.KeyedSemaphore[[2]string] // by owner and key
	reservations Reservations                    // nil if there are none
}

// NewKeys returns Keys. Only [Reserved] needs reservations, which may be nil.
func NewKeys(reservations Reservations) *Keys {
	return &Keys{locks: engi.NewKeyedSemaphore[[2]string](1), reservations: reservations}
}

// Read returns the key of a request's header; empty if it has none.
func Read(h http.Header) (string, error) {
	key := h.Get(Header)
	var f engi.Faults
	f.Key("header."+Header, key)
	if strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		f.Addf("header."+Header, "it has characters other than visible ASCII")
	}
	return key, f.Err()
}

// Fingerprint returns the fingerprint of a request.
func Fingerprint(request any) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(request) // fails only for raw JSON that is invalid, which no service stores
	return hex.EncodeToString(h.Sum(nil))
}

// FingerprintOf returns the fingerprint of an HTTP request and its decoded body. The secret
// keeps it from telling anything about secrets in the body.
func FingerprintOf(r *http.Request, body any, secret []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(r.Method + " " + r.URL.EscapedPath() + "\n"))
	_ = json.NewEncoder(h).Encode(body) // decoded from JSON, so it can be encoded
	return hex.EncodeToString(h.Sum(nil))
}

// Part returns the key of part i of a request that creates several objects.
func Part(key string, i int) string {
	if i == 0 || key == "" {
		return key
	}
	return fmt.Sprintf("%s #%d", Fingerprint(key), i)
}

// begin checks the key and waits for other requests with it. The caller calls end once.
func (k *Keys) begin(ctx context.Context, q Request) (end func(), err error) {
	var f engi.Faults
	f.Key("header."+Header, q.Key)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if end, err = k.locks.Acquire(ctx, [2]string{string(q.Owner), q.Key}); err != nil {
		return nil, fmt.Errorf("wait for another request with the same idempotency key: %w", err)
	}
	return end, nil
}

// check reports Conflict if an earlier request, which created the object with an ID, has
// another fingerprint.
func (q Request) check(id, fingerprint string) error {
	if fingerprint == q.Fingerprint || fingerprint == "" || q.Fingerprint == "" {
		return nil
	}
	text := "this idempotency key was used for another request"
	if id != "" {
		text += ", which created " + id
	}
	return engi.Errorf(engi.Conflict, "%s", text).WithRemedy("use a new key for each request, and the same key only to repeat a request")
}

// A Record is the stored record of an object. Requested returns the ID of the object
// and the fingerprint of the request that created it.
type Record interface {
	Requested() (id, fingerprint string)
}

// An Event is the record of an object whose creation is an event.
type Event struct {
	engi.Event
	Fingerprint string // fingerprint of the request; empty if it is not known
}

// Requested implements [Record].
func (e Event) Requested() (id, fingerprint string) { return "event " + string(e.ID), e.Fingerprint }

// Once returns the record that create returns, or the record that an earlier request with
// the same key created; repeated is true then. find returns the record with an owner and a
// key, or NotFound. create stores the record with the key and the fingerprint of q, in one transaction.
func Once[R Record](ctx context.Context, k *Keys, q Request, find func(context.Context, engi.Owner, string) (R, error), create func() (R, error)) (r R, repeated bool, err error) {
	if q.Key == "" {
		r, err = create()
		return r, false, err
	}
	end, err := k.begin(ctx, q)
	if err != nil {
		return r, false, err
	}
	defer end()
	if r, err = find(ctx, q.Owner, q.Key); engi.Is(err, engi.NotFound) {
		r, err = create()
		return r, false, err
	}
	if err == nil {
		err = q.check(r.Requested())
	}
	return r, err == nil, err
}
