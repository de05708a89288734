package workspace

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/workspace/server"
)

const (
	healthTime   = 5 * time.Second  // interval of the checks of a service
	readyTime    = 5 * time.Minute  // maximum time of a server's start, in which it may recover its files after a crash
	settledTime  = 10 * time.Second // time after which a start has succeeded
	restartsTime = 10 * time.Minute // time of health after which the restarts of a service are reset
	firstPause   = time.Second      // pause before a service is started again; doubled each time
	lastPause    = time.Minute
	maxFailures  = 5                      // maximum number of failed starts in a row
	inPlace      = 2                      // number of failures after which a service gets a new sandbox
	renewTime    = 2 * time.Minute        // a sandbox is replaced if its end is nearer than this
	needPause    = 250 * time.Millisecond // pause before services that are needed are checked again
	maxAttempts  = 8                      // maximum number of concurrent attempts
)

// A serviceKey identifies a service among those of all workspaces.
type serviceKey struct {
	workspace engi.WorkspaceID
	name      string
}

func (k serviceKey) String() string { return string(k.workspace) + "/" + k.name }

// supervise checks the services that are to run, until ctx ends.
func (s *Service) supervise(ctx context.Context) {
	tick := time.NewTicker(healthTime)
	defer tick.Stop()
	for {
		all, err := s.opt.Store.List(ctx, engi.Everyone, engi.Paging{})
		if err != nil && ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "check services", "error", err)
		}
		for _, r := range all {
			for _, sr := range r.Services {
				s.attend(ctx, serviceKey{r.ID, sr.Name}, sr)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// attend checks or starts a service in the background, unless another call is doing it.
func (s *Service) attend(ctx context.Context, key serviceKey, r ServiceRecord) {
	var do func(ctx context.Context) error
	switch {
	case r.Going:
		do = func(ctx context.Context) error { return s.drop(ctx, key) }
	case r.State == engi.ServiceStopped && r.Sandbox != "":
		do = func(ctx context.Context) error { return s.halt(ctx, key) }
	case r.State == engi.ServiceStopped || r.State == engi.ServiceFailed:
		return
	default:
		do = func(ctx context.Context) error {
			_, err := s.bring(ctx, key)
			return err
		}
	}
	s.mu.Lock()
	busy := s.attended[key] > 0
	s.mu.Unlock()
	if busy {
		return
	}
	leave := s.attending(key) // registered before the goroutine starts, so that the next check sees it
	if !s.begin(ctx, func(ctx context.Context) {
		defer leave()
		if err := do(ctx); err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "service of a workspace", "workspace", key.workspace, "service", key.name, "error", err)
		}
	}) {
		leave()
	}
}

// attending registers a caller that attends to a service, until leave is called.
func (s *Service) attending(key serviceKey) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attended[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.attended[key]--; s.attended[key] == 0 {
			delete(s.attended, key)
		}
	}
}

// bring starts a service, with as many attempts as needed. It returns the service once it
// is healthy, has failed, or is not to run any more.
func (s *Service) bring(ctx context.Context, key serviceKey) (engi.Service, error) {
	defer s.attending(key)()
	for {
		r, pause, err := s.attempt(ctx, key)
		if err != nil || pause == 0 {
			return r.Service, err
		}
		if err := clock.Sleep(ctx, pause); err != nil {
			return r.Service, err
		}
	}
}

