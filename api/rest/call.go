package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
)

// A call is one request, from the first byte to the last. It belongs to the
// goroutine that serves it.
type call struct {
	http.ResponseWriter // what the handlers write to

	id     string   // of the request
	route  string   // pattern that matched; empty if none did
	key    engi.Key // who is calling; zero on open routes
	status int      // of the answer; 0 before it begins
	bytes  int64    // of the answer's body
	wrote  bool     // the answer has begun
	left   bool     // the caller did not wait for it
}

type callKey struct{}

// callOf returns the call that ctx serves; a blank one outside of any.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// viewer is whose objects the caller sees: everybody's for an admin.
func (c *call) viewer() engi.Owner {
	if c.key.Admin {
		return ""
	}
	return c.key.Owner
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

// Unwrap lets http.ResponseController find deadlines and flushing.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// ServeHTTP is the outermost layer: it names the request, keeps foreign pages
// out, catches panics, and writes the one line in the log.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &call{ResponseWriter: w, id: requestID(r)}
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	c.Header().Set("X-Request-Id", c.id)
	done := s.meter.begin()
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			s.log.LogAttrs(r.Context(), slog.LevelError, "panic",
				slog.String("request_id", c.id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if !c.wrote {
				p = nil
				s.fail(c, r, engi.Errorf(engi.Internal, "a panic, logged above"))
			}
		}
		took := time.Since(start)
		done(c, r, took)
		s.logCall(r, c, took)
		if p != nil {
			panic(http.ErrAbortHandler) // so that the caller sees a broken answer, not a short one
		}
	}()

	if err := httpio.CheckHost(r, s.hosts); err != nil {
		s.fail(c, r, err)
		return
	}
	s.mux.ServeHTTP(c, r)
}

func (s *server) logCall(r *http.Request, c *call, took time.Duration) {
	level := slog.LevelInfo
	switch {
	case c.status >= 500 && c.status != http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case c.route == "GET /healthz" || c.route == "GET /readyz" || c.route == "GET /metrics":
		level = slog.LevelDebug
	}
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", c.id),
		slog.String("method", r.Method),
		slog.String("path", r.URL.Path), // never the query: people put secrets there
		slog.Int("status", c.status),
		slog.Int64("bytes", c.bytes),
		slog.Float64("took_ms", float64(took.Microseconds())/1000),
		slog.String("remote", r.RemoteAddr),
	}
	if c.key.ID != "" {
		attrs = append(attrs, slog.String("key", c.key.ID), slog.String("owner", string(c.key.Owner)))
	}
	if c.left {
		attrs = append(attrs, slog.Bool("left", true))
	}
	s.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// requestID takes over the caller's own ID if it is harmless in a log.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	}) {
		return string(engi.NewRequestID())
	}
	return id
}

// secretOf returns the key that r carries; empty if none.
func secretOf(r *http.Request) string {
	if auth := r.Header.Get("Authorization"); auth != "" {
		scheme, secret, _ := strings.Cut(auth, " ")
		if strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(secret)
		}
		return "" // another scheme must not fall through to a second header
	}
	return r.Header.Get("X-API-Key")
}

// admit finds out who is calling and whether that is enough for the route.
func (s *server) admit(r *http.Request, need rule) error {
	if need.open {
		return nil
	}
	secret := secretOf(r)
	if secret == "" {
		return engi.Errorf(engi.Anonymous, "this request carries no API key")
	}
	k, err := s.keys.Authenticate(r.Context(), secret)
	if err != nil {
		return err
	}
	c := callOf(r.Context())
	c.key = k
	if k.Owner == "" && !k.Admin {
		// The empty owner would see everything.
		return engi.Errorf(engi.Internal, "key %s has no owner", k.ID)
	}
	return need.check(k)
}

// gone reports whether r's caller has left, and remembers it for the log.
func (s *server) gone(r *http.Request) bool {
	if r.Context().Err() == nil || s.leaving() {
		return false
	}
	callOf(r.Context()).left = true
	return true
}

func (s *server) leaving() bool { return s.leave.Err() != nil }

// waiting returns a context for waits on behalf of r: it ends when the caller
// leaves, and when the server does.
func (s *server) waiting(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.leave, func() { cancel(errLeaving) })
	return ctx, func() { stop(); cancel(nil) }
}

var errLeaving = engi.Errorf(engi.Unavailable, "this server is going away").
	WithRemedy("try again: runs go on, and the next server takes them over").
	WithRetry(engi.Retry{AfterMillis: 1000})

// whole replaces what ctx's end made of err by the reason for that end.
func whole(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errLeaving) {
		return errLeaving
	}
	return err
}
