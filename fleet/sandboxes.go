package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/engi-dev/engi"
)

// sandboxes is the Manager as engi.Sandboxes.
type sandboxes struct{ m *Manager }

var _ engi.Sandboxes = sandboxes{}

// live returns owner's live member, if there is one that no box lives in.
func (m *Manager) live(owner engi.Owner, id engi.SandboxID) *instance {
	m.mu.Lock()
	b := m.members[id]
	m.mu.Unlock()
	if b == nil || b.tenant() != nil || owner != "" && b.record().Owner != owner {
		return nil
	}
	return b
}

func (s sandboxes) Create(ctx context.Context, spec engi.SandboxSpec) (engi.Sandbox, error) {
	return s.m.create(ctx, spec)
}

func (s sandboxes) Get(ctx context.Context, owner engi.Owner, id engi.SandboxID) (engi.Sandbox, error) {
	if x := s.m.boxOf(owner, id); x != nil {
		return x.record().Sandbox, nil
	}
	if b := s.m.live(owner, id); b != nil {
		return b.record().Sandbox, nil
	}
	rec, err := s.m.opt.Store.GetSandbox(ctx, owner, id)
	return rec.Sandbox, err
}

const (
	listLimit = 100    // of a filter without one
	mostEnded = 10_000 // stopped sandboxes that lists know of
)

func (s sandboxes) List(ctx context.Context, owner engi.Owner, f engi.SandboxFilter) ([]engi.Sandbox, error) {
	m := s.m
	var recs []SandboxRecord
	m.mu.Lock()
	boxes, members := slices.Collect(maps.Values(m.boxes)), slices.Collect(maps.Values(m.members))
	m.mu.Unlock()
	for _, x := range boxes {
		recs = append(recs, x.record())
	}
	for _, b := range members {
		if b.tenant() == nil {
			recs = append(recs, b.record())
		}
	}
	if slices.Contains(f.States, engi.Stopped) {
		ended, err := m.opt.Store.EndedSandboxes(ctx, owner, mostEnded)
		if err != nil {
			return nil, err
		}
		recs = append(recs, ended...)
	}
	order := func(a, b engi.Sandbox) int {
		c := cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
		if f.Oldest {
			return -c
		}
		return c
	}
	var after engi.Sandbox
	if f.After != "" {
		var err error
		if after, err = s.Get(ctx, owner, f.After); err != nil {
			return nil, engi.Errorf(engi.Invalid, "the page begins after a sandbox that is not known any more: %w", err).
				WithRemedy("begin again with the first page")
		}
	}
	list := []engi.Sandbox{}
	for _, rec := range recs {
		if (owner == "" || rec.Owner == owner) && passes(rec, f) && (f.After == "" || order(after, rec.Sandbox) < 0) {
			list = append(list, rec.Sandbox)
		}
	}
	slices.SortFunc(list, order)
	list = slices.CompactFunc(list, func(a, b engi.Sandbox) bool { return a.ID == b.ID }) // one may have stopped meanwhile
	limit := cmp.Or(f.Limit, listLimit)
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, nil
}

