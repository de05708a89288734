package workflow

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// maxGenerations bounds how many functions may start each other in a row.
const maxGenerations = 32

// follow starts the functions that are bound to events that engi appends
// itself, from where the log was read last, until ctx ends.
func (o *Runner) follow(ctx context.Context) (*sync.WaitGroup, error) {
	var following sync.WaitGroup
	var types []string
	for _, t := range engi.EventTypes() {
		if len(o.bound(t)) > 0 {
			types = append(types, t)
		}
	}
	if len(types) == 0 {
		return &following, nil
	}
	after, err := o.opt.Store.Cursor(ctx)
	if err != nil {
		return nil, err
	}
	if after < 0 { // what was before the first function is nobody's business
		if after, err = o.opt.Events.Last(ctx); err != nil {
			return nil, err
		}
		if _, err := o.opt.Store.Advance(ctx, after, nil); err != nil {
			return nil, err
		}
	}
	following.Go(func() {
		for ctx.Err() == nil {
			for e, err := range o.opt.Events.Follow(ctx, "", engi.EventFilter{Types: types, After: after}) {
				if err == nil && e.Type != engi.EventsDropped {
					err = o.trigger(ctx, e)
				}
				if err != nil {
					if ctx.Err() == nil {
						o.opt.Log.WarnContext(ctx, "start functions on events; it is tried again", "after", after, "error", err)
						sleep(ctx, time.Second)
					}
					break
				}
				after = e.Seq
			}
		}
	})
	return &following, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// trigger starts the functions that are bound to an event of engi's own, once,
// but none that has led to the event.
func (o *Runner) trigger(ctx context.Context, e engi.Event) error {
	line, err := o.line(ctx, e)
	if err != nil {
		return err
	}
	var runs []Record
	for _, f := range o.bound(e.Type) {
		if slices.Contains(line, f.Name) {
			o.opt.Log.WarnContext(ctx, "a function would start itself: it does not", "function", f.Name, "event", e.Type, "subject", e.Subject)
			data, err := json.Marshal(map[string]string{"function": f.Name, "event": string(e.ID), "type": e.Type})
			if err != nil {
				return engi.Errorf(engi.Internal, "%v", err)
			}
			if _, err := o.opt.Events.Append(ctx, engi.EventSpec{Owner: e.Owner, Subject: e.Subject, Type: engi.EventFunctionLoop, Data: data}); err != nil {
				return err
			}
			continue
		}
		r := newRun(f, e)
		r.Key = string(e.ID) + "/" + f.Name
		runs = append(runs, r)
	}
	for o.full(len(runs)) != nil {
		if sleep(ctx, time.Second); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	runs, err = o.opt.Store.Advance(ctx, e.Seq, runs)
	if err == nil {
		o.enqueue(runs...)
	}
	return err
}

// line names the functions that have led to an event: the one whose run caused
// it, made what it is about, or is what it is about, and those before it.
func (o *Runner) line(ctx context.Context, e engi.Event) (names []string, err error) {
	seen := map[string]bool{}
	todo := []engi.Event{e}
	for len(todo) > 0 && len(names) < maxGenerations {
		e, todo = todo[0], todo[1:]
		causes := []string{e.Actor, e.Subject}
		if e.Subject != "" && e.Subject != string(e.ID) {
			first, err := o.opt.Events.List(ctx, "", engi.EventFilter{Subject: e.Subject, Oldest: true, Limit: 1})
			if err != nil {
				return nil, err
			}
			if len(first) > 0 {
				causes = append(causes, first[0].Actor)
			}
		}
		for _, id := range causes {
			if !strings.HasPrefix(id, "fnr_") || seen[id] {
				continue
			}
			seen[id] = true
			r, err := o.opt.Store.Run(ctx, "", engi.FunctionRunID(id))
			switch {
			case err != nil && engi.KindOf(err) == engi.NotFound:
				continue
			case err != nil:
				return nil, err
			}
			names = append(names, r.Function)
			if r.Event == "" {
				continue
			}
			switch cause, err := o.opt.Events.Get(ctx, "", r.Event); {
			case err == nil:
				todo = append(todo, cause)
			case engi.KindOf(err) != engi.NotFound:
				return nil, err
			}
		}
	}
	return names, nil
}
