package guesthttp

import (
	"context"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Watch responds with the changes of files below a directory until the client
// disconnects. An error of starting the watch is reported before the
// response starts.
func (h *Handler) Watch(form httpio.Format, g engi.Guest, dir string, recursive bool) error {
	info, err := g.Stat(h.Ctx, dir)
	if err != nil {
		return err
	}
	if !info.Mode.IsDir() && info.Target == "" {
		return engi.Errorf(engi.Invalid, "%s is not a directory", dir).WithRemedy("watch the directory it is in")
	}
	ctx, cancel := context.WithCancel(h.Ctx)
	return httpio.Stream[engi.FileChange]{
		W: h.W, Format: form, Heartbeat: h.Heartbeat, Describe: h.tell, Grace: startGrace,
		First: func(out *httpio.EventWriter) error {
			return out.Send(v1.EventStarted, "", v1.FileChange{Type: v1.EventStarted})
		},
		Each: func(out *httpio.EventWriter, e engi.FileChange) (bool, error) {
			change := v1.FileChange{Type: string(e.Op)}
			change.Path, change.PathBase64 = name(e.Path)
			return false, out.Send(change.Type, "", change)
		},
		End: func(out *httpio.EventWriter) error {
			if h.Ctx.Err() == nil {
				return nil
			}
			problem, ok := h.tell(context.Cause(h.Ctx)) // the server shuts down
			if !ok {
				return nil
			}
			return out.Send(v1.EventError, "", v1.FileChange{Type: v1.EventError, Error: &problem})
		},
		Marker: func(kind string, problem *v1.Problem) any { return v1.FileChange{Type: kind, Error: problem} },
	}.Serve(ctx, cancel, g.Watch(ctx, dir, recursive))
}

// startGrace is the time that a stream waits for an early error, which can then be
// the response's status instead of an event.
const startGrace = 25 * time.Millisecond
