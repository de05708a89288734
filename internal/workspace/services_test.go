package workspace_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
)

// serving runs a test in fake time, with a workspace that has services.
func serving(t *testing.T, f func(t *testing.T, w *fixture, s *workspace.Service), specs ...engi.ServiceSpec) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		if _, err := s.Create(t.Context(), engi.WorkspaceSpec{Owner: "o", Name: "shop", Services: specs}); err != nil {
			t.Fatal(err)
		}
		f(t, w, s)
		stop()
		w.servers.Wait()
	})
}

func service(t *testing.T, s *workspace.Service, name string) engi.Service {
	t.Helper()
	w, err := s.Get(t.Context(), "o", "shop")
	if err != nil {
		t.Fatal(err)
	}
	for _, sv := range w.Services {
		if sv.Name == name {
			return sv
		}
	}
	t.Fatalf("there is no service %s in %+v", name, w.Services)
	return engi.Service{}
}

// kill ends the server in a sandbox like the kernel would.
func (w *fixture) kill(id engi.SandboxID) {
	w.in(id, func(b *fakeSandbox) { b.procs[len(b.procs)-1].end("KILL") })
}

var trio = []engi.ServiceSpec{{Type: engi.ServicePostgres, Name: "db"}, {Type: engi.ServiceRedis, Needs: []string{"db"}}, {Type: engi.ServiceNginx, Needs: []string{"redis"}}}

func TestServicesStartInOrder(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		var order []string
		for _, spec := range w.specs {
			order = append(order, spec.Notes["service"])
			if spec.Network.Mode != engi.NetworkIsolated || !strings.HasPrefix(spec.Network.Group, "ws-") || spec.Network.Name != spec.Notes["service"] || !spec.Ports.Private {
				t.Errorf("network %+v, ports %+v", spec.Network, spec.Ports)
			}
		}
		if want := []string{"db", "redis", "nginx"}; !cmp.Equal(order, want) {
			t.Errorf("sandboxes were made for %v, want %v", order, want)
		}
		want := engi.Service{Name: "db", Type: engi.ServicePostgres, Version: "15.20", Server: "PostgreSQL 15", State: engi.ServiceHealthy, Host: "db.workspace.internal", Port: 5432}
		got := service(t, s, "db")
		if got.Sandbox == "" || got.Volume == "" || got.Started.IsZero() {
			t.Errorf("%+v", got)
		}
		got.Sandbox, got.Volume, got.Started, got.Needs = "", "", time.Time{}, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		c, err := s.Connection(t.Context(), "o", "shop", "db")
		if err != nil || c.URL != "postgresql://app:"+c.Password+"@db.workspace.internal:5432/app" {
			t.Errorf("%+v, %v", c, err)
		}
	}, trio...)
}

func TestServicesAreStartedAgain(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		before := service(t, s, "db")
		w.kill(before.Sandbox)
		time.Sleep(7 * time.Second)
		got := service(t, s, "db")
		if got.State != engi.ServiceHealthy || got.Sandbox != before.Sandbox || got.Restarts != 1 || got.Started.Before(before.Started) { // a check may come at the moment of the start
			t.Errorf("after its server was killed: %+v", got)
		}
		w.in(got.Sandbox, func(*fakeSandbox) { w.lose(got.Sandbox) })
		time.Sleep(7 * time.Second)
		if now := service(t, s, "db"); now.State != engi.ServiceHealthy || now.Sandbox == before.Sandbox || now.Volume != before.Volume || now.Restarts != 2 {
			t.Errorf("after its sandbox was lost: %+v", now)
		}
		if v := w.volumes[before.Volume]; v.made != 1 {
			t.Errorf("its data were made %d times", v.made)
		}
		time.Sleep(11 * time.Minute)
		if now := service(t, s, "db"); now.Restarts != 0 || now.State != engi.ServiceHealthy {
			t.Errorf("long after that: %+v", now)
		}
	}, trio...)
}

