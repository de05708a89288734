// Package tool holds the tools of agents: functions with typed arguments, from
// which their schemas are generated. A call carries the objects for the tool (an
// owner, a sandbox, a session, dependencies), which the model does not see. The
// built-in tools run code, work on files, apps and workspaces, search documentation
// and fetch pages.
//
// Package agent decides when tools run, and package llm how models request
// them.
package tool

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// A Tool is a function that models can call. It is safe for concurrent use.
type Tool struct {
	engi.Tool

	// Repeatable says that an interrupted call may be repeated, because the tool is
	// read-only or idempotent.
	Repeatable bool
	// Output is the schema of Data in successful results; nil if there is
	// none. It is for programs: models see the text.
	Output json.RawMessage
	// Needs is the condition for offering the tool in a run.
	Needs Need
	// Available reports whether the tool is offered in a run that meets Needs;
	// nil means always.
	Available func(ctx context.Context, e Env) bool
	// Prompt returns the text about the tool in the system prompt, in addition to its
	// description, for runs that offer the tool; nil means no text.
	Prompt func(ctx context.Context, e Env) string

	hidesIDs bool // errors name no workspaces, sandboxes and volumes by their IDs; so it is for all tools of a run in a workspace
	schema   *llm.Schema
	run      func(ctx context.Context, c *Call, args json.RawMessage) (Result, error)
}

// A Need is a condition that a run must meet for a tool.
type Need uint8

const (
	NeedNothing Need = iota
	NeedGuest        // a sandbox, a session or a workspace
	NeedSession
	WantSession // a session, but part of the tool works without one
)

// Env is the environment of the tools in one run.
type Env struct {
	Owner      engi.Owner
	Run        engi.RunID
	Sandbox    engi.SandboxID // empty for none
	Session    string         // empty for none
	Workspace  string         // ID or name; empty for none
	Scopes     []engi.Scope   // scopes of the key that started the run; empty means all
	Reviews    bool           // the run reviews the workspace, see [engi.RunSpec]
	Deps       any            // the run's dependencies; hidden from the model
	FullResult func(ctx context.Context, call string) ([]byte, error)
}

// Place returns where the run works: in its session, otherwise its workspace, otherwise its sandbox.
func (e Env) Place() place.Place {
	switch {
	case e.Session != "":
		return place.Place{Session: e.Session}
	case e.Workspace != "":
		return place.Place{Workspace: e.Workspace}
	}
	return place.Place{Sandbox: e.Sandbox}
}

// Has reports whether e satisfies n.
func (e Env) Has(n Need) bool {
	switch n {
	case NeedGuest:
		return e.Place() != place.Place{}
	case NeedSession:
		return e.Session != ""
	}
	return true
}

// May reports Denied unless the key that started the run has a scope; see
// [engi.Key.May].
func (e Env) May(s engi.Scope, write bool) error { return engi.Key{Scopes: e.Scopes}.May(s, write) }

// Scope returns the scope that callers need for the tool, and whether the tool
// changes anything.
func (t Tool) Scope() (s engi.Scope, write bool) {
	switch t.Name {
	case "execute_code":
		return engi.ScopeExecutions, true
	case "read_file", "list_files", "glob", "grep", "read_app", "read_workspace", "describe_tables", "get_review_feedback":
		return engi.ScopeSandboxes, false
	case "search_docs", "save_module":
		return engi.ScopeDocs, t.Name == "save_module"
	case "fetch_url", "read_result":
		return engi.ScopeAgents, false
	}
	return engi.ScopeSandboxes, true
}

// Reviews reports whether a run that reviews a workspace has the tool.
func (t Tool) Reviews() bool {
	switch t.Name {
	case "read_workspace", "write_workspace", "describe_tables", "run_sql", "query_collection", "read_file", "list_files", "glob", "grep", "read_result", "search_docs",
		"submit_review", "get_review_feedback":
		return true
	}
	return false
}

// A Call is one use of a tool.
type Call struct {
	Env
	ID  string
	Out func(stream engi.Stream, data []byte) // receives output while the tool works; never nil
	// Patience is the time that execute_code waits for a program, which then continues
	// in the background; 0 means until its end.
	Patience time.Duration
}

// A Result is the outcome of a call that the model sees. A failure that the model can react
// to is a Result too.
type Result struct {
	Text   string
	Images []engi.Image
	Data   any // result for programs, with the schema in the tool's Output; nil for none
	Failed bool
	GoesOn engi.ExecutionID // ID of a program that took longer than the call's patience and continues; empty for none
}

// Returning returns t with results whose Data is of type D.
func Returning[D any](t Tool, err error) (Tool, error) {
	if err != nil {
		return t, err
	}
	schema, err := llm.SchemaOf(reflect.TypeFor[D]())
	if err != nil {
		return t, err
	}
	t.Output = schema.JSON()
	return t, nil
}

