package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session/deno"
)

func (m *Manager) checkCode(spec *engi.CodeSpec) error {
	if spec.Code == "" {
		return engi.Errorf(engi.Invalid, "there is no code to run")
	}
	if len(spec.Code) > deno.MaxCode {
		return engi.TooLarge("the code has %d bytes, the maximum is %d", len(spec.Code), deno.MaxCode).
			WithRemedy("write modules into /workspace and import them")
	}
	switch spec.Language {
	case "", engi.TypeScript, engi.JavaScript:
	default:
		return engi.Errorf(engi.Invalid, "sessions do not run %.40s", spec.Language).
			WithRemedy("use typescript or javascript, or start a process in the session's sandbox")
	}
	limit := m.opt.Defaults.Timeout
	if spec.Timeout < 0 || spec.Timeout > limit {
		return engi.Errorf(engi.Invalid, "a timeout of %v is not between 0 and %v", spec.Timeout, limit).
			WithRemedy("ask for less, or raise sandbox.timeout_seconds in the node's configuration")
	}
	spec.Timeout = cmp.Or(spec.Timeout, limit)
	return nil
}

// RunCode implements [engi.Sessions].
func (m *Manager) RunCode(ctx context.Context, viewer engi.Viewer, idOrName string, spec engi.CodeSpec, out func(engi.Chunk)) (res engi.CodeResult, err error) {
	defer engi.Annotate(&err, "run code in session %.140s", idOrName)
	if err := m.checkCode(&spec); err != nil {
		return res, err
	}
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return res, err
	}
	began := time.Now()
	unlock, err := live.waitTurn(ctx)
	if err != nil {
		return res, err
	}
	defer unlock()
	queued := time.Since(began)
	l, err := m.enter(ctx, live)
	if err != nil {
		return res, err
	}
	sandboxAlive := false
	defer func() {
		l.endUse()
		// The standby process starts before the sandbox is left, because the sandbox cannot
		// hibernate until then.
		if !sandboxAlive || live.record().Workspace != "" || !m.spawn(func(ctx context.Context) {
			defer l.leaveSandbox()
			m.startStandby(ctx, live, l)
		}) {
			l.leaveSandbox()
		}
	}()
	res, err = m.run(ctx, live, l, spec, out)
	res.Sandbox, res.BootTime, res.QueueTime = l.sandbox, l.booted, queued
	if err != nil {
		if !engi.Is(err, engi.Unavailable) || !m.explainLoss(ctx, l.sandbox, &res) {
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
	sandboxAlive = res.Error == nil || res.Error.Cause != engi.CauseSandboxLost
	return res, nil
}

// waitTurn waits for the session's codeLock.
func (live *liveSession) waitTurn(ctx context.Context) (unlock func(), err error) {
	live.mu.Lock()
	if live.waiting >= maxWaiting {
		n := live.waiting
		live.mu.Unlock()
		return nil, engi.Errorf(engi.Exhausted, "%d runs are already queued in this session", n).
			WithRemedy("send fewer at once, or use another session").WithRetry(engi.Retry{AfterMillis: 1000, Position: n + 1})
	}
	live.waiting++
	live.mu.Unlock()
	defer func() {
		live.mu.Lock()
		live.waiting--
		live.mu.Unlock()
	}()
	return live.codeLock.Acquire(ctx, "session")
}

// run runs code in the standby process, or in a new one if there is none or
// the code needs an environment of its own.
func (m *Manager) run(ctx context.Context, live *liveSession, l *lease, spec engi.CodeSpec, out func(engi.Chunk)) (engi.CodeResult, error) {
	q := deno.Request{Code: spec.Code, Language: spec.Language, Timeout: spec.Timeout}
	if len(spec.Env) == 0 {
		if r := live.takeStandby(l.sandbox); r != nil {
			res, err := r.Run(ctx, q, out)
			if !errors.Is(err, deno.ErrStale) {
				return res, err
			}
		}
	}
	opt := denoOptions(live.record(), l)
	opt.Env = maps.Clone(spec.Env)
	r, err := deno.Start(ctx, l.guest, opt)
	if err == nil && live.hasLeft(l.sandbox) {
		if err := r.Kill(ctx); err != nil {
			m.opt.Log.WarnContext(ctx, "end code in a workspace that its session has left", "session", live.id, "error", err)
		}
		return engi.CodeResult{}, engi.Errorf(engi.Unavailable, "the session was released before the code ran").WithRemedy("run it again, if the session has not ended")
	}
	if err != nil {
		if engi.Is(err, engi.NotFound) {
			err = engi.Errorf(engi.Unsupported, "the template of the session's sandbox has no Deno: %w", err).WithRemedy("use the template base, or a template based on it")
		}
		return engi.CodeResult{}, err
	}
	return r.Run(ctx, q, out)
}

// hasLeft reports whether a session in a workspace has left a sandbox, in which none of its code may
// start any more. Other sandboxes end with their sessions.
func (live *liveSession) hasLeft(id engi.SandboxID) bool {
	r := live.record()
	return r.Workspace != "" && (!r.Ended.IsZero() || r.Sandbox != id)
}

// lossTime is the maximum time for which a dead sandbox may appear to be running.
const lossTime = time.Second

// explainLoss reports the loss of a sandbox as the result of the code, because the code
// most likely caused it. It returns false if the sandbox is not lost.
func (m *Manager) explainLoss(ctx context.Context, id engi.SandboxID, res *engi.CodeResult) bool {
	get := func() (engi.Sandbox, error) {
		return m.opt.Sandboxes.Get(context.WithoutCancel(ctx), engi.Everyone, id)
	}
	deadline := time.Now().Add(lossTime)
	sandbox, err := get()
	for err == nil && sandbox.State != engi.Stopped && time.Now().Before(deadline) {
		// The guest ends a moment before the sandbox's state and cause of the end are known.
		time.Sleep(lossTime / 20)
		sandbox, err = get()
	}
	if err == nil && sandbox.State != engi.Stopped && sandbox.State != engi.Stopping {
		return false
	}
	cause := engi.CauseSandboxLost
	message := "the session's sandbox died while the code ran; its files are kept"
	if sandbox.End == engi.CauseMemory || sandbox.End == engi.CauseDisk {
		cause = sandbox.End
		message = fmt.Sprintf("the session's sandbox was ended: %s; its files are kept", sandbox.End.Remedy())
	}
	res.OK, res.Value = false, nil
	res.Error = &engi.CodeError{Cause: cause, Message: message}
	return true
}

// denoOptions returns the options of Deno processes in a session's sandbox.
func denoOptions(r Record, l *lease) deno.Options {
	names := slices.Collect(maps.Keys(r.Env))
	for _, g := range l.network.Grants {
		if g.Env != "" {
			names = append(names, g.Env)
		}
	}
	return deno.Options{Session: r.ID, Dir: WorkDir, Config: l.config, Network: l.network, Names: names, Memory: l.size.Memory}
}

// A standbyProcess is a started Deno process that waits for the next piece of code, so that the code
// need not wait for the start.
type standbyProcess struct {
	runner  *deno.Runner
	sandbox engi.SandboxID
}

// startStandby starts a standby process unless there is one.
func (m *Manager) startStandby(ctx context.Context, live *liveSession, l *lease) {
	live.mu.Lock()
	have := live.standby != nil && live.standby.sandbox == l.sandbox
	live.mu.Unlock()
	if have {
		return
	}
	r, err := deno.Start(ctx, l.guest, denoOptions(live.record(), l))
	if err != nil {
		// The next piece of code starts its own process.
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			m.opt.Log.DebugContext(ctx, "start the standby process of a session", "session", live.id, "error", err)
		}
		return
	}
	live.mu.Lock()
	live.standby = &standbyProcess{r, l.sandbox} // an earlier process has died with its sandbox
	live.mu.Unlock()
}

// takeStandby returns the standby process in a sandbox; nil if there is none.
func (live *liveSession) takeStandby(id engi.SandboxID) *deno.Runner {
	live.mu.Lock()
	defer live.mu.Unlock()
	s := live.standby
	if s == nil || s.sandbox != id {
		return nil
	}
	live.standby = nil
	return s.runner
}
