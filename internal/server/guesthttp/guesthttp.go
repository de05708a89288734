// Package guesthttp serves the contents of a sandbox over HTTP: the output of
// processes as streams of events, terminals over WebSockets, files and archives
// of any size, and changes of files. Package rest checks permissions and finds
// the sandbox.
package guesthttp

import (
	"context"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// A Handler serves one request. All fields are required.
type Handler struct {
	W http.ResponseWriter
	R *http.Request

	// Ctx ends when the client disconnects or the server shuts down.
	Ctx context.Context
	// Heartbeat is the maximum silence of a stream before it sends a heartbeat.
	Heartbeat time.Duration
	// Describe returns the problem that the client sees for an error after the
	// response has started.
	Describe func(error) v1.Problem
}

// tell returns the problem that the client sees for an error after the response has
// started; false if it has disconnected.
func (h *Handler) tell(err error) (v1.Problem, bool) {
	if h.gone() {
		return v1.Problem{}, false
	}
	return h.Describe(err), true
}

// gone reports whether the client has disconnected.
func (h *Handler) gone() bool { return h.R.Context().Err() != nil }
