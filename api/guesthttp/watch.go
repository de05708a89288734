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
	source := httpio.Pull(g.Watch(ctx, dir, recursive))
	defer source.Stop()
	defer cancel()

	out := httpio.NewEventWriter(d.W, form)
	begun := false
	begin := func() bool {
		if begun {
			return true
		}
		begun = true
		return out.Begin() == nil && out.Send(v1.EventStarted, "", v1.FileEvent{Type: v1.EventStarted}) == nil
	}
	// The watch is in force, or has failed, within a moment.
	soon := time.NewTimer(settled)
	defer soon.Stop()
	beat := time.NewTicker(d.Beat)
	defer beat.Stop()
	for {
		select {
		case <-soon.C:
			if !begin() {
				return nil
			}
		case <-beat.C:
			if begun && out.Beat(v1.FileEvent{Type: v1.EventHeartbeat}, d.Beat) != nil {
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return d.Ctx.Err() // nil unless the server leaves
			}
			if e.Err != nil && !begun {
				source.Release()
				return e.Err
			}
			if !begin() {
				return nil
			}
			if e.Err != nil {
				source.Release()
				if !d.gone() {
					problem := d.Describe(e.Err)
					_ = out.Send(v1.EventError, "", v1.FileEvent{Type: v1.EventError, Error: &problem}) // the caller may have left
				}
				return nil
			}
			change := v1.FileEvent{Type: string(e.Event.Op)}
			change.Path, change.PathBase64 = name(e.Event.Path)
			err := out.Send(change.Type, "", change)
			source.Release()
			if err != nil {
				return nil
			}
		}
	}
}

const settled = 25 * time.Millisecond
