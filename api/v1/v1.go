// Package v1 defines the requests and responses of engi's HTTP API, version 1.
// It imports no other package of engi, so that clients can use it alone, and
// only encodes its values; package rest converts them
// to the types of package engi.
//
// Names are in snake_case. Times are RFC 3339 in UTC. Durations are strings
// ([Duration]), sizes numbers of bytes or strings with a unit ([Bytes]).
// Fields missing from a request get the server's defaults. Fields may be added
// to responses at any time, so clients must ignore unknown ones; requests
// with unknown fields are refused.
package v1

// A Problem describes the failure of a request, as an application/problem+json document
// (RFC 9457).
type Problem struct {
	Type          string   `json:"type" doc:"urn:engi:problem: followed by the kind" example:"urn:engi:problem:exhausted"`
	Title         string   `json:"title" doc:"HTTP status in words" example:"Too Many Requests"`
	Status        int      `json:"status" doc:"HTTP status" example:"429"`
	Detail        string   `json:"detail" doc:"Description of the failure and its object" example:"the queue of pool base/python is full"`
	Kind          string   `json:"kind" enum:"internal,invalid,not_found,conflict,denied,anonymous,exhausted,unavailable,unsupported,expired" doc:"Kind of the error, which says what the caller can do"`
	Remedy        string   `json:"remedy" doc:"Advice on what to do next" example:"wait and try again, or raise the limit"`
	RequestID     string   `json:"request_id" doc:"ID of the request in the server's log" example:"req_u2dmwmlezjgprkqrgppgcz2mgu"`
	RetryAfter    Duration `json:"retry_after,omitempty" doc:"Time after which to try again" example:"1.5s"`
	QueuePosition int      `json:"queue_position,omitempty" doc:"Position in the queue when the request was refused" example:"12"`
	Faults        []Fault  `json:"faults,omitempty" doc:"All faults of an invalid request, if there are several"`
}

// A DialectProblem is a problem on a route in another API's format.
type DialectProblem struct {
	Problem
	Error any `json:"error" doc:"The error in the format that clients of that API read"`
}

// Kinds of problems. The set is closed.
const (
	Internal    = "internal"    // a fault of the server; report it
	Invalid     = "invalid"     // the request can never succeed; fix it
	NotFound    = "not_found"   // the object does not exist, or belongs to others
	Conflict    = "conflict"    // the object exists already, or is in the wrong state
	Denied      = "denied"      // the caller may not do this
	Anonymous   = "anonymous"   // the caller is unknown; authenticate
	Exhausted   = "exhausted"   // a quota or a capacity is used up; retry later
	Unavailable = "unavailable" // a part is down; retrying is safe
	Unsupported = "unsupported" // the server can never do this; choose another way
	Expired     = "expired"     // the deadline passed or the caller gave up
)

// A Fault is one invalid field of a request.
type Fault struct {
	Field  string `json:"field" doc:"Field, such as files[2].path or query.limit" example:"files[2].path"`
	Detail string `json:"detail" doc:"Description of the fault" example:"\"../x\" leads out of the working directory"`
}

// A List is one page of objects, newest first.
type List[T any] struct {
	Items      []T    `json:"items" doc:"Objects"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Send it as cursor to get the next page; absent on the last page"`
}
