// Package script is the lightest tier: small programs in JavaScript and
// TypeScript that answer in a millisecond. Each runs in a fresh realm of an
// interpreter (script/engine) inside a helper process (cmd/engi-js) that has
// no files, no network, no privileges and few system calls, and that is
// killed when it does not answer in time. A helper serves one owner only.
// Host functions below the name api are the only way out.
//
// It is not for programs that need modules, files or minutes: those are
// executions.
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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/wire"
)

// Options say what a Runner works with. Helper and Dir must be set; every
// other zero value has a sensible meaning.
type Options struct {
	Helper string // path of engi-js
	Dir    string // private directory; an empty one below it becomes the helpers' root
	APIs   []API  // host functions, besides none
	Log    *slog.Logger

	Sessions Sessions // nil: no script can be one of a session

	Limits Limits
	Warm   int // helpers that wait for an owner; 0 means one per processor
	Max    int // helpers at most; 0 means 4 per processor, 8 at least
}

// Sessions is what scripts need of [engi.Sessions].
type Sessions interface {
	Get(ctx context.Context, owner engi.Owner, idOrName string) (engi.Session, error)
	Enter(ctx context.Context, owner engi.Owner, idOrName string) (g engi.Guest, release func(), err error)
}

// Limits bound scripts. Zero fields mean those of DefaultLimits.
type Limits struct {
	Code       int           // characters of a program
	Timeout    time.Duration // when none is asked for
	MinTimeout time.Duration // what is asked for is clamped
	MaxTimeout time.Duration
	Memory     int64 // bytes of one program's values
	Stack      int   // calls within calls
	Lines      int   // of console output
	Text       int   // bytes of one line, and of all strings of a result together
	Depth      int   // levels of a result
	Nodes      int   // values in a result
	Calls      int   // of host functions at once, 64 at most
	AllCalls   int   // of host functions in one run
}

// DefaultLimits are those of seed S1. Its 512 KB of stack are about 4000 calls
// of a small function within each other.
func DefaultLimits() Limits {
	return Limits{
		Code: 12_000, Timeout: 3 * time.Second, MinTimeout: 250 * time.Millisecond, MaxTimeout: 5 * time.Second,
		Memory: 16 << 20, Stack: 4000, Lines: 100, Text: 64 << 10, Depth: 10, Nodes: 10_000, Calls: 16,
		AllCalls: 1000,
	}
}

// wire returns the limits of one run.
func (l Limits) wire(timeout time.Duration) wire.Limits {
	return wire.Limits{
		Timeout: int64(timeout), Memory: l.Memory, Stack: l.Stack, Lines: l.Lines, Text: l.Text,
		Depth: l.Depth, Nodes: l.Nodes, Calls: l.Calls, AllCalls: l.AllCalls,
	}
}

// maxCode is the most that an operator may allow; see engine.MaxCode.
const maxCode = 250_000

// A Runner runs scripts. It is safe for concurrent use.
type Runner struct {
	o    Options
	apis map[string]*function
	list []engi.ScriptAPI
	pool *pool

	plain, inSession []string // names of what a script has
}

