package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxConfirm       = 64
	maxConfirmReason = 500
)

var _ engi.CallDecider = (*Runner)(nil)

// checkConfirm reports Invalid for names that are not valid names of tools.
func checkConfirm(names []string) error {
	if len(names) > maxConfirm {
		return engi.Errorf(engi.Invalid, "there are %d tools to confirm; the limit is %d", len(names), maxConfirm).WithRemedy("use * for all")
	}
	for _, n := range names {
		if n == "" || len(n) > 200 {
			return engi.Errorf(engi.Invalid, "%.80q is no name of a tool to confirm", n)
		}
	}
	return nil
}

// confirms returns a function that reports whether calls of a tool wait for a decision. It reports
// Invalid for a tool that does not exist, because a misspelt name would let calls pass
// without a decision.
func (a *activeRun) confirms(spec engi.AgentSpec, tools []tool.Tool) (func(name string) bool, error) {
	names := slices.Concat(spec.Confirm, a.rec.Spec.Confirm)
	for _, n := range names {
		known := n == "*" || a.runner.tools[n].Name != "" || len(a.missing) > 0 || slices.ContainsFunc(tools, func(t tool.Tool) bool { return t.Name == n })
		if !known {
			return nil, engi.Errorf(engi.Invalid, "there is no tool %.80q to confirm", n).WithRemedy("name tools of the agent, or use * for all")
		}
	}
	all := slices.Contains(names, "*")
	return func(name string) bool {
		// read_result shows only the result of an earlier call.
		return all && name != "read_result" || slices.Contains(names, name)
	}, nil
}

// A question is a call that waits for a decision.
type question struct {
	verdict chan verdict // has a buffer of one
	taken   bool         // a decision was taken; guarded by activeRun.mu
}

// A verdict is a decision on its way to the waiting call.
type verdict struct {
	engi.CallDecision
	stored chan error // has a buffer of one
}

// ask records the calls that wait for a decision and do not have one yet.
func (a *activeRun) ask(ctx context.Context, calls []engi.ToolCall) error {
	a.rec.Waiting = nil
	asked := map[string]*question{}
	for _, c := range calls {
		if a.confirm(c.Name) && a.decision(c.ID) == nil {
			a.rec.Waiting = append(a.rec.Waiting, c)
			asked[c.ID] = &question{verdict: make(chan verdict, 1)}
		}
	}
	a.mu.Lock()
	a.asked = asked
	a.mu.Unlock()
	if len(asked) == 0 {
		return nil
	}
	if err := a.save(ctx); err != nil {
		return err
	}
	for _, c := range a.rec.Waiting {
		a.emit(engi.RunUpdate{Kind: engi.RunWaiting, Call: &c})
	}
	return nil
}

// decision returns the decision on a call of this step; nil if there is none.
func (a *activeRun) decision(call string) *engi.CallDecision {
	if i := slices.IndexFunc(a.rec.Decided, func(d engi.CallDecision) bool { return d.Call == call }); i >= 0 {
		return &a.rec.Decided[i]
	}
	return nil
}

// decide waits for the decision on a call that needs one, and stores it.
// It reports whether the decision is new, so that the call cannot have started
// before. lock guards the record.
func (a *activeRun) decide(ctx context.Context, lock *sync.Mutex, c engi.ToolCall) (d engi.CallDecision, now bool, err error) {
	a.mu.Lock()
	q := a.asked[c.ID]
	a.mu.Unlock()
	if q == nil {
		lock.Lock()
		defer lock.Unlock()
		if d := a.decision(c.ID); d != nil {
			return *d, false, nil
		}
		return engi.CallDecision{Allowed: true}, false, nil // ask has found that the call needs no decision
	}
	select {
	case x := <-q.verdict:
		lock.Lock()
		defer lock.Unlock()
		a.rec.Decided = append(a.rec.Decided, x.CallDecision)
		a.rec.Waiting = slices.DeleteFunc(slices.Clone(a.rec.Waiting), func(w engi.ToolCall) bool { return w.ID == c.ID })
		err := a.save(engi.WithActor(ctx, x.Decider))
		x.stored <- err
		return x.CallDecision, true, err
	case <-ctx.Done():
		return d, false, context.Cause(ctx)
	}
}

// refusal returns the result of a refused call.
func refusal(d engi.CallDecision) tool.Result {
	why := "somebody refused the call"
	if d.Reason != "" {
		why += ": " + d.Reason
	}
	return tool.Failure(engi.Errorf(engi.Denied, "%s", why).WithRemedy("do not repeat the call; do something else, or ask the user"))
}

// Decide implements [engi.CallDecider].
func (r *Runner) Decide(ctx context.Context, viewer engi.Viewer, id engi.RunID, call string, allow bool, reason string) (err error) {
	defer engi.Annotate(&err, "decide on call %.100q of run %s", call, id)
	if len(reason) > maxConfirmReason || !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return engi.Errorf(engi.Invalid, "the reason has more than %d bytes, or characters that are not printable", maxConfirmReason).WithRemedy("write one short line")
	}
	if _, err := r.opt.Store.Get(ctx, viewer, id); err != nil {
		return err
	}
	r.mu.Lock()
	a := r.active[id]
	r.mu.Unlock()
	none := engi.Errorf(engi.Conflict, "it does not wait for a decision").WithRemedy("the field 'waiting' of the run has the waiting calls")
	if a == nil {
		return none
	}
	a.mu.Lock()
	q := a.asked[call]
	waits := q != nil && !q.taken
	if waits {
		q.taken = true
	}
	a.mu.Unlock()
	if !waits {
		return none
	}
	x := verdict{engi.CallDecision{Call: call, Allowed: allow, Reason: reason, Decider: engi.ActorOf(ctx), Time: time.Now().UTC()}, make(chan error, 1)}
	q.verdict <- x
	select {
	case err := <-x.stored:
		return err
	case <-a.done:
		return engi.Errorf(engi.Conflict, "the run has ended").WithRemedy("begin another")
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx)).WithRemedy("look at the run: the decision may already be recorded")
	}
}
