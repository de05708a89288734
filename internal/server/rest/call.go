package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/guesthttp"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A call is one request, from its first byte to the last byte of its answer: the
// request's context, the writer of the answer, and the caller's key. It belongs
// to the goroutine that serves it.
type call struct {
	context.Context
	http.ResponseWriter

	s *Server
	r *http.Request

	id    string        // ID of the request
	route *Route        // nil if no route matched
	auth  engi.Key      // the caller's key; zero on open routes
	form  httpio.Format // format of the answer, on routes that stream
	key   string        // Idempotency-Key; empty if the request has none, or the route ignores it

	waits context.Context // context that waiting returned; nil before waiting was called

	status int   // status of the answer; 0 before the answer starts
	bytes  int64 // number of bytes of the answer's body
	wrote  bool  // the answer has started
	left   bool  // the caller left before the answer ended
}

// owner returns the owner whose objects the route uses; see [Objects].
func (c *call) owner() engi.Owner {
	switch c.route.Objects {
	case Owned:
		return c.auth.Owner
	case Shared:
		panic("rest: " + c.route.Pattern + " is about the node's objects") // a mistake in the table of routes; every test would show it
	}
	return c.viewer().Owner()
}

// viewer returns the viewer of the objects that the route looks up; see [Objects].
func (c *call) viewer() engi.Viewer {
	if c.auth.Admin && (c.route.Objects != Owned || c.auth.Owner == "") {
		return engi.Everyone
	}
	return c.auth.Owner.Viewer()
}

// WriteHeader implements http.ResponseWriter.
func (c *call) WriteHeader(status int) {
	if status >= 200 && !c.wrote {
		c.status, c.wrote = status, true
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *call) Write(p []byte) (int, error) {
	if !c.wrote {
		c.status, c.wrote = http.StatusOK, true
	}
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Unwrap gives http.ResponseController access to deadlines and flushing.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// ServeHTTP is the outermost layer: it gives the request an ID, refuses requests of foreign
// pages, recovers from panics, and writes one line to the log.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &call{Context: r.Context(), ResponseWriter: w, s: s, r: r, id: requestID(r)}
	c.Header().Set("X-Request-Id", c.id)
	s.meter.begin()
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			s.log.LogAttrs(c, slog.LevelError, "panic",
				slog.String("request_id", c.id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if !c.wrote {
				p = nil
				c.fail(engi.Errorf(engi.Internal, "a panic, logged above"))
			}
		}
		took := time.Since(start)
		s.meter.end(c, took)
		s.logCall(c, took)
		if p != nil {
			panic(http.ErrAbortHandler) // the connection breaks, so that the caller does not take a short answer for a whole one
		}
	}()
	if err := httpio.CheckHost(r, s.hosts); err != nil {
		c.fail(err)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") && httpio.AllowOrigin(c, r, s.origins) {
		return
	}
	s.mux.ServeHTTP(c, r)
}

func (s *Server) logCall(c *call, took time.Duration) {
	level := slog.LevelInfo
	switch {
	case c.status >= 500 && c.status != http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case c.route != nil && c.route.Quiet:
		level = slog.LevelDebug
	}
	if !s.log.Enabled(c, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", c.id),
		slog.String("method", c.r.Method),
		slog.String("path", c.r.URL.Path), // never log the query: it may have secrets
		slog.Int("status", c.status),
		slog.Int64("bytes", c.bytes),
		slog.Float64("took_ms", float64(took.Microseconds())/1000),
		slog.String("remote", c.r.RemoteAddr),
	}
	if c.auth.ID != "" {
		attrs = append(attrs, slog.String("key", c.auth.ID), slog.String("owner", string(c.auth.Owner)))
	}
	if c.left {
		attrs = append(attrs, slog.Bool("left", true))
	}
	s.log.LogAttrs(c, level, "request", attrs...)
}

// requestID returns the caller's own request ID if it is safe in a log, and else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	}) {
		return string(engi.NewRequestID())
	}
	return id
}

// secret returns the key that the request carries; empty if it has none. Programs that support
// only basic authentication send the key as the password.
func (c *call) secret() string {
	r := c.r
	if _, secret, ok := r.BasicAuth(); ok && c.route.Password {
		return secret
	}
	if auth := r.Header.Get("Authorization"); auth != "" {
		scheme, secret, _ := strings.Cut(auth, " ")
		if strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(secret)
		}
		return "" // an Authorization of another scheme excludes the second header
	}
	return r.Header.Get("X-API-Key")
}

// admit authenticates the caller and checks that its key is allowed to use the route.
func (c *call) admit() error {
	if c.route.Access.Open {
		return nil
	}
	secret := c.secret()
	if secret == "" {
		return engi.Errorf(engi.Anonymous, "this request carries no API key")
	}
	// Pass c.Context, not c: another goroutine may read it as a context while the actor is added.
	k, err := c.s.keys.Authenticate(c.Context, secret)
	if err != nil {
		return err
	}
	c.auth = k
	c.Context = engi.WithActor(c.Context, k.ID)
	if k.Owner == "" && !k.Admin {
		// The empty owner is the node itself.
		return engi.Errorf(engi.Internal, "key %s has no owner", k.ID)
	}
	return c.route.Allows(k)
}

// reply answers with v, or without a body if v is of type none.
func (c *call) reply(status int, v any) error {
	return httpio.WriteJSON(c, status, string(httpio.JSON), v)
}

// location sets the Location header to the address of the answer's object.
func (c *call) location(parts ...string) { c.Header().Set("Location", strings.Join(parts, "/")) }

// gone reports whether the caller has left, and remembers it for the log.
func (c *call) gone() bool {
	if c.r.Context().Err() == nil || c.s.leaving() {
		return false
	}
	c.left = true
	return true
}

func (s *Server) leaving() bool { return s.leave.Err() != nil }

// waiting returns a context for waits on the caller's behalf. It ends when the
// caller leaves, when its key becomes invalid, and when the server shuts down.
func (c *call) waiting() (context.Context, context.CancelFunc) {
	parent, done := c.Context, func() {}
	if !c.route.Access.Open {
		parent, done = c.s.keys.Valid(c.Context, c.secret())
	}
	ctx, cancel := context.WithCancelCause(parent)
	c.waits = ctx
	stop := context.AfterFunc(c.s.leave, func() { cancel(errLeaving) })
	return ctx, func() { stop(); cancel(nil); done() }
}

var errLeaving = engi.Errorf(engi.Unavailable, "this server is going away").
	WithRemedy("try again: runs continue, and the next server resumes them").
	WithRetry(engi.Retry{AfterMillis: 1000})

// orEnded returns the reason for the end of ctx, a context of waiting, if that end caused err:
// the server shuts down, or the key is no longer valid. Else it returns err.
func orEnded(ctx context.Context, err error) error {
	if cause, ok := errors.AsType[*engi.Error](context.Cause(ctx)); ok && err != nil {
		return cause
	}
	return err
}

// guest returns the guesthttp handler for this request. The
// caller calls the returned function when it is done.
func (c *call) guest() (*guesthttp.Handler, context.CancelFunc) {
	ctx, cancel := c.waiting()
	return &guesthttp.Handler{W: c, R: c.r, Ctx: ctx, Heartbeat: c.s.beat, Describe: c.describe}, cancel
}

// describe returns the problem that the caller sees for an error after its answer has
// started, and logs the details that the caller does not see.
func (c *call) describe(err error) v1.Problem {
	if c.waits != nil {
		err = orEnded(c.waits, err)
	}
	c.logInternal(err)
	return httpio.Describe(err, c.id)
}
