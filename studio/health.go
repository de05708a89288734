package studio

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi"
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

// checkAll checks the apps that somebody uses. Those that sleep are left asleep, and the
// check itself is no use.
func (s *Service) checkAll(ctx context.Context) {
	all, err := s.opt.Store.List(ctx, "", engi.Page{})
	if err != nil {
		if ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "check apps", "error", err)
		}
		return
	}
	s.meter.count(all)
	var memory int64
	for _, r := range all {
		if ctx.Err() != nil {
			return
		}
		if r.Sandbox != "" {
			memory += s.live(r.ID).snapshot().memory
		}
		if r.Sandbox == "" || r.Applying != 0 || r.State != engi.AppReady && r.State != engi.AppFailed {
			continue
		}
		a := s.live(r.ID)
		sb, err := s.opt.Sandboxes.Get(ctx, "", r.Sandbox)
		if err == nil && len(r.Alerts) > 0 && (sb.State == engi.Hibernated || sb.State == engi.Paused) {
			if err := s.rest(ctx, r); err != nil && ctx.Err() == nil {
				s.opt.Log.WarnContext(ctx, "end the alerts of an app that sleeps", "app", r.ID, "error", err)
			}
		}
		gone := engi.KindOf(err) == engi.NotFound && err != nil || sb.State == engi.Stopped
		if !gone && (err != nil || sb.State != engi.Running || !sb.Active.After(a.snapshot().left)) {
			continue
		}
		select {
		case a.locked <- struct{}{}:
		default:
			continue // somebody uses it and will see
		}
		if gone {
			err = s.lose(ctx, r)
		} else {
			err = s.checkOne(ctx, a, r)
		}
		<-a.locked
		if err != nil && ctx.Err() == nil && engi.KindOf(err) != engi.NotFound {
			s.opt.Log.WarnContext(ctx, "check an app", "app", r.ID, "error", err)
		}
	}
	s.meter.memory.Set(float64(memory))
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
	g, leave, err := s.inside(ctx, r.Sandbox)
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
		sb, err := s.opt.Sandboxes.Get(ctx, "", r.Sandbox)
		if err == nil && sb.State == engi.Running {
			t, err := s.opt.Templates.Get(ctx, r.Template)
			if err != nil {
				return st, err
			}
			g, leave, err := s.inside(ctx, r.Sandbox)
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
		if err != nil && engi.KindOf(err) != engi.NotFound {
			return st, err
		}
		st.Files = len(files)
	}
	return st, nil
}
