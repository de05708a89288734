package rest

import (
	"context"
	"iter"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// stream answers with the items of source, as events. each sends
// an item and reports whether it was the last; mark returns the event for a
// heartbeat or an error. The context of source ends when
// the caller leaves, and when the server shuts down.
func stream[E any](c *call, source func(context.Context) iter.Seq2[E, error], each func(*httpio.EventWriter, E) (bool, error), mark func(string, *v1.Problem) any) error {
	ctx, cancel := c.waiting()
	defer c.gone()
	return httpio.Stream[E]{W: c, Format: c.form, Heartbeat: c.s.beat, Each: each, Marker: mark, Describe: c.tell}.Serve(ctx, cancel, source(ctx))
}

// tell returns the problem that the caller sees for an error during a stream;
// false if the caller has left.
func (c *call) tell(err error) (v1.Problem, bool) {
	if c.gone() {
		return v1.Problem{}, false
	}
	return c.describe(err), true
}

// lastEvent parses a Last-Event-ID; an empty one returns other.
func lastEvent(id string, other int64) (int64, error) {
	if id == "" {
		return other, nil
	}
	n, err := strconv.ParseUint(id, 10, 63)
	if err != nil {
		return 0, invalid("header.Last-Event-ID", "this is not the ID of an event: an ID is a whole number")
	}
	return int64(n), nil
}

// atOffset returns the ID of an event, from which a client can resume.
func atOffset(n int64) string { return strconv.FormatInt(n, 10) }
