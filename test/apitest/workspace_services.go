package apitest

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// service returns a service by name.
func (x *workspace) service(name string) (*engi.Service, error) {
	i := slices.IndexFunc(x.Services, func(s engi.Service) bool { return s.Name == name })
	if i < 0 {
		return nil, engi.Errorf(engi.NotFound, "workspace %s has no service %.80q", x.Name, name).WithRemedy("add one")
	}
	return &x.Services[i], nil
}

func (x *workspace) add(spec engi.ServiceSpec) (engi.Service, error) {
	s, ok := servers[spec.Type]
	s.Name, s.Type, s.Exposed, s.Needs, s.Volume = cmp.Or(spec.Name, string(spec.Type)), spec.Type, spec.Exposed, spec.Needs, engi.NewVolumeID()
	s.Host = s.Name + ".workspace.internal"
	switch {
	case !ok:
		return s, engi.Errorf(engi.Invalid, "there are no services of type %.40q", spec.Type)
	case !serviceNames.MatchString(s.Name):
		return s, engi.Errorf(engi.Invalid, "%.80q is not the name of a service", s.Name).WithRemedy("use lower-case letters, digits and dashes")
	case spec.Version == "broken":
		s.Version = spec.Version
	case spec.Version != "" && spec.Version != "latest" && !strings.HasPrefix(s.Version, spec.Version):
		return s, engi.Errorf(engi.NotFound, "there is no version %.40q of %s", spec.Version, spec.Type).WithRemedy("leave it out, or use %s", s.Version)
	}
	if _, err := x.service(s.Name); err == nil {
		return s, engi.Errorf(engi.Conflict, "workspace %s has a service %q already", x.Name, s.Name).WithRemedy("choose another name")
	}
	for _, name := range s.Needs {
		if _, err := x.service(name); err != nil {
			return s, err
		}
	}
	serve(&s)
	x.Services = append(x.Services, s)
	slices.SortFunc(x.Services, func(a, b engi.Service) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// withService calls do with a service, if owner has the role.
func withService[T any](w *Workspaces, viewer engi.Viewer, name, service string, role engi.WorkspaceRole, do func(*workspace, *engi.Service) (T, error)) (T, error) {
	return with(w, viewer, name, role, func(x *workspace) (T, error) {
		s, err := x.service(service)
		if err != nil {
			var none T
			return none, err
		}
		return do(x, s)
	})
}

// AddService implements engi.Workspaces.
func (w *Workspaces) AddService(_ context.Context, viewer engi.Viewer, name string, spec engi.ServiceSpec) (engi.Service, error) {
	return with(w, viewer, name, engi.RoleEditor, func(x *workspace) (engi.Service, error) { return x.add(spec) })
}

// RemoveService implements engi.Workspaces.
func (w *Workspaces) RemoveService(_ context.Context, viewer engi.Viewer, name, service string) error {
	_, err := withService(w, viewer, name, service, engi.RoleEditor, func(x *workspace, _ *engi.Service) (engi.Service, error) {
		x.Services = slices.DeleteFunc(x.Services, func(s engi.Service) bool { return s.Name == service })
		return engi.Service{}, nil
	})
	return err
}

// RestartService implements engi.Workspaces.
func (w *Workspaces) RestartService(_ context.Context, viewer engi.Viewer, name, service string) (engi.Service, error) {
	return withService(w, viewer, name, service, engi.RoleEditor, func(_ *workspace, s *engi.Service) (engi.Service, error) {
		serve(s)
		return *s, nil
	})
}

// Connection implements engi.Workspaces.
func (w *Workspaces) Connection(_ context.Context, viewer engi.Viewer, name, service string) (engi.Connection, error) {
	return withService(w, viewer, name, service, engi.RoleEditor, func(_ *workspace, s *engi.Service) (engi.Connection, error) {
		return engi.Connection{Host: s.Host, Port: s.Port, User: "engi", Password: "secret", Database: "engi", URL: string(s.Type) + "://engi:secret@" + s.Host + "/engi"}, nil
	})
}

// ServiceUse implements engi.Workspaces: each healthy service uses the same.
func (w *Workspaces) ServiceUse(_ context.Context, viewer engi.Viewer, name string) (map[string]engi.ServiceUse, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) (map[string]engi.ServiceUse, error) {
		all := map[string]engi.ServiceUse{}
		for _, s := range x.Services {
			if s.Sandbox != "" {
				all[s.Name] = engi.ServiceUse{CPU: 1500 * time.Millisecond, CPUPercent: 3.5, Memory: 48 << 20, MemoryLimit: 1 << 30, Disk: 40 << 20, DiskLimit: 4 << 30}
			}
		}
		return all, nil
	})
}

