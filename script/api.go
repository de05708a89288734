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
	// concurrently, and it must return soon after its context has ended: the
	// script's answer waits for it.
	Call func(ctx context.Context, c Call) (any, error)
	// Most bounds the calls at once of all scripts together; more are
	// refused inside. 0 means 256.
	Most int
}

// A function is an API with those who call it.
type function struct {
	API
	slots chan struct{}
}

func newFunction(a API) *function {
	return &function{API: a, slots: make(chan struct{}, cmp.Or(a.Most, 256))}
}

// A Call is one call of a host function. Hints and Args come
// from strangers.
type Call struct {
	Owner   engi.Owner
	Session *engi.Session     // nil if the run has none; not to be changed
	Hints   map[string]string // of the run; not to be changed
	Args    json.RawMessage   // a list

	visit *visit
}

// Sandbox returns the inside of the session's sandbox, which is started if
// there is none. It is good until the run ends. It reports Unsupported for a
// run without a session.
func (c Call) Sandbox(ctx context.Context) (engi.Guest, error) { return c.visit.sandbox(ctx) }

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
	if a.Most < 0 {
		return engi.Errorf(engi.Invalid, "api function %s: %d calls at once make no sense", a.Name, a.Most)
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

// answer calls a host function, and notes that in the log.
func (r *Runner) answer(ctx context.Context, v *visit, c wire.Call) wire.Answer {
	began := time.Now()
	v.calls.Add(1)
	f, ok := r.apis[c.API]
	if !ok || f.Session && v.session == nil {
		r.o.Log.Warn("script asks for a function it does not have", "owner", v.spec.Owner, "api", fmt.Sprintf("%.80q", c.API))
		return wire.Answer{Call: c.ID, Name: "TypeError", Error: "there is no such function"}
	}
	value, err := r.ask(ctx, f, v, c)
	outcome := "ok"
	if err != nil {
		outcome = engi.KindOf(err).String()
	}
	r.o.Log.LogAttrs(ctx, slog.LevelInfo, "script called", slog.String("owner", string(v.spec.Owner)), slog.String("api", f.Name),
		slog.String("outcome", outcome), slog.Float64("took_ms", float64(time.Since(began).Microseconds())/1000))
	if err == nil {
		return wire.Answer{Call: c.ID, Value: value}
	}
	out := wire.Answer{Call: c.ID, Name: cmp.Or(thrown[engi.KindOf(err)], "Error"), Error: err.Error()}
	if engi.KindOf(err) == engi.Internal {
		r.o.Log.Error("api function failed", "api", f.Name, "error", err)
		out.Error = "the function failed"
	}
	return out
}

// ask is the call itself.
func (r *Runner) ask(ctx context.Context, f *function, v *visit, c wire.Call) (value json.RawMessage, err error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, engi.Errorf(engi.Exhausted, "%d calls of this function are under way, which is the most", cap(f.slots))
	}
	defer func() {
		if p := recover(); p != nil {
			err = engi.Errorf(engi.Internal, "panic: %v\n%s", p, debug.Stack())
		}
	}()
	out, err := f.Call(ctx, Call{Owner: v.spec.Owner, Session: v.session, Hints: v.spec.Hints, Args: c.Args, visit: v})
	if err != nil {
		if ctx.Err() != nil && engi.KindOf(err) == engi.Internal {
			return nil, engi.Errorf(engi.Expired, "the program ended first")
		}
		return nil, err
	}
	if value, err = json.Marshal(out); err != nil {
		return nil, engi.Errorf(engi.Internal, "write the answer: %v", err)
	}
	if len(value) > wire.MaxFrame/2 {
		return nil, engi.Errorf(engi.Exhausted, "the answer has %d bytes, %d at most", len(value), wire.MaxFrame/2)
	}
	return value, nil
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
