package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi"
)

// sandboxes is the Manager as engi.Sandboxes.
type sandboxes struct{ m *Manager }

var _ engi.Sandboxes = sandboxes{}

// live returns owner's live member, if there is one.
func (m *Manager) live(owner engi.Owner, id engi.SandboxID) *member {
	m.mu.Lock()
	b := m.members[id]
	m.mu.Unlock()
	if b == nil || owner != "" && b.record().Owner != owner {
		return nil
	}
	return b
}

func (s sandboxes) Get(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Sandbox, error) {
	if b := s.m.live(owner, id); b != nil {
		return b.record().Sandbox, nil
	}
	rec, err := s.m.opt.Store.GetSandbox(ctx, owner, id)
	return rec.Sandbox, err
}

func (s sandboxes) List(ctx context.Context, owner engi.Owner, _ engi.SandboxFilter) ([]engi.Sandbox, error) {
	s.m.mu.Lock()
	var all []*member
	for _, b := range s.m.members {
		all = append(all, b)
	}
	s.m.mu.Unlock()
	list := []engi.Sandbox{}
	for _, b := range all {
		if rec := b.record(); rec.State != engi.Stopped && (owner == "" || rec.Owner == owner) {
			list = append(list, rec.Sandbox)
		}
	}
	slices.SortFunc(list, func(a, b engi.Sandbox) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Stop ends the run that uses the sandbox with cause cancelled, or takes the
// sandbox out of its pool.
func (s sandboxes) Stop(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	m := s.m
	b := m.live(owner, id)
	if b == nil {
		_, err := m.opt.Store.GetSandbox(ctx, owner, id)
		return err // it is gone already, or not owner's
	}
	m.stock.Lose(b.key, b, time.Now())
	b.mu.Lock()
	r := b.run
	b.mu.Unlock()
	if r != nil {
		r.stop(engi.CauseCancelled)
	}
	m.stock.Hurry(b)
	select {
	case <-b.gone:
		return nil
	case <-m.life.Done():
		return errStopping
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "stop sandbox %s: %v", id, context.Cause(ctx)).
			WithRemedy("it is being destroyed: look again in a moment")
	}
}

// Sandboxes that live on their own are not served yet.
var errNoLife = engi.Errorf(engi.Unsupported, "this node runs executions only").WithRemedy("send the program to /v1/executions")

func (s sandboxes) Create(context.Context, engi.SandboxSpec) (engi.Sandbox, error) {
	return engi.Sandbox{}, errNoLife
}

func (s sandboxes) Update(context.Context, engi.Owner, engi.SandboxID, engi.SandboxUpdate) (engi.Sandbox, error) {
	return engi.Sandbox{}, errNoLife
}

func (s sandboxes) Enter(context.Context, engi.Owner, engi.SandboxID) (engi.Guest, func(), error) {
	return nil, nil, errNoLife
}

func (s sandboxes) Samples(context.Context, engi.Owner, engi.SandboxID, time.Time, time.Time) ([]engi.Sample, error) {
	return nil, errNoLife
}
