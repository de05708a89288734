package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/session/deno"
)

func (m *Manager) checkCode(spec *engi.CodeSpec) error {
	if spec.Code == "" {
		return engi.Errorf(engi.Invalid, "there is no code to run")
	}
	if len(spec.Code) > deno.MaxCode {
		return engi.Errorf(engi.Invalid, "the code has %d bytes, %d at most", len(spec.Code), deno.MaxCode).
			WithRemedy("write modules into /workspace and import them")
	}
	switch spec.Language {
	case "", engi.TypeScript, engi.JavaScript:
	default:
		return engi.Errorf(engi.Invalid, "sessions run no %.40s", spec.Language).
			WithRemedy("use typescript or javascript, or start a process in the session's sandbox")
	}
	most := m.opt.Defaults.Timeout
	if spec.Timeout < 0 || spec.Timeout > most {
		return engi.Errorf(engi.Invalid, "a timeout of %v is not between 0 and %v", spec.Timeout, most).
			WithRemedy("ask for less, or raise sandbox.timeout_seconds in the node's configuration")
	}
	spec.Timeout = cmp.Or(spec.Timeout, most)
	return nil
}

// RunCode implements [engi.Sessions].
func (m *Manager) RunCode(ctx context.Context, owner engi.Owner, idOrName string, spec engi.CodeSpec, out func(engi.Chunk)) (res engi.CodeResult, err error) {
	defer engi.Annotate(&err, "run code in session %.140s", idOrName)
	if err := m.checkCode(&spec); err != nil {
		return res, err
	}
	live, err := m.find(ctx, owner, idOrName)
	if err != nil {
		return res, err
	}
	began := m.now()
	if err := live.waitTurn(ctx); err != nil {
		return res, err
	}
	defer func() { <-live.codeLock }()
	queued := m.now().Sub(began)
	in, err := m.enter(ctx, live)
	if err != nil {
		return res, err
	}
	again := false
	defer func() {
		in.endUse()
		// The next process starts while the sandbox is known to be there.
		if !again || !m.spawn(func(ctx context.Context) {
			defer in.leaveSandbox()
			m.startStandby(ctx, live, in)
		}) {
			in.leaveSandbox()
		}
	}()
	res, err = m.run(ctx, live, in, spec, out)
	res.Sandbox, res.BootTime, res.QueueTime = in.sandbox, in.booted, queued
	if err != nil {
		if engi.KindOf(err) != engi.Unavailable {
			return res, err
		}
		// The sandbox died under it, most likely of what the code did.
		if e := m.checkLost(ctx, live, in, &res); e != nil {
			return res, err
		}
	}
	outcome := "ok"
	if res.Error != nil {
		if outcome = "failed"; res.Error.Cause != engi.CauseExited {
			outcome = string(res.Error.Cause)
		}
	}
	m.opt.Meter.Ran(outcome, res.Duration)
	again = res.Error == nil || res.Error.Cause != engi.CauseSandboxLost
	return res, nil
}

// wait queues for the session's turn.
func (live *liveSession) waitTurn(ctx context.Context) error {
	live.mu.Lock()
	if live.waiting >= maxWaiting {
		n := live.waiting
		live.mu.Unlock()
		return engi.Errorf(engi.Exhausted, "%d runs wait in this session already", n).
			WithRemedy("send fewer at once, or use another session").WithRetry(engi.Retry{AfterMillis: 1000, Position: n + 1})
	}
	live.waiting++
	live.mu.Unlock()
	defer func() {
		live.mu.Lock()
		live.waiting--
		live.mu.Unlock()
	}()
	return lock(ctx, live.codeLock)
}

// run runs code in the process that waits for it, or in a new one.
func (m *Manager) run(ctx context.Context, live *liveSession, in *lease, spec engi.CodeSpec, out func(engi.Chunk)) (engi.CodeResult, error) {
	q := deno.Request{Code: spec.Code, Language: spec.Language, Timeout: spec.Timeout}
	o := m.options(live, in)
	if len(spec.Env) == 0 {
		if r := live.takeStandby(in.sandbox); r != nil {
			res, err := r.Run(ctx, q, out)
			if !errors.Is(err, deno.ErrStale) {
				return res, err
			}
		}
	}
	o.Env = maps.Clone(spec.Env)
	r, err := deno.Start(ctx, in.guest, o)
	if err != nil {
		if engi.KindOf(err) == engi.NotFound {
			err = engi.Errorf(engi.Unsupported, "the session's template has no Deno: %w", err).WithRemedy("use the template base, or one made from it")
		}
		return engi.CodeResult{}, err
	}
	return r.Run(ctx, q, out)
}

// checkLost turns the loss of a sandbox into an answer; an error if it is not
// lost.
func (m *Manager) checkLost(ctx context.Context, live *liveSession, in *lease, res *engi.CodeResult) error {
	sandbox, err := m.opt.Sandboxes.Get(context.WithoutCancel(ctx), "", in.sandbox)
	if err == nil && sandbox.State != engi.Stopped && sandbox.State != engi.Stopping {
		return engi.Errorf(engi.Conflict, "it lives")
	}
	cause := engi.CauseSandboxLost
	message := "the session's sandbox died under the code; its volume is kept"
	if sandbox.End == engi.CauseMemory || sandbox.End == engi.CauseDisk {
		cause = sandbox.End
		message = fmt.Sprintf("the session's sandbox was ended: %s; its volume is kept", sandbox.End.Remedy())
	}
	res.OK, res.Value = false, nil
	res.Error = &engi.CodeError{Cause: cause, Message: message}
	return nil
}
