package rest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Requests that create something take an Idempotency-Key: a repetition with the
// same key is answered with the result of the first request. Services that
// store keys themselves, in the transaction that creates the object, get
// the key. For all others, a reservation is recorded before the work, with the
// IDs of the new objects, so that a repetition finds these objects, or
// creates them, even if the server was killed in between.

const (
	keyHeader = "Idempotency-Key"
	maxKey    = 255 // maximum length of a key in bytes

	// finishTime is the maximum time for recording the result, whether or not
	// the caller is still connected.
	finishTime = 10 * time.Second
)

// readKey reads the Idempotency-Key of a route that takes one.
func (c *call) readKey() error {
	if c.route.Creates == "" {
		return nil
	}
	c.key = c.r.Header.Get(keyHeader)
	switch {
	case len(c.key) > maxKey:
		return invalid("header."+keyHeader, "it is longer than %d bytes", maxKey)
	case strings.ContainsFunc(c.key, func(r rune) bool { return r < '!' || r > '~' }):
		return invalid("header."+keyHeader, "it has something other than visible ASCII characters in it")
	}
	return nil
}

// A creation is the work of a request that creates objects.
type creation[T any] struct {
	// ids are new IDs for the objects; nil if the caller of work cannot choose IDs.
	ids []string
	// work creates the objects, with the given IDs if there are any. It leaves
	// nothing behind if it fails.
	work func(ids []string) (T, error)
	// find returns the objects that work created before; NotFound if none of them exists. If
	// work is not known to have ended, find creates the missing objects.
	find func(ids []string, ended bool) (T, error)
	// made returns the IDs of the created objects; nil means the IDs that work received.
	made func(T) []string
}

// once calls the work of a request: only once for each Idempotency-Key, if there is one. q is
// the request's body.
func once[T any](c *call, q any, n creation[T]) (x T, err error) {
	if c.key == "" {
		return n.work(nil)
	}
	if c.s.idempotency == nil {
		return x, engi.Errorf(engi.Unsupported, "this server does not remember Idempotency-Keys of such requests")
	}
	over, err := c.s.keyLocks.Acquire(c, string(c.auth.Owner)+"\x00"+c.key)
	if err != nil {
		return x, fmt.Errorf("wait for another request with the same Idempotency-Key: %w", err)
	}
	defer over()
	mine := engi.Reservation{Owner: c.auth.Owner, Key: c.key, Fingerprint: c.fingerprint(q), IDs: n.ids, Created: time.Now().UTC()}
	r, fresh, err := c.s.idempotency.Reserve(c, mine)
	if err != nil {
		return x, err
	}
	if r.Fingerprint != mine.Fingerprint {
		return x, engi.Errorf(engi.Conflict, "this Idempotency-Key was used for another request").
			WithRemedy("use a new Idempotency-Key for each request, and the same key only to repeat a request")
	}
	// The record is written even if the caller leaves.
	late, cancel := context.WithTimeout(context.WithoutCancel(c), finishTime)
	defer cancel()
	if !fresh && len(r.IDs) > 0 {
		switch x, err = n.find(r.IDs, r.Done); {
		case err == nil && !r.Done:
			return x, c.s.idempotency.Finish(late, r)
		case err == nil, !engi.Is(err, engi.NotFound):
			return x, err
		case r.Done:
			return x, engi.Errorf(engi.Conflict, "what this Idempotency-Key made is gone: %s", strings.Join(r.IDs, " ")).
				WithRemedy("use a new Idempotency-Key to create another")
		}
	}
	x, err = n.work(r.IDs)
	late, cancel = context.WithTimeout(context.WithoutCancel(c), finishTime)
	defer cancel()
	switch {
	case err == nil:
		if n.made != nil {
			r.IDs = n.made(x)
		}
		err = c.s.idempotency.Finish(late, r)
	case mayHaveHappened(err):
	default:
		if e := c.s.idempotency.Release(late, r); e != nil {
			c.logInternal(e) // the key stays reserved for this request
		}
	}
	return x, err
}

// firstID returns the first of the new IDs; empty if there is none.
func firstID[ID ~string](ids []string) ID {
	if len(ids) == 0 {
		return ""
	}
	return ID(ids[0])
}

// mayHaveHappened reports whether objects may exist in spite of an
// error.
func mayHaveHappened(err error) bool {
	return engi.Is(err, engi.Internal, engi.Unavailable, engi.Expired)
}

// fingerprint returns a value that differs for different requests. It is keyed, since requests
// may have secrets.
func (c *call) fingerprint(q any) string {
	h := hmac.New(sha256.New, c.s.secret)
	h.Write([]byte(c.route.method() + " " + c.r.URL.EscapedPath() + "\n"))
	_ = json.NewEncoder(h).Encode(q) // all types of package v1 can be encoded
	return hex.EncodeToString(h.Sum(nil))
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
