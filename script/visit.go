package script

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/engi-dev/engi"
)

// A visit is one run as host functions see it: whose it is, and the sandbox of
// its session from the first call that wants it until the run ends.
type visit struct {
	spec     engi.ScriptSpec
	sessions Sessions
	session  *engi.Session // nil for none
	calls    atomic.Int64

	mu      sync.Mutex // held while the sandbox starts: others wait for the same one
	guest   engi.Guest
	release func()
}

// visit finds the session that spec names.
func (r *Runner) visit(ctx context.Context, spec engi.ScriptSpec) (*visit, error) {
	v := &visit{spec: spec, sessions: r.o.Sessions}
	if spec.Session == "" {
		return v, nil
	}
	s, err := r.o.Sessions.Get(ctx, spec.Owner, spec.Session)
	if err != nil {
		return nil, err
	}
	if s.State == engi.SessionTerminated {
		return nil, engi.Errorf(engi.Conflict, "session %s is over", s.ID).WithRemedy("create another, or leave 'session' out")
	}
	v.session = &s
	return v, nil
}

func (v *visit) sandbox(ctx context.Context) (engi.Guest, error) {
	if v.session == nil {
		return nil, engi.Errorf(engi.Unsupported, "this script is not part of a session").WithRemedy("name one in 'session'")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.guest == nil {
		g, release, err := v.sessions.Enter(ctx, v.spec.Owner, string(v.session.ID))
		if err != nil {
			return nil, err
		}
		v.guest, v.release = g, release
	}
	return v.guest, nil
}

// end lets the sandbox go. No call is under way any more.
func (v *visit) end() {
	if v.release != nil {
		v.release()
	}
}
