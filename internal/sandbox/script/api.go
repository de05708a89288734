package script

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

// An API is a host function. Scripts call it as api.NAME(…) and await its result. Its
// documentation and declarations are generated.
type API struct {
	engi.ScriptAPI
	// Call returns a value that encoding/json can encode. An error is thrown in
	// the script, with its text unless it is Internal. Call must be safe for
	// concurrent use, and return soon after ctx ends. ctx ends with the
	// run, and the script's result waits for Call.
	Call func(ctx context.Context, c Call) (any, error)
	// Most is the maximum number of concurrent calls of all scripts; further calls fail.
	// 0 means 256.
	Most int
}

// A function is an API with a limit of concurrent calls.
type function struct {
	API
	slots chan struct{}
}

func newFunction(a API) *function {
	return &function{API: a, slots: make(chan struct{}, cmp.Or(a.Most, 256))}
}

// A Call is a call of a host function. Hints and Args are not trusted.
type Call struct {
	Owner   engi.Owner
	Session *engi.Session     // nil if the run has none; read-only
	Hints   map[string]string // hints of the run; read-only
	Args    json.RawMessage   // arguments, a JSON array

	invocation *invocation
}

// Sandbox returns the sandbox of the session, and starts one if there is none. The sandbox
// can be used until the run ends. Sandbox returns Unsupported for a run without a
// session.
func (c Call) Sandbox(ctx context.Context) (engi.Guest, error) { return c.invocation.sandbox(ctx) }

// Into decodes the arguments, in order, into the pointers args. It skips missing arguments, and
// returns Invalid for too many arguments and for wrong types.
func (c Call) Into(args ...any) error {
	var list []json.RawMessage
	if err := json.Unmarshal(c.Args, &list); err != nil {
		return engi.Errorf(engi.Invalid, "the arguments are not valid")
	}
	if len(list) > len(args) {
		return engi.Errorf(engi.Invalid, "%d arguments, %d at most", len(list), len(args))
	}
	for i, raw := range list {
		if string(raw) == "null" {
			continue
		}
		if err := json.Unmarshal(raw, args[i]); err != nil {
			return engi.Errorf(engi.Invalid, "argument %d has the wrong type", i+1)
		}
	}
	return nil
}

