// Package guesthttp moves bytes between HTTP and the inside of a sandbox: output
// of processes as streams of events, terminals over WebSockets, files and
// archives of any size, changes of files. It decides nothing about who may do
// what and finds no sandboxes: package rest does, and hands over what it found.
package guesthttp

import (
	"context"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// A Handler answers one request. Its fields are not changed while it does.
type Handler struct {
	W http.ResponseWriter
	R *http.Request

	// Ctx ends when the caller leaves, and when the server does.
	Ctx context.Context
	// Beat is how long a stream may be silent before it says it is alive.
	Beat time.Duration
	// Describe returns what the caller is told about an error, once a stream
	// has begun.
	Describe func(error) v1.Problem
}

// tell returns what the caller is told of an error in the middle of a stream;
// false if it has left.
func (d *Handler) tell(err error) (v1.Problem, bool) {
	if d.gone() {
		return v1.Problem{}, false
	}
	return d.Describe(err), true
}

// gone reports whether nobody listens any more.
func (d *Handler) gone() bool { return d.R.Context().Err() != nil }