// attempt checks a service, and starts it if it does not answer. It returns a time
// to wait before the next attempt; 0 if none is needed. An error concerns the attempt
// itself; errors of the service are in its record.
func (s *Service) attempt(ctx context.Context, key serviceKey) (_ ServiceRecord, pause time.Duration, err error) {
	release, err := s.serving.Acquire(ctx, key)
	if err != nil {
		return ServiceRecord{}, 0, err
	}
	defer release()
	w, err := s.opt.Store.Find(ctx, engi.Everyone, string(key.workspace))
	if err != nil {
		return ServiceRecord{}, 0, err
	}
	r, err := w.service(key.name)
	if err != nil || r.State == engi.ServiceStopped || r.State == engi.ServiceFailed {
		return r, 0, err
	}
	k, err := r.kind()
	if err != nil {
		return s.missed(ctx, key, r, err)
	}
	select {
	case s.attempts <- struct{}{}:
		defer func() { <-s.attempts }()
	case <-ctx.Done():
		return r, 0, engi.Errorf(engi.Expired, "wait for other services: %v", context.Cause(ctx))
	}
	if r.State == engi.ServiceHealthy {
		if r, err = s.check(ctx, key, w, r, k); r.State == engi.ServiceHealthy || err != nil {
			return r, 0, err
		}
		if r.Failures > 1 { // the service was healthy only briefly
			return r, backOff(r.Failures), nil
		}
	}
	for _, name := range r.Needs {
		switch need, err := w.service(name); {
		case err != nil:
			return s.missed(ctx, key, r, err)
		case need.State == engi.ServiceFailed || need.State == engi.ServiceStopped:
			return s.missed(ctx, key, r, engi.Errorf(engi.Unsupported, "the required service %s is %s", name, need.State).WithRemedy("restart %s first", name))
		case need.State != engi.ServiceHealthy:
			return r, needPause, nil
		}
	}
	if r.State != engi.ServiceStarting {
		if r, err = s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
			r.Restarts++
			return r.become(tx, engi.ServiceStarting, nil)
		}); err != nil {
			return r, 0, err
		}
	}
	r, version, err := s.launch(ctx, key, w, r, k)
	if err != nil {
		return s.missed(ctx, key, r, err)
	}
	r, err = s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
		r.Version = cmp.Or(version, r.Version)
		return r.become(tx, engi.ServiceHealthy, nil)
	})
	return r, 0, err
}

// backOff returns the pause after a number of failures in a row.
func backOff(failures int) time.Duration { return min(firstPause<<max(failures-1, 0), lastPause) }

// missed records a failed start, and returns the time to wait before the next one.
func (s *Service) missed(ctx context.Context, key serviceKey, r ServiceRecord, why error) (ServiceRecord, time.Duration, error) {
	if ctx.Err() != nil {
		return r, 0, engi.Errorf(engi.Expired, "start service %s: %v", key.name, context.Cause(ctx))
	}
	r, err := s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
		r.Failures++
		to := engi.ServiceUnhealthy
		if r.Failures >= maxFailures || engi.Is(why, engi.Invalid, engi.NotFound, engi.Unsupported, engi.Denied) {
			to = engi.ServiceFailed // the next attempt would fail in the same way
		}
		return r.become(tx, to, why)
	})
	if err != nil || r.State == engi.ServiceFailed {
		return r, 0, err
	}
	return r, backOff(r.Failures), nil
}

// check requests the greeting of a healthy service, twice if there is no answer.
func (s *Service) check(ctx context.Context, key serviceKey, w Record, r ServiceRecord, k *server.Kind) (ServiceRecord, error) {
	why := s.greet(ctx, w, r, k)
	if ctx.Err() == nil && engi.Is(why, engi.Unavailable) {
		why = s.greet(ctx, w, r, k)
	}
	if ctx.Err() != nil {
		return r, engi.Errorf(engi.Expired, "check service %s: %v", key.name, context.Cause(ctx))
	}
	healthy := time.Since(r.Started)
	if why == nil {
		if r.Failures > 0 && healthy > settledTime || r.Restarts > 0 && healthy > restartsTime {
			return s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
				r.Failures = 0
				if healthy > restartsTime {
					r.Restarts = 0
				}
				return nil
			})
		}
		return r, nil
	}
	return s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
		if healthy > settledTime {
			r.Failures = 0
		}
		r.Failures++
		return r.become(tx, engi.ServiceUnhealthy, why)
	})
}

// greet returns the reason why a service does not serve; nil if it does. It extends the lifetime of a
// sandbox that ends soon, and stops the sandbox if that is not possible.
func (s *Service) greet(ctx context.Context, w Record, r ServiceRecord, k *server.Kind) error {
	g, leave, err := s.opt.Sandboxes.Enter(ctx, engi.Everyone, r.Sandbox)
	if err != nil {
		return err
	}
	defer leave()
	if _, err = k.Check(ctx, g, r.access()); err != nil {
		return err
	}
	sb, err := s.opt.Sandboxes.Get(ctx, engi.Everyone, r.Sandbox)
	if err != nil || sb.Deadline.IsZero() || time.Until(sb.Deadline) > s.awake()/2 {
		return err
	}
	later := s.awake()
	if sb, err = s.opt.Sandboxes.Update(ctx, engi.Everyone, r.Sandbox, engi.SandboxUpdate{Extend: &later}); err != nil || time.Until(sb.Deadline) > renewTime {
		return err
	}
	if err := k.Stop(ctx, g); err != nil {
		return err
	}
	if err := s.opt.Sandboxes.Stop(ctx, engi.Everyone, r.Sandbox); err != nil {
		return err
	}
	return engi.Errorf(engi.Unavailable, "its sandbox has reached the maximum lifetime").WithRemedy("the service starts again in another sandbox")
}

