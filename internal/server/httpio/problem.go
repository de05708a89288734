package httpio

import (
	"errors"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/strict"
)

// Statuses maps each kind of error to its HTTP status.
var Statuses = [...]int{
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

// StatusOf returns the HTTP status for err.
func StatusOf(err error) int {
	if r, ok := errors.AsType[*Error](err); ok && r.Status != 0 {
		return r.Status
	}
	if engi.IsTooLarge(err) {
		return http.StatusRequestEntityTooLarge
	}
	return Statuses[engi.KindOf(err)]
}

// An Error is an error with more data than its kind implies: another status,
// several faults, or headers.
type Error struct {
	Err    *engi.Error
	Status int // HTTP status; 0 means the status of the kind
	Faults []v1.Fault
	Header http.Header // additional headers of the response; may be nil
}

// Error returns the text.
func (r *Error) Error() string { return r.Err.Text }

// Unwrap returns the classified error.
func (r *Error) Unwrap() error { return r.Err }

// Errorf returns an Invalid error with a status; 0 means 400.
func Errorf(status int, remedy, format string, args ...any) *Error {
	return &Error{Err: engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy), Status: status}
}

// Invalid returns the error for the faults of a request; nil if there are none.
func Invalid(faults []v1.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	r := Errorf(0, "correct the request; /docs describes it", "%s", (&strict.Error{Faults: faults}).Error())
	if len(faults) > 1 {
		r.Faults = faults
	}
	return r
}

// Describe returns the problem document for err. The text of an internal error
// is not disclosed: the caller logs it.
func Describe(err error, request string) v1.Problem {
	kind := engi.KindOf(err)
	p := v1.Problem{
		Type:      "urn:engi:problem:" + kind.String(),
		Status:    StatusOf(err),
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
	faults := engi.FaultsOf(err)
	if len(faults) > 0 {
		p.Remedy = "correct the request; /docs describes it"
	}
	if len(faults) > 1 {
		for _, f := range faults {
			p.Faults = append(p.Faults, v1.Fault{Field: f.Field, Detail: f.Detail})
		}
	}
	if r, ok := errors.AsType[*Error](err); ok {
		p.Faults = append(p.Faults, r.Faults...)
	}
	p.Title = http.StatusText(p.Status)
	return p
}
