package rest

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/strict"
	"github.com/engi-dev/engi/api/v1"
)

// statuses is the one place where kinds of error become HTTP.
var statuses = [...]int{
	engi.Internal:    http.StatusInternalServerError,
	engi.Invalid:     http.StatusBadRequest,
	engi.NotFound:    http.StatusNotFound,
	engi.Conflict:    http.StatusConflict,
	engi.Denied:      http.StatusForbidden,
	engi.Anonymous:   http.StatusUnauthorized,
	engi.Exhausted:   http.StatusTooManyRequests,
	engi.Unavailable: http.StatusServiceUnavailable,
	engi.Unsupported: http.StatusNotImplemented,
	engi.Expired:     http.StatusGatewayTimeout,
}

// A refusal is an error of this surface that has more to say than its kind:
// the exact status, or several faults.
type refusal struct {
	err    *engi.Error
	status int // 0 means that of the kind
	faults []v1.Fault
	header http.Header // sent along; may be nil
}

func (r *refusal) Error() string { return r.err.Text }
func (r *refusal) Unwrap() error { return r.err }

// refuse returns an Invalid error with a status of its own.
func refuse(status int, remedy, format string, args ...any) *refusal {
	return &refusal{err: engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy), status: status}
}

// invalid returns the error for the faults of a request; nil for none.
func invalid(faults []v1.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	r := refuse(0, "correct the request; /docs describes it", "%s", (&strict.Error{Faults: faults}).Error())
	if len(faults) > 1 {
		r.faults = faults
	}
	return r
}

// describe returns the problem document of err. Texts of internal errors stay
// in the log.
func describe(err error, request string) v1.Problem {
	kind := engi.KindOf(err)
	p := v1.Problem{
		Type:      "urn:engi:problem:" + kind.String(),
		Status:    statuses[kind],
		Detail:    err.Error(),
		Kind:      kind.String(),
		Remedy:    engi.RemedyOf(err),
		RequestID: request,
	}
	if kind == engi.Internal {
		p.Detail = "an internal error; the log has it under this request ID"
	}
	if retry := engi.RetryOf(err); kind == engi.Exhausted || kind == engi.Unavailable {
		p.RetryAfter = v1.Duration(time.Duration(retry.AfterMillis) * time.Millisecond)
		p.QueuePosition = retry.Position
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		if r.status != 0 {
			p.Status = r.status
		}
		p.Faults = r.faults
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// fail answers with the problem document of err, and logs what the caller is
// not told. An answer that has begun is cut off.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	s.logInternal(r, err)
	if c.wrote {
		panic(http.ErrAbortHandler)
	}
	p := describe(err, c.id)
	h := w.Header()
	location := h["Location"] // of what exists in spite of err
	clear(h)
	if location != nil {
		h["Location"] = location
	}
	h.Set("X-Request-Id", c.id)
	h.Set("Cache-Control", "no-store")
	if ours, ok := errors.AsType[*refusal](err); ok {
		for name, values := range ours.header {
			h[name] = values
		}
	}
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="engi"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(p.RetryAfter))
	}
	_ = writeJSON(w, p.Status, "application/problem+json", p) // unreachable: a problem can be written
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
		return &answer{describe(fromHuma(status, msg, errs), "")}
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return &answer{describe(fromHuma(status, msg, errs), callOf(ctx.Context()).id)}
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
	return invalid(faults)
}
