package fleet

import (
	"context"

	"github.com/engi-dev/engi"
)

func (s sandboxes) Enter(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Guest, func(), error) {
	m := s.m
	for {
		x := m.boxOf(owner, id)
		if x == nil {
			return nil, nil, m.whyNoBox(ctx, owner, id)
		}
		if g, release, ok := x.enter(); ok {
			return g, release, nil
		}
		// It is being moved, or asleep. Whoever gets the turn first wakes it;
		// the others find it awake.
		if err := x.take(ctx); err != nil {
			return nil, nil, err
		}
		switch rec := x.record(); rec.State {
		case engi.Running:
			if g, release, ok := x.enter(); ok {
				x.leave()
				return g, release, nil
			}
			x.leave()
			return nil, nil, engi.Errorf(engi.Unavailable, "sandbox %s does not answer", id).
				WithRemedy("try again in a moment; if that does not help, stop it")
		case engi.Paused, engi.Hibernated:
			if !rec.Lifetime.AutoResume {
				x.leave()
				return nil, nil, engi.Errorf(engi.Conflict, "sandbox %s is %s", id, rec.State).WithRemedy("resume it first")
			}
			err := m.performTaken(ctx, x, func(ctx context.Context) error {
				return m.rouse(ctx, x, 0, false, "use")
			})
			if err != nil {
				return nil, nil, err
			}
		default:
			x.leave()
			return nil, nil, engi.Errorf(engi.Unavailable, "sandbox %s is %s", id, rec.State).WithRemedy("look at it again in a moment")
		}
	}
}

// whyNoBox explains why a sandbox cannot be used by its owner directly.
func (m *Manager) whyNoBox(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	rec, err := m.opt.Store.GetSandbox(ctx, owner, id)
	switch {
	case err != nil:
		return err
	case rec.State == engi.Stopped || rec.State == engi.Stopping:
		return engi.Errorf(engi.NotFound, "sandbox %s has stopped: %s", id, rec.End).WithRemedy("create another")
	case rec.Made:
		return errNotServing
	}
	return engi.Errorf(engi.Conflict, "sandbox %s belongs to a pool or an execution", id).WithRemedy("create a sandbox of your own")
}
