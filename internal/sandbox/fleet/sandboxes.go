package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// sandboxes creates, hibernates, copies and ends the sandboxes of owners. It
// implements engi.Sandboxes and engi.Lifecycle, and is safe for concurrent use.
type sandboxes struct {
	*shared
	pools   *pools
	changed chan struct{} // receives when a deadline may have moved earlier

	mu       sync.Mutex                  // guards live and bookings
	live     map[engi.SandboxID]*sandbox // sandboxes that have not stopped
	bookings map[*booking]bool           // bookings of sandboxes being created or woken
	keys     *idempotency.Keys
	quotas   *engi.KeyedSemaphore[[2]string] // locks by owner and quota

	pinning sync.Mutex        // held during I/O; taken before mu
	pinned  map[string]func() // release functions of the templates that snapshots need, by digest; guarded by pinning
}

var (
	_ engi.Sandboxes = (*sandboxes)(nil)
	_ engi.Lifecycle = (*sandboxes)(nil)
)

func newSandboxes(all *shared, p *pools) *sandboxes {
	s := &sandboxes{
		shared:   all,
		pools:    p,
		changed:  make(chan struct{}, 1),
		live:     map[engi.SandboxID]*sandbox{},
		bookings: map[*booking]bool{},
		keys:     idempotency.NewKeys(nil),
		quotas:   engi.NewKeyedSemaphore[[2]string](1),
		pinned:   map[string]func(){},
	}
	p.sandboxDied = s.instanceDied
	return s
}

// get returns owner's live sandbox, or nil if there is none.
func (s *sandboxes) get(viewer engi.Viewer, id engi.SandboxID) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.live[id]
	if sb == nil || !viewer.Sees(sb.owner) {
		return nil
	}
	return sb
}

// find is like get, but returns an error if there is none.
func (s *sandboxes) find(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (*sandbox, error) {
	if sb := s.get(viewer, id); sb != nil {
		return sb, nil
	}
	if s.pools.get(viewer, id) != nil {
		return nil, notYours(id)
	}
	rec, err := s.opt.Store.GetSandbox(ctx, viewer, id)
	switch {
	case err != nil:
		return nil, err
	case rec.State == engi.Stopped || rec.State == engi.Stopping:
		return nil, engi.Errorf(engi.NotFound, "sandbox %s has stopped: %s", id, rec.End).WithRemedy("create another")
	case rec.Made:
		return nil, errNotServing
	}
	return nil, notYours(id)
}

func notYours(id engi.SandboxID) error {
	return engi.Errorf(engi.Conflict, "sandbox %s belongs to a pool or an execution", id).WithRemedy("create a sandbox of your own")
}

// all returns all live sandboxes.
func (s *sandboxes) all() (all []*sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sb := range s.live {
		all = append(all, sb)
	}
	return all
}

func (s *sandboxes) insert(sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[sb.id] = sb
}

func (s *sandboxes) remove(sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[sb.id] == sb {
		delete(s.live, sb.id)
	}
}

// unpin releases all templates.
func (s *sandboxes) unpin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sb := range s.live {
		sb.unpin()
	}
	for _, unpin := range s.pinned {
		unpin()
	}
}

// stopAll ends all sandboxes. Ephemeral nodes call it when they stop.
func (s *sandboxes) stopAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), stopTimeout)
	defer cancel()
	var stops sync.WaitGroup
	for _, sb := range s.all() {
		stops.Go(func() {
			if err := sb.lock(ctx); err != nil {
				return
			}
			defer sb.unlock()
			if err := s.terminate(ctx, sb, engi.CauseCancelled); err != nil {
				s.log.Error("stop sandbox; the next start removes it", "sandbox", sb.id, "error", err)
			}
		})
	}
	stops.Wait()
}

// Get implements engi.Sandboxes.
func (s *sandboxes) Get(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Sandbox, error) {
	if sb := s.get(viewer, id); sb != nil {
		return sb.record().Sandbox, nil
	}
	if inst := s.pools.get(viewer, id); inst != nil {
		return inst.record().Sandbox, nil
	}
	rec, err := s.opt.Store.GetSandbox(ctx, viewer, id)
	return rec.Sandbox, err
}