// TestServiceUse shows what services use to a collaborator, whom their sandboxes and volumes do not belong to.
func TestServiceUse(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		ctx := t.Context()
		x := must[engi.Workspace](t)(s.Change(ctx, "o", "shop", engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "vera", Role: engi.RoleViewer}}}))
		one := engi.ServiceUse{CPU: 2 * time.Second, CPUPercent: 5, Memory: 48 << 20, MemoryLimit: 1 << 30, Disk: 40 << 20, DiskLimit: 4 << 30}
		want := map[string]engi.ServiceUse{"db": one, "redis": one, "nginx": one}
		same(t, "use", want, must[map[string]engi.ServiceUse](t)(s.ServiceUse(ctx, "vera", string(x.ID))))
		lost := service(t, s, "nginx").Sandbox
		w.in(lost, func(*fakeSandbox) { w.lose(lost) })
		delete(want, "nginx")
		same(t, "use without a sandbox", want, must[map[string]engi.ServiceUse](t)(s.ServiceUse(ctx, "o", "shop")))
		if err := s.Stop(ctx, "o", "shop"); err != nil {
			t.Fatal(err)
		}
		same(t, "use of a stopped workspace", map[string]engi.ServiceUse{}, must[map[string]engi.ServiceUse](t)(s.ServiceUse(ctx, "o", "shop")))
	}, trio...)
}

// TestServicesKeepTheirProgram changes the operator's setting after services were created.
func TestServicesKeepTheirProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		w := newFixture(t)
		var want []string
		for i, template := range []string{"", "mine", "other", ""} {
			w.mongod = template
			s, stop := w.begin(t)
			if i == 0 {
				must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "o", Name: "shop"}))
			}
			name := fmt.Sprint("db", i)
			got := must[engi.Service](t)(s.AddService(ctx, "o", "shop", engi.ServiceSpec{Type: engi.ServiceMongoDB, Name: name}))
			program := "FerretDB 1.24"
			if template == "" {
				template = "service-mongodb"
			} else {
				program = "MongoDB"
			}
			if want = append(want, template); got.Server != program || got.State != engi.ServiceHealthy || got.Version != "3.6.8" {
				t.Errorf("%+v", got)
			}
			for j := range want { // each gets another sandbox
				must[engi.Service](t)(s.RestartService(ctx, "o", "shop", fmt.Sprint("db", j)))
				if spec := w.specs[len(w.specs)-1]; spec.Template != want[j] {
					t.Errorf("with the setting %q, db%d runs in %s, want %s", w.mongod, j, spec.Template, want[j])
				}
			}
			c := must[engi.Connection](t)(s.Connection(ctx, "o", "shop", name))
			if strings.Contains(c.URL, "authSource=admin") != (program == "MongoDB") {
				t.Error(c.URL)
			}
			stop()
		}
		w.mongod = "missing"
		s, stop := w.begin(t)
		defer stop()
		if _, err := s.AddService(ctx, "o", "shop", engi.ServiceSpec{Type: engi.ServiceMongoDB}); !strings.Contains(fmt.Sprint(err), "the operator's template for MongoDB") {
			t.Error(err)
		}
		w.servers.Wait()
	})
}

