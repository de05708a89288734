package script

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/wire"
)

// An API is a host function that scripts call as api.NAME(…) and await. It is
// registered in Options; documentation and declarations come from it.
type API struct {
	engi.ScriptAPI
	// Call answers one call with a value that encoding/json can write. Its
	// context ends with the run. What it returns as an error is thrown
	// inside; only the text of errors of ours is shown. It is called
	// concurrently.
	Call func(ctx context.Context, c Call) (any, error)
}

// A Call is one call of a host function. Everything in it but Owner comes
// from a stranger.
type Call struct {
	Owner engi.Owner
	Hints map[string]string // of the run
	Args  json.RawMessage   // a list
}

// Into decodes the arguments, in order, into pointers. Missing ones leave
// theirs alone; it reports Invalid for too many and for wrong types.
func (c Call) Into(args ...any) error {
	var list []json.RawMessage
	if err := json.Unmarshal(c.Args, &list); err != nil {
		return engi.Errorf(engi.Invalid, "the arguments make no sense")
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

// reserved would be found on the prototype of whatever holds them.
var reserved = map[string]bool{"constructor": true, "hasOwnProperty": true, "toString": true, "valueOf": true, "then": true}

func (a API) check() error {
	if !apiName.MatchString(a.Name) || a.Call == nil {
		return engi.Errorf(engi.Invalid, "api function %.80q needs a name like getWeather or kv.get, and a handler", a.Name)
	}
	for part := range strings.SplitSeq(a.Name, ".") {
		if reserved[part] {
			return engi.Errorf(engi.Invalid, "api function %s: %s means something else in JavaScript", a.Name, part)
		}
	}
	if a.Signature == "" || a.Description == "" {
		return engi.Errorf(engi.Invalid, "api function %s has no signature or description", a.Name)
	}
	if a.Schema != nil && !json.Valid(a.Schema) {
		return engi.Errorf(engi.Invalid, "api function %s: its schema is not JSON", a.Name)
	}
	return nil
}

// thrown names the exception that a kind of error becomes.
var thrown = map[engi.Kind]string{engi.Invalid: "TypeError", engi.NotFound: "NotFoundError", engi.Denied: "DeniedError",
	engi.Exhausted: "RangeError", engi.Expired: "TimeoutError"}

// answer calls a host function.
func (r *Runner) answer(ctx context.Context, spec engi.ScriptSpec, c wire.Call) (out wire.Answer) {
	out.Call = c.ID
	a, ok := r.apis[c.API]
	if !ok {
		out.Name, out.Error = "TypeError", "there is no such function"
		return out
	}
	defer func() {
		if p := recover(); p != nil {
			r.o.Log.Error("api function panicked", "api", c.API, "panic", p)
			out = wire.Answer{Call: c.ID, Name: "Error", Error: "the function broke"}
		}
	}()
	v, err := a.Call(ctx, Call{Owner: spec.Owner, Hints: spec.Hints, Args: c.Args})
	if err == nil {
		out.Value, err = json.Marshal(v)
		if err == nil && len(out.Value) > wire.MaxFrame/2 {
			err = engi.Errorf(engi.Exhausted, "the answer has %d bytes, %d at most", len(out.Value), wire.MaxFrame/2)
		}
	}
	if err != nil {
		out.Value = nil
		kind := engi.KindOf(err)
		out.Name, out.Error = thrown[kind], err.Error()
		if kind == engi.Internal {
			r.o.Log.Error("api function failed", "api", c.API, "error", err)
			out.Error = "the function failed"
		}
		if out.Name == "" {
			out.Name = "Error"
		}
	}
	return out
}

// Declarations returns TypeScript declarations of the host functions, for
// editors and for models.
func Declarations(apis []engi.ScriptAPI) string {
	type space struct {
		functions []string
		names     []string
		below     map[string]*space
	}
	root := &space{below: map[string]*space{}}
	var types []string
	for _, a := range apis {
		if a.Types != "" {
			types = append(types, strings.TrimSpace(a.Types))
		}
		at := root
		path := strings.Split(a.Name, ".")
		for _, p := range path[:len(path)-1] {
			if at.below[p] == nil {
				at.below[p] = &space{below: map[string]*space{}}
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
	var write func(s *space, indent string)
	write = func(s *space, indent string) {
		for _, f := range s.functions {
			b.WriteString(indent + strings.ReplaceAll(f, "\n", "\n"+indent) + "\n")
		}
		for _, n := range s.names {
			b.WriteString(indent + n + ": {\n")
			write(s.below[n], indent+"  ")
			b.WriteString(indent + "};\n")
		}
	}
	b.WriteString("declare const api: {\n")
	write(root, "  ")
	b.WriteString("};\n")
	return b.String()
}