func (s *Service) awake() time.Duration { return cmp.Or(s.opt.MaxAwake, 24*time.Hour) }

// launch starts the server of a service, in its present sandbox if that answers.
func (s *Service) launch(ctx context.Context, key serviceKey, w Record, r ServiceRecord, k *server.Kind) (ServiceRecord, string, error) {
	if r.Failures >= inPlace {
		if err := s.servers.Destroy(ctx, r.Sandbox); err != nil {
			return r, "", err
		}
	}
	g, leave, err := s.enterServer(ctx, key, w, &r, k)
	if err != nil {
		return r, "", err
	}
	defer leave()
	// A server that an earlier node has started may be ready by now.
	version, err := k.Check(ctx, g, r.access())
	if err != nil {
		if version, err = s.startServer(ctx, g, r, k); err != nil {
			return r, "", err
		}
	}
	return r, version, k.Limit(ctx, g, r.access())
}

// startServer starts a server in a sandbox, and returns its version once it is ready.
func (s *Service) startServer(ctx context.Context, g engi.Guest, r ServiceRecord, k *server.Kind) (string, error) {
	p, err := k.Start(ctx, g, r.access(), r.Env)
	if err != nil {
		return "", err
	}
	waiting, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	version, err := k.Wait(waiting, g, p, r.access())
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = engi.Errorf(engi.Unavailable, "%s is not ready after %v: %v", k.Program, readyTime, err).WithRemedy("look at its logs")
	}
	return version, err
}

// enterServer enters the sandbox of a service. If there is none, enterServer creates one.
func (s *Service) enterServer(ctx context.Context, key serviceKey, w Record, r *ServiceRecord, k *server.Kind) (g engi.Guest, leave func(), err error) {
	_, err = s.servers.Open(ctx, holder.Claim{
		Thing: key.String(), Key: string(r.Volume), Sandbox: r.Sandbox, Boots: r.Boots,
		Begin: func() (engi.SandboxSpec, error) { return s.specOf(ctx, w, *r, k) },
		Record: func(id engi.SandboxID, boots int) (err error) {
			*r, err = s.changeService(ctx, key, func(r *ServiceRecord, _ Tx) error {
				r.Sandbox, r.Boots = id, boots
				return nil
			})
			return err
		},
		Enter: func(id engi.SandboxID, _ bool) (err error) {
			g, leave, err = s.opt.Sandboxes.Enter(ctx, engi.Everyone, id)
			return err
		},
	})
	return g, leave, err
}

// specOf creates the volume of a service, unless it exists, and returns a spec for its sandbox.
func (s *Service) specOf(ctx context.Context, w Record, r ServiceRecord, k *server.Kind) (spec engi.SandboxSpec, err error) {
	t, err := s.prepare(ctx, k)
	if err != nil {
		return spec, err
	}
	if err := s.volume(ctx, w, r, k, t); err != nil {
		return spec, err
	}
	network := s.network(w, r.Name)
	network.Mode, network.Allow = engi.NetworkIsolated, nil // a server accepts connections and opens none to the outside
	return engi.SandboxSpec{
		Owner: w.Owner, Template: k.Template, Network: network, Ports: engi.PortPolicy{Private: true},
		Volumes:  []engi.VolumeMount{{Volume: string(r.Volume), Path: server.DataDir}},
		Notes:    map[string]string{noteWorkspace: string(w.ID), noteService: r.Name},
		Metadata: map[string]string{metaWorkspace: w.Name, noteService: r.Name},
		Lifetime: engi.Lifetime{Timeout: s.opt.MaxAwake, Max: s.opt.MaxAwake, OnTimeout: engi.EndKill},
	}, nil
}

// volume creates the volume of a service, unless it exists.
func (s *Service) volume(ctx context.Context, w Record, r ServiceRecord, k *server.Kind, t engi.Template) error {
	_, err := s.opt.Volumes.Get(ctx, engi.Everyone, string(r.Volume))
	if !engi.Is(err, engi.NotFound) {
		return err
	}
	spec := engi.VolumeSpec{ID: r.Volume, Owner: w.Owner, Name: "ws-" + w.ID.Label() + "-" + r.Name}
	seed, err := k.Seed(t)
	if err != nil {
		return err
	}
	if seed != nil {
		defer seed.Close()
		spec.Content = seed.FS()
	}
	_, err = s.opt.Volumes.Create(ctx, spec)
	return err
}