// ServiceLogs implements engi.Workspaces.
func (w *Workspaces) ServiceLogs(_ context.Context, viewer engi.Viewer, name, service string, max int) (string, error) {
	return withService(w, viewer, name, service, engi.RoleViewer, func(_ *workspace, s *engi.Service) (string, error) {
		text := s.Server + " is ready to accept connections\n"
		return text[len(text)-min(max, len(text)):], nil
	})
}

// database returns the database of a query; the caller must hold the lock.
func (x *workspace) database(q engi.Query) (*engi.Service, error) {
	if q.Service != "" {
		s, err := x.service(q.Service)
		if err == nil && s.Type != engi.ServicePostgres && s.Type != engi.ServiceMySQL {
			err = engi.Errorf(engi.Invalid, "service %s does not speak SQL", s.Name)
		}
		return s, err
	}
	var found *engi.Service
	for i, s := range x.Services {
		if s.Type != engi.ServicePostgres && s.Type != engi.ServiceMySQL {
			continue
		}
		if found != nil {
			return nil, engi.Errorf(engi.Invalid, "workspace %s has several services that speak SQL", x.Name).WithRemedy("name one")
		}
		found = &x.Services[i]
	}
	if found == nil {
		return nil, engi.Errorf(engi.NotFound, "workspace %s has no service that speaks SQL", x.Name).WithRemedy("add postgres or mysql")
	}
	return found, nil
}

// ask calls do with the database of a query, if the owner has the role.
func ask[T any](w *Workspaces, q engi.Query, role engi.WorkspaceRole, do func(*engi.Service) (T, error)) (T, error) {
	return with(w, q.Viewer, q.Workspace, role, func(x *workspace) (T, error) {
		var none T
		s, err := x.database(q)
		switch {
		case err != nil:
			return none, err
		case s.State != engi.ServiceHealthy:
			return none, engi.Errorf(engi.Unavailable, "service %s of workspace %s is %s", s.Name, x.Name, s.State).WithRemedy("start the workspace")
		}
		return do(s)
	})
}

// Query implements engi.Workspaces.
func (w *Workspaces) Query(_ context.Context, q engi.Query) (engi.QueryResult, error) {
	role := engi.RoleEditor
	if q.ReadOnly {
		role = engi.RoleReviewer
	}
	return ask(w, q, role, func(*engi.Service) (engi.QueryResult, error) {
		r := engi.QueryResult{Affected: -1, Took: time.Millisecond}
		m := selects.FindStringSubmatch(q.Text)
		switch i := strings.Index(q.Text, "fail"); {
		case i >= 0:
			r.Error = &engi.QueryError{Code: "42601", Text: `syntax error at or near "fail"`, Position: i + 1, Hint: "write something else"}
		case m != nil:
			column, value := engi.Column{Name: m[2], Type: "int4"}, json.RawMessage(m[1])
			switch {
			case m[1] == "$1" && len(q.Args) > 0:
				value, _ = json.Marshal(q.Args[0]) // the argument came as JSON
			case !json.Valid(value):
				column.Type = "text"
				value, _ = json.Marshal(strings.Trim(m[1], "'")) // a string can always be marshalled
			}
			r.Columns, r.Rows, r.Affected = []engi.Column{column}, [][]json.RawMessage{{value}}, 1
		case q.ReadOnly:
			r.Error = &engi.QueryError{Code: "25006", Text: "cannot execute this in a read-only transaction"}
		default:
			r.Affected = 1
		}
		return r, nil
	})
}

