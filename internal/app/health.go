package app

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
)

const (
	outcomes    = 20 // operations that are remembered
	fewOutcomes = 5  // below which a share says nothing
)

// A health is what is known of how an app does.
type health struct {
	healthy bool
	checked time.Time
	latency time.Duration
	startup time.Duration
	memory  int64
	failed  []bool               // of the last operations
	turning map[string]time.Time // since when metrics are not what the alerts say
	left    time.Time            // when a check last left the sandbox
}

func (h health) errors() float64 {
	if len(h.failed) < fewOutcomes {
		return 0
	}
	n := 0
	for _, f := range h.failed {
		if f {
			n++
		}
	}
	return float64(n) / float64(len(h.failed))
}

// count counts an operation.
func (a *app) count(failed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.health.failed = lately(a.health.failed, failed)
}

func (a *app) setStartup(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.health.startup = d
}

// snapshot returns what is known of the health of an app.
func (a *app) snapshot() health {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.health
	h.failed = slices.Clone(h.failed)
	return h
}

// checkAll has the apps checked that somebody uses. Those that sleep are left asleep, and
// the check itself is no use. Whose checks of the last time have not ended is left out, so
// that nobody waits for the servers of others.
func (s *Service) checkAll(ctx context.Context) {
	all, err := s.opt.Store.List(ctx, "", engi.Paging{})
	if err != nil {
		if ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "check apps", "error", err)
		}
		return
	}
	s.meter.count(all)
	var memory int64
	apps := map[engi.Owner][]Record{}
	for _, r := range all {
		if r.Sandbox != "" {
			memory += s.live(r.ID).snapshot().memory
		}
		if r.Sandbox != "" && r.Applying == 0 && (r.State == engi.AppReady || r.State == engi.AppFailed) {
			apps[r.Owner] = append(apps[r.Owner], r)
		}
	}
	s.meter.memory.Set(float64(memory))
	for owner, apps := range apps {
		if !s.checking(owner, true) {
			continue
		}
		if !s.begin(ctx, func(ctx context.Context) {
			defer s.checking(owner, false)
			s.checkEach(ctx, apps)
		}) {
			s.checking(owner, false)
		}
	}
}

// checking says that an owner's apps are being checked, or not any more, and reports
// whether that is new.
func (s *Service) checking(owner engi.Owner, on bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.checked[owner] == on {
		return false
	}
	if s.checked[owner] = on; !on {
		delete(s.checked, owner)
	}
	return true
}

// checkEach checks apps of one owner, a few at a time.
func (s *Service) checkEach(ctx context.Context, apps []Record) {
	_ = worktree.Parallel(len(apps), func(i int) error { // nothing fails for all
		if err := s.checkInUse(ctx, apps[i]); err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "check an app", "app", apps[i].ID, "error", err)
		}
		return ctx.Err()
	})
}

// checkInUse checks an app if somebody uses it.
func (s *Service) checkInUse(ctx context.Context, r Record) error {
	a := s.live(r.ID)
	sb, gone, err := s.sandboxes.Look(ctx, r.Sandbox)
	if err == nil && len(r.Alerts) > 0 && (sb.State == engi.Hibernated || sb.State == engi.Paused) {
		if err := s.rest(ctx, r); err != nil {
			return err
		}
	}
	if !gone && (err != nil || sb.State != engi.Running || !sb.Active.After(a.snapshot().left)) {
		return nil
	}
	unlock, ok := a.locked.Try()
	if !ok {
		return nil // somebody uses it and will see
	}
	defer unlock()
	if gone {
		return s.lose(ctx, r)
	}
	return s.checkOne(ctx, a, r)
}

// lose records that the sandbox of an app is gone. The caller holds the app's lock.
func (s *Service) lose(ctx context.Context, r Record) error {
	_, err := s.opt.Store.Change(ctx, r.ID, func(now *Record, tx Tx) error {
		if now.Sandbox != r.Sandbox {
			return nil
		}
		now.Sandbox, now.Undo = "", nil
		return become(now, tx, engi.AppStopped, nil)
	})
	return err
}