// changeService changes the record of a service.
func (s *Service) changeService(ctx context.Context, key serviceKey, f func(r *ServiceRecord, tx Tx) error) (ServiceRecord, error) {
	var changed ServiceRecord
	_, err := s.opt.Store.Change(ctx, key.workspace, func(w *Record, tx Tx) error {
		i := at(w.Services, key.name)
		if i < 0 {
			return engi.Errorf(engi.NotFound, "workspace %s has no service %s", key.workspace, key.name)
		}
		w.Services = slices.Clone(w.Services)
		err := f(&w.Services[i], tx)
		changed = w.Services[i]
		return err
	})
	return changed, err
}

// halt ends the server of a stopped service, and destroys its sandbox.
func (s *Service) halt(ctx context.Context, key serviceKey) error {
	release, err := s.serving.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	w, err := s.opt.Store.Find(ctx, engi.Everyone, string(key.workspace))
	if err != nil {
		return err
	}
	r, err := w.service(key.name)
	if err != nil || r.State != engi.ServiceStopped || r.Sandbox == "" {
		return err
	}
	if err := s.endServer(ctx, r); err != nil {
		return err
	}
	_, err = s.changeService(ctx, key, func(r *ServiceRecord, _ Tx) error {
		r.Sandbox = ""
		return nil
	})
	return err
}

// endServer ends a server once everything is on disk, and destroys its sandbox, even if the
// server does not end.
func (s *Service) endServer(ctx context.Context, r ServiceRecord) error {
	if r.Sandbox == "" {
		return nil
	}
	if k, err := r.kind(); err == nil {
		g, leave, err := s.opt.Sandboxes.Enter(ctx, engi.Everyone, r.Sandbox)
		if err == nil {
			err = k.Stop(ctx, g)
			leave()
		}
		if err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "end a server; its sandbox is destroyed", "service", r.Name, "sandbox", r.Sandbox, "error", err)
		}
	}
	return s.servers.Destroy(ctx, r.Sandbox)
}

// again ends the server of a service so that it can be started again.
func (s *Service) again(ctx context.Context, key serviceKey) error {
	release, err := s.serving.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.changeService(ctx, key, func(r *ServiceRecord, tx Tx) error {
		r.Failures, r.Restarts = 0, 0
		return r.become(tx, engi.ServiceStarting, nil)
	})
	if err != nil {
		return err
	}
	return s.endServer(ctx, r)
}

// drop removes a service with its data. It first records that the service is being removed, so that
// an interrupted removal is resumed later.
func (s *Service) drop(ctx context.Context, key serviceKey) error {
	release, err := s.serving.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	var r ServiceRecord
	_, err = s.opt.Store.Change(ctx, key.workspace, func(w *Record, _ Tx) error {
		i := at(w.Services, key.name)
		if i < 0 {
			return engi.Errorf(engi.NotFound, "workspace %s has no service %s", key.workspace, key.name)
		}
		for _, other := range w.Services {
			if slices.Contains(other.Needs, key.name) && !other.Going {
				return engi.Errorf(engi.Conflict, "service %s needs %s", other.Name, key.name).WithRemedy("remove %s first", other.Name)
			}
		}
		w.Services = slices.Clone(w.Services)
		w.Services[i].Going = true
		r = w.Services[i]
		return nil
	})
	if err != nil {
		return err
	}
	// The data are removed as well, so the server need not end cleanly.
	if err := s.servers.Release(ctx, key.String(), "", true); err != nil {
		return err
	}
	if err := engi.Ignore(s.opt.Volumes.Remove(ctx, engi.Everyone, string(r.Volume)), engi.NotFound); err != nil {
		return err
	}
	_, err = s.opt.Store.Change(ctx, key.workspace, func(w *Record, tx Tx) error {
		i := at(w.Services, key.name)
		if i < 0 {
			return nil
		}
		gone := w.Services[i]
		w.Services = slices.Delete(slices.Clone(w.Services), i, i+1)
		return tx.Emit(engi.EventWorkspaceService, serviceEvent{Service: gone.Name, Type: gone.Type, From: gone.State, State: "removed"})
	})
	return err
}