// Failure returns a failed Result with the text and the remedy of err.
func Failure(err error) Result {
	text := err.Error()
	if remedy := engi.RemedyOf(err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return Result{Text: text, Failed: true}
}

var namePattern = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]{0,63}$`)

// New returns a tool built from a Go function. A is a struct: its JSON names are
// the arguments, its jsonschema tags their descriptions, its enum tags the values
// allowed, separated by commas; fields without omitempty are required. It
// reports Invalid for a name or type that models cannot use.
func New[A any](name, description string, run func(ctx context.Context, c *Call, args A) (Result, error)) (Tool, error) {
	schema, err := llm.SchemaOf(reflect.TypeFor[A]())
	if err != nil {
		return Tool{}, err
	}
	t, err := FromSchema(name, description, schema, func(ctx context.Context, c *Call, raw json.RawMessage) (Result, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return Failure(engi.Errorf(engi.Invalid, "the arguments do not fit: %v", err)), nil
		}
		return run(ctx, c, args)
	})
	if err != nil {
		return t, err
	}
	// The tool itself checks the values, less strictly than the schema.
	t.Schema, err = addEnums(t.Schema, reflect.TypeFor[A]())
	return t, err
}

// addEnums adds the values of enum tags to a schema.
func addEnums(raw json.RawMessage, t reflect.Type) (json.RawMessage, error) {
	var schema map[string]any
	changed := false
	for f := range t.Fields() {
		values := f.Tag.Get("enum")
		if values == "" {
			continue
		}
		if !changed {
			if err := json.Unmarshal(raw, &schema); err != nil {
				return nil, engi.Errorf(engi.Internal, "describe %v: %v", t, err)
			}
		}
		changed = true
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties, _ := schema["properties"].(map[string]any)
		property, ok := properties[name].(map[string]any)
		if !ok {
			return nil, engi.Errorf(engi.Internal, "describe %v: there is no property %q", t, name)
		}
		property["enum"] = strings.Split(values, ",")
	}
	if !changed {
		return raw, nil
	}
	changedRaw, err := json.Marshal(schema)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "describe %v: %v", t, err)
	}
	return changedRaw, nil
}

// FromSchema returns a tool built from a schema and a function, which is called
// with arguments that conform to the schema.
func FromSchema(name, description string, schema *llm.Schema, run func(ctx context.Context, c *Call, args json.RawMessage) (Result, error)) (Tool, error) {
	if !namePattern.MatchString(name) {
		return Tool{}, engi.Errorf(engi.Invalid, "%.80q is not a name for a tool", name).WithRemedy("use letters, digits, underscores and dashes, 64 at most")
	}
	return Tool{Tool: engi.Tool{Name: name, Description: description, Schema: schema.JSON()}, schema: schema, run: run}, nil
}

const maxArguments = 4 << 20 // maximum bytes of arguments

// Run makes a call. Invalid arguments and errors of the tool become failed results,
// so that the model can correct itself. It returns an error only if ctx has
// ended.
func (t Tool) Run(ctx context.Context, c *Call, arguments string) (Result, error) {
	if len(arguments) > maxArguments {
		return Failure(engi.Errorf(engi.Invalid, "the arguments have %d bytes, %d at most", len(arguments), maxArguments)), nil
	}
	if blank := strings.TrimSpace(arguments); blank == "" || blank == "null" {
		arguments = "{}"
	}
	raw, err := t.schema.Check(arguments)
	if err != nil {
		return Failure(err), nil
	}
	r, err := t.run(ctx, c, raw)
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, engi.Errorf(engi.Expired, "call %s: %v", t.Name, context.Cause(ctx))
		}
		failure := Failure(err)
		if t.hidesIDs || c.Workspace != "" {
			failure.Text = withoutIDs(failure.Text)
		}
		return failure, nil
	}
	return r, nil
}

// Services holds the services that the built-in tools use, as of one owner. Tools whose service
// is nil are omitted.
type Services struct {
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Sessions   engi.Sessions
	Docs       engi.Docs
	Apps       Apps
	Workspaces Workspaces
	Workflows  Workflows
	Preview    func(id engi.SandboxID, port int) string // returns the address of an app's page; nil if apps have none
	// WorkspaceURL returns the address of the preview of a workspace, or of one of its services; nil if there are none.
	WorkspaceURL func(id engi.WorkspaceID, service string) string
	// Fetch returns the transport for requests on behalf of an owner, which
	// allows only destinations that the node permits for agents.
	Fetch func(owner engi.Owner) http.RoundTripper
}

// Places returns the resolver of the places in which runs work.
func (s Services) Places() place.Resolver {
	return place.Resolver{Sessions: s.Sessions, Workspaces: s.Workspaces, Sandboxes: s.Sandboxes}
}

// CheckTarget reports NotFound for a sandbox, session or workspace that its owner does not
// have, Denied for a workspace that the owner may only read, and Unsupported for one that this
// node does not have.
func (s Services) CheckTarget(ctx context.Context, e Env) error {
	for _, p := range []place.Place{{Sandbox: e.Sandbox}, {Workspace: e.Workspace}, {Session: e.Session}} {
		if p == (place.Place{}) {
			continue
		}
		if _, err := s.Places().Find(ctx, e.Owner.Viewer(), p); err != nil {
			return err
		}
	}
	return nil
}

// A Source has tools that are listed when a run starts, such as those of an
// MCP server. It is safe for concurrent use.
type Source interface {
	// Name is the prefix of its tools' names, before an underscore, and
	// the name with which agents select the source.
	Name() string
	// Open returns the tools for one run, which calls release when it has finished
	// with them. It reports Unavailable if the tools are not available now.
	Open(ctx context.Context, e Env) (tools []Tool, release func(), err error)
}

// enterGuest returns the guest of the session, workspace or sandbox of c.
func (s Services) enterGuest(ctx context.Context, c *Call) (engi.Guest, func(), error) {
	return s.Places().Enter(ctx, c.Owner.Viewer(), c.Place())
}

// Builtin returns the built-in tools whose services s has.
func Builtin(s Services) ([]Tool, error) {
	var all []Tool
	for _, group := range []func(Services) ([]Tool, error){codeTools, docsTools, fileTools, appTools, workspaceTools, workflowTools, fetchTools} {
		tools, err := group(s)
		if err != nil {
			return nil, err
		}
		all = append(all, tools...)
	}
	return all, nil
}
