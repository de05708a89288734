package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type serviceCommand struct {
	Add        serviceAdd          `cmd:"" help:"Add a service to a workspace, and wait until it is healthy."`
	List       serviceList         `cmd:"" aliases:"ls" help:"List the services of a workspace."`
	Restart    serviceRestart      `cmd:"" help:"Restart services of a workspace."`
	Logs       serviceLogs         `cmd:"" help:"Print the log of a service."`
	Connection workspaceConnection `cmd:"" help:"Show the address and password of a service for programs in the workspace."`
	Remove     serviceRemove       `cmd:"" name:"rm" aliases:"remove" help:"Delete services of a workspace and their data."`
}

type serviceAdd struct {
	Workspace string            `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Type      string            `arg:"" help:"Type: postgres, mysql, redis, mongodb or nginx." placeholder:"TYPE"`
	Name      string            `help:"Name in the workspace (default: the type)." placeholder:"NAME"`
	Version   string            `help:"Version (default: the newest)." placeholder:"VERSION"`
	Env       map[string]string `short:"e" help:"Environment variable for the server; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Exposed   bool              `help:"Expose the service's port to callers who can use the workspace."`
	Needs     []string          `help:"Services that must be healthy before it starts, separated by commas." placeholder:"NAME"`
}

func (serviceAdd) Help() string {
	return `Prints the host name of the service for programs in the workspace. Exits with 1 if the service
fails; it exists anyway, and 'engi workspace service logs' shows why.

Examples:
  engi workspace service add shop postgres
  engi workspace service add shop mysql --name old --version 10.11
  engi workspace service add shop nginx --needs postgres --exposed`
}

func (s *serviceAdd) Run(ctx context.Context, g *globals) error {
	q := v1.ServiceRequest{Name: s.Name, Type: s.Type, Version: s.Version, Env: s.Env, Exposed: s.Exposed, Needs: s.Needs}
	return g.startService(ctx, s.Workspace, func(d *connection) (v1.Service, error) { return d.AddService(ctx, s.Workspace, q) })
}

// startService prints the address of a started service.
func (g *globals) startService(ctx context.Context, workspace string, start func(*connection) (v1.Service, error)) error {
	return g.atServer(ctx, func(d *connection) error {
		if !g.JSON {
			g.note("the service is starting")
		}
		x, err := start(d)
		switch {
		case err != nil:
			return err
		case g.JSON:
			if err := g.printJSON(x); err != nil {
				return err
			}
		default:
			g.note("%s is %s", x.Name, x.State)
			fmt.Fprintf(g.out, "%s:%d\n", x.Host, x.Port)
		}
		return failedService(workspace, x)
	})
}

var services = table[v1.Service]{"SERVICE\tTYPE\tSERVER\tVERSION\tSTATE\tCPU\tMEMORY\tDISK\tHOST\tPORT\tSANDBOX\tERROR", func(x v1.Service) []any {
	why := ""
	if x.Error != nil {
		why, _, _ = strings.Cut(x.Error.Detail, "\n")
	}
	cpu, memory, disk := "", "", ""
	if u := x.Use; u != nil {
		cpu, memory, disk = u.CPUTime.Std().Round(100*time.Millisecond).String(), fmt.Sprintf("%d MiB", u.Memory>>20), fmt.Sprintf("%d MiB", u.Disk>>20)
	}
	return []any{x.Name, x.Type, x.Server, x.Version, x.State, cpu, memory, disk, x.Host, x.Port, x.SandboxID, why}
}, nil}

type serviceList struct {
	Workspace string `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
}

func (serviceList) Help() string {
	return `CPU is the processor time since the sandbox of the service was started, and DISK the size of the data.

Examples:
  engi workspace service list shop`
}

func (s *serviceList) Run(ctx context.Context, g *globals) error {
	return services.list(ctx, g, false, func(d *connection) ([]v1.Service, error) { return d.Services(ctx, s.Workspace) })
}

type serviceRestart struct {
	Workspace string `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Service   string `arg:"" help:"Service." placeholder:"SERVICE"`
}

func (serviceRestart) Help() string {
	return `The data stays. Exits with 1 if a service fails.

Examples:
  engi workspace service restart shop postgres`
}

func (s *serviceRestart) Run(ctx context.Context, g *globals) error {
	return g.startService(ctx, s.Workspace, func(d *connection) (v1.Service, error) { return d.RestartService(ctx, s.Workspace, s.Service) })
}

