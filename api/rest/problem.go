package rest

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

// fail answers with the problem document of err, and logs what the caller is
// not told. An answer that has begun is cut off.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	s.logInternal(r, err)
	if c.wrote {
		panic(http.ErrAbortHandler)
	}
	p := httpio.Describe(err, c.id)
	h := w.Header()
	location := h["Location"] // of what exists in spite of err
	clear(h)
	if location != nil {
		h["Location"] = location
	}
	h.Set("X-Request-Id", c.id)
	h.Set("Cache-Control", "no-store")
	if ours, ok := errors.AsType[*httpio.Error](err); ok {
		for name, values := range ours.Header {
			h[name] = values
		}
	}
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="engi"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(p.RetryAfter))
	}
	_ = httpio.WriteJSON(w, p.Status, "application/problem+json", p) // unreachable: a problem can be written
}

// logInternal logs what the caller is not told.
func (s *server) logInternal(r *http.Request, err error) {
	if engi.KindOf(err) == engi.Internal {
		s.log.LogAttrs(r.Context(), slog.LevelError, "internal error",
			slog.String("request_id", callOf(r.Context()).id), slog.Any("error", err))
	}
}

// retryAfter returns whole seconds, rounded up, at least one.
func retryAfter(d v1.Duration) string {
	return strconv.FormatInt(max(1, int64((d.Std()+time.Second-1)/time.Second)), 10)
}

// answer is an error on its way through huma, which asks for its status and
// writes the rest as JSON.
type answer struct{ v1.Problem }

var (
	_ huma.StatusError       = (*answer)(nil)
	_ huma.ContentTypeFilter = (*answer)(nil)
)

func (a *answer) Error() string             { return a.Detail }
func (a *answer) GetStatus() int            { return a.Status }
func (a *answer) ContentType(string) string { return "application/problem+json" }

// init teaches huma our problem documents. The hooks are global to the
// process; a surface with other errors must look at ctx.Operation to tell.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return &answer{httpio.Describe(fromHuma(status, msg, errs), "")}
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return &answer{httpio.Describe(fromHuma(status, msg, errs), callOf(ctx.Context()).id)}
	}
}

// fromHuma classifies what huma found wrong with the parameters of a request.
func fromHuma(status int, msg string, errs []error) error {
	if status >= 500 {
		return engi.Errorf(engi.Internal, "%s: %v", msg, errors.Join(errs...))
	}
	var faults []v1.Fault
	for _, err := range errs {
		f := v1.Fault{Detail: err.Error()}
		if d, ok := err.(huma.ErrorDetailer); ok {
			f = v1.Fault{Field: d.ErrorDetail().Location, Detail: d.ErrorDetail().Message}
		}
		faults = append(faults, f)
	}
	if len(faults) == 0 {
		faults = []v1.Fault{{Detail: msg}}
	}
	return httpio.Invalid(faults)
}
