package workspace

import (
	"context"
	"net"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
	"github.com/engi-dev/engi/internal/workspace/server"
)

// Query implements [engi.WorkspaceDatabases].
func (s *Service) Query(ctx context.Context, q engi.Query) (r engi.QueryResult, err error) {
	defer engi.Annotate(&err, "workspace %.70s", q.Workspace)
	need := engi.RoleEditor
	if q.ReadOnly {
		need = engi.RoleReviewer
	}
	db, leave, err := s.enterDatabase(ctx, q.Viewer, q.Workspace, q.Service, need, speakSQL)
	if err != nil {
		return r, err
	}
	defer leave()
	return db.Query(ctx, q)
}

// Explain implements [engi.WorkspaceDatabases].
func (s *Service) Explain(ctx context.Context, q engi.Query) (plan string, err error) {
	err = s.look(ctx, q, speakSQL, func(db database.Server, q engi.Query) error {
		plan, err = db.Explain(ctx, q)
		return err
	})
	return plan, err
}

// Documents implements [engi.WorkspaceDatabases]. A query that only reads needs no other user than that
// of the service: no other commands are sent than those that read.
func (s *Service) Documents(ctx context.Context, q engi.DocumentQuery) (r engi.DocumentResult, err error) {
	defer engi.Annotate(&err, "workspace %.70s", q.Workspace)
	need := engi.RoleReviewer
	if database.Writes(q) {
		need = engi.RoleEditor
		if q.ReadOnly {
			return r, engi.Errorf(engi.Denied, "the pipeline writes into a collection, and the query is read-only").WithRemedy("leave out $out and $merge")
		}
	}
	db, leave, err := s.enterDatabase(ctx, q.Viewer, q.Workspace, q.Service, need, speakMongo)
	if err != nil {
		return r, err
	}
	defer leave()
	return db.Documents(ctx, q)
}

// Tables implements [engi.WorkspaceDatabases].
func (s *Service) Tables(ctx context.Context, q engi.Query) (tables []engi.Table, err error) {
	l := speakSQL
	if q.Service != "" {
		l = haveTables
	}
	err = s.look(ctx, q, l, func(db database.Server, q engi.Query) error {
		tables, err = db.Tables(ctx, q)
		return err
	})
	return tables, err
}

// Describe implements [engi.WorkspaceDatabases].
func (s *Service) Describe(ctx context.Context, q engi.Query, table string) (d engi.TableDescription, err error) {
	err = s.look(ctx, q, speakSQL, func(db database.Server, q engi.Query) error {
		d, err = db.Describe(ctx, q, table)
		return err
	})
	return d, err
}

// look calls f with a database that speaks l. f must only read, so that reviewers may call it. For reviewers,
// it connects as a database user who may only read.
func (s *Service) look(ctx context.Context, q engi.Query, l language, f func(db database.Server, q engi.Query) error) (err error) {
	defer engi.Annotate(&err, "workspace %.70s", q.Workspace)
	r, err := s.find(ctx, q.Viewer, q.Workspace, engi.RoleReviewer)
	if err != nil {
		return err
	}
	// The role may change before it is checked again. The check below therefore requires the role
	// on which the decision was based.
	need := engi.RoleEditor
	if q.ReadOnly = q.ReadOnly || r.RoleOf(q.Viewer) == engi.RoleReviewer; q.ReadOnly {
		need = engi.RoleReviewer
	}
	db, leave, err := s.enterDatabase(ctx, q.Viewer, q.Workspace, q.Service, need, l)
	if err != nil {
		return err
	}
	defer leave()
	return f(db, q)
}

// Command implements [engi.WorkspaceDatabases]. It requires an editor, because commands that only
// read cannot be told from others.
func (s *Service) Command(ctx context.Context, viewer engi.Viewer, workspace, service string, args []string) (_ engi.CommandReply, err error) {
	defer engi.Annotate(&err, "workspace %.70s", workspace)
	db, leave, err := s.enterDatabase(ctx, viewer, workspace, service, engi.RoleEditor, speakRedis)
	if err != nil {
		return engi.CommandReply{}, err
	}
	defer leave()
	return db.Command(ctx, args)
}

// A language is the query language of some types of services.
type language struct {
	name  string
	types []engi.ServiceType
}

var (
	speakSQL   = language{"SQL", []engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL}}
	speakRedis = language{"commands of redis", []engi.ServiceType{engi.ServiceRedis}}
	speakMongo = language{"queries of documents", []engi.ServiceType{engi.ServiceMongoDB}}
	haveTables = language{"SQL or queries of documents", slices.Concat(speakSQL.types, speakMongo.types)}
)

// choose returns the service with a name; an empty name selects the only service that speaks l.
func (l language) choose(r Record, name string) (ServiceRecord, error) {
	speaks := func(sr ServiceRecord) bool { return slices.Contains(l.types, sr.Type) }
	if name != "" {
		sr, err := r.service(name)
		if err == nil && !speaks(sr) {
			err = engi.Errorf(engi.Unsupported, "service %s is of type %s, which does not support %s", sr.Name, sr.Type, l.name)
		}
		return sr, err
	}
	var found []ServiceRecord
	var names []string
	for _, sr := range r.Services {
		if !sr.Going && speaks(sr) {
			found, names = append(found, sr), append(names, sr.Name)
		}
	}
	switch len(found) {
	case 0:
		return ServiceRecord{}, engi.Errorf(engi.NotFound, "it has no service that supports %s", l.name).WithRemedy("add a service of type %s", l.types[0])
	case 1:
		return found[0], nil
	}
	return ServiceRecord{}, engi.Errorf(engi.Invalid, "several services speak %s", l.name).WithRemedy("name one: %s", strings.Join(names, ", "))
}

// enterDatabase returns a server if viewer has at least the role need. It keeps the sandbox in use
// until leave is called.
func (s *Service) enterDatabase(ctx context.Context, viewer engi.Viewer, workspace, service string, need engi.WorkspaceRole, l language) (db database.Server, leave func(), err error) {
	r, err := s.find(ctx, viewer, workspace, need)
	if err != nil {
		return db, nil, err
	}
	sr, err := l.choose(r, service)
	if err != nil {
		return db, nil, err
	}
	k, err := sr.kind()
	if err != nil {
		return db, nil, err
	}
	if sr.Sandbox == "" {
		return db, nil, engi.Errorf(engi.Conflict, "service %s is %s", sr.Name, sr.State).WithRemedy("start the workspace, and wait until the service is healthy")
	}
	g, leave, err := s.opt.Sandboxes.Enter(ctx, engi.Everyone, sr.Sandbox)
	if err != nil {
		return db, nil, err
	}
	a, users := sr.access(), ""
	if sr.Template != "" {
		users = server.MongodUsers
	}
	return database.Server{
		Type: sr.Type, User: a.User, Password: a.Password, Database: a.Database, Users: users,
		Dial: func(ctx context.Context) (net.Conn, error) { return g.Dial(ctx, k.Port) },
	}, leave, nil
}
