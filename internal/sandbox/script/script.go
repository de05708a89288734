// Package script is the lightest tier: it runs small programs in JavaScript and
// TypeScript in about a millisecond. Each runs in a new realm of an interpreter
// (internal/sandbox/script/engine) in a helper process (cmd/engi-js) that has no files, network or
// privileges, may use few system calls, and is killed if it does not answer in time. A
// helper serves only one owner. Programs can only reach host functions, under
// the name api.
//
// Programs that need modules, files or minutes are executions.
package script

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

// Options configures a Runner. Helper and Dir are required.
type Options struct {
	Helper string // path of engi-js
	Dir    string // private directory of the runner; an empty directory below it is the helpers' root
	APIs   []API  // host functions
	Log    *slog.Logger

	Sessions Sessions // nil means that scripts cannot belong to a session

	Limits Limits
	Warm   int // number of idle helpers without an owner; 0 means one per processor
	Max    int // maximum number of helpers; 0 means 4 per processor, at least 8
}

// Sessions is the part of [engi.Sessions] that scripts need.
type Sessions interface {
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error)
	Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (g engi.Guest, release func(), err error)
}

// Limits holds the limits of scripts. Zero fields mean the values of DefaultLimits.
type Limits struct {
	Code       int           // maximum characters of a program
	Timeout    time.Duration // timeout of scripts without one
	MinTimeout time.Duration // minimum timeout; timeouts of scripts are clamped
	MaxTimeout time.Duration
	Memory     int64 // maximum bytes of one program's values
	Stack      int   // maximum number of nested calls
	Lines      int   // maximum number of lines of console output
	Text       int   // maximum bytes of one line, and of all strings of a result together
	Depth      int   // maximum number of levels of a result
	Nodes      int   // maximum number of values in a result
	Calls      int   // maximum number of concurrent calls of host functions, at most 64
	AllCalls   int   // maximum number of calls of host functions in one run
}

// DefaultLimits returns the default limits. The stack is about the number of calls of a small
// function that fit in 512 KB.
func DefaultLimits() Limits {
	return Limits{
		Code: 12_000, Timeout: 3 * time.Second, MinTimeout: 250 * time.Millisecond, MaxTimeout: 5 * time.Second,
		Memory: 16 << 20, Stack: 4000, Lines: 100, Text: 64 << 10, Depth: 10, Nodes: 10_000, Calls: 16,
		AllCalls: 1000,
	}
}

// wire returns the limits of a run.
func (l Limits) wire(timeout time.Duration) wire.Limits {
	return wire.Limits{
		Timeout: int64(timeout), Memory: l.Memory, Stack: l.Stack, Lines: l.Lines, Text: l.Text,
		Depth: l.Depth, Nodes: l.Nodes, Calls: l.Calls, AllCalls: l.AllCalls,
	}
}

// maxCode is the maximum of Limits.Code, in characters; see engine.MaxCode.
const maxCode = 250_000

// A Runner runs scripts. It is safe for concurrent use.
type Runner struct {
	o    Options
	apis map[string]*function
	all  []engi.ScriptAPI
	pool *pool

	names, sessionNames []string // names of the host functions of scripts without and with a session
}

// or fills in defaults, and returns Invalid for limits that cannot work.
func (l Limits) or(d Limits) (Limits, error) {
	l.Code, l.Stack, l.Lines, l.Text = cmp.Or(l.Code, d.Code), cmp.Or(l.Stack, d.Stack), cmp.Or(l.Lines, d.Lines), cmp.Or(l.Text, d.Text)
	l.Depth, l.Nodes, l.Calls, l.Memory = cmp.Or(l.Depth, d.Depth), cmp.Or(l.Nodes, d.Nodes), cmp.Or(l.Calls, d.Calls), cmp.Or(l.Memory, d.Memory)
	l.AllCalls = cmp.Or(l.AllCalls, d.AllCalls)
	l.MinTimeout, l.MaxTimeout = cmp.Or(l.MinTimeout, d.MinTimeout), cmp.Or(l.MaxTimeout, d.MaxTimeout)
	l.Timeout = cmp.Or(l.Timeout, min(d.Timeout, l.MaxTimeout))
	if min(l.Code, l.Stack, l.Lines, l.Text, l.Depth, l.Nodes, l.Calls, l.AllCalls) < 1 || l.Memory < 1<<20 ||
		l.MinTimeout < 0 || l.Timeout < l.MinTimeout || l.MaxTimeout < l.Timeout {
		return l, engi.Errorf(engi.Invalid, "script limits %+v are not valid", l)
	}
	if l.Code > maxCode || l.Text > 1<<20 || l.Lines > 10_000 || l.Memory > 512<<20 || l.Stack > 10_000 ||
		l.Depth > 200 || l.Nodes > 200_000 || l.Calls > 64 || l.AllCalls > 1_000_000 {
		return l, engi.Errorf(engi.Invalid, "the script limits %+v are more than a helper process can hold", l).
			WithRemedy("the limits are code 250,000, text 1 MiB, lines 10,000, memory 512 MiB, stack 10,000, depth 200, nodes 200,000 and calls 64")
	}
	return l, nil
}