const (
	listLimit = 100    // limit of a filter without one
	maxEnded  = 10_000 // maximum number of stopped sandboxes that a list reads
)

// List implements engi.Sandboxes.
func (s *sandboxes) List(ctx context.Context, viewer engi.Viewer, f engi.SandboxFilter) ([]engi.Sandbox, error) {
	// Instances come first: one may become a sandbox's, and a sandbox may
	// stop, during the listing.
	recs := map[engi.SandboxID]SandboxRecord{}
	s.pools.each(func(rec SandboxRecord) { recs[rec.ID] = rec })
	for _, sb := range s.all() {
		recs[sb.id] = sb.record()
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
		if after, err = s.Get(ctx, viewer, f.After); err != nil {
			return nil, engi.Errorf(engi.Invalid, "the page of the list begins after a sandbox that no longer exists: %w", err).
				WithRemedy("start again with the first page")
		}
	}
	limit := cmp.Or(f.Limit, listLimit)
	if slices.Contains(f.States, engi.Stopped) {
		if err := s.addEnded(ctx, viewer, f, after, limit, recs); err != nil {
			return nil, err
		}
	}
	list := []engi.Sandbox{}
	for _, rec := range recs {
		if viewer.Sees(rec.Owner) && matches(rec, f) && (f.After == "" || order(after, rec.Sandbox) < 0) {
			list = append(list, rec.Sandbox)
		}
	}
	slices.SortFunc(list, order)
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, nil
}

// addEnded adds stopped sandboxes that follow after to recs, until limit of them
// are selected by f, so that the cost of a page does not depend on the number of sandboxes.
func (s *sandboxes) addEnded(ctx context.Context, viewer engi.Viewer, f engi.SandboxFilter, after engi.Sandbox, limit int, recs map[engi.SandboxID]SandboxRecord) error {
	from := SandboxRecord{Sandbox: after}
	if f.Oldest { // oldest first of the last sandboxes
		from, limit = SandboxRecord{}, -1
	}
	for looked, selected := 0, 0; looked < maxEnded && (limit <= 0 || selected < limit); {
		n := min(maxEnded-looked, 1000)
		if limit > 0 {
			n = min(n, max(limit, listLimit))
		}
		ended, err := s.opt.Store.EndedSandboxes(ctx, viewer, from, n)
		if err != nil {
			return err
		}
		for _, rec := range ended {
			recs[rec.ID] = rec
			if matches(rec, f) {
				selected++
			}
		}
		if looked += len(ended); len(ended) < n {
			return nil
		}
		from = ended[n-1]
	}
	return nil
}

