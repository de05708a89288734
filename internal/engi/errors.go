package engi

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Kind is the kind of an error. It tells the receiver how to react, not where the error
// happened. The set is closed: surfaces translate every kind, and tests
// check this.
type Kind uint8

const (
	NoKind      Kind = iota // no error: the result of KindOf(nil)
	Internal                // a fault in engi, or an unclassified error; report it
	Invalid                 // the request can never succeed; fix it
	NotFound                // the object does not exist, or the caller may not see it
	Conflict                // the object exists already, or is in the wrong state
	Denied                  // the caller is known, but the act is forbidden
	Anonymous               // the caller is unknown; authenticate
	Exhausted               // a quota or a capacity is used up; a later attempt may succeed
	Unavailable             // a part is down; a retry is safe
	Unsupported             // impossible on this node; choose another way
	Expired                 // the deadline passed, or the caller gave up
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

// Kinds returns every kind that an error can have, for tests of completeness.
func Kinds() []Kind {
	var all []Kind
	for k := Internal; int(k) < len(kindNames); k++ {
		all = append(all, k)
	}
	return all
}

// String returns the kind's name for APIs: lower case, with
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

// An Error is a classified error. Every error that leaves a package has exactly
// one kind. The kind is set once, where the fault is understood, and remains visible
// through all wrapping errors.
type Error struct {
	Kind   Kind
	Text   string // text in lower case with the act and the ID; never a secret
	Remedy string // one sentence on the next step; empty if the text contains it
	Retry  Retry  // hint for a retry of Exhausted and Unavailable; zero for other kinds
	Faults Faults // faults of an Invalid request; empty if the error names none

	TooLarge bool // of an Invalid request: a value has more bytes than the server accepts

	cause error
}

// Retry is a hint to a refused caller about the time of another attempt.
type Retry struct {
	AfterMillis int64 // milliseconds to wait; 0 means unknown
	Position    int   // place in the queue at the moment of refusal; 0 means not queued
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the error of this module that caused e, if any.
func (e *Error) Unwrap() error { return e.cause }

// Errorf returns an [Error] of the given kind. A %w verb may
// wrap only errors of this module. Foreign errors need %v, so that a
// library's types never become part of this interface.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Text: err.Error(), cause: errors.Unwrap(err)}
}

// TooLarge returns an Invalid [Error] for a value that has more bytes than the server accepts.
func TooLarge(format string, args ...any) *Error {
	err := Errorf(Invalid, format, args...)
	err.TooLarge = true
	return err
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

// KindOf returns the kind of the outermost Error in err. Errors of contexts are
// Expired, unclassified errors are Internal, and nil is NoKind.
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

// Is reports whether err is an error of one of the kinds. A nil error has none of them.
func Is(err error, kinds ...Kind) bool {
	return err != nil && slices.Contains(kinds, KindOf(err))
}

// Ignore returns nil if err is of one of the kinds, and err otherwise.
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

// RetryOf returns the outermost retry hint of err, or zero if there is none.
func RetryOf(err error) Retry {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Retry
	}
	return Retry{}
}

// FaultsOf returns the faults of a request that err carries. They are empty if err has
// none.
func FaultsOf(err error) Faults {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Faults
	}
	return nil
}

// IsTooLarge reports whether err is about a value that has more bytes than the server accepts.
func IsTooLarge(err error) bool {
	for e := err; e != nil && Is(err, Invalid); e = errors.Unwrap(e) {
		if ours, ok := e.(*Error); ok && ours.TooLarge {
			return true
		}
	}
	return false
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

// Annotate adds the failed act to the text of *err, and keeps its kind. Use it
// as defer Annotate(&err, "stop %s", id).
func Annotate(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}
