package guesthttp

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/v1"
)

// Watch answers with what happens to files below a directory until the caller
// leaves. It reports what is wrong with the directory before the stream
// begins.
func (d *Handler) Watch(form httpio.Format, g engi.Guest, dir string, recursive bool) error {
	info, err := g.Stat(d.Ctx, dir)
	if err != nil {
		return err
	}
	if !info.Mode.IsDir() && info.Target == "" {
		return engi.Errorf(engi.Invalid, "%s is not a directory", dir).WithRemedy("watch the directory it is in")
	}
	ctx, cancel := context.WithCancel(d.Ctx)
	return httpio.Stream[engi.FileChange]{
		W: d.W, Form: form, Beat: d.Beat, Describe: d.tell, Patience: settled,
		First: func(out *httpio.EventWriter) error {
			return out.Send(v1.EventStarted, "", v1.FileEvent{Type: v1.EventStarted})
		},
		Each: func(out *httpio.EventWriter, e engi.FileChange) (bool, error) {
			change := v1.FileEvent{Type: string(e.Op)}
			change.Path, change.PathBase64 = name(e.Path)
			return false, out.Send(change.Type, "", change)
		},
		End: func(out *httpio.EventWriter) error {
			if d.Ctx.Err() == nil {
				return nil
			}
			problem, ok := d.tell(context.Cause(d.Ctx)) // the server leaves
			if !ok {
				return nil
			}
			return out.Send(v1.EventError, "", v1.FileEvent{Type: v1.EventError, Error: &problem})
		},
		Mark: func(kind string, problem *v1.Problem) any { return v1.FileEvent{Type: kind, Error: problem} },
	}.Serve(ctx, cancel, g.Watch(ctx, dir, recursive))
}

// settled is how long a watch, or a process that is come back to, may take to
// fail in a way that is still told as the status of the answer.
const settled = 25 * time.Millisecond
