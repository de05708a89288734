package app

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
)

const (
	outcomes    = 20 // number of recent operations that are remembered
	fewOutcomes = 5  // minimum number of operations for a meaningful share
)

// A health holds the current metrics of an app.
type health struct {
	healthy bool
	checked time.Time
	latency time.Duration
	startup time.Duration
	memory  int64
	failed  []bool               // outcomes of recent operations
	turning map[string]time.Time // times since which metrics disagree with the alerts
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

// count records the outcome of an operation.
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

// snapshot returns a copy of the metrics of an app.
func (a *app) snapshot() health {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.health
	h.failed = slices.Clone(h.failed)
	return h
}

// checkAll checks all apps in use. Sleeping apps are not resumed, and
// the check itself does not count as use. Owners whose previous checks have not ended are skipped, so
// that no owner waits for the servers of others.
func (s *Service) checkAll(ctx context.Context) {
	all, err := s.opt.Store.List(ctx, engi.Everyone, engi.Paging{})
	if err != nil {
		if ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "check apps", "error", err)
		}
		return
	}
	s.meter.count(all)
	s.keepLeft(all)
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

// checking records that an owner's apps are being checked, or no longer are, and reports
// whether the state changed.
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

// checkEach checks the apps of one owner, a few at a time.
func (s *Service) checkEach(ctx context.Context, apps []Record) {
	_ = worktree.Parallel(len(apps), func(i int) error { // checkInUse logs its own errors
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
	if !gone && (err != nil || sb.State != engi.Running || !sb.Active.After(s.leftAt(r.Sandbox))) {
		return nil
	}
	unlock, ok := a.locked.Try()
	if !ok {
		return nil // another caller is using the app and will notice
	}
	defer unlock()
	if gone {
		return s.lose(ctx, r)
	}
	return s.checkOne(ctx, a, r)
}

// lose records that the sandbox of an app is lost. The caller holds the app's lock.
func (s *Service) lose(ctx context.Context, r Record) error {
	_, err := s.opt.Store.Change(ctx, r.ID, func(now *Record, tx Tx) error {
		if now.Sandbox != r.Sandbox {
			return nil
		}
		if now.Sandbox = ""; now.Directory == "" {
			now.Undo = nil
		}
		return become(now, tx, engi.AppStopped, nil)
	})
	return err
}

// rest ends the alerts of a sleeping app.
func (s *Service) rest(ctx context.Context, r Record) error {
	_, err := s.opt.Store.Change(ctx, r.ID, func(now *Record, tx Tx) error { return calm(now, tx) })
	return err
}

// checkOne checks an app and acts on the result. The caller holds the app's lock.
func (s *Service) checkOne(ctx context.Context, a *app, r Record) error {
	t, err := s.templateOf(ctx, r)
	if err != nil {
		return err
	}
	// The record was read before the app was locked.
	if r, err = s.opt.Store.Find(ctx, engi.Everyone, string(r.ID)); err != nil || r.Sandbox == "" || r.Applying != 0 || r.Undo != nil {
		return err
	}
	g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	u := &use{app: a, rec: r, t: t, g: g, dir: t.WorkDir, leave: leave}
	defer func() {
		u.leave()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left[r.Sandbox] = time.Now().Add(time.Second) // leaving counts as the last use of the sandbox
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

// look requests the app's page from its server, and records the result.
func (s *Service) look(ctx context.Context, u *use) health {
	began := time.Now()
	err := u.probe(ctx)
	took := time.Since(began)
	var memory int64
	if u.rec.Directory != "" {
		memory = 0 // the samples are of all programs in the workspace
	} else if samples, e := s.opt.Sandboxes.Samples(ctx, engi.Everyone, u.rec.Sandbox, time.Now().Add(-time.Minute), time.Time{}); e == nil && len(samples) > 0 {
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
func (s *Service) Status(ctx context.Context, viewer engi.Viewer, idOrName string) (st engi.AppStatus, err error) {
	defer engi.Annotate(&err, "status of app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return st, err
	}
	a := s.live(r.ID)
	h := a.snapshot()
	if r.Sandbox != "" {
		if s.sandboxes.Runs(ctx, r.Sandbox) {
			t, err := s.templateOf(ctx, r)
			if err != nil {
				return st, err
			}
			g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
			if err == nil {
				h = s.look(ctx, &use{app: a, rec: r, t: t, g: g, dir: t.WorkDir, leave: leave})
				leave()
			}
		} else {
			h.healthy = false // the sandbox sleeps, and is not resumed for this
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