var apiName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,39}(\.[A-Za-z][A-Za-z0-9]{0,39}){0,3}$`)

// reservedNames are properties of the prototypes of objects.
var reservedNames = map[string]bool{"constructor": true, "hasOwnProperty": true, "toString": true, "valueOf": true, "then": true}

func (a API) check() error {
	if !apiName.MatchString(a.Name) || a.Call == nil {
		return engi.Errorf(engi.Invalid, "api function %.80q needs a name like getWeather or kv.get, and a Call", a.Name)
	}
	for part := range strings.SplitSeq(a.Name, ".") {
		if reservedNames[part] {
			return engi.Errorf(engi.Invalid, "api function %s: %s has another meaning in JavaScript", a.Name, part)
		}
	}
	if a.Most < 0 {
		return engi.Errorf(engi.Invalid, "api function %s: %d calls at once is not a limit", a.Name, a.Most)
	}
	if a.Signature == "" || a.Description == "" {
		return engi.Errorf(engi.Invalid, "api function %s has no signature or description", a.Name)
	}
	if a.Schema != nil && !json.Valid(a.Schema) {
		return engi.Errorf(engi.Invalid, "api function %s: its schema is not JSON", a.Name)
	}
	return nil
}

// exceptionNames are the names of exceptions by kind of error.
var exceptionNames = map[engi.Kind]string{engi.Invalid: "TypeError", engi.NotFound: "NotFoundError", engi.Denied: "DeniedError",
	engi.Exhausted: "RangeError", engi.Expired: "TimeoutError"}

// handleCall calls a host function and logs it.
func (r *Runner) handleCall(ctx context.Context, inv *invocation, c wire.Call) wire.Answer {
	began := time.Now()
	inv.calls.Add(1)
	f, ok := r.apis[c.API]
	if !ok || f.Session && inv.session == nil {
		r.o.Log.Warn("script calls a function that it does not have", "owner", inv.spec.Owner, "api", fmt.Sprintf("%.80q", c.API))
		return wire.Answer{Call: c.ID, Name: "TypeError", Error: "there is no such function"}
	}
	value, err := r.invoke(ctx, f, inv, c)
	outcome := "ok"
	if err != nil {
		outcome = engi.KindOf(err).String()
	}
	r.o.Log.LogAttrs(ctx, slog.LevelInfo, "script called", slog.String("owner", string(inv.spec.Owner)), slog.String("api", f.Name),
		slog.String("outcome", outcome), slog.Float64("took_ms", float64(time.Since(began).Microseconds())/1000))
	if err == nil {
		return wire.Answer{Call: c.ID, Value: value}
	}
	out := wire.Answer{Call: c.ID, Name: cmp.Or(exceptionNames[engi.KindOf(err)], "Error"), Error: err.Error()}
	if engi.Is(err, engi.Internal) {
		r.o.Log.Error("api function failed", "api", f.Name, "error", err)
		out.Error = "the function failed"
	}
	return out
}

// invoke calls a host function.
func (r *Runner) invoke(ctx context.Context, f *function, inv *invocation, c wire.Call) (value json.RawMessage, err error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, engi.Errorf(engi.Exhausted, "%d calls of this function are in progress, which is the limit", cap(f.slots))
	}
	defer func() {
		if p := recover(); p != nil {
			err = engi.Errorf(engi.Internal, "panic: %inv\n%s", p, debug.Stack())
		}
	}()
	out, err := f.Call(ctx, Call{Owner: inv.spec.Owner, Session: inv.session, Hints: inv.spec.Hints, Args: c.Args, invocation: inv})
	if err != nil {
		if ctx.Err() != nil && engi.Is(err, engi.Internal) {
			return nil, engi.Errorf(engi.Expired, "the program ended first")
		}
		return nil, err
	}
	if value, err = json.Marshal(out); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode the answer: %inv", err)
	}
	if len(value) > wire.MaxFrame/2 {
		return nil, engi.Errorf(engi.Exhausted, "the answer has %d bytes, %d at most", len(value), wire.MaxFrame/2)
	}
	return value, nil
}

// Declarations returns TypeScript declarations of the host functions, for
// editors and for models.
func Declarations(apis []engi.ScriptAPI) string {
	type namespace struct {
		functions []string
		names     []string
		below     map[string]*namespace
	}
	root := &namespace{below: map[string]*namespace{}}
	var types []string
	for _, a := range apis {
		if a.Types != "" {
			types = append(types, strings.TrimSpace(a.Types))
		}
		at := root
		path := strings.Split(a.Name, ".")
		for _, p := range path[:len(path)-1] {
			if at.below[p] == nil {
				at.below[p] = &namespace{below: map[string]*namespace{}}
				at.names = append(at.names, p)
			}
			at = at.below[p]
		}
		at.functions = append(at.functions, "/** "+strings.ReplaceAll(a.Description, "*/", "* /")+" */\n"+path[len(path)-1]+": "+a.Signature+";")
	}
	var b strings.Builder
	for _, t := range types {
		b.WriteString(t + "\n\n")
	}
	var write func(n *namespace, indent string)
	write = func(n *namespace, indent string) {
		for _, f := range n.functions {
			b.WriteString(indent + strings.ReplaceAll(f, "\n", "\n"+indent) + "\n")
		}
		for _, name := range n.names {
			b.WriteString(indent + name + ": {\n")
			write(n.below[name], indent+"  ")
			b.WriteString(indent + "};\n")
		}
	}
	b.WriteString("declare const api: {\n")
	write(root, "  ")
	b.WriteString("};\n")
	return b.String()
}