// TestServicesFail starts a service that fails for a while, and one that always fails.
func TestServicesFail(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		w.in("", func(*fakeSandbox) { w.broken["db"], w.broken["bad"] = 3, 1000 })
		began := time.Now()
		got, err := s.AddService(t.Context(), "o", "shop", engi.ServiceSpec{Type: engi.ServicePostgres, Name: "db"})
		if err != nil || got.State != engi.ServiceHealthy || got.Restarts != 3 || time.Since(began) < 7*time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(began), got, err)
		}
		began = time.Now()
		got, err = s.AddService(t.Context(), "o", "shop", engi.ServiceSpec{Type: engi.ServicePostgres, Name: "bad"})
		if err != nil || got.State != engi.ServiceFailed || !strings.Contains(got.Error.Text, "signal SEGV: the server says so") || time.Since(began) < 15*time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(began), got, err)
		}
		got, err = s.AddService(t.Context(), "o", "shop", engi.ServiceSpec{Type: engi.ServiceRedis, Needs: []string{"bad"}})
		if err != nil || got.State != engi.ServiceFailed || !strings.Contains(got.Error.Text, "the required service bad is failed") {
			t.Errorf("%+v, %v", got, err)
		}
		w.in("", func(*fakeSandbox) { w.broken["bad"] = 0 })
		time.Sleep(time.Hour)
		if now := service(t, s, "bad"); now.State != engi.ServiceFailed {
			t.Errorf("nobody has asked for it: %+v", now)
		}
		if got, err = s.RestartService(t.Context(), "o", "shop", "bad"); err != nil || got.State != engi.ServiceHealthy || got.Error != nil {
			t.Errorf("%+v, %v", got, err)
		}
		// A service that ends right after its start is restarted with growing pauses, for ever.
		for range 40 {
			if now := service(t, s, "bad"); now.State == engi.ServiceHealthy {
				w.kill(now.Sandbox)
			}
			time.Sleep(5 * time.Second)
		}
		if now := service(t, s, "bad"); now.Restarts < 4 || now.Restarts > 12 {
			t.Errorf("it was killed for minutes: %+v", now)
		}
		time.Sleep(2 * time.Minute)
		if now := service(t, s, "bad"); now.State != engi.ServiceHealthy {
			t.Errorf("nobody kills it any more: %+v", now)
		}
	})
}

func TestServicesStopAndGo(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		ctx := t.Context()
		var procs []*process
		volume := service(t, s, "db").Volume
		w.in("", func(*fakeSandbox) {
			w.volumes[volume].rows = 7
			for _, b := range w.boxes {
				procs = append(procs, b.procs...)
			}
		})
		if err := s.Stop(ctx, "o", "shop"); err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			if len(p.got) != 1 || p.got[0] == "KILL" {
				t.Errorf("a server was ended with %v", p.got)
			}
		}
		time.Sleep(time.Minute)
		if sv := service(t, s, "db"); sv.State != engi.ServiceStopped || sv.Sandbox != "" || len(w.boxes) != 0 {
			t.Errorf("%+v, and %d sandboxes", sv, len(w.boxes))
		}
		if _, err := s.ServiceLogs(ctx, "o", "shop", "db", 0); !engi.Is(err, engi.Conflict) {
			t.Errorf("logs: %v", err)
		}
		if got, err := s.Start(ctx, "o", "shop"); err != nil || got.State != engi.WorkspaceRunning || got.Services[0].State != engi.ServiceHealthy || w.volumes[volume].rows != 7 {
			t.Errorf("%+v, %v", got, err)
		}
		if text, err := s.ServiceLogs(ctx, "o", "shop", "db", 0); err != nil || text != "the server says so\n" {
			t.Errorf("logs: %q, %v", text, err)
		}
		if err := s.RemoveService(ctx, "o", "shop", "db"); !engi.Is(err, engi.Conflict) {
			t.Errorf("one that is needed: %v", err)
		}
		if err := s.RemoveService(ctx, "o", "shop", "nginx"); err != nil || len(w.volumes) != 2 {
			t.Errorf("%d volumes, %v", len(w.volumes), err)
		}
		if err := s.Remove(ctx, "o", "shop"); err != nil || len(w.boxes)+len(w.volumes) != 0 {
			t.Errorf("%d sandboxes and %d volumes are left, %v", len(w.boxes), len(w.volumes), err)
		}
	}, trio...)
}

func TestServicesThatCannotBe(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		for _, test := range []struct {
			spec engi.ServiceSpec
			kind engi.Kind
			want string
		}{
			{engi.ServiceSpec{Type: "oracle"}, engi.Invalid, "not a type"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Version: "16"}, engi.Invalid, "has PostgreSQL 15"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Name: "workspace"}, engi.Invalid, "not a name"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Name: "A.b"}, engi.Invalid, "not a name"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Name: "db"}, engi.Conflict, "already"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Needs: []string{"x"}}, engi.Invalid, "does not exist"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Needs: []string{"postgres"}}, engi.Invalid, "need each other"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Env: map[string]string{"POSTGRES_USER": "x y"}}, engi.Invalid, "POSTGRES_USER"},
			{engi.ServiceSpec{Type: engi.ServicePostgres, Env: map[string]string{"X": strings.Repeat("x", 20<<10)}}, engi.Invalid, "variables"},
		} {
			if _, err := s.AddService(t.Context(), "o", "shop", test.spec); !engi.Is(err, test.kind) || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("%+v: %v, want %s", test.spec, err, test.want)
			}
		}
		if got, err := s.Get(t.Context(), "o", "shop"); err != nil || len(got.Services) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		_, err := s.Create(t.Context(), engi.WorkspaceSpec{Owner: "o", Services: []engi.ServiceSpec{
			{Type: engi.ServiceRedis, Name: "a", Needs: []string{"b"}}, {Type: engi.ServiceRedis, Name: "b", Needs: []string{"a"}},
		}})
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "a needs b needs a") {
			t.Errorf("%v", err)
		}
	}, engi.ServiceSpec{Type: engi.ServiceRedis, Name: "db"})
}