// New returns a Runner, which starts nothing before Run. It returns Invalid for
// options that cannot work.
func New(o Options) (*Runner, error) {
	var err error
	if o.Limits, err = o.Limits.or(DefaultLimits()); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.Helper) {
		return nil, engi.Errorf(engi.Invalid, "scripts need absolute paths of a directory and of engi-js")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Warm = cmp.Or(o.Warm, runtime.GOMAXPROCS(0))
	o.Max = cmp.Or(o.Max, max(8, 4*runtime.GOMAXPROCS(0)))
	if o.Warm < 0 || o.Max < 1 || o.Warm > o.Max {
		return nil, engi.Errorf(engi.Invalid, "%d warm helpers of %d at most", o.Warm, o.Max)
	}
	r := &Runner{o: o, apis: map[string]*function{}}
	if err := r.register(o.APIs); err != nil {
		return nil, err
	}
	empty := filepath.Join(o.Dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	r.pool = newPool(o, empty)
	return r, nil
}

// register adds host functions.
func (r *Runner) register(apis []API) error {
	for _, a := range apis {
		if err := a.check(); err != nil {
			return err
		}
		if _, twice := r.apis[a.Name]; twice {
			return engi.Errorf(engi.Invalid, "api function %s is defined twice", a.Name)
		}
		r.apis[a.Name] = newFunction(a)
		r.all = append(r.all, a.ScriptAPI)
	}
	slices.SortFunc(r.all, func(a, b engi.ScriptAPI) int { return strings.Compare(a.Name, b.Name) })
	for i, a := range r.all {
		if i > 0 && strings.HasPrefix(a.Name, r.all[i-1].Name+".") {
			return engi.Errorf(engi.Invalid, "api name %s is a function and also contains %s", r.all[i-1].Name, a.Name)
		}
		r.sessionNames = append(r.sessionNames, a.Name)
		if !a.Session {
			r.names = append(r.names, a.Name)
		}
	}
	return nil
}

// Run keeps helpers warm until ctx ends, and then ends them. Call it once.
func (r *Runner) Run(ctx context.Context, ready func()) error { return r.pool.run(ctx, ready) }

// Scripts returns the service that runs scripts.
func (r *Runner) Scripts() engi.Scripts { return service{r} }

type service struct{ r *Runner }

func (s service) APIs() []engi.ScriptAPI { return slices.Clone(s.r.all) }

func (s service) Declarations() string { return Declarations(s.r.all) }

func (s service) Run(ctx context.Context, spec engi.ScriptSpec) (engi.ScriptResult, error) {
	began := time.Now()
	inv, result, err := s.r.run(ctx, spec)
	s.r.logRun(ctx, spec, inv, result, err, time.Since(began))
	return result, err
}

func (r *Runner) run(ctx context.Context, spec engi.ScriptSpec) (inv *invocation, result engi.ScriptResult, err error) {
	if err := r.check(&spec); err != nil {
		return nil, result, err
	}
	if inv, err = r.newInvocation(ctx, spec); err != nil {
		return nil, result, err
	}
	defer inv.release()
	l := r.o.Limits
	timeout := cmp.Or(spec.Timeout, l.Timeout)
	clamped := min(max(timeout, l.MinTimeout), l.MaxTimeout)
	names := r.names
	if inv.session != nil {
		names = r.sessionNames
	}
	run := wire.Run{
		ID: rand.Uint64(), Language: spec.Language, Code: spec.Code, APIs: names,
		Limits: l.wire(clamped),
	}
	done, err := r.runOnHelper(ctx, spec.Owner, run, inv)
	if err != nil {
		return inv, result, err
	}
	result = engi.ScriptResult{
		OK: done.Error == nil, Value: done.Value, Stdout: done.Stdout, Stderr: done.Stderr, Warnings: done.Warnings,
		Duration: time.Duration(done.Duration),
		Environment: engi.ScriptEnvironment{
			Engine: "quickjs", Tier: engi.TierScript, Timeout: clamped, Memory: l.Memory, APIs: slices.Clone(names),
		},
	}
	if inv.session != nil {
		result.Environment.Session = inv.session.ID
	}
	if clamped != timeout {
		result.Warnings = append(result.Warnings, "the timeout was set to "+clamped.String()+", between "+l.MinTimeout.String()+" and "+l.MaxTimeout.String())
	}
	if e := done.Error; e != nil {
		result.Error = &engi.ScriptError{Kind: e.Kind, Name: e.Name, Message: e.Message, Line: e.Line, Column: e.Column, Stack: e.Stack}
	}
	return inv, result, nil
}

// runOnHelper runs a program on a helper, or on another one if the first had died while
// it was idle.
func (r *Runner) runOnHelper(ctx context.Context, owner engi.Owner, run wire.Run, inv *invocation) (done wire.Done, err error) {
	for range 3 {
		h, e := r.pool.acquire(ctx, owner)
		if e != nil {
			return done, e
		}
		var healthy bool
		done, healthy, err = h.run(ctx, run, func(ctx context.Context, c wire.Call) wire.Answer { return r.handleCall(ctx, inv, c) })
		r.pool.giveBack(h, healthy)
		if err != errHelperGone {
			break
		}
		r.o.Log.Warn("script helper died while idle")
	}
	return done, err
}

// logRun writes the log line of a run. It does not contain the program, its output
// or its result.
func (r *Runner) logRun(ctx context.Context, spec engi.ScriptSpec, inv *invocation, x engi.ScriptResult, err error, duration time.Duration) {
	level, outcome := slog.LevelInfo, "ok"
	switch {
	case err != nil:
		outcome = "refused: " + engi.KindOf(err).String()
	case x.Error != nil:
		outcome = string(x.Error.Kind)
		if x.Error.Kind == engi.ScriptLost {
			level = slog.LevelWarn
		}
	}
	if !r.o.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("owner", string(spec.Owner)), slog.String("language", string(spec.Language)), slog.Int("code", len(spec.Code)),
		slog.String("outcome", outcome), slog.Float64("took_ms", float64(duration.Microseconds())/1000),
	}
	if inv != nil {
		if inv.session != nil {
			attrs = append(attrs, slog.String("session", string(inv.session.ID)))
		}
		if n := inv.calls.Load(); n > 0 {
			attrs = append(attrs, slog.Int64("calls", n))
		}
	}
	r.o.Log.LogAttrs(ctx, level, "script", attrs...)
}