type serviceRemove struct {
	Workspace string   `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Services  []string `arg:"" name:"service" help:"Services." placeholder:"SERVICE"`
}

func (serviceRemove) Help() string { return example("engi workspace service rm shop redis") }

func (s *serviceRemove) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "removed", s.Services, func(d *connection, name string) error { return d.RemoveService(ctx, s.Workspace, name) })
}

type serviceLogs struct {
	Workspace string `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Service   string `arg:"" help:"Service." placeholder:"SERVICE"`
	Bytes     int    `help:"Size of the end of the log." default:"65536" placeholder:"N"`
}

func (serviceLogs) Help() string {
	return `Examples:
  engi workspace service logs shop postgres
  engi workspace service logs shop postgres --bytes 1000`
}

func (s *serviceLogs) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.ServiceLogs, error) {
		return d.ServiceLogs(ctx, s.Workspace, s.Service, s.Bytes)
	}, func(x v1.ServiceLogs) {
		for line := range strings.Lines(x.Text) {
			fmt.Fprintln(g.out, printable(strings.TrimRight(line, "\r\n")))
		}
	})
}

type workspaceConnect struct {
	Workspace string `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Service   string `arg:"" help:"Service; it must be exposed." placeholder:"SERVICE"`
	Listen    string `short:"l" help:"Address to listen on." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
}

func (workspaceConnect) Help() string {
	return `Prints the local address; for a database, as a URL with the password, as clients expect it. Runs
until it is interrupted.

Examples:
  engi workspace connect shop postgres
  engi workspace connect shop postgres --listen 127.0.0.1:5432`
}

func (s *workspaceConnect) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.Connection(ctx, s.Workspace, s.Service)
		if err != nil {
			return err
		}
		first, err := d.ConnectService(ctx, s.Workspace, s.Service) // reports an error before the first connection
		if err != nil {
			return err
		}
		first.Close()
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
		if err != nil {
			return engi.Errorf(engi.Invalid, "listen: %v", err).WithRemedy("choose another address with --listen")
		}
		var open sync.WaitGroup
		defer open.Wait()
		defer l.Close()
		defer context.AfterFunc(ctx, func() { l.Close() })()
		u, err := url.Parse(x.URL)
		if err != nil {
			return engi.Errorf(engi.Internal, "the address of the service is no URL").WithRemedy("see 'engi workspace service connection %s %s'", s.Workspace, s.Service)
		}
		u.Host = l.Addr().String()
		x.URL = u.String()
		if g.JSON {
			at := l.Addr().(*net.TCPAddr)
			x.Host, x.Port = at.IP.String(), at.Port
			err = g.printJSON(x)
		} else {
			_, err = fmt.Fprintln(g.out, x.URL)
		}
		if err != nil {
			return err
		}
		for {
			c, err := l.Accept()
			switch {
			case ctx.Err() != nil:
				return nil // the user interrupted it
			case err != nil:
				return engi.Errorf(engi.Unavailable, "listen: %v", err)
			}
			open.Go(func() {
				defer c.Close()
				to, err := d.ConnectService(ctx, s.Workspace, s.Service)
				if err != nil {
					g.note("%v", err)
					return
				}
				engi.Splice(ctx, c, to)
			})
		}
	})
}

type workspaceConnection struct {
	Workspace string `arg:"" help:"Workspace." placeholder:"WORKSPACE"`
	Service   string `arg:"" help:"Service." placeholder:"SERVICE"`
}

func (workspaceConnection) Help() string {
	return `Prints a URL as clients of the type expect it; with --json, also prints its parts.

Examples:
  engi workspace service connection shop postgres
  engi workspace exec shop -e DATABASE_URL="$(engi workspace service connection shop postgres)" -- npm test`
}

func (s *workspaceConnection) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Connection, error) { return d.Connection(ctx, s.Workspace, s.Service) },
		func(x v1.Connection) string { return x.URL })
}

// databaseFlags are the flags that select a database.
type databaseFlags struct {
	Service  string `short:"s" help:"Service (default: the only SQL service)." placeholder:"SERVICE"`
	Database string `help:"Database (default: the service's)." placeholder:"NAME"`
}

