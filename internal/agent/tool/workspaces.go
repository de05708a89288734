package tool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Workspaces is the part of [engi.Workspaces] that the tools of workspaces use.
type Workspaces interface {
	WorkspaceRunner
	WorkspaceFiles
	WorkspaceServices
}

// WorkspaceRunner is the part of [Workspaces] about workspaces themselves.
type WorkspaceRunner interface {
	Create(ctx context.Context, spec engi.WorkspaceSpec) (engi.Workspace, error)
	Get(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Workspace, error)
	Start(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	Change(ctx context.Context, viewer engi.Viewer, workspace string, c engi.WorkspaceChange) (engi.Workspace, error)
}

// WorkspaceFiles is the part of [Workspaces] about files.
type WorkspaceFiles interface {
	Write(ctx context.Context, spec engi.WriteSpec) (engi.WorkspaceRevision, error)
	Move(ctx context.Context, spec engi.MoveSpec) (engi.WorkspaceRevision, error)
	Files(ctx context.Context, viewer engi.Viewer, workspace string, revision int64) ([]engi.WorkspaceFile, error)
	File(ctx context.Context, viewer engi.Viewer, workspace, path string, revision int64) (io.ReadCloser, error)
}

// WorkspaceServices is the part of [Workspaces] about services and databases.
type WorkspaceServices interface {
	AddService(ctx context.Context, viewer engi.Viewer, workspace string, spec engi.ServiceSpec) (engi.Service, error)
	Connection(ctx context.Context, viewer engi.Viewer, workspace, service string) (engi.Connection, error)
	Query(ctx context.Context, q engi.Query) (engi.QueryResult, error)
	Documents(ctx context.Context, q engi.DocumentQuery) (engi.DocumentResult, error)
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
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Path      string `json:"path,omitempty" jsonschema:"file to read, relative to the workspace; default: lists files and services"`
}

type writeWorkspaceArgs struct {
	Workspace string               `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Files     []writeWorkspaceFile `json:"files"`
	Message   string               `json:"message,omitempty" jsonschema:"message of the revision, one line"`
}

type moveWorkspaceFileArgs struct {
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	From      string `json:"from" jsonschema:"file or directory, relative to the workspace"`
	To        string `json:"to" jsonschema:"new path, which must not exist"`
	Message   string `json:"message,omitempty" jsonschema:"message of the revision, one line"`
}

type enablePreviewArgs struct {
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
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
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Type      string `json:"type" enum:"postgres,mysql,redis,mongodb,nginx"`
	Version   string `json:"version,omitempty" jsonschema:"default: the newest"`
	Name      string `json:"name,omitempty" jsonschema:"default: the type"`
}

type runSQLArgs struct {
	Workspace string    `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
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
	Workspace string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Table     string `json:"table,omitempty" jsonschema:"table to describe, optionally as SCHEMA.TABLE; default: lists the tables"`
	Service   string `json:"service,omitempty" jsonschema:"default: the only SQL service; a mongodb service has collections to list"`
}

// queryCollectionArgs takes JSON as texts: some providers accept no schemas of objects with unknown fields, and
// the order of the fields of Sort matters.
type queryCollectionArgs struct {
	Workspace  string `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
	Collection string `json:"collection,omitempty" jsonschema:"may be left out if the pipeline needs none"`
	Filter     string `json:"filter,omitempty" jsonschema:"filter as JSON text, like {\"total\": {\"$gt\": 5}}; default: all documents"`
	Projection string `json:"projection,omitempty" jsonschema:"fields to return as JSON text, like {\"total\": 1}; default: all"`
	Sort       string `json:"sort,omitempty" jsonschema:"order as JSON text, like {\"total\": -1}"`
	Skip       int64  `json:"skip,omitempty" jsonschema:"number of documents to skip"`
	Pipeline   string `json:"pipeline,omitempty" jsonschema:"stages of an aggregation as JSON text, like [{\"$match\": {\"paid\": true}}], instead of filter, projection, sort and skip"`
	Service    string `json:"service,omitempty" jsonschema:"default: the only mongodb service"`
}

type runRedisArgs struct {
	Workspace string   `json:"workspace,omitempty" jsonschema:"name of the workspace; default: the one that you work in"`
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
			t.Repeatable, t.hidesIDs = repeatable, true
			all = append(all, t)
		}
	}
	add(false)(New("create_workspace", "Creates a workspace: files with a history, and services like databases, which its programs reach by name.", s.createWorkspace))
	add(true)(inWorkspace(s, "read_workspace", "Lists the files and services of a workspace, or reads a file.", func(a readWorkspaceArgs) string { return a.Workspace }, s.readWorkspace))
	add(true)(inWorkspace(s, "write_workspace", "Writes and deletes files of a workspace, all as one revision or none.", func(a writeWorkspaceArgs) string { return a.Workspace }, s.writeWorkspace))
	add(false)(inWorkspace(s, "move_workspace_file", "Moves or renames a file or a directory of a workspace, as one revision.", func(a moveWorkspaceFileArgs) string { return a.Workspace }, s.moveWorkspaceFile))
	add(false)(inWorkspace(s, "add_service", "Adds a service to a workspace, and returns how programs in it reach the service.", func(a addServiceArgs) string { return a.Workspace }, s.addService))
	add(true)(inWorkspace(s, "enable_preview", "Shows the files of a workspace, or a server in its sandbox, as a web page, and returns its address.", func(a enablePreviewArgs) string { return a.Workspace }, s.enablePreview))
	add(false)(inWorkspace(s, "run_sql", "Runs a query in a database of a workspace.", func(a runSQLArgs) string { return a.Workspace }, s.runSQL))
	add(true)(inWorkspace(s, "describe_tables", "Lists the tables of a database of a workspace, or says what one consists of.", func(a describeTablesArgs) string { return a.Workspace }, s.describeTables))
	add(false)(inWorkspace(s, "query_collection", "Finds documents in a collection of a mongodb service of a workspace, or aggregates them.", func(a queryCollectionArgs) string { return a.Workspace }, s.queryCollection))
	add(false)(inWorkspace(s, "run_redis_command", "Runs a command in a redis service of a workspace.", func(a runRedisArgs) string { return a.Workspace }, s.runRedis))
	return all, first
}

// inWorkspace returns a tool for the workspace that of returns the name of; see [Services.workspace].
func inWorkspace[A any](s Services, name, description string, of func(A) string, run func(ctx context.Context, c *Call, x engi.Workspace, a A) (Result, error)) (Tool, error) {
	return New(name, description, func(ctx context.Context, c *Call, a A) (Result, error) {
		x, err := s.workspace(ctx, c, of(a))
		if err != nil {
			return Result{}, err
		}
		return run(ctx, c, x, a)
	})
}

// workspace returns the workspace that a model calls by a name; an empty name is the workspace that the run works in.
// A workspace that its owner shares is called OWNER/NAME, because it may have the name of another one.
func (s Services) workspace(ctx context.Context, c *Call, name string) (engi.Workspace, error) {
	if name = cmp.Or(name, c.Workspace); name == "" {
		return engi.Workspace{}, engi.Errorf(engi.Invalid, "no workspace is named").WithRemedy("name one")
	}
	return s.Workspaces.Get(ctx, c.Owner.Viewer(), name)
}

// nameOf returns the name by which the tools of owner call a workspace.
func nameOf(x engi.Workspace, owner engi.Owner) string {
	if x.Owner != owner {
		return string(x.Owner) + "/" + x.Name
	}
	return x.Name
}

var idPattern = regexp.MustCompile(` ?"?\b(?:wsp|sbx|vol|wfl)_[a-z2-7]{26}\b"?`)

// withoutIDs returns a text without the IDs of workspaces, sandboxes, volumes and workflows. A model does not need them, and
// would call things by them.
func withoutIDs(text string) string { return idPattern.ReplaceAllString(text, "") }

func (s Services) createWorkspace(ctx context.Context, c *Call, a createWorkspaceArgs) (Result, error) {
	if len(a.Services) > maxServices {
		return Result{}, engi.Errorf(engi.Invalid, "%d services are requested; the limit is %d", len(a.Services), maxServices).WithRemedy("ask for fewer")
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

func (s Services) readWorkspace(ctx context.Context, c *Call, x engi.Workspace, a readWorkspaceArgs) (Result, error) {
	if a.Path == "" {
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
	fmt.Fprintf(&b, "workspace %s from %s is %s, revision %d", nameOf(x, c.Owner), x.Template, x.State, x.Revision)
	failed := x.State == engi.WorkspaceFailed
	if x.Error != nil {
		fmt.Fprintf(&b, "\nerror: %s", withoutIDs(x.Error.Text))
	}
	for _, v := range x.Services {
		fmt.Fprintf(&b, "\nservice %s, %s: %s at %s:%d", v.Name, oneLine(cmp.Or(v.Server, string(v.Type))), v.State, v.Host, v.Port)
		if v.Error != nil {
			fmt.Fprintf(&b, ": %s", oneLine(withoutIDs(v.Error.Text)))
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

func (s Services) writeWorkspace(ctx context.Context, c *Call, x engi.Workspace, a writeWorkspaceArgs) (Result, error) {
	spec := engi.WriteSpec{Viewer: c.Owner.Viewer(), Workspace: string(x.ID), Message: a.Message, Actor: cmp.Or(string(c.Run), engi.ActorOf(ctx))}
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
	return revised(s.Workspaces.Write(ctx, spec))
}

func (s Services) moveWorkspaceFile(ctx context.Context, c *Call, x engi.Workspace, a moveWorkspaceFileArgs) (Result, error) {
	return revised(s.Workspaces.Move(ctx, engi.MoveSpec{
		Viewer: c.Owner.Viewer(), Workspace: string(x.ID), From: a.From, To: a.To, Message: a.Message, Actor: cmp.Or(string(c.Run), engi.ActorOf(ctx)),
	}))
}

// revised describes a revision that a tool made.
func revised(r engi.WorkspaceRevision, err error) (Result, error) {
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

func (s Services) addService(ctx context.Context, c *Call, x engi.Workspace, a addServiceArgs) (Result, error) {
	v, err := s.Workspaces.AddService(ctx, c.Owner.Viewer(), string(x.ID), engi.ServiceSpec{Name: a.Name, Type: engi.ServiceType(a.Type), Version: a.Version})
	if err != nil {
		return Result{}, err
	}
	if v.State == engi.ServiceFailed {
		return Result{}, orUnavailable(v)
	}
	to, err := s.Workspaces.Connection(ctx, c.Owner.Viewer(), string(x.ID), v.Name)
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

func (s Services) runRedis(ctx context.Context, c *Call, x engi.Workspace, a runRedisArgs) (Result, error) {
	if len(a.Command) == 0 {
		return Result{}, engi.Errorf(engi.Invalid, "there is no command")
	}
	reply, err := s.Workspaces.Command(ctx, c.Owner.Viewer(), string(x.ID), cmp.Or(a.Service, string(engi.ServiceRedis)), a.Command)
	if len(reply.Value) > maxQueryBytes {
		return Result{}, engi.Errorf(engi.Exhausted, "the reply has %d bytes, %d at most", len(reply.Value), maxQueryBytes).WithRemedy("ask for less at once")
	}
	return Result{Text: string(reply.Value), Failed: reply.Refused}, err
}

func (s Services) runSQL(ctx context.Context, c *Call, in engi.Workspace, a runSQLArgs) (Result, error) {
	q := engi.Query{Viewer: c.Owner.Viewer(), Workspace: string(in.ID), Service: a.Service, Text: a.Query, ReadOnly: a.ReadOnly || c.Reviews, Args: a.Args, MaxRows: maxQueryRows, MaxBytes: maxQueryBytes}
	if a.Explain {
		plan, err := s.Workspaces.Explain(ctx, q)
		return Result{Text: plan}, err
	}
	x, err := s.Workspaces.Query(ctx, q)
	if err != nil {
		return Result{}, err
	}
	if x.Error != nil {
		return refusedQuery(x.Error), nil
	}
	return Result{Text: rowsText(x)}, nil
}

// refusedQuery describes the error with which a database refused a query.
func refusedQuery(e *engi.QueryError) Result {
	text := strings.TrimSpace(fmt.Sprintf("error %s: %s", e.Code, e.Text))
	if e.Position > 0 {
		text += fmt.Sprintf(" at character %d", e.Position)
	}
	for _, more := range []string{e.Detail, e.Hint} {
		if more != "" {
			text += "\n" + more
		}
	}
	return Result{Text: text, Failed: true}
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

// queryCollection returns a document per line.
func (s Services) queryCollection(ctx context.Context, c *Call, in engi.Workspace, a queryCollectionArgs) (Result, error) {
	raw := func(text string) json.RawMessage { return json.RawMessage(strings.TrimSpace(text)) }
	q := engi.DocumentQuery{
		ReadOnly: c.Reviews,
		Viewer:   c.Owner.Viewer(), Workspace: string(in.ID), Service: a.Service, Collection: a.Collection,
		Filter: raw(a.Filter), Projection: raw(a.Projection), Sort: raw(a.Sort), Skip: a.Skip, Pipeline: raw(a.Pipeline), MaxRows: maxQueryRows, MaxBytes: maxQueryBytes,
	}
	x, err := s.Workspaces.Documents(ctx, q)
	if err != nil {
		return Result{}, err
	}
	if x.Error != nil {
		return refusedQuery(x.Error), nil
	}
	var b strings.Builder
	for _, document := range x.Documents {
		b.Write(document)
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "(%d documents", len(x.Documents))
	if x.Truncated {
		b.WriteString("; there are more")
	}
	b.WriteByte(')')
	return Result{Text: b.String()}, nil
}

func (s Services) describeTables(ctx context.Context, c *Call, in engi.Workspace, a describeTablesArgs) (Result, error) {
	q := engi.Query{Viewer: c.Owner.Viewer(), Workspace: string(in.ID), Service: a.Service, ReadOnly: true}
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

func (s Services) enablePreview(ctx context.Context, c *Call, x engi.Workspace, a enablePreviewArgs) (Result, error) {
	// Models write the root of a host for the directory of the workspace.
	p := engi.WorkspacePreview{Type: engi.PreviewType(cmp.Or(a.Type, string(engi.PreviewStatic))), Root: strings.Trim(a.Root, "/"), Port: a.Port, Public: a.Public}
	if p.Root == "." {
		p.Root = ""
	}
	if a.Type == "none" {
		p = engi.WorkspacePreview{}
	}
	x, err := s.Workspaces.Change(ctx, c.Owner.Viewer(), string(x.ID), engi.WorkspaceChange{Preview: &p})
	if err != nil {
		return Result{}, err
	}
	if p.Type == engi.PreviewNone {
		return Result{Text: fmt.Sprintf("Workspace %s shows nothing any more.", nameOf(x, c.Owner))}, nil
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