// check returns Invalid for a script that cannot run, and sets its language if it
// has none.
func (r *Runner) check(spec *engi.ScriptSpec) error {
	spec.Language = cmp.Or(spec.Language, engi.JavaScript)
	switch {
	case spec.Language != engi.JavaScript && spec.Language != engi.TypeScript:
		return engi.Errorf(engi.Invalid, "scripts are JavaScript or TypeScript, not %.40q", spec.Language).
			WithRemedy("send programs in other languages to /v1/executions")
	case strings.TrimSpace(spec.Code) == "":
		return engi.Errorf(engi.Invalid, "the script has no code").WithRemedy("send it in 'code'")
	case !utf8.ValidString(spec.Code):
		return engi.Errorf(engi.Invalid, "the script is not UTF-8").WithRemedy("send it as UTF-8 text")
	case strings.ContainsRune(spec.Code, 0):
		return engi.Errorf(engi.Invalid, "the script has a NUL in it").WithRemedy(`write \0 in a string instead`)
	case spec.Timeout < 0:
		return engi.Errorf(engi.Invalid, "timeout %v is negative", spec.Timeout).WithRemedy("leave it out to use the default")
	case spec.Session != "" && r.o.Sessions == nil:
		return engi.Errorf(engi.Unsupported, "this node has no sessions for scripts").WithRemedy("leave 'session' out")
	case len(spec.Session) > 128:
		return engi.Errorf(engi.NotFound, "session %.40q", spec.Session)
	case len(spec.Hints) > 16:
		return engi.Errorf(engi.Invalid, "%d hints, 16 at most", len(spec.Hints)).WithRemedy("send only the values that host functions use, such as latitude and longitude")
	}
	for k, v := range spec.Hints {
		if len(k) > 64 || len(v) > 256 {
			return engi.Errorf(engi.Invalid, "hint %.40q is too long", k).WithRemedy("names may have at most 64 bytes, and values 256")
		}
	}
	if n := utf8.RuneCountInString(spec.Code); n > r.o.Limits.Code {
		return engi.TooLarge("the script has %d characters, %d at most", n, r.o.Limits.Code).
			WithRemedy("send longer programs to /v1/executions")
	}
	return nil
}