type workspaceSQL struct {
	Name     string   `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Args     []string `arg:"" optional:"" help:"Values for $1 or ?: JSON, or plain text." placeholder:"VALUE"`
	Code     string   `short:"c" help:"SQL text (default: standard input; if that is a terminal, psql or mariadb runs in it)." placeholder:"SQL"`
	ReadOnly bool     `help:"Run the query in a read-only transaction."`
	MaxRows  int      `help:"Maximum number of rows (default: 1,000)." placeholder:"N"`
	MaxBytes string   `help:"Maximum size of the values (default: 1MiB)." placeholder:"SIZE"`
	Timeout  string   `help:"Maximum run time (default: 30s)." placeholder:"D"`
	databaseFlags
}

func (workspaceSQL) Help() string {
	return `Prints rows as a table, with NULL for missing values; with --json, as an array of objects. Messages
of the database are printed on standard error. Exits with 1 if the database returns an error.

In a terminal, and without -c, psql or mariadb runs in the sandbox of the service, which the owner of
the workspace may enter.

Examples:
  engi workspace sql shop
  engi workspace sql shop -c 'select 42 as n' --json
  engi workspace sql shop -c 'select * from orders where id = $1' 7
  engi workspace sql shop < schema.sql
  engi workspace sql shop --service mysql --read-only -c 'show tables'`
}

func (w *workspaceSQL) Run(ctx context.Context, g *globals) error {
	if w.Code == "" && !g.JSON && term.IsTerminal(int(g.in.Fd())) {
		return w.interactive(ctx, g)
	}
	q := v1.QueryRequest{Service: w.Service, Database: w.Database, Text: w.Code, ReadOnly: w.ReadOnly, MaxRows: w.MaxRows}
	for _, a := range w.Args {
		raw := json.RawMessage(a)
		if !json.Valid(raw) {
			raw, _ = json.Marshal(a) // a string can be encoded
		}
		q.Args = append(q.Args, raw)
	}
	var err error
	if q.Timeout, err = duration("--timeout", w.Timeout); err != nil {
		return err
	}
	if q.MaxBytes, err = size("--max-bytes", w.MaxBytes); err != nil {
		return err
	}
	if w.Code == "" {
		if q.Text, err = g.text("-"); err != nil {
			return err
		}
	}
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.Query(ctx, w.Name, q)
		switch {
		case err != nil:
			return err
		case x.Error != nil:
			return refusedQuery(q.Text, x.Error)
		case g.JSON:
			err = g.printRows(x)
		case len(x.Columns) > 0:
			g.showRows(x)
		}
		if err != nil {
			return err
		}
		if len(x.Columns) == 0 && x.Affected != nil && !g.JSON {
			g.note("%d rows affected", *x.Affected)
		}
		if x.Truncated {
			g.note("there are more rows; --max-rows and --max-bytes bound them")
		}
		return nil
	})
}

// interactive runs the client of a database in the sandbox of its service, in this terminal.
func (w *workspaceSQL) interactive(ctx context.Context, g *globals) error {
	if len(w.Args) > 0 || w.ReadOnly || w.MaxRows != 0 || w.MaxBytes != "" || w.Timeout != "" {
		return engi.Errorf(engi.Invalid, "values and limits are those of one query").WithRemedy("write the query with -c, or leave them out")
	}
	return g.atServer(ctx, func(d *connection) error {
		all, err := d.Services(ctx, w.Name)
		if err != nil {
			return err
		}
		s, err := w.choose(all)
		if err != nil {
			return err
		}
		q, err := w.console(s)
		if err != nil {
			return err
		}
		to, err := d.Connection(ctx, w.Name, s.Name)
		if err != nil {
			return err
		}
		database := cmp.Or(w.Database, to.Database)
		switch s.Type {
		case v1.ServicePostgres:
			q.Args = append(q.Args, "--username="+to.User, "--dbname="+database)
			q.Env = map[string]string{"PGPASSWORD": to.Password, "PAGER": "more"} // less is not in the template
		case v1.ServiceMySQL:
			q.Args = append(q.Args, "--user="+to.User, "--database="+database)
			q.Env = map[string]string{"MYSQL_PWD": to.Password}
		}
		_, err = g.inTerminal(ctx, d, s.SandboxID, q)
		switch {
		case errors.Is(err, errDetached):
			return nil
		case client.IsKind(err, v1.NotFound): // collaborators may not enter the sandboxes of services
			return engi.Errorf(engi.Denied, "only the owner of workspace %s may run a program in the sandbox of service %s", w.Name, s.Name).
				WithRemedy("write the query with -c, or connect a client of yours with 'engi workspace connect %s %s'", w.Name, s.Name)
		}
		return err
	})
}

// choose returns the service that the flags name, or the only one that speaks SQL.
func (w *workspaceSQL) choose(all []v1.Service) (v1.Service, error) {
	var found []v1.Service
	for _, s := range all {
		if s.Name == w.Service || w.Service == "" && (s.Type == v1.ServicePostgres || s.Type == v1.ServiceMySQL) {
			found = append(found, s)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return v1.Service{}, engi.Errorf(engi.Invalid, "workspace %s has several services that speak SQL", w.Name).WithRemedy("name one with --service")
	case w.Service != "":
		return v1.Service{}, engi.Errorf(engi.NotFound, "workspace %s has no service %s", w.Name, w.Service).WithRemedy("'engi workspace service list %s' shows its services", w.Name)
	}
	return v1.Service{}, engi.Errorf(engi.NotFound, "workspace %s has no service that speaks SQL", w.Name).WithRemedy("add one with 'engi workspace service add %s postgres'", w.Name)
}

// console returns the client of a service's type, without user and password.
func (w *workspaceSQL) console(s v1.Service) (q v1.ProcessRequest, err error) {
	refuse := func(remedy string) error {
		return engi.Errorf(engi.Unsupported, "service %s is of type %s, which does not speak SQL", s.Name, s.Type).WithRemedy("%s", remedy)
	}
	port := fmt.Sprintf("--port=%d", s.Port)
	switch s.Type {
	case v1.ServicePostgres:
		q.Args = []string{"psql", "--host=127.0.0.1", port}
	case v1.ServiceMySQL:
		q.Args = []string{"mariadb", "--protocol=tcp", "--host=127.0.0.1", port}
	case v1.ServiceRedis:
		return q, refuse(fmt.Sprintf("run a command with 'engi workspace redis %s --service %s -- COMMAND'", w.Name, s.Name))
	case v1.ServiceMongoDB:
		return q, refuse(fmt.Sprintf("find documents with 'engi workspace find %s COLLECTION --service %s'", w.Name, s.Name))
	case v1.ServiceNginx:
		return q, refuse(fmt.Sprintf("open its pages with 'engi workspace preview %s --link --service %s'", w.Name, s.Name))
	default:
		return q, refuse(fmt.Sprintf("connect a client with 'engi workspace connect %s %s'", w.Name, s.Name))
	}
	if s.SandboxID == "" {
		return q, engi.Errorf(engi.Conflict, "service %s is %s", s.Name, s.State).WithRemedy("start it with 'engi workspace start %s'", w.Name)
	}
	return q, nil
}

// refusedQuery returns the error for a text that a database refused.
func refusedQuery(text string, e *v1.QueryError) error {
	said := printable(e.Text)
	if e.Code != "" {
		said += " (" + printable(e.Code) + ")"
	}
	if e.Position > 0 {
		before := text
		if all := []rune(text); e.Position <= len(all) {
			before = string(all[:e.Position-1])
		}
		last := before[strings.LastIndexByte(before, '\n')+1:]
		said += fmt.Sprintf(" at %d:%d", strings.Count(before, "\n")+1, utf8.RuneCountInString(last)+1)
	}
	if e.Detail != "" {
		said += ": " + printable(e.Detail)
	}
	return engi.Errorf(engi.Invalid, "the database: %s", said).WithRemedy("%s", cmp.Or(printable(e.Hint), "correct the query"))
}

// printRows prints an object for each row, with members in the order of the columns.
func (g *globals) printRows(x v1.QueryResult) error {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, row := range x.Rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('{')
		for j, value := range row[:min(len(row), len(x.Columns))] {
			if j > 0 {
				b.WriteByte(',')
			}
			name, err := json.Marshal(x.Columns[j].Name)
			if err != nil {
				return engi.Errorf(engi.Internal, "print rows: %v", err)
			}
			b.Write(name)
			b.WriteByte(':')
			b.Write(value)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return g.printJSON(json.RawMessage(b.Bytes()))
}

// showRows prints rows as a table, in which empty values are visible.
func (g *globals) showRows(x v1.QueryResult) {
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	cells := make([]string, len(x.Columns))
	for i, c := range x.Columns {
		cells[i] = printable(c.Name)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
	for _, row := range x.Rows {
		for i, value := range row[:min(len(row), len(cells))] {
			var s string
			switch {
			case string(value) == "null":
				s = "NULL"
			case json.Unmarshal(value, &s) != nil: // the value is not a string
				s = string(value)
			}
			cells[i] = printable(s)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // an error means that the reader of the output has left
}

type workspaceExplain struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Code string `short:"c" help:"Query (default: standard input)." placeholder:"SQL"`
	databaseFlags
}

func (workspaceExplain) Help() string {
	return `The query is explained, not run.

Examples:
  engi workspace explain shop -c 'select * from orders where id = 7'`
}

func (w *workspaceExplain) Run(ctx context.Context, g *globals) error {
	if w.Code == "" {
		var err error
		if w.Code, err = g.text("-"); err != nil {
			return err
		}
	}
	q := v1.QueryRequest{Service: w.Service, Database: w.Database, Text: w.Code}
	return show(ctx, g, func(d *connection) (v1.QueryPlan, error) { return d.Explain(ctx, w.Name, q) }, func(x v1.QueryPlan) {
		for line := range strings.Lines(x.Text) {
			fmt.Fprintln(g.out, printable(strings.TrimRight(line, "\r\n")))
		}
	})
}

type workspaceTables struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	databaseFlags
}

func (workspaceTables) Help() string {
	return `System tables are not listed. Numbers of rows are estimates of the database. A service of type mongodb
has collections instead of tables.

Examples:
  engi workspace tables shop
  engi workspace tables shop --service mongodb`
}

func (w *workspaceTables) Run(ctx context.Context, g *globals) error {
	tables := table[v1.Table]{"SCHEMA\tTABLE\tKIND\tROWS\tSIZE", func(x v1.Table) []any {
		rows, size := "", ""
		if x.Rows != nil {
			rows = fmt.Sprint(*x.Rows)
		}
		if x.Size != nil {
			size = x.Size.String()
		}
		return []any{x.Schema, x.Name, x.Kind, rows, size}
	}, nil}
	return tables.list(ctx, g, false, func(d *connection) ([]v1.Table, error) { return d.Tables(ctx, w.Name, w.Service, w.Database) })
}

type workspaceTable struct {
	Name  string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Table string `arg:"" help:"Table, optionally as SCHEMA.TABLE." placeholder:"TABLE"`
	databaseFlags
}

func (workspaceTable) Help() string {
	return `Examples:
  engi workspace describe shop orders
  engi workspace describe shop public.orders --json | jq '.columns[].name'`
}

func (w *workspaceTable) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.TableDescription, error) {
		return d.DescribeTable(ctx, w.Name, w.Service, w.Database, w.Table)
	}, func(x v1.TableDescription) {
		rows := make([][]any, len(x.Columns))
		for i, c := range x.Columns {
			null := "not null"
			if c.Nullable {
				null = ""
			}
			rows[i] = []any{c.Name, c.Type, null, c.Default}
		}
		g.columns("COLUMN\tTYPE\tNULL\tDEFAULT", rows)
		rows = nil
		for _, y := range x.Indexes {
			rows = append(rows, []any{y.Name, "index", y.Definition})
		}
		for _, y := range x.Constraints {
			rows = append(rows, []any{y.Name, y.Kind, y.Definition})
		}
		if len(rows) > 0 {
			fmt.Fprintln(g.out)
			g.columns("NAME\tKIND\tDEFINITION", rows)
		}
	})
}

type workspaceFind struct {
	Name       string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Collection string `arg:"" optional:"" help:"Collection; may be left out if the pipeline needs none." placeholder:"COLLECTION"`
	Filter     string `arg:"" optional:"" help:"Filter, as a JSON object (default: all documents)." placeholder:"FILTER"`
	Projection string `help:"Fields of the documents to print, as a JSON object (default: all)." placeholder:"JSON"`
	Sort       string `help:"Order, as a JSON object: 1 for ascending, -1 for descending." placeholder:"JSON"`
	Skip       int64  `help:"Number of documents to skip." placeholder:"N"`
	Pipeline   string `help:"Stages of an aggregation, as a JSON list, instead of a filter, --projection, --sort and --skip." placeholder:"JSON"`
	MaxRows    int    `help:"Maximum number of documents (default: 1,000)." placeholder:"N"`
	MaxBytes   string `help:"Maximum size of the documents (default: 1MiB)." placeholder:"SIZE"`
	Timeout    string `help:"Maximum run time (default: 30s)." placeholder:"D"`
	Service    string `short:"s" help:"Service (default: the only one of type mongodb)." placeholder:"SERVICE"`
	Database   string `help:"Database (default: the service's)." placeholder:"NAME"`
}

func (workspaceFind) Help() string {
	return `Prints a document per line, as MongoDB Extended JSON; with --json, as an array. A type that JSON does
not have is an object, like {"$oid": "665f1c2b9d3e4a0001000000"}. Exits with 1 if the database returns an error.

Examples:
  engi workspace find shop orders
  engi workspace find shop orders '{"total": {"$gt": 5}}' --sort '{"total": -1}' --max-rows 10
  engi workspace find shop orders --projection '{"_id": 0, "total": 1}' --json | jq '.[].total'
  engi workspace find shop orders --pipeline '[{"$group": {"_id": "$day", "total": {"$sum": "$total"}}}]'`
}

func (w *workspaceFind) Run(ctx context.Context, g *globals) error {
	q := v1.CollectionRequest{Collection: w.Collection, Service: w.Service, Database: w.Database, Skip: w.Skip, MaxRows: w.MaxRows}
	for _, part := range []struct {
		name, text string
		to         *json.RawMessage
	}{{"the filter", w.Filter, &q.Filter}, {"--projection", w.Projection, &q.Projection}, {"--sort", w.Sort, &q.Sort}, {"--pipeline", w.Pipeline, &q.Pipeline}} {
		if part.text == "" {
			continue
		}
		if *part.to = json.RawMessage(part.text); !json.Valid(*part.to) {
			return engi.Errorf(engi.Invalid, "%s is not JSON", part.name).WithRemedy(`write it in single quotes, like '{"total": {"$gt": 5}}'`)
		}
	}
	var err error
	if q.Timeout, err = duration("--timeout", w.Timeout); err != nil {
		return err
	}
	if q.MaxBytes, err = size("--max-bytes", w.MaxBytes); err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.QueryCollection(ctx, w.Name, q)
		switch {
		case err != nil:
			return err
		case x.Error != nil:
			return refusedQuery("", x.Error)
		case g.JSON:
			if err := g.printJSON(x.Documents); err != nil {
				return err
			}
		default:
			for _, document := range x.Documents {
				fmt.Fprintln(g.out, printable(string(document)))
			}
		}
		if x.Truncated {
			g.note("there are more documents; --max-rows and --max-bytes bound them")
		}
		return nil
	})
}

type workspaceRedis struct {
	Name    string   `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Command []string `arg:"" help:"Command and arguments, after --." placeholder:"COMMAND"`
	Service string   `short:"s" help:"Service (default: the only Redis service)." placeholder:"SERVICE"`
}

