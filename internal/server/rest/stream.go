package rest

import (
	"context"
	"iter"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// stream answers with what a source yields, as events. Each sends what an item
// becomes and says whether it was the last; mark returns the event of a
// heartbeat or an error. The source ends with the context that it gets: when
// the caller leaves, and when the server does.
func stream[E any](c *call, source func(context.Context) iter.Seq2[E, error], each func(*httpio.EventWriter, E) (bool, error), mark func(string, *v1.Problem) any) error {
	ctx, cancel := c.waiting()
	defer c.gone()
	return httpio.Stream[E]{W: c, Format: c.form, Heartbeat: c.s.beat, Each: each, Marker: mark, Describe: c.tell}.Serve(ctx, cancel, source(ctx))
}

// tell returns what the caller is told of an error in the middle of a stream;
// false if the caller has left.
func (c *call) tell(err error) (v1.Problem, bool) {
	if c.gone() {
		return v1.Problem{}, false
	}
	return c.describe(err), true
}

// lastEvent reads a Last-Event-ID; an empty one is other.
func lastEvent(id string, other int64) (int64, error) {
	if id == "" {
		return other, nil
	}
	n, err := strconv.ParseUint(id, 10, 63)
	if err != nil {
		return 0, invalid("header.Last-Event-ID", "this is not the id of an event: those are whole numbers")
	}
	return int64(n), nil
}

// atOffset is the ID of an event that can be come back to.
func atOffset(n int64) string { return strconv.FormatInt(n, 10) }