// rest ends the alerts of an app that sleeps.
func (s *Service) rest(ctx context.Context, r Record) error {
	_, err := s.opt.Store.Change(ctx, r.ID, func(now *Record, tx Tx) error { return calm(now, tx) })
	return err
}

// checkOne looks how an app does and acts on that. The caller holds the app's lock.
func (s *Service) checkOne(ctx context.Context, a *app, r Record) error {
	t, err := s.opt.Templates.Get(ctx, r.Template)
	if err != nil {
		return err
	}
	// It was read before the app was nobody's.
	if r, err = s.opt.Store.Find(ctx, "", string(r.ID)); err != nil || r.Sandbox == "" || r.Applying != 0 || r.Undo != nil {
		return err
	}
	g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	u := &use{app: a, rec: r, t: t, g: g, dir: t.WorkDir, leave: leave}
	defer func() {
		u.leave()
		a.mu.Lock()
		a.health.left = time.Now().Add(time.Second) // leaving is the last use it sees
		a.mu.Unlock()
	}()
	h := s.look(ctx, u)
	all := s.measures(a, h, t.Size.Or(size).Memory)
	for i := range all {
		if m := &all[i]; m.action == engi.AppActCheckNetwork && m.known && m.beyond() {
			m.text += u.way(ctx)
		}
	}
	if err := s.judge(ctx, u, all); err != nil {
		return err
	}
	if !h.healthy && r.State == engi.AppReady {
		if err := s.restartServer(ctx, u); err != nil || u.rec.State != engi.AppReady {
			return err
		}
	}
	return s.act(ctx, u)
}

// look asks the app's server for its page, and remembers how it did.
func (s *Service) look(ctx context.Context, u *use) health {
	began := time.Now()
	err := u.probe(ctx)
	took := time.Since(began)
	var memory int64
	if samples, e := s.opt.Sandboxes.Samples(ctx, "", u.rec.Sandbox, time.Now().Add(-time.Minute), time.Time{}); e == nil && len(samples) > 0 {
		memory = samples[len(samples)-1].Memory
	}
	u.app.count(err != nil)
	s.meter.checked(took, err)
	a := u.app
	a.mu.Lock()
	defer a.mu.Unlock()
	h := &a.health
	h.healthy, h.checked, h.latency = err == nil, began.UTC(), took
	if memory > 0 {
		h.memory = memory
	}
	c := *h
	c.failed = slices.Clone(h.failed)
	return c
}

// Status implements [engi.Apps].
func (s *Service) Status(ctx context.Context, owner engi.Owner, idOrName string) (st engi.AppStatus, err error) {
	defer engi.Annotate(&err, "status of app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return st, err
	}
	a := s.live(r.ID)
	h := a.snapshot()
	if r.Sandbox != "" {
		if s.sandboxes.Runs(ctx, r.Sandbox) {
			t, err := s.opt.Templates.Get(ctx, r.Template)
			if err != nil {
				return st, err
			}
			g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
			if err == nil {
				h = s.look(ctx, &use{app: a, rec: r, t: t, g: g, dir: t.WorkDir, leave: leave})
				leave()
			}
		} else {
			h.healthy = false // it sleeps, and is not woken for this
		}
	}
	hits, _ := a.copy.ratio()
	st = engi.AppStatus{
		App: r.App, Healthy: h.healthy && r.Sandbox != "", Checked: h.checked, Latency: h.latency, Startup: h.startup, FileTime: a.copy.usual(), Memory: h.memory,
		CacheHits: hits, Errors: h.errors(), Alerts: r.Alerts,
	}
	if r.Revision > 0 {
		files, err := s.opt.Store.Files(ctx, r.ID, r.Revision)
		if err != nil && !engi.Is(err, engi.NotFound) {
			return st, err
		}
		st.Files = len(files)
	}
	return st, nil
}
