package function

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// maxCauses is the maximum length of chains of functions that start each other.
const maxCauses = 32

// keepCursor is the interval in which the cursor is stored while no event starts a
// function. Events after it are processed again after a crash, which starts
// no run twice.
const keepCursor = time.Second

// followEvents starts the functions that are bound to events of engi
// itself, and those of the Source, from the stored cursor on, until ctx ends.
// The caller waits for the returned group.
func (r *Runner) followEvents(ctx context.Context) (*sync.WaitGroup, error) {
	var following sync.WaitGroup
	var types []string
	for _, t := range engi.EventTypes() {
		if len(r.boundTo(t)) > 0 {
			types = append(types, t)
		}
	}
	switch {
	case r.opt.Source != nil:
		types = nil // all types
	case len(types) == 0:
		return &following, nil
	}
	after, err := r.opt.Store.Cursor(ctx, false)
	if err != nil {
		return nil, err
	}
	if after < 0 { // begin with the events from now on
		if after, err = r.opt.Events.Last(ctx); err != nil {
			return nil, err
		}
		if _, err := r.opt.Store.Advance(ctx, after, nil); err != nil {
			return nil, err
		}
	}
	following.Go(func() {
		stored := time.Now()
		for ctx.Err() == nil {
			for e, err := range r.opt.Events.Follow(ctx, engi.Everyone, engi.EventFilter{Types: types, After: after}) {
				if err == nil && e.Type != engi.EventsDropped {
					err = r.trigger(ctx, e, &stored)
				}
				if err != nil {
					if ctx.Err() == nil {
						r.opt.Log.WarnContext(ctx, "start functions on events; it is retried", "after", after, "error", err)
						_ = clock.Sleep(ctx, time.Second)
					}
					break
				}
				after = e.Seq
			}
		}
	})
	return &following, nil
}

// trigger starts the functions that are bound to an event of engi itself, except
// those that have caused the event, and those of the Source, and advances the
// cursor past it; stored is the time at which the cursor was last stored.
func (r *Runner) trigger(ctx context.Context, e engi.Event, stored *time.Time) error {
	runs, err := r.boundRuns(ctx, e)
	if err != nil {
		return err
	}
	for r.checkQueue(len(runs)) != nil {
		if clock.Sleep(ctx, time.Second) != nil {
			return ctx.Err()
		}
	}
	if r.opt.Source != nil {
		for _, f := range r.opt.Source.Bound(e) {
			if r.isFull(f) {
				r.opt.Source.Dropped(ctx, f.Name, e)
				continue
			}
			rec := newRun(f, e)
			rec.Owner, rec.Key = f.Owner, string(e.ID)+"/"+f.Name
			runs = append(runs, rec)
		}
	}
	if len(runs) == 0 && time.Since(*stored) < keepCursor {
		return nil
	}
	*stored = time.Now()
	runs, err = r.opt.Store.Advance(ctx, e.Seq, runs)
	if err == nil {
		r.enqueue(runs...)
	}
	return err
}

// boundRuns returns the runs that an event of engi itself starts. Events sent by
// users have started their runs already.
func (r *Runner) boundRuns(ctx context.Context, e engi.Event) (runs []Record, err error) {
	functions := r.boundTo(e.Type)
	if len(functions) == 0 || !slices.Contains(engi.EventTypes(), e.Type) {
		return nil, nil
	}
	causes, err := r.causes(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, f := range functions {
		if slices.Contains(causes, f.Name) {
			r.opt.Log.WarnContext(ctx, "a function is not started on an event that it has caused", "function", f.Name, "event", e.Type, "subject", e.Subject)
			data, err := json.Marshal(map[string]string{"function": f.Name, "event": string(e.ID), "type": e.Type})
			if err != nil {
				return nil, engi.Errorf(engi.Internal, "%v", err)
			}
			if _, err := r.opt.Events.Append(ctx, engi.EventSpec{Owner: e.Owner, Subject: e.Subject, Type: engi.EventFunctionLoop, Data: data}); err != nil {
				return nil, err
			}
			continue
		}
		rec := newRun(f, e)
		rec.Key = string(e.ID) + "/" + f.Name
		runs = append(runs, rec)
	}
	return runs, nil
}

// causes returns the names of the functions that have caused an event: those
// whose run is its actor or its subject, or has created its subject, and
// transitively the causes of the events that started these runs.
func (r *Runner) causes(ctx context.Context, e engi.Event) (names []string, err error) {
	seen := map[string]bool{}
	todo := []engi.Event{e}
	for len(todo) > 0 && len(names) < maxCauses {
		e, todo = todo[0], todo[1:]
		ids := []string{e.Actor, e.Subject}
		if e.Subject != "" && e.Subject != string(e.ID) {
			first, err := r.opt.Events.List(ctx, engi.Everyone, engi.EventFilter{Subject: e.Subject, Oldest: true, Limit: 1})
			if err != nil {
				return nil, err
			}
			if len(first) > 0 {
				ids = append(ids, first[0].Actor)
			}
		}
		for _, id := range ids {
			if !strings.HasPrefix(id, "fnr_") || seen[id] {
				continue
			}
			seen[id] = true
			rec, err := r.opt.Store.Run(ctx, engi.Everyone, engi.FunctionRunID(id))
			switch {
			case engi.Is(err, engi.NotFound):
				continue
			case err != nil:
				return nil, err
			}
			names = append(names, rec.Function)
			if rec.Event == "" {
				continue
			}
			switch cause, err := r.opt.Events.Get(ctx, engi.Everyone, rec.Event); {
			case err == nil:
				todo = append(todo, cause)
			case !engi.Is(err, engi.NotFound):
				return nil, err
			}
		}
	}
	return names, nil
}
