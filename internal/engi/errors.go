package engi

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Kind says what the receiver of an error can do about it, not where the
// error happened. The set is closed: surfaces translate every kind, and tests
// hold them to it.
type Kind uint8

const (
	NoKind      Kind = iota // of no error: what KindOf(nil) returns
	Internal                // our fault, or a fault nobody classified; report it
	Invalid                 // the request can never succeed; fix it
	NotFound                // no such thing, or not yours to know about
	Conflict                // exists already, or is in the wrong state
	Denied                  // known caller, forbidden act
	Anonymous               // unknown caller; authenticate
	Exhausted               // a quota or a capacity; later may work
	Unavailable             // a part is down; retrying is safe
	Unsupported             // cannot be done here, ever; choose another way
	Expired                 // the deadline passed or the caller gave up
)

var kindNames = [...]string{
	NoKind:      "none",
	Internal:    "internal",
	Invalid:     "invalid",
	NotFound:    "not_found",
	Conflict:    "conflict",
	Denied:      "denied",
	Anonymous:   "anonymous",
	Exhausted:   "exhausted",
	Unavailable: "unavailable",
	Unsupported: "unsupported",
	Expired:     "expired",
}

// Kinds returns every kind that an error may have, for tests of completeness.
func Kinds() []Kind {
	var all []Kind
	for k := Internal; int(k) < len(kindNames); k++ {
		all = append(all, k)
	}
	return all
}

// String returns the kind's name as it crosses wires: lower case, with
// underscores.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", k)
}

// ParseKind is the inverse of String. An unknown name is Internal.
func ParseKind(s string) Kind {
	for _, k := range Kinds() {
		if k.String() == s {
			return k
		}
	}
	return Internal
}

// An Error is a classified error. Every error that leaves a room has exactly
// one kind; it is given once, where the fault is understood, and shows
// through whatever is wrapped around it.
type Error struct {
	Kind   Kind
	Text   string // lower case: the act and the ID; never a secret
	Remedy string // what to do next, one sentence; empty if the text says it
	Retry  Retry  // for Exhausted and Unavailable; else zero
	Faults Faults // of an Invalid request, if the error says which; else empty
	cause  error
}

// Retry tells a refused caller when another attempt makes sense.
type Retry struct {
	AfterMillis int64 // 0 means unknown
	Position    int   // place in the queue at the moment of refusal; 0 means not queued
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the error of this module that caused e, if any.
func (e *Error) Unwrap() error { return e.cause }

// Errorf classifies: it returns an [Error] of the given kind. A %w verb may
// wrap errors of this module only; foreign errors enter with %v, so that a
// library's types never become part of our interface.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Text: err.Error(), cause: errors.Unwrap(err)}
}

// WithRemedy returns e with a remedy.
func (e *Error) WithRemedy(format string, args ...any) *Error {
	c := *e
	c.Remedy = fmt.Sprintf(format, args...)
	return &c
}

// WithRetry returns e with a retry hint.
func (e *Error) WithRetry(r Retry) *Error {
	c := *e
	c.Retry = r
	return &c
}

// KindOf returns the outermost classification of err. Errors of contexts are
// Expired, errors that nobody classified are Internal, and nil is NoKind.
func KindOf(err error) Kind {
	if err == nil {
		return NoKind
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Expired
	}
	return Internal
}

// Is reports whether err is an error of one of the kinds. A nil error is of none.
func Is(err error, kinds ...Kind) bool {
	return err != nil && slices.Contains(kinds, KindOf(err))
}

// Ignore returns nil if err is of one of the kinds, and err if it is not.
func Ignore(err error, kinds ...Kind) error {
	if Is(err, kinds...) {
		return nil
	}
	return err
}

// RemedyOf returns the outermost remedy of err, or a general one for its kind.
func RemedyOf(err error) string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if ours, ok := e.(*Error); ok && ours.Remedy != "" {
			return ours.Remedy
		}
	}
	return remedies[KindOf(err)]
}

// RetryOf returns the outermost retry hint of err; zero if there is none.
func RetryOf(err error) Retry {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Retry
	}
	return Retry{}
}

// FaultsOf returns the faults of the request that err is about, if it says
// which.
func FaultsOf(err error) Faults {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Faults
	}
	return nil
}

var remedies = map[Kind]string{
	Internal:    "this is a fault in engi: report it with the request ID and the server's log",
	Invalid:     "correct the request",
	NotFound:    "check the ID and that it belongs to you",
	Conflict:    "read the object again and decide",
	Denied:      "ask for a key with the right scope",
	Anonymous:   "send 'Authorization: Bearer KEY'; the admin key is in admin.key in the data directory",
	Exhausted:   "wait and try again, or raise the limit",
	Unavailable: "try again; it is safe",
	Unsupported: "choose another way; 'engi doctor' lists what this machine can do",
	Expired:     "raise the deadline or do less",
}

// Annotate adds what was being done to *err; the kind shows through. Use it
// as defer Annotate(&err, "stop %s", id).
func Annotate(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}
