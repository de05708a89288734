package workflow

import (
	"context"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/engi-dev/engi"
)

// A schedule says when the next tick after a time is.
type schedule struct{ cron.Schedule }

// parseCron reads minute, hour, day of month, month and day of week, in UTC.
// It reports Invalid.
func parseCron(spec string) (schedule, error) {
	bad := func(why any) error {
		return engi.Errorf(engi.Invalid, "cron %.80q: %v", spec, why).WithRemedy("write minute, hour, day of month, month and day of week, like 30 3 * * 1-5; times are in UTC")
	}
	if len(spec) > 200 || strings.ContainsAny(spec, "=@") || len(strings.Fields(spec)) != 5 {
		return schedule{}, bad("it does not have five fields")
	}
	s, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("TZ=UTC " + spec)
	if err != nil {
		return schedule{}, bad(err)
	}
	if s.Next(time.Now()).IsZero() {
		return schedule{}, bad("there is no such day")
	}
	return schedule{s}, nil
}

// last returns the last tick after since and up to now; zero if there is none.
func (s schedule) last(since, now time.Time) (tick time.Time) {
	for t := s.Next(since); !t.IsZero() && !t.After(now); t = s.Next(t) {
		tick = t
	}
	return tick
}

const tickFormat = "2006-01-02T15:04Z"

// wind makes up for ticks that were missed while nobody was here.
func (r *Runner) startMissed(ctx context.Context) error {
	for name, s := range r.schedules {
		runs, err := r.opt.Store.Runs(ctx, "", Filter{FunctionFilter: engi.FunctionFilter{Function: name, Limit: 1}, Scheduled: true})
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

// untilTick is the wait until the next tick of any clock after now.
func (r *Runner) untilNext(now time.Time) time.Duration {
	wait := 24 * time.Hour
	for _, s := range r.schedules {
		if t := s.Next(now); !t.IsZero() {
			wait = min(wait, t.Sub(now))
		}
	}
	return wait
}

// tick starts what became due since the last look: the last tick only, if the
// machine has slept.
func (r *Runner) startDue(ctx context.Context, since, now time.Time) {
	for name, s := range r.schedules {
		if due := s.last(since, now); !due.IsZero() {
			r.startScheduled(ctx, name, due)
		}
	}
}

// strike starts the run of one tick, unless it was started before.
func (r *Runner) startScheduled(ctx context.Context, function string, tick time.Time) {
	f := r.functions[function]
	rec := Record{
		Key: function + "@" + tick.UTC().Format(tickFormat),
		FunctionRun: engi.FunctionRun{
			ID: engi.NewFunctionRunID(), Owner: f.Owner, Function: function, State: engi.FunctionQueued, Created: time.Now().UTC(),
		},
	}
	err := r.checkQueue(1)
	if err == nil {
		err = r.opt.Store.Put(ctx, rec)
	}
	if err == nil {
		r.enqueue(rec)
	}
	if err != nil && engi.KindOf(err) != engi.Conflict && ctx.Err() == nil {
		r.opt.Log.ErrorContext(ctx, "start a function at its time", "function", function, "tick", tick, "error", err)
	}
}