func TestServicesAndRoles(t *testing.T) {
	serving(t, func(t *testing.T, w *fixture, s *workspace.Service) {
		ctx := t.Context()
		if _, err := s.Change(ctx, "o", "o/shop", engi.WorkspaceChange{Collaborators: &[]engi.Collaborator{
			{Owner: "viewer", Role: engi.RoleViewer}, {Owner: "reviewer", Role: engi.RoleReviewer}, {Owner: "editor", Role: engi.RoleEditor},
		}}); err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func(who engi.Viewer) error{
			"add": func(who engi.Viewer) error {
				_, err := s.AddService(ctx, who, "o/shop", engi.ServiceSpec{Type: engi.ServiceRedis})
				return err
			},
			"restart":    func(who engi.Viewer) error { _, err := s.RestartService(ctx, who, "o/shop", "db"); return err },
			"connection": func(who engi.Viewer) error { _, err := s.Connection(ctx, who, "o/shop", "db"); return err },
			"dial":       func(who engi.Viewer) error { _, err := s.Dial(ctx, who, "o/shop", "db"); return err },
			"remove":     func(who engi.Viewer) error { return s.RemoveService(ctx, who, "o/shop", "db") },
		} {
			for who, want := range map[engi.Viewer]engi.Kind{"stranger": engi.NotFound, "": engi.NotFound, "viewer": engi.Denied, "reviewer": engi.Denied} {
				if err := do(who); !engi.Is(err, want) {
					t.Errorf("%s by a %s: %v", name, who, err)
				}
			}
		}
		if _, err := s.ServiceLogs(ctx, "viewer", "o/shop", "db", 0); err != nil {
			t.Error(err)
		}
		if _, err := s.ServiceLogs(ctx, "stranger", "o/shop", "db", 0); !engi.Is(err, engi.NotFound) {
			t.Error(err)
		}
		if _, err := s.Connection(ctx, "editor", "o/shop", "db"); err != nil {
			t.Error(err)
		}
		if _, err := s.Dial(ctx, "editor", "o/shop", "db"); !engi.Is(err, engi.Conflict) || !strings.Contains(err.Error(), "not exposed") {
			t.Error(err)
		}
	}, engi.ServiceSpec{Type: engi.ServiceRedis, Name: "db"})
}

