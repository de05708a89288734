package engi

import (
	"crypto/rand"
	"strings"
)

// IDs are a four-letter prefix with its underscore and 26 characters of
// base32: unguessable, never reused, all of one length (runsc resolves ID
// prefixes, so no ID may be the beginning of another).
type (
	// A SandboxID names one sandbox for ever.
	SandboxID string
	// An ExecutionID names one run of code for ever.
	ExecutionID string
	// A RequestID names one request to a surface, for logs and errors.
	RequestID string
)

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
	idLength   = 26

	sandboxPrefix   = "sbx_"
	executionPrefix = "exe_"
	requestPrefix   = "req_"
)

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

func parseID(prefix, noun, s string) (string, error) {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != idLength || strings.Trim(rest, idAlphabet) != "" {
		return "", Errorf(Invalid, "%.40q is not %s ID", s, noun).
			WithRemedy("%s IDs are %q and %d lower-case letters and digits", noun, prefix, idLength)
	}
	return s, nil
}

// NewSandboxID returns a fresh, unguessable ID.
func NewSandboxID() SandboxID { return SandboxID(newID(sandboxPrefix)) }

// ParseSandboxID is the only way in from outside. It reports Invalid.
func ParseSandboxID(s string) (SandboxID, error) {
	id, err := parseID(sandboxPrefix, "a sandbox", s)
	return SandboxID(id), err
}

// NewExecutionID returns a fresh, unguessable ID.
func NewExecutionID() ExecutionID { return ExecutionID(newID(executionPrefix)) }

// ParseExecutionID is the only way in from outside. It reports Invalid.
func ParseExecutionID(s string) (ExecutionID, error) {
	id, err := parseID(executionPrefix, "an execution", s)
	return ExecutionID(id), err
}

// NewRequestID returns a fresh ID.
func NewRequestID() RequestID { return RequestID(newID(requestPrefix)) }
