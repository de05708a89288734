package function

import (
	"context"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/engi-dev/engi/internal/engi"
)

// A schedule is a parsed cron expression.
type schedule struct{ cron.Schedule }

// parseCron parses minute, hour, day of month, month and day of week, in UTC. It
// reports Invalid.
func parseCron(spec string) (schedule, error) {
	bad := func(reason any) error {
		return engi.Errorf(engi.Invalid, "cron %.80q: %v", spec, reason).WithRemedy("write minute, hour, day of month, month and day of week, like 30 3 * * 1-5; times are in UTC")
	}
	if len(spec) > 200 || strings.ContainsAny(spec, "=@") || len(strings.Fields(spec)) != 5 {
		return schedule{}, bad("it does not have five fields")
	}
	s, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("TZ=UTC " + spec)
	if err != nil {
		return schedule{}, bad(err)
	}
	if s.Next(time.Now()).IsZero() {
		return schedule{}, bad("it never occurs")
	}
	return schedule{s}, nil
}

// last returns the last scheduled time after since and up to now; zero if there
// is none.
func (s schedule) last(since, now time.Time) (last time.Time) {
	for t := s.Next(since); !t.IsZero() && !t.After(now); t = s.Next(t) {
		last = t
	}
	return last
}

// keyFormat is the format of a scheduled time in [Record.Key].
const keyFormat = "2006-01-02T15:04Z"

// startMissed starts each function that its schedule has started before and whose last scheduled
// time passed while no node was running.
func (r *Runner) startMissed(ctx context.Context) error {
	for name, s := range r.schedules {
		runs, err := r.opt.Store.Runs(ctx, engi.Everyone, Filter{FunctionFilter: engi.FunctionFilter{Function: name, Limit: 1}, Scheduled: true})
		if err != nil {
			return err
		}
		if len(runs) == 0 {
			continue
		}
		if missed := s.last(runs[0].Created, time.Now()); !missed.IsZero() {
			r.startScheduled(ctx, name, missed)
		}
	}
	return nil
}

// untilNext returns the time from now to the next scheduled time of any
// function.
func (r *Runner) untilNext(now time.Time) time.Duration {
	wait := 24 * time.Hour
	for _, s := range r.schedules {
		if t := s.Next(now); !t.IsZero() {
			wait = min(wait, t.Sub(now))
		}
	}
	return wait
}

// startDue starts the functions that became due after since; only once, if several
// scheduled times of one have passed, for example while the machine was suspended.
func (r *Runner) startDue(ctx context.Context, since, now time.Time) {
	for name, s := range r.schedules {
		if due := s.last(since, now); !due.IsZero() {
			r.startScheduled(ctx, name, due)
		}
	}
}

// startScheduled starts a function's run for a scheduled time, unless the run was
// started before.
func (r *Runner) startScheduled(ctx context.Context, function string, at time.Time) {
	f := r.functions[function]
	rec := Record{
		Key: function + "@" + at.UTC().Format(keyFormat),
		FunctionRun: engi.FunctionRun{
			ID: engi.NewFunctionRunID(), Owner: f.Owner, Function: function, State: engi.FunctionQueued, Created: time.Now().UTC(),
		},
	}
	err := r.checkQueue(1)
	if err == nil {
		rec.Position, err = r.opt.Events.Last(ctx)
	}
	if err == nil {
		err = r.opt.Store.Put(ctx, rec)
	}
	if err == nil {
		r.enqueue(rec)
	}
	if err != nil && !engi.Is(err, engi.Conflict) && ctx.Err() == nil {
		r.opt.Log.ErrorContext(ctx, "start a scheduled function", "function", function, "at", at, "error", err)
	}
}
