package workspace

import (
	"cmp"
	"context"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
	"github.com/engi-dev/engi/internal/workspace/server"
)

const (
	maxServices = 16 // maximum number of services of a workspace
	maxEnv      = 64 // maximum number of variables of a service
	maxEnvBytes = 16 << 10
	maxLogs     = 1 << 20
	defaultLogs = 64 << 10

	recentTime = time.Minute // age of a sample that still shows what a service uses now

	// name of the sandbox with the working copy, in its group
	mainName = "workspace"
)

var serviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// newServices returns the records of services to add to the existing ones. It generates the
// credentials and the ID of the volume of each, so that the resources created for it later can be
// found again.
func (s *Service) newServices(ctx context.Context, have []ServiceRecord, specs []engi.ServiceSpec) ([]ServiceRecord, error) {
	if len(have)+len(specs) > maxServices {
		return nil, engi.Errorf(engi.Exhausted, "a workspace has %d services at most", maxServices).WithRemedy("remove an unused one")
	}
	all := slices.Clone(have)
	for _, spec := range specs {
		spec.Name = cmp.Or(spec.Name, string(spec.Type))
		if !serviceName.MatchString(spec.Name) || spec.Name == mainName {
			return nil, engi.Errorf(engi.Invalid, "%.70q is not a name of a service", spec.Name).
				WithRemedy("use 1 to 63 lower-case letters, digits and dashes, and not %q", mainName)
		}
		if at(all, spec.Name) >= 0 {
			return nil, engi.Errorf(engi.Conflict, "there is a service %s already", spec.Name).WithRemedy("choose another name, or remove the other one first")
		}
		size := 0
		for k, v := range spec.Env {
			size += len(k) + len(v)
		}
		if len(spec.Env) > maxEnv || size > maxEnvBytes {
			return nil, engi.Errorf(engi.Invalid, "service %s has %d variables of %d bytes", spec.Name, len(spec.Env), size).
				WithRemedy("use %d variables of %d bytes at most", maxEnv, maxEnvBytes)
		}
		template := ""
		if spec.Type == engi.ServiceMongoDB {
			template = s.opt.Mongod
		}
		k, err := kindOf(spec.Type, spec.Version, template)
		if err != nil {
			return nil, err
		}
		a, err := k.Access(spec.Env)
		if err != nil {
			return nil, err
		}
		version := spec.Version
		if version == "latest" {
			version = ""
		}
		all = append(all, ServiceRecord{
			Service: engi.Service{
				Name: spec.Name, Type: spec.Type, Server: k.String(), State: engi.ServiceStarting, Volume: engi.NewVolumeID(),
				Host: spec.Name + ".workspace.internal", Port: k.Port, Exposed: spec.Exposed, Needs: slices.Compact(slices.Sorted(slices.Values(spec.Needs))),
			},
			User: a.User, Password: a.Password, Database: a.Database, Env: maps.Clone(spec.Env), Wanted: version, Template: template,
		})
	}
	slices.SortFunc(all, func(a, b ServiceRecord) int { return strings.Compare(a.Name, b.Name) })
	if err := checkNeeds(all); err != nil {
		return nil, err
	}
	for _, r := range all {
		if at(have, r.Name) >= 0 {
			continue
		}
		k, err := r.kind()
		if err != nil {
			return nil, err
		}
		if _, err := s.prepare(ctx, k); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkNeeds reports Invalid for services that need a missing service, or each other.
func checkNeeds(all []ServiceRecord) error {
	const open, done = 1, 2
	state := map[string]int{}
	var visit func(r ServiceRecord, way []string) error
	visit = func(r ServiceRecord, way []string) error {
		way = append(way, r.Name)
		switch state[r.Name] {
		case done:
			return nil
		case open:
			return engi.Errorf(engi.Invalid, "services need each other: %s", strings.Join(way, " needs ")).WithRemedy("remove a dependency between them")
		}
		state[r.Name] = open
		for _, need := range r.Needs {
			i := at(all, need)
			if i < 0 {
				return engi.Errorf(engi.Invalid, "service %s needs %.70q, which does not exist", r.Name, need).WithRemedy("add the required service first")
			}
			if err := visit(all[i], way); err != nil {
				return err
			}
		}
		state[r.Name] = done
		return nil
	}
	for _, r := range all {
		if err := visit(r, nil); err != nil {
			return err
		}
	}
	return nil
}

// at returns the index of the service with a name, or -1.
func at(all []ServiceRecord, name string) int {
	return slices.IndexFunc(all, func(r ServiceRecord) bool { return r.Name == name })
}

// prepare returns the template of a kind, and builds it if it does not exist.
func (s *Service) prepare(ctx context.Context, k *server.Kind) (t engi.Template, err error) {
	if k.Version == "" {
		defer engi.Annotate(&err, "the operator's template for %s", k)
	}
	t, err = s.opt.Templates.Get(ctx, k.Template)
	if engi.Is(err, engi.Unavailable) {
		t, err = s.opt.Templates.Build(ctx, k.Template, nil, func(engi.Progress) {})
	}
	return t, err
}

// service returns the service with a name, or NotFound.
func (r Record) service(name string) (ServiceRecord, error) {
	if i := at(r.Services, name); i >= 0 && !r.Services[i].Going {
		return r.Services[i], nil
	}
	return ServiceRecord{}, engi.Errorf(engi.NotFound, "workspace %s has no service %.70q", r.ID, name).WithRemedy("'engi workspace show %s' lists its services", r.ID)
}

// AddService implements [engi.WorkspaceServices].
func (s *Service) AddService(ctx context.Context, viewer engi.Viewer, workspace string, spec engi.ServiceSpec) (_ engi.Service, err error) {
	defer engi.Annotate(&err, "add service %.70s to workspace %.70s", cmp.Or(spec.Name, string(spec.Type)), workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return engi.Service{}, err
	}
	// Templates are built before the record is changed, because a change must be short.
	fresh, err := s.newServices(ctx, r.Services, []engi.ServiceSpec{spec})
	if err != nil {
		return engi.Service{}, err
	}
	added := fresh[slices.IndexFunc(fresh, func(f ServiceRecord) bool { return at(r.Services, f.Name) < 0 })]
	r, err = s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error {
		if err := r.Allow(viewer, engi.RoleEditor); err != nil {
			return err
		}
		if at(r.Services, added.Name) >= 0 {
			return engi.Errorf(engi.Conflict, "there is a service %s already", added.Name).WithRemedy("choose another name, or remove the other one first")
		}
		if len(r.Services) >= maxServices {
			return engi.Errorf(engi.Exhausted, "a workspace has %d services at most", maxServices).WithRemedy("remove an unused one")
		}
		r.Services = append(slices.Clone(r.Services), added)
		slices.SortFunc(r.Services, func(a, b ServiceRecord) int { return strings.Compare(a.Name, b.Name) })
		if err := checkNeeds(r.Services); err != nil {
			return err
		}
		return tx.Emit(engi.EventWorkspaceService, serviceEvent{Service: added.Name, Type: added.Type, State: added.State})
	})
	if err != nil {
		return engi.Service{}, err
	}
	return s.bring(ctx, serviceKey{r.ID, added.Name})
}

// RemoveService implements [engi.WorkspaceServices].
func (s *Service) RemoveService(ctx context.Context, viewer engi.Viewer, workspace, name string) (err error) {
	defer engi.Annotate(&err, "remove service %.70s of workspace %.70s", name, workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return err
	}
	if _, err := r.service(name); err != nil {
		return err
	}
	return s.drop(ctx, serviceKey{r.ID, name})
}

// RestartService implements [engi.WorkspaceServices].
func (s *Service) RestartService(ctx context.Context, viewer engi.Viewer, workspace, name string) (_ engi.Service, err error) {
	defer engi.Annotate(&err, "restart service %.70s of workspace %.70s", name, workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return engi.Service{}, err
	}
	if _, err := r.service(name); err != nil {
		return engi.Service{}, err
	}
	key := serviceKey{r.ID, name}
	if err := s.again(ctx, key); err != nil {
		return engi.Service{}, err
	}
	return s.bring(ctx, key)
}

// Connection implements [engi.WorkspaceServices].
func (s *Service) Connection(ctx context.Context, viewer engi.Viewer, workspace, name string) (_ engi.Connection, err error) {
	defer engi.Annotate(&err, "connection to service %.70s of workspace %.70s", name, workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return engi.Connection{}, err
	}
	sr, err := r.service(name)
	if err != nil {
		return engi.Connection{}, err
	}
	k, err := sr.kind()
	if err != nil {
		return engi.Connection{}, err
	}
	return k.Connection(sr.Host, sr.access()), nil
}

// kind returns what runs a service. It is always the program that its data was created with.
func (r ServiceRecord) kind() (*server.Kind, error) { return kindOf(r.Type, r.Wanted, r.Template) }

func kindOf(t engi.ServiceType, version, template string) (*server.Kind, error) {
	if template == "" {
		return server.Find(t, version)
	}
	return server.Mongod(template, version, mongodClient{})
}

// A mongodClient implements [server.MongodClient].
type mongodClient struct{}

func (mongodClient) server(dial server.Dial, a server.Access) database.Server {
	return database.Server{Type: engi.ServiceMongoDB, User: a.User, Password: a.Password, Database: a.Database, Users: server.MongodUsers, Dial: dial}
}

// SetUp implements [server.MongodClient].
func (c mongodClient) SetUp(ctx context.Context, dial server.Dial, a server.Access) error {
	return c.server(dial, a).SetUp(ctx)
}

// Limit implements [server.MongodClient].
func (c mongodClient) Limit(ctx context.Context, dial server.Dial, a server.Access, full bool) error {
	return c.server(dial, a).Limit(ctx, full)
}

func (r ServiceRecord) access() server.Access {
	return server.Access{User: r.User, Password: r.Password, Database: r.Database}
}

// Dial implements [engi.WorkspaceServices].
func (s *Service) Dial(ctx context.Context, viewer engi.Viewer, workspace, name string) (_ net.Conn, err error) {
	defer engi.Annotate(&err, "connect to service %.70s of workspace %.70s", name, workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return nil, err
	}
	sr, err := r.service(name)
	switch {
	case err != nil:
		return nil, err
	case !sr.Exposed:
		return nil, engi.Errorf(engi.Conflict, "the service is not exposed").WithRemedy("add a service with 'exposed', or connect from a sandbox of the workspace")
	case sr.Sandbox == "":
		return nil, engi.Errorf(engi.Conflict, "the service has no server").WithRemedy("start the workspace, or restart the service")
	}
	g, leave, err := s.opt.Sandboxes.Enter(ctx, engi.Everyone, sr.Sandbox)
	if err != nil {
		return nil, err
	}
	c, err := g.Dial(ctx, sr.Port)
	if err != nil {
		leave()
		return nil, err
	}
	return &dialed{c, sync.OnceFunc(leave)}, nil
}

// A dialed is a connection into a sandbox, together with the use of the sandbox.
type dialed struct {
	net.Conn
	leave func()
}

// Close implements [net.Conn].
func (d *dialed) Close() error {
	defer d.leave()
	return d.Conn.Close()
}

// ServiceUse implements [engi.WorkspaceServices].
func (s *Service) ServiceUse(ctx context.Context, viewer engi.Viewer, workspace string) (_ map[string]engi.ServiceUse, err error) {
	defer engi.Annotate(&err, "use of services of workspace %.70s", workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleViewer)
	if err != nil {
		return nil, err
	}
	all := map[string]engi.ServiceUse{}
	for _, sr := range r.Services {
		if sr.Sandbox == "" || sr.Going {
			continue
		}
		samples, err := s.opt.Sandboxes.Samples(ctx, engi.Everyone, sr.Sandbox, time.Now().Add(-recentTime), time.Time{})
		if err != nil || len(samples) == 0 {
			continue // the sandbox has ended meanwhile
		}
		last := samples[len(samples)-1]
		u := engi.ServiceUse{CPU: last.CPU, CPUPercent: last.CPUPercent, Memory: last.Memory, MemoryLimit: last.MemoryLimit}
		if v, err := s.opt.Volumes.Get(ctx, engi.Everyone, string(sr.Volume)); err == nil { // the data are not in the sandbox
			u.Disk, u.DiskLimit = v.Used, v.Capacity
		}
		all[sr.Name] = u
	}
	return all, nil
}

// ServiceLogs implements [engi.WorkspaceServices].
func (s *Service) ServiceLogs(ctx context.Context, viewer engi.Viewer, workspace, name string, most int) (_ string, err error) {
	defer engi.Annotate(&err, "logs of service %.70s of workspace %.70s", name, workspace)
	r, err := s.find(ctx, viewer, workspace, engi.RoleViewer)
	if err != nil {
		return "", err
	}
	sr, err := r.service(name)
	if err != nil {
		return "", err
	}
	if sr.Sandbox == "" {
		return "", engi.Errorf(engi.Conflict, "the service has no sandbox, and its logs are removed with the sandbox").WithRemedy("start the workspace, or restart the service")
	}
	k, err := sr.kind()
	if err != nil {
		return "", err
	}
	g, leave, err := s.opt.Sandboxes.Enter(ctx, engi.Everyone, sr.Sandbox)
	if err != nil {
		return "", err
	}
	defer leave()
	if most <= 0 {
		most = defaultLogs
	}
	return k.Logs(ctx, g, min(most, maxLogs))
}

// wantServices records that all services of a workspace are to run.
func (s *Service) wantServices(ctx context.Context, id engi.WorkspaceID) (Record, error) {
	return s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		r.Services = slices.Clone(r.Services)
		for i := range r.Services {
			sr := &r.Services[i]
			if sr.Going || sr.State == engi.ServiceHealthy || sr.State == engi.ServiceStarting {
				continue
			}
			sr.Failures, sr.Restarts = 0, 0
			if err := sr.become(tx, engi.ServiceStarting, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// startServices starts the services of a workspace that are to run, in the order of their
// dependencies, and returns once each is healthy or has failed.
func (s *Service) startServices(ctx context.Context, r Record) error {
	return each(r.Services, false, func(sr ServiceRecord) error {
		_, err := s.bring(ctx, serviceKey{r.ID, sr.Name})
		if engi.Is(err, engi.NotFound) {
			return nil // the service has been removed
		}
		return err
	})
}

// stopServices ends all services of a workspace, each before the services that it needs. Their
// data are kept.
func (s *Service) stopServices(ctx context.Context, id engi.WorkspaceID) error {
	// Record it first, so that supervise does not start them again.
	r, err := s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		r.Services = slices.Clone(r.Services)
		for i := range r.Services {
			if sr := &r.Services[i]; sr.State != engi.ServiceStopped {
				if err := sr.become(tx, engi.ServiceStopped, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(r.Services, true, func(sr ServiceRecord) error { return s.halt(ctx, serviceKey{id, sr.Name}) })
}

// removeServices removes all services of a workspace, with their data.
func (s *Service) removeServices(ctx context.Context, id engi.WorkspaceID) error {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil {
		return err
	}
	return each(r.Services, true, func(sr ServiceRecord) error { return s.drop(ctx, serviceKey{id, sr.Name}) })
}

// each calls f for all services, for each after f has succeeded for the services that it needs; if
// reverse, after f has succeeded for the services that need it.
func each(all []ServiceRecord, reverse bool, f func(ServiceRecord) error) error {
	type outcome struct {
		ended chan struct{}
		err   error
	}
	outcomes := map[string]*outcome{}
	for _, r := range all {
		outcomes[r.Name] = &outcome{ended: make(chan struct{})}
	}
	var work sync.WaitGroup
	for _, r := range all {
		before := r.Needs
		if reverse {
			before = nil
			for _, other := range all {
				if slices.Contains(other.Needs, r.Name) {
					before = append(before, other.Name)
				}
			}
		}
		mine := outcomes[r.Name]
		work.Go(func() {
			defer close(mine.ended)
			for _, name := range before {
				if o := outcomes[name]; o != nil {
					if <-o.ended; o.err != nil {
						mine.err = o.err
						return
					}
				}
			}
			mine.err = f(r)
		})
	}
	work.Wait()
	for _, r := range all {
		if err := outcomes[r.Name].err; err != nil {
			return err
		}
	}
	return nil
}

// A serviceEvent is the data of an event about a service.
type serviceEvent struct {
	Service string            `json:"service"`
	Type    engi.ServiceType  `json:"type"`
	From    engi.ServiceState `json:"from,omitempty"`
	State   engi.ServiceState `json:"state"` // state, or "removed"
	Sandbox engi.SandboxID    `json:"sandbox_id,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// become changes the state of a service, with an event.
func (r *ServiceRecord) become(tx Tx, to engi.ServiceState, why error) error {
	e := serviceEvent{Service: r.Name, Type: r.Type, From: r.State, State: to, Sandbox: r.Sandbox}
	r.State, r.Error = to, nil
	if why != nil {
		r.Error = asError(why)
		e.Error = r.Error.Text
	}
	if to == engi.ServiceHealthy {
		r.Started = time.Now().UTC()
	}
	return tx.Emit(engi.EventWorkspaceService, e)
}
