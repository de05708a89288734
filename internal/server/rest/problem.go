package rest

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// fail answers with the problem document of err, and logs the details that the caller does
// not see. An answer that has started is cut off.
func (c *call) fail(err error) {
	c.logInternal(err)
	if c.wrote {
		panic(http.ErrAbortHandler)
	}
	p := httpio.Describe(err, c.id)
	h := c.Header()
	kept := http.Header{}
	for _, name := range []string{"Location", "Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"} { // Location names an object that exists in spite of err
		if values := h[name]; values != nil {
			kept[name] = values
		}
	}
	clear(h)
	maps.Copy(h, kept)
	h.Set("X-Request-Id", c.id)
	h.Set("Cache-Control", "no-store")
	if ours, ok := errors.AsType[*httpio.Error](err); ok {
		for name, values := range ours.Header {
			h[name] = values
		}
	}
	switch p.Status {
	case http.StatusUnauthorized:
		scheme := "Bearer"
		if c.route != nil && c.route.Password {
			scheme = "Basic" // git supports this scheme
		}
		h.Set("WWW-Authenticate", scheme+` realm="engi"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(p.RetryAfter))
	}
	var answer any = p
	if c.route != nil && c.route.Error != nil {
		answer = v1.DialectProblem{Problem: p, Error: c.route.Error(p)}
	}
	_ = httpio.WriteJSON(c, p.Status, "application/problem+json", answer) // unreachable: a problem can be encoded
}

// logInternal logs the details that the caller does not see.
func (c *call) logInternal(err error) {
	if engi.Is(err, engi.Internal) {
		c.s.log.LogAttrs(c, slog.LevelError, "internal error", slog.String("request_id", c.id), slog.Any("error", err))
	}
}

// retryAfter returns whole seconds, rounded up, at least one.
func retryAfter(d v1.Duration) string {
	return strconv.FormatInt(max(1, int64((d.Std()+time.Second-1)/time.Second)), 10)
}

// problemOf converts the error of a record; nil for none.
func problemOf(err *engi.Error) *v1.Problem {
	if err == nil {
		return nil
	}
	return new(httpio.Describe(err, ""))
}
