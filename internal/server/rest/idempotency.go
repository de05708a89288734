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

// Requests that create something take an Idempotency-Key: sent again with the
// same key, they are answered with what the first one made. Services that
// remember keys themselves, in the transaction that creates the object, get
// the key. For all others, a reservation is recorded before the work, with the
// IDs that the new objects will have, so that a repetition finds them, or
// makes them, also if the server was killed in between.

const (
	keyHeader = "Idempotency-Key"
	maxKey    = 255 // bytes of one

	// finishTime bounds the recording of what was made, whether or not its
	// caller is still there.
	finishTime = 10 * time.Second
)

// readKey takes over the Idempotency-Key of a route that takes one.
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

// A creation is the work of a request that makes objects.
type creation[T any] struct {
	// ids are fresh ones for what is made; nil if IDs cannot be chosen.
	ids []string
	// work makes the objects, with these IDs if there are any. It leaves
	// nothing behind when it fails.
	work func(ids []string) (T, error)
	// find returns what work made before; NotFound if none of it is there. If
	// work is not known to have ended, find makes what is missing.
	find func(ids []string, ended bool) (T, error)
	// made returns the IDs of what work made; nil means those that it got.
	made func(T) []string
}

// once makes what a request asks for: once, if it has an Idempotency-Key. q is
// its body.
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
	// What was written must not be in doubt because the caller leaves.
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
			c.logInternal(e) // the key stays taken for this request
		}
	}
	return x, err
}

// firstID is the one ID of what is made; empty if there is none.
func firstID[ID ~string](ids []string) ID {
	if len(ids) == 0 {
		return ""
	}
	return ID(ids[0])
}

// mayHaveHappened reports whether something may have been made in spite of an
// error.
func mayHaveHappened(err error) bool {
	return engi.Is(err, engi.Internal, engi.Unavailable, engi.Expired)
}

// fingerprint tells requests apart. It is keyed, since requests may have
// secrets in them.
func (c *call) fingerprint(q any) string {
	h := hmac.New(sha256.New, c.s.secret)
	h.Write([]byte(c.route.method() + " " + c.r.URL.EscapedPath() + "\n"))
	_ = json.NewEncoder(h).Encode(q) // all types of package v1 can be written
	return hex.EncodeToString(h.Sum(nil))
}

// prefer is a parameter of routes that can answer before the work is done.
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