// TestServicesSurvivePowerCuts cuts the power before and after each step of the life of a
// workspace with services. The next node must restore the intended state, create no data twice,
// and leave nothing behind.
func TestServicesSurvivePowerCuts(t *testing.T) {
	stages := map[string]func(ctx context.Context, w *fixture, s *workspace.Service) error{
		"create": func(ctx context.Context, _ *fixture, s *workspace.Service) error {
			_, err := s.Create(ctx, engi.WorkspaceSpec{Owner: "o", Name: "shop", Services: trio[:2]})
			return err
		},
		"add": func(ctx context.Context, _ *fixture, s *workspace.Service) error {
			_, err := s.AddService(ctx, "o", "shop", engi.ServiceSpec{Type: engi.ServiceMySQL})
			return err
		},
		"restart": func(ctx context.Context, _ *fixture, s *workspace.Service) error {
			_, err := s.RestartService(ctx, "o", "shop", "db")
			return err
		},
		"crash": func(ctx context.Context, w *fixture, s *workspace.Service) error {
			got, err := s.Get(ctx, "o", "shop")
			if err != nil {
				return err
			}
			w.in("", func(*fakeSandbox) { w.lose(got.Services[0].Sandbox) })
			time.Sleep(20 * time.Second)
			return nil
		},
		"stop": func(ctx context.Context, _ *fixture, s *workspace.Service) error { return s.Stop(ctx, "o", "shop") },
		"start": func(ctx context.Context, _ *fixture, s *workspace.Service) error {
			_, err := s.Start(ctx, "o", "shop")
			return err
		},
		"remove": func(ctx context.Context, _ *fixture, s *workspace.Service) error {
			return s.RemoveService(ctx, "o", "shop", "redis")
		},
		"end": func(ctx context.Context, _ *fixture, s *workspace.Service) error { return s.Remove(ctx, "o", "shop") },
	}
	for stage, do := range stages {
		t.Run(stage, func(t *testing.T) {
			cuts, least, every := 0, 3, 1
			if testing.Short() {
				least, every = 1, 6
			}
			for left, cut := 0, true; cut; left += every {
				synctest.Test(t, func(t *testing.T) {
					w := newFixture(t)
					s, stop := w.begin(t)
					ctx := t.Context()
					if stage != "create" {
						if err := stages["create"](ctx, w, s); err != nil {
							t.Fatal(err)
						}
						w.in("", func(*fakeSandbox) {
							for _, v := range w.volumes {
								v.rows = 7
							}
						})
					}
					if stage == "start" {
						if err := s.Stop(ctx, "o", "shop"); err != nil {
							t.Fatal(err)
						}
					}
					w.power(left)
					cutting, cancel := context.WithTimeout(ctx, 5*time.Minute)
					err := do(cutting, w, s)
					cancel()
					stop()
					if cut = w.power(-1); !cut && err != nil {
						t.Errorf("without a cut: %v", err)
					}
					if cut {
						cuts++
					}
					s, stop = w.begin(t)
					time.Sleep(30 * time.Second)
					w.settled(t, s, stage, left)
					// Everything can be removed.
					if _, err := s.Get(ctx, "o", "shop"); err == nil {
						if err := s.Remove(ctx, "o", "shop"); err != nil {
							t.Errorf("cut %d of %s: %v", left, stage, err)
						}
					}
					if len(w.boxes)+len(w.volumes) != 0 {
						t.Errorf("cut %d of %s: %d sandboxes and %d volumes are left at the end", left, stage, len(w.boxes), len(w.volumes))
					}
					stop()
					w.servers.Wait()
				})
			}
			if cuts < least && stage != "crash" || cuts == 0 {
				t.Errorf("the power was cut %d times", cuts)
			}
			t.Logf("%d cuts", cuts)
		})
	}
}

// settled reports services that differ from the intended state in their record, sandboxes and
// volumes without a record, and lost data.
func (w *fixture) settled(t *testing.T, s *workspace.Service, stage string, left int) {
	t.Helper()
	all, err := s.List(t.Context(), "o", engi.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	boxes, kept := map[engi.SandboxID]bool{}, map[engi.VolumeID]bool{}
	for _, ws := range all {
		boxes[ws.Sandbox] = ws.Sandbox != ""
		for _, sv := range ws.Services {
			boxes[sv.Sandbox], kept[sv.Volume] = sv.Sandbox != "", true
			if sv.State != engi.ServiceHealthy && sv.State != engi.ServiceStopped || (sv.State == engi.ServiceStopped) != (sv.Sandbox == "") {
				t.Errorf("cut %d of %s: %+v", left, stage, sv)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, b := range w.boxes {
		if !boxes[id] {
			t.Errorf("cut %d of %s: a sandbox is left, of %v", left, stage, b.Notes)
		}
	}
	for id, v := range w.volumes {
		if !kept[id] {
			t.Errorf("cut %d of %s: volume %s is left", left, stage, v.Name)
		}
		if stage != "create" && v.rows != 7 && !strings.HasSuffix(v.Name, "-mysql") {
			t.Errorf("cut %d of %s: volume %s has %d rows", left, stage, v.Name, v.rows)
		}
	}
}
