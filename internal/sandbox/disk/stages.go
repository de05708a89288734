package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// A stage describes a built-in template that is built in two parts, so that programs
// can run before all of it is built.
type stage struct {
	first string          // built-in template that is the first part and the base of the rest
	usual []time.Duration // usual times of the steps of the rest on two processors
}

var stages = map[string]stage{
	// Most time goes to Go's archive, pip with Node and Deno, and Go's standard library.
	"base": {"base-python", []time.Duration{
		time.Second / 2, 14 * time.Second, time.Second / 2, time.Second / 2, 22 * time.Second, time.Second / 2, 40 * time.Second, 2 * time.Second, 5 * time.Second,
	}},
}

// A completion is the state of Run's build of the rest of a template.
type completion struct {
	began  time.Time
	now    engi.Progress
	since  time.Time // start of the current step
	failed error     // error of the last attempt; nil during an attempt
	again  time.Time // time of the next attempt; valid if failed is set
}

// partial returns the first part of a template that is not complete yet.
func (t *Templates) partial(name string) (engi.Template, bool) {
	s, ok := stages[name]
	if !ok {
		return engi.Template{}, false
	}
	tmpl, err := t.find(s.first)
	if err != nil {
		return engi.Template{}, false
	}
	tmpl.Name, tmpl.Partial = name, true
	return tmpl, true
}

// Incomplete returns the error for a caller that needs more than the first part
// of a template: Unavailable, with the progress of the rest and the time to retry.
func (t *Templates) Incomplete(name string) error {
	t.mu.Lock()
	c, ok := t.completions[name]
	t.mu.Unlock()
	switch {
	case !ok:
		return engi.Errorf(engi.Unavailable, "only the first part of it is built").WithRemedy("run 'engi template build %s'", name)
	case c.failed != nil:
		wait := max(time.Until(c.again), time.Second)
		return engi.Errorf(engi.Unavailable, "only the first part of it is built, and building the rest failed; the next attempt is in %s: %v", seconds(wait), c.failed).
			WithRemedy("look at the reason, or run 'engi template build %s'", name).
			WithRetry(engi.Retry{AfterMillis: wait.Milliseconds()})
	}
	share, left := c.progress(stages[name].usual, time.Now())
	return engi.Errorf(engi.Unavailable, "it is being prepared: %d %% complete, ready in about %s", int(100*share), seconds(left)).
		WithRemedy("ask again after the build; 'engi template build %s' shows its progress and waits", name).
		WithRetry(engi.Retry{AfterMillis: left.Milliseconds()})
}

func seconds(d time.Duration) string {
	return fmt.Sprintf("%d s", int(max(d, time.Second).Seconds()+0.5))
}

// progress returns the finished share of a build, and the time left
// at the speed so far.
func (c completion) progress(usual []time.Duration, at time.Time) (share float64, left time.Duration) {
	var total, done time.Duration
	for i, d := range usual {
		total += d
		switch {
		case i+1 < c.now.Step:
			done += d
		case i+1 == c.now.Step && c.now.Total > 0:
			done += time.Duration(float64(d) * float64(c.now.Done) / float64(c.now.Total))
		case i+1 == c.now.Step:
			done += min(at.Sub(c.since), d*9/10)
		}
	}
	share = min(float64(done)/float64(total), 0.99)
	pace := 1.0
	if done > 5*time.Second { // an earlier speed is meaningless
		pace = min(max(float64(at.Sub(c.began))/float64(done), 0.2), 10)
	}
	return share, max(time.Duration(float64(total-done)*pace), time.Second).Round(time.Second)
}

// completeStages builds the rest of templates whose first part is built, until
// all are complete or ctx ends.
func (t *Templates) completeStages(ctx context.Context) {
	for name := range stages {
		pause := time.Minute
		for ctx.Err() == nil {
			if _, err := t.find(name); err == nil {
				break
			}
			if _, ok := t.partial(name); !ok {
				break // the template was never requested
			}
			began := time.Now()
			t.setCompletion(name, completion{began: began, since: began})
			t.o.Log.InfoContext(ctx, "building the rest of a template", "template", name)
			_, err := t.Build(ctx, name, nil, func(e engi.Progress) { t.advance(name, e) })
			if err == nil || ctx.Err() != nil {
				break
			}
			t.o.Log.ErrorContext(ctx, "build the rest of a template", "template", name, "error", err, "again_in", pause)
			t.setCompletion(name, completion{failed: err, again: time.Now().Add(pause)})
			_ = clock.Sleep(ctx, pause)
			pause = min(2*pause, 30*time.Minute)
		}
		t.mu.Lock()
		delete(t.completions, name)
		t.mu.Unlock()
	}
}

func (t *Templates) setCompletion(name string, c completion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.completions[name] = c
}

// advance records the progress of a build.
func (t *Templates) advance(name string, e engi.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.completions[name]
	if e.Step != c.now.Step {
		c.since = time.Now()
	}
	e.Log = ""
	c.now = e
	t.completions[name] = c
}