func (workspaceRedis) Help() string {
	return `Prints the reply: plain text unchanged, other values as JSON.

Examples:
  engi workspace redis shop -- SET greeting hello
  engi workspace redis shop -- GET greeting`
}

func (w *workspaceRedis) Run(ctx context.Context, g *globals) error {
	refused := false
	err := show(ctx, g, func(d *connection) (json.RawMessage, error) {
		service := w.Service
		if service == "" {
			all, err := d.Services(ctx, w.Name)
			if err != nil {
				return nil, err
			}
			for _, s := range all {
				if s.Type != v1.ServiceRedis {
					continue
				}
				if service != "" {
					return nil, engi.Errorf(engi.Invalid, "workspace %s has several services of type redis", w.Name).WithRemedy("name one with --service")
				}
				service = s.Name
			}
			if service == "" {
				return nil, engi.Errorf(engi.NotFound, "workspace %s has no service of type redis", w.Name).WithRemedy("add one with 'engi workspace service add %s redis'", w.Name)
			}
		}
		x, err := d.RedisCommand(ctx, w.Name, service, w.Command...)
		refused = x.Refused
		return x.Reply, err
	}, func(reply json.RawMessage) {
		var s string
		if string(reply) == "null" || json.Unmarshal(reply, &s) != nil {
			s = string(reply)
		}
		for line := range strings.Lines(s) {
			fmt.Fprintln(g.out, printable(strings.TrimRight(line, "\r\n")))
		}
	})
	if err == nil && refused {
		return engi.Errorf(engi.Invalid, "redis has refused the command").WithRemedy("correct the command as the reply describes")
	}
	return err
}
