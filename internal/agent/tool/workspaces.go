package tool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Workspaces is the part of [engi.Workspaces] that the tools of workspaces use.
type Workspaces interface {
	WorkspaceFiles
	WorkspaceServices
}

// WorkspaceFiles is the part of [Workspaces] about workspaces and their files.
type WorkspaceFiles interface {
	Create(ctx context.Context, spec engi.WorkspaceSpec) (engi.Workspace, error)
	Get(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	Start(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	Change(ctx context.Context, viewer engi.Viewer, workspace string, c engi.WorkspaceChange) (engi.Workspace, error)
	Write(ctx context.Context, spec engi.WriteSpec) (engi.WorkspaceRevision, error)
	Files(ctx context.Context, viewer engi.Viewer, workspace string, revision int64) ([]engi.WorkspaceFile, error)
	File(ctx context.Context, viewer engi.Viewer, workspace, path string, revision int64) (io.ReadCloser, error)
}

// WorkspaceServices is the part of [Workspaces] about services and databases.
type WorkspaceServices interface {
	AddService(ctx context.Context, viewer engi.Viewer, workspace string, spec engi.ServiceSpec) (engi.Service, error)
	Connection(ctx context.Context, viewer engi.Viewer, workspace, service string) (engi.Connection, error)
	Query(ctx context.Context, q engi.Query) (engi.QueryResult, error)
	Explain(ctx context.Context, q engi.Query) (string, error)
	Tables(ctx context.Context, q engi.Query) ([]engi.Table, error)
	Describe(ctx context.Context, q engi.Query, table string) (engi.TableDescription, error)
	Command(ctx context.Context, viewer engi.Viewer, workspace, service string, args []string) (engi.CommandReply, error)
}

type createWorkspaceArgs struct {
	Name     string   `json:"name,omitempty" jsonschema:"letters, digits and dashes; default: a generated name"`
	Services []string `json:"services,omitempty" jsonschema:"postgres, mysql, redis, mongodb or nginx"`
}

type readWorkspaceArgs struct {
	Workspace string `json:"workspace" jsonschema:"ID or name"`
	Path      string `json:"path,omitempty" jsonschema:"file to read, relative to the workspace; default: lists files and services"`
}

type writeWorkspaceArgs struct {
	Workspace string               `json:"workspace" jsonschema:"ID or name"`
	Files     []writeWorkspaceFile `json:"files"`
	Message   string               `json:"message,omitempty" jsonschema:"message of the revision, one line"`
}

type enablePreviewArgs struct {
	Workspace string `json:"workspace" jsonschema:"ID or name"`
	Type      string `json:"type,omitempty" jsonschema:"static (the default): files of the workspace; proxy: a server in its sandbox; websocket: the same, with a WebSocket URL; none: no preview"`
	Root      string `json:"root,omitempty" jsonschema:"static only: directory to serve, relative to the workspace; default: the whole workspace"`
	Port      int    `json:"port,omitempty" jsonschema:"proxy and websocket only: port of the server"`
	Public    bool   `json:"public,omitempty" jsonschema:"everybody who has the URL can open the preview; default: only collaborators can"`
}

type writeWorkspaceFile struct {
	Path    string `json:"path" jsonschema:"relative to the workspace"`
	Content string `json:"content,omitempty"`
	Delete  bool   `json:"delete,omitempty" jsonschema:"delete the file"`
}

type addServiceArgs struct {
	Workspace string `json:"workspace" jsonschema:"ID or name"`
	Type      string `json:"type" enum:"postgres,mysql,redis,mongodb,nginx"`
	Version   string `json:"version,omitempty" jsonschema:"default: the newest"`
	Name      string `json:"name,omitempty" jsonschema:"default: the type"`
}

type runSQLArgs struct {
	Workspace string    `json:"workspace" jsonschema:"ID or name"`
	Query     string    `json:"query"`
	Args      exactArgs `json:"args,omitempty" jsonschema:"arguments for $1 (postgres) or ? (mysql)"`
	Service   string    `json:"service,omitempty" jsonschema:"default: the only SQL service"`
	ReadOnly  bool      `json:"read_only,omitempty" jsonschema:"run the query in a read-only transaction"`
	Explain   bool      `json:"explain,omitempty" jsonschema:"return the plan instead, without running the query"`
}

// exactArgs are JSON values whose numbers keep all their digits.
type exactArgs []any

// UnmarshalJSON implements json.Unmarshaler.
func (a *exactArgs) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode((*[]any)(a))
}

type describeTablesArgs struct {
	Workspace string `json:"workspace" jsonschema:"ID or name"`
	Table     string `json:"table,omitempty" jsonschema:"table to describe, optionally as SCHEMA.TABLE; default: lists the tables"`
	Service   string `json:"service,omitempty" jsonschema:"default: the only SQL service"`
}

type runRedisArgs struct {
	Workspace string   `json:"workspace" jsonschema:"ID or name"`
	Command   []string `json:"command" jsonschema:"command with its arguments, like GET and a key"`
	Service   string   `json:"service,omitempty" jsonschema:"default: redis"`
}

const (
	maxQueryRows  = 200
	maxQueryBytes = 64 << 10
	maxTables     = 400
	maxServices   = 16
)

func workspaceTools(s Services) ([]Tool, error) {
	if s.Workspaces == nil {
		return nil, nil
	}
	var all []Tool
	var first error
	add := func(repeatable bool) func(t Tool, err error) {
		return func(t Tool, err error) {
			if err != nil && first == nil {
				first = err
			}
			t.Repeatable = repeatable
			all = append(all, t)
		}
	}
	add(false)(New("create_workspace", "Creates a workspace: files with a history, and services like databases, which its programs reach by name.", s.createWorkspace))
	add(true)(New("read_workspace", "Lists the files and services of a workspace, or reads a file.", s.readWorkspace))
	add(true)(New("write_workspace", "Writes and deletes files of a workspace, all as one revision or none.", s.writeWorkspace))
	add(false)(New("add_service", "Adds a service to a workspace, and returns how programs in it reach the service.", s.addService))
	add(true)(New("enable_preview", "Shows the files of a workspace, or a server in its sandbox, as a web page, and returns its address.", s.enablePreview))
	add(false)(New("run_sql", "Runs a query in a database of a workspace.", s.runSQL))
	add(true)(New("describe_tables", "Lists the tables of a database of a workspace, or says what one consists of.", s.describeTables))
	add(false)(New("run_redis_command", "Runs a command in a redis service of a workspace.", func(ctx context.Context, c *Call, a runRedisArgs) (Result, error) {
		if len(a.Command) == 0 {
			return Result{}, engi.Errorf(engi.Invalid, "there is no command")
		}
		reply, err := s.Workspaces.Command(ctx, c.Owner.Viewer(), a.Workspace, cmp.Or(a.Service, string(engi.ServiceRedis)), a.Command)
		if len(reply.Value) > maxQueryBytes {
			return Result{}, engi.Errorf(engi.Exhausted, "the reply has %d bytes, %d at most", len(reply.Value), maxQueryBytes).WithRemedy("ask for less at once")
		}
		return Result{Text: string(reply.Value), Failed: reply.Refused}, err
	}))
	return all, first
}

func (s Services) createWorkspace(ctx context.Context, c *Call, a createWorkspaceArgs) (Result, error) {
	if len(a.Services) > maxServices {
		return Result{}, engi.Errorf(engi.Invalid, "%d services are asked for, %d are the most", len(a.Services), maxServices).WithRemedy("ask for fewer")
	}
	spec := engi.WorkspaceSpec{Owner: c.Owner, Name: a.Name}
	for _, t := range a.Services {
		spec.Services = append(spec.Services, engi.ServiceSpec{Type: engi.ServiceType(t)})
	}
	x, err := s.Workspaces.Create(ctx, spec)
	if err != nil {
		return Result{}, err
	}
	return s.describeWorkspace(ctx, c, x)
}

func (s Services) readWorkspace(ctx context.Context, c *Call, a readWorkspaceArgs) (Result, error) {
	x, err := s.Workspaces.Get(ctx, c.Owner.Viewer(), a.Workspace)
	switch {
	case err != nil:
		return Result{}, err
	case a.Path == "":
		return s.describeWorkspace(ctx, c, x)
	}
	f, err := s.Workspaces.File(ctx, c.Owner.Viewer(), string(x.ID), a.Path, 0)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	return readText(f, a.Path)
}

// describeWorkspace returns a description of a workspace.
func (s Services) describeWorkspace(ctx context.Context, c *Call, x engi.Workspace) (Result, error) {
	files, err := s.Workspaces.Files(ctx, c.Owner.Viewer(), string(x.ID), 0)
	if err != nil {
		return Result{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "workspace %s (%s) from %s is %s, revision %d", x.Name, x.ID, x.Template, x.State, x.Revision)
	if x.Sandbox != "" {
		fmt.Fprintf(&b, ", in sandbox %s", x.Sandbox)
	}
	failed := x.State == engi.WorkspaceFailed
	if x.Error != nil {
		fmt.Fprintf(&b, "\nerror: %s", x.Error.Text)
	}
	for _, v := range x.Services {
		fmt.Fprintf(&b, "\nservice %s, %s: %s at %s:%d", v.Name, oneLine(cmp.Or(v.Server, string(v.Type))), v.State, v.Host, v.Port)
		if v.Error != nil {
			fmt.Fprintf(&b, ": %s", oneLine(v.Error.Text))
		}
		failed = failed || v.State == engi.ServiceFailed
	}
	for i, f := range files {
		if i == maxAppFiles {
			fmt.Fprintf(&b, "\nand %d more files", len(files)-i)
			break
		}
		fmt.Fprintf(&b, "\n%s (%d bytes)", oneLine(f.Path), f.Size)
	}
	return Result{Text: b.String(), Failed: failed}, nil
}

func (s Services) writeWorkspace(ctx context.Context, c *Call, a writeWorkspaceArgs) (Result, error) {
	spec := engi.WriteSpec{Viewer: c.Owner.Viewer(), Workspace: a.Workspace, Message: a.Message, Actor: cmp.Or(string(c.Run), engi.ActorOf(ctx))}
	for _, f := range a.Files {
		if f.Delete && f.Content != "" {
			return Result{}, engi.Errorf(engi.Invalid, "%.100q is deleted, and has content", f.Path)
		}
		file := engi.WorkspaceFile{Path: f.Path, Removed: f.Delete}
		if !f.Delete {
			file.Content = []byte(f.Content)
		}
		spec.Files = append(spec.Files, file)
	}
	if len(spec.Files) == 0 {
		return Result{}, engi.Errorf(engi.Invalid, "there are no files")
	}
	r, err := s.Workspaces.Write(ctx, spec)
	if err != nil {
		return Result{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "revision %d", r.Number)
	for i, f := range r.Changed {
		if i == maxAppFiles {
			fmt.Fprintf(&b, "\nand %d more files", len(r.Changed)-i)
			break
		}
		fmt.Fprintf(&b, "\n%s %s (%d bytes)", f.Op, oneLine(f.Path), f.Size)
	}
	return Result{Text: b.String()}, nil
}

func (s Services) addService(ctx context.Context, c *Call, a addServiceArgs) (Result, error) {
	v, err := s.Workspaces.AddService(ctx, c.Owner.Viewer(), a.Workspace, engi.ServiceSpec{Name: a.Name, Type: engi.ServiceType(a.Type), Version: a.Version})
	if err != nil {
		return Result{}, err
	}
	if v.State == engi.ServiceFailed {
		return Failure(orUnavailable(v)), nil
	}
	to, err := s.Workspaces.Connection(ctx, c.Owner.Viewer(), a.Workspace, v.Name)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: fmt.Sprintf("service %s, %s, is %s; programs in the workspace reach it at %s", v.Name, oneLine(strings.TrimSpace(v.Server+" "+v.Version)), v.State, to.URL)}, nil
}

// orUnavailable returns the error of a failed service.
func orUnavailable(v engi.Service) error {
	if v.Error != nil {
		return v.Error
	}
	return engi.Errorf(engi.Unavailable, "service %s has failed", v.Name)
}

func (s Services) runSQL(ctx context.Context, c *Call, a runSQLArgs) (Result, error) {
	q := engi.Query{Viewer: c.Owner.Viewer(), Workspace: a.Workspace, Service: a.Service, Text: a.Query, ReadOnly: a.ReadOnly, Args: a.Args, MaxRows: maxQueryRows, MaxBytes: maxQueryBytes}
	if a.Explain {
		plan, err := s.Workspaces.Explain(ctx, q)
		return Result{Text: plan}, err
	}
	x, err := s.Workspaces.Query(ctx, q)
	if err != nil {
		return Result{}, err
	}
	if e := x.Error; e != nil {
		text := strings.TrimSpace(fmt.Sprintf("error %s: %s", e.Code, e.Text))
		if e.Position > 0 {
			text += fmt.Sprintf(" at character %d", e.Position)
		}
		for _, more := range []string{e.Detail, e.Hint} {
			if more != "" {
				text += "\n" + more
			}
		}
		return Result{Text: text, Failed: true}, nil
	}
	return Result{Text: rowsText(x)}, nil
}

// rowsText returns a result as lines of JSON: an array of names, then one for each row.
func rowsText(x engi.QueryResult) string {
	var b strings.Builder
	if len(x.Columns) > 0 {
		names := make([]string, len(x.Columns))
		for i, column := range x.Columns {
			names[i] = column.Name
		}
		line, _ := json.Marshal(names) // texts can be encoded
		b.Write(line)
		for _, row := range x.Rows {
			b.WriteString("\n[")
			for i, value := range row {
				if i > 0 {
					b.WriteByte(',')
				}
				b.Write(value)
			}
			b.WriteByte(']')
		}
		fmt.Fprintf(&b, "\n(%d rows", len(x.Rows))
		if x.Truncated {
			b.WriteString("; there are more")
		}
		b.WriteByte(')')
	}
	if len(x.Columns) == 0 && x.Affected >= 0 {
		fmt.Fprintf(&b, "%d rows affected", x.Affected)
	}
	return cmp.Or(b.String(), "done")
}

func (s Services) describeTables(ctx context.Context, c *Call, a describeTablesArgs) (Result, error) {
	q := engi.Query{Viewer: c.Owner.Viewer(), Workspace: a.Workspace, Service: a.Service, ReadOnly: true}
	var b strings.Builder
	if a.Table == "" {
		all, err := s.Workspaces.Tables(ctx, q)
		if err != nil {
			return Result{}, err
		}
		for i, t := range all {
			if i == maxTables {
				fmt.Fprintf(&b, "and %d more\n", len(all)-i)
				break
			}
			fmt.Fprintf(&b, "%s %s", t.Kind, oneLine(strings.TrimPrefix(t.Schema+"."+t.Name, ".")))
			if t.Rows >= 0 {
				fmt.Fprintf(&b, ", about %d rows", t.Rows)
			}
			b.WriteByte('\n')
		}
		return Result{Text: cmp.Or(b.String(), "there are no tables")}, nil
	}
	t, err := s.Workspaces.Describe(ctx, q, a.Table)
	if err != nil {
		return Result{}, err
	}
	fmt.Fprintf(&b, "%s %s\n", t.Kind, oneLine(strings.TrimPrefix(t.Schema+"."+t.Name, ".")))
	for _, column := range t.Columns {
		fmt.Fprintf(&b, "column %s %s", oneLine(column.Name), oneLine(column.Type))
		if !column.Nullable {
			b.WriteString(" not null")
		}
		if column.Default != "" {
			b.WriteString(" default " + oneLine(column.Default))
		}
		b.WriteByte('\n')
	}
	for _, x := range t.Indexes {
		fmt.Fprintf(&b, "index %s\n", oneLine(x.Definition))
	}
	for _, x := range t.Constraints {
		fmt.Fprintf(&b, "%s %s: %s\n", x.Kind, oneLine(x.Name), oneLine(x.Definition))
	}
	return Result{Text: b.String()}, nil
}

func (s Services) enablePreview(ctx context.Context, c *Call, a enablePreviewArgs) (Result, error) {
	// Models write the root of a host for the directory of the workspace.
	p := engi.WorkspacePreview{Type: engi.PreviewType(cmp.Or(a.Type, string(engi.PreviewStatic))), Root: strings.Trim(a.Root, "/"), Port: a.Port, Public: a.Public}
	if p.Root == "." {
		p.Root = ""
	}
	if a.Type == "none" {
		p = engi.WorkspacePreview{}
	}
	x, err := s.Workspaces.Change(ctx, c.Owner.Viewer(), a.Workspace, engi.WorkspaceChange{Preview: &p})
	if err != nil {
		return Result{}, err
	}
	if p.Type == engi.PreviewNone {
		return Result{Text: fmt.Sprintf("Workspace %s shows nothing any more.", x.Name)}, nil
	}
	where, who := "", "who works in the workspace"
	if s.WorkspaceURL != nil {
		where = s.WorkspaceURL(x.ID, "")
	}
	if p.Public {
		who = "everybody"
	}
	text := fmt.Sprintf("preview %s\nIt is for %s.\n", p.Address(where), who)
	if p.Type != engi.PreviewStatic && x.Sandbox == "" {
		text += "The workspace is not running: its server can be reached once it is.\n"
	}
	return Result{Text: text}, nil
}
