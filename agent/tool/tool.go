// Package tool is what agents can do: functions with typed arguments, whose
// schemas are generated, and which get what they work on (an owner, a sandbox,
// a session, ways out) with each call, where the model cannot see it. The
// built-in ones run code, work on files and fetch pages.
//
// It is not for deciding when tools run (package agent) nor for how models
// ask for them (package llm).
package tool

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
)

// A Tool is a function that models can call. It is safe for concurrent use.
type Tool struct {
	engi.Tool

	// Repeatable says that a call that was cut short may be made again: it
	// changes nothing, or the second time changes nothing more.
	Repeatable bool
	// Needs says what a call must have; a run that has it not is not offered
	// the tool.
	Needs Need
	// Offered reports whether a run that has what the tool needs is offered
	// it; nil means always.
	Available func(ctx context.Context, e Env) bool
	// Prompt returns what the model's instructions say about the tool where
	// it is offered, beside its description; nil for nothing.
	Prompt func(ctx context.Context, e Env) string

	schema *llm.Schema
	run    func(ctx context.Context, c *Call, args json.RawMessage) (Result, error)
}

// A Need is what a tool works on.
type Need uint8

const (
	NeedNothing Need = iota
	NeedGuest        // a sandbox or a session
	NeedSession
	WantSession // what it can do with a session it leaves out if there is none
)

// Env is what tools of one run work on.
type Env struct {
	Owner      engi.Owner
	Run        engi.RunID
	Sandbox    engi.SandboxID // empty for none
	Session    string         // empty for none
	Deps       any            // what else the run's tools work with; no model sees it
	FullResult func(ctx context.Context, call string) ([]byte, error)
}

// Has reports whether e has what a tool needs.
func (e Env) Has(n Need) bool {
	switch n {
	case NeedGuest:
		return e.Sandbox != "" || e.Session != ""
	case NeedSession:
		return e.Session != ""
	}
	return true
}

// A Call is one use of a tool.
type Call struct {
	Env
	ID  string
	Out func(stream engi.Stream, data []byte) // what it prints while it works; never nil
}

// A Result is what a tool has to say. One that failed in a way the model can
// do something about is a Result, too.
type Result struct {
	Text   string
	Images []engi.Image
	Failed bool
}

// Failure returns a Result that says what went wrong and what to do.
func Failure(err error) Result {
	text := err.Error()
	if remedy := engi.RemedyOf(err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return Result{Text: text, Failed: true}
}

var names = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]{0,63}$`)

// New returns a tool of a Go function. A is a struct: its JSON names are the
// arguments, its jsonschema tags describe them, those without omitempty must
// be given. It reports Invalid for a name or type that models cannot use.
func New[A any](name, description string, run func(ctx context.Context, c *Call, args A) (Result, error)) (Tool, error) {
	shape, err := llm.SchemaOf(reflect.TypeFor[A]())
	if err != nil {
		return Tool{}, err
	}
	return FromSchema(name, description, shape, func(ctx context.Context, c *Call, raw json.RawMessage) (Result, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return Failure(engi.Errorf(engi.Invalid, "the arguments do not fit: %v", err)), nil
		}
		return run(ctx, c, args)
	})
}

// From returns a tool of a schema and a function that takes what keeps to it.
func FromSchema(name, description string, shape *llm.Schema, run func(ctx context.Context, c *Call, args json.RawMessage) (Result, error)) (Tool, error) {
	if !names.MatchString(name) {
		return Tool{}, engi.Errorf(engi.Invalid, "%.80q is no name for a tool", name).WithRemedy("use letters, digits, underscores and dashes, 64 at most")
	}
	return Tool{Tool: engi.Tool{Name: name, Description: description, Schema: shape.JSON()}, schema: shape, run: run}, nil
}

// maxArguments bounds what a model can send to one call.
const maxArguments = 4 << 20

// Run makes a call. Arguments that do not keep to the schema, and errors that
// are not ours, are results: the model can do better. It returns an error only
// when ctx has ended.
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
		return Failure(err), nil
	}
	return r, nil
}

// Services are what the built-in tools work with. Tools whose place is nil do
// not exist.
type Services struct {
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Sessions   engi.Sessions
	Library    engi.Library
	// Fetch returns what requests in the name of an owner go through: the
	// wall, with what the node lets agents reach.
	Fetch func(owner engi.Owner) http.RoundTripper
}

// A Source has tools that are not known before a run begins, like those of
// servers elsewhere. It is safe for concurrent use.
type Source interface {
	// Name is what the names of its tools begin with, before an underscore,
	// and how agents choose it.
	Name() string
	// Open returns its tools for one run, and what to call when the run lets
	// go of them. It reports Unavailable when they cannot be had now.
	Open(ctx context.Context, e Env) (tools []Tool, release func(), err error)
}

// enter returns the inside of what c works in.
func (s Services) enterGuest(ctx context.Context, c *Call) (engi.Guest, func(), error) {
	switch {
	case c.Session != "" && s.Sessions != nil:
		return s.Sessions.Enter(ctx, c.Owner, c.Session)
	case c.Sandbox != "" && s.Sandboxes != nil:
		return s.Sandboxes.Enter(ctx, c.Owner, c.Sandbox)
	}
	return nil, nil, engi.Errorf(engi.Unsupported, "this run has no sandbox")
}

// Builtin returns the built-in tools that p allows, by name.
func Builtin(p Services) ([]Tool, error) {
	var all []Tool
	for _, part := range []func(Services) ([]Tool, error){codeTools, docsTools, fileTools, fetchTools} {
		tools, err := part(p)
		if err != nil {
			return nil, err
		}
		all = append(all, tools...)
	}
	return all, nil
}