// New checks o and returns a Runner. It starts nothing before Run. It reports
// Invalid for options that make no sense.
func New(o Options) (*Runner, error) {
	d := DefaultLimits()
	l := &o.Limits
	l.Code, l.Stack, l.Lines, l.Text = cmp.Or(l.Code, d.Code), cmp.Or(l.Stack, d.Stack), cmp.Or(l.Lines, d.Lines), cmp.Or(l.Text, d.Text)
	l.Depth, l.Nodes, l.Calls, l.Memory = cmp.Or(l.Depth, d.Depth), cmp.Or(l.Nodes, d.Nodes), cmp.Or(l.Calls, d.Calls), cmp.Or(l.Memory, d.Memory)
	l.AllCalls = cmp.Or(l.AllCalls, d.AllCalls)
	l.MinTimeout, l.MaxTimeout = cmp.Or(l.MinTimeout, d.MinTimeout), cmp.Or(l.MaxTimeout, d.MaxTimeout)
	l.Timeout = cmp.Or(l.Timeout, min(d.Timeout, l.MaxTimeout))
	if min(l.Code, l.Stack, l.Lines, l.Text, l.Depth, l.Nodes, l.Calls, l.AllCalls) < 1 || l.Memory < 1<<20 ||
		l.MinTimeout < 0 || l.Timeout < l.MinTimeout || l.MaxTimeout < l.Timeout {
		return nil, engi.Errorf(engi.Invalid, "script limits %+v make no sense", *l)
	}
	if l.Code > maxCode || l.Text > 1<<20 || l.Lines > 10_000 || l.Memory > 512<<20 || l.Stack > 10_000 ||
		l.Depth > 200 || l.Nodes > 200_000 || l.Calls > 64 || l.AllCalls > 1_000_000 {
		return nil, engi.Errorf(engi.Invalid, "script limits %+v are more than a helper can hold", *l).
			WithRemedy("code 250,000, text 1 MiB, lines 10,000, memory 512 MiB, stack 10,000, depth 200, nodes 200,000 and calls 64 are the most")
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
	for _, a := range o.APIs {
		if err := a.check(); err != nil {
			return nil, err
		}
		if _, twice := r.apis[a.Name]; twice {
			return nil, engi.Errorf(engi.Invalid, "api function %s is there twice", a.Name)
		}
		r.apis[a.Name] = newFunction(a)
		r.list = append(r.list, a.ScriptAPI)
	}
	slices.SortFunc(r.list, func(a, b engi.ScriptAPI) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(r.list); i++ {
		if strings.HasPrefix(r.list[i].Name, r.list[i-1].Name+".") {
			return nil, engi.Errorf(engi.Invalid, "api name %s is a function and holds %s", r.list[i-1].Name, r.list[i].Name)
		}
	}
	for _, a := range r.list {
		r.inSession = append(r.inSession, a.Name)
		if !a.Session {
			r.plain = append(r.plain, a.Name)
		}
	}
	empty := filepath.Join(o.Dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	r.pool = newPool(o, empty)
	return r, nil
}

// Run keeps helpers warm until ctx ends; then it ends them all. Call it once.
func (r *Runner) Run(ctx context.Context, ready func()) error { return r.pool.run(ctx, ready) }

// Scripts returns the front desk.
func (r *Runner) Scripts() engi.Scripts { return service{r} }

type service struct{ r *Runner }

func (d service) APIs() []engi.ScriptAPI { return slices.Clone(d.r.list) }

func (d service) Declarations() string { return Declarations(d.r.list) }

func (d service) Run(ctx context.Context, spec engi.ScriptSpec) (engi.ScriptResult, error) {
	began := time.Now()
	visit, result, err := d.r.run(ctx, spec)
	d.r.note(ctx, spec, visit, result, err, time.Since(began))
	return result, err
}

func (r *Runner) run(ctx context.Context, spec engi.ScriptSpec) (visit *visit, result engi.ScriptResult, err error) {
	if err := r.check(&spec); err != nil {
		return nil, result, err
	}
	if visit, err = r.visit(ctx, spec); err != nil {
		return nil, result, err
	}
	defer visit.end()
	l := r.o.Limits
	timeout := cmp.Or(spec.Timeout, l.Timeout)
	clamped := min(max(timeout, l.MinTimeout), l.MaxTimeout)
	names := r.plain
	if visit.session != nil {
		names = r.inSession
	}
	run := wire.Run{
		ID: rand.Uint64(), Language: spec.Language, Code: spec.Code, APIs: names,
		Limits: l.wire(clamped),
	}
	done, err := r.try(ctx, spec.Owner, run, visit)
	if err != nil {
		return visit, result, err
	}
	result = engi.ScriptResult{
		OK: done.Error == nil, Value: done.Value, Stdout: done.Stdout, Stderr: done.Stderr, Warnings: done.Warnings,
		Duration: time.Duration(done.Duration),
		Environment: engi.ScriptEnvironment{
			Engine: "quickjs", Tier: engi.TierScript, Timeout: clamped, Memory: l.Memory, APIs: slices.Clone(names),
		},
	}
	if visit.session != nil {
		result.Environment.Session = visit.session.ID
	}
	if clamped != timeout {
		result.Warnings = append(result.Warnings, "the timeout was set to "+clamped.String()+", between "+l.MinTimeout.String()+" and "+l.MaxTimeout.String())
	}
	if e := done.Error; e != nil {
		result.Error = &engi.ScriptError{Kind: e.Kind, Name: e.Name, Message: e.Message, Line: e.Line, Column: e.Column, Stack: e.Stack}
	}
	return visit, result, nil
}

// try runs a program on a helper, and on another if that one had died idle.
func (r *Runner) try(ctx context.Context, owner engi.Owner, run wire.Run, v *visit) (done wire.Done, err error) {
	for range 3 {
		h, e := r.pool.take(ctx, owner)
		if e != nil {
			return done, e
		}
		var healthy bool
		done, healthy, err = h.run(ctx, run, func(ctx context.Context, c wire.Call) wire.Answer { return r.answer(ctx, v, c) })
		r.pool.put(h, healthy)
		if err != errGone {
			break
		}
		r.o.Log.Warn("script helper died idle")
	}
	return done, err
}

// note writes the one line that a run leaves in the log. What the program was,
// said and returned is its owner's and not in it.
func (r *Runner) note(ctx context.Context, spec engi.ScriptSpec, v *visit, x engi.ScriptResult, err error, took time.Duration) {
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
		slog.String("outcome", outcome), slog.Float64("took_ms", float64(took.Microseconds())/1000),
	}
	if v != nil {
		if v.session != nil {
			attrs = append(attrs, slog.String("session", string(v.session.ID)))
		}
		if n := v.calls.Load(); n > 0 {
			attrs = append(attrs, slog.Int64("calls", n))
		}
	}
	r.o.Log.LogAttrs(ctx, level, "script", attrs...)
}

// check reports Invalid, and fills in the language.
func (r *Runner) check(spec *engi.ScriptSpec) error {
	spec.Language = cmp.Or(spec.Language, engi.JavaScript)
	switch {
	case spec.Language != engi.JavaScript && spec.Language != engi.TypeScript:
		return engi.Errorf(engi.Invalid, "scripts are JavaScript or TypeScript, not %.40q", spec.Language).
			WithRemedy("send other languages to /v1/executions")
	case strings.TrimSpace(spec.Code) == "":
		return engi.Errorf(engi.Invalid, "the script has no code").WithRemedy("send it in 'code'")
	case !utf8.ValidString(spec.Code):
		return engi.Errorf(engi.Invalid, "the script is not UTF-8").WithRemedy("send it as UTF-8 text")
	case strings.ContainsRune(spec.Code, 0):
		return engi.Errorf(engi.Invalid, "the script has a NUL in it").WithRemedy(`write \0 in a string instead`)
	case spec.Timeout < 0:
		return engi.Errorf(engi.Invalid, "timeout %v is negative", spec.Timeout).WithRemedy("leave it out to get the default")
	case spec.Session != "" && r.o.Sessions == nil:
		return engi.Errorf(engi.Unsupported, "this node has no sessions for scripts to be part of").WithRemedy("leave 'session' out")
	case len(spec.Session) > 128:
		return engi.Errorf(engi.NotFound, "session %.40q", spec.Session)
	case len(spec.Hints) > 16:
		return engi.Errorf(engi.Invalid, "%d hints, 16 at most", len(spec.Hints)).WithRemedy("send those that host functions use, like latitude and longitude")
	}
	for k, v := range spec.Hints {
		if len(k) > 64 || len(v) > 256 {
			return engi.Errorf(engi.Invalid, "hint %.40q is too long", k).WithRemedy("names have 64 bytes at most, values 256")
		}
	}
	if n := utf8.RuneCountInString(spec.Code); n > r.o.Limits.Code {
		return engi.Errorf(engi.Invalid, "the script has %d characters, %d at most", n, r.o.Limits.Code).
			WithRemedy("send longer programs to /v1/executions")
	}
	return nil
}