// passes reports whether a record is one of those f selects.
func passes(rec SandboxRecord, f engi.SandboxFilter) bool {
	switch {
	case len(f.States) == 0 && rec.State == engi.Stopped,
		len(f.States) > 0 && !slices.Contains(f.States, rec.State),
		f.Owned && !rec.Made,
		f.Template != "" && rec.Template != f.Template && rec.Digest != f.Template,
		rec.Created.Before(f.Since):
		return false
	}
	for k, v := range f.Metadata {
		if have, ok := rec.Metadata[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func (s sandboxes) Update(ctx context.Context, owner engi.Owner, id engi.SandboxID, u engi.SandboxUpdate) (engi.Sandbox, error) {
	m := s.m
	x := m.boxOf(owner, id)
	if x == nil {
		return engi.Sandbox{}, m.whyNoBox(ctx, owner, id)
	}
	if err := m.checkUpdate(u); err != nil {
		return engi.Sandbox{}, err
	}
	rec, err := m.update(ctx, x, u)
	if err != nil {
		return engi.Sandbox{}, err
	}
	m.stirTime()
	return rec.Sandbox, nil
}

// update changes what u names. A change of the network waits for moves of the
// box, which take the policy along.
func (m *Manager) update(ctx context.Context, x *sandbox, u engi.SandboxUpdate) (SandboxRecord, error) {
	if u.Network == nil {
		return m.amend(ctx, x, u)
	}
	err := m.perform(ctx, x, func(ctx context.Context) error {
		was := x.record().Network
		if _, err := m.amend(ctx, x, u); err != nil {
			return err
		}
		inForce, err := m.enforce(ctx, x)
		if inForce {
			return err
		}
		// The one before still is.
		if _, back := m.edit(ctx, x, func(r *SandboxRecord) error { r.Network = was; return nil }); back != nil {
			m.log.Error("record the network of a sandbox", "sandbox", x.id, "error", back)
		}
		return err
	})
	return x.record(), err
}

// amend changes what u names in the record.
func (m *Manager) amend(ctx context.Context, x *sandbox, u engi.SandboxUpdate) (SandboxRecord, error) {
	return m.edit(ctx, x, func(r *SandboxRecord) error {
		switch {
		case r.State == engi.Stopping || r.State == engi.Stopped:
			return x.stopped()
		case (u.Timeout != nil || u.Extend != nil) && r.State != engi.Running:
			return engi.Errorf(engi.Conflict, "sandbox %s is %s: it has no deadline", x.id, r.State).WithRemedy("resume it, with the timeout it shall have")
		}
		now := time.Now().UTC()
		if u.Lifetime != nil {
			l, err := m.checkLifetime(*u.Lifetime)
			if err != nil {
				return err
			}
			r.Lifetime = l
		}
		last := r.Started.Add(r.Lifetime.Max)
		if u.Timeout != nil {
			r.Deadline = earlier(now.Add(*u.Timeout), last)
		}
		if u.Extend != nil {
			if d := earlier(now.Add(*u.Extend), last); d.After(r.Deadline) {
				r.Deadline = d
			}
		}
		if u.Metadata != nil {
			r.Metadata = *u.Metadata
		}
		if u.Network != nil {
			r.Network = *u.Network
		}
		if u.Ports != nil {
			r.Ports = *u.Ports
		}
		if u.Notes != nil {
			r.Notes = *u.Notes
		}
		return nil
	})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (m *Manager) checkUpdate(u engi.SandboxUpdate) error {
	for _, d := range []*time.Duration{u.Timeout, u.Extend} {
		if d != nil && (*d < 0 || *d > m.opt.Lifetime.Max) {
			return engi.Errorf(engi.Invalid, "a timeout of %v is not between 0 and %v", *d, m.opt.Lifetime.Max)
		}
	}
	if u.Metadata != nil {
		if err := checkMetadata(*u.Metadata); err != nil {
			return err
		}
	}
	if u.Network != nil {
		if err := m.checkNetwork(*u.Network); err != nil {
			return err
		}
	}
	if u.Ports != nil {
		if err := checkPorts(*u.Ports); err != nil {
			return err
		}
	}
	if u.Notes != nil {
		return checkNotes(*u.Notes)
	}
	return nil
}

// Stop ends a sandbox, or the run that uses it, with cause cancelled, or
// takes it out of its pool.
func (s sandboxes) Stop(ctx context.Context, owner engi.Owner, id engi.SandboxID) error {
	m := s.m
	if x := m.boxOf(owner, id); x != nil {
		err := m.perform(ctx, x, func(ctx context.Context) error {
			err := m.finishBox(ctx, x, engi.CauseCancelled)
			if err != nil {
				x.condemn(engi.CauseCancelled)
				m.stirTime()
			}
			return err
		})
		select {
		case <-x.over: // somebody else was faster
			return nil
		default:
			return err
		}
	}
	b := m.live(owner, id)
	if b == nil {
		_, err := m.opt.Store.GetSandbox(ctx, owner, id)
		return err // it is gone already, or not owner's
	}
	m.stock.Discard(b.key, b, time.Now())
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