// Documents implements engi.Workspaces.
func (w *Workspaces) Documents(_ context.Context, q engi.DocumentQuery) (engi.DocumentResult, error) {
	role := engi.RoleReviewer
	if strings.Contains(string(q.Pipeline), "$out") {
		role = engi.RoleEditor
	}
	return withService(w, q.Viewer, q.Workspace, cmp.Or(q.Service, string(engi.ServiceMongoDB)), role, func(_ *workspace, s *engi.Service) (engi.DocumentResult, error) {
		r := engi.DocumentResult{Took: time.Millisecond}
		if err := q.Faults().Err(); err != nil {
			return r, err
		}
		switch {
		case s.Type != engi.ServiceMongoDB:
			return r, engi.Errorf(engi.Invalid, "service %s has no documents", s.Name)
		case strings.Contains(string(q.Filter)+string(q.Pipeline), "$fail"):
			r.Error = &engi.QueryError{Code: "BadValue", Text: "unknown operator: $fail"}
		case q.Collection == "orders":
			r.Documents = []json.RawMessage{json.RawMessage(`{"_id":{"$oid":"665f1c2b9d3e4a0001000000"},"total":7}`)}
			r.Truncated = q.MaxRows == 1
		}
		return r, nil
	})
}

// Explain implements engi.Workspaces.
func (w *Workspaces) Explain(_ context.Context, q engi.Query) (string, error) {
	return ask(w, q, engi.RoleReviewer, func(*engi.Service) (string, error) { return "Result  (cost=0.00..0.01 rows=1 width=4)\n", nil })
}

var orders = engi.Table{Schema: "public", Name: "orders", Kind: "table", Rows: 3, Bytes: 32 << 10}

// Tables implements engi.Workspaces.
func (w *Workspaces) Tables(_ context.Context, q engi.Query) ([]engi.Table, error) {
	return ask(w, q, engi.RoleViewer, func(*engi.Service) ([]engi.Table, error) {
		return []engi.Table{orders, {Schema: "public", Name: "paid", Kind: "view", Rows: -1, Bytes: -1}}, nil
	})
}

// Describe implements engi.Workspaces.
func (w *Workspaces) Describe(_ context.Context, q engi.Query, table string) (engi.TableDescription, error) {
	return ask(w, q, engi.RoleViewer, func(s *engi.Service) (engi.TableDescription, error) {
		if strings.TrimPrefix(table, "public.") != "orders" {
			return engi.TableDescription{}, engi.Errorf(engi.NotFound, "service %s has no table %.80q", s.Name, table).WithRemedy("list its tables")
		}
		return engi.TableDescription{
			Table:   orders,
			Columns: []engi.TableColumn{{Name: "id", Type: "integer", Default: "nextval('orders_id_seq'::regclass)"}, {Name: "note", Type: "text", Nullable: true}},
			Indexes: []engi.TableIndex{{Name: "orders_pkey", Definition: "CREATE UNIQUE INDEX orders_pkey ON public.orders USING btree (id)", Unique: true, Primary: true}},
			Constraints: []engi.TableConstraint{
				{Name: "orders_pkey", Kind: "primary key", Definition: "PRIMARY KEY (id)"},
			},
		}, nil
	})
}

// Command implements engi.Workspaces.
func (w *Workspaces) Command(_ context.Context, viewer engi.Viewer, name, service string, args []string) (engi.CommandReply, error) {
	return withService(w, viewer, name, service, engi.RoleEditor, func(x *workspace, s *engi.Service) (r engi.CommandReply, err error) {
		if s.Type != engi.ServiceRedis {
			return r, engi.Errorf(engi.Invalid, "service %s is not redis", s.Name)
		}
		var reply any
		switch verb := strings.ToUpper(args[0]); {
		case verb == "PING":
			reply = "PONG"
		case verb == "SET" && len(args) == 3:
			x.keys[service+" "+args[1]], reply = args[2], "OK"
		case verb == "GET" && len(args) == 2:
			if value, ok := x.keys[service+" "+args[1]]; ok {
				reply = value
			}
		default:
			reply, r.Refused = map[string]string{"error": "ERR unknown command"}, true
		}
		r.Value, err = json.Marshal(reply)
		return r, err
	})
}
