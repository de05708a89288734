package store

import "github.com/engi-dev/engi"

// keptError is an error as it is kept in the detail of a record.
type keptError struct {
	Kind   string `json:"kind"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
	After  int64  `json:"after_ms,omitempty"` // of the hint to try again
}

// keepError returns nil for nil.
func keepError(e *engi.Error) *keptError {
	if e == nil {
		return nil
	}
	return &keptError{e.Kind.String(), e.Text, e.Remedy, e.Retry.AfterMillis}
}

// decode returns nil for nil.
func (e *keptError) decode() *engi.Error {
	if e == nil {
		return nil
	}
	return &engi.Error{Kind: engi.ParseKind(e.Kind), Text: e.Text, Remedy: e.Remedy, Retry: engi.Retry{AfterMillis: e.After}}
}
