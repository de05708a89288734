package script

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/engi-dev/engi/internal/engi"
)

// An invocation is the state of a run for host functions: its owner, and the sandbox of
// its session from the first call that needs it to the end of the run.
type invocation struct {
	spec     engi.ScriptSpec
	sessions Sessions
	session  *engi.Session // session of the run; nil means none
	calls    atomic.Int64

	mu    sync.Mutex // held while the sandbox starts, so that calls share one
	guest engi.Guest
	leave func()
}

// newInvocation returns an invocation with the session that spec names.
func (r *Runner) newInvocation(ctx context.Context, spec engi.ScriptSpec) (*invocation, error) {
	v := &invocation{spec: spec, sessions: r.o.Sessions}
	if spec.Session == "" {
		return v, nil
	}
	s, err := r.o.Sessions.Get(ctx, spec.Owner.Reach(), spec.Session)
	if err != nil {
		return nil, err
	}
	if s.State == engi.SessionTerminated {
		return nil, engi.Errorf(engi.Conflict, "session %s has ended", s.ID).WithRemedy("create another, or leave 'session' out")
	}
	v.session = &s
	return v, nil
}

func (v *invocation) sandbox(ctx context.Context) (engi.Guest, error) {
	if v.session == nil {
		return nil, engi.Errorf(engi.Unsupported, "this script does not belong to a session").WithRemedy("name one in 'session'")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.guest == nil {
		g, release, err := v.sessions.Enter(ctx, v.spec.Owner.Reach(), string(v.session.ID))
		if err != nil {
			return nil, err
		}
		v.guest, v.leave = g, release
	}
	return v.guest, nil
}

// release releases the sandbox. No call may be in progress.
func (v *invocation) release() {
	if v.leave != nil {
		v.leave()
	}
}