// matches reports whether f selects a record.
func matches(rec SandboxRecord, f engi.SandboxFilter) bool {
	switch {
	case len(f.States) == 0 && rec.State == engi.Stopped,
		len(f.States) > 0 && !slices.Contains(f.States, rec.State),
		f.Owned && !rec.Made,
		f.Template != "" && rec.Template != f.Template && rec.Digest != f.Template,
		rec.Created.Before(f.Since),
		rec.Started.Before(f.Started):
		return false
	}
	for k, v := range f.Metadata {
		if have, ok := rec.Metadata[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// Update implements engi.Sandboxes. A change of the network waits for changes
// of state, because they restore the recorded policy.
func (s *sandboxes) Update(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, u engi.SandboxUpdate) (engi.Sandbox, error) {
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	if err := u.Faults(s.bounds).Err(); err != nil {
		return engi.Sandbox{}, err
	}
	if u.Network == nil {
		_, err = s.edit(ctx, sb, func(r *SandboxRecord) error { return s.apply(r, u) })
	} else if err = s.checkNetwork(ctx, sb.owner, *u.Network); err == nil {
		err = s.transition(ctx, sb, func(ctx context.Context) error { return s.updateNetwork(ctx, sb, u) })
	}
	if err != nil {
		return engi.Sandbox{}, err
	}
	s.deadlineChanged()
	return sb.record().Sandbox, nil
}

// updateNetwork applies u to the record and puts the new policy in force,
// or keeps the old policy in both.
func (s *sandboxes) updateNetwork(ctx context.Context, sb *sandbox, u engi.SandboxUpdate) error {
	old := sb.record().Network
	if _, err := s.edit(ctx, sb, func(r *SandboxRecord) error { return s.apply(r, u) }); err != nil {
		return err
	}
	inForce, err := s.applyNetwork(ctx, sb)
	if inForce {
		return err
	}
	if _, back := s.edit(ctx, sb, func(r *SandboxRecord) error { r.Network = old; return nil }); back != nil {
		s.log.Error("record the network of a sandbox", "sandbox", sb.id, "error", back)
	}
	return err
}

// apply applies u to a record.
func (s *sandboxes) apply(r *SandboxRecord, u engi.SandboxUpdate) error {
	switch {
	case r.State == engi.Stopping || r.State == engi.Stopped:
		return engi.Errorf(engi.NotFound, "sandbox %s has stopped", r.ID).WithRemedy("create another")
	case (u.Timeout != nil || u.Extend != nil) && r.State != engi.Running:
		return engi.Errorf(engi.Conflict, "sandbox %s is %s: it has no deadline", r.ID, r.State).WithRemedy("resume it with the new timeout")
	}
	now := time.Now().UTC()
	if u.Lifetime != nil {
		r.Lifetime = s.completeLifetime(*u.Lifetime)
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
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// completeLifetime fills in the defaults of a valid lifetime.
func (s *sandboxes) completeLifetime(l engi.Lifetime) engi.Lifetime {
	l.Max = cmp.Or(l.Max, s.opt.Lifetime.Max)
	l.Timeout = cmp.Or(l.Timeout, min(s.opt.Lifetime.Timeout, l.Max))
	l.OnTimeout = cmp.Or(l.OnTimeout, engi.EndKill)
	return l
}

// Stop implements engi.Sandboxes. It also ends the execution that uses an
// instance, with cause cancelled, and takes a warm instance out of its pool.
func (s *sandboxes) Stop(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) error {
	if sb := s.get(viewer, id); sb != nil {
		err := s.transition(ctx, sb, func(ctx context.Context) error {
			err := s.terminate(ctx, sb, engi.CauseCancelled)
			if err != nil {
				sb.endSoon(engi.CauseCancelled)
				s.deadlineChanged()
			}
			return err
		})
		select {
		case <-sb.ended: // another caller may have been faster
			return nil
		default:
			return err
		}
	}
	inst := s.pools.get(viewer, id)
	if inst == nil {
		_, err := s.opt.Store.GetSandbox(ctx, viewer, id)
		return err // the sandbox is already gone, or belongs to another owner
	}
	return s.pools.stop(ctx, inst)
}

// Enter implements engi.Sandboxes.
func (s *sandboxes) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	for {
		sb, err := s.find(ctx, viewer, id)
		if err != nil {
			return nil, nil, err
		}
		if g, release, ok := sb.enter(); ok {
			return g, release, nil
		}
		// The state is changing, or the sandbox is paused or hibernated. The caller that gets
		// the lock first wakes the sandbox; the others find it running.
		if err := sb.lock(ctx); err != nil {
			return nil, nil, err
		}
		switch rec := sb.record(); rec.State {
		case engi.Running:
			g, release, ok := sb.enter()
			sb.unlock()
			if ok {
				return g, release, nil
			}
			return nil, nil, engi.Errorf(engi.Unavailable, "sandbox %s does not answer", id).
				WithRemedy("try again in a moment; if that does not help, stop it")
		case engi.Paused, engi.Hibernated:
			if !rec.Lifetime.AutoResume {
				sb.unlock()
				return nil, nil, engi.Errorf(engi.Conflict, "sandbox %s is %s", id, rec.State).WithRemedy("resume it first")
			}
			err := s.transitionLocked(ctx, sb, func(ctx context.Context) error {
				return s.wake(ctx, sb, 0, false, "use")
			})
			if err != nil {
				return nil, nil, err
			}
		default:
			sb.unlock()
			return nil, nil, engi.Errorf(engi.Unavailable, "sandbox %s is %s", id, rec.State).WithRemedy("look at it again later")
		}
	}
}
